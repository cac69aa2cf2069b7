"""Loops over the walks, each in a process of its own: prints how much stayed.

  python loops.py NAME

Counts blocks that Python's allocator holds, references to a few long-lived objects, and live
instances, after a first round has filled every cache.
"""

import gc
import sys
import weakref

import jax
import jax.numpy as jnp
from flax import nnx

ROUNDS = 3000


class Child(nnx.Module):
  def __init__(self):
    self.w = nnx.Param(jnp.array(1.0), note='kept')
    self.size = 12345


class Root(nnx.Module):
  def __init__(self):
    self.children = nnx.List([Child(), Child()])
    self.table = nnx.data({'a': nnx.Param(jnp.array(1.0)), 'b': [Child()]})


class Raising:
  def __eq__(self, other):
    raise ValueError


nnx.graphlib.register_graph_node_type(
  Raising,
  flatten=lambda node: 1 / 0,
  set_key=setattr,
  pop_key=getattr,
  create_empty=lambda _: Raising(),
  clear=print,
  init=print,
)


def failing(node):
  vars(node)['z'] = Raising()
  for call in (
    nnx.split,
    nnx.clone,
    nnx.state,
    lambda n: list(nnx.iter_graph(n)),
    nnx.find_duplicates,
  ):
    try:
      call([node, Raising()])
    except ZeroDivisionError:
      pass
  del vars(node)['z']


def bad_merge(node):
  graphdef, state = nnx.split(node)
  leaves = jax.tree.leaves(state)
  for wrong in (leaves[:1], leaves + leaves, None):
    try:
      nnx.merge(graphdef, wrong)
    except (ValueError, TypeError, AttributeError):
      pass


jitted = nnx.jit(lambda node: None)
WAYS = {
  'tree': nnx.jit(lambda node: None, graph=False),
  'simple': nnx.jit(lambda node: None, graph=True, graph_updates=False),
}


def bound(node):
  """A function that `jit_partial` made, called time and again."""
  call = bound.made.get(id(node))
  if call is None:
    call = bound.made[id(node)] = nnx.jit_partial(lambda node: None, node, graph=False)
  call()


bound.made = {}
LOOPS = {
  'split': lambda node: nnx.split(node),
  'filters': lambda node: nnx.split(node, nnx.Param, ...),
  'merge': lambda node: nnx.merge(*nnx.split(node)),
  'clone': nnx.clone,
  'update': lambda node: nnx.update(node, nnx.state(node)),
  'iter_graph': lambda node: list(nnx.iter_graph(node)),
  'iter_graph_left': lambda node: next(nnx.iter_graph(node)),
  'find_duplicates': nnx.find_duplicates,
  'pop': lambda node: nnx.pop(node, nnx.BatchStat),
  'hash': lambda node: (hash(nnx.graphdef(node)), nnx.graphdef(node) == nnx.graphdef(node)),
  'flat': lambda node: nnx.from_flat_state(nnx.to_flat_state(nnx.state(node))),
  'jit': jitted,
  **WAYS,
  'partial': bound,
  'short_lived_tree': lambda node: WAYS['tree'](Root()),
  'short_lived': lambda node: jitted(Root()),
  'failing': failing,
  'bad_merge': bad_merge,
}


def watched(node) -> list[int]:
  child = node.children[0]
  objects = [
    Child,
    nnx.Param,
    node,
    child,
    child.w,
    child.w.get_raw_value(),
    child.w._var_metadata,
    child.size,
    'note',
    None,
    type(None),
    nnx.graphlib.NodeDef,
    nnx.graphlib.GraphDef,
    nnx.graphlib.NODE_ATTR,
  ]
  return [sys.getrefcount(o) for o in objects]


def main(name: str) -> None:
  node, loop = Root(), LOOPS[name]
  for _ in range(200):
    loop(node)
  gc.collect()
  blocks, counts = sys.getallocatedblocks(), watched(node)
  for _ in range(ROUNDS):
    loop(node)
  gc.collect()
  grown = sys.getallocatedblocks() - blocks
  moved = [after - before for before, after in zip(counts, watched(node))]
  print('blocks', grown, 'references', moved)
  assert grown < ROUNDS // 10, grown  # less than one block in ten rounds
  assert all(abs(m) < ROUNDS // 10 for m in moved), moved
  gone = weakref.ref(node)
  bound.made.clear()
  del node
  gc.collect()
  assert gone() is None


if __name__ == '__main__':
  main(sys.argv[1])
