"""The compiled walk from objects to a graph definition and its leaves.

`graph_flatten` stands where the pure `_graph_flatten` stood: the pure `flatten` calls it with the
lists to fill. It walks the kinds of node that it recognises. Any other node it hands to the pure
function with the very same lists, and that comes back here for the node's children. So an error is
raised by the pure twin, and a fallback costs one node.
"""
cimport cython
from cpython.dict cimport PyDict_Values
from cpython.list cimport PyList_AsTuple
from cpython.object cimport PyObject

from flax.nnx.fast cimport kinds, upstream
from flax.nnx.fast.children cimport sorted_items, state_mapping
from flax.nnx.fast.fallbacks cimport count
from flax.nnx.fast.graphtypes cimport STATIC_VALUE
from flax.nnx.fast.graphtypes cimport new_node_def, new_node_ref, new_static, new_variable_def
from flax.nnx.fast.kinds cimport DEEPEST, Layout, TypeInfo, info_of, instance_dict, marks_of, no_ref
from flax.nnx.fast.kinds cimport pytree_state_metadata
from flax.nnx.fast.refs cimport MISSING, RefMap, RefTable, has_table, table_of
from flax.nnx.fast.slots cimport has_slot, offset_of, read, slot
from flax.nnx.fast.variables cimport Mappings

cdef object pure_flatten          # the pure function; it comes back here for children
cdef object pure_flatten_whole    # the same, all the way down in Python
cdef Py_ssize_t RAW_VALUE, METADATA
cdef object NONE_TYPE = type(None)


