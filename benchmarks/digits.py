"""Real input: scikit-learn's 1,797 digits, a small convolutional network, unmodified `nnx.jit` code.

  python benchmarks/digits.py [--epochs 12] [--json FILE]

Prints the accuracy on 360 held-out images and the seconds that training took after the first step.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import measuring
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

BATCH = 64


class Network(nnx.Module):
  def __init__(self, rngs: nnx.Rngs):
    self.first = nnx.Conv(1, 16, (3, 3), rngs=rngs)
    self.first_norm = nnx.BatchNorm(16, rngs=rngs)
    self.second = nnx.Conv(16, 32, (3, 3), rngs=rngs)
    self.second_norm = nnx.BatchNorm(32, rngs=rngs)
    self.dropout = nnx.Dropout(0.3, rngs=rngs)
    self.classes = nnx.Linear(32 * 4 * 4, 10, rngs=rngs)

  def __call__(self, images):
    x = nnx.relu(self.first_norm(self.first(images)))
    x = nnx.max_pool(nnx.relu(self.second_norm(self.second(x))), (2, 2), (2, 2))
    return self.classes(self.dropout(x.reshape(len(x), -1)))


@nnx.jit
def train(model, optimizer, images, labels):
  def loss_of(model):
    return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()

  loss, grads = nnx.value_and_grad(loss_of)(model)
  optimizer.update(model, grads)
  return loss


@nnx.jit
def right(model, images, labels):
  return (model(images).argmax(-1) == labels).sum()


def data():
  digits = load_digits()
  images = (digits.images[..., None] / 16.0).astype(np.float32)
  order = np.random.default_rng(0).permutation(len(images))
  images, labels = images[order], digits.target[order]
  return (images[:-360], labels[:-360]), (images[-360:], labels[-360:])


def batches(images, labels, epoch: int):
  order = np.random.default_rng(epoch).permutation(len(images))
  for start in range(0, len(images) - BATCH + 1, BATCH):
    chosen = order[start : start + BATCH]
    yield jnp.asarray(images[chosen]), jnp.asarray(labels[chosen])


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--epochs', type=int, default=12)
  parser.add_argument('--json', metavar='FILE', help="write the result there; '-': print it")
  options = parser.parse_args()
  training, held_out = data()
  model = Network(nnx.Rngs(0))
  optimizer = nnx.Optimizer(model, optax.adam(2e-3), wrt=nnx.Param)
  train(model, optimizer, *next(batches(*training, 0)))  # compiles
  steps, start = 0, time.perf_counter()
  for epoch in range(options.epochs):
    for images, labels in batches(*training, epoch):
      loss = train(model, optimizer, images, labels)
      steps += 1
  jax.block_until_ready(loss)
  seconds = time.perf_counter() - start
  model.eval()
  accuracy = int(right(model, *map(jnp.asarray, held_out))) / len(held_out[0])
  result = {
    **measuring.this_process(),
    'accuracy': accuracy,
    'loss': float(loss),
    'steps': steps,
    'seconds': seconds,
  }
  measuring.emit(result, options.json)
  if options.json != '-':
    print(f'{100 * accuracy:.2f} % right, {seconds:.2f} s for {steps} steps ({result["twin"]})')


if __name__ == '__main__':
  main()
