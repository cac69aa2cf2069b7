"""Calls that a plan answers: enough of them to have one, then something out of the ordinary.

The first call notes the model as it finds it, the second as the first left it; from the third on the
plan is used. So each scenario disturbs after the third call at the earliest, and the compiled twin
asserts that a plan was used before.
"""

import collections
import dataclasses
import functools
import gc
import pickle
import sys
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.nnx import graph_fast
from telling import Names, contexts, error_of, plain, tree, value_of
from test_calls import CHANGES, DISTURBANCES
from ways import jitted_by_way
from zoo import Linear, Net, Shared

X = jnp.ones(2)


@dataclasses.dataclass
class Config:
  width: int = 2
  name: str = 'a'


def model(hold=nnx.Param, held='a'):
  net = Net(2, hold)
  net.held = held
  net.flag = 1
  net.config = Config()
  return net


def planned(step) -> None:
  """The compiled twin has answered a call of `step` by plan."""
  if graph_fast.twin() == 'compiled':
    assert step._fast_site.fast, step._fast_site.reasons


def trained(net, x):
  net.layers[0].kernel[...] += 1
  return net(x)


def looked(net, x):
  return x * net.layers[0].kernel[...] + net.layers[1].kernel[...].sum()


def counted():
  """`trained`, jitted, and a list that each trace adds to."""
  traces = []

  @nnx.jit
  def step(net, x):
    traces.append(1)
    return trained(net, x)

  return step, traces


STEPS = {'trained': trained, 'looked': looked}


@pytest.mark.parametrize('mode', ['jit', 'cached_partial'])
@pytest.mark.parametrize('step', STEPS)
@pytest.mark.parametrize('name', DISTURBANCES)
def test_disturbed(say, name, step, mode):
  traces, names, net = [], Names(), model()
  if name == 'mutated_static':
    net.held = Config()

  def stepping(net, x):
    traces.append(type(net.flag).__name__)
    return STEPS[step](net, x)

  made, call = jitted_by_way(stepping, mode, net)
  for i in range(8):
    if i == 4:
      planned(made)
      say('disturbed', error_of(DISTURBANCES[name], net))
    say(i, error_of(lambda: value_of(call(X))), 'traces', len(traces))
    say(*tree(net, names))


@pytest.mark.parametrize('name', CHANGES)
def test_changed_inside_at_last(say, name):
  """A static argument that makes the function change its model, once a plan is in use."""
  net, names, traces = model(), Names(), []

  @nnx.jit(static_argnums=1)
  def step(net, change):
    traces.append(1)
    if change:
      CHANGES[name](net)
    return net(X)

  for i, change in enumerate((False, False, False, True, False, False, True, True, False)):
    say(i, error_of(lambda c=change: value_of(step(net, c))), len(traces), *tree(net, names))
    if i == 2:
      planned(step)


def repeated(step, *arguments, times=4, **keywords):
  for _ in range(times):
    out = step(*arguments, **keywords)
  planned(step)
  return out


# ---- arrays that stay ----


@pytest.mark.parametrize('donate', ['nnx', 'jax'])
@pytest.mark.parametrize('before', [0, 1, 4])
def test_a_clone_survives_a_donation(say, donate, before):
  net = model()
  copy = nnx.clone(net)
  look = nnx.jit(looked)
  for _ in range(before):
    look(net, X)

  if donate == 'nnx':
    nnx.jit(lambda net: net.layers[0].kernel.set_value(X * 2), donate_argnums=0)(net)
  else:
    graphdef, state = nnx.split(net)
    jax.jit(lambda state: jax.tree.map(lambda x: x + 1, state), donate_argnums=0)(state)
  say(*tree(net), *tree(copy))


def test_an_array_held_by_the_user_survives(say):
  net, look = model(), nnx.jit(looked)
  repeated(look, net, X)
  held = net.layers[0].kernel.get_raw_value()
  look(net, X)
  say(held is net.layers[0].kernel.get_raw_value())
  nnx.jit(lambda net: net(X), donate_argnums=0)(net)
  say(value_of(held), *tree(net))


class Keyed(nnx.Module):
  def __init__(self):
    self.key = nnx.Variable(jax.random.key(0))
    self.value = nnx.Param(X)


@pytest.mark.parametrize('holds', ['nothing', 'key', 'data'])
def test_typed_keys(say, holds):
  """A key that stays is taken from nobody by a donation, whether the key or its data is held."""
  net, names = Keyed(), Names()

  @nnx.jit
  def step(net):
    net.value[...] += 1
    return jax.random.uniform(net.key.get_raw_value())

  repeated(step, net)
  key = net.key.get_raw_value()
  held = {'nothing': None, 'key': key, 'data': jax.random.key_data(key)}[holds]
  if holds == 'data':
    held = key._base_array
  del key
  for _ in range(3):
    say(value_of(step(net)), *tree(net, names))
  nnx.jit(lambda net: net.value[...], donate_argnums=0)(net)
  say(value_of(held), *tree(net, names))
  net.key.get_raw_value().delete()
  say(error_of(step, net).split('\n')[0])


