"""The trace that this thread is under."""

cdef object configured             # (one of jax's settings) -> its value in this thread
cdef bint at_top_level() except -1
cdef object current_state()        # upstream's TraceState of it, the same object while it lasts
cdef bint is_current(object trace_state) except -1   # whether a TraceState surely is of this trace
