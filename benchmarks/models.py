"""Two real models out of `flax.nnx` layers: a transformer of 12 blocks and a ResNet-50.

  python benchmarks/models.py [--json FILE]

Small widths, images and batches, since what Python costs does not depend on them. For each: a forward
pass by `nnx.jit` beside `jax.jit` over the flat list of the same arrays, the walks of a training loop,
and what it takes to build the model abstractly and to trace the pass.
"""

import argparse
import functools

import jax
import jax.numpy as jnp
import measuring
from flax import nnx

BLOCKS = 12
STAGES = (3, 4, 6, 3)  # the bottlenecks of a ResNet-50
WIDTH = 32


class Block(nnx.Module):
  def __init__(self, rngs: nnx.Rngs):
    self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2)])
    self.attention = nnx.MultiHeadAttention(4, WIDTH, decode=False, rngs=rngs)
    self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
    self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

  def __call__(self, x):
    x = x + self.attention(self.norms[0](x))
    return x + self.down(nnx.gelu(self.up(self.norms[1](x))))


class Transformer(nnx.Module):
  def __init__(self, rngs: nnx.Rngs):
    self.embed = nnx.Embed(64, WIDTH, rngs=rngs)
    self.blocks = nnx.List([Block(rngs) for _ in range(BLOCKS)])
    self.head = nnx.Linear(WIDTH, 64, rngs=rngs)

  def __call__(self, tokens):
    x = self.embed(tokens)
    for block in self.blocks:
      x = block(x)
    return self.head(x)


class Bottleneck(nnx.Module):
  def __init__(self, width_in: int, width: int, stride: int, rngs: nnx.Rngs):
    conv = functools.partial(nnx.Conv, use_bias=False, rngs=rngs)
    out = 4 * width
    self.convs = nnx.List(
      [
        conv(width_in, width, (1, 1)),
        conv(width, width, (3, 3), strides=stride),
        conv(width, out, (1, 1)),
      ]
    )
    self.norms = nnx.List([nnx.BatchNorm(n, rngs=rngs) for n in (width, width, out)])
    self.shortcut = None if width_in == out else conv(width_in, out, (1, 1), strides=stride)

  def __call__(self, x):
    y = x
    for conv, norm in zip(self.convs, self.norms):
      y = norm(conv(nnx.relu(y)))
    return y + (x if self.shortcut is None else self.shortcut(x))


class ResNet50(nnx.Module):
  def __init__(self, rngs: nnx.Rngs):
    self.stem, self.blocks, width_in = nnx.Conv(3, 8, (3, 3), rngs=rngs), nnx.List([]), 8
    for stage, count in enumerate(STAGES):
      for i in range(count):
        width = 4 * 2**stage
        self.blocks.append(Bottleneck(width_in, width, 2 if stage and not i else 1, rngs))
        width_in = 4 * width
    self.head = nnx.Linear(width_in, 10, rngs=rngs)

  def __call__(self, images):
    x = self.stem(images)
    for block in self.blocks:
      x = block(x)
    return self.head(x.mean((1, 2)))


MODELS = {
  'transformer': (Transformer, jnp.zeros((1, 4), jnp.int32)),
  'ResNet-50': (ResNet50, jnp.zeros((1, 8, 8, 3))),
}


def forward(model, x):
  return model(x)


def calls(make, x) -> tuple[dict[str, measuring.Call], int]:
  model = make(nnx.Rngs(0))
  model.eval()
  graphdef, state = nnx.split(model)
  leaves, treedef = jax.tree.flatten(state)
  flat = jax.jit(lambda leaves, x: nnx.merge(graphdef, jax.tree.unflatten(treedef, leaves))(x))
  jitted = nnx.jit(forward)
  partial = nnx.cached_partial(jitted, model)
  return {
    'floor': lambda: flat(leaves, x),
    'nnx.jit': lambda: jitted(model, x),
    'cached_partial': lambda: partial(x),
    'split': lambda: nnx.split(model),
    'merge': lambda: nnx.merge(graphdef, state),
    'update': lambda: nnx.update(model, state),
    'tree.map': lambda: jax.tree.map(lambda a: a, model),
    'construct': lambda: nnx.eval_shape(lambda: make(nnx.Rngs(0))),
    'trace': lambda: nnx.jit(functools.partial(forward)).trace(model, x) and None,
  }, len(leaves)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--models', nargs='+', choices=MODELS, default=tuple(MODELS))
  parser.add_argument('--json', metavar='FILE', help="write the result there; '-': print it")
  options = parser.parse_args()
  result = {**measuring.this_process(), 'models': {}}
  for name in options.models:
    timed, leaves = calls(*MODELS[name])
    us = measuring.best_of_rounds(timed, rounds=3, budget=0.05)
    result['models'][name] = {'leaves': leaves, 'us': us}
    if options.json != '-':
      print(f'{name}, {leaves} arrays, {result["twin"]} twin')
      for call, taken in us.items():
        print(f'  {call:16}{taken:12.1f} us')
  measuring.emit(result, options.json)


if __name__ == '__main__':
  main()
