"""Jitted calls in corners that a hunt for differences found."""

import contextlib
import copy
import functools
import gc
import pickle
import weakref

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from telling import error_of, plain, tree, value_of
from ways import WAYS, jitted_by_way

every_mode = pytest.mark.parametrize('mode', WAYS)
X = jnp.ones(2)


class Net(nnx.Module):
  def __init__(self, size=2):
    self.w, self.b = nnx.Param(jnp.ones(size)), nnx.Param(jnp.zeros(size))


def counted(body):
  """The function, and a list that each trace adds to."""
  traces = []

  @functools.wraps(body)
  def step(*args, **kwargs):
    traces.append(1)
    return body(*args, **kwargs)

  return step, traces


class Config(nnx.Module):
  def __init__(self, n=3):
    self.n = n


# ---- callbacks during a call ----

CALLBACKS = {
  'debug': lambda f, x: jax.debug.callback(f, x),
  'io': lambda f, x: jax.experimental.io_callback(f, None, x),
  'pure': lambda f, x: jax.pure_callback(f, jax.ShapeDtypeStruct((), x.dtype), x),
  'inner': lambda f, x: jax.jit(lambda x: jax.lax.cond(x > 0, lambda: jax.debug.callback(f, x), lambda: None))(x),
}
ACTS = {
  'eval_shape': lambda step, net: step.eval_shape(Net(), jnp.ones(5)),
  'lower': lambda step, net: step.lower(Net(), jnp.ones(3)),
  'trace': lambda step, net: step.jitted_fn.trace,
  'same call': lambda step, net: step(Net(), X),
  'set untouched': lambda step, net: net.b.set_value(X * 7),
  'set touched': lambda step, net: net.w.set_value(X * 7),
  'new attribute': lambda step, net: setattr(net, 'note', 1),
  'new variable': lambda step, net: setattr(net, 'b', nnx.Param(X * 5)),
  'one more': lambda step, net: setattr(net, 'c', nnx.Param(X)),
  'delete': lambda step, net: delattr(net, 'b'),
}  # fmt: skip


@pytest.mark.parametrize('how', CALLBACKS)
@pytest.mark.parametrize('act', ACTS)
@every_mode
def test_callbacks(say, mode, how, act):
  net, acts = Net(), []

  def called(x):
    if acts:
      acts.pop()()
    return np.asarray(x)

  def body(net, x):
    seen = CALLBACKS[how](called, x[0])
    net.w[...] += 1 if how != 'pure' else seen

  step = nnx.jit(body, **WAYS[mode])
  for i in range(8):
    if i == 4:
      acts.append(lambda: ACTS[act](step, net))
    say(i, error_of(lambda: (step(net, X), jax.effects_barrier())), *tree(net))


# ---- where what was not touched comes back ----

PLACES = {
  'constraint': lambda x, to: jax.lax.with_sharding_constraint(x, to),
  'inner constraint': lambda x, to: jax.jit(lambda x: jax.lax.with_sharding_constraint(x, to))(x),
  'out_shardings': lambda x, to: jax.jit(lambda x: x + 1, out_shardings=to)(x),
  'device_put': lambda x, to: jax.device_put(x, to),
  'shard_map': lambda x, to: jax.shard_map(lambda x: x + 1, mesh=to.mesh, in_specs=to.spec, out_specs=to.spec)(x),
  'nothing': lambda x, to: x,
}  # fmt: skip
CONSTANTS = {
  'sharded': lambda: jax.device_put(jnp.ones(4), sharded()),
  'on another device': lambda: jax.device_put(jnp.ones(4), jax.devices()[1]),
  'committed': lambda: jax.device_put(jnp.ones(4), jax.devices()[0]),
  'of another default': lambda: made_on(jax.devices()[1]),
}


def made_on(device):
  with jax.default_device(device):
    return jnp.ones(4)


def sharded():
  return jax.sharding.NamedSharding(jax.sharding.Mesh(np.array(jax.devices()), ('d',)), jax.P('d'))


def place_of(value) -> str:
  return plain(f'{value.sharding} {value.committed}')


@pytest.mark.parametrize('place', [*PLACES, *CONSTANTS])
def test_programs_that_place(say, place):
  to = CONSTANTS[place]() if place in CONSTANTS else sharded()
  place_it = PLACES.get(place, lambda x, constant: x + constant)
  act = lambda x: place_it(x, to)  # noqa: E731
  net = Net(4)
  step = nnx.jit(lambda net, x: act(x) * net.w[...])
  for _ in range(5):
    say(error_of(lambda: value_of(step(net, jnp.ones(4)))).split('\n')[0], place_of(net.w.get_raw_value()))


