"""`nnx.cached_partial` of a function that `nnx.jit` made: its calls go straight to the plans.

Upstream's wrapper leaves the cache where the call looks for it, then calls. That stays the general
way; where a plan fits, the cache is handed on.
"""
import inspect

from flax.nnx.fast.flights import static_cache
from flax.nnx.fast.fronts import front, inner_front, wrapper_front
cimport cython
from flax.nnx.fast.graphcalls cimport GraphSite
from flax.nnx.fast.sites cimport MISS
from flax.nnx.fast.traces cimport at_top_level

cdef object graph_context, JitWrapped, pure_cached_partial
cdef object within_call   # `called`, in the frame of the call that upstream's wrapper makes


@cython.final
cdef class Bound:
  """What calling such a partial function does."""
  cdef object jit, cache, pure
  cdef tuple bound

  def __call__(self, tuple args, dict kwargs):
    if 'self' in kwargs:
      return self.pure(*args, **kwargs)   # raises: the method that it calls has that argument already
    return within_call(self, self.bound + args, kwargs)

  cdef object general(self, GraphSite site, tuple args, dict kwargs):
    offer = static_cache(self.cache)
    offer.__enter__()
    try:
      return site.general(self.jit, args, kwargs, graph_context.tmp_static_cache)
    finally:
      offer.__exit__()


def called(Bound bound not None, tuple args, dict kwargs):
  cdef GraphSite site = bound.jit._fast_site
  site.calls += 1
  if site.plans and at_top_level() and not graph_context.caching:
    result = site.by_plan(bound.jit, args, kwargs, bound.cache)
    if result is not MISS:
      return result
  return bound.general(site, args, kwargs)


def cached_partial(f, *cached_args, graph=None, graph_updates=None):
  wrapper = pure_cached_partial(f, *cached_args, graph=graph, graph_updates=graph_updates)
  if type(f) is not JitWrapped or f._fast_site is None:
    return wrapper
  inner = inspect.getclosurevars(wrapper).nonlocals
  cdef Bound bound = Bound.__new__(Bound)
  bound.jit, bound.cache, bound.pure = f, inner['cache'], wrapper
  bound.bound = tuple(inner['cached_args'])
  return wrapper_front(bound, wrapper, 'f')


def install_graphlib(graphlib: dict) -> None:
  global graph_context, pure_cached_partial
  graph_context, pure_cached_partial = graphlib['GRAPH_CONTEXT'], graphlib['_cached_partial']
  graphlib['cached_partial'] = graphlib['_cached_partial'] = front(cached_partial, pure_cached_partial)


def install(compilation: dict) -> None:
  global JitWrapped, within_call
  JitWrapped = compilation['JitWrapped']
  within_call = inner_front(called, JitWrapped.__call__, 'jitted_fn')
