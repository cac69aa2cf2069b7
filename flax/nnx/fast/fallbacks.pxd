"""Counts what the compiled twins hand to the pure ones, and why."""
from flax.nnx.fast.kinds cimport TypeInfo

cdef int count(str walk, object cls, str why) except -1
