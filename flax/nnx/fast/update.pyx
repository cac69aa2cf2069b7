"""The compiled walk that puts a state's values into the objects of a graph.

`graph_update` stands where the pure `_graph_update_dynamic` stood. A key that needs more than
setting a standard Variable goes to the pure function, with the keys after it.
"""
cimport cython
from flax.nnx.fast cimport kinds, upstream
from flax.nnx.fast.children cimport Children, children_of, state_mapping
from flax.nnx.fast.fallbacks cimport count
from flax.nnx.fast.kinds cimport DEEPEST, TypeInfo, info_of, is_leaf_kind, no_ref
from flax.nnx.fast.slots cimport has_slot, offset_of, read
from flax.nnx.fast.variables cimport TraceCheck, set_from, set_value

cdef object pure_update
cdef object pure_update_whole
cdef Py_ssize_t RAW_VALUE
cdef object ABSENT = object()


cdef object plain_state(object state):
  """The dict of a State, or a dict itself; None for any other mapping or value."""
  if type(state) is dict:
    return state
  return state_mapping(state) if type(state) is upstream.State else None


cdef bint standard_keys(dict state) except -1:
  """Whether no key's own code can run, however often it is compared."""
  for key in state:
    if type(key) is not str and type(key) is not int:
      return False
  return True


@cython.final
cdef class Updater:
  cdef TraceCheck trace

  cdef int node(self, object node, TypeInfo info, object state, int depth) except -1:
    cdef Children children = None
    values = plain_state(state)
    if depth > DEEPEST:
      count('update', info.cls, 'nested deeper than the compiled walk goes')
      pure_update_whole(node, state)
      return 0
    if values is not None and standard_keys(values):
      children = children_of(node, info)
    if children is None:
      count('update', info.cls, info.why or 'the state is no State or dict of strings and ints')
      pure_update(node, state)
      return 0
    current = dict(zip(children.keys, children.values))
    wrap = type(state) is upstream.State
    rest = {}   # from the first key that needs more: a key that it adds may not be seen by the others
    for key, value in (<dict>values).items():
      if rest or not self.child(current.get(key, ABSENT), value, wrap, depth):
        rest[key] = as_seen(value, wrap)
    if rest:
      pure_update(node, rest)
    return 0

  cdef bint child(self, object current, object value, bint wrap, int depth) except -1:
    """Updates one child; False where the pure twin has to."""
    if current is ABSENT:
      return False
    cdef TypeInfo info = info_of(current)
    if info.kind is kinds.VARIABLE:
      return self.variable(current, value)
    if info.kind is kinds.OTHER or is_leaf_kind(info.kind):
      return False
    if plain_state(value) is None:
      return False
    self.node(current, info, as_seen(value, wrap), depth + 1)
    return True

  cdef bint variable(self, object variable, object value) except -1:
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
