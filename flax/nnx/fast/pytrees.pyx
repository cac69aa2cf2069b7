"""The pytree protocol of Variables, States and Pytrees, as jax calls it.

The static part of a node that is flattened again is the same object where what is in it is the same
and cannot change: jax compares those by identity first. Caches hold strings, numbers and the like
alone, never what could keep a model alive, and are bounded.
"""
import jax

cimport cython
from cpython.dict cimport PyDict_Copy, PyDict_GetItemWithError, PyDict_Next, PyDict_Size
from cpython.dict cimport PyDict_Values
from cpython.list cimport PyList_AsTuple, PyList_New, PyList_SET_ITEM
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_New, PyTuple_SET_ITEM

from flax.nnx.fast cimport kinds, upstream
from flax.nnx.fast.kinds cimport Layout, TypeInfo, info_of, info_of_type, instance_dict, marks_of
from flax.nnx.fast.kinds cimport new_pytree_state
from flax.nnx.fast.slots cimport has_slot, offset_of, read
from flax.nnx.fast.stepins cimport deep, pure, step_in, takes
from flax.nnx.fast.traces cimport current_state
from flax.nnx.fast.variables cimport new_variable

cdef extern from "Python.h":
  int PyObject_GenericSetAttr(object o, object name, object value) except -1

cdef enum:
  ITEMS = 16        # as many keys are looked up; more are rare
  LONGEST = 200     # string that is kept
  KEPT = 128        # static parts that are kept of each sort; a power of two
  SIDES_KEPT = 4    # for each layout: which of its attributes are data

cdef Py_ssize_t RAW_VALUE, METADATA
cdef object object_new = object.__new__
cdef object GetAttrKey = jax.tree_util.GetAttrKey
cdef object SequenceKey = jax.tree_util.SequenceKey
cdef object DictKey = jax.tree_util.DictKey
cdef object VALUE_KEY = GetAttrKey('value')
cdef object LARGEST = 1 << 64
cdef list statics = [None] * KEPT     # Static or None, by a hash of its metadata
cdef list unsorted = [None] * KEPT    # Static or None, by the address of its sorted items
cdef list key_sets = [None] * KEPT    # Keys or None, by a hash of the keys
cdef list flag_pairs = [(a, b) for a in (False, True) for b in (False, True)]


ctypedef object (*Parts)(object node, bint with_keys)   # (children, static part); None: not here


cdef object flattened(
  Parts parts_of, bint with_keys, PyObject* f, PyObject** args, size_t nargs, PyObject* names
):
  """What jax's flattening of a node gives, with keys or without."""
  if takes(nargs, names, 1) and not deep():
    parts = parts_of(<object>args[0], with_keys)
    if parts is not None:
      return parts
  return pure(f, args, nargs, names)


# ---- Variables ----

@cython.final
cdef class Static:
  """Metadata as a Variable's dict has it, and sorted as jax gets it."""
  cdef tuple flat        # key, value, key, value, ... in the dict's order
  cdef tuple items
  cdef dict in_order     # of `items`; None where it is not kept


cdef Py_ssize_t taken_apart(dict mapping, PyObject** flat) noexcept:
  """Fills in keys and values, borrowed; gives how many of both, or -1 where there are too many."""
  cdef Py_ssize_t at = 0
  cdef Py_ssize_t n = 0
  if PyDict_Size(mapping) > ITEMS:
    return -1
  while PyDict_Next(mapping, &at, &flat[n], &flat[n + 1]):
    n += 2
  return n


@cython.overflowcheck(False)   # the product wraps, in a checked build too
cdef size_t hash_of(PyObject** objects, Py_ssize_t n) noexcept:
  """Of their addresses, mixed so that neighbours do not fall together."""
  cdef Py_ssize_t i
  cdef size_t mixed = 0
  for i in range(n):
    mixed = mixed * 1000003 + (<size_t>objects[i] >> 4)
  return mixed ^ (mixed >> 16)


cdef bint same_all(PyObject** objects, Py_ssize_t n, tuple known) noexcept:
  cdef Py_ssize_t i
  if PyTuple_GET_SIZE(known) != n:
    return False
  for i in range(n):
    if <PyObject*>PyTuple_GET_ITEM(known, i) is not objects[i]:
      return False
  return True


