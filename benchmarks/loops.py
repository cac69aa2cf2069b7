"""One training step in four ways, beside the floor: plain `jax.jit` over the same leaves.

  python benchmarks/loops.py [--sizes 32 128 512] [--steps 20] [--json FILE]

The model is Linear, BatchNorm, Dropout, Linear, trained by Adam, with a MultiMetric for the loss;
the ways are those of Flax's performance guide. A size is both the batch's and the hidden layer's;
at the first one all ways are measured, at the others `nnx.jit` and its floor. Prints microseconds a
step in this process (set FLAX_NNX_FAST=0 for the pure twin), once waiting for every step's loss and
once for the last one only; the result also holds the losses of each way's first steps, from the
same seed.
"""

import argparse
import typing as tp

import jax
import jax.numpy as jnp
import measuring
import optax
from flax import nnx

SIZES = 32, 128, 512  # of the batch and the hidden layer both


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


def waiting(call):
  """A step that waits for its loss, as a loop does that prints it."""
  return lambda: jax.block_until_ready(call())


def measure(size: int, ways: tp.Iterable[str], steps: int) -> dict[str, dict]:
  """The losses of the first steps, then the time of further ones: each way is compiled once."""
  x, y = batch_of(size)
  calls = {name: WAYS[name](size, x, y) for name in ways}
  losses = {name: [float(call()) for _ in range(steps)] for name, call in calls.items()}
  waited = {name: waiting(call) for name, call in calls.items()}
  return {
    'losses': losses,
    'waited': measuring.best_of_rounds(waited, rounds=5, budget=0.04),
    'asynchronous': measuring.best_of_rounds(calls, rounds=5, budget=0.04),
  }


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--sizes', type=int, nargs='+', default=SIZES)
  parser.add_argument('--steps', type=int, default=20, help='steps whose losses are compared')
  parser.add_argument('--json', metavar='FILE', help="write the result there; '-': print it")
  options = parser.parse_args()
  first, *others = options.sizes
  sizes = {first: measure(first, WAYS, options.steps)}
  for size in others:
    sizes[size] = measure(size, ('jax.jit over flat leaves', 'nnx.jit'), options.steps)
  result = {**measuring.this_process(), 'sizes': sizes}
  measuring.emit(result, options.json)
  if options.json != '-':
    print(f'us a step ({result["twin"]})    size    waited  asynchronous')
    for size, measured in sizes.items():
      for name, waited in measured['waited'].items():
        print(f'{name:26}{size:6}{waited:10.1f}{measured["asynchronous"][name]:14.1f}')


if __name__ == '__main__':
  main()