@pytest.mark.parametrize('part', ['kernel', 'bias'])
def test_two_functions_take_turns(say, part):
  """One changes what the other leaves: new arrays come in the place of those that stay."""
  net, names, step, look = model(), Names(), nnx.jit(trained), nnx.jit(looked)
  for i in range(8):
    say(value_of(step(net, X)), value_of(look(net, X)), *tree(net, names))
    if i == 5:
      planned(look)
      getattr(net.layers[0], part).set_value(jnp.ones(2) * 4)
      held = getattr(net.layers[0], part).get_raw_value()
    if i == 6:
      getattr(net.layers[0], part).get_raw_value().delete()
      say(error_of(look, net, X).split('\n')[0])
      getattr(net.layers[0], part).set_value(jax.device_put(X, jax.devices()[1]))
      say(error_of(look, net, X).split('\n')[0], where(net))
      getattr(net.layers[0], part).set_value(held)
  nnx.jit(lambda net: net(X), donate_argnums=0)(net)
  say(value_of(held))


@pytest.mark.parametrize('part', ['kernel', 'bias'])
def test_deleted(say, part):
  """An array that stays and was deleted is refused, whether the program uses it or not."""
  net, look = model(), nnx.jit(looked)
  repeated(look, net, X)
  getattr(net.layers[0], part).get_raw_value().delete()
  for _ in range(2):
    say(error_of(look, net, X).split('\n')[0])
  getattr(net.layers[0], part).set_value(X * 3)
  for _ in range(4):
    say(value_of(look(net, X)))


def test_one_array_in_two_variables(say):
  net, look = model(), nnx.jit(looked)
  array = net.layers[0].kernel.get_raw_value()
  net.layers[1].kernel.set_value(array)
  for i in range(5):
    look(net, X)
    a, b = (layer.kernel.get_raw_value() for layer in net.layers)
    say(i, a is b, a is array)
  nnx.jit(lambda net: net(X), donate_argnums=0)(net)
  say(*tree(net), value_of(array))


def test_arrays_exchanged_inside(say):
  net, names = model(), Names()

  @nnx.jit
  def step(net):
    a, b = net.layers[0].kernel, net.layers[1].kernel
    value = a.get_raw_value()
    a.set_value(b.get_raw_value())
    b.set_value(value)

  net.layers[0].kernel.set_value(X * 9)
  for _ in range(5):
    step(net)
    say(*tree(net, names))


def test_an_array_as_an_argument_too(say):
  net = model()

  @nnx.jit
  def step(net, x):
    net.layers[0].kernel[...] += 1
    return net.layers[1].kernel[...], x

  for _ in range(5):
    a, b = step(net, net.layers[1].kernel.get_raw_value())
    say(a is b, a is net.layers[1].kernel.get_raw_value(), *tree(net))


def where(net) -> list[str]:
  leaves = jax.tree.leaves(nnx.state(net))
  return [f'{plain(leaf.sharding)} {leaf.committed} {leaf.weak_type}' for leaf in leaves]


PLACES = {
  'uncommitted': lambda x: x,
  'first': lambda x: jax.device_put(x, jax.devices()[0]),
  'second': lambda x: jax.device_put(x, jax.devices()[1]),
  'second, uncommitted': lambda x: made_on_the_second(x),
  'split': lambda x: jax.device_put(x, sharding('d')),
  'everywhere': lambda x: jax.device_put(x, sharding(None)),
}


def made_on_the_second(x):
  with jax.default_device(jax.devices()[1]):
    return jnp.asarray(np.asarray(x))


def sharding(axis):
  mesh = jax.sharding.Mesh(np.array(jax.devices()), ('d',))
  return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(axis))


def wide():
  net = Net(2, nnx.Param)
  for layer in net.layers:
    layer.kernel.set_value(jnp.arange(4.0))
    layer.bias.set_value(jnp.zeros(4))
  net.scale, net.offset = nnx.Param(jnp.ones(4)), nnx.Param(jnp.zeros(4))
  return net


@pytest.mark.parametrize('step', STEPS)
@pytest.mark.parametrize('place', PLACES)
def test_where_arrays_lie(say, place, step):
  """An argument that lies elsewhere, or is committed, takes the untouched arrays with it."""
  net, jitted = wide(), nnx.jit(STEPS[step])
  x = jnp.ones(4)
  repeated(jitted, net, x)
  for i in range(4):
    say(i, error_of(lambda: value_of(jitted(net, PLACES[place](x)))).split('\n')[0], *where(net))
  for _ in range(3):
    say(error_of(lambda: value_of(jitted(net, x))).split('\n')[0], *where(net))


@pytest.mark.parametrize('step', STEPS)
@pytest.mark.parametrize('place', PLACES)
def test_where_one_variable_lies(say, place, step):
  net, jitted = wide(), nnx.jit(STEPS[step])
  x = jnp.ones(4)
  repeated(jitted, net, x)
  for kernel in (net.layers[0].kernel, net.layers[1].kernel):
    kernel.set_value(PLACES[place](kernel.get_raw_value()))
    for _ in range(3):
      say(error_of(lambda: value_of(jitted(net, x))).split('\n')[0], *where(net))


