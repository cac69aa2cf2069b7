"""The jitted function behind `nnx.jit` without graph updates, and behind `nnx.jit_partial`.

Upstream's function takes nodes as pytrees and gives the Variables that changed, with their places.
Here nodes travel as their leaves, and of a changed Variable its leaf alone.
"""
import jax

from flax.nnx.fast cimport kinds, upstream
from flax.nnx.fast.kinds cimport TypeInfo, info_of
from flax.nnx.fast.nodes cimport Flat, TreeState, flat_like, rebuilt
from flax.nnx.fast.programs cimport FULL, OUTER, Outcome, Program, all_values
from flax.nnx.fast.traces cimport at_top_level
from flax.nnx.fast.programs import NotPlain

cdef str FLAT = f'{Flat.__module__}.{Flat.__qualname__}'
cdef object tree_flatten = jax.tree.flatten, tree_unflatten = jax.tree.unflatten


cdef class Changes:
  pass


cdef Flat flat_of(object x):
  leaves, treedef = tree_flatten(x)
  if not all_values(leaves):
    raise NotPlain
  return flat_like(treedef, leaves)


cdef object flat_nodes(object x):
  """The same with a Flat in place of each node, in lists, tuples and dicts of strings."""
  def visit(x):
    cdef TypeInfo info = info_of(x)
    if info.kind is kinds.GRAPH or info.kind is kinds.VARIABLE or type(x) is TreeState:
      return flat_of(x)
    return x
  return rebuilt(x, visit)


cdef object whole_nodes(object x, list treedefs):
  """The reverse; collects the Flats' treedefs."""
  def visit(x):
    if type(x) is not Flat:
      return x
    treedefs.append((<Flat>x).treedef)
    return tree_unflatten((<Flat>x).treedef, (<Flat>x).leaves)
  return rebuilt(x, visit)


cdef Changes changes_of(list updates, object treedef, list treedefs):
  cdef Changes changes = Changes.__new__(Changes)
  changes.treedef, changes.treedefs, changes.places = treedef, treedefs, []
  changes.single = True
  for group in updates:
    for place, value in group:
      changes.places.append(place)
      if isinstance(value, upstream.Variable):
        value = value.get_raw_value()
      changes.single = changes.single and all_values([value])
  return changes


cdef tuple unpacked(tuple outs):
  """(changes or None, result, upstream's updates) of what `outer` gives."""
  out, second = outs
  if type(second) is not Outcome:
    return None, out, second
  changes, leaves = (<Outcome>second).record, (<Outcome>second).leaves
  return changes, out, tree_unflatten((<Changes>changes).treedef, leaves)


cdef list treedefs_in(object x):
  """Of the Flats in lists, tuples and dicts of strings, in jax's order."""
  cdef list found = []

  def visit(x):
    if type(x) is Flat:
      found.append((<Flat>x).treedef)
    return x
  rebuilt(x, visit)
  return found


cdef class TreeProgram(Program):
  def __init__(self, full, pure, options, listed):
    super().__init__(full, pure, options)
    self.listed = listed

  def __call__(self, *args, **kwargs):
    return self.run(self.flat_call(args, kwargs), args, kwargs)[1:]

  cdef tuple flattened(self, tuple args, dict kwargs):
    """(args, kwargs) with nodes flat; None where upstream's own program has to run."""
    cdef tuple both = None
    cdef Py_ssize_t n = len(args)
    try:
      both = (
        tuple([self.flat_argument(i, x, n) for i, x in enumerate(args)]),
        {name: self.flat_argument(name, x, n) for name, x in kwargs.items()},
      )
    except NotPlain:
      pass
    return both

  cdef object flat_argument(self, object at, object value, Py_ssize_t n):
    """`at`: its position among `n`, or its name."""
    if self.is_static(at, n):
      return value
    return flat_of(value) if self.listed and at == 0 else flat_nodes(value)

  cdef tuple flat_call(self, tuple args, dict kwargs):
    """The arguments of `outer` for a call; None where upstream's own program has to run."""
    if not at_top_level() or not self.flattens():
      return None
    return self.flattened(args, kwargs)

  cdef tuple run(self, tuple flat, tuple args, dict kwargs):
    """(changes or None, result, updates): what upstream's program gives; `flat`: of `flat_call`."""
    if flat is None:
      return (None, *self.full(*args, **kwargs))
    size = self.outer._cache_size()
    outs = self.flat_run(flat[0], flat[1])
    changes, out, updates = unpacked(outs)
    if changes is not None and self.outer._cache_size() != size:   # jax's entry has these treedefs
      (<Changes>changes).treedefs = treedefs_in(flat)
    return changes, out, updates

  cdef tuple flat_run(self, tuple args, dict kwargs):
    """What `outer` gives. Where comparing statics raises, jax names the node that holds them."""
    try:
      return self.outer(*args, **kwargs)
    except ValueError as error:
      if FLAT in str(error) and isinstance(error.__cause__, ValueError):
        raise error.__cause__ from error.__cause__.__cause__
      raise

  def trace_outer(self, args, kwargs):
    """The function behind `outer`: upstream's, over nodes made of their leaves."""
    cdef list treedefs = []
    pure_args, pure_kwargs = whole_nodes((args, kwargs), treedefs)
    if self.leads(OUTER):
      out, updates = self.pure(*pure_args, **pure_kwargs)
    else:
      out, updates = self.replayed(pure_args, pure_kwargs)
    leaves, treedef = tree_flatten(updates)
    if not all_values(leaves) or not all_values(jax.tree.leaves(out)):
      return out, updates   # jax's message says where in this
    return out, Outcome(changes_of(updates, treedef, treedefs), leaves)

  def traced(self, args, kwargs):
    """What upstream's function gives for tracers."""
    if self.leads(FULL):
      return self.pure(*args, **kwargs)
    outer = self.flattened(args, kwargs)
    if outer is None:
      return self.pure(*args, **kwargs)
    return unpacked(self.replayed(outer[0], outer[1]))[1:]
