"""`nnx.cached_partial` of a function that `nnx.jit` made: its calls go straight to the plans.

Upstream's wrapper leaves the cache where the call looks for it, then calls. That stays the general
way; where a plan fits, the cache is handed on.
"""
import inspect

from flax.nnx.fast.flights import static_cache
from flax.nnx.fast.fronts import front, wrapper_front
cimport cython
from flax.nnx.fast.graphcalls cimport GraphSite
from flax.nnx.fast.sites cimport MISS
from flax.nnx.fast.traces cimport at_top_level

cdef object graph_context, JitWrapped, pure_cached_partial


@cython.final
cdef class Bound:
  """What calling such a partial function does."""
  cdef object jit, cache, wrapper     # `wrapper`: upstream's
  cdef tuple bound

  def __call__(self, tuple args, dict kwargs):
    cdef GraphSite site = self.jit._fast_site
    if not site.plans or not at_top_level() or graph_context.caching or 'self' in kwargs:
      return self.wrapper(*args, **kwargs)
    args = self.bound + args
    site.calls += 1
    result = site.by_plan(self.jit, args, kwargs, self.cache)
    if result is not MISS:
      return result
    with static_cache(self.cache):
      return site.general(self.jit, args, kwargs, self.cache)


def cached_partial(f, *cached_args, graph=None, graph_updates=None):
  wrapper = pure_cached_partial(f, *cached_args, graph=graph, graph_updates=graph_updates)
  if type(f) is not JitWrapped:
    return wrapper
  inner = inspect.getclosurevars(wrapper).nonlocals
  cdef Bound bound = Bound.__new__(Bound)
  bound.jit, bound.cache, bound.wrapper = f, inner['cache'], wrapper
  bound.bound = tuple(inner['cached_args'])
  return wrapper_front(bound, wrapper)


def install_graphlib(graphlib: dict) -> None:
  global graph_context, pure_cached_partial
  graph_context, pure_cached_partial = graphlib['GRAPH_CONTEXT'], graphlib['_cached_partial']
  graphlib['cached_partial'] = graphlib['_cached_partial'] = front(cached_partial, pure_cached_partial)


def install(compilation: dict) -> None:
  global JitWrapped
  JitWrapped = compilation['JitWrapped']