@pytest.mark.parametrize('at', [None, 0, 1])
@pytest.mark.parametrize('rest', [None, 0, 1])
def test_plain_values_that_are_not_touched(say, at, rest):
  """They become arrays where the program ran."""
  for value in (np.ones(2, np.float32), np.float32(2), 2, 2.5, True):
    net = Net()
    net.b.set_value(value)
    if rest is not None:
      net.w.set_value(jax.device_put(X, jax.devices()[rest]))
    step = nnx.jit(lambda net, x: x * net.w[...])
    x = X if at is None else jax.device_put(X, jax.devices()[at])
    for i in range(5):
      if i == 3:
        net.b.set_value(value)
      say(error_of(lambda: step(net, x)).split('\n')[0], *tree(net))  # noqa: B023
      say(*[place_of(v) for v in (net.w.get_raw_value(), net.b.get_raw_value()) if isinstance(v, jax.Array)])


def test_memory_kinds(say):
  device = jax.devices()[0]
  kinds = sorted(memory.kind for memory in device.addressable_memories())
  for kind, name in [(kind, name) for kind in kinds for name in 'bw']:
    net = Net()
    net.w.set_value(jax.device_put(X, device))
    net.b.set_value(jax.device_put(X, device))
    odd = vars(net)[name]
    odd.set_value(jax.device_put(X, jax.sharding.SingleDeviceSharding(device, memory_kind=kind)))
    step = nnx.jit(lambda net, x: x * vars(net)['w' if name == 'b' else 'b'][...])  # noqa: B023
    for _ in range(4):
      say(kind, name, error_of(lambda: step(net, X)).split('\n')[0], odd.get_raw_value().sharding.memory_kind)  # noqa: B023


# ---- arguments ----


WRAPPED = {'bare': lambda x: x, 'tuple': lambda x: (x,), 'dict': lambda x: {'a': x}}


@every_mode
@pytest.mark.parametrize('wrap', WRAPPED)
def test_nodes_as_static_arguments(say, mode, wrap):
  def body(static, x):
    return x * 2

  body, traces = counted(body)

  for options in ({'static_argnums': 0}, {'static_argnames': 'static'}):
    step = nnx.jit(body, **options, **WAYS[mode])
    for static in (Config(), nnx.Param(X), Net(), 'text'):
      for _ in range(3):
        say(error_of(lambda: value_of(step(WRAPPED[wrap](static), X))).split('\n')[0], len(traces))  # noqa: B023


@pytest.mark.parametrize('mode', ['tree', 'simple'])
def test_jit_partial_takes_nodes(say, mode):
  def body(net, *args, **kwargs):
    net.w[...] += 1
    return net.w[...] * len(jax.tree.leaves((args, kwargs)))

  body, traces = counted(body)

  ways = (
    lambda step, node: step(node), lambda step, node: step([node]), lambda step, node: step({'a': (node, X)}),
    lambda step, node: step(k=node), lambda step, node: step(X, node, k=[node]),
  )  # fmt: skip
  for way in ways:
    for make in (Config, Net, lambda: nnx.Param(X), lambda: nnx.List([1, Config()])):
      net, node = Net(), make()
      step = nnx.jit_partial(body, net, **WAYS[mode])
      for i in range(6):
        if i == 4:
          node = make()
        say(error_of(lambda: value_of(way(step, node))), len(traces), *tree(net))  # noqa: B023


def test_bound_values_as_a_tuple(say):
  net = Net()
  step = nnx.jit_partial(lambda net, x: net.w[...] * x, net, **WAYS['tree'])
  for i in range(8):
    if i == 4:
      step.partial_args = tuple(step.partial_args)
    say(error_of(lambda: value_of(step(X))))


def test_a_static_cache_that_is_a_dict(say):
  net, step = Net(), nnx.jit(lambda net, x: net.w[...] * x)
  for _ in range(5):
    with nnx.graphlib.static_cache({}):
      say(error_of(lambda: value_of(step(net, X))))


KEYS = {
  'int': {2: 1.0, 1: 2.0}, 'str': {'b': 1.0, 'a': 2.0}, 'tuple': {(1, 2): 1.0}, 'float': {1.5: 1.0}, 'bool': {True: 1.0},
  'mixed': {1: 1.0, 'a': 2.0}, 'inner': {'a': {1: 1.0}}, 'inner tuple': [{(1,): 1.0}], 'empty': {},
}  # fmt: skip


