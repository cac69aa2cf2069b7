"""Stands in for Python functions that others hold already, at the entry that C code calls them by.

jax keeps the flatten functions that upstream registered with it, by class, and takes no others. So
the function objects stay, and their vectorcall entry is set to a compiled one, which calls the pure
entry for whatever it does not recognise.
"""
import types

from cpython.object cimport PyObject

cdef extern from *:
  """
  static vectorcallfunc flax_pure_entry = NULL;   /* of every Python function */
  static void flax_set_entry(PyObject* f, void* entry) {
    PyFunctionObject* function = (PyFunctionObject*)f;
    if (flax_pure_entry == NULL) flax_pure_entry = function->vectorcall;
  #if PY_VERSION_HEX >= 0x030C0000
    PyFunction_SetVectorcall(function, (vectorcallfunc)entry);
  #else
    function->func_version = 0;
    function->vectorcall = (vectorcallfunc)entry;
  #endif
  }
  """
  void flax_set_entry(PyObject* function, void* entry) noexcept
  object flax_pure_entry(PyObject* function, PyObject** args, size_t nargs, PyObject* names)
  Py_ssize_t PyVectorcall_NARGS(size_t nargs) noexcept


cdef int step_in(object function, Entry entry) except -1:
  if type(function) is not types.FunctionType:
    raise TypeError(f'{function!r} is no Python function')
  flax_set_entry(<PyObject*>function, <void*>entry)
  return 0


cdef object pure(PyObject* function, PyObject** args, size_t nargs, PyObject* names):
  """What the function's own code gives."""
  return flax_pure_entry(function, args, nargs, names)


cdef bint takes(size_t nargs, PyObject* names, Py_ssize_t expected) noexcept:
  """Whether a call has so many arguments, all of them positional."""
  return names is NULL and PyVectorcall_NARGS(nargs) == expected


cdef bint arguments(
  PyObject** args, size_t nargs, PyObject* names, Py_ssize_t expected, str last
) except -1:
  """The same, where the last one may come by its name, `last`; it stands in its place in `args`."""
  cdef Py_ssize_t n = PyVectorcall_NARGS(nargs)
  if names is NULL or len(<tuple>names) == 0:
    return n == expected
  return n == expected - 1 and len(<tuple>names) == 1 and (<tuple>names)[0] == last
