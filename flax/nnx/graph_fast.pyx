"""The compiled twin of `flax.nnx.graphlib`.

The last line of graphlib hands its namespace over, and the names below are replaced in it: the
graph types, and the private functions that walk. The public functions (`split`, `merge`, `state`,
...) keep their text; they call the walks by name and so run compiled.

`twin()` says which twin this process runs, `report()` how the calls of jitted functions went and
why, `fallbacks()` what the walks handed back to Python. `plan_limit` bounds the plans kept.
"""
import types

from flax.nnx.fast import filters, flatten, graphtypes, kinds, partials, refs, sites, states, trees
from flax.nnx.fast import traces, unflatten, update, upstream, variables, walks
from flax.nnx.fast import fallbacks as _fallbacks
from flax.nnx.fast.fallbacks import fallbacks

__all__ = ['fallbacks', 'install', 'plan_limit', 'report', 'reset', 'twin']

cdef bint installed = False


def twin() -> str:
  """Which twin of the graph traversal this process runs: 'compiled' or 'pure'."""
  return 'compiled' if installed else 'pure'


def report() -> 'flax.nnx.fast.report.Report':
  """How often each function that `nnx.jit` made was called, how often by plan, and why not.

  A value with a `Row` for each function; prints as a table. The pure twin counts nothing.
  """
  from flax.nnx.fast import report as table  # its dataclasses would take a tenth of our import time

  return table.report(sites.all_sites(), fallbacks())


def reset() -> None:
  """Clears what `report` and `fallbacks` count."""
  _fallbacks.reset()
  for site in sites.all_sites():
    site.clear()


def plan_limit(limit: int | None = None) -> int:
  """How many plans each jitted function keeps, the latest used; sets it where a number is given.

  A plan takes about 60 bytes for each attribute and keeps no model alive. 0: no plans are made.
  Raises ValueError for a negative number.
  """
  return sites.plan_limit(limit)


cdef dict whole_pure(dict graphlib):
  """graphlib's functions as they are before the walks are replaced, each calling only its likes."""
  namespace = dict(graphlib)
  for name, value in graphlib.items():
    if isinstance(value, types.FunctionType) and value.__globals__ is graphlib:
      twin_of = types.FunctionType(
        value.__code__, namespace, value.__name__, value.__defaults__, value.__closure__
      )
      twin_of.__kwdefaults__ = value.__kwdefaults__
      namespace[name] = twin_of
  return namespace


def install(graphlib: dict) -> None:
  """Replaces the types and walks in graphlib's namespace; called once, by its last line."""
  global installed
  upstream.resolve(graphlib)
  traces.install()
  kinds.install()
  graphtypes.install(graphlib)
  refs.install(graphlib)
  variables.install()
  filters.install()
  pure, whole = dict(graphlib), whole_pure(graphlib)
  graphlib.update(flatten.install(pure, whole))
  graphlib.update(unflatten.install(graphlib, pure, whole))
  graphlib.update(update.install(pure, whole))
  graphlib.update(trees.install(graphlib, pure))
  graphlib.update(walks.install(graphlib, pure, whole))
  states.install_graphlib(graphlib)
  partials.install_graphlib(graphlib)
  installed = True
