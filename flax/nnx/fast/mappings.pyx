"""Nested mappings and their leaves by path, there and back.

The walks take exact dicts and States with keys that are all strings or ints, whose hashes and
comparisons run no Python. Anything else (other keys, other mappings, a path that leads through a
leaf) goes to the pure twin whole: nothing here changes what it is given.
"""
import typing as tp

cimport cython
from cpython.dict cimport PyDict_GetItemWithError, PyDict_Items
from cpython.list cimport PyList_AsTuple, PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_SIZE

from flax.nnx import traversals

from flax.nnx.fast cimport kinds, upstream
from flax.nnx.fast.children cimport column, sorted_items, state_mapping
from flax.nnx.fast.fallbacks cimport count
from flax.nnx.fast.fronts import fronts
from flax.nnx.fast.kinds cimport DEEPEST, info_of

cdef object empty_node = traversals.empty_node
cdef object ELSEWHERE = object()   # a mapping that is not walked here
cdef object pure_flatten_mapping, pure_flatten_to_sequence, pure_unflatten_mapping


# ---- nested to flat ----

cdef object branch_of(object value):
  """The dict below `value`; None for a leaf, ELSEWHERE for a mapping that is not walked here."""
  cdef kinds.Kind kind
  if type(value) is dict:
    return value
  if type(value) is upstream.State:
    mapping = state_mapping(value)
    return ELSEWHERE if mapping is None else mapping
  kind = info_of(value).kind
  if kind is kinds.VARIABLE or kind is kinds.ARRAY or kind is kinds.PLAIN:
    return None
  return ELSEWHERE if isinstance(value, tp.Mapping) else None


cdef object mapping_of(object xs):
  return xs if type(xs) is dict else state_mapping(xs)


cdef inline bint is_plain(object key) noexcept:
  return type(key) is str or type(key) is int


cdef list plain_items(dict mapping):
  """(key, value) in the dict's order; None: keys of other types."""
  cdef list items = PyDict_Items(mapping)
  for item in items:
    if not is_plain((<tuple>item)[0]):
      return None
  return items


cdef bint gather(
  dict mapping, bint in_order, list path, list paths, list leaves, int depth
) except -1:
  cdef list items = sorted_items(mapping) if in_order else plain_items(mapping)
  if items is None or depth > DEEPEST:
    return False
  for key, value in items:
    branch = branch_of(value)
    if branch is ELSEWHERE:
      return False
    if paths is not None:
      path.append(key)
    if branch is not None:
      if not gather(branch, in_order, path, paths, leaves, depth + 1):
        return False
    else:
      leaves.append(value)
      if paths is not None:
        paths.append(PyList_AsTuple(path))
    if paths is not None:
      path.pop()
  return True


cdef bint spread(object mapping, bint in_order, list paths, list leaves) except -1:
  return mapping is not None and gather(mapping, in_order, [], paths, leaves, 0)


def flatten_mapping(xs, *, keep_empty_nodes, is_leaf, sep):
  cdef list paths = []
  cdef list leaves = []
  cdef bint plain = keep_empty_nodes is False and is_leaf is None and sep is None
  if plain and spread(mapping_of(xs), False, paths, leaves):
    return dict(zip(paths, leaves))
  count('flatten_mapping', type(xs), 'options, keys or mappings that are not standard')
  return pure_flatten_mapping(xs, keep_empty_nodes=keep_empty_nodes, is_leaf=is_leaf, sep=sep)


def flatten_to_sequence(xs, *, is_leaf):
  cdef list paths = []
  cdef list leaves = []
  if is_leaf is None and spread(mapping_of(xs), False, paths, leaves):
    return list(zip(paths, leaves))
  count('flatten_to_sequence', type(xs), 'options, keys or mappings that are not standard')
  return pure_flatten_to_sequence(xs, is_leaf=is_leaf)


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
    if not is_plain(key):
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
    if not is_plain(key):
      return False
    old = PyDict_GetItemWithError(cursor, key)
    if old is not NULL and type(<object>old) is dict:
      return False
    cursor[key] = value
    return True


cdef dict nested(object paths, object values):
  cdef Nester nester = Nester.__new__(Nester)
  nester.result = {}
  nester.keys, nester.dicts = [], [nester.result]
  for path, value in zip(paths, values):
    if not nester.add(path, value):
      return None
  return nester.result


cdef dict nested_of(object flat):
  """The nested dicts of a dict or list of leaves by path; None where the pure twin has to look."""
  if type(flat) is dict:
    return nested(list(flat), list(flat.values()))
  if type(flat) is list and all([type(item) is tuple and len(item) == 2 for item in flat]):
    return nested(column(flat, 0), column(flat, 1))
  return None


def unflatten_mapping(xs, *, sep):
  result = nested_of(xs) if sep is None else None
  if result is None:
    count('unflatten_mapping', type(xs), 'a separator, or paths or leaves that are not standard')
    return pure_unflatten_mapping(xs, sep=sep)
  return result


def install() -> None:
  """Replaces functions of `traversals`, for all who look them up there."""
  global pure_flatten_mapping, pure_flatten_to_sequence, pure_unflatten_mapping
  namespace = vars(traversals)
  pure_flatten_mapping = namespace['flatten_mapping']
  pure_flatten_to_sequence = namespace['flatten_to_sequence']
  pure_unflatten_mapping = namespace['unflatten_mapping']
  namespace.update(fronts(namespace, {
    'flatten_mapping': flatten_mapping,
    'flatten_to_sequence': flatten_to_sequence,
    'unflatten_mapping': unflatten_mapping,
  }))
