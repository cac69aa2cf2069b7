"""Jitted calls that repeat, with something changed between them or by them.

Each scenario calls at least three times; the disturbance lies between the second and the third, so
that whatever a call remembers of the last one is put to the test. Traces are counted.
"""

import collections
import contextlib
import dataclasses
import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from telling import Names, contexts, error_of, plain, tree, value_of
from together import in_threads
from ways import WAYS, jitted_by_way
from zoo import Counter, Empty, Linear, Net, Shared, refs

X = jnp.ones(2)


class Value:
  """A static compared by value."""

  def __init__(self, value):
    self.value = value

  def __eq__(self, other):
    return isinstance(other, Value) and self.value == other.value

  def __hash__(self):
    return hash(self.value)


class Odd(Value):
  """Equal to nothing."""

  __hash__ = Value.__hash__

  def __eq__(self, other):
    return False


class Raising(Value):
  __hash__ = Value.__hash__

  def __eq__(self, other):
    raise ValueError('not to be compared')


def set_attribute(name, make):
  return lambda m: setattr(m, name, make())


def readd(m):
  scale = m.scale
  del m.scale
  m.scale = scale


def swap_layers(m):
  m.layers[0], m.layers[1] = m.layers[1], m.layers[0]


def share(m):
  m.layers[1].kernel = m.layers[0].kernel


def into_dict(m):
  vars(m)['sneaked'] = 3


def change_class(m):
  class Other(Linear):
    pass

  m.layers[0].__class__ = Other


def mutate_static(m):
  m.held.value = 'changed in place'


DISTURBANCES = {
  'nothing': lambda m: None,
  'readd': readd,
  'equal_static': lambda m: setattr(m, 'held', Value('a')),
  'other_static': lambda m: setattr(m, 'held', Value('b')),
  'one_for_true': set_attribute('flag', lambda: True),
  'nan': set_attribute('flag', lambda: float('nan')),
  'never_equal': set_attribute('flag', lambda: Odd(1)),
  'raising': set_attribute('flag', lambda: Raising(1)),
  'unhashable': set_attribute('flag', lambda: nnx.static([1, 2])),
  'mutated_static': mutate_static,
  'function': set_attribute('activation', lambda: lambda x: x),
  'new_variable': lambda m: setattr(m.layers[0], 'kernel', nnx.Param(jnp.array([5.0, 6.0]))),
  'new_value': lambda m: m.layers[0].kernel.set_value(jnp.array([7.0, 8.0])),
  'new_shape': lambda m: m.layers[0].kernel.set_value(jnp.ones((2, 2))),
  'new_dtype': lambda m: m.layers[0].kernel.set_value(jnp.array([1, 2])),
  'numpy_value': lambda m: m.layers[0].kernel.set_value(np.array([1.0, 2.0], np.float32)),
  'scalar_value': lambda m: m.layers[0].kernel.set_value(2.0),
  'metadata': lambda m: m.layers[0].kernel.set_metadata(role='x'),
  'metadata_order': lambda m: m.layers[0].bias.set_metadata(
    dict(reversed(m.layers[0].bias.get_metadata().items()))
  ),
  'metadata_nan': lambda m: m.layers[0].bias.set_metadata(note=float('nan')),
  'grown': lambda m: m.layers.append(Linear(2)),
  'shrunk': lambda m: m.layers.pop(),
  'swapped': swap_layers,
  'shared': share,
  'new_attribute': set_attribute('more', lambda: nnx.Param(jnp.array(1.0))),
  'new_array': set_attribute('scale', lambda: jnp.array([3.0, 3.0])),
  'sneaked': into_dict,
  'class': change_class,
  'donated': lambda m: m.layers[0].kernel.get_raw_value().delete(),
}


def model(hold=lambda array: array):
  net = Net(2, hold)
  net.held = Value('a')
  net.flag = 1
  return net


@pytest.mark.parametrize('mode', ['jit', 'simple', 'tree', 'cached_partial'])
@pytest.mark.parametrize('name', DISTURBANCES)
def test_disturbed(say, name, mode):
  traces, names = [], Names()
  net = model(nnx.Param) if mode == 'cached_partial' else model()  # it does not take bare arrays

  def step(net, x):
    traces.append(type(net.flag).__name__)
    return net(x)

  _, call = jitted_by_way(step, mode, net)
  say(*tree(net, names))
  for i in range(5):
    if i == 2:
      say('disturbed', error_of(DISTURBANCES[name], net))
    say(i, error_of(lambda: value_of(call(X))), 'traces', len(traces))
    say(*tree(net, names))


