"""The trace that this thread is under."""
import weakref

from cpython.object cimport PyObject

from flax.nnx.fast cimport upstream
from flax.nnx.fast.slots cimport has_slot, offset_of, read

cdef extern from "Python.h":
  ctypedef struct PyWeakReference:
    PyObject* wr_object   # None once it is dead

cdef object current, eval_trace   # `configured(current)`: the trace of this thread
cdef object configured            # (one of jax's settings) -> its `value`, without the lookup
cdef Py_ssize_t JAX_TRACE
cdef object latest = None         # the state of a trace that was asked for
cdef object latest_ref = None     # jax's weak reference to that trace


cdef bint at_top_level() except -1:
  """Whether no trace is under way in this thread."""
  return configured(current) is eval_trace


cdef object current_state():
  global latest, latest_ref
  cdef object trace = configured(current)
  if trace is not None and latest_ref is not None and (
    (<PyWeakReference*>latest_ref).wr_object is <PyObject*>trace
  ):
    return latest
  state = upstream.TraceState()
  ref = getattr(state._jax_trace, '_trace_ref', None)
  if type(ref) is weakref.ref:
    latest, latest_ref = state, ref
  return state


cdef bint is_current(object trace_state) except -1:
  state = current_state()
  if trace_state is state:
    return True
  if type(trace_state) is not upstream.TraceState or not has_slot(trace_state, JAX_TRACE):
    return False
  own = getattr(read(trace_state, JAX_TRACE, ''), '_trace_ref', None)
  return own is not None and own is getattr(state._jax_trace, '_trace_ref', None)


def install() -> None:
  global current, eval_trace, configured, JAX_TRACE
  JAX_TRACE = offset_of(upstream.TraceState, '_jax_trace')
  from jax._src import core
  eval_trace, current = core.eval_trace, core.trace_state_strong_ref
  configured = type(current).value.fget
