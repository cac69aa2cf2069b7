"""The compiled walk from a graph definition and leaves back to objects.

`graph_unflatten` stands where the pure `_graph_unflatten` stood: the pure `unflatten` calls it with
the iterators to draw from. Whatever it does not recognise, it hands to the pure function together
with the same iterators, before it drew anything for it, or with what it drew put back.
"""
from itertools import chain
from sys import intern

cimport cython
from cpython.object cimport PyObject_GenericSetAttr

from flax.nnx.fast cimport kinds, upstream
from flax.nnx.fast.fallbacks cimport count
from flax.nnx.fast.graphtypes cimport NodeDef, NodeRef, VariableDef, ArrayRefDef, new_node_def
from flax.nnx.fast.kinds cimport DEEPEST, TypeInfo, info_of, info_of_type, instance_dict, made_by
from flax.nnx.fast.kinds cimport new_pytree_state
from flax.nnx.fast.python import unpack_pair
from flax.nnx.fast.variables cimport TraceCheck, copied, created, set_from, set_value

cdef object pure_unflatten           # the pure function; it comes back here for children
cdef object pure_unflatten_whole     # the same, all the way down in Python
cdef object get_node_impl_for_type
cdef object NodeAttr, LeafAttr
cdef object new_object = object.__new__


cdef bint is_variable(object value) except -1:
  cdef kinds.Kind kind = info_of(value).kind
  return kind is kinds.VARIABLE or (kind is kinds.OTHER and isinstance(value, upstream.Variable))


@cython.final
cdef class Unflattener:
  """One walk: what it draws from, and what it has made."""
  cdef object nodes, attributes, leaves   # iterators
  cdef object index_ref                   # index -> object made
  cdef object outer                       # outer index -> object to fill anew, or None
  cdef bint copy_variables, recreate_variables
  cdef TraceCheck trace

  cdef object visit(self, object nodedef, int depth):
    """The object that `nodedef` stands for; `depth` counts the levels above it."""
    if type(nodedef) is NodeRef:
      return self.index_ref[nodedef.index]
    if depth > DEEPEST:
      return self.hand_over(nodedef, 'nested deeper than the compiled walk goes', depth)
    if type(nodedef) is VariableDef:
      return self.variable(nodedef)
    if type(nodedef) is NodeDef:
      return self.node(nodedef, depth)
    return self.hand_over(nodedef, 'an array reference', depth)

  cdef object hand_over(self, object nodedef, str why, int depth):
    cls = getattr(nodedef, 'type', type(nodedef))
    count('unflatten', cls if isinstance(cls, type) else type(cls), why)
    return self.pure(nodedef, self.leaves, depth)

  cdef object pure(self, object nodedef, object leaves, int depth):
    impl = None if isinstance(nodedef, ArrayRefDef) else get_node_impl_for_type(nodedef.type)
    walk = pure_unflatten_whole if depth > DEEPEST else pure_unflatten
    return walk(
      nodedef, impl, self.nodes, self.attributes, leaves, self.index_ref, self.outer,
      self.copy_variables, self.recreate_variables,
    )

  cdef bint reuses(self, object outer_index) except -1:
    return self.outer is not None and outer_index is not None and outer_index in self.outer

  # ---- Variables ----

  cdef object variable(self, object definition):
    if definition.array_refdef is not None:
      return self.hand_over(definition, 'a Variable that holds an array reference', 0)
    value = next(self.leaves)
    given = is_variable(value)
    outer_index = definition.outer_index
    reused = None
    if self.reuses(outer_index):
      reused = self.outer[outer_index]
      if not isinstance(reused, upstream.Variable):   # an error, which the pure twin raises
        return self.pure(definition, iter((value,)), 0)
    if given and self.copy_variables:
      value = copied(value, self.trace)
      given = is_variable(value)   # a class's own copy can give anything
    if reused is not None:
      variable = reused
      self.refill(variable, value, given)
    elif given or not self.recreate_variables:
      variable = value
    else:
      variable = created(definition, value, self.trace)
    self.index_ref[definition.index] = variable
    return variable

  cdef int refill(self, object variable, object value, bint given) except -1:
    cdef bint standard = info_of(variable).kind is kinds.VARIABLE
    if given:
      if not (
        standard and info_of(value).kind is kinds.VARIABLE
        and set_from(variable, value, self.trace)
      ):
        variable.update_from_state(value)
    elif not (standard and set_value(variable, value, self.trace)):
      variable.set_raw_value(value)
    return 0

  # ---- nodes ----

  cdef object node(self, object nodedef, int depth):
    impl = get_node_impl_for_type(nodedef.type)
    index = nodedef.index
    if impl is None or (index is not None and index in self.index_ref):
      return self.hand_over(nodedef, 'a definition that cannot be made', depth)
    if isinstance(impl, upstream.GraphNodeImpl):
      return self.graph_node(nodedef, impl, depth)
    return self.container(nodedef, impl, depth)

  cdef object graph_node(self, object nodedef, object impl, int depth):
    cdef bint standard = info_of_type(nodedef.type).kind is kinds.GRAPH
    if nodedef.index is None:
      return self.hand_over(nodedef, 'a definition that cannot be made', depth)
    if self.reuses(nodedef.outer_index):
      node = self.outer[nodedef.outer_index]
      if type(node) is not nodedef.type:
        return self.hand_over(nodedef, 'another type stands in its place', depth)
      if standard:
        instance_dict(node).clear()
      else:
        impl.clear(node)
    else:
      node = new_object(nodedef.metadata) if standard else impl.create_empty(nodedef.metadata)
    self.index_ref[nodedef.index] = node
    keys, values = [], []
    self.children(nodedef, keys, values, depth)
    if standard:
      set_attributes(node, keys, values)
    else:
      impl.init(node, list(zip(keys, values)))
    return node

  cdef object container(self, object nodedef, object impl, int depth):
    keys, values = [], []
    self.children(nodedef, keys, values, depth)
    if nodedef.type is upstream.GenericPytree:
      return self.pytree(nodedef.metadata, impl, keys, values)
    if impl is upstream.container_impls.get(nodedef.type):
      if nodedef.type is list:
        return values
      if nodedef.type is tuple:
        return tuple(values)
      if nodedef.type is dict:
        return dict(zip(keys, values))
    return impl.unflatten(list(zip(keys, values)), nodedef.metadata)

  cdef object pytree(self, object metadata, object impl, list keys, list values):
    maker = made_by(metadata)
    if type(maker) is tuple and not keys:
      return new_pytree_state(maker, self.trace.state())
    if type(maker) is TypeInfo and keys == (<TypeInfo>maker).keys:
      return named_tuple(maker, values)
    return impl.unflatten(list(zip(keys, values)), metadata)

  cdef int children(self, object nodedef, list keys, list values, int depth) except -1:
    for _ in range(nodedef.num_attributes):
      pair = next(self.attributes)
      if type(pair) is tuple and len(<tuple>pair) == 2:
        key, kind = <tuple>pair
      else:
        key, kind = unpack_pair(pair)
      value = self.child(key, kind, depth)
      keys.append(key)
      values.append(value)
    return 0

  cdef object child(self, object key, object kind, int depth):
    if type(kind) is upstream.Static:
      return kind.value
    if type(kind) is LeafAttr:
      return next(self.leaves)
    if type(kind) is NodeAttr:
      nodedef = next(self.nodes)
      if type(nodedef) is NodeDef or type(nodedef) is VariableDef or type(nodedef) is NodeRef:
        return self.visit(nodedef, depth + 1)
      return self.pure_child(key, kind, iter((nodedef,)))
    if type(kind) is NodeRef:
      return self.index_ref[kind.index]
    return self.pure_child(key, kind, iter(()))

  cdef object pure_child(self, object key, object kind, object drawn):
    """Has the pure twin make the one child of a list, or say what is wrong with it."""
    count('unflatten', type(kind), 'an attribute that is not a standard one')
    (child,) = pure_unflatten(
      new_node_def(list, None, None, 1, None), upstream.container_impls[list],
      chain(drawn, self.nodes), chain(((key, kind),), self.attributes), self.leaves,
      self.index_ref, self.outer, self.copy_variables, self.recreate_variables,
    )
    return child