@cython.final
cdef class Flattener:
  """One walk: what it fills, and what it has met."""
  cdef RefTable refs          # node or Variable -> index
  cdef RefTable outer         # the same objects -> outer index; None where there are none
  cdef object ref_index, ref_outer_index
  cdef list path, nodes, attributes, leaves, paths
  cdef Mappings mappings
  cdef dict shared            # Layout -> the (key, attribute) pairs of the last node that had it

  cdef int visit(self, object node, TypeInfo info, int depth) except -1:
    """Appends what `node` flattens to; `depth` counts the levels above it."""
    cdef kinds.Kind kind = info.kind
    if depth > DEEPEST:
      return self.hand_over(node, info.cls, 'nested deeper than the compiled walk goes', depth)
    if kind is kinds.VARIABLE:
      return self.variable(node, info)
    if kind is kinds.GRAPH:
      return self.graph_node(node, info, depth)
    if kind is kinds.PYTREE_STATE:
      return self.pytree_state(node, info)
    if kind is kinds.LIST:
      return self.sequence(list(<list>node), info, depth)
    if kind is kinds.TUPLE:
      return self.sequence(list(<tuple>node), info, depth)
    if kind is kinds.DICT:
      return self.mapping(node, node, info, depth)
    if kind is kinds.STATE:
      return self.mapping(node, state_mapping(node), info, depth)
    if kind is kinds.NAMED_TUPLE:
      return self.named_tuple(node, info, depth)
    if kind is kinds.NONE:
      self.nodes.append(new_node_def(NONE_TYPE, None, None, 0, None))
      return 0
    if kind is kinds.OTHER or kind is kinds.STRANGER:
      return self.hand_over(node, type(node), info.why, depth)
    return 0 if self.met(node) else self.leaf(node)

  cdef int hand_over(self, object node, object cls, str why, int depth) except -1:
    count('flatten', cls, why)
    walk = pure_flatten_whole if depth > DEEPEST else pure_flatten
    walk(
      node, upstream.get_node_impl(node), self.path, self.ref_index, self.ref_outer_index,
      self.nodes, self.attributes, self.leaves, self.paths,
    )
    return 0

  cdef bint met(self, object node) except -1:
    """Whether the walk has met `node`; if so, appends the reference to it."""
    index = self.refs.find(node)
    if index is MISSING:
      return False
    self.nodes.append(new_node_ref(index))
    return True

  cdef object outer_index(self, object node):
    if self.outer is None:
      return None
    index = self.outer.find(node)
    return None if index is MISSING else index

  cdef int leaf(self, object value) except -1:
    self.leaves.append(value)
    if self.path is not None:
      self.paths.append(PyList_AsTuple(self.path))
    return 0

  cdef int variable(self, object node, TypeInfo info) except -1:
    if self.met(node):
      return 0
    if not (has_slot(node, RAW_VALUE) and has_slot(node, METADATA)):
      return self.hand_over(node, info.cls, 'a Variable that was never given a value', 0)
    value, metadata = read(node, RAW_VALUE, ''), read(node, METADATA, '')
    if type(metadata) is not dict:
      return self.hand_over(node, info.cls, 'its metadata is not a dict', 0)
    if not no_ref(value):
      return self.hand_over(node, info.cls, 'it holds an array reference', 0)
    index = self.refs.size()
    self.refs.insert(node, index)
    definition = new_variable_def(
      info.cls, index, self.outer_index(node), self.mappings.of(metadata), None
    )
    self.leaf(value if self.path is None else node)
    self.nodes.append(definition)
    return 0

  cdef int graph_node(self, object node, TypeInfo info, int depth) except -1:
    if self.met(node):
      return 0
    attributes = instance_dict(node)
    if type(attributes) is not dict:
      return self.hand_over(node, info.cls, 'its __dict__ is of a subclass', depth)
    cdef Layout layout = info.layout_of(attributes)
    cdef list values = PyDict_Values(attributes)
    if not layout.standard or not layout.fits(attributes):
      return self.hand_over(node, info.cls, 'its __dict__ has unusual keys', depth)
    cdef list marks = marks_of(info, layout, values)
    if marks is None:
      return self.hand_over(node, info.cls, 'its _pytree__nodes is not the standard mapping', depth)
    index = self.refs.size()
    self.refs.insert(node, index)
    self.nodes.append(
      new_node_def(info.cls, index, self.outer_index(node), len(values), info.cls)
    )
    return self.graph_children(layout, values, marks, depth)

  cdef int graph_children(self, Layout layout, list values, list marks, int depth) except -1:
    cdef list pairs = self.shared.get(layout)
    cdef Py_ssize_t i
    cdef Py_ssize_t n = len(values)
    if pairs is None:
      pairs = [None] * n
      self.shared[layout] = pairs
    for i in range(n):
      value = values[<Py_ssize_t>layout.order[i]]
      if marks[i] is True:
        self.child(layout.walked[i], value, True, pairs, i, depth)
      elif marks[i] is False:
        self.static(layout.walked[i], value, pairs, i)
      else:
        self.unmarked(layout.walked[i], value, pairs, i, depth)
    return 0

  cdef int unmarked(
    self, object key, object value, list pairs, Py_ssize_t i, int depth
  ) except -1:
    """An attribute or item that nothing marks, unless it is wrapped in a mark of its own."""
    if type(value) is upstream.StaticElem:
      return self.static(key, value.value, pairs, i)
    if type(value) is upstream.DataElem:
      return self.child(key, value.value, True, pairs, i, depth)
    return self.child(key, value, False, pairs, i, depth)

  cdef int child(
    self, object key, object value, bint is_data, list pairs, Py_ssize_t i, int depth
  ) except -1:
    """One attribute or item; `pairs[i]` is the same one of the last node that had this layout."""
    cdef TypeInfo info = info_of(value)
    if self.path is not None:
      self.path.append(key)
    if info.kind is kinds.ARRAY or (info.kind is kinds.PLAIN and is_data):
      self.attribute(key, upstream.LEAF_ATTR, pairs, i)
      self.leaf(value)
    elif info.kind is kinds.PLAIN:
      self.static(key, value, pairs, i)
    elif info.kind is not kinds.OTHER and info.kind is not kinds.STRANGER:
      self.attribute(key, upstream.NODE_ATTR, pairs, i)
      self.visit(value, info, depth + 1)
    else:
      self.other_child(key, value, is_data, info, pairs, i, depth)
    if self.path is not None:
      self.path.pop()
    return 0

  cdef int other_child(
    self, object key, object value, bint is_data, TypeInfo info, list pairs, Py_ssize_t i, int depth
  ) except -1:
    """The pure twin's questions, in its order, for a type that no walk of ours knows."""
    if (info.kind is kinds.OTHER and (
      upstream.get_node_impl(value) is not None or isinstance(value, upstream.Variable)
    )) or upstream.is_array_ref(value):
      self.attribute(key, upstream.NODE_ATTR, pairs, i)
      return self.visit(value, info, depth + 1)
    if isinstance(value, upstream.array_types) or is_data:
      self.attribute(key, upstream.LEAF_ATTR, pairs, i)
      return self.leaf(value)
    return self.static(key, value, pairs, i)

  cdef int attribute(self, object key, object kind, list pairs, Py_ssize_t i) except -1:
    old = pairs[i]
    if old is None or (<tuple>old)[1] is not kind:
      old = (key, kind)
      pairs[i] = old
    self.attributes.append(old)
    return 0

  cdef int static(self, object key, object value, list pairs, Py_ssize_t i) except -1:
    old = pairs[i]
    if old is None or not holds((<tuple>old)[1], value):
      old = (key, new_static(value))
      pairs[i] = old
    self.attributes.append(old)
    return 0

  cdef int pytree_state(self, object node, TypeInfo info) except -1:
    metadata = pytree_state_metadata(node)
    if metadata is None:
      return self.hand_over(node, info.cls, 'its flags are not booleans', 0)
    self.nodes.append(new_node_def(upstream.GenericPytree, None, None, 0, metadata))
    return 0

  cdef int sequence(self, list values, TypeInfo info, int depth) except -1:
    cdef Py_ssize_t i
    cdef list pair = [None]
    self.nodes.append(new_node_def(info.cls, None, None, len(values), None))
    for i in range(len(values)):
      pair[0] = None
      self.unmarked(i, values[i], pair, 0, depth)
    return 0

  cdef int mapping(self, object node, object items, TypeInfo info, int depth) except -1:
    cdef list pairs = None if type(items) is not dict else sorted_items(items)
    if pairs is None:
      return self.hand_over(node, info.cls, 'its keys are not all strings or all ints', depth)
    self.nodes.append(new_node_def(info.cls, None, None, len(pairs), None))
    for key, value in pairs:
      self.unmarked(key, value, [None], 0, depth)
    return 0

  cdef int named_tuple(self, object node, TypeInfo info, int depth) except -1:
    cdef Py_ssize_t i
    if len(<tuple>node) != len(info.keys):
      return self.hand_over(node, info.cls, 'it does not have its own number of fields', depth)
    self.nodes.append(
      new_node_def(upstream.GenericPytree, None, None, len(info.keys), info.metadata)
    )
    for i in range(len(info.keys)):
      value = (<tuple>node)[<Py_ssize_t>info.order[i]]
      self.unmarked(info.keys[i], value, [None], 0, depth)
    return 0


