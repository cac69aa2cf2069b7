"""How a node of the arguments goes into a jitted call: as one pytree node over its leaves."""
cimport cython


cdef class Split:
  """A graph node in graph mode."""
  cdef readonly object graphdef
  cdef readonly list leaves


@cython.final
cdef class Flat:
  """A node that goes by its pytree flattening: in tree mode, and where graphs are not updated."""
  cdef readonly object treedef
  cdef readonly list leaves


cdef Split split_of(object graphdef, list leaves)
cdef Flat flat_like(object treedef, list leaves)
cdef object NodeStates            # upstream's: a graph node as its jitted function takes it
cdef object TreeState             # the same where graphs are not updated
cdef bint plain_states(object states) except -1
cdef list states_in(object carried)       # the NodeStates in lists, tuples and dicts, in jax's order
cdef bint has_states(object x) except -1  # whether there are any, anywhere in a pytree
cdef bint sortable(dict mapping) except -1
cdef object rebuilt(object x, object visit)
cdef tuple carried(object node)           # (token, leaves); (None, None) where it is none of these
