"""Reference maps: object identity -> index, the memory of a walk.

A walk asks a map for little: is it there, which index, how many. So a `RefMap` starts as a C table
that makes no object for an entry. Whoever wants more of it (deleting, iterating, pickling, its
`_mapping`) turns it into the dictionary that the pure class is made of, for good.
"""
cimport cython
from cpython.list cimport PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject, PyTypeObject
from libc.string cimport memset

from flax.nnx.fast.fronts import front
from flax.nnx.fast.python import unpack_pair
from flax.nnx.fast.rebuild import rebuild
from flax.nnx.fast.kinds cimport instance_dict
from flax.nnx.fast.slots cimport Py_TYPE, has_slot, offset_of, read, store

cdef extern from "Python.h":
  int PyType_IsSubtype(PyTypeObject* a, PyTypeObject* b) noexcept

cdef enum:
  EMPTY = -1
  FIRST_BUCKETS = 16

MISSING = object()


# The collector may empty `keys` and `values`, lists both, when it breaks a cycle; it never takes
# them away. So every entry number is checked against the length that the lists have now.
@cython.no_gc_clear
cdef class RefTable:
  def __cinit__(self):
    self.keys = []
    self.values = []

  def __dealloc__(self):
    PyMem_Free(self.addresses)
    PyMem_Free(self.buckets)

  cdef Py_ssize_t size(self) noexcept:
    if self.mapping is not None:
      return len(self.mapping)
    return PyList_GET_SIZE(self.keys)

  @cython.overflowcheck(False)   # the product wraps, in a checked build too
  cdef Py_ssize_t probe(self, size_t address) noexcept:
    """The bucket that holds `address`, or the empty one where it belongs."""
    cdef size_t scattered = (address >> 4) * <size_t>0x9E3779B97F4A7C15
    cdef Py_ssize_t bucket = <Py_ssize_t>(scattered >> 32) & self.mask
    cdef int entry
    while True:
      entry = self.buckets[bucket]
      if entry == EMPTY or self.addresses[entry] == address:
        return bucket
      bucket = (bucket + 1) & self.mask

  cdef object find(self, object key):
    cdef size_t address = <size_t><PyObject*>key
    cdef int entry
    if self.mapping is not None:
      pair = self.mapping.get(address, MISSING)
      return MISSING if pair is MISSING else pair[1]
    if self.buckets is NULL:
      return MISSING
    entry = self.buckets[self.probe(address)]
    if entry == EMPTY or entry >= PyList_GET_SIZE(self.values):
      return MISSING
    return self.values[entry]

  cdef int insert(self, object key, object value) except -1:
    """Maps `key`; one that is there keeps its place and gets the new value."""
    cdef size_t address = <size_t><PyObject*>key
    cdef Py_ssize_t count = PyList_GET_SIZE(self.keys)
    cdef Py_ssize_t bucket
    if self.mapping is not None:
      self.mapping[address] = (key, value)
      return 0
    if count >= self.capacity:
      self.grow()
    bucket = self.probe(address)
    if self.buckets[bucket] >= count:
      self.rehash()
      bucket = self.probe(address)
    if self.buckets[bucket] != EMPTY:
      self.values[self.buckets[bucket]] = value
      return 0
    self.keys.append(key)
    self.values.append(value)
    self.addresses[count] = address
    self.buckets[bucket] = <int>count
    return 0

  cdef int grow(self) except -1:
    cdef Py_ssize_t size = (self.mask + 1) * 2 if self.mask else FIRST_BUCKETS
    cdef Py_ssize_t capacity = size * 2 // 3
    cdef size_t* addresses = <size_t*>PyMem_Realloc(self.addresses, capacity * sizeof(size_t))
    if addresses is NULL:
      raise MemoryError
    self.addresses = addresses
    cdef int* buckets = <int*>PyMem_Realloc(self.buckets, size * sizeof(int))
    if buckets is NULL:
      raise MemoryError
    self.buckets, self.mask, self.capacity = buckets, size - 1, capacity
    return self.rehash()

  cdef int rehash(self) noexcept:
    cdef Py_ssize_t entry
    memset(self.buckets, 0xFF, (self.mask + 1) * sizeof(int))   # all EMPTY
    for entry in range(PyList_GET_SIZE(self.keys)):
      self.buckets[self.probe(self.addresses[entry])] = <int>entry
    return 0

  cdef dict materialise(self):
    """The table as the pure class has it, {id: (object, value)}; from now on that is the table."""
    cdef Py_ssize_t entry
    cdef dict mapping
    if self.mapping is None:
      mapping = {}
      for entry in range(PyList_GET_SIZE(self.keys)):
        mapping[self.addresses[entry]] = (self.keys[entry], self.values[entry])
      self.mapping = mapping
      self.keys = []
      self.values = []
    return self.mapping


