"""The compiled walk that puts a state's values into the objects of a graph.

`graph_update` stands where the pure `_graph_update_dynamic` stood. A node that needs more than setting
the Variables in it goes to the pure function, with all its keys.
"""
cimport cython
from flax.nnx.fast cimport kinds, upstream
from flax.nnx.fast.children cimport Children, children_of
from flax.nnx.fast.fallbacks cimport count
from flax.nnx.fast.kinds cimport DEEPEST, TypeInfo, info_of, is_leaf_kind, no_ref
from flax.nnx.fast.mappings cimport mapping_of
from flax.nnx.fast.slots cimport has_slot, offset_of, read
from flax.nnx.fast.variables cimport TraceCheck, set_from, set_value

cdef object pure_update
cdef object pure_update_whole
cdef Py_ssize_t RAW_VALUE
cdef object ABSENT = object()


cdef bint standard_keys(dict state) except -1:
  """Whether no key's own code can run, however often it is compared."""
  for key in state:
    if type(key) is not str and type(key) is not int:
      return False
  return True


cdef bint covered(object target, object value) except -1:
  """Whether the walk updates `target` itself: a Variable, or a node with a state of its own."""
  cdef kinds.Kind kind = kinds.OTHER if target is ABSENT else info_of(target).kind
  if kind is kinds.OTHER or is_leaf_kind(kind):
    return False
  return kind is kinds.VARIABLE or mapping_of(value) is not None


cdef bint all_covered(Children children, dict values) except -1:
  """No single key may be left to the pure function, which would look at the node again: upstream looks
  once, before it writes the first."""
  for key, value in values.items():
    if not covered(children.find(key, ABSENT), value):
      return False
  children.at = 0
  return True


@cython.final
cdef class Updater:
  cdef TraceCheck trace

  cdef int node(self, object node, TypeInfo info, object state, int depth) except -1:
    cdef Children children = None
    values = mapping_of(state)
    if depth > DEEPEST:
      count('update', info.cls, 'nested deeper than the compiled walk goes')
      pure_update_whole(node, state)
      return 0
    if values is not None and standard_keys(values):
      children = children_of(node, info)
    if children is None:
      count('update', info.cls, info.why or 'the state is no State or dict of strings and ints')
      pure_update(node, state)
    elif not all_covered(children, values):
      pure_update(node, state)
    else:
      self.children(node, children, values, type(state) is upstream.State, depth + 1)
    return 0

  cdef int children(
    self, object node, Children children, dict values, bint wrap, int depth
  ) except -1:
    for key, value in values.items():
      target = children.find(key, ABSENT)
      if covered(target, value):
        self.child(target, as_seen(value, wrap), depth)
      else:   # code of a node's own changed the state meanwhile
        pure_update(node, {key: as_seen(value, wrap)})
    return 0

  cdef int child(self, object target, object value, int depth) except -1:
    cdef TypeInfo info = info_of(target)
    if info.kind is kinds.VARIABLE:
      if not self.variable(target, value):
        pure_update(target, value)
      return 0
    return self.node(target, info, value, depth)

  cdef bint variable(self, object variable, object value) except -1:
    """False where the pure twin has to."""
    cdef kinds.Kind kind = info_of(value).kind
    if kind is kinds.VARIABLE:
      return set_from(variable, value, self.trace)
    if kind is not kinds.ARRAY and kind is not kinds.PLAIN:
      return False
    if not has_slot(variable, RAW_VALUE) or not no_ref(read(variable, RAW_VALUE, '')):
      return False
    return set_value(variable, value, self.trace)


cdef object as_seen(object value, bint wrap):
  """A value as a State shows it when asked for its items: dicts wrapped as States."""
  return upstream.State(value, _copy=False) if wrap and isinstance(value, dict) else value


def graph_update(node, state):
  """Updates `node` in place from a State or mapping; linear in the keys of the state and the
  attributes of the nodes that it reaches."""
  cdef TypeInfo info = info_of(node)
  if info.kind is kinds.VARIABLE or is_leaf_kind(info.kind):
    return pure_update(node, state)
  cdef Updater walk = Updater.__new__(Updater)
  walk.trace = TraceCheck.__new__(TraceCheck)
  walk.node(node, info, state, 0)


def install(pure: dict, whole: dict) -> dict:
  """Takes the pure functions; gives what to put in their place."""
  global pure_update, pure_update_whole, RAW_VALUE
  pure_update, pure_update_whole = pure['_graph_update_dynamic'], whole['_graph_update_dynamic']
  RAW_VALUE = offset_of(upstream.Variable, '_raw_value')
  return {'_graph_update_dynamic': graph_update}
