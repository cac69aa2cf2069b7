"""What upstream asks of every value that is assigned, stored or looked at, answered by its type.

`isinstance(x, Variable)`, `is_array_ref(x)` and `is_data(x)` run some ten thousand times while a
model of a hundred layers is made. Types that a walk knows answer at once; the pure functions answer
for all others.
"""
from cpython.object cimport PyObject, PyTypeObject

import jax
from jax._src.core import ShapedArray as _ShapedArray

from flax.nnx.fast cimport kinds, upstream
from flax.nnx.fast.kinds cimport info_of
from flax.nnx.fast.stepins cimport pure, step_in, takes

cdef extern from "Python.h":
  int PyType_IsSubtype(PyTypeObject* a, PyTypeObject* b) noexcept

cdef object Tracer = jax.core.Tracer
cdef object ShapedArray = _ShapedArray
cdef object DATA = 'data', STATIC = 'static'
cdef object VariableMeta
cdef dict pytreelib_names


cdef bint plain_array(object value) except -1:
  """Whether it is a concrete array or the tracer of one, hence no reference and no Variable."""
  cls = type(value)
  if cls is upstream.ArrayImpl or cls is upstream.ndarray:
    return True
  return (
    PyType_IsSubtype(<PyTypeObject*>cls, <PyTypeObject*>Tracer) and type(value.aval) is ShapedArray
  )


cdef object is_array_ref(PyObject* f, PyObject** args, size_t nargs, PyObject* names):
  if takes(nargs, names, 1):
    value = <object>args[0]
    if plain_array(value) or info_of(value).kind < kinds.STRANGER:
      return False
  return pure(f, args, nargs, names)


cdef object is_instance(PyObject* f, PyObject** args, size_t nargs, PyObject* names):
  """`isinstance(value, cls)` where `cls` is Variable or a subclass."""
  if takes(nargs, names, 2):
    cls, value = <object>args[0], <object>args[1]
    meta, own = type(cls), type(value)
    if not PyType_IsSubtype(<PyTypeObject*>meta, <PyTypeObject*>VariableMeta):
      return pure(f, args, nargs, names)
    if PyType_IsSubtype(<PyTypeObject*>own, <PyTypeObject*>cls):
      return True
    if plain_array(value) or info_of(value).kind is not kinds.OTHER:
      return False
  return pure(f, args, nargs, names)


cdef object side_of(object value):
  """Tracers are static upstream, since `typing.Union` asks for their class: not known here."""
  cdef kinds.Kind kind = info_of(value).kind
  if kind is kinds.ARRAY or kind is kinds.VARIABLE or kind is kinds.GRAPH:
    return DATA
  if kind is kinds.PLAIN or kind is kinds.NONE:
    return STATIC if type(value) not in pytreelib_names['DATA_REGISTRY'] else None
  return None


cdef object is_data(PyObject* f, PyObject** args, size_t nargs, PyObject* names):
  cdef kinds.Kind kind
  if takes(nargs, names, 1):
    value = <object>args[0]
    side = side_of(value)
    if side is not None:
      return side is DATA
    kind = info_of(value).kind
    if kind < kinds.STRANGER and kind is not kinds.ARRAY:
      return type(value) in pytreelib_names['DATA_REGISTRY']
  return pure(f, args, nargs, names)


def install(variablelib: dict, pytreelib: dict) -> None:
  global pytreelib_names, VariableMeta
  pytreelib_names, VariableMeta = pytreelib, variablelib['VariableMeta']
  step_in(variablelib['is_array_ref'], is_array_ref)
  step_in(vars(VariableMeta)['__instancecheck__'], is_instance)
  step_in(pytreelib['is_data'], is_data)