cdef bint lasting(object value, int depth) noexcept:
  """Whether a value is a small one that holds on to nothing but strings, numbers and the like."""
  cls = type(value)
  if cls is tuple:
    if depth > 3 or len(<tuple>value) > ITEMS:
      return False
    for item in <tuple>value:
      if not lasting(item, depth + 1):
        return False
    return True
  if cls is str:
    return len(<str>value) <= LONGEST
  if cls is int:
    return -LARGEST < value < LARGEST
  return cls is bool or cls is float or value is None


cdef Static static_of(dict metadata):
  """None where the keys are not all strings."""
  cdef PyObject* flat[2 * ITEMS]
  cdef Py_ssize_t n = taken_apart(metadata, flat)
  cdef size_t at
  cdef Static static
  if n < 0:
    return new_static_of(metadata, -1)
  at = hash_of(flat, n) & (KEPT - 1)
  static = statics[at]
  if static is not None and same_all(flat, n, static.flat):
    return static
  return new_static_of(metadata, at)


cdef Static new_static_of(dict metadata, Py_ssize_t at):
  """`at`: where it may be kept; -1: nowhere."""
  cdef Static static = Static.__new__(Static)
  cdef list items = list(metadata.items())
  cdef list flat = []
  for key, value in items:
    if type(key) is not str:
      return None
    flat.append(key)
    flat.append(value)
    if not lasting(value, 0):
      at = -1
  items.sort()   # keys differ, so no comparison reaches the values
  static.flat, static.items = PyList_AsTuple(flat), PyList_AsTuple(items)
  if at >= 0:
    static.in_order = dict(items)
    statics[at] = static
    unsorted[place_of(static.items)] = static
  return static


cdef Py_ssize_t place_of(object items) noexcept:
  return (<size_t><PyObject*>items >> 5) & (KEPT - 1)


cdef object variable_parts(object variable, bint with_keys):
  cdef TypeInfo info = info_of(variable)
  cdef Static static
  if not (info.slotted and has_slot(variable, RAW_VALUE) and has_slot(variable, METADATA)):
    return None
  metadata = read(variable, METADATA, '')
  static = static_of(metadata) if type(metadata) is dict else None
  if static is None:
    return None
  value = read(variable, RAW_VALUE, '')
  return ((VALUE_KEY, value) if with_keys else value,), static.items


cdef object variable_flatten(PyObject* f, PyObject** args, size_t nargs, PyObject* names):
  return flattened(variable_parts, False, f, args, nargs, names)


cdef object variable_flatten_with_keys(PyObject* f, PyObject** args, size_t nargs, PyObject* names):
  return flattened(variable_parts, True, f, args, nargs, names)


cdef dict metadata_from(tuple items):
  """`dict(items)`; None where they are no pairs of string and value."""
  cdef Static static = unsorted[place_of(items)]
  cdef dict metadata
  if static is not None and static.items is items:
    return PyDict_Copy(static.in_order)
  metadata = {}
  for item in items:
    if type(item) is not tuple or len(<tuple>item) != 2 or type((<tuple>item)[0]) is not str:
      return None
    metadata[(<tuple>item)[0]] = (<tuple>item)[1]
  return metadata


cdef object variable_unflatten(PyObject* f, PyObject** args, size_t nargs, PyObject* names):
  cdef dict metadata
  if takes(nargs, names, 3):
    cls, items, children = <object>args[0], <object>args[1], <object>args[2]
    if (
      type(items) is tuple and type(children) is tuple and len(<tuple>children) > 0
      and isinstance(cls, type) and info_of_type(cls).slotted
    ):
      metadata = metadata_from(items)
      if metadata is not None:
        return new_variable(cls, (<tuple>children)[0], metadata, current_state())
  return pure(f, args, nargs, names)


# ---- States ----

@cython.final
cdef class Keys:
  """The keys of a State's dict, as the dict has them and sorted."""
  cdef tuple given, ordered
  cdef list order        # of the sorted ones, where they are in the dict; None: they are sorted
  cdef list path_keys    # of the sorted ones; None until they are asked for


