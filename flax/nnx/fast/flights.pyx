"""Calls under way, by thread, so that a trace knows whether upstream's contexts were told of it.

A call by plan skips the first half of upstream's call, which notes every object of the arguments,
because no trace is expected. Where jax traces after all, that half is done before the user's
function runs.
"""
from cpython.pythread cimport PyThread_get_thread_ident

from flax.nnx.fast.fronts import front

cdef dict stacks = {}      # thread -> its calls under way, the latest last
cdef object graph_context, update_context, eval_context, pure_static_cache


cdef class Flight:
  cdef int open(self) except -1:
    if self.manager is not None:
      return 0
    graph_context.tmp_static_cache = self.cache
    manager = update_context(self.jit)
    manager.__enter__()
    self.manager = manager
    with eval_context():   # a trace may have begun
      self.jit._get_pure_args_kwargs(self.args, self.kwargs)
    return 0

  cdef int close(self) except -1:
    if self.manager is not None:
      self.manager.__exit__(None, None, None)
      self.manager = None
    return 0


cdef int take_off(Flight flight) except -1:
  thread = PyThread_get_thread_ident()
  stack = stacks.get(thread)
  if stack is None:
    stack = stacks[thread] = []
  (<list>stack).append(flight)
  return 0


cdef int land() except -1:
  thread = PyThread_get_thread_ident()
  cdef list stack = stacks[thread]
  stack.pop()
  if not stack:
    del stacks[thread]
  return 0


cdef int ground() except -1:
  cdef list stack = stacks.get(PyThread_get_thread_ident())
  flight = stack[len(stack) - 1] if stack else None
  if flight is not None:
    (<Flight>flight).open()
  return 0


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
      with pure_static_cache(self.cache):   # which raises
        pass


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
