"""The model that most scripts measure: any number of Linear and BatchNorm layers, 8 wide."""

import jax.numpy as jnp
import optax
from flax import nnx

WIDTH = 8
SGD = optax.sgd(1e-3)


class Layer(nnx.Module):
  def __init__(self, rngs: nnx.Rngs):
    self.linear = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
    self.norm = nnx.BatchNorm(WIDTH, rngs=rngs)

  def __call__(self, x):
    return nnx.relu(self.norm(self.linear(x)))


class Stack(nnx.Module):
  def __init__(self, depth: int):
    self.layers = nnx.List([Layer(nnx.Rngs(i)) for i in range(depth)])

  def __call__(self, x):
    for layer in self.layers:
      x = layer(x)
    return x


def build(depth: int, tx=SGD):
  """A model and its optimizer."""
  model = Stack(depth)
  return model, nnx.Optimizer(model, tx, wrt=nnx.Param)


def nothing(*nodes):
  """A step that costs nothing but the traversal."""
  return None


def train(model, optimizer, x, y):
  loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
  optimizer.update(model, grads)
  return loss
