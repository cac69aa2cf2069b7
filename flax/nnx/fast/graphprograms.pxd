"""The jitted function behind `nnx.jit` in graph mode, whose untouched arrays stay where they are."""
cimport cython
from flax.nnx.fast.programs cimport Outcome, Program

@cython.final
cdef class Record:
  """What one trace gives back, worked out while tracing."""
  cdef readonly object treedef      # of what upstream's function gives for the arguments
  cdef readonly list sources        # for each leaf of that: the input leaf that it is, or -1
  cdef readonly set unused          # input leaves that the program does not look at; None at first
  cdef readonly list graphdefs      # of the Splits that jax compares with: of its latest entry


@cython.final
cdef class GraphProgram(Program):
  cdef bint calls_back              # whether any trace calls back into Python
  cdef object looking               # the thread that looks at a trace that jax has, or None
  cdef list traces                  # GraphDefs that came out of whole programs, and that went in

  cdef bint looked(self) except -1
  cdef object jaxpr_known(self, tuple args, dict kwargs)
  cdef int note_unused(self, Record record, tuple args, dict kwargs) except -1
  cdef tuple run(self, tuple args, dict kwargs)
  cdef tuple run_whole(self, tuple args, dict kwargs)
  cdef list traced_with(self, Record record, list definitions)
  cdef tuple replay(self, tuple args, dict kwargs)


cdef bint uniform(list lists, list others) except -1
cdef bint alone(object array, Py_ssize_t holders) except -1
cdef list filled_in(Outcome outcome, list splits, bint concrete)
