"""What training is made of: random streams, layers, optimizers, metrics, shardings."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from telling import error_of, plain, tree, value_of
from zoo import GRAPHS, Counter, Net

X = jnp.arange(8.0).reshape(4, 2) / 8


# ---- random streams ----


def drawn(rngs):
  return [value_of(rngs.params()), value_of(rngs.dropout()), value_of(rngs())]


STREAMS = {
  'seed': lambda: nnx.Rngs(0),
  'named': lambda: nnx.Rngs(0, params=1, dropout=2),
  'key': lambda: nnx.Rngs(jax.random.key(3), params=jax.random.key(4)),
  'only_named': lambda: nnx.Rngs(params=1, dropout=jax.random.key(1)),
  'dict': lambda: nnx.Rngs({'params': 1, 'dropout': 5}),
  'none': lambda: nnx.Rngs(),
  'float': lambda: nnx.Rngs(0.5),
}  # fmt: skip


@pytest.mark.parametrize('kind', STREAMS)
def test_streams(say, kind):
  def made():
    rngs = STREAMS[kind]()
    say(error_of(drawn, rngs), error_of(drawn, rngs), *tree(rngs))
    say(error_of(lambda: [value_of(rngs.normal((2,))), value_of(rngs.params.uniform((2,)))]))
    say([name for name in rngs], len(rngs), 'params' in rngs, plain(rngs.get('params')))
    say(error_of(lambda: [list(rngs.items())[0][0], rngs['params'], rngs.nothing]))
    forked = rngs.fork(split={'params': 3, ...: None})
    say(*tree(forked), *tree(rngs), error_of(drawn, forked))
    say(*tree(rngs.fork(split=2)), *tree(nnx.clone(rngs)), *tree(nnx.merge(*nnx.split(rngs))))

  say(error_of(made))


@pytest.mark.parametrize('graph', [True, False])
def test_streams_in_transforms(say, graph):
  rngs = nnx.Rngs(0, dropout=1)

  @nnx.jit(graph=graph)
  def draw(rngs):
    return drawn_arrays(rngs)

  def drawn_arrays(rngs):
    return rngs.params.normal((2,)), rngs.dropout.uniform(())

  for _ in range(4):
    say(*map(value_of, draw(rngs)), *tree(rngs))

  @nnx.split_rngs(splits=3, only='dropout')
  @nnx.vmap(in_axes=(nnx.StateAxes({'dropout': 0, ...: None}), 0))
  def vmapped(rngs, x):
    return x + rngs.dropout.normal(())

  for _ in range(2):
    say(error_of(lambda: value_of(vmapped(rngs, jnp.arange(3.0)))), *tree(rngs))
  for call in (
    lambda: nnx.fork_rngs(rngs, split=2),
    lambda: nnx.fork_rngs(rngs, split={'params': 2}),
    lambda: nnx.split_rngs(rngs, splits=2),
    lambda: nnx.restore_rngs(nnx.split_rngs(rngs, splits=2)),
    lambda: nnx.reseed(rngs, params=7, dropout=jax.random.key(8)),
    lambda: nnx.reseed(rngs, nothing=7),
  ):
    say(error_of(call), *tree(rngs))


# ---- layers ----


def rnn(rngs):
  return nnx.RNN(nnx.LSTMCell(2, 3, rngs=rngs))


class Block(nnx.Module):
  def __init__(self, rngs):
    self.conv = nnx.Conv(2, 3, (3,), rngs=rngs)
    self.norm = nnx.GroupNorm(3, num_groups=1, rngs=rngs)
    self.attention = nnx.MultiHeadAttention(1, 3, 4, decode=False, rngs=rngs)
    self.embed = nnx.Embed(5, 3, rngs=rngs)
    self.lora = nnx.LoRA(3, 2, 3, rngs=rngs)
    self.drop = nnx.Dropout(0.3, rngs=rngs)

  def __call__(self, x):
    x = self.norm(self.conv(x[None]))
    x = self.attention(x) + self.embed(jnp.array([1, 2, 3, 4]))
    return self.drop(self.lora(x))[0]


LAYERS = {
  'linear': lambda rngs: nnx.Linear(2, 3, rngs=rngs),
  'mlp': lambda rngs: nnx.Sequential(
    nnx.Linear(2, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs), nnx.relu, nnx.Dropout(0.5, rngs=rngs)
  ),
  'general': lambda rngs: nnx.LinearGeneral((2,), (3, 2), rngs=rngs),
  'einsum': lambda rngs: nnx.Einsum('bi,io->bo', (2, 3), (3,), rngs=rngs),
  'norms': lambda rngs: nnx.Sequential(nnx.LayerNorm(2, rngs=rngs), nnx.RMSNorm(2, rngs=rngs)),
  'weight_norm': lambda rngs: nnx.WeightNorm(nnx.Linear(2, 3, rngs=rngs), rngs=rngs),
  'spectral': lambda rngs: nnx.SpectralNorm(nnx.Linear(2, 3, rngs=rngs), rngs=rngs),
  'block': Block,
  'rnn': lambda rngs: nnx.Sequential(lambda x: x[None], rnn(rngs), lambda x: x[0]),
  'prelu': lambda rngs: nnx.PReLU(),
}  # fmt: skip
every_layer = pytest.mark.parametrize('kind', LAYERS)
OPTIMIZERS = {
  'sgd': lambda: optax.sgd(0.1),
  'momentum': lambda: optax.sgd(0.1, momentum=0.9),
  'adam': lambda: optax.adam(0.1),
  'chain': lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.linear_schedule(0.1, 0.0, 5))),
  'masked': lambda: optax.masked(optax.adam(0.1), lambda state: jax.tree.map(lambda x: x.ndim > 1, state)),
  'inject': lambda: optax.inject_hyperparams(optax.sgd)(learning_rate=0.1),
  'multi': lambda: optax.MultiSteps(optax.sgd(0.1), 2),
}  # fmt: skip


def loss_of(model, x):
  return jnp.sum(jnp.square(model(x)))


def step(model, optimizer, x):
  loss, grads = nnx.value_and_grad(loss_of)(model, x)
  optimizer.update(model, grads)
  return loss


@every_layer
def test_layers(say, kind):
  model = LAYERS[kind](nnx.Rngs(0, dropout=1))
  jitted, traces = nnx.jit(lambda model, x: (traces.append(1), model(x))[1]), []
  say(*tree(model))
  for switch in (lambda: None, model.eval, model.train, model.eval):
    switch()
    for _ in range(3):
      say(error_of(lambda: say(value_of(jitted(model, X)))), len(traces))
    say(error_of(lambda: say(value_of(model(X)))), *tree(model))


@every_layer
@pytest.mark.parametrize('way', ['eager', 'jit', 'bound', 'tree'])
def test_train(say, kind, way):
  model = LAYERS[kind](nnx.Rngs(0, dropout=1))
  optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)

  def call():
    if way == 'eager':
      return step(model, optimizer, X)
    if way == 'bound':
      return bound(X)
    return jitted(model, optimizer, X)

  jitted = nnx.jit(step, graph=way != 'tree')
  bound = nnx.cached_partial(nnx.jit(step), model, optimizer)
  for _ in range(4):
    say(error_of(lambda: say(value_of(call()))))
  say(*tree(model), *tree(optimizer))


@pytest.mark.parametrize('kind', OPTIMIZERS)
@pytest.mark.parametrize('wrt', ['params', 'counted', 'path', 'nothing'])
def test_optimizers(say, kind, wrt):
  chosen = {
    'params': nnx.Param,
    'counted': nnx.Any(nnx.Param, Counter),
    'path': nnx.All(nnx.Param, nnx.PathContains('kernel')),
    'nothing': nnx.BatchStat,
  }[wrt]
  model = GRAPHS['net']()

  def trained():
    optimizer = nnx.Optimizer(model, OPTIMIZERS[kind](), wrt=chosen)
    say(*tree(optimizer))
    which = nnx.DiffState(0, chosen if wrt != 'counted' else nnx.Param)

    @nnx.jit
    def step(model, optimizer, x):
      grads = nnx.grad(lambda model: jnp.sum(model(x) ** 2), argnums=which)(model)
      optimizer.update(model, grads)

    for _ in range(3):
      step(model, optimizer, X[0])
    say(*tree(model), *tree(optimizer))
    grads = nnx.grad(lambda model: jnp.sum(model(X[0]) ** 2), argnums=which)(model)
    optimizer.update(model, grads)
    say(*tree(model), *tree(optimizer), plain(nnx.state(optimizer)))

  say(error_of(trained))


def test_optimizer_misuse(say):
  model = Net(1)
  optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
  grads = nnx.grad(lambda model: jnp.sum(model(X[0])))(model)
  for call in (
    lambda: nnx.Optimizer(model, optax.sgd(0.1)),
    lambda: optimizer.update(grads),
    lambda: optimizer.update(model, {}),
    lambda: optimizer.update(model, nnx.state(model)),
    lambda: optimizer.update(Net(2), grads),
    lambda: optimizer.update(model, grads, value=3),
    lambda: nnx.ModelAndOptimizer(model, optax.sgd(0.1), wrt=nnx.Param).update(grads),
  ):
    say(error_of(call), *tree(model))


def test_train_state(say):
  graphdef, params, rest = nnx.split(LAYERS['block'](nnx.Rngs(0)), nnx.Param, ...)

  class State(nnx.TrainState):
    rest: nnx.State

  state = State.create(graphdef, params=params, tx=optax.adam(0.1), rest=rest)

  @jax.jit
  def step(state, x):
    def loss_of(params):
      model = nnx.merge(state.graphdef, params, jax.tree.map(lambda x: x, state.rest), copy=True)
      return jnp.sum(model(x) ** 2), nnx.state(model, nnx.Not(nnx.Param))

    grads, rest = jax.grad(loss_of, has_aux=True)(state.params)
    return state.apply_gradients(grads, rest=rest)

  for _ in range(3):
    state = step(state, X)
    say(plain(state.params), plain(state.rest), plain(state.opt_state), state.step)


# ---- metrics and switches ----


@pytest.mark.parametrize('jitted', [True, False])
def test_metrics(say, jitted):
  metrics = nnx.MultiMetric(
    loss=nnx.metrics.Average('loss'), accuracy=nnx.metrics.Accuracy(), spread=nnx.metrics.Welford('loss')
  )

  def update(metrics, logits, labels):
    metrics.update(loss=jnp.mean(logits), logits=logits, labels=labels)

  update = nnx.jit(update) if jitted else update
  for i in range(4):
    update(metrics, X + i, jnp.array([0, 1, 1, 0]))
    say(plain(metrics.compute()), *tree(metrics))
    if i == 2:
      metrics.reset()
  say(error_of(metrics.update), error_of(lambda: metrics.update(loss=1)))


@pytest.mark.parametrize('kind', GRAPHS)
def test_switches(say, kind):
  def switched():
    node = GRAPHS[kind]()
    for call in (
      lambda: node.eval(),
      lambda: node.train(),
      lambda: node.set_attributes(deterministic=True, use_running_average=True),
      lambda: node.set_attributes(nnx.Dropout, rate=0.1),
      lambda: node.set_attributes(nothing=3),
      lambda: node.set_attributes(nothing=3, raise_if_not_found=False),
      lambda: node.sow(nnx.Intermediate, 'seen', X),
      lambda: node.perturb('grads', X),
      lambda: [plain(path) for path, _ in node.iter_modules()],
      lambda: [plain(path) for path, _ in node.iter_children()],
      lambda: nnx.view(node, deterministic=True, use_running_average=False),
      lambda: nnx.with_attributes(node, deterministic=True),
      lambda: nnx.capture(lambda node: node(X[0]), nnx.Intermediate)(node),
    ):
      say(error_of(call))
    say(*tree(node))

  say(error_of(switched))


# ---- shardings ----


class Sharded(nnx.Module):
  def __init__(self, rngs):
    init = nnx.initializers.ones_init()
    self.inner = nnx.Linear(
      2, 4, kernel_init=nnx.with_partitioning(init, (None, 'model')),
      bias_init=nnx.with_partitioning(init, ('model',)), rngs=rngs,
    )  # fmt: skip
    self.outer = nnx.Param(jnp.ones((4, 2)), out_sharding=('model', None))
    self.plain = nnx.Param(jnp.ones(2))

  def __call__(self, x):
    return self.inner(x) @ self.outer[...] + self.plain[...]


def placements(node) -> list[str]:
  return [f'{path} {v.get_value().sharding}' for path, v in nnx.iter_graph(node) if isinstance(v, nnx.Variable)]


@pytest.mark.parametrize('axes', ['auto', 'explicit'])
def test_shardings(say, axes):
  kind = {'auto': jax.sharding.AxisType.Auto, 'explicit': jax.sharding.AxisType.Explicit}[axes]
  mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ('data', 'model'), axis_types=(kind,) * 2)

  def sharded():
    with jax.set_mesh(mesh):
      model = Sharded(nnx.Rngs(0))
      say(*tree(model), *placements(model))
      state = nnx.state(model)
      say(plain(nnx.get_partition_spec(state)), plain(nnx.get_named_sharding(state, mesh)))
      nnx.update(model, jax.lax.with_sharding_constraint(state, nnx.get_named_sharding(state, mesh)))
      say(*placements(model))
      optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
      x = jax.device_put(X, NamedSharding(mesh, PartitionSpec('data')))
      jitted = nnx.jit(step)
      for _ in range(4):
        say(error_of(lambda: say(value_of(jitted(model, optimizer, x)))))
      say(*tree(model), *placements(model), *placements(optimizer))

  say(error_of(sharded))
  say(error_of(lambda: plain(nnx.get_abstract_model(lambda: Sharded(nnx.Rngs(0)), mesh))))
  say(error_of(lambda: plain(nnx.spmd.as_abstract(lambda: Sharded(nnx.Rngs(0)), mesh))))


def test_axes_of_scans(say):
  """Metadata of Variables gains an axis where layers are stacked, and loses it within."""

  @nnx.split_rngs(splits=3)
  @nnx.vmap(transform_metadata={nnx.PARTITION_NAME: 'layers'})
  def make(rngs):
    return Sharded(rngs)

  @nnx.scan(transform_metadata={nnx.PARTITION_NAME: 'layers'}, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
  def run(x, model):
    seen.append(plain([v.get_metadata() for _, v in nnx.iter_graph(model) if isinstance(v, nnx.Variable)]))
    return model(x)

  seen: list = []

  def scanned():
    nnx.use_eager_sharding(False)
    model = make(nnx.Rngs(0))
    say(*tree(model))
    for _ in range(2):
      say(value_of(run(X, model)), len(seen), seen[-1])
    say(*tree(model))

  say(error_of(scanned))
  nnx.use_eager_sharding(True)
