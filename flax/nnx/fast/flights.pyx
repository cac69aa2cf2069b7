"""Calls under way, by thread, so that a trace knows whether upstream's contexts were told of it.

A call by plan skips the first half of upstream's call, which notes every object of the arguments,
because no trace is expected. Where jax traces after all, that half is done before the user's
function runs.
"""
cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF

from flax.nnx.fast.fronts import front

cdef extern from *:
  """
  #ifdef _MSC_VER
  static __declspec(thread) PyObject* flax_flight = NULL;
  #else
  static __thread PyObject* flax_flight = NULL;
  #endif
  """
  PyObject* flax_flight    # of this thread: its latest call under way, owned; NULL before the first
cdef object graph_context, update_context, eval_context, pure_static_cache


cdef class Flight:
  cdef int open(self) except -1:
    if self.manager is not None:
      return 0
    graph_context.tmp_static_cache = self.cache
    manager = update_context(self.jit)
    manager.__enter__()
    self.manager = manager
    top_level = eval_context()   # a trace may have begun
    top_level.__enter__()
    try:
      self.jit._get_pure_args_kwargs(self.args, self.kwargs)
    finally:
      top_level.__exit__(None, None, None)
    return 0

  cdef int close(self) except -1:
    if self.manager is not None:
      self.manager.__exit__(None, None, None)
      self.manager = None
    return 0


cdef object take_off(object flight):
  """The latest call of this thread from now on; gives the one before."""
  global flax_flight
  cdef PyObject* before = flax_flight
  Py_INCREF(flight)
  flax_flight = <PyObject*>flight
  if before is NULL:
    return None
  flight = <object>before
  Py_DECREF(flight)   # the thread's; ours stays
  return flight


cdef int land(object above) except -1:
  take_off(above)
  return 0


cdef object open_call(object jitted, tuple args, dict kwargs):
  """Calls a function where upstream's contexts know of the arguments."""
  above = take_off(None)
  try:
    return jitted(*args, **kwargs)
  finally:
    land(above)


cdef bint under_way() noexcept:
  return flax_flight is not NULL and flax_flight is not <PyObject*>None


cdef int ground() except -1:
  cdef object flight = None if flax_flight is NULL else <object>flax_flight
  if flight is not None:
    (<Flight>flight).open()
  return 0


@cython.final
cdef class Offered:
  """Offers `cached_partial`'s cache to the call in its `with` block, which has to take it."""
  cdef object cache
  cdef bint caching

  def __enter__(self):
    self.caching = graph_context.caching
    if not self.caching:
      graph_context.tmp_static_cache = self.cache

  def __exit__(self, *error):
    if not self.caching and graph_context.tmp_static_cache is not None:
      pure = pure_static_cache(self.cache)
      pure.__enter__()
      pure.__exit__(None, None, None)   # raises


def static_cache(cache):
  cdef Offered offered = Offered.__new__(Offered)
  offered.cache = cache
  return offered


def install(graphlib: dict) -> None:
  global graph_context, update_context, eval_context, pure_static_cache
  from jax._src import core
  eval_context = core.eval_context
  graph_context, update_context = graphlib['GRAPH_CONTEXT'], graphlib['update_context']
  pure_static_cache = graphlib['static_cache']
  graphlib['static_cache'] = front(static_cache, pure_static_cache)
