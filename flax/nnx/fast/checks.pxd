"""What upstream asks of every value that is assigned, stored or looked at, answered by its type."""

cdef object DATA, STATIC
# DATA: one array, Variable or Pytree; STATIC: a plain value that is no container; None: not known.
cdef object side_of(object value)
