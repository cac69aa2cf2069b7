"""A call of `nnx.jit`'s function: by plan where one fits, else the general way, which makes the next.

By plan: compare the arguments with the plan, take the arrays out, call, put the changed arrays
back. No graph definition, Variable or State is made. The general way is upstream's own, over the
compiled walks. A plan is used once a general call was seen to leave the objects as the plan has
them, so that the walks it replaces would have changed nothing but arrays.
"""
import inspect
import logging
import weakref

import jax
import numpy as np

from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.weakref cimport PyWeakref_NewRef

from flax.nnx.fast cimport kinds, upstream
from flax.nnx.fast.flights cimport Flight, land, take_off
from flax.nnx.fast.graphtypes cimport NodeDef, NodeRef, VariableDef, same_objects
from flax.nnx.fast.kinds cimport TypeInfo, info_of
from flax.nnx.fast.plans cimport Plan, recorded, why_not
from flax.nnx.fast.programs cimport NodeStates, Outcome, Record, Split, alone, at_top_level
from flax.nnx.fast.programs cimport filled_in, has_states, plain_states, same_list, states_in
from flax.nnx.fast.programs cimport uniform

cdef extern from "Python.h":
  Py_ssize_t Py_REFCNT(PyObject* o) noexcept
  ctypedef struct PyWeakReference:
    PyObject* wr_object   # None once it is dead

cdef enum:
  SETTLED_KEPT = 8       # traces for each plan: batch shapes, say
  UNUSED_ALLOWED = 32    # plans made in a row without one use, before a site stops making them
  REASONS_KEPT = 100     # for each site

cdef Py_ssize_t plans_kept = 8   # for each site
cdef object graph_context, update_context, is_deleted, tree_unflatten = jax.tree.unflatten
cdef list settings = []   # what of jax's configuration decides where a program runs
cdef object MISS = object()
# At INFO, each reason for a call that was not by plan, once for each function.
cdef object LOG = logging.getLogger('flax.nnx.fast')
cdef object sites = weakref.WeakSet()


# ---- arguments ----

cdef bint passes(object value) except -1:
  """Whether jax takes `value` as one leaf, or as none, and no walk looks into it."""
  cls = type(value)
  if cls is upstream.ArrayImpl or cls is upstream.ndarray or cls is int or cls is float:
    return True
  cdef TypeInfo info = info_of(value)
  return (
    info.kind is kinds.ARRAY or info.kind is kinds.PLAIN or info.kind is kinds.NONE
    or cls is upstream.KeyArray or isinstance(value, np.generic)
  )


cdef bint tree_passes(object value, int depth) except -1:
  """Whether a list, tuple or dict holds nothing but such values and others like itself."""
  cls = type(value)
  if depth > 20:
    return False
  if cls is dict:
    value = (<dict>value).values()
  elif cls is not list and cls is not tuple:
    return passes(value)
  for item in value:
    if not tree_passes(item, depth + 1):
      return False
  return True


cdef class Argument:
  cdef bint fits(self, object value) except -1:
    cdef Py_ssize_t i
    if self.shape is ROOT:
      return <size_t><PyObject*>value == self.address
    if self.shape is PASSED:
      return passes(value)
    if type(value) is not self.cls:
      return False
    if self.shape is TREE:
      return tree_passes(value, 0)
    if len(value) != len(self.parts):
      return False
    if self.shape is MAPPING:
      if tuple(value) != self.keys:
        return False
      value = tuple((<dict>value).values())
    for i in range(len(self.parts)):
      if not (<Argument>self.parts[i]).fits(value[i]):
        return False
    return True

  cdef object built(self, object value, list nodes):
    """The same with each root replaced by its entry in `nodes`."""
    if self.shape is ROOT:
      return nodes[self.root]
    if self.shape is SEQUENCE:
      items = [(<Argument>part).built(item, nodes) for part, item in zip(self.parts, value)]
      return items if self.cls is list else tuple(items)
    if self.shape is MAPPING:
      return {
        key: (<Argument>part).built(value[key], nodes) for key, part in zip(self.keys, self.parts)
      }
    return value


cdef Argument argument_of(object value, object pure, list roots, list graphdefs, list lists):
  """None: no plan covers it. `pure` is what upstream made of it."""
  cdef Argument argument = Argument.__new__(Argument)
  cdef TypeInfo info = info_of(value)
  argument.cls = type(value)
  argument.shape = PASSED
  if info.kind is kinds.GRAPH or info.kind is kinds.VARIABLE:
    if type(pure) is not NodeStates or not plain_states(pure):
      return None
    argument.shape, argument.root = ROOT, len(roots)
    argument.address = <size_t><PyObject*>value
    roots.append(value)
    graphdefs.append(pure._graphdef)
    lists.append(pure.states[0])
    return argument
  if passes(value):
    return argument
  argument.shape = TREE
  if argument.cls in (list, tuple, dict) and tree_passes(value, 0):
    return argument
  if argument.cls not in (list, tuple, dict) or type(pure) is not argument.cls:
    return None
  return parts_of(argument, value, pure, roots, graphdefs, lists)


