"""The typed graph types: construction without `__init__`, equality, hashing, outer indices.

Equality is the one place where what a Python release does to a dataclass shows through: up to 3.12
its `==` compares tuples of the fields, which pass a value that is identical to itself unasked; from
3.13 on it compares field by field and always asks.
"""
import sys

import jax
import numpy as np

from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport Py_EQ, PyObject_IsTrue, PyObject_RichCompare
from cpython.object cimport PyTypeObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE

from flax.nnx.fast cimport upstream
from flax.nnx.fast.children cimport same_values
from flax.nnx.fast.rebuild import rebuild_dataclass
from flax.nnx.fast.slots cimport Py_TYPE, blank, fill, has_slot, offset_of, read, store, version_of

cdef extern from "Python.h":
  PyTypeObject PyBaseObject_Type
  PyTypeObject PyTuple_Type

cdef bint ASKS_IDENTICAL = sys.version_info >= (3, 13)
cdef object SCALAR_META = type(jax.numpy.float32)
cdef object TREEDEF = jax.tree_util.PyTreeDef
cdef tuple BUILTIN_VALUES = (int, str, bool, type(None), bytes)
cdef tuple STABLE_VALUES = (*BUILTIN_VALUES, float, complex, type(...), np.dtype)

cdef Py_ssize_t GRAPH_NODES, GRAPH_ATTRIBUTES, GRAPH_LEAVES, GRAPH_HASH
cdef Py_ssize_t ARRAY_INDEX, ARRAY_OUTER
cdef Py_ssize_t[1] REF_FIELDS
cdef Py_ssize_t[5] VAR_FIELDS
cdef Py_ssize_t[2] ARRAY_FIELDS
cdef Py_ssize_t[5] NODE_FIELDS
cdef Py_ssize_t[3] GRAPH_FIELDS

cdef tuple NODE_NAMES = ('type', 'index', 'outer_index', 'num_attributes', 'metadata')
cdef tuple VAR_NAMES = ('type', 'index', 'outer_index', 'metadata', 'array_refdef')
cdef tuple ARRAY_NAMES = ('index', 'outer_index')
cdef tuple REF_NAMES = ('index',)
cdef tuple GRAPH_NAMES = ('nodes', 'attributes', 'num_leaves')


# ---- construction ----

cdef object new_node_ref(object index):
  ref = blank(NodeRef)
  fill(ref, REF_INDEX, index)
  return ref


cdef object new_node_def(object cls, object index, object outer_index, object size, object metadata):
  node = blank(NodeDef)
  fill(node, NODE_TYPE, cls)
  fill(node, NODE_INDEX, index)
  fill(node, NODE_OUTER, outer_index)
  fill(node, NODE_SIZE, size)
  fill(node, NODE_METADATA, metadata)
  return node


cdef object new_variable_def(
  object cls, object index, object outer_index, object metadata, object array_refdef
):
  variable = blank(VariableDef)
  fill(variable, VAR_TYPE, cls)
  fill(variable, VAR_INDEX, index)
  fill(variable, VAR_OUTER, outer_index)
  fill(variable, VAR_METADATA, metadata)
  fill(variable, VAR_ARRAY_REF, array_refdef)
  return variable


cdef object new_array_refdef(object index, object outer_index):
  array_ref = blank(ArrayRefDef)
  fill(array_ref, ARRAY_INDEX, index)
  fill(array_ref, ARRAY_OUTER, outer_index)
  return array_ref


cdef object new_graph_def(object nodes, object attributes, object num_leaves):
  graphdef = blank(GraphDef)
  fill(graphdef, GRAPH_NODES, nodes)
  fill(graphdef, GRAPH_ATTRIBUTES, attributes)
  fill(graphdef, GRAPH_LEAVES, num_leaves)
  return graphdef


cdef object new_static(object value):
  static = blank(upstream.Static)
  fill(static, STATIC_VALUE, value)
  return static


# ---- equality ----

cdef bint reflexive(object value) noexcept:
  """Whether `value == value` is True for sure, without asking it."""
  cdef PyTypeObject* cls = Py_TYPE(value)
  return (
    cls.tp_richcompare is PyBaseObject_Type.tp_richcompare
    or <type>cls in BUILTIN_VALUES
    or <type>cls is upstream.HashableMapping
  )


