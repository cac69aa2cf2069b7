"""Reads and writes `__slots__` of Python classes as what they are in C: pointers at fixed offsets.

An offset is read once, at import, from the slot's own member descriptor. It holds for the class and
for every subclass, so callers first make sure of the type. A slot that was never set is NULL.
"""
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF, Py_XDECREF

cdef extern from "Python.h":
  ctypedef struct PyMemberDef:
    Py_ssize_t offset
  ctypedef struct PyMemberDescrObject:
    PyMemberDef* d_member
  PyTypeObject PyMemberDescr_Type
  object PyType_GenericAlloc(PyTypeObject* cls, Py_ssize_t nitems)
  PyTypeObject* Py_TYPE(object o)
  ctypedef struct VersionedType "PyTypeObject":
    unsigned int tp_version_tag


cdef inline unsigned int version_of(object cls) noexcept:
  """The type's version tag, which changes with its attributes and is never given twice; 0: none."""
  return (<VersionedType*>cls).tp_version_tag


cdef inline Py_ssize_t offset_of(object cls, str name) except -1:
  """Where instances of `cls` keep the slot `name`; TypeError where it is no slot."""
  descriptor = getattr(cls, name)
  if Py_TYPE(descriptor) is not &PyMemberDescr_Type:
    raise TypeError(f'{cls.__qualname__}.{name} is not a slot')
  return (<PyMemberDescrObject*>descriptor).d_member.offset


cdef inline PyObject** slot(object o, Py_ssize_t offset) noexcept:
  return <PyObject**>(<char*><PyObject*>o + offset)


cdef inline bint has_slot(object o, Py_ssize_t offset) noexcept:
  return slot(o, offset)[0] is not NULL


cdef inline object read(object o, Py_ssize_t offset, str name):
  """The slot's value; where it is unset, whatever asking for the attribute raises."""
  cdef PyObject* value = slot(o, offset)[0]
  if value is NULL:
    return getattr(o, name)
  return <object>value


cdef inline object blank(object cls):
  """An instance of `cls` with every slot unset; `cls` allocates as `object` does."""
  return PyType_GenericAlloc(<PyTypeObject*>cls, 0)


cdef inline void fill(object o, Py_ssize_t offset, object value) noexcept:
  """Sets a slot that is still unset."""
  Py_INCREF(value)
  slot(o, offset)[0] = <PyObject*>value


cdef inline void store(object o, Py_ssize_t offset, object value) noexcept:
  """Sets a slot; dropping the old value may run Python, after the new one is in place."""
  cdef PyObject* old = slot(o, offset)[0]
  Py_INCREF(value)
  slot(o, offset)[0] = <PyObject*>value
  Py_XDECREF(old)
