"""Nested mappings and their leaves by path, there and back."""

cdef object mapping_of(object xs)   # the dict that a dict or State is, where it is walked here; or None

# Appends the leaves below a dict, and their paths where a list for them is given, each dict by its
# keys or as it stands; False, also for None: not here, and the lists are spoilt.
cdef bint spread(object mapping, bint in_order, list paths, list leaves) except -1

# The nested dicts of leaves by path; None where the pure twin has to look. `nested_of`: of a dict
# from path to leaf, or a list of pairs.
cdef dict nested(object paths, object values)
cdef dict nested_of(object flat)