@every_mode
@pytest.mark.parametrize('keys', KEYS)
def test_keys_of_dicts(say, mode, keys):
  def body(net, values):
    net.w[...] += sum(jax.tree.leaves(values), 0.0)
    return values

  body, traces = counted(body)

  net, step = Net(), nnx.jit(body, **WAYS[mode])
  for _ in range(4):
    say(error_of(lambda: step(net, {'a': 1.0})), len(traces))
  for _ in range(3):
    say(error_of(lambda: step(net, KEYS[keys])).split('\n')[0], len(traces))
  held = net.b.get_raw_value()
  say(error_of(lambda: step(net, KEYS[keys])).split('\n')[0], len(traces), value_of(held))
  say(error_of(lambda: step.lower(net, KEYS[keys])).split('\n')[0], len(traces), *tree(net))


# ---- traces ----


@every_mode
def test_explained_cache_misses(say, mode):
  net = Net()
  net.flag = 1
  step = nnx.jit(lambda net, x: x * net.w[...], **WAYS[mode])
  explain = getattr(jax, 'explain_cache_misses', contextlib.nullcontext)
  with explain(True):
    for x in (X, jnp.ones(1), X, 1.0):
      say(error_of(lambda: value_of(step(net, x))))  # noqa: B023
    net.flag = 2
    say(error_of(lambda: value_of(step(net, X))))


@every_mode
def test_caches_cleared_while_tracing(say, mode):
  def body(net, x):
    jax.clear_caches()
    return x * net.w[...]

  body, traces = counted(body)

  net, step = Net(), nnx.jit(body, **WAYS[mode])
  for _ in range(4):
    say(error_of(lambda: value_of(step(net, X))), len(traces))


# ---- copies ----


@every_mode
@pytest.mark.parametrize('calls', [0, 1, 4])
def test_copies_of_jitted_functions(say, mode, calls):
  ways = {
    'copy': copy.copy,
    'deepcopy': copy.deepcopy,
    'pickle': lambda step: pickle.loads(pickle.dumps(step)),
    'cloudpickle': lambda step: pickle.loads(cloudpickle.dumps(step)),
  }
  for name, way in ways.items():
    net, other = Net(), Net()
    net.step = step = nnx.jit(lambda net, x: net.w[...] * x, **WAYS[mode])
    del net.step
    for _ in range(calls):
      step(net, X)
    made = []
    say(name, error_of(lambda: made.append(way(step))))  # noqa: B023
    for one in made:
      for _ in range(4):
        say(name, plain(error_of(lambda: value_of(one(other, X)))))  # noqa: B023
      say(name, error_of(lambda: value_of(step(other, X))))  # noqa: B023


def test_copies_of_modules_that_hold_one(say):
  for calls in (0, 4):
    net = Net()
    net.step = nnx.jit(lambda net, x: net.w[...] * x)
    for _ in range(calls):
      net.step(net, X)
    made = copy.deepcopy(net)
    say(*[plain(error_of(lambda: value_of(made.step(made, X)))) for _ in range(3)])  # noqa: B023
    say(*[error_of(lambda: value_of(net.step(net, X))) for _ in range(3)])  # noqa: B023


# ---- what lives on ----


@pytest.mark.parametrize('way', [*WAYS, 'cached_partial'])
def test_an_error_holds_nothing(say, way):
  """With collections off: no cycle is left behind."""

  def body(net, x):
    if x.ndim == 2:
      raise ValueError('two dimensions')
    return x * net.w[...]

  _, step = jitted_by_way(body, way, Net())
  gc.collect()
  gc.disable()
  try:
    for calls in range(4):
      x = jnp.ones((2, 2)) + calls
      ref = weakref.ref(x)
      say(error_of(step, x))
      del x
      say(calls, ref() is None)
      step(X)
  finally:
    gc.enable()


@pytest.mark.parametrize('mode', ['tree', 'simple'])
@pytest.mark.parametrize('calls', [0, 1, 4])
def test_a_dropped_function_needs_no_collection(say, mode, calls):
  class Held:
    pass

  def make():
    held = Held()
    return nnx.jit(lambda net, x: (x, held and 1), **WAYS[mode]), weakref.ref(held)

  gc.collect()
  gc.disable()
  try:
    step, ref = make()
    for _ in range(calls):
      step(Net(), X)
    del step
    say(ref() is None)
  finally:
    gc.enable()
