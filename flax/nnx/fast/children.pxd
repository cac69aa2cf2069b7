"""What lies directly under a node, for every walk that only looks."""
cimport cython
from flax.nnx.fast.kinds cimport TypeInfo

# Whether two dicts hold the same objects under the same keys, in the same order or in any.
cdef bint same_items(dict a, dict b) noexcept
cdef bint same_values(dict a, dict b) except -1

cdef list sorted_items(dict mapping)      # (key, value) by key; None: the keys sort by code of theirs
cdef object state_mapping(object state)   # the dict in a State; None: not standard
cdef tuple longer(tuple path, object key)   # (*path, key)

# Loops with `append`, where Cython's comprehensions drop a reference twice when memory runs out.
cdef list column(object rows, Py_ssize_t i)      # the i-th of each tuple
cdef list picked(object values, list order)      # values[order[0]], values[order[1]], ...

@cython.final
cdef class Children:
  """Keys and values of a node, in walk order."""
  cdef object keys       # a tuple, list or range of str or int
  cdef list values
  cdef Py_ssize_t at     # where `find` looks next
  cdef dict by_key       # None until a key is asked for out of order

  cdef object find(self, object key, object default)   # the value under a str or int

cdef Children children_of(object node, TypeInfo info)   # None: ask the node's own functions
