"""What lies directly under a node, for every walk that only looks."""
from flax.nnx.fast.kinds cimport TypeInfo

cdef bint same_items(dict a, dict b) noexcept    # the same keys, in the same order, and values, by identity
cdef bint same_values(dict a, dict b) except -1  # the same keys, in any order, and values, by identity
cdef list sorted_items(dict mapping)             # (key, value) pairs by key; None: keys that sort by their own code
cdef object state_mapping(object state)          # the dict in a State; None: not standard
cdef tuple longer(tuple path, object key)        # (*path, key)

cdef class Children:
  """Keys and values of a node, in walk order."""
  cdef object keys       # a tuple or list
  cdef list values

cdef Children children_of(object node, TypeInfo info)   # None: ask the node's own functions
