"""Functions that walk a model, one by one: microseconds a call.

  python benchmarks/walks.py [--depths 1 5 20 100] [--json FILE]

The last rows are jitted calls of jax's own over what those functions give: a step that returns what it
was given, as a (graphdef, state), as Modules, and, for the floor, as the flat list of the same arrays.
"""

import argparse

import jax
import jax.numpy as jnp
import measuring
from flax import nnx
from stack import Stack, build

DEPTHS = (1, 5, 20, 100)
CALLS = ('jax.jit(leaves)', 'jax.jit(graphdef, state)', 'jax.jit(model)')  # the first is the floor


def same(x):
  return x


def walks(depth: int) -> dict[str, measuring.Call]:
  model = Stack(depth)
  graphdef, state = nnx.split(model)
  other = jax.tree.map(same, state)
  return {
    'split': lambda: nnx.split(model),
    'split by type': lambda: nnx.split(model, nnx.Param, ...),
    'merge': lambda: nnx.merge(graphdef, state),
    'state': lambda: nnx.state(model),
    'state by type': lambda: nnx.state(model, nnx.Param),
    'graphdef': lambda: nnx.graphdef(model),
    'update': lambda: nnx.update(model, other),
    'clone': lambda: nnx.clone(model),
    'iter_graph': lambda: sum(1 for _ in nnx.iter_graph(model)),
    'iter_modules': lambda: sum(1 for _ in nnx.iter_modules(model)),
    'hash(graphdef)': lambda: hash(graphdef),
    'tree.leaves(state)': lambda: jax.tree.leaves(state),
    'tree.map(state)': lambda: jax.tree.map(same, state),
    'tree.leaves(model)': lambda: jax.tree.leaves(model),
    'tree.map(model)': lambda: jax.tree.map(same, model),
    'train(), eval()': lambda: (model.train(), model.eval()),
  }


def eager() -> dict[str, measuring.Call]:
  """What does not depend on the model's size: one Variable, one attribute, one layer's construction."""
  variable, holder = nnx.Param(jnp.ones(())), Stack(0)
  value = variable.get_value()
  return {
    'v[...]': lambda: variable[...],
    'v[...] = x': lambda: variable.__setitem__(..., value),
    'module.a = x': lambda: setattr(holder, 'size', 1),
    'construct 1 layer': lambda: nnx.eval_shape(lambda: Stack(1)),
  }


def jitted(depth: int) -> dict[str, measuring.Call]:
  """Each gives back what it was given, and is given that the next time."""
  nodes = build(depth)
  graphdef, state = nnx.split(nodes)

  def loop(given):
    step, box = jax.jit(same), [given]

    def call():
      box[0] = step(box[0])
      return box[0]

    return call

  return dict(zip(CALLS, (loop(jax.tree.leaves(state)), loop((graphdef, state)), loop(nodes))))


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--depths', type=int, nargs='+', default=DEPTHS)
  parser.add_argument('--json', metavar='FILE', help="write the result there; '-': print it")
  options = parser.parse_args()
  result = {**measuring.this_process(), 'depths': {}}
  for depth in options.depths:
    calls = {**walks(depth), **(eager() if depth == options.depths[0] else {}), **jitted(depth)}
    us = measuring.best_of_rounds(calls, rounds=5, budget=0.01)
    leaves = len(jax.tree.leaves(Stack(depth)))
    result['depths'][depth] = {'leaves': leaves, 'us': us}
    if options.json != '-':
      print(f'{leaves} leaves, {result["twin"]} twin')
      for name, taken in us.items():
        print(f'  {name:26}{taken:10.2f} us')
  measuring.emit(result, options.json)


if __name__ == '__main__':
  main()