CHANGES = {
  'value': lambda m: m.layers[0].kernel.set_value(m.layers[0].kernel[...] + 1),
  'static': lambda m: setattr(m, 'count', getattr(m, 'count', 0) + 1),
  'new_variable': lambda m: setattr(m, 'extra', nnx.Param(m.scale * 2)),
  'new_module': lambda m: setattr(m, 'extra', Linear(2)),
  'removed': lambda m: m.layers.pop() if len(m.layers) > 1 else None,
  'grown': lambda m: m.layers.append(Linear(2)) if len(m.layers) < 4 else None,
  'swapped': swap_layers,
  'shared': share,
  'metadata': lambda m: m.layers[0].kernel.set_metadata(note='inside'),
  'array': lambda m: setattr(m, 'scale', m.scale + 1),
  'cycle': lambda m: setattr(m, 'me', m),
  'plain_list': lambda m: setattr(m, 'things', nnx.data([m.layers[0], m.scale, 'x'])),
  'variable_type': lambda m: setattr(m.layers[0], 'kernel', Counter(m.layers[0].kernel[...])),
}


@pytest.mark.parametrize('name', CHANGES)
@pytest.mark.parametrize('returned', ['nothing', 'model', 'part', 'variable'])
def test_changed_inside(say, name, returned):
  """What the traced function does to its argument reaches the caller's own objects."""
  traces, net, names = [], model(), Names()

  @nnx.jit
  def step(net):
    traces.append(1)
    CHANGES[name](net)
    return {
      'nothing': None,
      'model': net,
      'part': [net.layers[0]],
      'variable': {'k': net.layers[0].kernel},
    }[returned]

  say(*tree(net, names))
  for i in range(4):
    if i == 2:
      net.layers[0].bias[...] += 1
    out = step(net)
    say(i, len(traces), *tree(out, names), *tree(net, names))


ARGUMENTS = {
  'twice': lambda m: ((m, m), {}),
  'keyword': lambda m: ((m,), {'other': m}),
  'part': lambda m: ((m, m.layers[0]), {}),
  'variable': lambda m: ((m, m.layers[0].kernel), {}),
  'dict': lambda m: (({'a': m, 'b': [m.layers, jnp.ones(1)]},), {}),
  'tuple': lambda m: (((m, 3, None, np.ones(2)),), {'other': (m.scale,)}),
  'state': lambda m: ((m, nnx.state(m)), {}),
  'named_tuple': lambda m: ((collections.namedtuple('Batch', 'net x')(m, X),), {}),
}


@pytest.mark.parametrize('name', ARGUMENTS)
def test_arguments(say, name):
  """Sharing across arguments, and Modules inside containers of arguments."""
  traces, net, names = [], model(), Names()

  @nnx.jit
  def step(first, other=None):
    traces.append(1)
    for value in jax.tree.leaves((first, other), is_leaf=lambda x: isinstance(x, nnx.Variable)):
      if isinstance(value, Counter | nnx.Param):
        value[...] += 1
    return first

  for i in range(4):
    if i == 2:
      net = model()
    arguments, keywords = ARGUMENTS[name](net)
    say(error_of(lambda a=arguments, k=keywords: say(*tree(step(*a, **k), names))))
    say(i, len(traces), *tree(net, names))


def test_models_alternate(say):
  traces = []

  @nnx.jit
  def step(net):
    traces.append(1)
    net.layers[0].kernel[...] *= 2

  first, second, names = model(), model(), Names()
  second.layers[0].kernel[...] += 5
  for net in (first, second, first, second, second, first):
    step(net)
    say(len(traces), *tree(net, names))
  first.layers[0], second.layers[0] = second.layers[0], first.layers[0]
  for net in (first, second):
    step(net)
    say(len(traces), *tree(net, names))


def test_recycled_addresses(say):
  """Models made and dropped: a new one may lie where an old one lay."""
  traces = []

  @nnx.jit
  def step(net, x):
    traces.append(1)
    return net(x)

  for i in range(60):
    net = Net(1 + i % 3)
    net.held = Value(i % 2)
    say(i, value_of(step(net, X)), len(traces), int(net.layers[0].calls[...]))
    del net