cdef Keys keys_of(dict mapping):
  """None where they are neither all strings nor all ints."""
  cdef PyObject* found[ITEMS]
  cdef PyObject* value
  cdef Py_ssize_t n = 0
  cdef Py_ssize_t at = 0
  cdef size_t place
  cdef Keys keys
  if PyDict_Size(mapping) > ITEMS:
    return new_keys(mapping, -1)
  while PyDict_Next(mapping, &at, &found[n], &value):
    n += 1
  place = hash_of(found, n) & (KEPT - 1)
  keys = key_sets[place]
  if keys is not None and same_all(found, n, keys.given):
    return keys
  return new_keys(mapping, place)


cdef Keys new_keys(dict mapping, Py_ssize_t at):
  """`at`: where they may be kept; -1: nowhere."""
  cdef Keys keys = Keys.__new__(Keys)
  keys.given = tuple(mapping)
  kind = type(keys.given[0]) if keys.given else str
  if kind is not str and kind is not int:
    return None
  for key in keys.given:
    if type(key) is not kind:
      return None
  keys.ordered = tuple(sorted(keys.given))
  if keys.ordered != keys.given:
    keys.order = sorted(range(len(keys.given)), key=keys.given.__getitem__)
  if at >= 0:
    key_sets[at] = keys
  return keys


cdef dict plain_mapping(object state):
  """The dict in a State; None: the pure function has to look."""
  if type(state) is not upstream.State:
    return None
  attributes = instance_dict(state)
  mapping = attributes.get('_mapping') if type(attributes) is dict else None
  return mapping if type(mapping) is dict else None


cdef list in_order(list values, Keys keys):
  return values if keys.order is None else [values[<Py_ssize_t>i] for i in keys.order]


cdef object state_parts(object state, bint with_keys):
  cdef dict mapping = plain_mapping(state)
  cdef list values
  cdef Keys keys
  if mapping is None:
    return None
  # The values first: `keys_of` allocates, and a finalizer that collection runs may write to the mapping.
  values = PyDict_Values(mapping)
  keys = keys_of(mapping)
  if keys is None or len(values) != len(keys.given):
    return None
  values = in_order(values, keys)
  if not with_keys:
    return values, keys.ordered
  if keys.path_keys is None:
    keys.path_keys = [DictKey(key) for key in keys.ordered]
  return list(zip(keys.path_keys, values)), keys.ordered


cdef object state_flatten(PyObject* f, PyObject** args, size_t nargs, PyObject* names):
  return flattened(state_parts, False, f, args, nargs, names)


cdef object state_flatten_with_keys(PyObject* f, PyObject** args, size_t nargs, PyObject* names):
  return flattened(state_parts, True, f, args, nargs, names)


cdef object state_unflatten(PyObject* f, PyObject** args, size_t nargs, PyObject* names):
  cdef Py_ssize_t i, n
  cdef dict mapping
  if takes(nargs, names, 3):
    keys, leaves = <object>args[1], <object>args[2]
    if <object>args[0] is upstream.State and type(keys) is tuple and type(leaves) is tuple:
      mapping = {}
      n = min(len(<tuple>keys), len(<tuple>leaves))
      for i in range(n):
        key = (<tuple>keys)[i]
        if type(key) is not str and type(key) is not int:
          return pure(f, args, nargs, names)
        mapping[key] = (<tuple>leaves)[i]
      state = object_new(upstream.State)
      PyObject_GenericSetAttr(state, '_mapping', mapping)
      return state
  return pure(f, args, nargs, names)


# ---- Pytrees ----

cdef object pytree_state_flatten(PyObject* f, PyObject** args, size_t nargs, PyObject* names):
  if takes(nargs, names, 1):
    state = <object>args[0]
    if (
      info_of(state).kind is kinds.PYTREE_STATE
      and has_slot(state, kinds.STATE_INITIALIZING) and has_slot(state, kinds.STATE_SETUP)
    ):
      initializing = read(state, kinds.STATE_INITIALIZING, '')
      is_setup = read(state, kinds.STATE_SETUP, '')
      if type(initializing) is bool and type(is_setup) is bool:
        return (), flag_pairs[2 * (initializing is True) + (is_setup is True)]
  return pure(f, args, nargs, names)


