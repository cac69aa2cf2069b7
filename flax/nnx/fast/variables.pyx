"""Making, copying and setting Variables whose class keeps the standard accessors.

Each function covers the plain case, by slots, and says so; where it declines it changed nothing,
and the caller asks the Variable's own method, which also raises what there is to raise.
"""
from cpython.dict cimport PyDict_Copy, PyDict_GetItemWithError
from cpython.object cimport PyObject

import jax

from flax.nnx.fast cimport kinds, upstream
from flax.nnx.fast.children cimport same_items, same_values
from flax.nnx.fast.kinds cimport info_of, info_of_type, is_leaf_kind, no_ref
from flax.nnx.fast.slots cimport blank, fill, has_slot, offset_of, read, store

cdef enum:
  MAPPINGS_KEPT = 4   # of a walk; most models have one or two

cdef Py_ssize_t RAW_VALUE, METADATA, TRACE_STATE, JAX_TRACE


cdef bint says_no(dict metadata, object name) except -1:
  cdef PyObject* value = PyDict_GetItemWithError(metadata, name)
  return value is not NULL and <object>value is False


cdef bint plain_metadata(object metadata) except -1:
  return type(metadata) is dict and says_no(metadata, 'hijax') and says_no(metadata, 'ref')


cdef class TraceCheck:
  cdef object state(self):
    if self.trace_state is None:
      self.trace_state = upstream.TraceState()
      self.trace_ref = getattr(self.trace_state._jax_trace, '_trace_ref', None)
    return self.trace_state

  cdef bint holds(self, object variable) except -1:
    """Whether `variable` surely belongs to the current trace."""
    self.state()
    if self.trace_ref is None or not has_slot(variable, TRACE_STATE):
      return False
    own = read(variable, TRACE_STATE, '')
    if own is self.trace_state:
      return True
    if type(own) is not upstream.TraceState or not has_slot(own, JAX_TRACE):
      return False
    return getattr(read(own, JAX_TRACE, ''), '_trace_ref', None) is self.trace_ref


cdef object new_variable(object cls, object value, dict metadata, object trace_state):
  variable = blank(cls)
  fill(variable, RAW_VALUE, value)
  fill(variable, TRACE_STATE, trace_state)
  fill(variable, METADATA, metadata)
  return variable


cdef bint one_leaf(object value) except -1:
  """Whether jax takes `value` for a leaf, so that mapping over it gives the same object."""
  return is_leaf_kind(info_of(value).kind) or isinstance(value, jax.core.Tracer)


cdef class Mappings:
  def __cinit__(self):
    self.latest = []

  cdef object of(self, dict metadata):
    for mapping, items in self.latest:
      if same_items(<dict>items, metadata):
        return mapping
    items = PyDict_Copy(metadata)
    mapping = upstream.HashableMapping(items, copy=False)
    self.latest.insert(0, (mapping, items))
    del self.latest[MAPPINGS_KEPT:]
    return mapping


cdef object copied(object variable, TraceCheck trace):
  """A copy as `nnx.merge` with `copy=True` makes it; anything that the class's own `copy` gives."""
  if info_of(variable).kind is kinds.VARIABLE:
    copy = plain_copy(variable, trace)
    if copy is not None:
      return copy
  return variable.copy(_copy_ref=not isinstance(variable.get_raw_value(), upstream.held_values))


cdef object created(object definition, object value, TraceCheck trace):
  """The Variable that a VariableDef and a value make."""
  cls, metadata = definition.type, definition.metadata
  if type(metadata) is upstream.HashableMapping and isinstance(cls, type):
    if info_of_type(cls).kind is kinds.VARIABLE and plain_metadata(metadata._mapping):
      return new_variable(cls, value, PyDict_Copy(metadata._mapping), trace.state())
  return cls.from_metadata(value, dict(metadata))


cdef object plain_copy(object variable, TraceCheck trace):
  if not (has_slot(variable, RAW_VALUE) and has_slot(variable, METADATA)):
    return None
  value, metadata = read(variable, RAW_VALUE, ''), read(variable, METADATA, '')
  if not (plain_metadata(metadata) and one_leaf(value) and no_ref(value)):
    return None
  return new_variable(type(variable), value, PyDict_Copy(metadata), trace.state())


cdef bint writable(object variable, TraceCheck trace) except -1:
  if not (has_slot(variable, RAW_VALUE) and has_slot(variable, METADATA)):
    return False
  return plain_metadata(read(variable, METADATA, '')) and trace.holds(variable)


cdef bint set_value(object variable, object value, TraceCheck trace) except -1:
  if not writable(variable, trace):
    return False
  store(variable, RAW_VALUE, value)
  return True


cdef bint set_from(object variable, object other, TraceCheck trace) except -1:
  if not (writable(variable, trace) and has_slot(other, RAW_VALUE) and has_slot(other, METADATA)):
    return False
  metadata = read(other, METADATA, '')
  if type(metadata) is not dict or not same_values(read(variable, METADATA, ''), metadata):
    return False
  store(variable, RAW_VALUE, read(other, RAW_VALUE, ''))
  return True


def install() -> None:
  global RAW_VALUE, METADATA, TRACE_STATE, JAX_TRACE
  RAW_VALUE = offset_of(upstream.Variable, '_raw_value')
  METADATA = offset_of(upstream.Variable, '_var_metadata')
  TRACE_STATE = offset_of(upstream.Variable, '_trace_state')
  JAX_TRACE = offset_of(upstream.TraceState, '_jax_trace')
