"""One step of the same model in one library: an empty step, a forward pass, an Adam step.

  python benchmarks/libraries.py --library nnx|equinox|linen --scenario empty|forward|train --depth N

Layers of Linear and LayerNorm, 8 wide. Beside each way to call the step stands its floor, in the same
process and rounds: `jax.jit` over the flat list of the same arrays; all of them come back in `train`,
none in the other two.
"""

import argparse

import jax
import jax.numpy as jnp
import measuring
import optax

WIDTH = 8
X, Y = jnp.ones((4, WIDTH)), jnp.zeros((4, WIDTH))
ADAM = optax.adam(1e-3)


def with_floor(scenario: str, leaves: list[jax.Array], compute, ways: dict) -> dict:
  """The ways beside `jax.jit` over `leaves`; `compute` maps leaves to leaves, or to a result."""
  if scenario == 'train':
    flat, box = jax.jit(compute), [leaves]

    def floor():
      box[0] = flat(box[0])
      return box[0][0]
  else:
    flat = jax.jit(compute)

    def floor():
      return flat(leaves)

  return {'floor': floor, **ways}


def nnx_steps(scenario: str, depth: int):
  from flax import nnx

  class Layer(nnx.Module):
    def __init__(self, rngs):
      self.linear = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
      self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)

  class Stack(nnx.Module):
    def __init__(self):
      self.layers = nnx.List([Layer(nnx.Rngs(i)) for i in range(depth)])

    def __call__(self, x):
      for layer in self.layers:
        x = nnx.relu(layer.norm(layer.linear(x)))
      return x

  def train(model, optimizer):
    loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(X) - Y) ** 2))(model)
    optimizer.update(model, grads)
    return loss

  step = {'empty': lambda *nodes: None, 'forward': lambda model: model(X), 'train': train}[scenario]

  def nodes():
    model = Stack()
    return (model,) if scenario == 'forward' else (model, nnx.Optimizer(model, ADAM, wrt=nnx.Param))

  def made(call):
    fresh = nodes()
    return lambda: call(*fresh)

  graphdef, state = nnx.split(nodes())
  leaves, treedef = jax.tree.flatten(state)

  def compute(leaves):
    fresh = nnx.merge(graphdef, jax.tree.unflatten(treedef, leaves))
    out = step(*fresh)
    return jax.tree.leaves(nnx.state(fresh)) if scenario == 'train' else out

  partial = nnx.cached_partial(nnx.jit(step), *nodes())
  flat = nnx.jit_partial(step, *nodes(), graph=False)
  ways = {
    'nnx.jit': made(nnx.jit(step)),
    'cached_partial': lambda: partial(),
    'jit_partial': lambda: flat(),
    'graph=False': made(nnx.jit(step, graph=False)),
    'graph_updates=False': made(nnx.jit(step, graph_updates=False)),
  }
  return leaves, with_floor(scenario, leaves, compute, ways)


def equinox_steps(scenario: str, depth: int):
  import equinox as eqx

  class Stack(eqx.Module):
    linears: list
    norms: list

    def __init__(self):
      keys = jax.random.split(jax.random.key(0), depth)
      self.linears = [eqx.nn.Linear(WIDTH, WIDTH, key=key) for key in keys]
      self.norms = [eqx.nn.LayerNorm(WIDTH) for _ in keys]

    def __call__(self, x):
      for linear, norm in zip(self.linears, self.norms):
        x = jax.nn.relu(norm(linear(x)))
      return x

  def loss(model):
    return jnp.mean((jax.vmap(model)(X) - Y) ** 2)

  def train(model, opt_state):
    grads = eqx.filter_grad(loss)(model)
    updates, opt_state = ADAM.update(grads, opt_state, model)
    return eqx.apply_updates(model, updates), opt_state

  step = {
    'empty': lambda model, opt_state: None,
    'forward': lambda model, opt_state: jax.vmap(model)(X),
    'train': train,
  }[scenario]
  model = Stack()
  return pytree_steps(
    scenario, (model, ADAM.init(eqx.filter(model, eqx.is_array))), step, eqx.filter_jit, 'filter_jit'
  )


def linen_steps(scenario: str, depth: int):
  from flax import linen

  class Stack(linen.Module):
    @linen.compact
    def __call__(self, x):
      for _ in range(depth):
        x = linen.relu(linen.LayerNorm()(linen.Dense(WIDTH)(x)))
      return x

  model = Stack()
  params = model.init(jax.random.key(0), X)

  def train(params, opt_state):
    grads = jax.grad(lambda params: jnp.mean((model.apply(params, X) - Y) ** 2))(params)
    updates, opt_state = ADAM.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state

  step = {
    'empty': lambda params, opt_state: None,
    'forward': lambda params, opt_state: model.apply(params, X),
    'train': train,
  }[scenario]
  return pytree_steps(scenario, (params, ADAM.init(params)), step, jax.jit, 'jax.jit')


def pytree_steps(scenario: str, state, step, jit, name: str):
  """A library whose models and optimizer states are pytrees, handed in and given back."""
  dynamic = [x for x in jax.tree.leaves(state) if isinstance(x, jax.Array)]
  leaves, treedef = jax.tree.flatten(state)
  places = [i for i, x in enumerate(leaves) if isinstance(x, jax.Array)]

  def compute(arrays):
    filled = list(leaves)
    for i, array in zip(places, arrays):
      filled[i] = array
    out = step(*jax.tree.unflatten(treedef, filled))
    if scenario != 'train':
      return out
    return [x for x in jax.tree.leaves(out) if isinstance(x, jax.Array)]

  jitted, box = jit(step), [state]

  def call():
    out = jitted(*box[0])
    if scenario == 'train':
      box[0] = out
      return jax.tree.leaves(out)[0]
    return out

  return dynamic, with_floor(scenario, dynamic, compute, {name: call})


LIBRARIES = {'nnx': nnx_steps, 'equinox': equinox_steps, 'linen': linen_steps}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--library', choices=LIBRARIES, default='nnx')
  parser.add_argument('--scenario', choices=('empty', 'forward', 'train'), default='train')
  parser.add_argument('--depth', type=int, default=5)
  parser.add_argument('--json', metavar='FILE', help="write the result there; '-': print it")
  options = parser.parse_args()
  leaves, calls = LIBRARIES[options.library](options.scenario, options.depth)
  times = measuring.rounds_of(calls, rounds=5, budget=0.02)
  result = {**measuring.this_process(), 'leaves': len(leaves), 'us': times}
  if options.json != '-':
    floor = times['floor']['best']
    for name, us in times.items():
      print(f'{name:<20} {us["best"]:>9.1f} us {us["best"] / floor:>6.2f}')
  measuring.emit(result, options.json)


if __name__ == '__main__':
  main()
