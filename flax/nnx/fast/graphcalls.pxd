"""A call of a function that `nnx.jit` made, in graph mode: by plan where one fits."""
cimport cython
from flax.nnx.fast.flights cimport Flight
from flax.nnx.fast.graphprograms cimport GraphProgram, Record
from flax.nnx.fast.plans cimport Plan
from flax.nnx.fast.programs cimport Outcome
from flax.nnx.fast.sites cimport Planned, Site

@cython.final
cdef class Settled:
  """What a trace leaves behind, once it was seen to leave the planned objects as they were."""
  cdef Record record           # None where the whole program runs
  cdef list definitions        # what the whole program gives for the nodes
  cdef list changed            # leaves that are replaced, in the order of the output
  cdef list kept               # leaves that stay
  cdef list keys               # those of them that are typed keys
  cdef list unused             # those of them that the program does not look at
  cdef list refs               # weak references to the arrays that stay, which were found to be fit
  cdef object sharding         # of them all
  cdef list layouts            # of each
  cdef bint loose              # whether those are committed to no device
  cdef list world              # jax's configuration then

  cdef bint sort(self, Record record) except -1
  cdef int vouch(self, list arrays) except -1
  cdef bint standing(self, Plan plan) noexcept
  cdef bint refit(self, list arrays) except -1
  cdef bint undisturbed(self, list arrays, tuple args, dict kwargs) except -1


@cython.final
cdef class GraphSite(Site):
  cdef readonly GraphProgram program

  cdef Planned note(self, tuple args, dict kwargs, tuple pure_args, dict pure_kwargs, object cache)
  cdef int settle(
    self, Planned planned, Record record, list definitions, tuple args, dict kwargs
  ) except -1
  cdef int keep_settled(self, Planned planned, Settled settled) except -1
  cdef object by_plan(self, object jit, tuple args, dict kwargs, object cache)
  cdef object flown(
    self, object jit, Planned planned, tuple args, dict kwargs, object cache, list arrays, list owners
  )
  cdef object landed(self, Flight flight, Planned planned, list nodes, tuple outs, list owners)
  cdef object merged(
    self, Flight flight, Planned planned, Outcome outcome, object args_out, object kwargs_out, object out
  )
  cdef object general(self, object jit, tuple args, dict kwargs, object cache)
