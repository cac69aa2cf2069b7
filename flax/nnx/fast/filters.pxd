"""Filters: which leaves of a state go where."""

# Whether `...` or `True` stands before another filter, which is an error.
cdef bint exhaust_early(tuple filters) except -1

cdef bint is_known(object predicate) except -1   # whether it is made of flax's own filters alone
cdef bint passes(object predicate, object path, object value) except -1   # what a known one says
