"""The jitted functions behind `nnx.jit` and `nnx.jit_partial`, with nodes as flat lists of leaves."""
cimport cython


@cython.final
cdef class Outcome:
  """What a call gives back for its arguments: the leaves that changed, and the trace's record."""
  cdef readonly object record
  cdef readonly list leaves


cdef enum Leader:
  NEITHER
  FULL
  OUTER


cdef class Program:
  """Stands where upstream has its `jitted_fn`, and is called as that is."""
  cdef readonly object full         # jax.jit of upstream's own function
  # jax.jit that takes flat nodes and gives an Outcome; None until it is needed, and where the
  # caller's options leave upstream's own program only
  cdef readonly object outer
  cdef Leader leader                # the one of both that was traced first
  cdef object pure                  # upstream's function
  cdef dict options                 # of `outer`
  cdef tuple statics                # positions and names of static arguments, once asked for
  cdef dict __dict__
  cdef object __weakref__

  cdef bint flattens(self) except -1
  cdef bint is_static(self, object at, Py_ssize_t n) except -1
  cdef bint static_states(self, tuple args, dict kwargs) except -1
  cdef object dynamic(self, tuple args, dict kwargs)
  cdef bint leads(self, Leader one) noexcept
  cdef tuple replayed(self, tuple args, dict kwargs)


cdef tuple SCALARS              # Python's number types, as jax takes them
cdef bint all_values(list leaves) except -1
cdef bint same_list(list a, list b) noexcept   # whether they hold the same objects
