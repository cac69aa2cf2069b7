# cython: language_level=3
"""The compiled twin of `flax.nnx.graphlib`."""

_installed = False


def twin() -> str:
  """Which twin of the graph traversal this process runs: 'compiled' or 'pure'."""
  return 'compiled' if _installed else 'pure'


def install(namespace: dict) -> None:
  """Replaces the traversal in graphlib's `namespace`; called once, by its last line."""
  global _installed
  _installed = True
