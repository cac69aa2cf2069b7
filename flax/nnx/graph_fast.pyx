"""The compiled twin of `flax.nnx.graphlib`.

The last line of graphlib hands its namespace over, and the names below are replaced in it: the
graph types, and the private functions that walk. The public functions (`split`, `merge`, `state`,
...) keep their text; they call the walks by name and so run compiled.

`twin()` says which twin this process runs, `fallbacks()` what was handed back to Python, and why.
"""
import types

from flax.nnx.fast import flatten, graphtypes, kinds, refs, states, unflatten, update, upstream
from flax.nnx.fast import trees, variables, walks
from flax.nnx.fast.fallbacks import fallbacks, reset

__all__ = ['fallbacks', 'install', 'reset', 'twin']

cdef bint installed = False


def twin() -> str:
  """Which twin of the graph traversal this process runs: 'compiled' or 'pure'."""
  return 'compiled' if installed else 'pure'


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
  kinds.install()
  graphtypes.install(graphlib)
  refs.install(graphlib)
  variables.install()
  pure, whole = dict(graphlib), whole_pure(graphlib)
  graphlib.update(flatten.install(pure, whole))
  graphlib.update(unflatten.install(graphlib, pure, whole))
  graphlib.update(update.install(pure, whole))
  graphlib.update(trees.install(graphlib, pure))
  graphlib.update(walks.install(graphlib, pure, whole))
  states.install_graphlib(graphlib)
  installed = True
