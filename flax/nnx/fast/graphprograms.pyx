"""The jitted function behind `nnx.jit`, whose untouched arrays stay where they are.

Upstream's function gives every leaf of every argument back, and each one costs more than a
microsecond. Here the traced function leaves out the leaves that it got and gave back as they were,
known by their tracer; the caller fills them in.
"""
import itertools
from threading import get_ident

import jax
import numpy as np
from jax import core as jax_core

cimport cython
from cpython.object cimport PyObject

from flax.nnx.fast cimport upstream
from flax.nnx.fast.flights cimport ground, land, open_call, take_off, under_way
from flax.nnx.fast.nodes cimport NodeStates, Split, has_states, plain_states, rebuilt
from flax.nnx.fast.nodes cimport split_of, states_in
from flax.nnx.fast.programs cimport FULL, OUTER, SCALARS, Outcome, Program, all_values, same_list
from flax.nnx.fast.programs import NotPlain
from flax.nnx.fast.traces cimport at_top_level
from flax.nnx.fast.equations import of_current_trace, surely_used

cdef extern from "Python.h":
  Py_ssize_t Py_REFCNT(PyObject* o) noexcept

cdef enum:
  TRACES_KEPT = 8   # of whole programs, for each function

cdef object mesh_lib
cdef object tree_flatten = jax.tree.flatten, tree_unflatten = jax.tree.unflatten
cdef object SingleDevice = jax.sharding.SingleDeviceSharding
cdef tuple NO_ARRAYS = (str, bytes, type(None), type(...))


cdef class Record:
  pass


class NotKept(Exception):
  """jax would trace again what it traced for the last call."""


# ---- what may stay ----

cdef bint keepable(object tracer) except -1:
  """Whether an input is a plain array or a typed key, and no reference.

  Not one of a weak type: where it was unpickled, jax 0.10 takes it for another until it was given back.
  """
  if not isinstance(tracer, jax_core.Tracer) or type(tracer.aval) is not jax_core.ShapedArray:
    return False
  if tracer.aval.weak_type:
    return False
  dtype = tracer.aval.dtype
  return (
    not jax.dtypes.issubdtype(dtype, jax.dtypes.extended)
    or jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)
  )


cdef bint alone(object array, Py_ssize_t holders) except -1:
  """Whether nobody holds an array but its Variable and `holders` more, known to the caller.

  A typed key is a Python object around its data, an array of its own.
  """
  cdef object data
  if Py_REFCNT(<PyObject*>array) != 1 + holders:
    return False
  if type(array) is upstream.KeyArray:
    data = array._base_array   # held by the key and by us
    return type(data) is upstream.ArrayImpl and Py_REFCNT(<PyObject*>data) == 2
  return type(array) is upstream.ArrayImpl


cdef int tie(Record record, list splits, list leaves, object out) except -1:
  """Lets an array come back, the smallest, where the program would use none of those that stay.

  Upstream's uses them all, so it runs where they lie, and so do its results.
  """
  cdef list stay = [i for i, source in enumerate(record.sources) if source >= 0]
  if not stay:
    return 0
  inputs = [leaf for split in splits for leaf in (<Split>split).leaves]
  results = [leaf for i, leaf in enumerate(leaves) if record.sources[i] < 0]
  if not surely_used(inputs, results + jax.tree.leaves(out)):
    record.sources[min(stay, key=lambda i: leaves[i].size)] = -1
  return 0


cdef Record record_of(list splits, list leaves, object treedef, bint may_stay):
  """What comes back of the leaves in `splits`, where upstream's function gives these leaves."""
  cdef Record record = Record.__new__(Record)
  record.treedef = treedef
  cdef dict inputs = {}
  cdef dict times = {}
  cdef Split split
  cdef Py_ssize_t place = 0
  for split in splits:
    for leaf in split.leaves:   # among them None, as often as a Variable holds it
      inputs[id(leaf)] = place
      place += 1
  for leaf in leaves:
    times[id(leaf)] = times.get(id(leaf), 0) + 1
  record.sources = []
  for leaf in leaves:
    at = inputs.get(id(leaf), -1)
    stays = may_stay and at >= 0 and times[id(leaf)] == 1 and keepable(leaf)
    record.sources.append(at if stays else -1)
  record.graphdefs = [(<Split>one).graphdef for one in splits]
  return record


cdef tuple swapped(tuple args, dict kwargs, list splits, list others):
  """(args, kwargs) with a Split in place of each NodeStates; collects both kinds of leaves.

  None where upstream's own program has to run. Keys that are no strings are not compared.
  """
  cdef tuple both = None

  def visit(x):
    if type(x) is dict or (type(x) is NodeStates and not plain_states(x)):
      raise NotPlain
    if type(x) is NodeStates:
      splits.append(split_of(x._graphdef, x.states[0]))
      return splits[len(splits) - 1]
    if has_states(x):
      raise NotPlain
    others.extend(jax.tree.leaves(x))
    return x
  try:
    both = rebuilt((args, kwargs), visit)
  except NotPlain:
    pass
  return both


