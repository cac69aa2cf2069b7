"""Reference maps: object identity -> index, the memory of a walk."""
cimport cython


cdef object MISSING        # what `find` gives for an object that is not mapped


@cython.final
cdef class RefTable:
  """A hash table from an object's address to (object, value), in insertion order."""
  cdef list keys             # the mapped objects, kept alive
  cdef list values           # what each maps to; an int in every walk
  cdef size_t* addresses     # id of each key; another than the key's own only in an unpickled map
  cdef int* buckets          # hash position -> entry number, or EMPTY
  cdef Py_ssize_t capacity   # entries that fit before the table grows
  cdef Py_ssize_t mask       # number of buckets, a power of two, less one
  cdef dict mapping          # the pure class's dictionary, once Python asked for it; None before

  cdef Py_ssize_t size(self) noexcept
  cdef object find(self, object key)
  cdef int insert(self, object key, object value) except -1
  cdef dict materialise(self)
  cdef Py_ssize_t probe(self, size_t address) noexcept
  cdef int grow(self) except -1
  cdef int rehash(self) noexcept


cdef object RefMap           # the public classes, made from the pure ones
cdef object IndexMap

cdef bint has_table(object refmap) noexcept   # False for one that was never initialised
cdef RefTable table_of(object refmap)   # of a RefMap; AttributeError where it has none yet