FAILURES = {
  'user_code': lambda m: (_ for _ in ()).throw(KeyError('broke')),
  'interrupt': lambda m: (_ for _ in ()).throw(KeyboardInterrupt()),
  'jax': lambda m: jnp.ones(2) @ jnp.ones(3),
  'half_way': lambda m: (delattr(m, 'scale'), setattr(m, 'n', 1), m.missing),
  'bad_output': lambda m: m.__setattr__('bad', nnx.data(object())),
}


@pytest.mark.parametrize('name', FAILURES)
@pytest.mark.parametrize('mode', ['jit', 'cached_partial', 'tree'])
def test_failing_calls(say, name, mode):
  """An error leaves the model and the context stacks as upstream leaves them; the next call works."""
  net, names, traces = model(nnx.Param), Names(), []

  def step(net, fails):
    traces.append(1)
    net.layers[0].kernel[...] += 1
    if fails:
      FAILURES[name](net)
    return net(X)

  jitted = nnx.jit(step, static_argnums=1, **({'graph': False} if mode == 'tree' else {}))
  call = nnx.cached_partial(jitted, net) if mode == 'cached_partial' else functools.partial(jitted, net)
  for i, fails in enumerate((False, False, True, False, True, False)):
    say(i, error_of(lambda f=fails: value_of(call(f))).split('\n')[0], len(traces), contexts())
    say(*tree(net, names))


def test_donation(say):
  net, names = Net(1), Names()
  copy = nnx.clone(net)

  @nnx.jit(donate_argnums=0)
  def step(net):
    net.layers[0].kernel[...] += 1

  for _ in range(3):
    old = net.layers[0].kernel.get_raw_value()
    step(net)
    say(old.is_deleted(), *tree(net, names))
  say(error_of(lambda: value_of(copy.layers[0].kernel[...])).split('\n')[0])
  say(error_of(step, copy).split('\n')[0])


def test_static_and_keyword_arguments(say):
  traces = []

  @nnx.jit(static_argnums=1, static_argnames=('mode',))
  def step(net, factor, *, mode='a', x=X):
    traces.append((factor, mode))
    net.layers[0].kernel[...] *= factor
    return net(x) if mode == 'a' else None

  net = Net(1)
  for factor, keywords in (
    (1, {}),
    (1, {'mode': 'a'}),
    (2, {}),
    (1.0, {}),
    (True, {'mode': 'b'}),
    (1, {'x': X * 2}),
  ):
    say(error_of(lambda f=factor, k=keywords: value_of(step(net, f, **k))), traces, *tree(net))
  say(
    error_of(step, net, [1]).split('\n')[0],
    error_of(step).split('\n')[0],
    error_of(step, net, 1, mode=[2]).split('\n')[0],
  )


def test_methods(say):
  class Acting(nnx.Module):
    traces = 0

    def __init__(self):
      self.w = nnx.Param(jnp.array(1.0))

    @nnx.jit
    def act(self, x):
      type(self).traces += 1
      self.w[...] += x
      return self.w[...]

  class Below(Acting):
    pass

  for acting in (Acting(), Below(), Acting()):
    say([value_of(acting.act(1.0)) for _ in range(3)], Acting.traces, Below.traces)
  say(error_of(lambda: nnx.jit(Acting().act)(1.0)).split('\n')[0])


def test_ahead_of_time(say):
  net = Net(1)

  @nnx.jit
  def step(net, x):
    net.layers[0].kernel[...] += 1
    return net(x)

  say(plain(step.eval_shape(net, X)), *tree(net))
  lowered = step.lower(net, X)
  compiled = lowered.compile()
  for _ in range(3):
    say(value_of(compiled(net, X)), *tree(net))
  say('main' in lowered.as_text(), plain(lowered.in_tree)[:300], step.jitted_fn._cache_size())
  step(net, X)
  say(step.jitted_fn._cache_size(), plain(jax.make_jaxpr(lambda n: n)(X)))


def test_names_in_messages(say):
  """What an error or a dump says of the arguments: the function's name, the paths of the leaves."""
  net = Net(1)

  @nnx.jit
  def named_step(net, x):
    return net(x)

  text = named_step.lower(net, X).as_text(debug_info=True)
  say(
    'named_step' in text,
    sorted(
      {
        line.split('"')[1]
        for line in text.splitlines()
        if line.startswith('#loc') and '"' in line and '/' not in line
      }
    )[:20],
  )
  say(error_of(named_step, net, 'text').split('\n')[0])