cdef object equal(object a, object b):
  """What `a == b` gives."""
  if a is b and reflexive(a):
    return True
  return PyObject_RichCompare(a, b, Py_EQ)


cdef bint same(object a, object b) except -1:
  """Whether a container that holds `a` counts it as equal to `b`: identity first, then `==`."""
  if a is b:
    return True
  answer = PyObject_RichCompare(a, b, Py_EQ)
  return answer if type(answer) is bool else PyObject_IsTrue(answer)


cdef object slot_equal(object a, object b, Py_ssize_t offset, str name):
  """How a dataclass of this Python compares one field of two instances of its own class."""
  x, y = read(a, offset, name), read(b, offset, name)
  return equal(x, y) if ASKS_IDENTICAL else same(x, y)


cdef list slots(object a, Py_ssize_t* offsets, tuple names):
  cdef list values = []
  cdef Py_ssize_t i
  for i in range(len(names)):
    values.append(read(a, offsets[i], names[i]))
  return values


cdef bint tuples_equal(object a, object b, Py_ssize_t* offsets, tuple names) except -1:
  """All fields are read before the first is compared, which can run code that takes one away."""
  cdef list xs = slots(a, offsets, names)
  cdef list ys = slots(b, offsets, names)
  for x, y in zip(xs, ys):
    if not (lists_equal(x, y) if type(x) is list and type(y) is list else same(x, y)):
      return False
  return True


cdef object slots_equal(object a, object b, Py_ssize_t* offsets, tuple names):
  """The terms joined by `and`: the last one is the answer as it is."""
  if not ASKS_IDENTICAL:
    return tuples_equal(a, b, offsets, names)
  cdef Py_ssize_t i
  cdef Py_ssize_t last = len(names) - 1
  for i in range(last):
    answer = slot_equal(a, b, offsets[i], names[i])
    if answer is not True and not answer:
      return answer
  return slot_equal(a, b, offsets[last], names[last])


cdef bint items_same(object a, object b) except -1:
  """`same`, without a Python call for what the lists of a GraphDef are made of."""
  if a is b:
    return True
  if Py_TYPE(a) is Py_TYPE(b):
    if type(a) is NodeDef:
      return bool(slots_equal(a, b, NODE_FIELDS, NODE_NAMES))
    if type(a) is VariableDef:
      return bool(slots_equal(a, b, VAR_FIELDS, VAR_NAMES))
    if type(a) is tuple and len(<tuple>a) == 2 and len(<tuple>b) == 2:
      return same((<tuple>a)[0], (<tuple>b)[0]) and kinds_same((<tuple>a)[1], (<tuple>b)[1])
  return same(a, b)


cdef bint kinds_same(object a, object b) except -1:
  if a is b:
    return True
  if type(a) is upstream.Static and type(b) is upstream.Static:
    return bool(slot_equal(a, b, STATIC_VALUE, 'value'))
  return same(a, b)


cdef bint lists_equal(list a, list b) except -1:
  """`a == b`; both may change under a comparison, so their lengths are read again each time."""
  cdef Py_ssize_t i = 0
  if PyList_GET_SIZE(a) != PyList_GET_SIZE(b):
    return False
  while i < PyList_GET_SIZE(a) and i < PyList_GET_SIZE(b):
    x, y = a[i], b[i]
    if not items_same(x, y):
      return False
    i += 1
  return PyList_GET_SIZE(a) == PyList_GET_SIZE(b)


cdef object list_fields_equal(object a, object b, Py_ssize_t offset, str name):
  x, y = read(a, offset, name), read(b, offset, name)
  if type(x) is list and type(y) is list:
    return lists_equal(x, y)
  return equal(x, y)


cdef object graphs_equal(object a, object b):
  if not ASKS_IDENTICAL:
    return tuples_equal(a, b, GRAPH_FIELDS, GRAPH_NAMES)
  answer = list_fields_equal(a, b, GRAPH_NODES, 'nodes')
  if answer is not True and not answer:
    return answer
  answer = list_fields_equal(a, b, GRAPH_ATTRIBUTES, 'attributes')
  if answer is not True and not answer:
    return answer
  return slot_equal(a, b, GRAPH_LEAVES, 'num_leaves')