@pytest.mark.parametrize('mode', ['jit', 'cached_partial'])
@pytest.mark.parametrize('x', [1.0, np.float32(1), np.ones(4, np.float32), jnp.ones(4)], ids=repr)
@pytest.mark.parametrize('step', STEPS)
def test_a_model_made_where_another_device_was_the_default(say, step, x, mode):
  """Nothing is committed, so the program runs on the default device, and all of the model goes there."""
  with jax.default_device(jax.devices()[1]):
    net = wide()
  _, call = jitted_by_way(STEPS[step], mode, net)
  for device in (None, None, None, 1, 1, None, None, 0, None):
    with jax.default_device(None if device is None else jax.devices()[device]):
      outs = jax.tree.leaves(call(x))
    say(device, *map(value_of, outs), *[f'{plain(one.sharding)} {one.committed}' for one in outs], *where(net))


UNUSING = {  # what a function does without the arrays of its model, or with some of them
  'nothing': lambda net, x: None,
  'argument': lambda net, x: x * 2,
  'constant': lambda net, x: jnp.zeros(3),
  'new key': lambda net, x: jax.random.key(0),
  'written': lambda net, x: net.scale.set_value(x),
  'overwritten': lambda net, x: jax.tree.map(lambda v: v.set_value(x), [net.scale, net.offset], is_leaf=callable)[:0],
  'new attribute': lambda net, x: setattr(net, 'new', nnx.Param(x)),
  'dead code': lambda net, x: (net.scale[...] + 1, x)[1],
  'dead in a program': lambda net, x: jax.jit(lambda scale, x: x)(net.scale[...], x),
  'dead in a loop': lambda net, x: jax.lax.scan(lambda c, _: (x, None), net.scale[...], None, length=2)[0],
  'in a program': lambda net, x: jax.nn.relu(jax.jit(jnp.add)(net.scale[...], x)),
  'in a loop': lambda net, x: jax.lax.fori_loop(0, 2, lambda i, c: c + x, net.scale[...]),
  'in a branch': lambda net, x: jax.lax.cond(jnp.sum(x) > 0, lambda: net.scale[...], lambda: x),
  'only called back': lambda net, x: (jax.debug.callback(lambda _: None, net.scale[...]), x)[1],
}


@pytest.mark.parametrize('mode', ['jit', 'cached_partial'])
@pytest.mark.parametrize('place', ['uncommitted', 'first', 'second', 'second, uncommitted'])
@pytest.mark.parametrize('name', UNUSING)
def test_where_a_program_runs_that_needs_no_array(say, name, place, mode):
  """Where the model lies: upstream's program gives every array back."""
  net = wide()
  _, call = jitted_by_way(lambda net, x: UNUSING[name](net, x), mode, net)

  def told(x) -> list[str]:
    outs = jax.tree.leaves(call(x))
    return [*map(value_of, outs), *[f'{plain(one.sharding)} {one.committed}' for one in outs]]

  for after in (place, 'first', place, 'uncommitted'):
    for _, variable in nnx.iter_graph(net):
      if isinstance(variable, nnx.Variable):
        variable.set_value(PLACES[after](jnp.asarray(np.asarray(variable.get_raw_value()))))
    for x in (jnp.ones(4), np.ones(4, np.float32), PLACES[after](jnp.ones(4)), jnp.ones(4)):
      say(error_of(told, x), *where(net))


@pytest.mark.parametrize('step', STEPS)
def test_another_default_device(say, step):
  net, jitted = wide(), nnx.jit(STEPS[step])
  x = jnp.ones(4)
  repeated(jitted, net, x)
  with jax.default_device(jax.devices()[2]):
    for _ in range(3):
      say(value_of(jitted(net, x)), *where(net))
  for _ in range(3):
    say(value_of(jitted(net, x)), *where(net))


@pytest.mark.parametrize('step', STEPS)
def test_under_a_mesh(say, step):
  net, jitted = wide(), nnx.jit(STEPS[step])
  x = jnp.ones(4)
  repeated(jitted, net, x)
  with jax.sharding.Mesh(np.array(jax.devices()), ('d',)):
    for _ in range(3):
      say(value_of(jitted(net, x)), *where(net))
  with jax.set_mesh(jax.make_mesh((4,), ('d',))):
    for _ in range(3):
      say(error_of(lambda: value_of(jitted(net, x))), *where(net))
  say(error_of(lambda: value_of(jitted(net, x))), *where(net))


@pytest.mark.parametrize('step', STEPS)
def test_sharded_model(say, step):
  """Arrays on several devices: every one travels, by plan too."""
  net, jitted = wide(), nnx.jit(STEPS[step])
  for leaf in (net.layers[0].kernel, net.layers[1].kernel):
    leaf.set_value(jax.device_put(leaf.get_raw_value(), sharding('d')))
  x = jax.device_put(jnp.ones(4), sharding('d'))
  for i in range(5):
    say(i, value_of(jitted(net, x)), *where(net))
  planned(jitted)