cdef object pytree_state_unflatten(PyObject* f, PyObject** args, size_t nargs, PyObject* names):
  if takes(nargs, names, 2):
    flags = <object>args[0]
    if type(flags) is tuple and len(<tuple>flags) == 2 and kinds.PytreeState is not None:
      return new_pytree_state(flags, current_state())
  return pure(f, args, nargs, names)


@cython.final
cdef class Sides:
  """Which attributes of a layout are data, and which are static."""
  cdef list marks               # in walk order: True, False
  cdef tuple data_keys, static_keys
  cdef list path_keys           # of the data
  # By position in the dict: whether it is data, and where it goes on its side.
  cdef bint* is_data
  cdef Py_ssize_t* place

  def __dealloc__(self):
    PyMem_Free(self.is_data)
    PyMem_Free(self.place)


cdef bint marked_so(Sides sides, Layout layout, dict mapping) except -1:
  """Whether `_pytree__nodes` marks the attributes as it did then."""
  cdef PyObject* mark
  cdef Py_ssize_t i
  for i in range(PyTuple_GET_SIZE(layout.names)):
    mark = PyDict_GetItemWithError(mapping, <object>PyTuple_GET_ITEM(layout.names, i))
    if mark is not <PyObject*>sides.marks[i] and (mark is not NULL or sides.marks[i] is True):
      return False
  return True


cdef Sides sides_of(TypeInfo info, Layout layout, dict attributes):
  """None: the pure function has to look."""
  cdef Sides sides
  cdef PyObject* nodes = <PyObject*>info.class_nodes
  if layout.nodes_at >= 0:
    nodes = PyDict_GetItemWithError(attributes, '_pytree__nodes')
  if nodes is NULL or type(<object>nodes) is not upstream.HashableMapping:
    return None
  mapping = (<object>nodes)._mapping
  if type(mapping) is not dict:
    return None
  for sides in layout.sides:
    if marked_so(sides, layout, mapping):
      return sides
  return new_sides(info, layout, attributes)


cdef bint called_so(Layout layout) except -1:
  """Whether each attribute that walks as an int has the name that the int has: '7', not '07'."""
  for walked, name in zip(layout.walked, layout.names):
    if type(walked) is int and str(walked) != name:
      return False
  return True


cdef Sides new_sides(TypeInfo info, Layout layout, dict attributes):
  cdef Sides sides = Sides.__new__(Sides)
  cdef Py_ssize_t i
  cdef Py_ssize_t n = PyTuple_GET_SIZE(layout.keys)
  cdef list data = []
  cdef list static = []
  cdef list values = PyDict_Values(attributes)
  if len(values) != n or not layout.fits(attributes) or not called_so(layout):   # by now
    return None
  sides.marks = marks_of(info, layout, values)
  if sides.marks is None:
    return None
  sides.is_data = <bint*>PyMem_Calloc(n + 1, sizeof(bint))
  sides.place = <Py_ssize_t*>PyMem_Calloc(n + 1, sizeof(Py_ssize_t))
  if not (sides.is_data and sides.place):
    raise MemoryError
  for i in range(n):
    side = data if sides.marks[i] else static
    sides.is_data[<Py_ssize_t>layout.order[i]] = sides.marks[i]
    sides.place[<Py_ssize_t>layout.order[i]] = len(side)
    side.append(layout.walked[i])
  sides.data_keys, sides.static_keys = tuple(data), tuple(static)
  sides.path_keys = [GetAttrKey(key) if type(key) is str else SequenceKey(key) for key in data]
  layout.sides = [sides] + layout.sides[:SIDES_KEPT - 1]
  return sides


