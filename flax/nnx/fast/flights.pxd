"""Calls under way, by thread, so that a trace knows whether upstream's contexts were told of it."""
cimport cython


@cython.final
cdef class Flight:
  """A call by plan. Upstream's contexts hear of its arguments only if it turns out to trace."""
  cdef object jit, args, kwargs, cache
  cdef object manager        # upstream's update context, once it is entered

  cdef int open(self) except -1
  cdef int close(self) except -1


cdef object take_off(object flight)          # None: a call that upstream's contexts know
cdef int land(object above) except -1        # `above`: what `take_off` gave
cdef object open_call(object jitted, tuple args, dict kwargs)
cdef bint under_way() noexcept               # whether this thread is in a call by plan
cdef int ground() except -1                  # a trace begins: opens the contexts of the latest call
