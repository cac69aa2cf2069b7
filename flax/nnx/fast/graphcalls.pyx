"""A call of a function that `nnx.jit` made, in graph mode: by plan where one fits.

By plan: compare the arguments with the plan, take the arrays out, call, put the changed arrays
back. No graph definition, Variable or State is made. The general way is upstream's own, over the
compiled walks. A plan is used once a general call was seen to leave the objects as the plan has
them, so that the walks it replaces would have changed nothing but arrays.
"""
import weakref

import jax

from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.weakref cimport PyWeakref_NewRef

from flax.nnx.fast cimport kinds, upstream
from flax.nnx.fast.arguments cimport tree_passes
from flax.nnx.fast.flights cimport Flight, land, take_off
from flax.nnx.fast.graphprograms cimport Record, alone, filled_in, uniform
from flax.nnx.fast.graphtypes cimport NodeDef, NodeRef, VariableDef, same_objects
from flax.nnx.fast.kinds cimport TypeInfo, info_of
from flax.nnx.fast.nodes cimport NodeStates, Split, has_states, split_of, states_in
from flax.nnx.fast.plans cimport Plan
from flax.nnx.fast.programs cimport Outcome, same_list
from flax.nnx.fast.sites cimport MISS, Planned, Site, uncompiled
from flax.nnx.fast.traces cimport at_top_level, configured

cdef extern from "Python.h":
  Py_ssize_t Py_REFCNT(PyObject* o) noexcept
  ctypedef struct PyWeakReference:
    PyObject* wr_object   # None once it is dead

cdef object graph_context, update_context, is_deleted, tree_unflatten = jax.tree.unflatten
cdef list settings = []   # what of jax's configuration decides where a program runs


# ---- what comes back ----

cdef bint mirrors(object before, object after) except -1:
  """Whether each node and leaf of `after` is the one of `before` in the same place."""
  if len(before.nodes) != len(after.nodes) or len(before.attributes) != len(after.attributes):
    return False
  for x, y in zip(before.nodes, after.nodes):
    if type(x) is not type(y):
      return False
    if type(x) is NodeRef:
      if x.index != y.index:
        return False
    elif type(x) is not NodeDef and type(x) is not VariableDef:
      return False
    elif x.type is not y.type or x.index != y.index or x.index != y.outer_index:
      return False
  for (x_key, x), (y_key, y) in zip(before.attributes, after.attributes):
    if x_key != y_key or type(x) is not type(y):
      return False
    if (x is upstream.LEAF_ATTR) != (y is upstream.LEAF_ATTR):
      return False
  return before.num_leaves == after.num_leaves


cdef bint all_mirror(list before, list after) except -1:
  if len(before) != len(after):
    return False
  for x, y in zip(before, after):
    if not mirrors(x, y):
      return False
  return True


