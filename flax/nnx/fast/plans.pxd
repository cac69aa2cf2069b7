"""Plans: a record of one walk that the next one is checked against, pointer by pointer.

A plan keeps no Module, Variable or array alive. It keeps their addresses, and follows one only after
the object above it, alive, was seen to hold it still. What it holds are the values that the graph
definition holds too: static attributes and metadata, so that no other can come to their address.
"""
cimport cython
from cpython.object cimport PyObject

from flax.nnx.fast.kinds cimport Kind

cdef enum What:
  SAME       # what stands there has to be the recorded object
  LEAF       # an array: collected
  INNER      # a container, or the state of a Pytree: looked into by a step of its own
  TRACE      # the trace state of a Variable or Pytree, one of the top level


cdef struct Entry:
  PyObject* key       # in a dict; NULL elsewhere
  PyObject* value     # SAME, TRACE
  What what
  Py_ssize_t index    # LEAF: of the leaf; INNER: of the container


cdef struct Step:
  Kind kind
  PyObject* target    # the node or Variable; NULL for a container
  PyObject* cls
  PyObject* mapping   # the watched dict whose entries held when it was last compared; NULL: none did
  unsigned int version   # the version tag of `cls`
  Py_ssize_t index    # containers: which one; Variables: which leaf
  Py_ssize_t first    # of its entries
  Py_ssize_t count
  Py_ssize_t above    # the step that led here, and the entry in it; for words only
  Py_ssize_t entry


@cython.final
cdef class Plan:
  cdef Step* steps
  cdef Entry* entries
  # Good during `check`. Those that stand in watched dicts are as the last check left them.
  cdef PyObject** found         # container -> what was found in its place
  cdef PyObject** arrays        # leaf -> the array
  cdef PyObject** owners        # leaf -> the Variable or node that holds it
  cdef PyObject** names         # leaf -> its attribute name; NULL in a Variable
  cdef Py_ssize_t n_steps, n_entries, n_found, n_leaves, registered
  cdef list held                # whatever is compared by address and kept alive
  cdef list asked               # statics that upstream would ask whether they equal themselves
  cdef list counts              # leaves of each root
  cdef object trusted           # the trace state of the top level that was seen last
  cdef unsigned long long seen  # `watch.writes` when a check last passed
  cdef bint unwritten           # whether that is so still; during `check`
  cdef Py_ssize_t failed        # the entry that the last check failed at; -1: the step as a whole

  cdef Py_ssize_t check(self) noexcept
  cdef Py_ssize_t first_other(self) noexcept
  cdef bint step_holds(self, Step* step) noexcept
  cdef bint attributes_hold(self, Step* step, PyObject* node) noexcept
  cdef bint mapping_holds(self, Step* step, PyObject* mapping, Py_ssize_t skipped) noexcept
  cdef bint items_hold(self, Step* step, PyObject* mapping, Py_ssize_t skipped) noexcept
  cdef bint entry_holds(self, Py_ssize_t at, PyObject* value) noexcept
  cdef bint variable_holds(self, Step* step, PyObject* node) noexcept
  cdef bint container_holds(self, Step* step) noexcept
  cdef bint sequence_holds(self, Step* step, PyObject* value) noexcept
  cdef bint pytree_state_holds(self, Step* step, PyObject* state) noexcept
  cdef bint trusts(self, object trace_state) noexcept
  cdef list blank(self)
  cdef int collect(self, list arrays) noexcept
  cdef int collect_owners(self, list leaves, list owners) noexcept
  cdef list by_root(self, list arrays)
  cdef int store(self, Py_ssize_t leaf, object value, object owner) except -1
  cdef bint fits_itself(self) except -1
  cdef str words(self, Py_ssize_t step)
  cdef Py_ssize_t root_of(self, Py_ssize_t step) noexcept
  cdef str segment(self, Py_ssize_t step, Py_ssize_t at)


cdef Plan recorded(list roots)    # None where the roots cannot be planned, see `why_not`
cdef str why_not()
