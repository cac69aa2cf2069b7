"""A call of `nnx.jit`'s function: by plan where one fits, else the general way, which makes the next."""
from flax.nnx.fast.flights cimport Flight
from flax.nnx.fast.plans cimport Plan
from flax.nnx.fast.programs cimport Outcome, Program, Record

cdef enum Shape:
  PASSED      # an array, a number, a string: handed on
  ROOT        # a graph node or Variable: verified, and handed on as its leaves
  SEQUENCE    # a list or tuple that holds roots
  MAPPING     # a dict that holds roots
  TREE        # a list, tuple or dict of what is PASSED, however deep


cdef class Argument:
  """What stood in the place of one argument when the plan was made."""
  cdef Shape shape
  cdef object cls
  cdef Py_ssize_t root
  cdef size_t address          # ROOT: of the object; it is not kept alive
  cdef tuple keys
  cdef tuple parts

  cdef bint fits(self, object value) except -1
  cdef object built(self, object value, list nodes)


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


cdef class Planned:
  """A plan, the arguments that it is for, and what was seen to come back."""
  cdef Plan plan
  cdef tuple arguments         # an Argument for each, positional ones first
  cdef tuple names             # of the keyword ones
  cdef list graphdefs          # of each root
  cdef list root_names         # of the arguments that they are in
  cdef object cache            # a weak reference to the static cache of `cached_partial` that it is for
  cdef list settled            # the latest few
  cdef Settled expected
  cdef bint whole              # whether the whole program has to run: arrays on several devices, say

  cdef bint fits(self, tuple args, dict kwargs, object cache) except -1
  cdef tuple built(self, tuple args, dict kwargs, list nodes)
  cdef str words(self, Py_ssize_t step)
  cdef Settled known(self, Record record, list definitions)


cdef class Site:
  """One function that `nnx.jit` made."""
  cdef readonly Program program
  cdef readonly object name
  cdef list plans              # the latest first
  cdef list parameters         # their names, once asked for
  cdef readonly Py_ssize_t calls, fast, unused
  cdef readonly dict reasons   # why a call went the general way: {words: times}
  cdef object __weakref__

  cdef int count(self, str why) except -1
  cdef Planned planned(self, tuple args, dict kwargs, tuple pure_args, dict pure_kwargs, object cache)
  cdef bint agrees(self, Planned planned, list lists) except -1
  cdef object parameter(self, Py_ssize_t i)
  cdef int settle(
    self, Planned planned, Record record, list definitions, object args, object kwargs
  ) except -1
  cdef int keep(self, Planned planned, Settled settled) except -1
  cdef object by_plan(self, object jit, tuple args, dict kwargs, object cache)
  cdef Planned fitting(self, tuple args, dict kwargs, object cache)
  cdef object flown(
    self, object jit, Planned planned, tuple args, dict kwargs, object cache, list lists, list owners
  )
  cdef object landed(self, Flight flight, Planned planned, list nodes, tuple outs, list owners)
  cdef object merged(
    self, Flight flight, Planned planned, Outcome outcome, object args_out, object kwargs_out, object out
  )
  cdef object general(self, object jit, tuple args, dict kwargs, object cache)