cdef Argument parts_of(
  Argument argument, object value, object pure, list roots, list graphdefs, list lists
):
  if argument.cls is dict:
    # The roots are walked in the order of sorted keys, as jax flattens a dict.
    argument.shape, argument.keys = MAPPING, tuple(value)
    if any([type(key) is not str for key in value]) or not list(value) == sorted(value) == list(pure):
      return None
    pairs = [(value[key], pure[key]) for key in value]
  else:
    argument.shape = SEQUENCE
    if len(value) != len(pure):
      return None
    pairs = list(zip(value, pure))
  parts = [argument_of(item, one, roots, graphdefs, lists) for item, one in pairs]
  if None in parts:
    return None
  argument.parts = tuple(parts)
  return argument


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
    self.world = [setting.value for setting in settings]
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
      value = (<list>settings)[i].value
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


# ---- plans of a site ----

cdef class Planned:
  cdef bint fits(self, tuple args, dict kwargs, object cache) except -1:
    cdef Py_ssize_t i
    cdef Py_ssize_t n = len(args)
    if len(self.arguments) != n + len(self.names) or (
      cache is not None if self.cache is None else self.cache() is not cache
    ):
      return False
    if len(kwargs) != len(self.names) or kwargs and tuple(kwargs) != self.names:
      return False
    for i in range(n):
      if not (<Argument>self.arguments[i]).fits(args[i]):
        return False
    if kwargs:
      for i, name in enumerate(self.names):
        if not (<Argument>self.arguments[n + <Py_ssize_t>i]).fits(kwargs[name]):
          return False
    return True

  cdef tuple built(self, tuple args, dict kwargs, list nodes):
    cdef Py_ssize_t i
    cdef Py_ssize_t n = len(args)
    cdef list positional = []
    cdef dict named = {}
    for i in range(n):
      positional.append((<Argument>self.arguments[i]).built(args[i], nodes))
    for i in range(len(self.names)):
      name = self.names[i]
      named[name] = (<Argument>self.arguments[n + i]).built(kwargs[name], nodes)
    return tuple(positional), named

  cdef str words(self, Py_ssize_t step):
    """Where the last check of the plan failed: 'model.blocks[3].cfg'."""
    cdef Py_ssize_t root = self.plan.root_of(step)
    return f'{self.root_names[root]}{self.plan.words(step)}'

  cdef Settled known(self, Record record, list definitions):
    cdef Settled settled
    for settled in self.settled:
      if record is not None:
        if settled.record is record:
          return settled
      elif settled.record is None and same_list(settled.definitions, definitions):
        return settled
    return None