cdef bint node_same_objects(object a, object b) except -1:
  if type(a) is not type(b):
    return False
  if type(a) is NodeRef:
    return a.index == b.index
  if type(a) is NodeDef:
    return (
      a.type is b.type and a.index == b.index and a.outer_index == b.outer_index
      and a.num_attributes == b.num_attributes and a.metadata is b.metadata
    )
  return (
    type(a) is VariableDef and a.type is b.type and a.index == b.index
    and a.outer_index == b.outer_index and a.array_refdef is None and b.array_refdef is None
    and type(a.metadata) is upstream.HashableMapping and type(b.metadata) is upstream.HashableMapping
    and same_values(a.metadata._mapping, b.metadata._mapping)
  )


cdef bint same_objects(object a, object b) except -1:
  """Whether two GraphDefs are equal and their statics and metadata are the same objects too."""
  if a is b:
    return True
  if len(a.nodes) != len(b.nodes) or len(a.attributes) != len(b.attributes):
    return False
  for x, y in zip(a.nodes, b.nodes):
    if not node_same_objects(x, y):
      return False
  for (x_key, x), (y_key, y) in zip(a.attributes, b.attributes):
    if x_key is not y_key or type(x) is not type(y):
      return False
    if x is not y and not (type(x) is upstream.Static and x.value is y.value):
      return False
  return a.num_leaves == b.num_leaves


cdef object dataclass_equal(object self, object other, object cls, Py_ssize_t* offsets, tuple names):
  """`==` of two instances of `cls` or a subclass."""
  if ASKS_IDENTICAL and self is other:
    return True
  if type(self) is cls and type(other) is cls:
    return graphs_equal(self, other) if cls is GraphDef else slots_equal(self, other, offsets, names)
  if other.__class__ is not self.__class__:
    return NotImplemented
  return attributes_equal(self, other, names)


cdef object attributes_equal(object self, object other, tuple fields):
  """The same by attribute access, for subclasses."""
  if not ASKS_IDENTICAL:
    return tuple([getattr(self, name) for name in fields]) == tuple(
      [getattr(other, name) for name in fields]
    )
  for name in fields[:len(fields) - 1]:
    answer = getattr(self, name) == getattr(other, name)
    if not answer:
      return answer
  return getattr(self, fields[len(fields) - 1]) == getattr(other, fields[len(fields) - 1])


# ---- hashing ----

cdef class Stability:
  """Whether a hash can be kept: everything it depends on is known to be immutable.

  An object that hashes by identity does so until its class is given another `__hash__`, so the
  versions of such classes are noted, and asked for again whenever the hash is.
  """
  cdef list classes, versions

  cdef bint value(self, object value, int depth) except -1:
    cdef PyTypeObject* cls = Py_TYPE(value)
    if <object>cls in STABLE_VALUES:
      return True
    if cls.tp_hash is PyBaseObject_Type.tp_hash:
      return self.note(<object>cls)
    if depth > 8:
      return False
    if cls.tp_hash is PyTuple_Type.tp_hash and isinstance(value, tuple):
      return self.note(<object>cls) and self.values(<tuple>value, depth + 1)
    if <object>cls is upstream.HashableMapping:
      return type(value._mapping) is dict and self.values(list(value._mapping.values()), depth + 1)
    return isinstance(value, (SCALAR_META, TREEDEF, np.dtype))

  cdef bint values(self, object values, int depth) except -1:
    for value in values:
      if not self.value(value, depth):
        return False
    return True

  cdef bint note(self, object cls) except -1:
    cdef unsigned int version = version_of(cls)
    if cls not in self.classes:
      self.classes.append(cls)
      self.versions.append(version)
    return version != 0

  cdef bint node(self, object node) except -1:
    if type(node) is NodeDef or type(node) is VariableDef:
      return self.value(node.type, 0) and self.value(node.metadata, 0)
    return type(node) is NodeRef or type(node) is ArrayRefDef

  cdef bint attribute(self, object attribute) except -1:
    if type(attribute) is not tuple or len(attribute) != 2:
      return False
    key, kind = attribute
    if type(kind) is upstream.Static:
      return self.value(key, 0) and self.value(kind.value, 0)
    return self.value(key, 0) and (kind is upstream.NODE_ATTR or kind is upstream.LEAF_ATTR)

  cdef bint graph(self, object nodes, object attributes) except -1:
    if type(nodes) is not list or type(attributes) is not list:
      return False
    return all([self.node(node) for node in nodes]) and all(
      [self.attribute(attribute) for attribute in attributes]
    )


