"""Plans: a record of one walk that the next one is checked against, pointer by pointer.

`recorded` walks as the flattening walk does and notes what it sees; `check` compares the live
objects with the notes. A check runs no Python, nor lets a collection run some: nothing changes under it.
"""
import dataclasses
import sys
import types

import numpy as np

import jax
from flax.core import FrozenDict
cimport cython
from cpython.dict cimport PyDict_SetItem
from cpython.list cimport PyList_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF

from flax.nnx.fast cimport kinds, upstream
from flax.nnx.fast.children cimport sorted_items, state_mapping
from flax.nnx.fast.graphtypes cimport reflexive
from flax.nnx.fast.kinds cimport DEEPEST, Layout, TypeInfo, info_of, instance_dict, marks_of
from flax.nnx.fast.kinds cimport pytree_state_metadata, registered_types
from flax.nnx.fast.slots cimport VersionedType, has_slot, offset_of, read, version_of
from flax.nnx.fast.slots cimport store as store_slot
from flax.nnx.fast.variables cimport plain_metadata
from flax.nnx.fast.watch cimport make_watchable, watch, writes

cdef extern from "Python.h":
  PyObject* PyObject_GenericGetDict(PyObject* o, void* context) noexcept
  int PyDict_CheckExact(PyObject* o) noexcept
  Py_ssize_t Py_REFCNT(PyObject* o) noexcept
  PyTypeObject* Py_TYPE(PyObject* o) noexcept
  void Py_DECREF(PyObject* o) noexcept
  void PyErr_Clear() noexcept
  int raw_dict_next "PyDict_Next"(PyObject*, Py_ssize_t*, PyObject**, PyObject**) noexcept
  Py_ssize_t raw_dict_size "PyDict_Size"(PyObject*) noexcept
  PyObject* raw_list_item "PyList_GET_ITEM"(PyObject*, Py_ssize_t) noexcept
  Py_ssize_t raw_list_size "PyList_GET_SIZE"(PyObject*) noexcept
  PyObject* raw_tuple_item "PyTuple_GET_ITEM"(PyObject*, Py_ssize_t) noexcept
  Py_ssize_t raw_tuple_size "PyTuple_GET_SIZE"(PyObject*) noexcept
  void raw_list_set "PyList_SET_ITEM"(PyObject*, Py_ssize_t, PyObject*) noexcept

cdef extern from *:
  """
  #if PY_VERSION_HEX >= 0x030C0000   /* where a collection waits for the interpreter's loop */
  #define flax_hold_collection() 0
  #define flax_let_collect(held) ((void)(held))
  #else
  #define flax_hold_collection() PyGC_Disable()
  #define flax_let_collect(held) do { if (held) PyGC_Enable(); } while (0)
  #endif
  """
  int flax_hold_collection() noexcept        # whether collection was on
  void flax_let_collect(int held) noexcept

cdef bint ASKS_IDENTICAL = sys.version_info >= (3, 13)   # see `slot_equal` in graphtypes
cdef object SCALAR_META = type(jax.numpy.float32)
# Comparing one of these with itself asks nothing of what is in it.
cdef tuple SURE = (tuple, list, dict, set, frozenset, SCALAR_META, FrozenDict, jax.sharding.Mesh)
cdef Py_ssize_t RAW_VALUE, METADATA, TRACE_STATE, JAX_TRACE
cdef object top_level = None      # the weak reference to jax's top-level trace, as trace states hold it
cdef str reason = ''


class Unplannable(Exception):
  """A walk met what no plan covers; the message says what."""


cdef bint at_top(object trace_state) except -1:
  """Whether a trace state is surely that of the top level."""
  if type(trace_state) is not upstream.TraceState or not has_slot(trace_state, JAX_TRACE):
    return False
  return getattr(read(trace_state, JAX_TRACE, ''), '_trace_ref', None) is top_level


cdef bint sure(object value) except -1:
  """Whether a static value counts as equal to itself wherever upstream compares it."""
  if not ASKS_IDENTICAL or reflexive(value):
    return True
  if type(value) is float or type(value) is complex:
    return value == value
  return type(value) in SURE or isinstance(value, np.dtype) or (
    isinstance(value, tuple) and type(value).__eq__ is tuple.__eq__
  )


