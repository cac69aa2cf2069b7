"""A training step over a mesh: wide parameters sharded over one axis, the batch over the other.

  XLA_FLAGS=--xla_force_host_platform_device_count=8 python benchmarks/mesh.py [--depth 5]

Over all devices there are; `--join` makes it one of several processes, which share them. Beside each
way to call the step stands its floor: `jax.jit` over the flat list of the same arrays, placed alike.
"""

import argparse
import typing as tp

import jax
import measuring
import numpy as np
import optax
from flax import nnx
from stack import WIDTH, build, train


def join(port: int, rank: int, processes: int) -> None:
  jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  jax.distributed.initialize(f'localhost:{port}', processes, rank)


def placed(array, mesh: jax.sharding.Mesh, *axes: str | None) -> jax.Array:
  """A global array; each process knows the whole of it and holds its share."""
  whole = np.asarray(array)
  sharding = jax.sharding.NamedSharding(mesh, jax.P(*axes))
  return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


def sharded(depth: int, mesh: jax.sharding.Mesh) -> tuple[nnx.Module, nnx.Optimizer]:
  nodes = build(depth, optax.adam(1e-3))
  for _, variable in nnx.iter_graph(nodes):
    if isinstance(variable, nnx.Variable):
      value = variable.get_raw_value()
      variable.set_raw_value(placed(value, mesh, *((None, 'model') if value.ndim == 2 else ())))
  return nodes


def floor(nodes, batch) -> tuple[measuring.Call, int]:
  graphdef, state = nnx.split(nodes)
  leaves, treedef = jax.tree.flatten(state)

  @jax.jit
  def flat(leaves, *batch):
    nodes = nnx.merge(graphdef, jax.tree.unflatten(treedef, leaves))
    loss = train(*nodes, *batch)
    return loss, jax.tree.leaves(nnx.state(nodes))

  box = [leaves]

  def call():
    loss, box[0] = flat(box[0], *batch)
    return loss

  return call, len(leaves)


def shardings(nodes, batch) -> tuple:
  """Those that the arrays have, for `in_shardings`."""
  states = [jax.tree.map(lambda x: x.sharding, nnx.state(node)) for node in nodes]
  return (*map(nnx.StateSharding, states), *(x.sharding for x in batch))


def ways(nodes: tp.Callable, batch) -> dict[str, measuring.Call]:
  def with_nodes(step):
    given = nodes()
    return lambda: step(*given, *batch)

  partial = nnx.cached_partial(nnx.jit(train), *nodes())
  flat = nnx.jit_partial(train, *nodes(), graph=False)
  return {
    'nnx.jit': with_nodes(nnx.jit(train)),
    'cached_partial': lambda: partial(*batch),
    'jit_partial': lambda: flat(*batch),
    'graph=False': with_nodes(nnx.jit(train, graph=False)),
    'graph_updates=False': with_nodes(nnx.jit(train, graph_updates=False)),
    'StateSharding': with_nodes(nnx.jit(train, in_shardings=shardings(nodes(), batch))),
  }


def measure(depth: int, repeats: int) -> dict:
  mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(-1, 2), ('data', 'model'))
  batch = [placed(np.ones((16, WIDTH), np.float32), mesh, 'data') for _ in range(2)]
  call, leaves = floor(sharded(depth, mesh), batch)
  calls = {'floor': call, **ways(lambda: sharded(depth, mesh), batch)}
  return {'leaves': leaves, 'us': measuring.rounds_of(calls, rounds=3, repeats=repeats)}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--depth', type=int, default=5)
  # Not a length of time: the steps of joined processes meet.
  parser.add_argument('--repeats', type=int, default=30, help='steps in a round')
  parser.add_argument('--join', nargs=3, type=int, metavar=('PORT', 'RANK', 'PROCESSES'))
  parser.add_argument('--json', metavar='FILE', help="write the result there; '-': print it")
  options = parser.parse_args()
  if options.join:
    join(*options.join)
  measured = measure(options.depth, options.repeats)
  result = {**measuring.this_process(), 'devices': len(jax.devices()), **measured}
  if options.json != '-':
    for name, us in result['us'].items():
      print(f'{name:20}{us["best"]:10.1f} us{us["best"] / result["us"]["floor"]["best"]:8.2f}')
  measuring.emit(result, options.json)


if __name__ == '__main__':
  main()