cdef object numbered(object x):
  """The same with each leaf of the Splits replaced by its number, and each other leaf by -1."""
  count = itertools.count()

  def visit(x):
    if isinstance(x, Split):
      return split_of((<Split>x).graphdef, [next(count) for _ in (<Split>x).leaves])
    return jax.tree.map(lambda leaf: -1, x)
  return rebuilt(x, visit)


cdef object restored(object x, list splits):
  """The reverse of `swapped`, in the same order."""
  def visit(x):
    if not isinstance(x, Split):
      return x
    splits.append(x)
    return NodeStates.from_split((<Split>x).graphdef, (<Split>x).leaves)
  return rebuilt(x, visit)


@cython.final
cdef class Placement:
  """Where arrays lie, as long as it is one and the same place."""
  cdef object device        # None before the first array
  cdef object memory        # its default kind
  cdef bint loose, committed, plain

  cdef bint add(self, object value) except -1:
    """False: this array is somewhere else, or it is not known where."""
    cdef object cls = type(value)
    if cls is upstream.KeyArray:
      return self.add(value._base_array)
    if cls is not upstream.ArrayImpl:
      if cls in NO_ARRAYS:
        return True
      self.plain = True
      return cls in SCALARS or cls is upstream.ndarray or isinstance(value, np.generic)
    sharding = value.sharding
    if type(sharding) is not SingleDevice or value.is_deleted():
      return False
    (device,) = sharding.device_set
    if self.device is None:
      self.device, self.memory = device, device.default_memory().kind
    if self.device != device or not default_layout(value):
      return False
    if sharding.memory_kind not in (None, self.memory):
      return False
    if value._committed:
      self.committed = True
    else:
      self.loose = True
    return True


cdef bint default_layout(object array) except -1:
  layout = getattr(getattr(array, 'format', None), 'layout', None)
  order = getattr(layout, 'major_to_minor', None)
  return order is None or tuple(order) == tuple(range(array.ndim))


cdef bint uniform(list lists, list others) except -1:
  """Whether an untouched array among `lists` surely comes back as it went in, for any program.

  All arrays lie on one device, which is where the program runs: the nodes' are committed to it, or it
  is the default one and nothing is committed.
  """
  cdef Placement nodes = Placement.__new__(Placement)
  cdef Placement rest = Placement.__new__(Placement)
  for leaves in lists:
    for leaf in leaves:
      if not nodes.add(leaf):
        return False
  rest.device, rest.memory = nodes.device, nodes.memory
  for other in others:
    if not rest.add(other):
      return False
  if not nodes.loose and not nodes.plain:
    return no_mesh()
  if nodes.committed or rest.committed or jax.config.jax_default_device is not None:
    return False
  if rest.device is not None and rest.device != jax.local_devices()[0]:
    return False   # a program of loose arrays runs on the default device
  return no_mesh()


cdef bint no_mesh() except -1:
  return (
    mesh_lib.thread_resources.env.physical_mesh.empty and mesh_lib.get_abstract_mesh().empty
    and mesh_lib.get_concrete_mesh().empty
  )


@jax.jit
def fresh(arrays):
  """Each array in a buffer of its own, as upstream's program would have given it back."""
  return arrays


# ---- the program ----

