"""What is kept for each function that `nnx.jit` or `nnx.jit_partial` made: plans, and counts."""
cimport cython
from flax.nnx.fast.arguments cimport Arguments, Roots
from flax.nnx.fast.plans cimport Plan

@cython.final
cdef class Planned:
  """A plan, the arguments that it is for, and what was seen to come back."""
  cdef Plan plan
  cdef Arguments arguments
  cdef list tokens             # of each root: what stands for its structure in the jitted call
  cdef list root_names         # of the arguments that they are in
  cdef object cache            # a weak reference to the static cache of `cached_partial` that it is for
  cdef list settled            # what the latest few traces left behind
  cdef object expected         # the latest of those
  cdef bint whole              # whether the whole program has to run: arrays on several devices, say
  cdef object places           # without graph updates: the leaf of each place that upstream names

  cdef bint fits(self, tuple args, dict kwargs, object cache, list held) except -1
  cdef str words(self, Py_ssize_t step)
  cdef int know(self, object settled, object replaced) except -1


cdef class Site:
  """One such function."""
  cdef readonly object name
  cdef list plans              # the latest first
  cdef object fun              # whose signature names the arguments
  cdef list parameters         # their names, once asked for
  cdef readonly Py_ssize_t calls, fast
  cdef readonly Py_ssize_t unused   # plans made since one was used
  cdef readonly Py_ssize_t tried    # calls that should have made a plan since one did
  cdef readonly dict reasons   # why a call went the general way: {words: times}
  cdef str why                 # the latest of those
  cdef object __weakref__

  cdef int count(self, str why) except -1
  cdef bint plannable(self) except -1
  cdef Planned planned_for(self, tuple args, dict kwargs, tuple pure_args, dict pure_kwargs)
  cdef Planned planned(self, Roots roots)
  cdef bint agrees(self, Planned planned, list lists) except -1
  cdef list parameter_names(self)
  cdef int keep(self, Planned planned) except -1
  cdef Planned fitting(self, tuple args, dict kwargs, object cache, list held)
  cdef int used(self) noexcept


cdef object uncompiled(object jit, tuple args, dict kwargs)   # a call of a copy, which has no site

cdef object MISS               # what a call by plan gives before anything was done