cdef bint part(Sides sides, Layout layout, dict attributes, list data, tuple static) noexcept:
  """Puts each attribute to its side, new lists both; False where the dict is another by now."""
  cdef PyObject* key
  cdef PyObject* value
  cdef Py_ssize_t at = 0
  cdef Py_ssize_t i = 0
  if PyDict_Size(attributes) != PyTuple_GET_SIZE(layout.keys):
    return False
  while PyDict_Next(attributes, &at, &key, &value):
    if key is not <PyObject*>PyTuple_GET_ITEM(layout.keys, i):
      return False
    Py_INCREF(<object>value)
    if sides.is_data[i]:
      PyList_SET_ITEM(data, sides.place[i], <object>value)
    else:
      PyTuple_SET_ITEM(static, sides.place[i], <object>value)
    i += 1
  return True


cdef object pytree_parts(object node, bint with_keys):
  cdef TypeInfo info = info_of(node)
  cdef Layout layout
  cdef Sides sides
  cdef list data
  cdef tuple static
  if info.kind is not kinds.GRAPH or not info.is_pytree:
    return None
  attributes = instance_dict(node)
  if type(attributes) is not dict:
    return None
  layout = info.layout_of(attributes)
  sides = sides_of(info, layout, attributes) if layout.standard and layout.distinct else None
  if sides is None:
    return None
  data = PyList_New(PyTuple_GET_SIZE(sides.data_keys))
  static = PyTuple_New(PyTuple_GET_SIZE(sides.static_keys))
  if not part(sides, layout, attributes, data, static):
    return None
  return list(zip(sides.path_keys, data)) if with_keys else data, (
    sides.data_keys, sides.static_keys, static
  )


cdef object pytree_flatten(PyObject* f, PyObject** args, size_t nargs, PyObject* names):
  return flattened(pytree_parts, False, f, args, nargs, names)


cdef object pytree_flatten_with_keys(PyObject* f, PyObject** args, size_t nargs, PyObject* names):
  return flattened(pytree_parts, True, f, args, nargs, names)


cdef bint named(object keys, object values) except -1:
  """Whether these are tuples of one length, the keys strings and ints."""
  if type(keys) is not tuple or type(values) is not tuple or len(<tuple>keys) != len(<tuple>values):
    return False
  for key in <tuple>keys:
    if type(key) is not str and type(key) is not int:
      return False
  return True


cdef int set_all(object node, tuple keys, tuple values) except -1:
  """As `object.__setattr__` does."""
  cdef Py_ssize_t i
  for i in range(len(keys)):
    key = keys[i]
    PyObject_GenericSetAttr(node, key if type(key) is str else str(key), values[i])
  return 0


cdef object pytree_unflatten(PyObject* f, PyObject** args, size_t nargs, PyObject* names):
  if takes(nargs, names, 3):
    cls, parts, children = <object>args[0], <object>args[1], <object>args[2]
    if type(parts) is tuple and len(<tuple>parts) == 3 and isinstance(cls, type):
      keys, static_keys, static = <tuple>parts
      if info_of_type(cls).kind is kinds.GRAPH and named(keys, children) and named(static_keys, static):
        node = object_new(cls)
        set_all(node, keys, children)
        set_all(node, static_keys, static)
        return node
  return pure(f, args, nargs, names)


def install(variablelib: dict, statelib: dict, pytreelib: dict) -> None:
  """Steps in for the functions that upstream registered with jax."""
  global RAW_VALUE, METADATA
  RAW_VALUE = offset_of(upstream.Variable, '_raw_value')
  METADATA = offset_of(upstream.Variable, '_var_metadata')
  Pytree = vars(pytreelib['Pytree'])
  step_in(variablelib['_variable_flatten'], variable_flatten)
  step_in(variablelib['_variable_flatten_with_keys'], variable_flatten_with_keys)
  step_in(variablelib['_variable_unflatten'], variable_unflatten)
  step_in(statelib['_state_flatten'], state_flatten)
  step_in(statelib['_state_flatten_with_keys'], state_flatten_with_keys)
  step_in(statelib['_state_unflatten'], state_unflatten)
  step_in(pytreelib['_flatten_pytree_state'], pytree_state_flatten)
  step_in(pytreelib['_unflatten_pytree_state'], pytree_state_unflatten)
  step_in(Pytree['_pytree__flatten'], pytree_flatten)
  step_in(Pytree['_pytree__flatten_with_paths'], pytree_flatten_with_keys)
  step_in(Pytree['_pytree__unflatten'].__func__, pytree_unflatten)
