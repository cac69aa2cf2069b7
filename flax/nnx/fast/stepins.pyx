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
  static int flax_levels_left(void) {
  #if PY_VERSION_HEX >= 0x030E0000
    return 1 << 20;   /* what is left of the stack itself is looked at */
  #elif PY_VERSION_HEX >= 0x030C0000
    return PyThreadState_Get()->c_recursion_remaining;
  #else
    return PyThreadState_Get()->recursion_remaining;
  #endif
  }
  """
  int flax_levels_left() noexcept   # before a RecursionError
  void flax_set_entry(PyObject* function, void* entry) noexcept
  object flax_pure_entry(PyObject* function, PyObject** args, size_t nargs, PyObject* names)
  Py_ssize_t PyVectorcall_NARGS(size_t nargs) noexcept


cdef enum:
  LEFT_TO_PURE = 100


cdef int step_in(object function, Entry entry) except -1:
  if type(function) is not types.FunctionType:
    raise TypeError(f'{function!r} is no Python function')
  flax_set_entry(<PyObject*>function, <void*>entry)
  return 0


cdef object pure(PyObject* function, PyObject** args, size_t nargs, PyObject* names):
  """What the function's own code gives."""
  return flax_pure_entry(function, args, nargs, names)


cdef bint deep() noexcept:
  """Whether the recursion is about to end in an error.

  jax's flattening does not give back the levels it took when one is raised. What the pure functions
  take at the end leaves the program some to go on with; compiled ones would leave none.
  """
  return flax_levels_left() < LEFT_TO_PURE


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
