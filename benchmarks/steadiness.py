"""What an average hides: collections, the slowest step, threads, and calls that no plan can serve.

  python benchmarks/steadiness.py [--general] [--json FILE]

Beside `nnx.jit` stands `jax.jit` over the flat list of the same arrays. Prints counts and ratios.
"""

import argparse
import functools
import gc
import statistics
import threading
import time

import jax
import jax.numpy as jnp
import measuring
import optax
from flax import nnx
from flax.nnx import graph_fast
from stack import WIDTH, Layer, build, nothing, train

STEPS = 1500  # of each thread
MANY = 64  # models that take turns: more than there are plans


def loops(depth: int, step=nothing, *data) -> dict[str, measuring.Call]:
  nodes, jitted = build(depth), nnx.jit(step)
  leaves, flat = jax.tree.leaves(nnx.state(nodes)), jax.jit(lambda leaves: leaves)
  return {'jax.jit': lambda: flat(leaves), 'nnx.jit': lambda: jitted(*nodes, *data)}


def collections_in(call: measuring.Call, calls: int) -> int:
  before = sum(generation['collections'] for generation in gc.get_stats())
  for _ in range(calls):
    call()
  return sum(generation['collections'] for generation in gc.get_stats()) - before


def collections() -> dict[str, int]:
  """In 2,000 empty steps over 602 arrays."""
  counts = {}
  for name, call in loops(100).items():
    for _ in range(5):
      call()
    gc.collect()
    counts[name] = collections_in(call, 2000)
  return counts


def slowest(steps: int) -> dict[str, dict[str, float]]:
  """Of that many empty steps over 122 arrays, each waited for: microseconds."""
  out = {}
  for name, call in loops(20).items():
    taken = []
    for _ in range(steps + 100):
      start = time.perf_counter()
      jax.block_until_ready(call())
      taken.append((time.perf_counter() - start) * 1e6)
    taken = sorted(taken[100:])
    tail = {'99.9 %': taken[-max(1, steps // 1000)], 'slowest': taken[-1]}
    out[name] = {'median': statistics.median(taken), **tail}
  return out


def seconds_of(work) -> float:
  start = time.perf_counter()
  work()
  return time.perf_counter() - start


def for_threads(depth: int) -> dict[str, measuring.Call]:
  """`loops`; a flat program that only takes the arrays, as an empty step by plan does; training."""
  calls = loops(depth)
  leaves, taken = jax.tree.leaves(nnx.state(build(depth))), jax.jit(lambda leaves: None)
  nodes, jitted = build(depth, optax.adam(1e-3)), nnx.jit(train)
  x = jnp.ones((256, WIDTH))
  return {
    'jax.jit, taking only': lambda: taken(leaves), **calls,
    'nnx.jit, training': lambda: jitted(*nodes, x, x),
  }  # fmt: skip


def threads() -> dict[str, dict[str, float]]:
  """Seconds of two threads on two models: both at once, and one after the other."""
  pairs = [for_threads(20) for _ in range(2)]
  return {name: in_threads([pair[name] for pair in pairs]) for name in pairs[0]}


def in_threads(calls: list[measuring.Call]) -> dict[str, float]:
  def repeat(call):
    for _ in range(STEPS):
      call()

  def together():
    both = [threading.Thread(target=repeat, args=(call,)) for call in calls]
    for thread in both:
      thread.start()
    for thread in both:
      thread.join()

  for call in calls:
    repeat(call)
  turns = [(seconds_of(lambda: [repeat(c) for c in calls]), seconds_of(together)) for _ in range(5)]
  return dict(zip(('one after the other', 'at once'), map(min, zip(*turns))))


class Own(Layer):
  """A layer with a traversal function of its own, in Python."""

  def _graph_node_flatten(self):
    return super()._graph_node_flatten()


class Owns(nnx.Module):
  def __init__(self, depth: int):
    self.layers = nnx.List([Own(nnx.Rngs(i)) for i in range(depth)])


def general() -> dict[str, float]:
  """Microseconds of calls that go upstream's way: the pure twin's own are what to compare with."""
  turns, jitted = [build(5) for _ in range(MANY)], nnx.jit(nothing)
  own, of_own = Owns(5), nnx.jit(nothing)
  box = [0]

  def another():
    box[0] = (box[0] + 1) % MANY
    return jitted(*turns[box[0]])

  calls = {
    'a model that no plan is for': another,
    "a type's own traversal": lambda: of_own(own),
    'the first call, traced and compiled': lambda: nnx.jit(functools.partial(nothing))(*turns[0]),
  }
  us = measuring.best_of_rounds(calls, rounds=5, budget=0.05)
  return {**us, 'training, traced': traced()}


def traced() -> float:
  x = jnp.ones((4, WIDTH))
  nodes = build(5, optax.adam(1e-3))
  trace = {'trace': lambda: nnx.jit(functools.partial(train)).trace(*nodes, x, x) and None}
  return measuring.best_of_rounds(trace, rounds=5, budget=0.1)['trace']


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--general', action='store_true', help='only the calls that no plan can serve')
  parser.add_argument('--json', metavar='FILE', help="write the result there; '-': print it")
  options = parser.parse_args()
  result = {**measuring.this_process(), 'general': general()}
  if not options.general:
    result |= {'collections': collections(), 'slowest': slowest(10_000), 'threads': threads()}
  if options.json != '-':
    for name, value in result.items():
      print(f'{name:14}', value)
    print(graph_fast.report())
  measuring.emit(result, options.json)


if __name__ == '__main__':
  main()
