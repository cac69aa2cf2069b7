"""The jitted function behind `nnx.jit` without graph updates, and behind `nnx.jit_partial`."""
cimport cython
from flax.nnx.fast.programs cimport Program

@cython.final
cdef class Changes:
  """What one trace gives back beside its result, worked out while tracing."""
  cdef readonly object treedef      # of upstream's updates
  cdef readonly list places         # of the changed Variables: jax key paths, or numbers
  cdef readonly bint single         # whether each of them holds one leaf and nothing else
  cdef readonly list treedefs       # of the Flats that jax compares with: of its latest entry


@cython.final
cdef class TreeProgram(Program):
  cdef bint listed                  # whether the first argument is one list of Variables and arrays

  cdef tuple flattened(self, tuple args, dict kwargs)
  cdef object flat_argument(self, object at, object value, Py_ssize_t n)
  cdef tuple flat_call(self, tuple args, dict kwargs)
  cdef tuple flat_run(self, tuple args, dict kwargs)
  cdef tuple run(self, tuple flat, tuple args, dict kwargs)


cdef tuple unpacked(tuple outs)     # (changes or None, result, upstream's updates)