PLACED = {
  'donate_argnums': lambda: {'donate_argnums': 0},
  'donate_argnames': lambda: {'donate_argnames': 'net'},
  'in_shardings': lambda: {'in_shardings': (sharding(None), None)},
  'out_shardings': lambda: {'out_shardings': sharding(None)},
  'keep_unused': lambda: {'keep_unused': True},
}


@pytest.mark.parametrize('name', PLACED)
def test_placed_by_the_caller(say, name):
  net = wide()
  jitted = nnx.jit(trained, **PLACED[name]())
  x = jnp.ones(4)
  for i in range(5):
    old = net.layers[1].kernel.get_raw_value()
    say(i, error_of(lambda: value_of(jitted(net, x))).split('\n')[0], old.is_deleted(), *where(net))
    say(*tree(net))


VALUES = {
  'numpy': lambda: np.ones(2, np.float32),
  'numpy_scalar': lambda: np.float32(2),
  'int': lambda: 3,
  'bool': lambda: True,
  'weak': lambda: jnp.asarray(2.0) * 1,
  'key': lambda: jax.random.key(0),
  'none': lambda: None,
  'tuple': lambda: (jnp.ones(1), 2),
  'text': lambda: 'text',
  'int64': lambda: np.arange(2),
  'bfloat16': lambda: jnp.ones(2, jnp.bfloat16),
  'empty': lambda: jnp.zeros((0, 3)),
}


@pytest.mark.parametrize('step', STEPS)
@pytest.mark.parametrize('name', VALUES)
def test_values(say, name, step):
  net, names = model(), Names()
  net.extra = nnx.Variable(X)
  jitted = nnx.jit(STEPS[step])
  repeated(jitted, net, X)
  net.extra.set_raw_value(VALUES[name]())
  for i in range(4):
    say(i, error_of(lambda: value_of(jitted(net, X))).split('\n')[0], *tree(net, names))


# ---- arguments ----

Batch = collections.namedtuple('Batch', 'x y')

BATCHES = {
  'shape': lambda i: jnp.ones((i % 3 + 1, 2)),
  'dtype': lambda i: [X, X.astype(int), np.ones(2)][i % 3],
  'scalar': lambda i: [1, 1.0, True, np.float32(1)][i % 4],
  'dict': lambda i: {'x': X, 'n': i},
  'list': lambda i: [X] * (i % 2 + 1),
  'tuple': lambda i: (X, (X, None)),
  'named': lambda i: Batch(X, i),
  'state': lambda i: nnx.state(Linear(2)),
  'variable': lambda i: nnx.Param(X),
  'module': lambda i: Linear(2),
  'changing': lambda i: [X, (X,), {'x': X}, None, [X]][i % 5],
  'key': lambda i: jax.random.key(i),
  'text': lambda i: 'text',
  'partial': lambda i: jax.tree_util.Partial(jnp.add, X),
}


@pytest.mark.parametrize('keyword', [False, True])
@pytest.mark.parametrize('name', BATCHES)
def test_other_arguments(say, name, keyword):
  net, traces, names = model(), [], Names()

  @nnx.jit
  def step(net, batch=None):
    traces.append(1)
    net.layers[0].kernel[...] += 1
    leaves = jax.tree.leaves(batch)
    return sum(jnp.sum(x) for x in leaves if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key))

  for i in range(10):
    batch = BATCHES[name](i)
    arguments, keywords = ((net,), {'batch': batch}) if keyword else ((net, batch), {})
    say(error_of(lambda a=arguments, k=keywords: value_of(step(*a, **k))).split('\n')[0], len(traces))
  say(*tree(net, names))


def write(net, which):
  """Of the Variables: none, the first, all, or two that exchange their arrays."""
  variables = [v for _, v in nnx.iter_graph(net) if isinstance(v, nnx.Variable)]
  if which == 'exchanged':
    one, two = variables[0].get_value(), variables[2].get_value()
    variables[0].set_value(two)
    variables[2].set_value(one)
  for variable in variables[: {'none': 0, 'first': 1, 'all': None, 'exchanged': 0}[which]]:
    variable[...] += 1


@pytest.mark.parametrize('mode', ['jit', 'cached_partial', 'tree', 'simple'])
@pytest.mark.parametrize('second', ['none', 'first', 'all', 'exchanged'])
@pytest.mark.parametrize('first', ['none', 'first', 'all', 'exchanged'])
def test_what_changes_depends_on_the_shape(say, first, second, mode):
  net, traces, names = Linear(2), [], Names()
  net.other = Linear(2, 2.0)

  def step(net, x):
    traces.append(1)
    write(net, first if x.ndim else second)
    return x

  _, call = jitted_by_way(step, mode, net)
  for pattern in ('aaa', 'bbb', 'abab', 'aab', 'bba'):
    for turn in pattern:
      say(turn, error_of(call, X if turn == 'a' else X[0]), len(traces))
    say(*tree(net, names))