cdef object named_tuple(TypeInfo info, list values):
  """Calls the class as jax does: with the values in the order of the fields."""
  fields = [None] * len(values)
  for position, value in zip(info.order, values):
    fields[position] = value
  return info.cls(*fields)


cdef int set_attributes(object node, list keys, list values) except -1:
  cdef Py_ssize_t i
  for i in range(len(keys)):
    PyObject_GenericSetAttr(node, attribute_name(keys[i]), values[i])
  return 0


cdef object attribute_name(object key):
  """The key as upstream names the attribute; interned, so that the next walk knows it by identity."""
  return key if isinstance(key, str) else intern(str(key))


def graph_unflatten(
  nodedef, node_impl, node_iter, attribute_iter, leaves_iter,
  index_ref, outer_index_outer_ref, copy_variables, recreate_variables,
):
  """The object that `nodedef` stands for, drawing its parts from the three iterators.

  Fills `index_ref`; reuses the objects in `outer_index_outer_ref`. Linear in attributes.
  """
  cdef Unflattener walk = Unflattener.__new__(Unflattener)
  walk.nodes, walk.attributes, walk.leaves = node_iter, attribute_iter, leaves_iter
  walk.index_ref, walk.outer = index_ref, outer_index_outer_ref
  walk.copy_variables, walk.recreate_variables = copy_variables, recreate_variables
  walk.trace = TraceCheck.__new__(TraceCheck)
  return walk.visit(nodedef, 0)


def install(graphlib: dict, pure: dict, whole: dict) -> dict:
  """Takes the pure functions; gives what to put in their place."""
  global pure_unflatten, pure_unflatten_whole, get_node_impl_for_type
  global NodeAttr, LeafAttr
  pure_unflatten, pure_unflatten_whole = pure['_graph_unflatten'], whole['_graph_unflatten']
  get_node_impl_for_type = graphlib['get_node_impl_for_type']
  NodeAttr, LeafAttr = graphlib['NodeAttr'], graphlib['LeafAttr']
  return {'_graph_unflatten': graph_unflatten}