cdef class Site:
  def __init__(self, name, program):
    self.name, self.program = name, program
    self.plans, self.reasons = [], {}
    sites.add(self)

  cdef int count(self, str why) except -1:
    if why not in self.reasons:
      if len(self.reasons) >= REASONS_KEPT:
        why = 'more reasons than are kept'
      LOG.info('%s: %s', self.name, why)
    self.reasons[why] = self.reasons.get(why, 0) + 1
    return 0

  def clear(self):
    """Forgets all counts."""
    self.calls = self.fast = self.unused = 0
    self.reasons.clear()

  # ---- making plans ----

  cdef Planned planned(self, tuple args, dict kwargs, tuple pure_args, dict pure_kwargs, object cache):
    """A plan for these arguments as they are now; None, and the reason counted, where none is made."""
    cdef Planned planned = Planned.__new__(Planned)
    cdef list roots = []
    cdef list lists = []
    cdef list arguments = []
    cdef Py_ssize_t i
    if self.unused >= UNUSED_ALLOWED or plans_kept <= 0:
      self.count('plans were made time and again and none could be used: each call brings new objects')
      return None
    planned.graphdefs = []
    planned.names = tuple(kwargs)
    planned.cache = None if cache is None else weakref.ref(cache)
    if list(kwargs) != sorted(kwargs):
      for value in kwargs.values():
        if not tree_passes(value, 0):
          self.count('keyword arguments that are nodes, not in alphabetical order')
          return None
    planned.root_names = []
    for i in range(len(args)):
      arguments.append(argument_of(args[i], pure_args[i], roots, planned.graphdefs, lists))
      planned.root_names.extend([self.parameter(i)] * (len(roots) - len(planned.root_names)))
    for name in kwargs:
      arguments.append(argument_of(kwargs[name], pure_kwargs[name], roots, planned.graphdefs, lists))
      planned.root_names.extend([name] * (len(roots) - len(planned.root_names)))
    if None in arguments or not roots:
      self.count('an argument of a kind that plans do not cover')
      return None
    planned.arguments = tuple(arguments)
    planned.plan = recorded(roots)
    if planned.plan is None:
      self.count(why_not())
      return None
    return planned if self.agrees(planned, lists) else None

  cdef object parameter(self, Py_ssize_t i):
    """The name of the i-th positional parameter, for words."""
    if self.parameters is None:
      try:
        self.parameters = list(inspect.signature(self.program).parameters)
      except (ValueError, TypeError):
        self.parameters = []
    return self.parameters[i] if i < len(self.parameters) else f'argument {i}'

  cdef bint agrees(self, Planned planned, list lists) except -1:
    """Whether a plan takes the same arrays out as upstream's walk did."""
    cdef Plan plan = planned.plan
    cdef list own = plan.blank()
    cdef list theirs = []
    cdef Py_ssize_t step = plan.check()
    if step >= 0:
      self.count(f'{planned.words(step)} is held by something else too')
      return False
    plan.collect(own, None)
    for leaves in lists:
      theirs.extend(leaves)
    return same_list(own, theirs)

  cdef int settle(
    self, Planned planned, Record record, list definitions, object args, object kwargs
  ) except -1:
    """Keeps a plan that still holds after a general call, with what came back."""
    cdef Settled settled = Settled.__new__(Settled)
    cdef Plan plan = planned.plan
    cdef list arrays = plan.blank()
    cdef Py_ssize_t step
    if not all_mirror(planned.graphdefs, definitions):
      return self.count('the function changed the structure of its arguments')
    step = plan.check()
    if step >= 0:
      return self.count(f'{planned.words(step)}: another object after the call')
    plan.collect(arrays, None)
    settled.record, settled.definitions = record, definitions
    settled.kept, settled.refs, settled.keys, settled.unused = [], [], [], []
    settled.layouts = []
    settled.changed = list(range(plan.n_leaves))
    if record is not None and not settled.sort(record):
      return self.count('the function moved arrays between Variables')
    if settled.kept:
      others = [x for x in jax.tree.leaves((args, kwargs), is_leaf=is_node) if not is_node(x)]
      if not uniform([arrays], others):
        return self.count('arrays lie on several devices, or on another one than the default')
      settled.vouch(arrays)
    return self.keep(planned, settled)

  cdef int keep(self, Planned planned, Settled settled) except -1:
    planned.whole = settled.record is None
    traced = self.program.traced_with(settled.record, settled.definitions)
    for i, graphdef in enumerate(traced):   # which jax then knows by identity
      if same_objects(graphdef, planned.graphdefs[i]):
        planned.graphdefs[i] = graphdef
    planned.settled = [settled] + [
      one for one in planned.settled or []
      if (<Settled>one).record is not settled.record or settled.record is None
    ][:SETTLED_KEPT - 1]
    planned.expected = settled
    if planned in self.plans:
      return 0
    self.plans = [planned] + self.plans[:plans_kept - 1]
    self.unused += 1
    return 0

  # ---- calling ----

  cdef object by_plan(self, object jit, tuple args, dict kwargs, object cache):
    """What the function returns, or MISS before anything was done."""
    cdef Planned planned = self.fitting(args, kwargs, cache)
    cdef Plan plan
    cdef Settled expected
    cdef list arrays, lists, owners
    cdef Py_ssize_t step
    cdef bint standing
    if planned is None:
      return MISS
    plan, expected = planned.plan, planned.expected
    if plan.asked and not plan.fits_itself():
      self.count('a static attribute that does not equal itself any more')
      return MISS
    arrays, owners = plan.blank(), plan.blank()
    step = plan.check()
    if step >= 0:
      self.count(f'{planned.words(step)}: not the object that was there before')
      return MISS
    standing = expected.standing(plan)
    plan.collect(arrays, owners)
    if not standing and not expected.refit(arrays):
      self.count('an array that stays is held elsewhere too, or is a new one of another kind')
      return MISS
    if expected.kept and not expected.undisturbed(arrays, args, kwargs):
      self.count('an array that stays was deleted, or lies where the program does not run')
      return MISS
    lists = plan.by_root(arrays)
    arrays.clear()   # so that what stays is counted once
    return self.flown(jit, planned, args, kwargs, cache, lists, owners)

  cdef Planned fitting(self, tuple args, dict kwargs, object cache):
    cdef Planned planned
    cdef Py_ssize_t i
    for i in range(len(self.plans)):
      planned = self.plans[i]
      if planned.fits(args, kwargs, cache):
        if i:
          self.plans = [planned] + [one for one in self.plans if one is not planned]
        return planned
    self.count('arguments that no plan is for')
    return None

  cdef object flown(
    self, object jit, Planned planned, tuple args, dict kwargs, object cache, list lists, list owners
  ):
    cdef Flight flight = Flight.__new__(Flight)
    cdef list nodes = []
    cdef Py_ssize_t i
    flight.jit, flight.args, flight.kwargs, flight.cache = jit, args, kwargs, cache
    for i in range(len(lists)):
      nodes.append(node_of(planned, i, lists[i]))
    outer_args, outer_kwargs = planned.built(args, kwargs, nodes)
    take_off(flight)
    try:
      if cache is not None:
        graph_context.tmp_static_cache = None
      if planned.whole:
        outs = self.program.full(*outer_args, **outer_kwargs)
      else:
        outs = self.program.outer(*outer_args, **outer_kwargs)
    except BaseException:
      flight.close()
      raise
    finally:
      land()
    return self.landed(flight, planned, nodes, outs, owners)

  cdef object landed(self, Flight flight, Planned planned, list nodes, tuple outs, list owners):
    cdef Settled settled
    cdef Outcome outcome = None
    cdef list leaves, definitions = None
    cdef Py_ssize_t i, k
    if len(outs) == 3:
      args_out, kwargs_out, out = outs
      states = states_in((args_out, kwargs_out))
      definitions = [one._graphdef for one in states]
      settled = planned.known(None, definitions)
    else:
      outcome, out = outs
      settled = planned.known(outcome.record, None)
    if flight.manager is not None or settled is None or (
      settled is not planned.expected and settled.kept
    ):
      if outcome is not None:
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
      k = settled.changed[i]
      planned.plan.store(k, leaves[i], owners[k])
    planned.expected = settled
    self.fast += 1
    self.unused = 0
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
    cdef bint plannable = self.calls > 1 and at_top_level()   # most functions are called once
    with update_context(jit):
      pure_args, pure_kwargs = jit._get_pure_args_kwargs(args, kwargs)
      if plannable:
        planned = self.planned(args, kwargs, pure_args, pure_kwargs, cache)
      record, args_out, kwargs_out, out = self.program.run(pure_args, pure_kwargs)
      result = jit._get_non_pure_out(args_out, kwargs_out, out)
    if planned is not None and not has_states(out):
      definitions = [one._graphdef for one in states_in((args_out, kwargs_out))]
      self.settle(planned, record, definitions, args, kwargs)
    return result


