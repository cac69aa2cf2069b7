"""Step time against model size: an empty step, which costs nothing but the traversal.

  python benchmarks/depth.py [--depths 1 5 20 ...] [--json FILE]

Microseconds a call of `nnx.jit`, and of `jax.jit` over the flat list of the same leaves with all of
them in and out, for models of that many Linear and BatchNorm layers with an SGD optimizer.
"""

import argparse

import jax
import measuring
from flax import nnx
from stack import build, nothing

DEPTHS = (1, 3, 10, 30, 100)


def calls(depth: int):
  nodes = build(depth)
  leaves = jax.tree.leaves(nnx.state(nodes))
  flat, step = jax.jit(lambda leaves: leaves), nnx.jit(nothing)
  return {'jax.jit': lambda: flat(leaves), 'nnx.jit': lambda: step(*nodes)}, len(leaves)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--depths', type=int, nargs='+', default=DEPTHS)
  parser.add_argument('--json', metavar='FILE', help="write the result there; '-': print it")
  options = parser.parse_args()
  result = {**measuring.this_process(), 'depths': {}}
  for depth in options.depths:
    timed, leaves = calls(depth)
    microseconds = measuring.best_of_rounds(timed, rounds=5, budget=0.03)
    result['depths'][depth] = {'leaves': leaves, **microseconds}
    if options.json != '-':
      print(f'{leaves:5} leaves', {k: round(v, 1) for k, v in microseconds.items()}, result['twin'])
  measuring.emit(result, options.json)


if __name__ == '__main__':
  main()