cdef inline bint holds(object attribute, object value) noexcept:
  return (
    type(attribute) is upstream.Static
    and slot(attribute, STATIC_VALUE)[0] is <PyObject*>value
  )


cdef bint plain_map(object refmap) noexcept:
  return type(refmap) is RefMap and has_table(refmap)


cdef bint usable(object ref_index, object ref_outer_index, object path, tuple lists) except -1:
  return (
    plain_map(ref_index)
    and (ref_outer_index is None or plain_map(ref_outer_index))
    and (path is None or (type(path) is list and type(lists[3]) is list))
    and type(lists[0]) is list and type(lists[1]) is list and type(lists[2]) is list
  )


def graph_flatten(
  node, node_impl, path, ref_index, ref_outer_index, nodes, attributes, leaves, paths
):
  """Appends the definition of `node` to `nodes` and `attributes`, its leaves to `leaves`.

  Linear in attributes; nothing but the lists and the definitions in them is made.
  """
  if not usable(ref_index, ref_outer_index, path, (nodes, attributes, leaves, paths)):
    count('flatten', type(ref_index), 'its reference map is not a RefMap')
    return pure_flatten(
      node, node_impl, path, ref_index, ref_outer_index, nodes, attributes, leaves, paths
    )
  cdef Flattener walk = Flattener.__new__(Flattener)
  walk.ref_index, walk.ref_outer_index = ref_index, ref_outer_index
  walk.refs = table_of(ref_index)
  walk.outer = None if ref_outer_index is None else table_of(ref_outer_index)
  walk.path, walk.paths = path, paths
  walk.nodes, walk.attributes, walk.leaves = nodes, attributes, leaves
  walk.mappings, walk.shared = Mappings(), {}
  walk.visit(node, info_of(node), 0)


def install(pure: dict, whole: dict) -> dict:
  """Takes the pure functions; gives what to put in their place."""
  global pure_flatten, pure_flatten_whole, RAW_VALUE, METADATA
  pure_flatten, pure_flatten_whole = pure['_graph_flatten'], whole['_graph_flatten']
  RAW_VALUE = offset_of(upstream.Variable, '_raw_value')
  METADATA = offset_of(upstream.Variable, '_var_metadata')
  return {'_graph_flatten': graph_flatten}