cdef bint unchanged(list classes, list versions) except -1:
  for cls, version in zip(classes, versions):
    if version_of(cls) != <unsigned int>version:
      return False
  return True


cdef bint holds(object items, tuple kept) noexcept:
  """Whether a list still holds the very objects that it held."""
  cdef Py_ssize_t i
  if type(items) is not list or PyList_GET_SIZE(items) != PyTuple_GET_SIZE(kept):
    return False
  for i in range(PyTuple_GET_SIZE(kept)):
    if PyList_GET_ITEM(items, i) is not PyTuple_GET_ITEM(kept, i):
      return False
  return True


# ---- methods: each takes the name, signature and docstring of the pure one ----

def node_ref_eq(self, other):
  return dataclass_equal(self, other, NodeRef, REF_FIELDS, REF_NAMES)


def array_refdef_eq(self, other):
  return dataclass_equal(self, other, ArrayRefDef, ARRAY_FIELDS, ARRAY_NAMES)


def variable_def_eq(self, other):
  return dataclass_equal(self, other, VariableDef, VAR_FIELDS, VAR_NAMES)


def node_def_eq(self, other):
  return dataclass_equal(self, other, NodeDef, NODE_FIELDS, NODE_NAMES)


def graph_def_eq(self, other):
  return dataclass_equal(self, other, GraphDef, GRAPH_FIELDS, GRAPH_NAMES)


def node_ref_hash(self):
  return hash((self.index,))


def array_refdef_hash(self):
  return hash((self.index, self.outer_index))


def variable_def_hash(self):
  return hash((self.type, self.index, self.outer_index, self.metadata, self.array_refdef))


def node_def_hash(self):
  return hash((self.type, self.index, self.outer_index, self.num_attributes, self.metadata))


def graph_def_hash(self):
  nodes, attributes = self.nodes, self.attributes
  if type(self) is GraphDef and has_slot(self, GRAPH_HASH):
    kept, contents, classes, versions = read(self, GRAPH_HASH, '_hash')
    if holds(nodes, contents[0]) and holds(attributes, contents[1]) and unchanged(classes, versions):
      return kept
  contents = tuple(nodes), tuple(attributes)
  value = hash(contents)
  cdef Stability stability = Stability.__new__(Stability)
  stability.classes, stability.versions = [], []
  if type(self) is GraphDef and stability.graph(nodes, attributes):
    store(self, GRAPH_HASH, (value, contents, stability.classes, stability.versions))
  return value


cdef object outer_of(object array_refdef, str method, object other):
  """The array reference that a Variable holds, with its outer index changed by `method`."""
  if not isinstance(array_refdef, ArrayRefDef):
    return array_refdef
  if other is None:
    return getattr(array_refdef, method)()
  return getattr(array_refdef, method)(other.array_refdef)


def array_refdef_no_outer(self):
  return new_array_refdef(self.index, None)


def array_refdef_same_outer(self):
  index = self.index
  return new_array_refdef(index, index)


def array_refdef_matching_outer(self, other):
  return new_array_refdef(self.index, other.outer_index)


def variable_def_no_outer(self):
  array_refdef = outer_of(self.array_refdef, 'with_no_outer_index', None)
  return new_variable_def(self.type, self.index, None, self.metadata, array_refdef)


def variable_def_same_outer(self):
  index = self.index
  array_refdef = outer_of(self.array_refdef, 'with_same_outer_index', None)
  return new_variable_def(self.type, index, index, self.metadata, array_refdef)


def variable_def_matching_outer(self, other):
  outer_index = other.outer_index
  array_refdef = outer_of(self.array_refdef, 'with_matching_outer_index', other)
  return new_variable_def(self.type, self.index, outer_index, self.metadata, array_refdef)


def node_def_no_outer(self):
  return new_node_def(self.type, self.index, None, self.num_attributes, self.metadata)


def node_def_same_outer(self):
  index = self.index
  return new_node_def(self.type, index, index, self.num_attributes, self.metadata)


def node_def_matching_outer(self, other):
  return new_node_def(
    self.type, self.index, other.outer_index, self.num_attributes, self.metadata
  )


def graph_def_no_outer(self):
  nodes = []
  for node in self.nodes:
    nodes.append(node if isinstance(node, NodeRef) else node.with_no_outer_index())
  return new_graph_def(nodes, self.attributes, self.num_leaves)


