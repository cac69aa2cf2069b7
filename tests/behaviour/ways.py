"""The ways to call a jitted function, by name."""

import functools
import typing as tp

from flax import nnx

WAYS = {'jit': {}, 'tree': {'graph': False}, 'simple': {'graph': True, 'graph_updates': False}}


def jitted_by_way(step: tp.Callable, way: str, net) -> tuple[tp.Callable, tp.Callable]:
  """The function jitted that way, or for a `cached_partial`, and its call over `net`."""
  made = nnx.jit(step, **WAYS.get(way, {}))
  return made, nnx.cached_partial(made, net) if way == 'cached_partial' else functools.partial(made, net)