FAULTS = {
  'deleted': lambda v, w: v.get_raw_value().delete(),
  'shared': lambda v, w: v.set_value(w.get_raw_value()),
  'second': lambda v, w: v.set_value(PLACES['second'](v.get_raw_value())),
  'everywhere': lambda v, w: v.set_value(PLACES['everywhere'](v.get_raw_value())),
  'numpy': lambda v, w: v.set_value(np.asarray(v.get_raw_value())),
}


@pytest.mark.parametrize('calls_back', [False, True])
@pytest.mark.parametrize('known', [False, True])
@pytest.mark.parametrize('mode', ['jit', 'cached_partial'])
@pytest.mark.parametrize('fault', FAULTS)
def test_a_trace_by_which_more_stays(say, fault, mode, known, calls_back):
  """Of another shape: an array that the expected trace changes stays by that one, but is not fit to."""
  net, traces, seen = wide(), [], []

  def step(net, x):
    traces.append(1)
    write(net, 'first' if x.ndim else 'all')
    if calls_back:
      jax.debug.callback(lambda _: seen.append(1), x)
    return x

  made, call = jitted_by_way(step, mode, net)
  shapes = [jnp.ones(4), jnp.ones(())]
  for x in shapes[not known :]:
    for _ in range(4):
      call(x)
  if not calls_back:
    planned(made)
  last = net.layers[1].kernel
  for x in (shapes[0], shapes[0], shapes[1], shapes[0]):
    last.set_value(jnp.arange(4.0))
    FAULTS[fault](last, net.scale)
    say(error_of(lambda x=x: value_of(call(x))).split('\n')[0], len(traces))
    jax.effects_barrier()
    say(len(seen), last.get_raw_value().is_deleted() or where(net), last.get_raw_value() is net.scale.get_raw_value())
  say(error_of(nnx.jit(lambda net: None, donate_argnums=0), net).split('\n')[0])
  say(error_of(lambda: value_of(last[...])))


def test_how_arguments_are_passed(say):
  """The same function called by position, by keyword, in another order, with defaults."""
  net, other, traces = model(), Linear(2), []

  @nnx.jit
  def step(net, other=None, scale=1.0):
    traces.append(1)
    net.layers[0].kernel[...] += scale
    if other is not None:
      other.kernel[...] -= scale
    return scale

  calls = (
    ((net, other), {}),
    ((net,), {'other': other}),
    ((net,), {'other': other, 'scale': 2.0}),
    ((net,), {'scale': 2.0, 'other': other}),
    ((), {'net': net, 'other': other}),
    ((), {'other': other, 'net': net}),
    ((net,), {}),
    ((other, net), {}),
    ((net, net), {}),
  )
  for _ in range(4):
    for arguments, keywords in calls:
      say(
        error_of(lambda a=arguments, k=keywords: value_of(step(*a, **k))).split('\n')[0], len(traces)
      )
  say(*tree([net, other]))


WRAPPED = {
  'dict': lambda net, other: {'a': net, 'b': [other, X]},
  'list': lambda net, other: [net, (other, {'x': 1})],
  'twice': lambda net, other: (net, net, other),
  'unsorted': lambda net, other: {'b': net, 'a': other},
  'ordered': lambda net, other: collections.OrderedDict(a=net, b=other),
}


@pytest.mark.parametrize('name', WRAPPED)
def test_inside_containers(say, name):
  wrap = WRAPPED[name]
  net, other, traces, names = model(), Linear(2), [], Names()

  @nnx.jit
  def step(things):
    traces.append(1)
    for leaf in jax.tree.leaves(things, is_leaf=lambda x: isinstance(x, nnx.Module)):
      if isinstance(leaf, Linear):
        leaf.kernel[...] += 1
      elif isinstance(leaf, Net):
        leaf.layers[0].bias[...] *= 2

  for i in range(6):
    step(wrap(net, other))
    say(i, len(traces), *tree([net, other], names))
  step(wrap(model(), other))
  step(wrap(net, net.layers[0]))
  say(len(traces), *tree([net, other], names))


def test_arguments_exchanged_inside(say):
  """What the function puts in the place of an argument's part is not what the caller finds there."""
  net, other, names = Linear(2), Linear(2), Names()
  other.kernel[...] += 5

  @nnx.jit
  def step(things):
    things['a'], things['b'] = things['b'], things['a']
    things['a'].kernel[...] += 1

  things = {'a': net, 'b': other}
  for _ in range(6):
    step(things)
    say(*tree(things, names))


@pytest.mark.parametrize('name', ['module', 'variable', 'part', 'array', 'new'])
def test_returned(say, name):
  net, names = model(), Names()

  @nnx.jit
  def step(net):
    net.layers[0].kernel[...] += 1
    return {
      'module': net, 'variable': net.layers[0].kernel, 'part': [net.layers[1]],
      'array': net.layers[1].kernel.get_raw_value(), 'new': Linear(2),
    }[name]  # fmt: skip

  for _ in range(5):
    say(*tree(step(net), names), *tree(net, names))


