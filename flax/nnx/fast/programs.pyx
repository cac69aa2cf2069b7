"""The jitted function behind `nnx.jit`, whose untouched arrays stay where they are.

Upstream's function gives every leaf of every argument back, and each one costs more than a
microsecond. Here the traced function leaves out the leaves that it got and gave back as they were,
known by their tracer; the caller fills them in. The trace is the same one: what asks for the whole
program (`lower`, `trace`, `eval_shape`, a call under another trace) replays it.
"""
import functools
import inspect
import itertools

import jax
import numpy as np
from jax import core as jax_core
from jax.extend.core import jaxpr_as_fun

from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject

from flax.nnx.fast cimport upstream
from flax.nnx.fast.flights cimport ground, land, take_off

cdef extern from "Python.h":
  Py_ssize_t Py_REFCNT(PyObject* o) noexcept

cdef enum:
  TRACES_KEPT = 8   # of whole programs, for each function

cdef object current, eval_trace, mesh_lib   # `current.value`: the trace of this thread
cdef object tree_flatten = jax.tree.flatten, tree_unflatten = jax.tree.unflatten
cdef object SingleDevice = jax.sharding.SingleDeviceSharding
cdef tuple SCALARS = (int, float, bool, complex)
cdef tuple NO_ARRAYS = (str, bytes, type(None), type(...))


cdef class Split:
  def __init__(self, graphdef, leaves):
    self.graphdef, self.leaves = graphdef, leaves


class _States:
  """Names the leaves in messages and dumps as upstream's NodeStates does: `model.states[0][3]`."""

  def __str__(self):
    return '.states[0]'


cdef object STATES = _States()
cdef object GRAPHDEF = jax.tree_util.GetAttrKey('_graphdef')


def split_with_keys(Split split not None):
  return ((GRAPHDEF, split.graphdef), (STATES, split.leaves)), None


def split_flatten(Split split not None):
  return (split.graphdef, split.leaves), None   # a node of its own, so that jax names GraphDefs


def split_unflatten(_, children):
  cdef Split split = Split.__new__(Split)
  split.graphdef, leaves = children
  split.leaves = leaves if type(leaves) is list else [leaves]   # jax fills in whatever it likes
  return split


cdef class Record:
  pass


cdef class Outcome:
  def __init__(self, record, leaves):
    self.record, self.leaves = record, leaves


def outcome_flatten(Outcome outcome not None):
  return (outcome.leaves,), outcome.record


def outcome_unflatten(record, children):
  cdef Outcome outcome = Outcome.__new__(Outcome)
  outcome.record = record
  leaves = children[0]
  outcome.leaves = leaves if type(leaves) is list else [leaves]
  return outcome


# ---- what may stay ----

cdef bint at_top_level() except -1:
  """Whether no trace is under way in this thread."""
  return current.value is eval_trace


cdef bint keepable(object tracer) except -1:
  """Whether an input is a plain array or a typed key, and no reference."""
  if not isinstance(tracer, jax_core.Tracer) or type(tracer.aval) is not jax_core.ShapedArray:
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


cdef bint all_values(list leaves) except -1:
  """Whether jax surely takes each of these as a result."""
  for leaf in leaves:
    cls = type(leaf)
    if not (
      isinstance(leaf, jax_core.Tracer) or cls is upstream.ArrayImpl or cls is upstream.KeyArray
      or cls in SCALARS or cls is upstream.ndarray or isinstance(leaf, np.generic)
    ):
      return False
  return True


cdef Record record_of(list splits, list leaves, object treedef):
  """What comes back of the leaves in `splits`, where upstream's function gives these leaves."""
  cdef Record record = Record.__new__(Record)
  record.treedef = treedef
  cdef dict inputs = {}
  cdef dict times = {}
  cdef Split split
  for split in splits:
    for leaf in split.leaves:
      inputs[id(leaf)] = len(inputs)
  for leaf in leaves:
    times[id(leaf)] = times.get(id(leaf), 0) + 1
  record.sources = []
  for leaf in leaves:
    at = inputs.get(id(leaf), -1)
    record.sources.append(at if at >= 0 and times[id(leaf)] == 1 and keepable(leaf) else -1)
  record.graphdefs = [(<Split>one).graphdef for one in splits]
  return record


cdef bint same_list(list a, list b) noexcept:
  cdef Py_ssize_t i
  if PyList_GET_SIZE(a) != PyList_GET_SIZE(b):
    return False
  for i in range(PyList_GET_SIZE(a)):
    if a[i] is not b[i]:
      return False
  return True


cdef list states_in(object carried):
  """The NodeStates in lists, tuples and dicts, in jax's order."""
  cdef list found = []
  collect_states(carried, found)
  return found