cdef class Settled:
  cdef bint sort(self, Record record) except -1:
    """Tells the leaves that change from those that stay; False where one moved."""
    cdef Py_ssize_t k
    if len(record.sources) != len(self.changed):
      return False
    self.changed.clear()
    for k in range(len(record.sources)):
      source = record.sources[k]
      if source != k and source >= 0:
        return False
      (self.changed if source < 0 else self.kept).append(k)
    self.unused = [k for k in self.kept if record.unused is None or k in record.unused]
    return True

  cdef int vouch(self, list arrays) except -1:
    """Notes the arrays that stay, which were found fit, and the configuration that they are fit for."""
    for k in self.kept:
      array = arrays[<Py_ssize_t>k]
      self.refs.append(PyWeakref_NewRef(array, None))
      self.loose = self.loose or loose(array)
      if type(array) is upstream.KeyArray:
        self.keys.append(k)
        if k not in self.unused:   # jax words it otherwise where it looks itself
          self.unused.append(k)
      data = data_of(array)
      self.sharding = data.sharding
      self.layouts.append(data._pjrt_layout)
    self.world = [configured(setting) for setting in settings]
    return 0

  cdef bint standing(self, Plan plan) noexcept:
    """Whether the arrays that stay are those that were found fit, held by their Variables alone.

    Right after a check of the plan; runs no Python.
    """
    cdef Py_ssize_t i
    cdef PyObject* array
    for i in range(PyList_GET_SIZE(self.kept)):
      array = plan.arrays[<Py_ssize_t>self.kept[i]]
      if (<PyWeakReference*>self.refs[i]).wr_object is not array or Py_REFCNT(array) != 1:
        return False
    return True

  cdef bint refit(self, list arrays) except -1:
    """Whether arrays that came in the place of those that stayed are as fit as they were.

    Another function's call has changed them, say. Where they are, they are noted instead.
    """
    cdef Py_ssize_t i
    for i in range(PyList_GET_SIZE(self.kept)):
      array = arrays[<Py_ssize_t>self.kept[i]]
      if not alone(array, 2):   # in the list, and here
        return False
      if (<PyWeakReference*>self.refs[i]).wr_object is <PyObject*>array:
        continue
      data = data_of(array)
      if is_deleted(data):
        return False
      sharding, layout = data.sharding, data._pjrt_layout
      if sharding is not self.sharding and sharding != self.sharding:
        return False
      if layout is not self.layouts[i] and layout != self.layouts[i]:
        return False
      if data._committed == self.loose:
        return False
      self.refs[i] = PyWeakref_NewRef(array, None)
    return True

  cdef bint undisturbed(self, list arrays, tuple args, dict kwargs) except -1:
    """Whether nothing else would make the program give the arrays that stay back otherwise."""
    cdef Py_ssize_t i
    for k in self.keys:
      array = arrays[<Py_ssize_t>k]
      if not alone(array, 2):   # in the list, and here
        return False
    for k in self.unused:   # jax does not look at these
      if is_deleted(data_of(arrays[<Py_ssize_t>k])):
        return False
    for i in range(len(<list>settings)):
      value = configured((<list>settings)[i])
      if value is not self.world[i] and value != self.world[i]:
        return False
    if not self.loose:
      return True
    for k in self.changed:
      if not loose(arrays[<Py_ssize_t>k]):
        return False
    return loose(args) and (not kwargs or loose(kwargs))


cdef object data_of(object array):
  """The array itself; of a typed key, its data."""
  return array._base_array if type(array) is upstream.KeyArray else array


cdef bint loose(object values) except -1:
  """Whether no array in a tree of lists, tuples and dicts is committed to a device."""
  cls = type(values)
  if cls is upstream.ArrayImpl or cls is upstream.KeyArray:
    return not data_of(values)._committed
  if cls is dict:
    values = (<dict>values).values()
  elif cls is not list and cls is not tuple:
    return True
  for value in values:
    if not loose(value):
      return False
  return True


cdef list others_in(tuple args, dict kwargs):
  """The leaves of arguments that are in no node."""
  return [x for x in jax.tree.leaves((args, kwargs), is_leaf=is_node) if not is_node(x)]


cdef bint unfit(Record record, list nodes, tuple args, dict kwargs) except -1:
  """Whether arrays stay by a trace that was not expected, where upstream's may come back otherwise."""
  for source in record.sources:
    if source >= 0:
      return not uniform([(<Split>node).leaves for node in nodes], others_in(args, kwargs))
  return False


# ---- calls ----

cdef Settled known(Planned planned, Record record, list definitions):
  """What was noted of a trace, or of what the whole program gave; None if it was not seen yet."""
  cdef Settled settled
  for settled in planned.settled or []:
    if record is not None:
      if settled.record is record:
        return settled
    elif settled.record is None and same_list(settled.definitions, definitions):
      return settled
  return None