cdef class GraphProgram(Program):
  def __init__(self, full, pure, options):
    super().__init__(full, pure, options)
    self.traces = []

  def __call__(self, *args, **kwargs):
    return self.run(args, kwargs)[1:]

  cdef tuple run(self, tuple args, dict kwargs):
    """(record or None, args_out, kwargs_out, out): what upstream's program gives for these."""
    cdef list splits = []
    cdef list others = []
    if not at_top_level() or not self.flattens():
      return self.run_whole(args, kwargs)
    outer = None if self.static_states(args, kwargs) else swapped(args, kwargs, splits, others)
    if outer is None or not uniform([(<Split>split).leaves for split in splits], others):
      return self.run_whole(args, kwargs)
    others.clear()
    size = self.outer._cache_size()
    outs = open_call(self.outer, outer[0], outer[1])
    if len(outs) == 3:
      return (None, *outs)
    outcome, out = outs
    if self.outer._cache_size() != size:   # jax's entry for arrays like these has these GraphDefs
      (<Record>(<Outcome>outcome).record).graphdefs = [(<Split>split).graphdef for split in splits]
    self.note_unused((<Outcome>outcome).record, outer[0], outer[1])
    return ((<Outcome>outcome).record, *whole(outcome, splits, True), out)

  cdef tuple run_whole(self, tuple args, dict kwargs):
    return (None, *open_call(self.full, args, kwargs))

  cdef bint looked(self) except -1:
    """Whether the trace under way places arrays; notes whether it calls back."""
    places, calls_back = of_current_trace()
    self.calls_back = self.calls_back or calls_back
    return places

  def trace_outer(self, args, kwargs):
    """The function behind `outer`: upstream's, less what came back untouched."""
    cdef list splits = []
    cdef Record record
    if self.looking == get_ident():
      raise NotKept
    ground()
    pure_args, pure_kwargs = restored((args, kwargs), splits)
    if self.leads(OUTER):
      args_out, kwargs_out, out = self.pure(*pure_args, **pure_kwargs)
    else:
      args_out, kwargs_out, out = self.replayed(pure_args, pure_kwargs)
    leaves, treedef = tree_flatten((args_out, kwargs_out))
    # By plan nothing was asked of arrays that this trace may leave where they are; a call that turns out
    # not to fit is made again, which those that call back would notice.
    all_return = self.looked() or (self.calls_back and under_way())
    if not all_values(leaves) or not all_values(jax.tree.leaves(out)):
      return args_out, kwargs_out, out   # jax's message says where in this
    record = record_of(splits, leaves, treedef, not all_return)
    tie(record, splits, leaves, out)
    return Outcome(record, [x for x, at in zip(leaves, record.sources) if at < 0]), out

  def traced(self, args, kwargs):
    """What upstream's function gives for tracers."""
    ground()
    result = self.pure(*args, **kwargs) if self.leads(FULL) else self.replay(args, kwargs)
    self.looked()
    before, after = states_in((args, kwargs)), states_in(result[:2])
    self.traces.insert(0, ([one._graphdef for one in after], [one._graphdef for one in before]))
    del self.traces[TRACES_KEPT:]
    return result

  cdef list traced_with(self, Record record, list definitions):
    """The GraphDefs that were traced where these came out; jax compares with those by identity."""
    if record is not None:
      return record.graphdefs
    for after, before in self.traces:
      if same_list(after, definitions):
        return before
    return []

  cdef tuple replay(self, tuple args, dict kwargs):
    """The same from the trace that calls use."""
    cdef list splits = []
    outer = swapped(args, kwargs, splits, [])
    if outer is None:
      return self.pure(*args, **kwargs)
    above = take_off(None)
    try:
      outs = self.replayed(outer[0], outer[1])
    finally:
      land(above)
    if len(outs) == 3:
      return outs
    outcome, out = outs
    return (*whole(outcome, splits, False), out)

  cdef object jaxpr_known(self, tuple args, dict kwargs):
    """Of the trace that jax has for these; None where it would have to trace again."""
    jaxpr = None
    self.looking = get_ident()
    try:
      jaxpr = open_call(self.outer.trace, args, kwargs).jaxpr.jaxpr
    except NotKept:
      pass
    finally:
      self.looking = None
    return jaxpr

  cdef int note_unused(self, Record record, tuple args, dict kwargs) except -1:
    """Notes which leaves the program does not use: jax does not look whether those were deleted."""
    cdef list places
    if record.unused is not None:
      return 0
    record.unused = set(record.sources)
    if jax.config.jax_check_tracer_leaks or jax.config.jax_disable_jit:   # jax would trace again
      return 0
    positional, named = numbered((args, kwargs))
    places = jax.tree.leaves(self.dynamic(positional, named))
    jaxpr = self.jaxpr_known(args, kwargs)
    if jaxpr is None or len(jaxpr.invars) != len(places):
      return 0
    used = {id(x) for equation in jaxpr.eqns for x in equation.invars}
    used.update([id(x) for x in jaxpr.outvars])
    record.unused = {k for k, var in zip(places, jaxpr.invars) if id(var) not in used}
    return 0


cdef object whole(Outcome outcome, list splits, bint concrete):
  """(args_out, kwargs_out) as upstream's function gives them."""
  return tree_unflatten(outcome.record.treedef, filled_in(outcome, splits, concrete))


cdef list filled_in(Outcome outcome, list splits, bint concrete):
  """All leaves that come back: the changed ones, and the inputs that stayed.

  An array that somebody else holds too comes back in a buffer of its own, as upstream's does: the
  next donation must not take it from the other holder.
  """
  cdef list carried = []
  cdef list shared = []
  cdef list at = []
  cdef list places = []
  cdef list leaves
  cdef object leaf
  cdef Py_ssize_t i, k, source
  changed = iter(outcome.leaves)
  for split in splits:
    for k in range(len((<Split>split).leaves)):
      places.append(((<Split>split).leaves, k))
  for i in range(len(outcome.record.sources)):
    source = outcome.record.sources[i]
    if source < 0:
      carried.append(next(changed))
      continue
    leaves, k = places[source]
    leaf = leaves[k]
    if concrete and not alone(leaf, 2):   # in the list of leaves, and here
      shared.append(leaf)
      at.append(i)
    carried.append(leaf)
  if shared:
    for i, copy in zip(at, fresh(shared)):
      carried[i] = copy
  return carried


def install() -> None:
  global mesh_lib
  from jax._src import mesh
  mesh_lib = mesh
