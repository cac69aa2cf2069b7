"""States, nested and flat: from paths to dicts and back, filters, and upstream's sorted order.

Upstream sorts whole paths. Where the keys of each dict are all strings or all ints, sorting each
dict by its keys gives the same order, since no leaf's path begins another's. Anything else (other
keys, other mappings, a path that leads through a leaf) goes to the pure twin whole: nothing here
changes what it is given.
"""
import typing as tp

cimport cython
from cpython.dict cimport PyDict_GetItemWithError
from cpython.list cimport PyList_AsTuple, PyList_GET_SIZE
from cpython.object cimport PyObject, PyTypeObject
from cpython.tuple cimport PyTuple_GET_SIZE

from flax.nnx import filterlib, traversals

from flax.nnx.fast cimport kinds, upstream
from flax.nnx.fast.children cimport column, sorted_items, state_mapping
from flax.nnx.fast.fallbacks cimport count
from flax.nnx.fast.fronts import fronts
from flax.nnx.fast.kinds cimport DEEPEST, info_of
from flax.nnx.fast.slots cimport Py_TYPE, blank, fill, offset_of, read

cdef extern from "Python.h":
  int PyType_IsSubtype(PyTypeObject* a, PyTypeObject* b) noexcept

cdef object empty_node = traversals.empty_node
cdef object OfType = filterlib.OfType
cdef object Everything = filterlib.Everything
cdef object Nothing = filterlib.Nothing
cdef object TAKES_ALL = (..., True)
cdef object ELSEWHERE = object()   # a mapping that is not walked here
cdef object FlatState, State
cdef Py_ssize_t KEYS, VALUES
cdef object pure_from_flat_state, pure_to_flat_state, pure_split_state
cdef object pure_merge_to_flat_state, pure_get_sorted_leaves


# ---- nested to flat ----

cdef object branch_of(object value):
  """The dict below `value`; None for a leaf, ELSEWHERE for a mapping that is not walked here."""
  cdef kinds.Kind kind
  if type(value) is dict:
    return value
  if type(value) is State:
    mapping = state_mapping(value)
    return ELSEWHERE if mapping is None else mapping
  kind = info_of(value).kind
  if kind is kinds.VARIABLE or kind is kinds.ARRAY or kind is kinds.PLAIN:
    return None
  return ELSEWHERE if isinstance(value, tp.Mapping) else None


cdef bint gather(dict mapping, list path, list paths, list leaves, int depth) except -1:
  """Appends the leaves of `mapping`, and their paths where they are asked for; False: not here."""
  cdef list items = sorted_items(mapping)
  if items is None or depth > DEEPEST:
    return False
  for key, value in items:
    branch = branch_of(value)
    if branch is ELSEWHERE:
      return False
    if paths is not None:
      path.append(key)
    if branch is not None:
      if not gather(branch, path, paths, leaves, depth + 1):
        return False
    else:
      leaves.append(value)
      if paths is not None:
        paths.append(PyList_AsTuple(path))
    if paths is not None:
      path.pop()
  return True


cdef object new_flat_state(tuple paths, list leaves):
  flat = blank(FlatState)
  fill(flat, KEYS, paths)
  fill(flat, VALUES, leaves)
  return flat


def to_flat_state(state):
  cdef list paths = []
  cdef list leaves = []
  mapping = state_mapping(state)
  if mapping is None or not gather(mapping, [], paths, leaves, 0):
    count('to_flat_state', type(state), 'keys or mappings that are not standard')
    return pure_to_flat_state(state)
  return new_flat_state(tuple(paths), leaves)


def get_sorted_leaves(xs):
  cdef list leaves = []
  mapping = xs if type(xs) is dict else state_mapping(xs)
  if mapping is None or not gather(mapping, None, None, leaves, 0):
    count('sorted_leaves', type(xs), 'keys or mappings that are not standard')
    return pure_get_sorted_leaves(xs)
  return leaves


cdef bint gather_pairs(object state, list pairs) except -1:
  """Appends (path, leaf) for each leaf of one of the states given to `merge`; False: not here."""
  cdef list paths, leaves
  if type(state) is FlatState:
    pairs.extend(state)
    return True
  if type(state) is not dict and type(state) is not State:
    return False
  mapping = state if type(state) is dict else state_mapping(state)
  paths, leaves = [], []
  if mapping is None or not gather(mapping, [], paths, leaves, 0):
    return False
  pairs.extend(zip(paths, leaves))
  return True


def merge_to_flat_state(states):
  states = tuple(states)
  cdef list pairs = []
  if len(states) == 1 and (type(states[0]) is dict or type(states[0]) is State):
    mapping = states[0] if type(states[0]) is dict else state_mapping(states[0])
    leaves = []
    if mapping is not None and gather(mapping, None, None, leaves, 0):
      return leaves
  for state in states:
    if not gather_pairs(state, pairs):
      count('merge', type(state), 'a state that is not a State, a dict or a FlatState of standard keys')
      return pure_merge_to_flat_state(states)
  pairs.sort()
  return column(pairs, 1)


# ---- flat to nested ----

