"""Transforms other than `nnx.jit`, called eagerly in a loop: microseconds a call.

  python benchmarks/transforms.py [--depth 3] [--json FILE]

Each call walks the model as a jitted one does, and traces anew what jax traces anew, so a good part of
it is jax's.
"""

import argparse

import jax
import jax.numpy as jnp
import measuring
from flax import nnx
from stack import WIDTH, Stack


def calls(depth: int) -> dict[str, measuring.Call]:
  model, x, many = Stack(depth), jnp.ones((2, WIDTH)), jnp.ones((2, 2, WIDTH))
  model.eval()

  def loss(model, x):
    return jnp.sum(model(x))

  def body(model, x):
    return model(x)

  def twice(i, carry):
    model, x = carry
    return model, model(x)

  def less(carry):
    return carry[1][0, 0] > 1e9

  def next_one(carry):
    return carry[0], carry[0](carry[1])

  vmap_axes = nnx.StateAxes({...: None})
  made = {
    'grad': (nnx.grad(loss), model, x),
    'value_and_grad': (nnx.value_and_grad(loss), model, x),
    'vmap': (nnx.vmap(body, in_axes=(vmap_axes, 0)), model, many),
    'pmap': (nnx.pmap(body, in_axes=(vmap_axes, 0)), model, many[:1]),
    'scan': (nnx.scan(body, in_axes=(vmap_axes, 0), out_axes=0), model, many),
    'remat': (nnx.remat(body), model, x),
    'cond': (nnx.cond, jnp.array(True), body, body, model, x),
    'switch': (nnx.switch, jnp.array(1), [body, body], model, x),
    'while_loop': (nnx.while_loop, less, next_one, (model, x)),
    'fori_loop': (nnx.fori_loop, 0, 2, twice, (model, x)),
    'eval_shape': (nnx.eval_shape, body, model, x),
    'checkify': (nnx.checkify(body), model, x),
    'custom_vjp': (custom(), model, x),
    'cached_partial(grad)': (nnx.cached_partial(nnx.grad(loss), model), x),
  }
  return {name: (lambda f=f, args=args: f(*args)) for name, (f, *args) in made.items()}


def custom():
  @nnx.custom_vjp
  def f(model, x):
    return model(x)

  f.defvjp(lambda model, x: (f(model, x), None), lambda saved, g: (g[0], g[1]))
  return f


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--depth', type=int, default=3)
  parser.add_argument('--json', metavar='FILE', help="write the result there; '-': print it")
  options = parser.parse_args()
  us = measuring.best_of_rounds(calls(options.depth), rounds=3, budget=0.05)
  leaves = len(jax.tree.leaves(Stack(options.depth)))
  result = {**measuring.this_process(), 'leaves': leaves, 'us': us}
  if options.json != '-':
    for name, taken in us.items():
      print(f'{name:22}{taken:10.1f} us   {result["twin"]}')
  measuring.emit(result, options.json)


if __name__ == '__main__':
  main()
