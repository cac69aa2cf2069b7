"""Whether any watched dict was written since: one number to compare, where there were many entries.

CPython 3.12 and later call a watcher before they write or free a dict that it watches. Ours counts.
A plan that saw the number last time need not look into its dicts again. The count is one for all
dicts, so a write to another model's costs one full check and nothing else. Comparing the entries is
the larger half of a check: a layer has some 5 attributes and 7 entries of metadata for each array.
"""
from cpython.object cimport PyObject

from flax.nnx.fast.writes import every_write_counts

cdef extern from *:
  """
  static unsigned long long flax_writes = 1;
  #if PY_VERSION_HEX >= 0x030C0000
  static int flax_wrote(PyDict_WatchEvent event, PyObject* dict, PyObject* key, PyObject* value) {
    ++flax_writes;
    return 0;
  }
  static int flax_add_watcher(void) { return PyDict_AddWatcher(flax_wrote); }
  #define flax_watch PyDict_Watch
  #define flax_shared(dict) (((PyDictObject*)(dict))->ma_values != NULL)
  #else
  static int flax_add_watcher(void) { return -1; }
  static int flax_watch(int watcher, PyObject* dict) { return -1; }
  #define flax_shared(dict) 1
  #endif
  """
  unsigned long long flax_writes
  int flax_add_watcher() noexcept
  int flax_watch(int watcher, PyObject* mapping) noexcept
  bint flax_shared(PyObject* mapping) noexcept
  void PyErr_Clear() noexcept

cdef int watcher = -1
cdef bint attributes_counted = False   # see `watch`


cdef unsigned long long writes() noexcept:
  return flax_writes


cdef bint watch(PyObject* mapping) noexcept:
  """A `__dict__` that shares the values of its object is left to Pythons that count stores to those.

  CPython 3.13.0, for one, does not.
  """
  return (
    watcher >= 0 and (attributes_counted or not flax_shared(mapping))
    and flax_watch(watcher, mapping) == 0
  )


cdef int make_watchable(dict attributes) except -1:
  """Gives a `__dict__` a table of its own where stores to the object's values would not be counted.

  The order of its items stays: the last one goes and comes back, which is what makes CPython do it.
  """
  if watcher >= 0 and not attributes_counted and attributes and flax_shared(<PyObject*>attributes):
    key, value = attributes.popitem()
    attributes[key] = value
  return 0


def counter(mapping: dict):
  """Watches a dict; gives a function that says how many writes there were so far."""
  flax_watch(watcher, <PyObject*>mapping)
  return lambda: flax_writes


def install() -> None:
  global watcher, attributes_counted
  watcher = flax_add_watcher()
  if watcher < 0:
    PyErr_Clear()   # all are taken: every check compares all entries
    return
  attributes_counted = every_write_counts(counter, shared=True)
  if not every_write_counts(counter, shared=False):
    watcher = -1