cdef class GraphSite(Site):
  def __init__(self, fun, program):
    super().__init__(fun, program)
    self.program = program

  cdef Planned note(self, tuple args, dict kwargs, tuple pure_args, dict pure_kwargs, object cache):
    """A plan for these arguments as they are now; None, and the reason counted, where none is made."""
    cdef Planned planned
    if list(kwargs) != sorted(kwargs):
      for value in kwargs.values():
        if not tree_passes(value, 0):
          self.count('keyword arguments that are nodes, not in alphabetical order')
          return None
    if type(cache) is dict:   # which can't be known again
      self.count('a static cache that is a dict')
      return None
    planned = self.planned_for(args, kwargs, pure_args, pure_kwargs)
    if planned is not None and cache is not None:
      planned.cache = weakref.ref(cache)
    return planned

  cdef int settle(
    self, Planned planned, Record record, list definitions, tuple args, dict kwargs
  ) except -1:
    """Keeps a plan that still holds after a general call, with what came back."""
    cdef Settled settled = Settled.__new__(Settled)
    cdef Plan plan = planned.plan
    cdef list arrays = plan.blank()
    cdef Py_ssize_t step
    if not all_mirror(planned.tokens, definitions):
      return self.count('the function changed the structure of its arguments')
    step = plan.check()
    if step >= 0:
      return self.count(f'{planned.words(step)}: another object after the call')
    plan.collect(arrays)
    settled.record, settled.definitions = record, definitions
    settled.kept, settled.refs, settled.keys, settled.unused = [], [], [], []
    settled.layouts = []
    settled.changed = list(range(plan.n_leaves))
    if record is not None and not settled.sort(record):
      return self.count('the function moved arrays between Variables')
    if settled.kept:
      if not uniform([arrays], others_in(args, kwargs)):
        return self.count('arrays lie on several devices, or on another one than the default')
      settled.vouch(arrays)
    return self.keep_settled(planned, settled)

  cdef int keep_settled(self, Planned planned, Settled settled) except -1:
    planned.whole = settled.record is None
    traced = self.program.traced_with(settled.record, settled.definitions)
    for i, graphdef in enumerate(traced):   # which jax then knows by identity
      if same_objects(graphdef, planned.tokens[i]):
        planned.tokens[i] = graphdef
    same = None if settled.record is None else known(planned, settled.record, None)
    planned.know(settled, same)
    return self.keep(planned)

  # ---- calling ----

  cdef object by_plan(self, object jit, tuple args, dict kwargs, object cache):
    """What the function returns, or MISS before anything was done."""
    cdef list held = []
    cdef Planned planned = self.fitting(args, kwargs, cache, held)
    cdef Plan plan
    cdef Settled expected
    cdef list arrays, owners
    cdef Py_ssize_t step
    cdef bint standing
    if planned is None:
      return MISS
    plan, expected = planned.plan, planned.expected
    if plan.asked and not plan.fits_itself():
      self.count('a static attribute that does not equal itself any more')
      return MISS
    arrays, owners = plan.blank(), [None] * len(expected.changed)
    step = plan.check()
    if step >= 0:
      self.count(f'{planned.words(step)}: not the object that was there before')
      return MISS
    standing = expected.standing(plan)
    plan.collect(arrays)
    plan.collect_owners(expected.changed, owners)
    if not standing and not expected.refit(arrays):
      self.count('an array that stays is held elsewhere too, or is a new one of another kind')
      return MISS
    if expected.kept and not expected.undisturbed(arrays, args, kwargs):
      self.count('an array that stays was deleted, or lies where the program does not run')
      return MISS
    if self.program.calls_back and not planned.whole and not uniform([arrays], others_in(args, kwargs)):
      self.count('arrays lie on several devices, or on another one than the default')
      return MISS
    return self.flown(jit, planned, args, kwargs, cache, arrays, owners)

  cdef object flown(
    self, object jit, Planned planned, tuple args, dict kwargs, object cache, list arrays, list owners
  ):
    cdef list lists = planned.plan.by_root(arrays)
    cdef Flight flight = Flight.__new__(Flight)
    cdef list nodes = []
    cdef Py_ssize_t i
    flight.jit, flight.args, flight.kwargs, flight.cache = jit, args, kwargs, cache
    for i in range(len(lists)):
      nodes.append(node_of(planned, i, lists[i]))
    outer_args, outer_kwargs = planned.arguments.built(args, kwargs, nodes)
    above = take_off(flight)
    try:
      if self.program.calls_back:   # it may change the model, which upstream's second half puts right
        flight.open()
      elif cache is not None:
        graph_context.tmp_static_cache = None
      if planned.whole:
        outs = self.program.full(*outer_args, **outer_kwargs)
      else:
        outs = self.program.outer(*outer_args, **outer_kwargs)
    except BaseException:
      flight.close()
      raise
    finally:
      land(above)
    return self.landed(flight, planned, nodes, outs, owners)

  cdef object landed(self, Flight flight, Planned planned, list nodes, tuple outs, list owners):
    cdef Settled settled
    cdef Settled expected = planned.expected
    cdef Outcome outcome = None
    cdef list leaves, definitions = None
    cdef Py_ssize_t i
    if len(outs) == 3:
      args_out, kwargs_out, out = outs
      states = states_in((args_out, kwargs_out))
      definitions = [one._graphdef for one in states]
      settled = known(planned, None, definitions)
    else:
      outcome, out = outs
      settled = known(planned, outcome.record, None)
    if flight.manager is not None or settled is None or (
      settled is not expected and (settled.kept or expected.kept)
    ):
      if outcome is not None:
        if settled is not expected and unfit(outcome.record, nodes, flight.args, flight.kwargs):
          flight.close()
          self.count('arrays lie on several devices, or on another one than the default')
          return MISS   # before anything was put back
        args_out, kwargs_out = tree_unflatten(
          outcome.record.treedef, filled_in(outcome, nodes, True)
        )
      return self.merged(flight, planned, outcome, args_out, kwargs_out, out)
    if outcome is not None:
      leaves = outcome.leaves
    else:
      leaves = []
      for one in states:
        leaves.extend(one.states[0])
    for i in range(PyList_GET_SIZE(leaves)):
      planned.plan.store(settled.changed[i], leaves[i], owners[i])
    planned.expected = settled
    self.used()
    return out

  cdef object merged(
    self, Flight flight, Planned planned, Outcome outcome, object args_out, object kwargs_out, object out
  ):
    """The second half of upstream's call, where a plan's call came back with something new."""
    cdef list definitions = [one._graphdef for one in states_in((args_out, kwargs_out))]
    try:
      flight.open()
      result = flight.jit._get_non_pure_out(args_out, kwargs_out, out)
    finally:
      flight.close()
    if not has_states(out):
      self.settle(
        planned, None if outcome is None else outcome.record, definitions, flight.args, flight.kwargs
      )
    return result

  cdef object general(self, object jit, tuple args, dict kwargs, object cache):
    """Upstream's call, step by step; a plan is noted on the way, and kept if it still holds after."""
    cdef Planned planned = None
    cdef Record record
    cdef bint plannable = self.plannable()
    manager = update_context(jit)
    manager.__enter__()
    try:
      pure_args, pure_kwargs = jit._get_pure_args_kwargs(args, kwargs)
      if plannable:
        planned = self.note(args, kwargs, pure_args, pure_kwargs, cache)
      record, args_out, kwargs_out, out = self.program.run(pure_args, pure_kwargs)
      result = jit._get_non_pure_out(args_out, kwargs_out, out)
    finally:
      manager.__exit__(None, None, None)
    if planned is not None and not has_states(out):
      definitions = [one._graphdef for one in states_in((args_out, kwargs_out))]
      self.settle(planned, record, definitions, args, kwargs)
    return result