def test_inside_other_transforms(say):
  net = Net(2)

  @nnx.jit
  def step(net, x):
    return net(x).sum()

  @jax.jit
  def pure(graphdef, state, x):
    net = nnx.merge(graphdef, state)
    out = step(net, x)
    return out, nnx.state(net)

  for _ in range(3):
    out, state = pure(*nnx.split(net), X)
    nnx.update(net, state)
    say(value_of(out), *tree(net))
  loss, grads = nnx.value_and_grad(lambda n: step(n, X))(net)
  say(value_of(loss), *tree(grads), *tree(net))
  say(value_of(nnx.vmap(step, in_axes=(None, 0))(net, jnp.ones((3, 2)))), *tree(net))

  @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))
  def scanned(net, x):
    return net, step(net, x)

  say(value_of(scanned(net, jnp.ones((3, 2)))[1]), *tree(net))
  say(value_of(nnx.cond(True, lambda n: n(X), lambda n: n(X) * 2, net)), *tree(net))
  say(value_of(nnx.fori_loop(0, 3, lambda i, c: (c[0], c[1] + c[0](X)), (net, X))[1]), *tree(net))


@pytest.mark.parametrize('way', WAYS)
def test_closures_over_tracers(say, way):
  """A static function that captured a value of the transform that the call stands in."""
  step = nnx.jit(lambda net, x: net.scale(x) + net.a[...], **WAYS[way])
  static = nnx.jit(lambda net, x, n: net.scale(x) * n, static_argnames='n', **WAYS[way])

  def total(k):
    net = Empty()
    net.a, net.scale = nnx.Param(k + 1), lambda x: x * k
    return jnp.sum(step(net, X)) + jnp.sum(static(net, X, n=3))

  for transform in (lambda f: f, jax.jit, jax.grad, lambda f: jax.jit(jax.grad(f)), lambda f: f):
    say(error_of(lambda: say(value_of(transform(total)(2.0)))))
    say(error_of(lambda: say(value_of(transform(total)(jnp.array(3.0))))), contexts())


def test_training_step(say):
  net = Net(3)
  optimizer = nnx.Optimizer(net, optax.adam(1e-2), wrt=nnx.Param)
  metric = nnx.MultiMetric(loss=nnx.metrics.Average('loss'))
  traces = []

  @nnx.jit
  def train(net, optimizer, metric, x):
    traces.append(1)
    loss, grads = nnx.value_and_grad(lambda n: jnp.mean((n(x) - 3) ** 2))(net)
    optimizer.update(net, grads)
    metric.update(loss=loss)
    return loss

  for i in range(6):
    if i == 3:
      metric.reset()
    say(value_of(train(net, optimizer, metric, X)), len(traces))
  say(*tree(net), *tree(optimizer), metric.compute())


def test_trace_levels(say):
  """A Variable of another trace is refused, by every way to change it."""
  net = Net(1)
  ways = {
    'variable': lambda: net.layers[0].kernel.set_value(X),
    'attribute': lambda: setattr(net, 'x', 1),
    'update': lambda: nnx.update(net, nnx.state(Net(1))),
    'pop': lambda: nnx.pop(net, Counter),
    'metadata': lambda: net.layers[0].kernel.set_metadata(a=1),
    'merge_onto': lambda: nnx.jit(lambda n: n.layers[0].kernel.set_value(X))(net),
    'split': lambda: len(nnx.split(net)),
    'clone': lambda: tree(nnx.clone(net)),
  }
  for name, way in ways.items():
    for transform in (nnx.jit, jax.jit, lambda f: nnx.grad(lambda x: f(x) or x)):
      say(name, error_of(transform(lambda x, w=way: (w(), None)[1]), 1.0).split('\n')[0])
      say(*tree(net))


def test_disabled_jit_and_flags(say):
  net, traces = Net(1), []

  def step(net):
    traces.append(1)
    net.layers[0].kernel[...] += 1

  jitted = nnx.jit(step)
  for context in (
    contextlib.nullcontext(),
    jax.disable_jit(),
    nnx.set_graph_updates(False),
    nnx.set_graph_mode(False),
    nnx.var_defaults(hijax=False),
    contextlib.nullcontext(),
  ):
    with context:
      say(error_of(jitted, net).split('\n')[0], len(traces), *tree(net))
      say(error_of(lambda: len(nnx.split(Shared())[1])).split('\n')[0])


