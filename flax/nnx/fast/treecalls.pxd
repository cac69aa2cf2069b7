"""A call of a function that `nnx.jit` made without graph updates, or `nnx.jit_partial`."""
cimport cython
from flax.nnx.fast.plans cimport Plan
from flax.nnx.fast.sites cimport Planned, Site
from flax.nnx.fast.treeprograms cimport Changes, TreeProgram

@cython.final
cdef class Seen:
  """What a trace leaves behind, once it was seen to leave the planned objects as they were."""
  cdef Changes changes
  cdef list leaves             # of the plan: those that the changed values go to, in their order


cdef class TreeSite(Site):
  cdef readonly TreeProgram program

  cdef Planned note(self, object jit, tuple args, dict kwargs, tuple flat)
  cdef int settle(self, Planned planned, Changes changes) except -1
  cdef Planned fit(self, object jit, tuple args, dict kwargs, list held)
  cdef tuple outer_args(self, object jit, Planned planned, tuple args, dict kwargs, list arrays)
  cdef object by_plan(self, object jit, tuple args, dict kwargs)
  cdef int landed(self, object jit, Planned planned, tuple outs, list owners) except -1
  cdef int merged(self, object jit, Planned planned, tuple outs, list owners) except -1
  cdef tuple taken(self, object jit, tuple args, dict kwargs)
  cdef object places(self, Plan plan, object variables)
  cdef object variables(self, object jit, Planned planned, list owners)
  cdef int apply(self, object variables, object updates) except -1
  cdef object general(self, object jit, tuple args, dict kwargs)
  cdef bint covers(self, tuple flat) except -1


@cython.final
cdef class PartialSite(TreeSite):
  """Of `nnx.jit_partial`: the nodes are one list of Variables and arrays, bound beforehand."""
