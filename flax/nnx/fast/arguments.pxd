"""What stood in the place of each argument when a plan was made, and whether it still does."""
cimport cython


cdef enum Shape:
  PASSED      # an array, a number, a string: handed on
  ROOT        # a graph node or Variable: verified, and handed on as its leaves
  SEQUENCE    # a list or tuple that holds roots
  MAPPING     # a dict that holds roots
  TREE        # a list, tuple or dict of what is PASSED, however deep


@cython.final
cdef class Roots:
  """The nodes among the arguments, in the order of a walk over them."""
  cdef list objects
  cdef list names              # of the arguments that they are in
  cdef list tokens             # of each, what stands for its structure in the jitted call
  cdef list lists              # of each, its leaves


@cython.final
cdef class Argument:
  """What stood in the place of one argument."""
  cdef Shape shape
  cdef object cls
  cdef Py_ssize_t root
  cdef size_t address          # ROOT: of the object; it is not kept alive
  cdef tuple keys
  cdef tuple parts

  cdef bint fits(self, object value, list held) except -1
  cdef object built(self, object value, list nodes)


@cython.final
cdef class Arguments:
  """Those of one call."""
  cdef tuple parts             # an Argument for each, positional ones first
  cdef tuple names             # of the keyword ones

  cdef bint fit(self, tuple args, dict kwargs, list held) except -1
  cdef tuple built(self, tuple args, dict kwargs, list nodes)


cdef bint tree_passes(object value, int depth) except -1
# None: no plan covers one of them. `pure_args` and `pure_kwargs` are what the jitted call takes.
cdef Arguments arguments_of(
  tuple args, dict kwargs, tuple pure_args, dict pure_kwargs, list parameters, Roots roots
)