cdef Py_ssize_t TABLE    # where a RefMap keeps its table


cdef bint has_table(object refmap) noexcept:
  return has_slot(refmap, TABLE)


cdef RefTable table_of(object refmap):
  cdef RefTable table
  if not PyType_IsSubtype(Py_TYPE(refmap), <PyTypeObject*>RefMap):
    table = RefTable.__new__(RefTable)   # a method called on something else: ask that for its mapping
    table.mapping = refmap._mapping
    return table
  if not has_slot(refmap, TABLE):
    raise AttributeError(f"'{type(refmap).__name__}' object has no attribute '_mapping'")
  return <RefTable>read(refmap, TABLE, '_table')


cdef RefTable new_table(object refmap):
  cdef RefTable table = RefTable.__new__(RefTable)
  if not PyType_IsSubtype(Py_TYPE(refmap), <PyTypeObject*>RefMap):
    refmap._mapping = {}
    return table_of(refmap)
  store(refmap, TABLE, table)
  return table


# The methods of RefMap. Those that the pure class defines are carried over from it in name,
# signature and docstring; the last three keep up the appearance of its one attribute.

def __init__(self, mapping=None, /):
  new_table(self)
  if mapping is not None:
    self.update(mapping)


def get(self, key, default=None):
  found = table_of(self).find(key)
  return default if found is MISSING else found


def __getitem__(self, key):
  cdef RefTable table = table_of(self)
  found = table.find(key)
  return table.materialise()[id(key)][1] if found is MISSING else found


def __setitem__(self, key, value):
  table_of(self).insert(key, value)


def __delitem__(self, key):
  del table_of(self).materialise()[id(key)]


def __len__(self):
  return table_of(self).size()


def __contains__(self, key):
  return table_of(self).find(key) is not MISSING


def __iter__(self):
  for pair in table_of(self).materialise().values():
    yield unpack_pair(pair)[0]


def items(self):
  return table_of(self).materialise().values()


def from_indexmap(indexmap):
  refmap = RefMap()
  cdef RefTable table = table_of(refmap)
  for index, value in indexmap.items():
    table.insert(value, index)
  return refmap


def get_dict(self):
  """The instance's dict, with the one attribute that the pure class keeps in it."""
  attributes = instance_dict(self)
  if '_mapping' not in attributes:
    others = dict(attributes)
    attributes.clear()
    attributes['_mapping'] = table_of(self).materialise()
    attributes.update(others)
  return attributes


def get_mapping(self):
  return table_of(self).materialise()


def set_mapping(self, mapping):
  new_table(self).mapping = mapping
  instance_dict(self)['_mapping'] = mapping


def __getstate__(self):
  return dict(get_dict(self))


def __setstate__(self, state):
  attributes = instance_dict(self)
  if '_mapping' in state:
    new_table(self).mapping = state['_mapping']
  attributes.update(state)


def from_refmap(refmap):
  """The reverse of `refmap`: index -> object."""
  cdef RefTable table
  cdef Py_ssize_t entry
  if type(refmap) is not RefMap or table_of(refmap).mapping is not None:
    return IndexMap((index, value) for value, index in refmap.items())
  table = table_of(refmap)
  indexmap = IndexMap()
  for entry in range(PyList_GET_SIZE(table.keys)):
    indexmap[table.values[entry]] = table.keys[entry]
  return indexmap


def install(graphlib: dict) -> None:
  """Puts the compiled maps in the place of the pure ones in graphlib's namespace."""
  global RefMap, IndexMap, TABLE
  RefMap = rebuild(graphlib['RefMap'], ('_table', '__dict__', '__weakref__'), {
    '__init__': __init__, 'get': get, '__getitem__': __getitem__, '__setitem__': __setitem__,
    '__delitem__': __delitem__, '__len__': __len__, '__contains__': __contains__,
    '__iter__': __iter__, 'items': items, 'from_indexmap': from_indexmap,
    '_mapping': property(get_mapping, set_mapping), '__dict__': property(get_dict),
    '__getstate__': __getstate__, '__setstate__': __setstate__,
  })
  TABLE = offset_of(RefMap, '_table')
  IndexMap = graphlib['IndexMap']
  IndexMap.from_refmap = staticmethod(front(from_refmap, IndexMap.from_refmap))
  graphlib['RefMap'] = graphlib['PythonRefMap'] = RefMap