cdef int collect_states(object x, list found) except -1:
  if type(x) is NodeStates:
    found.append(x)
  elif type(x) is dict and all([type(key) is str for key in <dict>x]):   # others are in no plan
    for key in sorted(x):
      collect_states((<dict>x)[key], found)
  elif type(x) is tuple or type(x) is list:
    for item in x:
      collect_states(item, found)
  return 0


def is_states(x):
  return type(x) is NodeStates


cdef bint plain_states(object states) except -1:
  """Whether NodeStates holds one list of leaves and nothing else, as without StateSharding."""
  parts = states.states
  return (
    states.metadata is None and type(parts) is tuple and len(parts) == 1 and type(parts[0]) is list
  )


cdef bint has_states(object x) except -1:
  """Whether there are NodeStates anywhere in a pytree."""
  return any([is_states(leaf) for leaf in jax.tree.leaves(x, is_leaf=is_states)])


cdef object rebuilt(object x, object visit):
  """Lists, tuples and dicts of strings anew, in jax's order, with what `visit` gives for the rest."""
  cls = type(x)
  if cls is tuple:
    return tuple([rebuilt(item, visit) for item in <tuple>x])
  if cls is list:
    return [rebuilt(item, visit) for item in <list>x]
  if cls is dict and all([type(key) is str for key in <dict>x]):
    return {key: rebuilt(x[key], visit) for key in sorted(<dict>x)}
  return visit(x)


class NotPlain(Exception):
  """The arguments need upstream's own program."""


cdef object swapped(object x, list splits, list others):
  """Arguments with a Split in place of each NodeStates; collects both kinds of leaves.

  Raises NotPlain where upstream's own program has to run. Keys that are no strings are not compared.
  """
  def visit(x):
    if type(x) is dict or (type(x) is NodeStates and not plain_states(x)):
      raise NotPlain
    if type(x) is NodeStates:
      splits.append(Split(x._graphdef, x.states[0]))
      return splits[len(splits) - 1]
    if has_states(x):
      raise NotPlain
    others.extend(jax.tree.leaves(x))
    return x
  return rebuilt(x, visit)


cdef object numbered(object x):
  """The same with each leaf of the Splits replaced by its number, and each other leaf by -1."""
  count = itertools.count()

  def visit(x):
    if type(x) is Split:
      return Split((<Split>x).graphdef, [next(count) for _ in (<Split>x).leaves])
    return jax.tree.map(lambda leaf: -1, x)
  return rebuilt(x, visit)


cdef object restored(object x, list splits):
  """The reverse of `swapped`, in the same order."""
  def visit(x):
    if type(x) is not Split:
      return x
    splits.append(x)
    return NodeStates.from_split((<Split>x).graphdef, (<Split>x).leaves)
  return rebuilt(x, visit)


cdef class Placement:
  """Where arrays lie, as long as it is one and the same place."""
  cdef object device        # None before the first array
  cdef bint loose, committed

  cdef bint add(self, object value) except -1:
    """False: this array is somewhere else, or it is not known where."""
    cdef object cls = type(value)
    if cls is upstream.KeyArray:
      return self.add(value._base_array)
    if cls is not upstream.ArrayImpl:
      return (
        cls in SCALARS or cls in NO_ARRAYS or cls is upstream.ndarray or isinstance(value, np.generic)
      )
    sharding = value.sharding
    if type(sharding) is not SingleDevice or value.is_deleted():
      return False
    (device,) = sharding.device_set
    if self.device is None:
      if sharding.memory_kind not in (None, device.default_memory().kind):
        return False
      self.device = device
    if self.device != device or not default_layout(value):
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

  All arrays lie on one device, which is where the program runs; the nodes' are committed to it, or
  nothing is.
  """
  cdef Placement nodes = Placement.__new__(Placement)
  cdef Placement rest = Placement.__new__(Placement)
  for leaves in lists:
    for leaf in leaves:
      if not nodes.add(leaf):
        return False
  rest.device = nodes.device
  for other in others:
    if not rest.add(other):
      return False
  if nodes.loose and (nodes.committed or rest.committed):
    return False
  return no_mesh() and (not nodes.loose or jax.config.jax_default_device is None)


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

class Traced:
  """The function that jax traces: upstream's, less what came back untouched."""

  def __init__(self, shared, pure):
    self.pure = pure
    functools.update_wrapper(self, shared, updated=())

  def __repr__(self):
    return repr(self.__wrapped__)

  def __call__(self, *args, **kwargs):
    cdef list splits = []
    cdef Record record
    ground()
    pure_args, pure_kwargs = restored((args, kwargs), splits)
    args_out, kwargs_out, out = self.pure(*pure_args, **pure_kwargs)
    leaves, treedef = tree_flatten((args_out, kwargs_out))
    if not all_values(leaves) or not all_values(jax.tree.leaves(out)):
      return args_out, kwargs_out, out   # jax's message says where in this
    record = record_of(splits, leaves, treedef)
    return Outcome(record, [x for x, at in zip(leaves, record.sources) if at < 0]), out