def test_variables_as_arguments(say):
  a, b, names, traces = nnx.Param(X), nnx.BatchStat(X), Names(), []

  @nnx.jit
  def step(a, b, x):
    traces.append(1)
    a[...] += x
    return b[...] + a[...]

  for i in range(6):
    if i == 4:
      a.set_metadata(role='other')
    say(value_of(step(a, b, X)), *tree([a, b], names), len(traces))
  say(error_of(lambda: value_of(step(a, a, X))).split('\n')[0], *tree([a, b], names), len(traces))


# ---- containers inside ----


class Holds(nnx.Module):
  def __init__(self):
    self.things = nnx.data([nnx.Param(X), {'a': nnx.Param(X * 2), 'b': 'text'}])
    self.pair = nnx.data((nnx.Param(X), Batch(nnx.Param(X), 3)))


def test_containers_are_new_ones_where_it_shows(say):
  net = Holds()

  @nnx.jit
  def step(net):
    net.things[0][...] += 1

  repeated(step, net)
  inner, outer, pair = net.things[1], net.things, net.pair
  for _ in range(3):
    step(net)
    say(inner is net.things[1], outer is net.things, pair is net.pair, *tree(net))
  outer.append('late')
  inner['c'] = 'late'
  step(net)
  say(*tree(net))
  net.things.append(nnx.Param(X * 7))
  for _ in range(3):
    step(net)
    say(*tree(net))
  net.things[1]['b'] = 'other text'
  step(net)
  say(*tree(net))


@pytest.mark.parametrize('algorithm', [optax.sgd, optax.adam])
def test_training(say, algorithm):
  net = model()
  optimizer = nnx.Optimizer(net, algorithm(0.1), wrt=nnx.Param)
  traces, names = [], Names()

  @nnx.jit
  def step(net, optimizer, x):
    traces.append(1)
    loss, grads = nnx.value_and_grad(lambda net: net(x).sum())(net)
    optimizer.update(net, grads)
    return loss

  for i in range(6):
    if i == 4:
      planned(step)
      state = optimizer.opt_state
      net.layers[0].kernel.set_value(X * 3)
    say(value_of(step(net, optimizer, X)), len(traces), *tree(net, names))
  say(state is optimizer.opt_state, *tree(nnx.state(optimizer)))


# ---- traces, stages, other ways to call ----


@pytest.mark.parametrize('first', ['call', 'lower', 'eval_shape', 'trace', 'nested', 'grad'])
@pytest.mark.parametrize('then', ['call', 'lower', 'eval_shape', 'nested', 'grad'])
def test_who_traces(say, first, then):
  """A trace that one way of asking has made serves the others, as it does upstream."""
  net, traces = model(), []

  @nnx.jit
  def step(net, x):
    traces.append(1)
    net.layers[0].kernel[...] += 1
    return net(x).sum()

  ways = {
    'call': lambda: step(net, X),
    'lower': lambda: step.lower(net, X).as_text(),
    'eval_shape': lambda: step.eval_shape(net, X),
    'trace': lambda: step.trace(net, X),
    'nested': lambda: nnx.jit(lambda net: step(net, X) + 1)(net),
    'grad': lambda: nnx.grad(lambda net: step(net, X))(net),
  }
  for way in (first, first, first, then, then, 'call', 'call'):
    say(way, error_of(lambda w=way: plain(ways[w]())), len(traces), step.jitted_fn._cache_size())
  say(*tree(net))


@pytest.mark.parametrize('ask', ['lower', 'trace', 'eval_shape'])
def test_asked_before_the_first_call(say, ask):
  """Calls use the trace that was made for a stage: what stays, moves, is made or dropped there."""
  net, other, names, traces = model(), model(), Names(), []

  @functools.partial(nnx.jit, static_argnames='scale')
  def step(net, other, x, *, scale):
    traces.append(x.shape)
    kernel = net.layers[0].kernel
    kernel[...] += scale
    other.layers[1].kernel[...] = net.layers[1].kernel[...]
    net.count = nnx.Variable(x)
    return other, nnx.Param(x), {'y': net(x[:2])}

  getattr(step, ask)(net, other, X, scale=2)
  say(len(traces), *tree(net, names))
  for n, scale in ((2, 2), (2, 2), (2, 2), (3, 2), (3, 2), (3, 1), (2, 1), (2, 2)):
    out, made, values = step(net, other, jnp.ones(n), scale=scale)
    say(len(traces), out is other, plain(made.get_value()), plain(values))
    say(*tree(net, names), *tree(other, names))
  say(error_of(lambda: getattr(step, ask)(net, other, jnp.ones(5), scale=3)), traces)
  say(value_of(step(net, other, jnp.ones(5), scale=3)[2]), traces)


def test_stages(say):
  net = model()

  @nnx.jit
  def step(net, x):
    net.layers[0].kernel[...] += 1
    return net(x)

  repeated(step, net, X)
  lowered = step.lower(net, X)
  say(plain(lowered.args_info), plain(lowered.in_tree), plain(lowered.out_tree))
  compiled = lowered.compile()
  for _ in range(3):
    say(value_of(compiled(net, X)), *tree(net))
  say(value_of(step(net, X)), plain(step.eval_shape(net, X)), *tree(net))
  say(plain(step.jitted_fn.trace), step.jitted_fn.__name__, plain(step.jitted_fn.__wrapped__))


