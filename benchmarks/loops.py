"""One training step in four ways, beside the floor: plain `jax.jit` over the same leaves.

  python benchmarks/loops.py [--batch 32] [--width 64] [--steps 40] [--json FILE]

The model is Linear, BatchNorm, Dropout, Linear, trained by Adam, with a MultiMetric for the loss;
the ways are those of Flax's performance guide. Prints microseconds a step in this process (set
FLAX_NNX_FAST=0 for the pure twin), and the losses of each way from the same seed.
"""

import argparse

import jax
import jax.numpy as jnp
import measuring
import optax
from flax import nnx


class Model(nnx.Module):
  def __init__(self, width: int, rngs: nnx.Rngs):
    self.first = nnx.Linear(8, width, rngs=rngs)
    self.norm = nnx.BatchNorm(width, rngs=rngs)
    self.dropout = nnx.Dropout(0.2, rngs=rngs)
    self.last = nnx.Linear(width, 4, rngs=rngs)

  def __call__(self, x):
    return self.last(nnx.relu(self.dropout(self.norm(self.first(x)))))


def build(width: int):
  model = Model(width, nnx.Rngs(0))
  return (
    model,
    nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param),
    nnx.MultiMetric(loss=nnx.metrics.Average('loss')),
  )


def train(model, optimizer, metrics, x, y):
  def loss_of(model):
    return jnp.mean((model(x) - y) ** 2)

  loss, grads = nnx.value_and_grad(loss_of)(model)
  optimizer.update(model, grads)
  metrics.update(loss=loss)
  return loss


def batch_of(size: int):
  keys = jax.random.split(jax.random.key(1))
  return jax.random.normal(keys[0], (size, 8)), jax.random.normal(keys[1], (size, 4))


def with_jit(width, x, y):
  nodes, step = build(width), nnx.jit(train)
  return lambda: step(*nodes, x, y)


def with_cached_partial(width, x, y):
  step = nnx.cached_partial(nnx.jit(train), *build(width))
  return lambda: step(x, y)


def with_split_and_merge(width, x, y):
  """The functional loop: the state goes in and comes out of a `jax.jit`."""
  graphdef, state = nnx.split(build(width))

  @jax.jit
  def step(graphdef, state, x, y):
    nodes = nnx.merge(graphdef, state)
    loss = train(*nodes, x, y)
    return loss, nnx.state(nodes)

  held = [state]

  def call():
    loss, held[0] = step(graphdef, held[0], x, y)
    return loss

  return call


def floor(width, x, y):
  """The same computation over a flat list of arrays: what the step itself costs."""
  graphdef, state = nnx.split(build(width))
  leaves, treedef = jax.tree.flatten(state)

  @jax.jit
  def step(leaves, x, y):
    nodes = nnx.merge(graphdef, jax.tree.unflatten(treedef, leaves))
    loss = train(*nodes, x, y)
    return loss, jax.tree.leaves(nnx.state(nodes))

  held = [leaves]

  def call():
    loss, held[0] = step(held[0], x, y)
    return loss

  return call


WAYS = {
  'jax.jit over flat leaves': floor,
  'nnx.jit': with_jit,
  'nnx.cached_partial': with_cached_partial,
  'split/merge in jax.jit': with_split_and_merge,
}


def losses(way, width: int, x, y, steps: int) -> list[float]:
  call = way(width, x, y)
  return [float(call()) for _ in range(steps)]


def waiting(call):
  """A step that waits for its loss, as a loop does that prints it."""
  return lambda: jax.block_until_ready(call())


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--batch', type=int, default=32)
  parser.add_argument('--width', type=int, default=64)
  parser.add_argument('--steps', type=int, default=40, help='steps whose losses are compared')
  parser.add_argument('--asynchronous', action='store_true', help='wait once a round, not a step')
  parser.add_argument('--json', metavar='FILE', help="write the result there; '-': print it")
  options = parser.parse_args()
  x, y = batch_of(options.batch)
  wait = (lambda call: call) if options.asynchronous else waiting
  calls = {name: wait(way(options.width, x, y)) for name, way in WAYS.items()}
  result = {
    **measuring.this_process(),
    'microseconds': measuring.best_of_rounds(calls, rounds=5, budget=0.04),
    'losses': {n: losses(w, options.width, x, y, options.steps) for n, w in WAYS.items()},
  }
  measuring.emit(result, options.json)
  if options.json != '-':
    for name, value in result['microseconds'].items():
      print(f'{name:26}{value:10.1f} us a step ({result["twin"]})')


if __name__ == '__main__':
  main()