cdef class Program:
  """Stands where upstream has its `jitted_fn`, and is called as that is."""

  def __init__(self, full, pure, options):
    self.full, self.pure, self.options, self.traces = full, pure, options, []
    functools.update_wrapper(self, full, updated=())
    self.__wrapped__ = full.__wrapped__

  cdef bint prunes(self) except -1:
    """Whether there is a program that leaves out what is untouched; it is made when first asked for."""
    if self.outer is None and self.options is not None:
      self.outer = jax.jit(Traced(self.full.__wrapped__, self.pure), **self.options)
    return self.outer is not None

  def __call__(self, *args, **kwargs):
    return self.run(args, kwargs)[1:]

  def __getattr__(self, name):
    return getattr(self.full, name)

  def _cache_size(self):
    return self.full._cache_size() + (0 if self.outer is None else self.outer._cache_size())

  def clear_cache(self):
    self.full.clear_cache()
    if self.outer is not None:
      self.outer.clear_cache()

  cdef tuple run(self, tuple args, dict kwargs):
    """(record or None, args_out, kwargs_out, out): what upstream's program gives for these."""
    cdef list splits = []
    cdef list others = []
    if not at_top_level() or not self.prunes():
      return self.run_whole(args, kwargs)
    try:
      outer_args, outer_kwargs = swapped((args, kwargs), splits, others)
    except NotPlain:
      return self.run_whole(args, kwargs)
    if not uniform([(<Split>split).leaves for split in splits], others):
      return self.run_whole(args, kwargs)
    others.clear()
    take_off(None)
    try:
      outs = self.outer(*outer_args, **outer_kwargs)
    finally:
      land()
    if len(outs) == 3:
      return (None, *outs)
    outcome, out = outs
    self.note_unused((<Outcome>outcome).record, outer_args, outer_kwargs)
    return ((<Outcome>outcome).record, *whole(outcome, splits, True), out)

  cdef tuple run_whole(self, tuple args, dict kwargs):
    take_off(None)
    try:
      return (None, *self.full(*args, **kwargs))
    finally:
      land()

  def traced(self, args, kwargs):
    """What upstream's function gives for tracers."""
    ground()
    result = self.replay(args, kwargs) if self.prunes() else self.pure(*args, **kwargs)
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
    """The same from the one trace that calls use too."""
    cdef list splits = []
    try:
      outer_args, outer_kwargs = swapped((args, kwargs), splits, [])
    except NotPlain:
      return self.pure(*args, **kwargs)
    take_off(None)
    try:
      traced = self.outer.trace(*outer_args, **outer_kwargs)
    finally:
      land()
    leaves = jax.tree.leaves(self.dynamic(outer_args, outer_kwargs))
    outs = jaxpr_as_fun(traced.jaxpr)(*leaves)
    outs = tree_unflatten(jax.tree.structure(traced.out_info), outs)
    if len(outs) == 3:
      return outs
    outcome, out = outs
    return (*whole(outcome, splits, False), out)

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
    jaxpr = self.outer.trace(*args, **kwargs).jaxpr.jaxpr
    if len(jaxpr.invars) != len(places):
      return 0
    used = {id(x) for equation in jaxpr.eqns for x in equation.invars}
    used.update([id(x) for x in jaxpr.outvars])
    record.unused = {k for k, var in zip(places, jaxpr.invars) if id(var) not in used}
    return 0

  cdef object dynamic(self, tuple args, dict kwargs):
    positions, names = static_args_of(
      self.full, self.options['static_argnums'], self.options['static_argnames']
    )
    positions = {at % len(args) for at in positions if -len(args) <= at < len(args)}
    return (
      tuple([x for i, x in enumerate(args) if i not in positions]),
      {key: x for key, x in kwargs.items() if key not in names},
    )


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


cdef tuple listed(object given):
  return () if given is None else (given,) if isinstance(given, (int, str)) else tuple(given)


cdef tuple static_args_of(object fun, object nums, object names):
  """Which arguments jax takes as static, by position and by name."""
  from jax._src.api_util import infer_argnums_and_argnames
  try:
    signature = inspect.signature(fun)
  except (ValueError, TypeError):   # jax asks no signature then either
    return listed(nums), listed(names)
  return infer_argnums_and_argnames(signature, nums, names)


def install(node_states) -> None:
  global NodeStates, current, eval_trace, mesh_lib
  from jax._src import core, mesh
  NodeStates, mesh_lib, eval_trace = node_states, mesh, core.eval_trace
  current = core.trace_state_strong_ref
  jax.tree_util.register_pytree_with_keys(Split, split_with_keys, split_unflatten, split_flatten)
  jax.tree_util.register_pytree_node(Outcome, outcome_flatten, outcome_unflatten)