def test_without_jit(say):
  net, (step, traces) = model(), counted()
  repeated(step, net, X)
  with jax.disable_jit():
    for _ in range(3):
      say(value_of(step(net, X)), len(traces), *tree(net))
  for _ in range(3):
    say(value_of(step(net, X)), len(traces), *tree(net))


def test_unpickled_weak_types(say):
  """jax 0.10 takes an unpickled array of a weak type for another before a call has given it back."""
  for weak in ('kernel', 'kernel and still'):
    net, traces = Linear(2), []
    net.still = nnx.Param(jnp.asarray(1.0))
    value = pickle.loads(pickle.dumps(jnp.broadcast_to(jnp.asarray(1.0), (2,))))
    net.kernel.set_value(value)
    if weak != 'kernel':
      net.still.set_value(pickle.loads(pickle.dumps(net.still.get_value())))

    @nnx.jit
    def step(net, x, traces=traces):
      traces.append([net.kernel.get_value().aval.weak_type, net.still.get_value().aval.weak_type])
      net.kernel.set_value(x)

    for _ in range(5):
      step(net, jnp.ones(2))
      say(weak, traces, net.kernel.get_value().weak_type, net.still.get_value().weak_type)


def test_caches_cleared(say):
  net, (step, traces) = model(), counted()
  repeated(step, net, X)
  jax.clear_caches()
  for _ in range(4):
    say(value_of(step(net, X)), len(traces), step.jitted_fn._cache_size(), *tree(net))
  step.jitted_fn.clear_cache()
  say(value_of(step(net, X)), len(traces), step.jitted_fn._cache_size())


def test_captured_model_changed_while_tracing(say):
  """The function changes the caller's own model, through a closure, while a plan's call traces."""
  net, names = model(), Names()

  @nnx.jit
  def step(inner, x):
    vars(net)['note'] = f'traced with {x.shape}'
    vars(net.layers[0])['late'] = net.layers[1]
    inner.layers[0].kernel[...] += 1
    return inner(x[:2]).sum()

  repeated(step, net, X)
  for n in (3, 3, 4, 3):
    say(error_of(lambda n=n: value_of(step(net, jnp.ones(n)))), *tree(net, names))


@pytest.mark.parametrize('error', [KeyError, KeyboardInterrupt, MemoryError, SystemExit])
def test_an_error_in_a_later_trace(say, error):
  net, names, fails = model(), Names(), [False]

  @nnx.jit
  def step(net, x):
    net.layers[0].kernel[...] += 1
    net.extra = nnx.Param(X)
    if fails[0]:
      raise error('in the trace')
    del net.extra
    return net(x[:2])

  repeated(step, net, X)
  for n, fail in ((3, True), (3, False), (2, True), (4, True), (4, False), (3, False)):
    fails[0] = fail
    say(n, error_of(lambda n=n: value_of(step(net, jnp.ones(n)))).split('\n')[0], contexts())
    say(*tree(net, names))


def test_host_callbacks(say):
  """A callback that calls the same function, with another model, while a call is under way."""
  net, other, log = model(), model(), []

  @nnx.jit
  def step(net, x):
    net.layers[0].kernel[...] += 1
    y = jax.pure_callback(lambda x: (log.append('called'), np.asarray(x))[1], x, x)
    return net(y)

  for _ in range(5):
    say(value_of(step(net, X)), len(log) > 0)
    say(value_of(step(other, X)))
  say(*tree(net), *tree(other))


# ---- lifetimes, threads, signals ----


def test_plans_keep_nothing_alive(say):
  step = nnx.jit(trained)
  net = model()
  repeated(step, net, X)
  parts = [net, net.layers[0], net.layers[1].kernel.get_raw_value()]
  references = [weakref.ref(part) for part in parts]
  del net, parts
  gc.collect()
  say([reference() is None for reference in references])
  net = model()
  repeated(step, net, X)
  say(*tree(net))


def test_cached_partial_keeps_nothing_alive(say):
  step, net = nnx.jit(trained), model()
  call = nnx.cached_partial(step, net)
  for _ in range(4):
    call(X)
  planned(step)
  references = [weakref.ref(part) for part in (net, net.layers[0].kernel.get_raw_value())]
  del net, call
  gc.collect()
  say([reference() is None for reference in references])


def test_the_limit_of_plans(say):
  step, nets = nnx.jit(trained), [model() for _ in range(3)]
  limit = graph_fast.plan_limit()
  try:
    for n in (1, 0, 2):
      graph_fast.plan_limit(n)
      for _ in range(3):
        for net in nets:
          say(value_of(step(net, X)))
    say(error_of(graph_fast.plan_limit, -1), graph_fast.plan_limit())
  finally:
    graph_fast.plan_limit(limit)


