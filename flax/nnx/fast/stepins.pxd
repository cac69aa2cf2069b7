"""Stands in for Python functions that others hold already, at the entry that C code calls them by."""
from cpython.object cimport PyObject

ctypedef object (*Entry)(PyObject* function, PyObject** args, size_t nargs, PyObject* names)

cdef int step_in(object function, Entry entry) except -1
cdef object pure(PyObject* function, PyObject** args, size_t nargs, PyObject* names)
cdef bint deep() noexcept
cdef bint takes(size_t nargs, PyObject* names, Py_ssize_t expected) noexcept
cdef bint arguments(
  PyObject** args, size_t nargs, PyObject* names, Py_ssize_t expected, str last
) except -1