def test_references(say):
  node, names = refs(), Names()

  @nnx.jit
  def step(node):
    node.array[...] += 1
    return node.again[...]

  for _ in range(3):
    say(value_of(step(node)), *tree(node, names))
  graphdef, state = nnx.split(node)
  say(plain(graphdef), error_of(lambda: say(*tree(nnx.merge(graphdef, nnx.as_pure(state))))))


@pytest.mark.parametrize('way', [*WAYS, 'cached_partial'])
@pytest.mark.parametrize('held', [None, {'x': X, 'y': None}], ids=['none', 'tree'])
def test_variables_without_an_array(say, way, held):
  """Several that hold None or a tree of arrays, before and between arrays that stay and that change."""
  net = Empty()
  for i, value in enumerate((None, 1.0, None, held, None, 2.0, held, 3.0, None)):
    setattr(net, f'v{i}', nnx.Param(jnp.array(value) if type(value) is float else value))

  def step(net):
    net.v5[...] += net.v1[...]
    return net.v7[...]

  _, call = jitted_by_way(step, way, net)
  for _ in range(3):
    say(error_of(lambda: say(value_of(call()))), *tree(net))
  net.v4.set_value(jnp.array(4.0))
  net.v7.set_value(None)
  say(error_of(call), *tree(net))


def test_containers_are_rebuilt(say):
  @dataclasses.dataclass
  class Holder(nnx.Module):
    things: list = nnx.data()
    table: dict = nnx.data()
    fixed: tuple = (1, 2)

  holder = Holder([Linear(1), 3, None], {'b': nnx.Param(X), 'a': [X]})
  step = nnx.jit(lambda h: None)
  for _ in range(3):
    before = dict(vars(holder))
    step(holder)
    say([(k, v is before[k]) for k, v in vars(holder).items() if not k.startswith('_')], *tree(holder))


def test_threads(say):
  """Two threads in one jitted function, each with a model of its own."""

  @nnx.jit
  def step(net):
    net.layers[0].kernel[...] += 1

  nets = [Net(2) for _ in range(4)]

  def work(net):
    for _ in range(50):
      step(net)
      nnx.update(net, nnx.split(net, nnx.Param, ...)[1])

  in_threads(work, nets)
  for net in nets:
    say(*tree(net))


def test_models_are_freed(say):
  """Deleting a model frees it at once: no call keeps it."""

  @nnx.jit
  def step(net):
    net.layers[0].kernel[...] += 1
    return net

  net = Net(2)
  cached = nnx.cached_partial(step, Net(1, nnx.Param))
  for _ in range(4):
    step(net)
    cached()
  gone = [weakref.ref(net), weakref.ref(net.layers), weakref.ref(net.layers[0])]
  gc.collect()
  gc.disable()
  del net
  say([ref() is None for ref in gone])
  gc.enable()


def test_four_devices(say):
  mesh = jax.make_mesh((4,), ('d',), axis_types=(jax.sharding.AxisType.Auto,))
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('d'))
  replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  net = Empty()
  net.w = nnx.Param(jnp.arange(8.0))
  net.n = Counter(jnp.array(0))
  shardings = nnx.StateSharding({nnx.Param: sharding, ...: replicated})

  @nnx.jit(in_shardings=(shardings, None), out_shardings=None)
  def step(net, x):
    net.w[...] += x
    return net.w[...].sum()

  for _ in range(3):
    say(
      value_of(step(net, 1.0)),
      net.w.get_raw_value().sharding.spec,
      net.n.get_raw_value().sharding.spec,
      *tree(net),
    )


def test_update_context_by_hand(say):
  net, names = Shared(), Names()
  say(*tree(net, names))
  for _ in range(3):
    with nnx.update_context('test'):
      with nnx.split_context('test') as context:
        graphdef, state = context.split(net)

      @jax.jit
      def inside(graphdef, state):
        with nnx.merge_context('test', inner=True) as context:
          inner = context.merge(graphdef, state)
        inner.first.kernel[...] += 1
        inner.note = 'set inside'
        inner.more = Linear(1)
        with nnx.split_context('test') as context:
          return context.split(inner)

      graphdef, state = inside(graphdef, state)
      with nnx.merge_context('test', inner=False) as context:
        merged = context.merge(graphdef, state)
    say(merged is net, contexts(), *tree(net, names))