cdef bint harmless(object value, int depth) except -1:
  """Whether comparing it runs Flax's own code, or a dataclass's own comparison of plain fields."""
  cls = type(value)
  equality = getattr(cls, '__eq__', None)
  if depth > 20 or type(equality) is not types.FunctionType:
    return False
  if str(equality.__globals__.get('__name__')).startswith('flax.'):
    return True
  if not dataclasses.is_dataclass(cls) or vars(cls).get('__eq__') is not equality:
    return False
  if equality.__code__.co_filename != '<string>' or not cls.__dataclass_params__.eq:
    return False
  for field in dataclasses.fields(cls):
    item = getattr(value, field.name, None)
    if not (sure(item) or harmless(item, depth + 1)):
      return False
  return True


# ---- recording ----

@cython.final
cdef class Recorder:
  """One walk, in the order of the flattening walk: the steps and entries as tuples."""
  cdef list steps, entries, held, asked, owners, names
  cdef set met          # ids of nodes and Variables
  cdef Py_ssize_t containers

  cdef int visit(
    self, object node, TypeInfo info, Py_ssize_t above, Py_ssize_t entry, int depth
  ) except -1:
    if depth > DEEPEST:
      raise Unplannable('it is nested too deeply')
    if not info.version and info.kind is not kinds.OTHER:
      raise Unplannable(f'{info.cls.__qualname__} has no version tag')
    if info.kind is kinds.VARIABLE:
      return self.variable(node, info, above, entry)
    if info.kind is kinds.GRAPH:
      return self.graph_node(node, info, above, entry, depth)
    raise Unplannable(f'{type(node).__qualname__}: {info.why or "not a node"}')

  cdef Py_ssize_t step(
    self, TypeInfo info, object target, Py_ssize_t index, Py_ssize_t count, Py_ssize_t above,
    Py_ssize_t entry,
  ) except -1:
    """Adds a step with `count` entries that are still to be noted; gives its number."""
    self.steps.append((
      <int>info.kind, target, info.cls, index, len(self.entries), count, above, entry,
    ))
    self.held.append(info.cls)
    self.entries.extend([None] * count)
    return len(self.steps) - 1

  cdef int note(self, Py_ssize_t at, object key, object value, What what, Py_ssize_t index) except -1:
    if key is not None:
      self.held.append(key)
    if what is TRACE:
      self.held.append(value)
    self.entries[at] = (key, value if what is SAME or what is TRACE else None, <int>what, index)
    return 0

  cdef int static(self, Py_ssize_t at, object key, object value) except -1:
    self.held.append(value)
    if not sure(value):
      if not harmless(value, 0):
        cls = type(value).__qualname__
        raise Unplannable(f'the static {cls} at {key!r} compares in a way of its own')
      self.asked.append(value)
    return self.note(at, key, value, SAME, 0)

  cdef Py_ssize_t leaf(self, object owner, object name) except -1:
    self.owners.append(owner)
    self.names.append(name)
    return len(self.owners) - 1

  cdef int variable(self, object node, TypeInfo info, Py_ssize_t above, Py_ssize_t entry) except -1:
    cdef Py_ssize_t i, at
    if not (has_slot(node, RAW_VALUE) and has_slot(node, METADATA) and has_slot(node, TRACE_STATE)):
      raise Unplannable(f'{info.cls.__qualname__} without a value')
    value, metadata = read(node, RAW_VALUE, ''), read(node, METADATA, '')
    trace_state = read(node, TRACE_STATE, '')
    if not is_leaf(<PyObject*>value):
      held = type(value).__qualname__
      raise Unplannable(f'{info.cls.__qualname__} holds a {held}, not a jax.Array')
    if not plain_metadata(metadata) or not at_top(trace_state):
      raise Unplannable(f'{info.cls.__qualname__} is hijax, a reference, or of another trace')
    self.met.add(id(node))
    items = list((<dict>metadata).items())
    i = self.step(info, node, self.leaf(node, None), len(items) + 1, above, entry)
    at = self.steps[i][4]
    self.note(at, None, trace_state, TRACE, 0)
    for key, item in items:
      at += 1
      self.held.append(item)
      self.note(at, key, item, SAME, 0)
    return 0

  cdef int graph_node(
    self, object node, TypeInfo info, Py_ssize_t above, Py_ssize_t entry, int depth
  ) except -1:
    attributes = instance_dict(node)
    if type(attributes) is not dict or not reflexive(info.cls):
      raise Unplannable(f'{info.cls.__qualname__} has an unusual __dict__ or metaclass')
    cdef Layout layout = info.layout_of(attributes)
    cdef list values = list((<dict>attributes).values())
    if not (layout.standard and layout.distinct and layout.fits(attributes)):
      raise Unplannable(f'{info.cls.__qualname__} has unusual attribute names')
    cdef list marks = marks_of(info, layout, values)
    if marks is None:
      raise Unplannable(f'{info.cls.__qualname__} marks its attributes in an unusual way')
    make_watchable(attributes)
    self.met.add(id(node))
    cdef Py_ssize_t me = self.step(info, node, 0, len(values), above, entry)
    cdef Py_ssize_t first = self.steps[me][4]
    cdef Py_ssize_t i, position
    for i in range(len(values)):
      position = layout.order[i]
      key, value = layout.keys[position], values[position]
      if marks[i] is False:
        self.static(first + position, key, value)
      else:
        self.child(me, first + position, key, value, marks[i] is True, node, depth)
    return 0

  cdef int child(
    self, Py_ssize_t me, Py_ssize_t at, object key, object value, bint is_data, object owner, int depth
  ) except -1:
    """One attribute or item that may be a node; `owner` is the node whose attribute it is, if any."""
    cdef TypeInfo info = info_of(value)
    if type(value) is upstream.ArrayImpl and owner is not None:
      return self.note(at, key, None, LEAF, self.leaf(owner, key))
    if info.kind is kinds.ARRAY or (info.kind is kinds.PLAIN and is_data):
      held = type(value).__qualname__
      raise Unplannable(f'a {held} at {key!r} is an array or number outside a Variable')
    if info.kind is kinds.PLAIN or info.kind is kinds.NONE:
      return self.static(at, key, value)
    if info.kind is kinds.GRAPH or info.kind is kinds.VARIABLE:
      self.note(at, key, value, SAME, 0)
      return 0 if id(value) in self.met else self.visit(value, info, me, at, depth + 1)
    if info.kind is kinds.STRANGER or info.kind is kinds.OTHER:
      return self.other(at, key, value, is_data, info)
    return self.container(me, at, key, value, info, depth)

  cdef int other(self, Py_ssize_t at, object key, object value, bint is_data, TypeInfo info) except -1:
    if (
      is_data or upstream.get_node_impl(value) is not None or upstream.is_array_ref(value)
      or isinstance(value, upstream.Variable) or isinstance(value, upstream.array_types)
      or type(value) is upstream.StaticElem or type(value) is upstream.DataElem
    ):
      raise Unplannable(f'{type(value).__qualname__} at {key!r}: {info.why}')
    return self.static(at, key, value)

  cdef int container(
    self, Py_ssize_t me, Py_ssize_t at, object key, object value, TypeInfo info, int depth
  ) except -1:
    cdef Py_ssize_t index = self.containers
    self.containers += 1
    self.note(at, key, None, INNER, index)
    if depth > DEEPEST:
      raise Unplannable('it is nested too deeply')
    if info.kind is kinds.PYTREE_STATE:
      return self.pytree_state(value, info, index, me, at)
    if info.kind is kinds.STATE:
      return self.state(value, info, index, me, at, depth)
    if info.kind is kinds.DICT:
      return self.mapping(value, info, index, me, at, depth)
    if info.kind is kinds.NAMED_TUPLE and len(<tuple>value) != len(info.keys):
      raise Unplannable(f'{type(value).__qualname__} does not have its own number of fields')
    return self.sequence(value, info, index, me, at, depth)

  cdef int pytree_state(
    self, object value, TypeInfo info, Py_ssize_t index, Py_ssize_t above, Py_ssize_t entry
  ) except -1:
    if pytree_state_metadata(value) is None or not at_top(read(value, kinds.STATE_TRACE, '')):
      raise Unplannable('a Module of another trace, or with unusual flags')
    cdef Py_ssize_t me = self.step(info, None, index, 3, above, entry)
    cdef Py_ssize_t at = self.steps[me][4]
    self.note(at, None, read(value, kinds.STATE_TRACE, ''), TRACE, 0)
    self.note(at + 1, None, read(value, kinds.STATE_INITIALIZING, ''), SAME, 0)
    return self.note(at + 2, None, read(value, kinds.STATE_SETUP, ''), SAME, 0)

  cdef int state(
    self, object value, TypeInfo info, Py_ssize_t index, Py_ssize_t above, Py_ssize_t entry, int depth
  ) except -1:
    mapping = state_mapping(value)
    attributes = instance_dict(value)
    if mapping is None or type(attributes) is not dict or list(attributes) != ['_mapping']:
      raise Unplannable('a State of unusual make')
    cdef Py_ssize_t me = self.step(info, None, index, 1, above, entry)
    cdef Py_ssize_t at = self.steps[me][4]
    cdef Py_ssize_t inner = self.containers
    self.containers += 1
    self.note(at, list(attributes)[0], None, INNER, inner)
    return self.mapping(mapping, info_of(mapping), inner, me, at, depth)

  cdef int mapping(
    self, dict value, TypeInfo info, Py_ssize_t index, Py_ssize_t above, Py_ssize_t entry, int depth
  ) except -1:
    cdef list pairs = sorted_items(value)
    if pairs is None:
      raise Unplannable('a dict whose keys are not all strings or all ints')
    cdef list keys = list(value)
    cdef dict positions = {key: i for i, key in enumerate(keys)}
    cdef Py_ssize_t me = self.step(info, None, index, len(pairs), above, entry)
    cdef Py_ssize_t first = self.steps[me][4]
    for key, item in pairs:
      position = positions[key]
      self.item(me, first + <Py_ssize_t>position, keys[position], item, depth)
    return 0

  cdef int sequence(
    self, object value, TypeInfo info, Py_ssize_t index, Py_ssize_t above, Py_ssize_t entry, int depth
  ) except -1:
    cdef Py_ssize_t me = self.step(info, None, index, len(value), above, entry)
    cdef Py_ssize_t first = self.steps[me][4]
    order = info.order if info.kind is kinds.NAMED_TUPLE else range(len(value))
    for position in order:
      self.item(me, first + <Py_ssize_t>position, None, value[position], depth)
    return 0

  cdef int item(self, Py_ssize_t me, Py_ssize_t at, object key, object value, int depth) except -1:
    return self.child(me, at, key, value, False, None, depth + 1)


