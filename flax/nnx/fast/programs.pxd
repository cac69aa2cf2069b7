"""The jitted function behind `nnx.jit`, whose untouched arrays stay where they are."""

cdef class Split:
  """A graph node as a jitted function takes it: one pytree node over its leaves."""
  cdef readonly object graphdef
  cdef readonly list leaves


cdef class Record:
  """What one trace gives back, worked out while tracing."""
  cdef readonly object treedef      # of what upstream's function gives for the arguments
  cdef readonly list sources        # for each leaf of that: the input leaf that it is, or -1
  cdef readonly set unused          # input leaves that the program does not look at; None at first
  cdef readonly list graphdefs      # of the Splits that were traced; jax compares with these


cdef class Outcome:
  """What a call gives back for its arguments: the leaves that changed, and the trace's record."""
  cdef readonly Record record
  cdef readonly list leaves


cdef class Program:
  cdef readonly object full         # jax.jit of upstream's own function
  # jax.jit that takes Splits and leaves out what is untouched; None until it is needed, and where
  # arguments are donated or placed by the caller
  cdef readonly object outer
  cdef object pure                  # upstream's function
  cdef dict options                 # of `outer`
  cdef list traces                  # GraphDefs that came out of whole programs, and that went in
  cdef dict __dict__

  cdef bint prunes(self) except -1
  cdef int note_unused(self, Record record, tuple args, dict kwargs) except -1
  cdef tuple run(self, tuple args, dict kwargs)
  cdef tuple run_whole(self, tuple args, dict kwargs)
  cdef list traced_with(self, Record record, list definitions)
  cdef tuple replay(self, tuple args, dict kwargs)
  cdef object dynamic(self, tuple args, dict kwargs)


cdef object NodeStates            # upstream's: a graph node as its jitted function takes it
cdef bint plain_states(object states) except -1
cdef bint uniform(list lists, list others) except -1
cdef bint at_top_level() except -1
cdef bint alone(object array, Py_ssize_t holders) except -1
cdef list states_in(object carried)       # the NodeStates in lists, tuples and dicts, in jax's order
cdef bint has_states(object x) except -1  # whether there are any, anywhere in a pytree
cdef bint same_list(list a, list b) noexcept   # whether they hold the same objects
cdef list filled_in(Outcome outcome, list splits, bint concrete)
