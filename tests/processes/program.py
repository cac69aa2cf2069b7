"""One of two processes that train one model together: python program.py PORT RANK FILE

Each has two virtual CPU devices; the mesh spans all four. Writes to the file, for each way to call a
step, the losses, how often the step was traced, and where its parameters lie. (What goes to stdout is
mixed with lines of the library that moves the data.)
"""

import functools
import sys

import jax

jax.config.update('jax_cpu_collectives_implementation', 'gloo')
jax.distributed.initialize(f'localhost:{sys.argv[1]}', num_processes=2, process_id=int(sys.argv[2]))

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from flax import nnx  # noqa: E402
from flax.nnx import graph_fast  # noqa: E402
from jax.experimental import multihost_utils  # noqa: E402

MESH = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 2), ('data', 'model'))
WAYS = {
  'jit': lambda f, *nodes: (nnx.jit(f), nodes),
  'cached_partial': lambda f, *nodes: (nnx.cached_partial(nnx.jit(f), *nodes), ()),
  'tree': lambda f, *nodes: (nnx.jit(f, graph=False), nodes),
  'simple': lambda f, *nodes: (nnx.jit(f, graph=True, graph_updates=False), nodes),
  'partial': lambda f, *nodes: (nnx.jit_partial(f, *nodes, graph=False), ()),
}


class Model(nnx.Module):
  def __init__(self, rngs):
    self.first = nnx.Linear(4, 8, rngs=rngs)
    self.norm = nnx.BatchNorm(8, rngs=rngs)
    self.last = nnx.Linear(8, 2, rngs=rngs)

  def __call__(self, x):
    return self.last(nnx.relu(self.norm(self.first(x))))


def placed(array, *axes):
  return multihost_utils.host_local_array_to_global_array(np.asarray(array), MESH, jax.P(*axes))


def build():
  model = Model(nnx.Rngs(0))
  optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
  for node in (model, optimizer):
    for path, variable in nnx.to_flat_state(nnx.state(node)):
      axes = ('model',) if variable.get_raw_value().ndim == 2 and path[0] == 'last' else ()
      share = np.asarray(variable.get_raw_value())
      variable.set_raw_value(jax.device_put(share, jax.sharding.NamedSharding(MESH, jax.P(*axes))))
    nnx.update(node, nnx.state(node))
  return model, optimizer


def main(say) -> None:
  rank = int(sys.argv[2])
  x = placed(np.random.default_rng(rank).normal(size=(8, 4)).astype(np.float32), 'data')
  for way, make in WAYS.items():
    traces = []

    def train(model, optimizer, x, traces=traces):
      traces.append(1)
      loss, grads = nnx.value_and_grad(lambda model: (model(x) ** 2).mean(), graph=False)(model)
      optimizer.update(model, grads)
      return loss

    model, optimizer = build()
    step, nodes = make(train, model, optimizer)
    losses = [float(step(*nodes, x)) for _ in range(6)]
    kernel = model.last.kernel.get_raw_value()
    say(way, losses, len(traces), kernel.sharding, [s.index for s in kernel.addressable_shards])
    say(*[float(jnp.sum(value)) for value in jax.tree.leaves(nnx.state((model, optimizer)))])
  if graph_fast.twin() == 'compiled':
    rows = graph_fast.report().functions
    assert len(rows) >= 1 and all(row.by_plan for row in rows), rows


if __name__ == '__main__':
  with open(sys.argv[3], 'w') as file:
    main(functools.partial(print, file=file))
