"""Whether any watched dict was written since: one number to compare, where there were many entries."""
from cpython.object cimport PyObject

cdef unsigned long long writes() noexcept   # to watched dicts so far, their ends included
cdef bint watch(PyObject* mapping) noexcept  # False: this Python cannot, or has no watcher left
cdef int make_watchable(dict attributes) except -1