cdef str why_not():
  return reason


cdef Plan recorded(list roots):
  global reason
  cdef Recorder walk = Recorder.__new__(Recorder)
  walk.steps, walk.entries, walk.held, walk.asked = [], [], [], []
  walk.owners, walk.names, walk.met = [], [], set()
  cdef list counts = []
  cdef Py_ssize_t before = 0
  cdef Plan plan = None
  try:
    for root in roots:
      if id(root) not in walk.met:
        walk.visit(root, info_of(root), -1, len(counts), 0)
      counts.append(len(walk.owners) - before)
      before = len(walk.owners)
    plan = frozen(walk, counts)
  except Unplannable as error:
    reason = str(error)
  return plan


cdef Plan frozen(Recorder walk, list counts):
  cdef Plan plan = Plan.__new__(Plan)
  plan.registered = registered_types()
  plan.counts, plan.asked = counts, walk.asked
  plan.held = walk.held
  plan.n_steps, plan.n_entries = len(walk.steps), len(walk.entries)
  plan.n_found, plan.n_leaves = walk.containers, len(walk.owners)
  plan.steps = <Step*>PyMem_Calloc(plan.n_steps + 1, sizeof(Step))
  plan.entries = <Entry*>PyMem_Calloc(plan.n_entries + 1, sizeof(Entry))
  plan.found = <PyObject**>PyMem_Calloc(plan.n_found + 1, sizeof(PyObject*))
  plan.arrays = <PyObject**>PyMem_Calloc(plan.n_leaves + 1, sizeof(PyObject*))
  plan.owners = <PyObject**>PyMem_Calloc(plan.n_leaves + 1, sizeof(PyObject*))
  plan.names = <PyObject**>PyMem_Calloc(plan.n_leaves + 1, sizeof(PyObject*))
  if not (plan.steps and plan.entries and plan.found and plan.arrays and plan.owners and plan.names):
    raise MemoryError
  cdef Py_ssize_t i
  for i in range(plan.n_steps):
    freeze_step(&plan.steps[i], walk.steps[i])
  for i in range(plan.n_entries):
    freeze_entry(&plan.entries[i], walk.entries[i])
  for i in range(plan.n_leaves):
    plan.owners[i] = <PyObject*>walk.owners[i]
    plan.names[i] = NULL if walk.names[i] is None else <PyObject*>walk.names[i]
  return plan