cdef object node_of(Planned planned, Py_ssize_t i, list leaves):
  cdef Split split
  if planned.whole:
    return NodeStates.from_split(planned.graphdefs[i], leaves)
  split = Split.__new__(Split)
  split.graphdef, split.leaves = planned.graphdefs[i], leaves
  return split


cdef bint is_node(object x) except -1:
  cdef TypeInfo info = info_of(x)
  return info.kind is kinds.GRAPH or info.kind is kinds.VARIABLE


def call(jit, *args, **kwargs):
  """What calling a function that `nnx.jit` made does."""
  cdef Site site = jit._fast_site
  cdef object result
  site.calls += 1
  cache = graph_context.tmp_static_cache
  if site.plans and at_top_level():
    result = site.by_plan(jit, args, kwargs, cache)
    if result is not MISS:
      return result
  return site.general(jit, args, kwargs, cache)


def new_site(name, program):
  return Site(name, program)


def all_sites() -> list:
  return list(sites)


def plan_limit(limit):
  global plans_kept
  if limit is not None:
    if limit < 0:
      raise ValueError(f'the number of plans kept cannot be negative, got {limit}')
    plans_kept = limit
    for site in sites:
      (<Site>site).plans = (<Site>site).plans[:limit]
  return plans_kept


def install(graphlib: dict) -> None:
  global graph_context, update_context, is_deleted
  from jax._src import config, mesh
  is_deleted = upstream.ArrayImpl.is_deleted
  for name in (
    'default_device', 'mesh_context_manager', 'abstract_mesh_context_manager', 'device_context',
  ):
    settings.append(getattr(config if hasattr(config, name) else mesh, name))
  graph_context, update_context = graphlib['GRAPH_CONTEXT'], graphlib['update_context']
