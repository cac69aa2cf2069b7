"""Walks that run out of memory at every possible allocation: MemoryError or an answer, no crash.

  python memory_out.py WALK

Uses the hook of CPython's own tests that makes the n-th allocation fail, and calls the compiled
functions directly: interpreters up to 3.13 may themselves crash where a Python frame gets no memory.
"""

import _testcapi
import sys

import jax.numpy as jnp
from flax import nnx
from flax.nnx import graphlib

FURTHEST = 3000   # allocations; a walk over this model makes fewer


class Child(nnx.Module):
  def __init__(self):
    self.w = nnx.Param(jnp.zeros(1))
    self.size = 3


class Root(nnx.Module):
  def __init__(self):
    self.children = nnx.List([Child(), Child()])
    self.again = self.children[0]
    self.table = nnx.data({'a': nnx.Param(jnp.zeros(1)), 'b': (1, None, [])})


model = Root()
impl = graphlib.get_node_impl(model)
graphdef, leaves = graphlib.flatten(model, with_paths=False)
other = graphlib.flatten(Root(), with_paths=False)[0]
variables = nnx.to_flat_state(nnx.state(model)).leaves


def flatten(path, paths) -> None:
  graphlib._graph_flatten(model, impl, path, graphlib.RefMap(), None, [], [], [], paths)


def unflatten(values, copy: bool):
  nodes = iter(graphdef.nodes)
  return graphlib._graph_unflatten(
    next(nodes), impl, nodes, iter(graphdef.attributes), iter(values), graphlib.IndexMap(), None,
    copy, True)


WALKS = {
  'flatten': lambda: flatten([], []),
  'flatten_without_paths': lambda: flatten(None, None),
  'unflatten': lambda: unflatten(leaves, False),
  'copy': lambda: unflatten(variables, True),
  'equal': lambda: graphdef == other,
  'refmap': lambda: graphlib.RefMap((i, i) for i in leaves * 20),
}


def fails_at(walk, n: int) -> bool:
  """Whether the walk's n-th allocation was made to fail, and it noticed."""
  try:
    _testcapi.set_nomemory(n, n + 1)
    walk()
  except MemoryError:
    return True
  finally:
    _testcapi.remove_mem_hooks()
  return False


def main(name: str) -> None:
  walk = WALKS[name]
  for _ in range(10):
    walk()
  failed = [n for n in range(1, FURTHEST) if fails_at(walk, n)]
  walk()
  assert nnx.graphdef(model) == graphdef
  print(name, 'ran out of memory', len(failed), 'times')


if __name__ == '__main__':
  main(sys.argv[1])
