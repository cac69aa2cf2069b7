"""What lies directly under a node, for every walk that only looks."""
from cpython.dict cimport PyDict_GetItemWithError, PyDict_Items, PyDict_Next, PyDict_Size
from cpython.dict cimport PyDict_Values
from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_New, PyTuple_SET_ITEM

from flax.nnx.fast cimport kinds, upstream
from flax.nnx.fast.kinds cimport Layout, TypeInfo, instance_dict, marks_of


cdef bint same_items(dict a, dict b) noexcept:
  cdef PyObject* a_key
  cdef PyObject* b_key
  cdef PyObject* a_value
  cdef PyObject* b_value
  cdef Py_ssize_t a_at = 0
  cdef Py_ssize_t b_at = 0
  if PyDict_Size(a) != PyDict_Size(b):
    return False
  while PyDict_Next(a, &a_at, &a_key, &a_value):
    if not PyDict_Next(b, &b_at, &b_key, &b_value):
      return False
    if a_key is not b_key or a_value is not b_value:
      return False
  return True


cdef bint same_values(dict a, dict b) except -1:
  """For dicts of exact strings, whose look-up runs no Python; False for others."""
  cdef PyObject* key
  cdef PyObject* value
  cdef Py_ssize_t at = 0
  if same_items(a, b):
    return True
  if PyDict_Size(a) != PyDict_Size(b):
    return False
  while PyDict_Next(a, &at, &key, &value):
    if type(<object>key) is not str or PyDict_GetItemWithError(b, <object>key) is not value:
      return False
  return True


cdef list sorted_items(dict mapping):
  cdef list items = PyDict_Items(mapping)
  cdef object cls
  if not items:
    return items
  cls = type(items[0][0])
  if cls is not str and cls is not int:
    return None
  for item in items:
    if type((<tuple>item)[0]) is not cls:
      return None
  items.sort()   # keys differ, so no comparison reaches the values
  return items


cdef object state_mapping(object state):
  mapping = getattr(state, '_mapping', None) if type(state) is upstream.State else None
  return mapping if type(mapping) is dict else None


cdef list column(object rows, Py_ssize_t i):
  cdef list values = []
  for row in rows:
    values.append((<tuple?>row)[i])
  return values


cdef list picked(object values, list order):
  """`values` is a list or tuple that is long enough."""
  cdef list chosen = []
  for i in order:
    chosen.append(
      (<list>values)[<Py_ssize_t>i] if type(values) is list else (<tuple>values)[<Py_ssize_t>i]
    )
  return chosen


cdef tuple longer(tuple path, object key):
  cdef Py_ssize_t i
  cdef Py_ssize_t n = PyTuple_GET_SIZE(path)
  result = PyTuple_New(n + 1)
  for i in range(n):
    item = <object>PyTuple_GET_ITEM(path, i)
    Py_INCREF(item)
    PyTuple_SET_ITEM(result, i, item)
  Py_INCREF(key)
  PyTuple_SET_ITEM(result, n, key)
  return result


cdef class Children:
  cdef object find(self, object key, object default):
    """Takes one step where keys are asked for in their order, as those of a state are."""
    cdef Py_ssize_t n = PyList_GET_SIZE(self.values)
    while self.by_key is None and self.at < n:
      self.at += 1
      if self.keys[self.at - 1] == key:
        return self.values[self.at - 1]
    if self.by_key is None:
      self.by_key = dict(zip(self.keys, self.values))
    return self.by_key.get(key, default)


cdef Children new_children(object keys, list values):
  cdef Children children = Children.__new__(Children)
  cdef Py_ssize_t i
  for i in range(len(values)):   # a value wrapped in a mark is shown without it
    if type(values[i]) is upstream.DataElem or type(values[i]) is upstream.StaticElem:
      values[i] = values[i].value
  children.keys, children.values = keys, values
  return children


cdef Children marked_children(object keys, list values):
  cdef Children children = Children.__new__(Children)
  children.keys, children.values = keys, values
  return children


cdef Children graph_children(object node, TypeInfo info):
  attributes = instance_dict(node)
  if type(attributes) is not dict:
    return None
  cdef Layout layout = info.layout_of(attributes)
  cdef list values = PyDict_Values(attributes)
  if not (layout.standard and layout.distinct and layout.fits(attributes)):
    return None
  if marks_of(info, layout, values) is None:   # asking for marks is part of upstream's look
    return None
  values = picked(values, layout.order)
  if info.is_pytree:
    return marked_children(layout.walked, values)
  return new_children(layout.walked, values)


cdef Children mapping_children(object mapping):
  cdef list items = None if type(mapping) is not dict else sorted_items(mapping)
  if items is None:
    return None
  return new_children(column(items, 0), column(items, 1))


cdef Children named_tuple_children(object node, TypeInfo info):
  if len(<tuple>node) != len(info.keys):
    return None
  return new_children(info.keys, picked(node, info.order))


cdef Children children_of(object node, TypeInfo info):
  cdef kinds.Kind kind = info.kind
  if kind is kinds.GRAPH:
    return graph_children(node, info)
  if kind is kinds.LIST or kind is kinds.TUPLE:
    return new_children(range(len(node)), list(node))
  if kind is kinds.DICT:
    return mapping_children(node)
  if kind is kinds.STATE:
    return mapping_children(state_mapping(node))
  if kind is kinds.NAMED_TUPLE:
    return named_tuple_children(node, info)
  if kind is kinds.NONE or kind is kinds.PYTREE_STATE:
    return new_children((), [])
  return None
