"""Filters: which leaves of a state go where."""

# Whether `...` or `True` stands before another filter, which is an error.
cdef bint exhaust_early(tuple filters) except -1

# Whether it is made of flax's own filters alone, and what such a one says. `depth`: how far within one.
cdef bint is_known(object predicate, int depth=*) except -1
cdef bint passes(object predicate, object path, object value, int depth=*) except -1