def test_cached_partial_refuses_new_structure(say):
  net = Net(1, nnx.Param)
  cached = nnx.cached_partial(nnx.jit(lambda n: setattr(n, 'n', getattr(n, 'n', 0) + 1)), net)
  for _ in range(3):
    say(error_of(cached).split('\n')[0], contexts())


def test_compile_log_and_cache_keys(say):
  """What jax logs of a compilation, and the program that its persistent cache is keyed by."""
  import hashlib
  import logging

  lines = []

  class Kept(logging.Handler):
    def emit(self, record):
      lines.append(record.getMessage())

  handler, logger = Kept(), logging.getLogger('jax')
  logger.addHandler(handler)
  net = Net(1)

  @nnx.jit
  def logged_step(net, x):
    return net(x)

  try:
    with jax.log_compiles(True):
      for _ in range(3):
        logged_step(net, X)
  finally:
    logger.removeHandler(handler)
  for line in lines:
    if 'logged_step' in line:
      say(plain(line.split(' in ')[0])[:200])
  say(hashlib.sha256(logged_step.lower(net, X).as_text().encode()).hexdigest())


def test_flags_change_between_calls(say):
  from flax import config

  net, names = Net(1), Names()
  step = nnx.jit(lambda n: n.layers[0].kernel.set_value(n.layers[0].kernel[...] + 1))
  for flag in ('nnx_graph_mode', 'nnx_graph_updates', 'flax_hijax_variable'):
    for value in (True, False, True):
      old = getattr(config, flag)
      config.update(flag, value)
      try:
        say(flag, value, error_of(step, net).split('\n')[0], *tree(net, names))
        say(error_of(lambda: plain(nnx.split(net))).split('\n')[0][:200])
      finally:
        config.update(flag, old)


def test_shared_buffers_and_donation(say):
  """A clone shares its arrays; what a plain call leaves untouched, a donating call may delete."""
  for calls in ((), ('plain',), ('plain', 'plain', 'plain')):
    net = Net(1)
    copy = nnx.clone(net)
    plain_step = nnx.jit(lambda n: None)
    donating = nnx.jit(lambda n: None, donate_argnums=0)
    for _ in calls:
      plain_step(net)
    donating(net)
    say(calls, [v.get_raw_value().is_deleted() for _, v in nnx.iter_graph(copy) if isinstance(v, nnx.Variable)])
    say(error_of(donating, copy).split('\n')[0][:80], error_of(donating, net).split('\n')[0][:80])


def test_devices_of_untouched_arrays(say):
  """An array that a call does not touch comes out where upstream puts it."""
  devices = jax.devices()
  net = Empty()
  net.w = nnx.Param(jnp.arange(4.0))
  net.n = Counter(jnp.array(0))
  step = nnx.jit(lambda n, x: x + 1)

  def where():
    return [(v.get_raw_value().committed, str(v.get_raw_value().device), v.get_raw_value().weak_type) for v in (net.w, net.n)]

  say(where())
  for x in (jnp.ones(2), jax.device_put(jnp.ones(2), devices[1]), jnp.ones(2)):
    say(error_of(step, net, x).split('\n')[0][:60], where())
  with jax.default_device(devices[2]):
    fresh = Empty()
    fresh.w, fresh.n = nnx.Param(jnp.arange(4.0)), Counter(jnp.array(0))
    step(fresh, jnp.ones(2))
  say([str(v.get_raw_value().device) for v in (fresh.w, fresh.n)])


@pytest.mark.parametrize('fault', ['nobody_takes_it', 'raises', 'nested'])
def test_cached_partial_of_another_function(say, fault):
  """The cache is offered to whatever is called; where no jitted function takes it, that is an error."""

  def plain_function(net, x):
    if fault == 'raises':
      raise KeyError(x)
    return nnx.jit(lambda net: net.scale)(net) if fault == 'nested' else x

  net = model(nnx.Param)
  call = nnx.cached_partial(plain_function, net)
  for _ in range(3):
    say(error_of(lambda: value_of(call(1))), nnx.graphlib.GRAPH_CONTEXT.tmp_static_cache is None)
    nnx.graphlib.GRAPH_CONTEXT.tmp_static_cache = None
  say(call.__name__, nnx.graphlib.static_cache.__name__, nnx.graphlib.static_cache.__module__)
