"""Reading and setting the value of a Variable outside of walks: `v[...]`, `get_value`, `set_value`.

What is done here is the plain case, an array or tracer that is read or replaced as a whole. Hooks,
references, indices and whatever a class overrides are the pure functions' to handle.
"""
from cpython.object cimport PyObject, PyTypeObject

import jax
from jax._src.core import ShapedArray as _ShapedArray

from flax.nnx.fast cimport kinds, upstream
from flax.nnx.fast.kinds cimport TypeInfo, info_of, lookup
from flax.nnx.fast.slots cimport has_slot, offset_of, read, store
from flax.nnx.fast.stepins cimport arguments, pure, step_in, takes
from flax.nnx.fast.traces cimport is_current
from flax.nnx.fast.variables cimport plain_metadata

cdef extern from "Python.h":
  int PyType_IsSubtype(PyTypeObject* a, PyTypeObject* b) noexcept

cdef object Tracer = jax.core.Tracer
cdef object ShapedArray = _ShapedArray
cdef object is_deleted, MISSING
cdef object pure_get, pure_set            # Variable's own functions
cdef Py_ssize_t RAW_VALUE, METADATA, TRACE_STATE


cdef bint is_array(object value) except -1:
  """Whether jax takes it for one array, and it is no reference."""
  cls = type(value)
  if cls is upstream.ArrayImpl or cls is upstream.KeyArray:
    return True
  return (
    PyType_IsSubtype(<PyTypeObject*>cls, <PyTypeObject*>Tracer) and type(value.aval) is ShapedArray
  )


cdef bint is_value(object value) except -1:
  """The same, or a NumPy array or number."""
  cls = type(value)
  return cls is upstream.ndarray or cls is int or cls is float or is_array(value)


cdef bint asks_index(
  PyObject** args, size_t nargs, PyObject* names, Py_ssize_t expected, PyObject** index
) except -1:
  """Whether a call has so many positional arguments, and `index` or nothing by name."""
  index[0] = <PyObject*>MISSING
  if takes(nargs, names, expected):
    return True
  if names is NULL or not arguments(args, nargs, names, expected + 1, 'index'):
    return False
  index[0] = args[expected]
  return len(<tuple>names) == 1


# ---- reading ----

cdef object got(object variable, bint whole):
  """The value as it is; MISSING where the pure function has to look. `whole`: by `[...]`."""
  cdef TypeInfo info = info_of(variable)
  if not (info.slotted and has_slot(variable, RAW_VALUE) and has_slot(variable, METADATA)):
    return MISSING
  value, metadata = read(variable, RAW_VALUE, ''), read(variable, METADATA, '')
  if type(metadata) is not dict or 'on_get_value' in <dict>metadata:
    return MISSING
  if not (is_array(value) if whole else is_value(value)):
    return MISSING
  return value


cdef object get_value(PyObject* f, PyObject** args, size_t nargs, PyObject* names):
  cdef PyObject* index
  if asks_index(args, nargs, names, 1, &index) and (
    index is <PyObject*>MISSING or index is <PyObject*>Ellipsis
  ):
    value = got(<object>args[0], index is not <PyObject*>MISSING)
    if value is not MISSING:
      return value
  return pure(f, args, nargs, names)


cdef object get_item(PyObject* f, PyObject** args, size_t nargs, PyObject* names):
  if takes(nargs, names, 2) and args[1] is <PyObject*>Ellipsis:
    variable = <object>args[0]
    if lookup(type(variable), 'get_value') is pure_get:
      value = got(variable, True)
      if value is not MISSING:
        return value
  return pure(f, args, nargs, names)


# ---- setting ----

cdef bint replaces(object raw, object value) except -1:
  """Whether `raw[...] = value` puts `value` in the place of `raw`."""
  return (
    type(raw) is upstream.ArrayImpl and type(value) is upstream.ArrayImpl and not is_deleted(raw)
    and value.shape == raw.shape and value.dtype == raw.dtype and value.sharding == raw.sharding
  )


cdef bint was_set(object variable, object value, bint whole) except -1:
  """Sets the value; False, and nothing is done, where the pure function has to look."""
  if info_of(variable).kind is not kinds.VARIABLE:
    return False
  if not (
    has_slot(variable, RAW_VALUE) and has_slot(variable, METADATA) and has_slot(variable, TRACE_STATE)
  ):
    return False
  raw, metadata = read(variable, RAW_VALUE, ''), read(variable, METADATA, '')
  if not plain_metadata(metadata) or 'on_set_value' in <dict>metadata:
    return False
  if not (replaces(raw, value) if whole else is_value(raw) and is_value(value)):
    return False
  if not is_current(read(variable, TRACE_STATE, '')):
    return False
  store(variable, RAW_VALUE, value)
  return True


cdef object set_value(PyObject* f, PyObject** args, size_t nargs, PyObject* names):
  cdef PyObject* index
  if asks_index(args, nargs, names, 2, &index) and (
    index is <PyObject*>MISSING or index is <PyObject*>Ellipsis
  ):
    if was_set(<object>args[0], <object>args[1], index is not <PyObject*>MISSING):
      return None
  return pure(f, args, nargs, names)


cdef object set_item(PyObject* f, PyObject** args, size_t nargs, PyObject* names):
  if takes(nargs, names, 3) and args[1] is <PyObject*>Ellipsis:
    variable = <object>args[0]
    if lookup(type(variable), 'set_value') is pure_set and was_set(variable, <object>args[2], True):
      return None
  return pure(f, args, nargs, names)


def install(variablelib: dict) -> None:
  global RAW_VALUE, METADATA, TRACE_STATE, MISSING, is_deleted, pure_get, pure_set
  own = vars(upstream.Variable)
  MISSING, is_deleted = variablelib['MISSING'], upstream.ArrayImpl.is_deleted
  RAW_VALUE = offset_of(upstream.Variable, '_raw_value')
  METADATA = offset_of(upstream.Variable, '_var_metadata')
  TRACE_STATE = offset_of(upstream.Variable, '_trace_state')
  pure_get, pure_set = own['get_value'], own['set_value']
  step_in(pure_get, get_value)
  step_in(pure_set, set_value)
  step_in(own['__getitem__'], get_item)
  step_in(own['__setitem__'], set_item)
