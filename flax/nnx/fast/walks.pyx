"""The compiled walks that only look: `iter_graph`, `find_duplicates`, `pop`.

User code runs between the steps of each of them (the loop's body, a filter), so a node's children
are taken when the walk comes to it, as upstream does, and kept until it leaves.
"""
cimport cython
from flax.nnx.fast cimport kinds, upstream
from flax.nnx.fast.children cimport Children, children_of, longer
from flax.nnx.fast.fallbacks cimport count
from flax.nnx.fast.fronts import front
from flax.nnx.fast.kinds cimport DEEPEST, TypeInfo, info_of, is_leaf_kind

cdef object is_node, is_graph_node, is_pytree_node, is_node_leaf
cdef object pure_node_paths, pure_node_paths_whole, pure_pop, pure_pop_whole


@cython.final
cdef class Frame:
  """A node that a walk is inside of."""
  cdef object node
  cdef tuple path
  cdef object keys
  cdef list values
  cdef Py_ssize_t next


cdef Frame enter(object node, tuple path, TypeInfo info, str walk):
  """None where `node` has no children that a walk goes to."""
  cdef Frame frame
  cdef Children children = children_of(node, info)
  frame = Frame.__new__(Frame)
  frame.node, frame.path = node, path
  if children is not None:
    frame.keys, frame.values = children.keys, children.values
    return frame
  impl = upstream.get_node_impl(node)
  if impl is None:
    return None
  count(walk, info.cls, info.why or 'its attributes are unusual')
  children_dict = impl.node_dict(node)
  frame.keys, frame.values = list(children_dict), list(children_dict.values())
  return frame


cdef bint leads_on(object value, TypeInfo info) except -1:
  """Whether `iter_graph` looks into `value`."""
  if info.kind is kinds.OTHER:
    return is_node(value) or isinstance(value, upstream.Variable)
  return not is_leaf_kind(info.kind)


def iter_graph(node, /):
  """Yields (path, value) for each node and leaf below `node`, children first, `node` last."""
  cdef set visited = set()
  cdef list frames = []
  cdef Frame frame
  cdef TypeInfo info
  cdef tuple path = ()
  while True:
    info = info_of(node)
    if not leads_on(node, info):
      yield path, node
    elif id(node) not in visited:
      visited.add(id(node))
      frame = None if info.kind is kinds.VARIABLE else enter(node, path, info, 'iter_graph')
      if frame is None:
        yield path, node
      else:
        frames.append(frame)
    while frames:
      frame = frames[len(frames) - 1]
      if frame.next < len(frame.values):
        break
      frames.pop()
      yield frame.path, frame.node
    if not frames:
      return
    path = longer(frame.path, frame.keys[frame.next])
    node = frame.values[frame.next]
    frame.next += 1


# ---- find_duplicates ----

cdef int node_paths_into(
  object node, dict paths, tuple path, object candidate, int depth
) except -1:
  cdef TypeInfo info = info_of(node)
  cdef kinds.Kind kind = info.kind
  cdef Frame frame
  cdef bint shared
  if depth > DEEPEST:
    pure_node_paths_whole(node, paths, path, candidate)
    return 0
  if kind is kinds.PLAIN:
    return 0
  if kind is kinds.OTHER or kind is kinds.STRANGER:
    pure_node_paths(node, paths, path, candidate)
    return 0
  shared = kind is kinds.GRAPH or kind is kinds.VARIABLE or kind is kinds.ARRAY
  known = paths.get(id(node))
  if known is not None:
    if shared and candidate(path, node):
      known.append(path)
    return 0
  if shared:
    paths[id(node)] = [path]
  if kind is kinds.VARIABLE or kind is kinds.ARRAY:
    return 0
  frame = enter(node, path, info, 'find_duplicates')
  if frame is not None:
    for key, value in zip(frame.keys, frame.values):
      node_paths_into(value, paths, longer(path, key), candidate, depth + 1)
  return 0


def node_paths(node, node_paths, path, duplicate_candidate, /):
  """Fills `node_paths` with {id: [path, ...]} for what can be shared."""
  node_paths_into(node, node_paths, path, duplicate_candidate, 0)


# ---- pop ----

cdef int pop_into(
  object node, dict met, tuple path, tuple states, tuple predicates, int depth
) except -1:
  cdef TypeInfo info = info_of(node)
  cdef TypeInfo child
  cdef Frame frame
  if depth > DEEPEST or info.kind is kinds.OTHER or not leads_on(node, info) or (
    info.kind is kinds.VARIABLE
  ):
    walk = pure_pop_whole if depth > DEEPEST else pure_pop
    walk(node, met, path, states, predicates)
    return 0
  if id(node) in met:
    return 0
  met[id(node)] = len(met)
  frame = enter(node, path, info, 'pop')
  for key, value in zip(frame.keys, frame.values):
    child = info_of(value)
    if child.kind is kinds.PLAIN:
      continue
    if child.kind is not kinds.VARIABLE and (
      is_node(value) if child.kind is kinds.OTHER else not is_leaf_kind(child.kind)
    ):
      pop_into(value, met, longer(path, key), states, predicates, depth + 1)
    elif id(value) not in met and (
      child.kind is kinds.VARIABLE or child.kind is kinds.ARRAY or is_node_leaf(value)
    ):
      pop_leaf(node, key, value, met, longer(path, key), states, predicates)
  return 0


cdef int pop_leaf(
  object node, object key, object value, dict met, tuple path, tuple states, tuple predicates
) except -1:
  for state, predicate in zip(states, predicates):
    if predicate(path, value):
      impl = upstream.get_node_impl(node)
      if impl is None or impl.pop_key is None:
        return refuse_pop(node, key, value, met, path, state)
      met[id(value)] = len(met)
      impl.pop_key(node, key)
      state[path] = value
      return 0
  return 0


cdef int refuse_pop(
  object node, object key, object value, dict met, tuple path, object state
) except -1:
  """Has the pure twin come to the same leaf of the same node again, and raise."""
  def this_leaf(at, leaf):
    return leaf is value and at == path

  met.pop(id(node), None)
  pure_pop(node, met, path[:len(path) - 1], (state,), (this_leaf,))
  return 0


def graph_pop(node, id_to_index, path_parts, flat_states, predicates):
  """Moves what the predicates choose from the graph into `flat_states`."""
  pop_into(node, id_to_index, path_parts, flat_states, predicates, 0)


def install(graphlib: dict, pure: dict, whole: dict) -> dict:
  """Takes the pure functions; gives what to put in their place."""
  global is_node, is_node_leaf
  global pure_node_paths, pure_node_paths_whole, pure_pop, pure_pop_whole
  is_node, is_node_leaf = graphlib['is_node'], graphlib['is_node_leaf']
  pure_node_paths, pure_node_paths_whole = pure['_node_paths'], whole['_node_paths']
  pure_pop, pure_pop_whole = pure['_graph_pop'], whole['_graph_pop']
  return {
    '_iter_graph': front(iter_graph, pure['_iter_graph']),
    '_node_paths': node_paths,
    '_graph_pop': graph_pop,
  }