def test_the_report(say):
  @nnx.jit
  def reported(net, x):
    return trained(net, x)

  net = model()
  graph_fast.reset()
  for i in range(6):
    if i == 4:
      net.layers[1].name = 'another'
    reported(net, X)
  rows = [row for row in graph_fast.report().functions if row.name.endswith('reported')]
  if graph_fast.twin() == 'compiled':
    (row,) = rows
    assert (row.calls, row.by_plan, row.general) == (6, 3, 3), row
    assert list(row.reasons) == [
      'net.layers[1].name: not the object that was there before'
    ], row.reasons
    assert 'hold on to one object' in str(graph_fast.report())
  graph_fast.reset()
  assert not [row for row in graph_fast.report().functions if row.name.endswith('reported')]


def test_many_short_lived_models(say):
  step, traces = counted()
  total = 0.0
  for i in range(200):
    net = model()
    for _ in range(1 + i % 4):
      total += float(step(net, X).sum())
  say(total, len(traces))


def test_shared_parts_and_cycles(say):
  net, names = Shared(), Names()
  net.me = net

  @nnx.jit
  def step(net):
    for leaf in jax.tree.leaves(nnx.state(net)):
      leaf + 1
    net.count = nnx.Variable(jnp.array(1)) if not hasattr(net, 'count') else net.count
    net.count[...] += 1

  for _ in range(5):
    step(net)
    say(*tree(net, names))
  planned(step)


class Deep(nnx.Module):
  def __init__(self):
    rngs = nnx.Rngs(0)
    self.conv = nnx.Conv(1, 4, (3, 3), rngs=rngs)
    self.norm = nnx.BatchNorm(4, rngs=rngs)
    self.attention = nnx.MultiHeadAttention(2, 4, decode=False, rngs=rngs)
    self.out = nnx.Linear(4, 3, rngs=rngs)

  def __call__(self, x):
    x = nnx.gelu(self.norm(self.conv(x))).reshape(x.shape[0], -1, 4)
    return jax.nn.softmax(self.out(self.attention(nnx.LayerNorm(4, rngs=nnx.Rngs(1))(x))).mean(1))


def bits(tree) -> list[str]:
  return [np.asarray(leaf).tobytes().hex() for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize('frozen', [False, True])
def test_bit_for_bit(say, frozen):
  """Values of a program with fewer results are those of the whole one."""
  net = Deep()
  x = jax.random.normal(jax.random.key(1), (5, 8, 8, 1))
  optimizer = nnx.Optimizer(net, optax.adam(1e-2), wrt=nnx.PathContains('out') if frozen else nnx.Param)

  @nnx.jit
  def train(net, optimizer, x):
    wrt = nnx.DiffState(0, nnx.PathContains('out') if frozen else nnx.Param)
    loss, grads = nnx.value_and_grad(lambda net: -jnp.log(net(x)[:, 0]).mean(), argnums=wrt)(net)
    optimizer.update(net, grads)
    return loss

  look = nnx.jit(lambda net, x: net(x))
  for _ in range(5):
    say(bits(train(net, optimizer, x)), bits(look(net, x)))
  say(bits(nnx.state(net, nnx.Param)), bits(nnx.state(optimizer, nnx.OptState)))
  planned(train)
  planned(look)


@pytest.mark.parametrize('mode', ['jit', 'cached_partial', 'jit_partial', 'tree', 'simple'])
def test_a_plan_runs_no_python(say, mode):
  """But for the frames that upstream's call has, and nothing is compared by `==`, though a NumPy array came first."""
  make = {
    'jit': lambda net: functools.partial(nnx.jit(looked), net),
    'cached_partial': lambda net: nnx.cached_partial(nnx.jit(looked), net),
    'jit_partial': lambda net: nnx.jit_partial(looked, net, graph=False),
    'tree': lambda net: functools.partial(nnx.jit(looked, graph=False), net),
    'simple': lambda net: functools.partial(nnx.jit(looked, graph=True, graph_updates=False), net),
  }
  call, ran = make[mode](Net(2, nnx.Param)), []

  def profile(frame, event, _):
    if event == 'call' and 'flax' in frame.f_globals.get('__name__', 'flax'):
      ran.append(frame.f_code.co_name)

  for _ in range(5):
    value = value_of(call(X))
  sys.setprofile(profile)
  try:
    value = value_of(call(X))
  finally:
    sys.setprofile(None)
  say(value)
  if graph_fast.twin() == 'compiled':
    fronts = ['cache_args_wrapper', '__call__'] if mode == 'cached_partial' else ['__call__']
    assert ran == fronts, ran


@pytest.mark.parametrize('first', [False, True])
def test_arguments_that_vanish_when_they_are_looked_at(say, first):
  """One that empties its dict when asked for its class, and so frees the model beside it.

  Not a list: jaxlib itself goes on to read the table of one that was emptied meanwhile.
  """

  class Evil:
    armed = False

    @property
    def __class__(self):
      if type(self).armed:
        held.clear()
      return np.float32

  step, net = nnx.jit(lambda held: None), model()
  for _ in range(5):
    step({'a': 1.0, 'b': net} if first else {'a': net, 'b': 1.0})
  held = {'a': Evil(), 'b': net} if first else {'a': net, 'b': Evil()}
  del net
  Evil.armed = True
  try:
    step(held)
  except Exception:
    pass
  say(len(held) in (0, 2))