cdef object node_of(Planned planned, Py_ssize_t i, list leaves):
  if planned.whole:
    return NodeStates.from_split(planned.tokens[i], leaves)
  return split_of(planned.tokens[i], leaves)


cdef bint is_node(object x) except -1:
  cdef TypeInfo info = info_of(x)
  return info.kind is kinds.GRAPH or info.kind is kinds.VARIABLE


def call(jit, tuple args, dict kwargs):
  """What calling a function that `nnx.jit` made does."""
  cdef GraphSite site = jit._fast_site
  cdef object result
  if site is None:
    return uncompiled(jit, args, kwargs)
  site.calls += 1
  cache = graph_context.tmp_static_cache
  if site.plans and at_top_level():
    result = site.by_plan(jit, args, kwargs, cache)
    if result is not MISS:
      return result
  return site.general(jit, args, kwargs, cache)


def install(graphlib: dict) -> None:
  global graph_context, update_context, is_deleted
  from jax._src import config, mesh
  is_deleted = upstream.ArrayImpl.is_deleted
  for name in (
    'default_device', 'mesh_context_manager', 'abstract_mesh_context_manager', 'device_context',
  ):
    settings.append(getattr(config if hasattr(config, name) else mesh, name))
  graph_context, update_context = graphlib['GRAPH_CONTEXT'], graphlib['update_context']