cdef int freeze_step(Step* step, tuple made) except -1:
  kind, target, cls, index, first, count, above, entry = made
  step.kind = <Kind><int>kind
  step.target = NULL if target is None else <PyObject*>target
  step.cls, step.version = <PyObject*>cls, version_of(cls)
  step.index, step.first, step.count, step.above, step.entry = index, first, count, above, entry
  return 0


cdef int freeze_entry(Entry* entry, tuple made) except -1:
  key, value, what, index = made
  entry.key = NULL if key is None else <PyObject*>key
  entry.what = <What><int>what
  entry.value = <PyObject*>value
  entry.index = index
  return 0


# ---- checking ----

cdef inline PyObject* at_offset(PyObject* o, Py_ssize_t offset) noexcept:
  return (<PyObject**>(<char*>o + offset))[0]


cdef inline bint is_jax_array(PyObject* value) noexcept:
  cdef PyObject* cls = <PyObject*>Py_TYPE(value)
  return cls is <PyObject*>upstream.ArrayImpl or cls is <PyObject*>upstream.KeyArray


cdef inline bint is_leaf(PyObject* value) noexcept:
  """An array or number, which jax takes as one leaf; a Variable keeps it where nothing comes back."""
  cdef PyObject* cls = <PyObject*>Py_TYPE(value)
  return (
    is_jax_array(value)
    or cls is <PyObject*>upstream.ndarray or cls is <PyObject*>float or cls is <PyObject*>int
  )


