"""Filters: which leaves of a state go where.

A filter made of flax's own classes alone is asked without a Python call. One that may run a user's
code (a function, a class with an `__instancecheck__`, a tag that compares) is called as it stands, so
that an error there has upstream's traceback; so is one nested too deep, which ends in upstream's error.
"""
from cpython.object cimport PyTypeObject

from flax.nnx import filterlib

from flax.nnx.fast cimport kinds, upstream
from flax.nnx.fast.kinds cimport DEEPEST, info_of, lookup
from flax.nnx.fast.slots cimport Py_TYPE, offset_of, read

cdef extern from "Python.h":
  int PyType_IsSubtype(PyTypeObject* a, PyTypeObject* b) noexcept

cdef object OfType = filterlib.OfType
cdef object WithTag = filterlib.WithTag
cdef object Everything = filterlib.Everything
cdef object Nothing = filterlib.Nothing
cdef object Any = filterlib.Any
cdef object All = filterlib.All
cdef object Not = filterlib.Not
cdef object TAKES_ALL = (..., True)
cdef Py_ssize_t METADATA
cdef object pure_getattr


cdef bint exhaust_early(tuple filters) except -1:
  for i, filter_ in enumerate(filters):
    if filter_ in TAKES_ALL and i != len(filters) - 1:
      if not all([f in TAKES_ALL for f in filters[i + 1:]]):
        return True
  return False


cdef bint is_known(object predicate, int depth=0) except -1:
  cls = type(predicate)
  if depth > DEEPEST:
    return False
  if cls is Any or cls is All:
    for part in predicate.predicates:
      if not is_known(part, depth + 1):
        return False
    return True
  if cls is Not:
    return is_known(predicate.predicate, depth + 1)
  if cls is OfType:   # another metaclass may answer by code of its own
    return type(predicate.type) is type or type(predicate.type) is type(upstream.Variable)
  if cls is WithTag:
    return type(predicate.tag) is str
  return cls is Everything or cls is Nothing


cdef bint passes(object predicate, object path, object value, int depth=0) except -1:
  cls = type(predicate)
  if depth > DEEPEST:   # only where it changed since `is_known` looked
    return bool(predicate(path, value))
  if cls is OfType and info_of(value).kind is kinds.VARIABLE:
    return PyType_IsSubtype(Py_TYPE(value), <PyTypeObject*>predicate.type)
  if cls is WithTag:
    return tagged(value, predicate, path)
  if cls is Not:
    return not passes(predicate.predicate, path, value, depth + 1)
  if cls is Any or cls is All:
    for part in predicate.predicates:
      if passes(part, path, value, depth + 1) == (cls is Any):
        return cls is Any
    return cls is All
  if cls is Everything:
    return True
  return bool(predicate(path, value))


cdef bint tagged(object value, object predicate, object path) except -1:
  """A Variable finds a tag in its metadata, which its class or its value may have one beside."""
  cdef object cls = type(value)
  cdef object metadata
  if (
    info_of(value).kind is kinds.VARIABLE
    and lookup(cls, 'tag') is None
    and lookup(cls, '__getattr__') is pure_getattr
  ):
    metadata = read(value, METADATA, '_var_metadata')
    found = metadata.get('tag') if type(metadata) is dict else None
    if type(found) is str:
      return found == predicate.tag
  return bool(predicate(path, value))


def install() -> None:
  global METADATA, pure_getattr
  METADATA = offset_of(upstream.Variable, '_var_metadata')
  pure_getattr = vars(upstream.Variable)['__getattr__']
