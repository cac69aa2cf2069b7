"""A long life: many calls, many models that come and go, and the most that a walk takes at once.

  python long.py [--calls 100000] [--models 10000]

Prints what grew after the first half, for each way to call, and the peaks of `tracemalloc` in bytes:
under FLAX_NNX_FAST=0 it says the same of upstream. Ends with an error where the compiled twin grew.
"""

import argparse
import functools
import gc
import pathlib
import sys
import tracemalloc
import weakref

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from flax.nnx import graph_fast

PAGE = 4096
TX = optax.sgd(0.01, momentum=0.9)  # its functions are static: a new one is traced anew
FEW = 100  # blocks, objects or references, however many calls; caches that are still filling
# The same, however many models. Releases of jax before 0.12 keep some 1,000 blocks, on either twin; most of them come
# in the first hundreds.
SOME = 300
MEGABYTES = 8  # that the process may grow by; the allocators' own play


class Block(nnx.Module):
  def __init__(self, rngs: nnx.Rngs):
    self.linear = nnx.Linear(4, 4, rngs=rngs)
    self.norm = nnx.BatchNorm(4, rngs=rngs)

  def __call__(self, x):
    return nnx.relu(self.norm(self.linear(x)))


class Net(nnx.Module):
  def __init__(self, depth: int = 3):
    rngs = nnx.Rngs(0)
    self.blocks = nnx.List([Block(rngs) for _ in range(depth)])

  def __call__(self, x):
    for block in self.blocks:
      x = block(x)
    return x


def train(model: Net, optimizer: nnx.Optimizer, x):
  loss, grads = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
  optimizer.update(model, grads)
  return loss


def predict(model: Net, x):
  return model(x)


def optimizer_of(model: Net) -> nnx.Optimizer:
  return nnx.Optimizer(model, TX, wrt=nnx.Param)


def watched(model: Net) -> list:
  """Objects that every walk meets, whose references could leak."""
  kernel = model.blocks[0].linear.kernel
  return [Net, Block, nnx.Param, nnx.BatchStat, type(kernel), kernel, kernel._var_metadata, 'kernel', None]


def sizes(model: Net) -> dict[str, int]:
  gc.collect()
  return {
    'blocks': sys.getallocatedblocks(),
    'objects': len(gc.get_objects()),
    'arrays': len(jax.live_arrays()),
    'references': sum(map(sys.getrefcount, watched(model))),
    'megabytes': int(pathlib.Path('/proc/self/statm').read_text().split()[1]) * PAGE >> 20,
  }


def growth(model: Net, step, count: int) -> dict[str, int]:
  """What the second half of `count` steps leaves behind."""
  for _ in range(count // 2):
    step()
  before = sizes(model)
  for _ in range(count // 2):
    step()
  after = sizes(model)
  return {name: after[name] - before[name] for name in before}


def ways(model: Net) -> dict:
  x, optimizer = jnp.ones((2, 4)), optimizer_of(model)
  call, tree = nnx.jit(train), nnx.jit(predict, graph=False)
  return {
    'nnx.jit': functools.partial(call, model, optimizer, x),
    'cached_partial': functools.partial(nnx.cached_partial(nnx.jit(train), model, optimizer), x),
    'graph=False': functools.partial(tree, model, x),
  }


def short_lived(kept: Net, step, count: int) -> dict[str, int]:
  """Models that are made, called once and dropped; each has to be gone when its name is."""

  def one():
    model = Net(1)
    array = weakref.ref(model.blocks[0].linear.kernel.get_value())
    step(model, optimizer_of(model), jnp.ones((2, 4)))
    gone = weakref.ref(model)
    del model
    assert gone() is None, 'a model outlived its name'
    assert array() is None, 'an array outlived its model'

  return growth(kept, one, count)


def peak(walk) -> int:
  """The most that Python had allocated during a walk, in bytes; the least of some tries."""
  walk()
  least = sys.maxsize
  tracemalloc.start()
  for _ in range(5):
    gc.collect()
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    walk()
    least = min(least, tracemalloc.get_traced_memory()[1] - before)
  tracemalloc.stop()
  return least


def walks() -> dict:
  model = Net(20)
  x, optimizer = jnp.ones((2, 4)), optimizer_of(model)
  graphdef, state = nnx.split(model)
  call = nnx.jit(train)
  return {
    'construct': lambda: Net(20),
    'split': lambda: nnx.split(model),
    'split by type': lambda: nnx.split(model, nnx.Param, ...),
    'state': lambda: nnx.state(model),
    'merge': lambda: nnx.merge(graphdef, state),
    'update': lambda: nnx.update(model, state),
    'clone': lambda: nnx.clone(model),
    'iter_graph': lambda: [None for _ in nnx.iter_graph(model)],
    'leaves': lambda: jax.tree.leaves(model),
    'map': lambda: jax.tree.map(lambda x: x, model),
    'call': lambda: call(model, optimizer, x),
    'first call': lambda: nnx.jit(lambda *args: train(*args))(model, optimizer, x),
  }


def check(name: str, count: int, grown: dict[str, int], few: int = FEW) -> None:
  print(name, count, *[f'{key} {value:+}' for key, value in grown.items()], flush=True)
  if graph_fast.twin() == 'pure':
    return
  assert grown['arrays'] == 0, name
  assert all(grown[key] < few for key in ('blocks', 'objects', 'references')), name
  assert grown['megabytes'] <= MEGABYTES, name


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument('--calls', type=int, default=100_000)
  parser.add_argument('--models', type=int, default=10_000)
  options = parser.parse_args()
  print('twin', graph_fast.twin())
  for name, walk in walks().items():
    print('peak', name.replace(' ', '_'), peak(walk), flush=True)
  model = Net()
  for name, step in ways(model).items():
    check(name, options.calls, growth(model, step, options.calls))
  check('models', options.models, short_lived(model, nnx.jit(train), options.models), SOME)


if __name__ == '__main__':
  main()
