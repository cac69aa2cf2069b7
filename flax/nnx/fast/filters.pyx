"""Filters: which leaves of a state go where.

A filter made of flax's own classes alone is asked without a Python call. One with a function of a
user's in it is called as it stands, so that an error there has upstream's traceback.
"""
from cpython.object cimport PyTypeObject

from flax.nnx import filterlib

from flax.nnx.fast cimport kinds, upstream
from flax.nnx.fast.kinds cimport info_of, lookup
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
cdef Py_ssize_t METADATA, RAW_VALUE
cdef object pure_getattr


cdef bint exhaust_early(tuple filters) except -1:
  for i, filter_ in enumerate(filters):
    if filter_ in TAKES_ALL and i != len(filters) - 1:
      if not all([f in TAKES_ALL for f in filters[i + 1:]]):
        return True
  return False


cdef bint is_known(object predicate) except -1:
  cls = type(predicate)
  if cls is Any or cls is All:
    for part in predicate.predicates:
      if not is_known(part):
        return False
    return True
  if cls is Not:
    return is_known(predicate.predicate)
  return cls is OfType or cls is WithTag or cls is Everything or cls is Nothing


cdef bint passes(object predicate, object path, object value) except -1:
  cls = type(predicate)
  if cls is OfType:
    return of_type(value, predicate.type)
  if cls is WithTag:
    return tagged(value, predicate, path)
  if cls is Not:
    return not passes(predicate.predicate, path, value)
  if cls is Any or cls is All:
    for part in predicate.predicates:
      if passes(part, path, value) == (cls is Any):
        return cls is Any
    return cls is All
  return cls is Everything


cdef bint of_type(object value, object wanted) except -1:
  if info_of(value).kind is kinds.VARIABLE:
    if type(wanted) is type or type(wanted) is type(upstream.Variable):
      return PyType_IsSubtype(Py_TYPE(value), <PyTypeObject*>wanted)
  return isinstance(value, wanted)


cdef bint tagged(object value, object predicate, object path) except -1:
  """A Variable finds a tag in its metadata, which its class or its value may have one beside."""
  cdef object cls = type(value)
  if (
    info_of(value).kind is not kinds.VARIABLE
    or lookup(cls, 'tag') is not None
    or lookup(cls, '__getattr__') is not pure_getattr
  ):
    return bool(predicate(path, value))
  metadata = read(value, METADATA, '_var_metadata')
  if type(metadata) is dict and 'tag' in metadata:
    return bool(metadata['tag'] == predicate.tag)
  if type(read(value, RAW_VALUE, '_raw_value')) is upstream.ArrayImpl:   # which has no such attribute
    return False
  return bool(predicate(path, value))


def install() -> None:
  global METADATA, RAW_VALUE, pure_getattr
  METADATA = offset_of(upstream.Variable, '_var_metadata')
  RAW_VALUE = offset_of(upstream.Variable, '_raw_value')
  pure_getattr = vars(upstream.Variable)['__getattr__']