@cython.final
cdef class Nester:
  """Builds nested dicts from paths; those that follow each other mostly share their beginning."""
  cdef dict result
  cdef list keys, dicts   # the path that is open, and the dict that each of its keys lies in

  cdef bint add(self, object path, object value) except -1:
    """False for a path that leads through a leaf, or a key or value that is not standard."""
    cdef Py_ssize_t last, at = 0
    cdef dict cursor
    if type(path) is not tuple or type(value) is dict or value is empty_node:
      return False
    last = PyTuple_GET_SIZE(path) - 1
    if last < 0:
      return False
    while at < last and at < PyList_GET_SIZE(self.keys) and self.keys[at] is (<tuple>path)[at]:
      at += 1
    del self.keys[at:]
    del self.dicts[at + 1:]
    cursor = self.dicts[at]
    while at < last:
      cursor = self.step(cursor, (<tuple>path)[at])
      if cursor is None:
        return False
      at += 1
    return self.put(cursor, (<tuple>path)[last], value)

  cdef dict step(self, dict cursor, object key):
    if type(key) is not str and type(key) is not int:
      return None
    inner = cursor.get(key)
    if inner is None:
      if key in cursor:
        return None
      inner = cursor[key] = {}
    elif type(inner) is not dict:
      return None
    self.keys.append(key)
    self.dicts.append(inner)
    return inner

  cdef bint put(self, dict cursor, object key, object value) except -1:
    cdef PyObject* old
    if type(key) is not str and type(key) is not int:
      return False
    old = PyDict_GetItemWithError(cursor, key)
    if old is not NULL and type(<object>old) is dict:
      return False
    cursor[key] = value
    return True


cdef dict nested(object paths, object values):
  """The nested dicts of these leaves; None where the pure twin has to look."""
  cdef Nester nester = Nester.__new__(Nester)
  nester.result = {}
  nester.keys, nester.dicts = [], [nester.result]
  for path, value in zip(paths, values):
    if not nester.add(path, value):
      return None
  return nester.result


def from_flat_state(flat_state, *, cls):
  result = None
  if type(flat_state) is FlatState:
    result = nested(read(flat_state, KEYS, '_keys'), read(flat_state, VALUES, '_values'))
  elif type(flat_state) is list and all([type(item) is tuple and len(item) == 2 for item in flat_state]):
    result = nested(column(flat_state, 0), column(flat_state, 1))
  elif type(flat_state) is dict:
    result = nested(list(flat_state), list(flat_state.values()))
  if result is None:
    count('from_flat_state', type(flat_state), 'paths or leaves that are not standard')
    return pure_from_flat_state(flat_state, cls=cls)
  return cls(result)


# ---- filters ----

cdef bint passes(object predicate, object path, object value) except -1:
  """What `predicate(path, value)` says; the commonest filter needs no call."""
  if type(predicate) is OfType and info_of(value).kind is kinds.VARIABLE:
    wanted = predicate.type
    if type(wanted) is type or type(wanted) is type(upstream.Variable):
      return PyType_IsSubtype(Py_TYPE(value), <PyTypeObject*>wanted)
  if type(predicate) is Everything:
    return True
  return bool(predicate(path, value))


cdef bint exhaust_early(tuple filters) except -1:
  """Whether `...` or `True` stands before another filter, which is an error."""
  for i, filter_ in enumerate(filters):
    if filter_ in TAKES_ALL and i != len(filters) - 1:
      if not all([f in TAKES_ALL for f in filters[i + 1:]]):
        return True
  return False


def split_state(flat_state, *filters):
  """One FlatState for each filter, and one of the rest; each leaf goes to the first that takes it."""
  if type(flat_state) is not FlatState or exhaust_early(filters):
    return pure_split_state(flat_state, *filters)
  predicates = list(map(filterlib.to_predicate, filters))
  cdef list parts = [([], [])]
  for _ in predicates:
    parts.append(([], []))
  for path, value in flat_state:
    part = parts[len(predicates)]
    for i, predicate in enumerate(predicates):
      if passes(predicate, path, value):
        part = parts[i]
        break
    (<list>(<tuple>part)[0]).append(path)
    (<list>(<tuple>part)[1]).append(value)
  cdef list states = []
  for paths, leaves in parts:
    states.append(new_flat_state(tuple(paths), leaves))
  return tuple(states)


def install_statelib(statelib: dict) -> None:
  """Replaces names in statelib's namespace."""
  global FlatState, State, KEYS, VALUES
  global pure_from_flat_state, pure_to_flat_state, pure_split_state
  FlatState, State = statelib['FlatState'], statelib['State']
  KEYS, VALUES = offset_of(FlatState, '_keys'), offset_of(FlatState, '_values')
  pure_from_flat_state, pure_to_flat_state = statelib['from_flat_state'], statelib['to_flat_state']
  pure_split_state = statelib['_split_state']
  statelib.update(fronts(statelib, {
    'from_flat_state': from_flat_state, 'to_flat_state': to_flat_state, '_split_state': split_state,
  }))


def install_graphlib(graphlib: dict) -> None:
  """Replaces names in graphlib's namespace."""
  global pure_merge_to_flat_state, pure_get_sorted_leaves
  pure_merge_to_flat_state = graphlib['_merge_to_flat_state']
  pure_get_sorted_leaves = graphlib['_get_sorted_leaves']
  graphlib.update(fronts(graphlib, {
    '_merge_to_flat_state': merge_to_flat_state, '_get_sorted_leaves': get_sorted_leaves,
  }))