def graph_def_same_outer(self):
  nodes = []
  for node in self.nodes:
    nodes.append(node if isinstance(node, NodeRef) else node.with_same_outer_index())
  return new_graph_def(nodes, self.attributes, self.num_leaves)


def graph_def_matching_outer(self, other):
  nodes = []
  for node, pattern in zip(self.nodes, other.nodes):
    nodes.append(
      node if isinstance(node, NodeRef) else node.with_matching_outer_index(pattern)
    )
  return new_graph_def(nodes, self.attributes, self.num_leaves)


cdef dict outer_methods(no, same_, matching):
  return {
    'with_no_outer_index': no,
    'with_same_outer_index': same_,
    'with_matching_outer_index': matching,
  }


cdef int read_offsets(object cls, tuple names, Py_ssize_t* offsets) except -1:
  for i, name in enumerate(names):
    offsets[i] = offset_of(cls, name)
  return 0


def install(graphlib: dict) -> None:
  """Puts the typed classes in the place of the pure ones in graphlib's namespace."""
  global NodeRef, VariableDef, ArrayRefDef, NodeDef, GraphDef
  global REF_INDEX, VAR_TYPE, VAR_INDEX, VAR_OUTER, VAR_METADATA, VAR_ARRAY_REF
  global NODE_TYPE, NODE_INDEX, NODE_OUTER, NODE_SIZE, NODE_METADATA
  global GRAPH_NODES, GRAPH_ATTRIBUTES, GRAPH_LEAVES, GRAPH_HASH, ARRAY_INDEX, ARRAY_OUTER
  global STATIC_VALUE
  NodeRef = rebuild_dataclass(
    graphlib['NodeRef'], {'__eq__': node_ref_eq, '__hash__': node_ref_hash})
  ArrayRefDef = rebuild_dataclass(graphlib['ArrayRefDef'], {
    '__eq__': array_refdef_eq, '__hash__': array_refdef_hash,
    **outer_methods(array_refdef_no_outer, array_refdef_same_outer, array_refdef_matching_outer)})
  VariableDef = rebuild_dataclass(graphlib['VariableDef'], {
    '__eq__': variable_def_eq, '__hash__': variable_def_hash,
    **outer_methods(variable_def_no_outer, variable_def_same_outer, variable_def_matching_outer)})
  NodeDef = rebuild_dataclass(graphlib['NodeDef'], {
    '__eq__': node_def_eq, '__hash__': node_def_hash,
    **outer_methods(node_def_no_outer, node_def_same_outer, node_def_matching_outer)})
  GraphDef = rebuild_dataclass(graphlib['GraphDef'], {
    '__eq__': graph_def_eq, '__hash__': graph_def_hash,
    **outer_methods(graph_def_no_outer, graph_def_same_outer, graph_def_matching_outer)},
    ('_hash',))
  for cls in (NodeRef, NodeDef, GraphDef):
    jax.tree_util.register_static(cls)
  for cls in (NodeRef, VariableDef, ArrayRefDef, NodeDef, GraphDef):
    graphlib[cls.__name__] = cls
  read_offsets(NodeRef, REF_NAMES, REF_FIELDS)
  read_offsets(VariableDef, VAR_NAMES, VAR_FIELDS)
  read_offsets(ArrayRefDef, ARRAY_NAMES, ARRAY_FIELDS)
  read_offsets(NodeDef, NODE_NAMES, NODE_FIELDS)
  read_offsets(GraphDef, GRAPH_NAMES, GRAPH_FIELDS)
  GRAPH_HASH = offset_of(GraphDef, '_hash')
  STATIC_VALUE = offset_of(upstream.Static, 'value')
  (REF_INDEX,) = REF_FIELDS
  VAR_TYPE, VAR_INDEX, VAR_OUTER, VAR_METADATA, VAR_ARRAY_REF = VAR_FIELDS
  ARRAY_INDEX, ARRAY_OUTER = ARRAY_FIELDS
  NODE_TYPE, NODE_INDEX, NODE_OUTER, NODE_SIZE, NODE_METADATA = NODE_FIELDS
  GRAPH_NODES, GRAPH_ATTRIBUTES, GRAPH_LEAVES = GRAPH_FIELDS
