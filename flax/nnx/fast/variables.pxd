"""Making, copying and setting Variables whose class keeps the standard accessors."""
cimport cython


cdef bint plain_metadata(object metadata) except -1   # a dict that says neither `hijax` nor `ref`


@cython.final
cdef class TraceCheck:
  """The trace that a walk runs under, asked for once."""
  cdef object trace_state    # shared by the Variables and Pytrees that the walk makes
  cdef object trace_ref      # jax's weak reference to the trace; None where it shows none

  cdef object state(self)
  cdef bint holds(self, object variable) except -1


@cython.final
cdef class Mappings:
  """Variables' metadata as HashableMappings, one for all Variables of a walk that hold the same."""
  cdef list latest           # (mapping, the dict in it), the latest few

  cdef object of(self, dict metadata)


cdef object new_variable(object cls, object value, dict metadata, object trace_state)
cdef object copied(object variable, TraceCheck trace)
cdef object created(object definition, object value, TraceCheck trace)
# False: not standard, and nothing was set.
cdef bint set_value(object variable, object value, TraceCheck trace) except -1
cdef bint set_from(object variable, object other, TraceCheck trace) except -1
