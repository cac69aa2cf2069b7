"""Tree mode: `flatten` and `unflatten` of graphs that are jax pytrees without sharing.

jax does the walking. What is compiled is the question it asks of each node (is this a leaf?), the
turning of its paths into upstream's, and the making of the definitions and Variables.
"""
import jax

cimport cython
from flax.nnx.fast cimport kinds, upstream
from flax.nnx.fast.fallbacks cimport count
from flax.nnx.fast.graphtypes cimport VariableDef, new_variable_def
from flax.nnx.fast.kinds cimport TypeInfo, info_of, instance_dict
from flax.nnx.fast.variables cimport Mappings, TraceCheck, copied, created

cdef object pure_tree_flatten, pure_tree_unflatten
cdef object TreeNodeDef
cdef object key_path_to_key
cdef object GetAttrKey = jax.tree_util.GetAttrKey
cdef object SequenceKey = jax.tree_util.SequenceKey
cdef object DictKey = jax.tree_util.DictKey


class Refused(Exception):
  """Tree mode refuses this graph; the pure twin says why."""


@cython.final
cdef class LeafTest:
  """Whether jax is to take a value for a leaf: Variables; refuses what lies in the tree twice."""
  cdef set met   # ids of Variables and array references; the tree keeps them alive

  def __call__(self, value):
    cdef TypeInfo info = info_of(value)
    cdef kinds.Kind kind = info.kind
    if kind is kinds.VARIABLE:
      return self.first(value)
    if kind is kinds.GRAPH:
      return self.no_leaf(info.is_pytree and '_pytree__is_pytree' not in instance_dict(value))
    if kind is kinds.OTHER or kind is kinds.STRANGER:
      return self.other(value)
    return False

  cdef bint first(self, object value) except -1:
    if id(value) in self.met:
      raise Refused
    self.met.add(id(value))
    return True

  cdef object no_leaf(self, bint fine):
    if not fine:
      raise Refused
    return False

  cdef object other(self, object value):
    from flax.nnx.pytreelib import Pytree
    if isinstance(value, upstream.Variable):
      return self.first(value)
    if upstream.is_array_ref(value):
      self.first(value)
    return self.no_leaf(not isinstance(value, Pytree) or value._pytree__is_pytree)


def key_of(part):
  """One part of jax's path as upstream writes it."""
  if type(part) is GetAttrKey:
    return part.name
  if type(part) is SequenceKey:
    return part.idx
  if type(part) is DictKey and (type(part.key) is str or type(part.key) is int):
    return part.key
  return key_path_to_key(part)


cdef object definition_of(object variable, Py_ssize_t index, Mappings mappings):
  metadata = getattr(variable, '_var_metadata', None)
  if info_of(variable).kind is kinds.VARIABLE and type(metadata) is dict:
    return new_variable_def(type(variable), index, None, mappings.of(metadata), None)
  metadata = upstream.HashableMapping(variable.get_metadata())
  return new_variable_def(variable.var_type, index, None, metadata, None)


def tree_flatten(node, nodes, leaves, paths):
  """Appends the definition of `node`, its leaves and, where asked for, their paths.

  Linear in leaves, but for their sorting; jax's own flattening takes most of the time.
  """
  cdef LeafTest is_leaf = LeafTest.__new__(LeafTest)
  is_leaf.met = set()
  found = None
  try:
    found, treedef = jax.tree_util.tree_flatten_with_path(node, is_leaf=is_leaf)
  except Refused:
    pass
  if found is None:
    count('tree_flatten', type(node), 'a graph that tree mode refuses')
    return pure_tree_flatten(node, nodes, leaves, paths)
  cdef list pairs = []
  for path, value in found:
    pairs.append((tuple(map(key_of, path)), value))
  positions = {pair[0]: i for i, pair in enumerate(pairs)}
  pairs.sort()
  cdef list path_index = []
  for path, _ in pairs:
    path_index.append((path, positions[path]))
  nodes.append(TreeNodeDef(type=type(node), treedef=treedef, path_index=tuple(path_index)))
  cdef Mappings mappings = Mappings()
  for i, (path, value) in enumerate(pairs):
    if isinstance(value, upstream.Variable):
      nodes.append(definition_of(value, i, mappings))
    leaves.append(value)
    if paths is not None:
      paths.append(path)


def is_variable_def(node):
  return isinstance(node, VariableDef)


def tree_unflatten(graphdef, leaves, copy_variables):
  """The tree that `graphdef` describes, with these leaves in path order; linear in leaves."""
  tree = graphdef.nodes[0]
  if type(tree) is not TreeNodeDef:
    return pure_tree_unflatten(graphdef, leaves, copy_variables)
  cdef TraceCheck trace = TraceCheck.__new__(TraceCheck)
  definitions = filter(is_variable_def, graphdef.nodes[1:])
  definition = next(definitions, None)
  cdef list ordered = [None] * len(leaves)
  for i, (_, position) in enumerate(tree.path_index):
    leaf = leaves[i]
    if definition is not None and definition.index == i:
      if not isinstance(leaf, upstream.Variable):
        leaf = created(definition, leaf, trace)
      elif copy_variables:
        leaf = leaf.copy() if info_of(leaf).kind is not kinds.VARIABLE else copied(leaf, trace)
      definition = next(definitions, None)
    ordered[position] = leaf
  return tree.treedef.unflatten(ordered)


def install(graphlib: dict, pure: dict) -> dict:
  """Takes the pure functions; gives what to put in their place."""
  global pure_tree_flatten, pure_tree_unflatten, TreeNodeDef, key_path_to_key
  pure_tree_flatten, pure_tree_unflatten = pure['_tree_flatten'], pure['_tree_unflatten']
  TreeNodeDef, key_path_to_key = graphlib['TreeNodeDef'], graphlib['_key_path_to_key']
  return {'_tree_flatten': tree_flatten, '_tree_unflatten': tree_unflatten}
