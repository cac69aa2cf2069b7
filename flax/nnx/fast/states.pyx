"""States, nested and flat: their leaves in upstream's sorted order, differences, filters.

Upstream sorts whole paths. Where the keys of each dict are all strings or all ints, sorting each
dict by its keys gives the same order, since no leaf's path begins another's.
"""
from flax.nnx.filterlib import to_predicate

from flax.nnx.fast.children cimport column, state_mapping
from flax.nnx.fast.fallbacks cimport count
from flax.nnx.fast.filters cimport exhaust_early, is_known, passes
from flax.nnx.fast.fronts import fronts
from flax.nnx.fast.mappings cimport mapping_of, nested, nested_of, spread
from flax.nnx.fast.slots cimport blank, fill, offset_of, read


cdef object FlatState, State
cdef Py_ssize_t KEYS, VALUES
cdef object pure_from_flat_state, pure_to_flat_state, pure_split_state, pure_diff
cdef object pure_merge_to_flat_state, pure_get_sorted_leaves


# ---- nested to flat ----

cdef object new_flat_state(tuple paths, list leaves):
  flat = blank(FlatState)
  fill(flat, KEYS, paths)
  fill(flat, VALUES, leaves)
  return flat


def to_flat_state(state):
  cdef list paths = []
  cdef list leaves = []
  if not spread(state_mapping(state), True, paths, leaves):
    count('to_flat_state', type(state), 'keys or mappings that are not standard')
    return pure_to_flat_state(state)
  return new_flat_state(tuple(paths), leaves)


def get_sorted_leaves(xs):
  cdef list leaves = []
  if not spread(mapping_of(xs), True, None, leaves):
    count('sorted_leaves', type(xs), 'keys or mappings that are not standard')
    return pure_get_sorted_leaves(xs)
  return leaves


cdef bint gather_pairs(object state, list pairs) except -1:
  """Appends (path, leaf) for each leaf of one of the states given to `merge`; False: not here."""
  cdef list paths = []
  cdef list leaves = []
  if type(state) is FlatState:
    pairs.extend(state)
    return True
  if not spread(mapping_of(state), True, paths, leaves):
    return False
  pairs.extend(zip(paths, leaves))
  return True


def merge_to_flat_state(states):
  states = tuple(states)
  cdef list pairs = []
  cdef list leaves = []
  if len(states) == 1 and spread(mapping_of(states[0]), True, None, leaves):
    return leaves
  for state in states:
    if not gather_pairs(state, pairs):
      count('merge', type(state), 'a state that is not a State, a dict or a FlatState of standard keys')
      return pure_merge_to_flat_state(states)
  pairs.sort()
  return column(pairs, 1)


def diff(state, other):
  """Looks each path up in a set, where upstream looks through a tuple: linear, not quadratic."""
  cdef list paths = []
  cdef list leaves = []
  cdef list others = []
  if not (type(state) is State and type(other) is State and other):
    return pure_diff(state, other)
  if not (
    spread(state_mapping(state), True, paths, leaves)
    and spread(state_mapping(other), True, others, [])
  ):
    count('diff', State, 'keys or mappings that are not standard')
    return pure_diff(state, other)
  known, kept = set(others), []
  for i, path in enumerate(paths):
    if path not in known:
      kept.append(i)
  mapping = nested([paths[i] for i in kept], [leaves[i] for i in kept])
  if mapping is None:
    count('diff', State, 'paths or leaves that are not standard')
    return pure_diff(state, other)
  return State(mapping)


# ---- flat to nested ----

def from_flat_state(flat_state, *, cls):
  result = None
  if type(flat_state) is FlatState:
    result = nested(read(flat_state, KEYS, '_keys'), read(flat_state, VALUES, '_values'))
  else:
    result = nested_of(flat_state)
  if result is None:
    count('from_flat_state', type(flat_state), 'paths or leaves that are not standard')
    return pure_from_flat_state(flat_state, cls=cls)
  return cls(result)


# ---- filters ----

def split_state(flat_state, *filters):
  """One FlatState for each filter, and one of the rest; each leaf goes to the first that takes it."""
  if type(flat_state) is not FlatState or exhaust_early(filters):
    return pure_split_state(flat_state, *filters)
  cdef list predicates = list(map(to_predicate, filters))
  cdef list known = []
  for predicate in predicates:
    known.append(is_known(predicate))
  cdef list parts = [([], [])]
  for _ in predicates:
    parts.append(([], []))
  for path, value in flat_state:
    part = parts[len(predicates)]
    for i, predicate in enumerate(predicates):
      if passes(predicate, path, value) if known[i] else predicate(path, value):
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
  global pure_from_flat_state, pure_to_flat_state, pure_split_state, pure_diff
  FlatState, State = statelib['FlatState'], statelib['State']
  KEYS, VALUES = offset_of(FlatState, '_keys'), offset_of(FlatState, '_values')
  pure_from_flat_state, pure_to_flat_state = statelib['from_flat_state'], statelib['to_flat_state']
  pure_split_state, pure_diff = statelib['_split_state'], statelib['diff']
  statelib.update(fronts(statelib, {
    'from_flat_state': from_flat_state, 'to_flat_state': to_flat_state, '_split_state': split_state,
    'diff': diff,
  }))


def install_graphlib(graphlib: dict) -> None:
  """Replaces names in graphlib's namespace."""
  global pure_merge_to_flat_state, pure_get_sorted_leaves
  pure_merge_to_flat_state = graphlib['_merge_to_flat_state']
  pure_get_sorted_leaves = graphlib['_get_sorted_leaves']
  graphlib.update(fronts(graphlib, {
    '_merge_to_flat_state': merge_to_flat_state, '_get_sorted_leaves': get_sorted_leaves,
  }))