cdef inline void fill(PyObject* blank, Py_ssize_t i, PyObject* value) noexcept:
  """Replaces None in a list."""
  Py_INCREF(<object>value)
  raw_list_set(blank, i, value)
  Py_DECREF(<PyObject*>None)


cdef class Plan:
  def __cinit__(self):
    self.steps = NULL
    self.entries = NULL
    self.found = self.arrays = self.owners = self.names = NULL
    self.n_steps = self.n_leaves = 0
    self.seen = 0

  def __dealloc__(self):
    PyMem_Free(self.steps)
    PyMem_Free(self.entries)
    PyMem_Free(self.found)
    PyMem_Free(self.arrays)
    PyMem_Free(self.owners)
    PyMem_Free(self.names)

  cdef bint fits_itself(self) except -1:
    """Whether each static that may differ from itself says that it does not, asked as jax would."""
    cdef bint fits = False
    try:
      for value in self.asked:
        if not value == value:
          break
      else:
        fits = True
    except Exception:   # jax words what went wrong when it is asked next
      pass
    return fits

  cdef Py_ssize_t check(self) noexcept:
    """-1 where the live objects are as recorded; else the step at which they are not.

    The caller has compared the roots with the targets of their steps.
    """
    cdef int collecting = flax_hold_collection()
    cdef Py_ssize_t step = self.first_other()
    flax_let_collect(collecting)
    return step

  cdef Py_ssize_t first_other(self) noexcept:
    cdef Py_ssize_t i
    self.failed = -1
    self.unwritten = self.seen == writes()
    if self.registered != registered_types():
      return 0
    for i in range(self.n_steps):
      if not self.step_holds(&self.steps[i]):
        return i
    self.seen = writes()
    return -1

  cdef bint step_holds(self, Step* step) noexcept:
    cdef PyObject* node = step.target
    if node is NULL:
      return self.container_holds(step)
    if <PyObject*>Py_TYPE(node) is not step.cls or (
      (<VersionedType*>step.cls).tp_version_tag != step.version
    ):
      return False
    if step.kind is kinds.VARIABLE:
      return self.variable_holds(step, node)
    return self.attributes_hold(step, node)

  cdef bint attributes_hold(self, Step* step, PyObject* node) noexcept:
    cdef PyObject* attributes = PyObject_GenericGetDict(node, NULL)
    cdef bint holds
    if attributes is NULL:
      PyErr_Clear()
      return False
    holds = self.mapping_holds(step, attributes, 0)
    Py_DECREF(attributes)   # the node holds it
    return holds

  cdef bint mapping_holds(self, Step* step, PyObject* mapping, Py_ssize_t skipped) noexcept:
    """`items_hold` for a dict that stays with its object; one that was not written since holds."""
    if self.unwritten and mapping is step.mapping:
      return True
    step.mapping = NULL
    if not PyDict_CheckExact(mapping) or not self.items_hold(step, mapping, skipped):
      return False
    if watch(mapping):
      step.mapping = mapping
    return True

  cdef bint items_hold(self, Step* step, PyObject* mapping, Py_ssize_t skipped) noexcept:
    cdef PyObject* key
    cdef PyObject* value
    cdef Py_ssize_t position = 0
    cdef Py_ssize_t at = step.first + skipped
    if raw_dict_size(mapping) != step.count - skipped:
      return False
    while raw_dict_next(mapping, &position, &key, &value):
      if key is not self.entries[at].key or not self.entry_holds(at, value):
        self.failed = at
        return False
      at += 1
    return True

  cdef bint entry_holds(self, Py_ssize_t at, PyObject* value) noexcept:
    cdef Entry* entry = &self.entries[at]
    if entry.what is SAME:
      return value is entry.value
    if entry.what is LEAF:
      self.arrays[entry.index] = value
      return is_jax_array(value)
    self.found[entry.index] = value
    return True

  cdef bint variable_holds(self, Step* step, PyObject* node) noexcept:
    cdef PyObject* metadata = at_offset(node, METADATA)
    cdef PyObject* value = at_offset(node, RAW_VALUE)
    if at_offset(node, TRACE_STATE) is not self.entries[step.first].value:
      self.failed = step.first
      return False
    if value is NULL or metadata is NULL or not is_leaf(value):
      return False
    self.arrays[step.index] = value
    return self.mapping_holds(step, metadata, 1)

  cdef bint container_holds(self, Step* step) noexcept:
    cdef PyObject* value = self.found[step.index]
    if <PyObject*>Py_TYPE(value) is not step.cls:
      return False
    if step.kind is kinds.PYTREE_STATE:
      return self.pytree_state_holds(step, value)
    # One that somebody else holds is not the one that upstream's call would leave in its place.
    if Py_REFCNT(value) != 1 and not (step.count == 0 and step.kind is kinds.TUPLE):
      return False
    if step.kind is kinds.DICT:
      return self.items_hold(step, value, 0)
    if step.kind is kinds.STATE:
      return self.attributes_hold(step, value)
    return self.sequence_holds(step, value)

  cdef bint sequence_holds(self, Step* step, PyObject* value) noexcept:
    cdef bint is_list = step.kind is kinds.LIST
    cdef Py_ssize_t i
    if (raw_list_size(value) if is_list else raw_tuple_size(value)) != step.count:
      return False
    for i in range(step.count):
      if not self.entry_holds(
        step.first + i, raw_list_item(value, i) if is_list else raw_tuple_item(value, i)
      ):
        self.failed = step.first + i
        return False
    return True

  cdef bint pytree_state_holds(self, Step* step, PyObject* state) noexcept:
    cdef PyObject* trace_state = at_offset(state, kinds.STATE_TRACE)
    cdef Entry* recorded = &self.entries[step.first]
    if trace_state is NULL or (
      trace_state is not recorded.value   # a general call in graph mode gives the Module a new one
      and trace_state is not <PyObject*>self.trusted and not self.trusts(<object>trace_state)
    ):
      return False
    return (
      at_offset(state, kinds.STATE_INITIALIZING) is recorded[1].value
      and at_offset(state, kinds.STATE_SETUP) is recorded[2].value
    )

  cdef bint trusts(self, object trace_state) noexcept:
    """Whether it is the top level's; slots and a dict of exact strings are read, so no Python runs."""
    cdef object jax_trace
    if type(trace_state) is not upstream.TraceState or not has_slot(trace_state, JAX_TRACE):
      return False
    jax_trace = read(trace_state, JAX_TRACE, '')
    attributes = instance_dict(jax_trace)
    if attributes.get('_trace_ref') is not top_level:
      return False
    self.trusted = trace_state
    return True

  # ---- moving arrays ----

  cdef list blank(self):
    """A list as long as there are leaves; made before a check, since making one can run Python."""
    return [None] * self.n_leaves

  cdef int collect(self, list arrays) noexcept:
    """Fills in the arrays that the last check found. The list is blank: None is what gives way."""
    cdef Py_ssize_t i
    for i in range(self.n_leaves):
      fill(<PyObject*>arrays, i, self.arrays[i])
    return 0

  cdef int collect_owners(self, list leaves, list owners) noexcept:
    """The same with the objects that hold the leaves: all of them, or those in a list of numbers."""
    cdef Py_ssize_t i
    for i in range(PyList_GET_SIZE(owners)):
      fill(<PyObject*>owners, i, self.owners[i if leaves is None else <Py_ssize_t>leaves[i]])
    return 0

  cdef list by_root(self, list arrays):
    """The same arrays in a list for each root, and in no other."""
    cdef list lists = []
    cdef Py_ssize_t start = 0
    if len(self.counts) == 1:
      return [arrays]
    for count in self.counts:
      lists.append(arrays[start:start + <Py_ssize_t>count])
      start += <Py_ssize_t>count
    arrays.clear()
    return lists

  cdef int store(self, Py_ssize_t leaf, object value, object owner) except -1:
    """Puts an array where the leaf's old one was; whoever calls still holds the old one."""
    if self.names[leaf] is NULL:
      store_slot(owner, RAW_VALUE, value)
      return 0
    return PyDict_SetItem(instance_dict(owner), <object>self.names[leaf], value)

  cdef str words(self, Py_ssize_t step):
    """Where the last check failed, as a path from the root: '.blocks[3].cfg'."""
    cdef str path = ''
    cdef Py_ssize_t at = self.failed
    if at >= 0:
      path = self.segment(step, at)
    while step >= 0 and self.steps[step].above >= 0:
      at = self.steps[step].entry
      step = self.steps[step].above
      path = self.segment(step, at) + path
    return path

  cdef Py_ssize_t root_of(self, Py_ssize_t step) noexcept:
    """Which root a step lies under."""
    while self.steps[step].above >= 0:
      step = self.steps[step].above
    return self.steps[step].entry

  cdef str segment(self, Py_ssize_t step, Py_ssize_t at):
    cdef Entry* entry = &self.entries[at]
    if entry.key is NULL:
      return '' if self.steps[step].kind is kinds.VARIABLE else f'[{at - self.steps[step].first}]'
    key = <object>entry.key
    if self.steps[step].kind is kinds.GRAPH and type(key) is str:
      return f'[{key}]' if key.isdigit() else f'.{key}'
    if self.steps[step].kind is kinds.STATE:
      return ''
    return f'[{key!r}]'


def install(trace_ref: object) -> None:
  """`trace_ref`: what an opaque trace state of the top level refers to its trace with."""
  global RAW_VALUE, METADATA, TRACE_STATE, JAX_TRACE, top_level
  top_level = trace_ref
  RAW_VALUE = offset_of(upstream.Variable, '_raw_value')
  METADATA = offset_of(upstream.Variable, '_var_metadata')
  TRACE_STATE = offset_of(upstream.Variable, '_trace_state')
  JAX_TRACE = offset_of(upstream.TraceState, '_jax_trace')
