"""What a user sees of an error in a jitted function: upstream's text, to the letter.

Compiled functions stand in no traceback; the fronts stand where upstream calls what is jitted.
"""

import functools
import os
import traceback

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from telling import plain
from test_plans import X, model
from test_tree_plans import WAYS

WAYS = {
  'jit': lambda f, *nodes: functools.partial(nnx.jit(f), *nodes),
  'cached_partial': lambda f, *nodes: nnx.cached_partial(nnx.jit(f), *nodes),
  'donating': lambda f, *nodes: functools.partial(nnx.jit(f, donate_argnums=1), *nodes),
  **WAYS,
}
ways = pytest.mark.parametrize('way', WAYS)


def shown(call) -> list[str]:
  try:
    call()
  except Exception as error:
    return plain(''.join(traceback.format_exception(error))).splitlines()
  return ['no error']


def step(net, x):
  net.layers[0].kernel[...] += 1
  if x.ndim == 3:
    raise KeyError('three dimensions')
  return net(x)


@ways
@pytest.mark.parametrize('calls', [0, 1, 4])
@pytest.mark.parametrize('fault', ['raised', 'shapes', 'text', 'deleted', 'mutated'])
def test_a_call(say, way, calls, fault):
  """The first call, one that is traced anew, and one by plan."""
  net = model()
  call = WAYS[way](step, net)
  for _ in range(calls):
    call(X + 0)
  if fault == 'deleted':
    net.layers[1].kernel.get_raw_value().delete()
  if fault == 'mutated':
    net.layers[1].kernel = 'text'
  x = {'raised': jnp.ones((1, 1, 2)), 'shapes': jnp.ones(7), 'text': 'text'}.get(fault, X)
  for _ in range(2):
    say(*shown(lambda: call(x)))


@ways
@pytest.mark.parametrize('around', ['grad', 'jit', 'nnx.jit', 'vmap', 'disable_jit'])
def test_within_another_transform(say, way, around):
  net = model()
  call = WAYS[way](step, net)
  x = jnp.ones((1, 1, 2))

  def without():
    with jax.disable_jit():
      call(x)

  uses = {
    'grad': lambda: jax.grad(lambda x: call(x).sum())(x),
    'jit': lambda: jax.jit(lambda x: call(x))(x),
    'nnx.jit': lambda: nnx.jit(lambda net, x: nnx.jit(step)(net, x))(net, x),
    'vmap': lambda: jax.vmap(lambda x: call(x))(jnp.ones((2, 1, 1, 2))),
    'disable_jit': without,
  }
  for _ in range(2):
    say(*shown(uses[around]))
  call(X + 0)
  say(*shown(uses[around]))


@ways
@pytest.mark.parametrize('calls', [0, 1, 4])
def test_the_stack_of_a_traced_function(say, way, calls):
  """What logs and jax's notes on where a program comes from show of the callers."""
  net = model()

  def seen(net, x):
    say(*(f'{os.path.basename(at.filename)} {at.name}: {at.line}' for at in traceback.extract_stack()))
    return step(net, x)

  call = WAYS[way](seen, net)
  for _ in range(calls):
    call(X + 0)
  call(jnp.ones((3, 2)))


@pytest.mark.parametrize('cached', [False, True])
@pytest.mark.parametrize('calls', [0, 1, 4])
@pytest.mark.parametrize('of', ['in_shardings', 'out_shardings'])
def test_where_jax_says_it_was(say, cached, calls, of):
  """A refusal of jax's own that names the line of the call: an axis that two devices cannot share."""
  mesh = jax.make_mesh((2,), ('data',), axis_types=(jax.sharding.AxisType.Auto,))
  split = jax.NamedSharding(mesh, jax.P('data'))
  options = {'in_shardings': (None, split)} if of == 'in_shardings' else {'out_shardings': split}
  net, jitted = model(), nnx.jit(step, **options)
  call = nnx.cached_partial(jitted, net) if cached else functools.partial(jitted, net)
  for _ in range(calls):
    call(jnp.ones((4, 2)))
  say(*shown(lambda: call(jnp.ones((3, 2)))))


@pytest.mark.parametrize('ask', ['lower', 'trace', 'eval_shape'])
@pytest.mark.parametrize('options', [{}, {'graph': False}, {'graph_updates': False}], ids=str)
def test_a_stage(say, ask, options):
  net, jitted = model(), nnx.jit(step, **options)
  say(*shown(lambda: getattr(jitted, ask)(net, jnp.ones((1, 1, 2)))))
  say(*shown(lambda: jitted(net, jnp.ones((1, 1, 2)))))
  for _ in range(3):
    jitted(net, X)
  say(*shown(lambda: getattr(jitted, ask)(net, jnp.ones((1, 1, 2)))))


WALKS = {
  'unordered keys': lambda net: nnx.split({1: net, 'a': net}),
  'a filter too few': lambda net: nnx.split(net, nnx.BatchStat),
  'too few leaves': lambda net: nnx.merge(nnx.graphdef(net), {}),
  'no filter': lambda net: nnx.state(net, 5),
  'no attribute': lambda net: net.no_such_attribute,
  'no attribute of a value': lambda net: net.layers[0].kernel.no_such_attribute,
  'no index': lambda net: net.layers[0].kernel['no index'],
  'other trees': lambda net: jax.tree.map(lambda x, y: x, net, nnx.state(net)),
}


@pytest.mark.parametrize('name', WALKS)
def test_walks(say, name):
  """The lines of the user and of the function that he called; what it calls in turn is compiled."""
  lines = shown(lambda: WALKS[name](model()))
  files = [i for i, line in enumerate(lines) if line.startswith('  File')]
  say(*lines[: (files[2:] + [-1])[0]], lines[-1])
