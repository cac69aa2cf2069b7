"""Linen inside NNX and NNX inside Linen."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from flax.nnx import bridge
from telling import error_of, plain, tree

X = jnp.arange(6.0).reshape(3, 2)


class LinenBlock(nn.Module):
  train: bool = True

  @nn.compact
  def __call__(self, x, *, scale=1.0):
    x = nn.Dense(4)(x)
    x = nn.BatchNorm(use_running_average=not self.train)(x)
    count = self.variable('counts', 'calls', lambda: jnp.array(0))
    count.value += 1
    return nn.Dropout(0.5, deterministic=not self.train)(x) * scale


class LinenStack(nn.Module):
  def setup(self):
    self.layers = [nn.Dense(3) for _ in range(2)]
    self.last = LinenBlock()

  def __call__(self, x):
    for layer in self.layers:
      x = layer(x)
    return self.last(x)

  def first(self, x):
    return self.layers[0](x)


LINEN = {'dense': lambda: nn.Dense(3), 'block': LinenBlock, 'stack': LinenStack}


class Block(nnx.Module):
  def __init__(self, size=2, *, rngs):
    self.linear = nnx.Linear(size, 4, rngs=rngs)
    self.norm = nnx.BatchNorm(4, rngs=rngs)
    self.dropout = nnx.Dropout(0.5, rngs=rngs)
    self.layers = nnx.List([nnx.Linear(4, 4, rngs=rngs) for _ in range(2)])
    self.scale = nnx.Param(jnp.ones(4), sharding_names=('out',), eager_sharding=False)
    self.calls = nnx.Variable(jnp.array(0))

  def __call__(self, x):
    self.calls[...] += 1
    x = self.dropout(self.norm(self.linear(x)))
    for layer in self.layers:
      x = layer(x)
    return x * self.scale[...]


NNX = {'linear': (nnx.Linear, 2, 3), 'block': (Block,), 'lora': (nnx.LoRA, 2, 1, 2)}


@pytest.mark.parametrize('kind', LINEN)
@pytest.mark.parametrize('lazily', [True, False])
def test_to_nnx(say, kind, lazily):
  model = bridge.ToNNX(LINEN[kind](), rngs=nnx.Rngs(0, dropout=1))
  say(*tree(model))
  if lazily:
    bridge.lazy_init(model, X)
    say(*tree(model))
  for mutable in (False, True, ['batch_stats', 'counts'], ['batch_stats']):
    say(error_of(lambda mutable=mutable: model(X, mutable=mutable)))
  say(*tree(model), plain(nnx.graphdef(model)), plain(nnx.state(model)))
  say(error_of(lambda: model(X, rngs={'dropout': jax.random.key(5)})))
  say(error_of(lambda: model(X, method='first')))
  say(error_of(lambda: nnx.merge(*nnx.split(model))(X)))


@pytest.mark.parametrize('kind', LINEN)
def test_to_nnx_jitted(say, kind):
  model = bridge.lazy_init(bridge.ToNNX(LINEN[kind](), rngs=nnx.Rngs(0)), X)
  optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
  traces = []

  @nnx.jit
  def step(model, optimizer, x):
    traces.append(1)
    loss, grads = nnx.value_and_grad(lambda model: jnp.sum(model(x, mutable=True) ** 2))(model)
    optimizer.update(model, grads)
    return loss

  for _ in range(4):
    say(error_of(lambda: float(step(model, optimizer, X))), len(traces))
  say(*tree(model))
  say(error_of(lambda: nnx.cached_partial(step, model, optimizer)(X)), len(traces))
  say(error_of(lambda: float(step(nnx.clone(model), optimizer, X[:1]))), len(traces))


@pytest.mark.parametrize('kind', NNX)
def test_to_linen(say, kind):
  model = bridge.to_linen(*NNX[kind])
  variables = model.init({'params': jax.random.key(0), 'dropout': jax.random.key(1)}, X)
  say(plain(jax.tree.map(lambda x: x, variables)), list(variables))
  for rngs in (None, {'dropout': jax.random.key(2)}):
    for mutable in (False, ['batch_stats'], True):
      say(error_of(lambda r=rngs, m=mutable: model.apply(variables, X, rngs=r, mutable=m)))
  jitted = jax.jit(lambda variables, x: model.apply(variables, x, mutable=True, rngs={'dropout': jax.random.key(1)}))
  for _ in range(2):
    say(error_of(lambda: jitted(variables, X)))
  say(error_of(lambda: jax.grad(lambda v: jnp.sum(model.apply(v, X, mutable=True)[0]))(variables)))
  say(error_of(lambda: model.apply({}, X)), error_of(lambda: model.apply(variables, X[:, :1])))


def test_linen_around_nnx_around_linen(say):
  class Inner(nnx.Module):
    def __init__(self, rngs):
      self.dense = bridge.ToNNX(nn.Dense(2), rngs=rngs).lazy_init(X)
      self.bias = nnx.Param(jnp.zeros(2))

    def __call__(self, x):
      return self.dense(x) + self.bias[...]

  class Outer(nn.Module):
    @nn.compact
    def __call__(self, x):
      return bridge.to_linen(Inner, name='inner')(nn.Dense(2)(x))

  variables = Outer().init(jax.random.key(0), X)
  say(plain(variables), error_of(lambda: Outer().apply(variables, X)))
  model = bridge.ToNNX(Outer(), rngs=nnx.Rngs(0)).lazy_init(X)
  say(*tree(model), error_of(lambda: nnx.jit(lambda model, x: model(x))(model, X)))


def test_scan_over_nnx_in_linen(say):
  class Body(nn.Module):
    @nn.compact
    def __call__(self, x, _):
      return bridge.to_linen(nnx.Linear, 2, 2, name='linear')(x), None

  class Scanned(nn.Module):
    @nn.compact
    def __call__(self, x):
      layers = nn.scan(Body, variable_axes={'params': 0, 'nnx': 0}, split_rngs={'params': True}, length=3)
      return layers()(x, None)[0]

  def scanned():
    variables = Scanned().init(jax.random.key(0), X)
    say(plain(variables), plain(Scanned().apply(variables, X)))

  say(error_of(scanned))


def test_partitioned(say):
  """Annotations of Linen's and of NNX's, under a mesh."""
  ones = nn.with_partitioning(nn.initializers.ones, (None, 'model'))
  mesh = jax.make_mesh((2, 2), ('data', 'model'), axis_types=(jax.sharding.AxisType.Auto,) * 2)
  with jax.set_mesh(mesh):
    model = bridge.lazy_init(bridge.ToNNX(nn.Dense(4, kernel_init=ones), rngs=nnx.Rngs(0)), X)
    say(*tree(model), plain(nnx.get_partition_spec(nnx.state(model))))
    say(error_of(lambda: nnx.jit(lambda model, x: model(x))(model, X)))
    inner = bridge.to_linen(nnx.Linear, 2, 4, kernel_init=nnx.with_partitioning(nnx.initializers.ones, (None, 'model')))
    variables = inner.init(jax.random.key(0), X)
    say(plain(variables), plain(nn.get_partition_spec(variables)), error_of(lambda: inner.apply(variables, X)))


def test_bridge_modules(say):
  class Dense(bridge.Module):
    size: int = 3

    @bridge.compact
    def __call__(self, x):
      kernel = self.param('kernel', nnx.initializers.ones, (x.shape[-1], self.size))
      calls = self.variable('counts', 'calls', lambda: jnp.array(0))
      calls[...] += 1
      return x @ kernel[...]

  class Stack(bridge.Module):
    def setup(self):
      self.first = Dense()
      self.others = [Dense(size=2), Dense(size=2)]

    def __call__(self, x):
      x = self.first(x)
      for other in self.others:
        x = other(x)
      return x

  for model in (Dense(), Stack()):
    def initialised(model=model):
      variables = model.init(jax.random.key(0), X)
      say(plain(variables))
      say(plain(model.apply(variables, X)), plain(model.apply(variables, X, mutable=True)))
      say(plain(model.apply(variables, X, mutable=['counts'])))
      return list(variables)

    say(error_of(initialised), error_of(lambda model=model: model.apply({}, X)))


def test_variables_across(say):
  model = Block(rngs=nnx.Rngs(0))
  state = nnx.to_pure_dict(nnx.state(model, nnx.Param))
  attrs = {'layer': {'kernel': nnx.Param(X), 'stat': nnx.BatchStat(X, note='s')}, 'n': nnx.Variable(X)}
  linen = bridge.variables.nnx_attrs_to_linen_vars(attrs)
  say(plain(linen), plain(bridge.variables.linen_vars_to_nnx_attrs(linen)))
  say(error_of(lambda: bridge.variables.nnx_attrs_to_linen_vars({'a': {}, 'b': 3})))
  say(error_of(lambda: bridge.variables.linen_vars_to_nnx_attrs({'params': state})))
  say(error_of(lambda: bridge.variables.linen_vars_to_nnx_attrs({'params': {}, 'x': {'y': {}}})))
