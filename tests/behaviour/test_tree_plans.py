"""Calls without graph updates (tree mode, `graph_updates=False`, `jit_partial`) that a plan answers.

As in test_plans: the plan is used from the third call on, so each scenario disturbs after that.
"""

import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.nnx import graph_fast
from telling import Names, error_of, plain, tree, value_of
from test_calls import DISTURBANCES
from test_plans import STEPS, X, looked, model, planned, trained
from zoo import Linear, Net

TREE, SIMPLE = {'graph': False}, {'graph': True, 'graph_updates': False}
JITS = {'tree': TREE, 'simple': SIMPLE}
WAYS = {
  'tree': lambda f, *nodes, **o: functools.partial(nnx.jit(f, **TREE, **o), *nodes),
  'simple': lambda f, *nodes, **o: functools.partial(nnx.jit(f, **SIMPLE, **o), *nodes),
  'partial_tree': lambda f, *nodes, **o: nnx.jit_partial(f, *nodes, graph=False, **o),
  'partial_simple': lambda f, *nodes, **o: nnx.jit_partial(f, *nodes, **SIMPLE, **o),
}
ways = pytest.mark.parametrize('way', WAYS)


def jitted_of(call):
  return call.func if isinstance(call, functools.partial) else call


def told(f, traces):
  @functools.wraps(f)
  def step(*arguments, **keywords):
    traces.append(1)
    return f(*arguments, **keywords)

  return step


@ways
@pytest.mark.parametrize('step', STEPS)
@pytest.mark.parametrize('name', DISTURBANCES)
def test_disturbed(say, name, step, way):
  traces, names, net = [], Names(), model()
  call = WAYS[way](told(STEPS[step], traces), net)
  for i in range(7):
    if i == 4:
      planned(jitted_of(call))
      say('disturbed', error_of(DISTURBANCES[name], net))
    say(i, error_of(lambda: value_of(call(X))), 'traces', len(traces))
    say(*tree(net, names))


def set_in(value):
  return lambda net: net.layers[0].kernel.set_value(value)


INSIDE = {
  'nothing': lambda net: None,
  'value': lambda net: net.layers[0].kernel.set_value(net.layers[0].kernel[...] + 1),
  'shape': lambda net: set_in(jnp.ones((3, 2)))(net),
  'dtype': lambda net: set_in(net.layers[0].kernel[...].astype(int))(net),
  'scalar': set_in(2.0),
  'numpy': set_in(np.ones(2, np.float32)),
  'none': set_in(None),
  'pytree': lambda net: set_in({'a': jnp.ones(2), 'b': jnp.zeros(2)})(net),
  'text': set_in('text'),
  'metadata': lambda net: net.layers[0].kernel.set_metadata(note='inside'),
  'metadata_and_value': lambda net: (
    net.layers[0].kernel.set_metadata(note='inside'),
    set_in(jnp.zeros(2))(net),
  ),
  'exchange': lambda net: (
    net.layers[0].kernel.set_value(net.layers[1].kernel[...]),
    net.layers[1].kernel.set_value(net.layers[0].bias[...]),
  ),
  'static': lambda net: setattr(net, 'count', 1),
  'new': lambda net: setattr(net, 'more', nnx.Param(jnp.ones(1))),
  'removed': lambda net: net.layers.pop(),
}


@ways
@pytest.mark.parametrize('name', INSIDE)
def test_changed_inside_at_last(say, name, way):
  """Another batch shape makes the function trace again and then change its model otherwise."""
  net, names, traces = model(), Names(), []

  def step(net, x):
    if len(x) > 2:
      INSIDE[name](net)
    return (x.sum() * net.layers[1].kernel[...]).sum()

  call = WAYS[way](told(step, traces), net)
  for i, n in enumerate((2, 2, 2, 2, 3, 2, 3, 3, 2)):
    say(i, error_of(lambda n=n: value_of(call(jnp.ones(n)))), len(traces), *tree(net, names))
    if i == 3:
      planned(jitted_of(call))


RETURNED = {
  'module': lambda net: net,
  'part': lambda net: {'b': net.layers[0], 'a': 1},
  'variable': lambda net: [net.layers[0].kernel],
  'new_module': lambda net: Linear(2),
  'new_variable': lambda net: (nnx.Param(jnp.ones(2)), 3),
  'state': lambda net: nnx.state(net),
  'clone': lambda net: nnx.clone(net),
  'dict': lambda net: {'b': jnp.ones(2), 'a': [None, 2.5]},
  'nothing': lambda net: None,
}


@ways
@pytest.mark.parametrize('name', RETURNED)
def test_returned(say, name, way):
  net, names = model(), Names()
  call = WAYS[way](lambda net: RETURNED[name](net), net)
  for i in range(5):
    out = []
    say(i, error_of(lambda out=out: out.append(call())))
    for one in out:
      say(*tree(one, names) if not isinstance(one, nnx.State) else [plain(one)])


ARGUMENTS = {
  'two': lambda a, b: ((a, b), {}),
  'same': lambda a, b: ((a, a), {}),
  'part': lambda a, b: ((a, a.layers[0]), {}),
  'keyword': lambda a, b: ((a,), {'y': b}),
  'unsorted': lambda a, b: ((), {'y': b, 'x': a}),
  'nested': lambda a, b: (({'m': a, 'l': [b.layers, jnp.ones(1)]}, 1.5), {}),
  'int_keys': lambda a, b: (({2: a, 1: b}, 1), {}),
  'variable': lambda a, b: ((a.layers[0].kernel, [b.layers[0].bias]), {}),
  'state': lambda a, b: ((nnx.state(a), b), {}),
  'plain': lambda a, b: ((np.ones(2), a), {}),
  'list_module': lambda a, b: ((a.layers, None), {}),
}


@pytest.mark.parametrize('mode', JITS)
@pytest.mark.parametrize('name', ARGUMENTS)
def test_arguments(say, name, mode):
  traces, names, a, b = [], Names(), model(), model()

  def total(x, y):
    for variable in jax.tree.leaves((x, y), is_leaf=lambda v: isinstance(v, nnx.Variable)):
      if isinstance(variable, nnx.Variable):
        variable[...] *= 2
    return sum(leaf.sum() for leaf in map(jnp.asarray, jax.tree.leaves((x, y))))

  step = nnx.jit(told(total, traces), **JITS[mode])
  for i in range(5):
    args, kwargs = ARGUMENTS[name](a, b)
    say(i, error_of(lambda args=args, kwargs=kwargs: value_of(step(*args, **kwargs))), len(traces))
    say(*tree([a, b], names))


@pytest.mark.parametrize(
  'where,mode',
  [(where, mode) for where in ('position', 'negative', 'name') for mode in JITS] + [('module', 'tree')],
)
def test_static_arguments(say, where, mode):
  traces, net, other = [], model(), model()
  options = {
    'position': {'static_argnums': 1},
    'negative': {'static_argnums': -1},
    'name': {'static_argnames': 'how'},
    'module': {'static_argnums': (1,)},
  }[where]

  def step(net, how):
    net.layers[0].kernel[...] += 1
    return net.layers[0].kernel[...] * (how if isinstance(how, int) else 2)

  call = nnx.jit(told(step, traces), **options, **JITS[mode])
  for i, how in enumerate((2, 2, 2, 2, 3, 2, 3)):
    how = other if where == 'module' else how
    send = {'how': how} if where == 'name' else {}
    arguments = (net,) if send else (net, how)
    say(i, error_of(lambda a=arguments, s=send: value_of(call(*a, **s))), len(traces))


@ways
@pytest.mark.parametrize('donated', ['donate_argnums', 'donate_argnames'])
def test_donated(say, donated, way):
  """All arrays of a donated argument come back, the untouched ones too."""
  net, traces, names = model(), [], Names()
  options = {donated: 0 if donated == 'donate_argnums' else 'net'}
  if 'partial' in way and donated == 'donate_argnames':
    options = {donated: 'x'}
  call = WAYS[way](told(trained, traces), net, **options)
  clone = nnx.clone(net)
  for i in range(5):
    before = net.layers[1].kernel.get_raw_value()
    say(i, error_of(lambda: value_of(call(jnp.ones(2)))), len(traces), before.is_deleted())
    say(*tree(net, names), *tree(clone, names))


@ways
@pytest.mark.parametrize('first', ['call', 'nested', 'grad', 'lower', 'eval_shape', 'trace'])
@pytest.mark.parametrize('then', ['call', 'nested', 'grad', 'lower', 'eval_shape'])
def test_who_traces(say, first, then, way):
  """One trace serves calls, stages and calls under another trace, as upstream's does."""
  traces, net = [], model()
  call = WAYS[way](told(looked, traces), net)
  jitted = jitted_of(call)
  bound = () if 'partial' in way else (net,)
  uses = {
    'call': lambda: value_of(call(X)),
    'nested': lambda: value_of(jax.jit(lambda x: call(x) * 2)(X)),
    'grad': lambda: value_of(jax.grad(lambda x: call(x).sum())(X)),
    'lower': lambda: plain(jitted.lower(*bound, X).out_tree),
    'eval_shape': lambda: plain(jitted.eval_shape(*bound, X)),
    'trace': lambda: plain(jitted.trace(*bound, X).out_info),
  }
  for use in (first, first, then, then, 'call', 'call', first):
    say(use, error_of(uses[use]), len(traces), jitted.jitted_fn._cache_size() > 0)


@ways
def test_stages(say, way):
  net = model()
  call = WAYS[way](looked, net)
  bound = () if 'partial' in way else (net,)
  call(X), call(X), call(X)
  lowered = jitted_of(call).lower(*bound, X)
  say(plain(lowered.args_info), plain(lowered.out_tree), value_of(lowered.compile()(*bound, X)))
  traced = jitted_of(call).trace(*bound, X)
  say(plain(traced.out_info), plain(traced.lower().as_text()))


@ways
@pytest.mark.parametrize('fault', ['device', 'text', 'object', 'none', 'shape'])
def test_messages(say, fault, way):
  """What jax says of an argument names it as upstream's does."""
  net = model()
  call = WAYS[way](trained, net)
  for _ in range(4):
    call(X)
  value = {
    'device': jax.device_put(jnp.ones(2), jax.devices()[1]),
    'text': 'text',
    'object': object(),
    'none': None,
    'shape': jnp.ones((7, 7)),
  }[fault]
  if fault == 'device':
    net.layers[1].kernel.set_value(jax.device_put(jnp.ones(2), jax.devices()[2]))
  net.layers[0].kernel.set_value(value)
  for _ in range(3):
    say(error_of(lambda: value_of(call(X))))


PLACED = {
  'in': lambda s: {'in_shardings': (s, None)},
  'out': lambda s: {'out_shardings': s},
  'both': lambda s: {'in_shardings': (s, s), 'out_shardings': s},
}


@ways
@pytest.mark.parametrize('name', PLACED)
def test_placed_by_the_caller(say, name, way):
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), 'd')
  sharding = jax.sharding.NamedSharding(mesh, jax.P('d'))
  net, names, traces = model(), Names(), []
  call = WAYS[way](told(trained, traces), net, **PLACED[name](sharding))
  for i in range(4):
    say(i, error_of(lambda: value_of(call(X))), len(traces), *tree(net, names))
    say(plain(net.layers[0].kernel.get_raw_value().sharding))


@ways
def test_sharded_model(say, way):
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ('a', 'b'))
  net, names, traces = model(), Names(), []
  for layer in net.layers:
    for variable in (layer.kernel, layer.bias):
      sharding = jax.sharding.NamedSharding(mesh, jax.P('a'))
      variable.set_value(jax.device_put(variable.get_raw_value(), sharding))
  call = WAYS[way](told(trained, traces), net)
  for i in range(5):
    say(i, error_of(lambda: value_of(call(X))), len(traces), *tree(net, names))
    say(*[plain(layer.kernel.get_raw_value().sharding) for layer in net.layers])
  planned(jitted_of(call))


@ways
@pytest.mark.parametrize('algorithm', [optax.sgd, optax.adam])
def test_training(say, algorithm, way):
  net = Net(2, nnx.Param)
  optimizer = nnx.Optimizer(net, algorithm(1e-2), wrt=nnx.Param)
  traces = []

  def step(net, optimizer, x):
    loss, grads = nnx.value_and_grad(lambda net: ((net(x) - 1) ** 2).sum(), graph=False)(net)
    optimizer.update(net, grads)
    return loss

  call = WAYS[way](told(step, traces), net, optimizer)
  for i in range(6):
    say(i, error_of(lambda: value_of(call(X))), len(traces))
  say(*tree(net), *tree(optimizer))


@ways
def test_without_jit(say, way):
  net, traces, names = model(), [], Names()
  call = WAYS[way](told(trained, traces), net)
  for i in range(6):
    if i % 2:
      with jax.disable_jit():
        say(i, error_of(lambda: value_of(call(X))), len(traces), *tree(net, names))
    else:
      say(i, error_of(lambda: value_of(call(X))), len(traces), *tree(net, names))


@ways
@pytest.mark.parametrize('error', [KeyError, KeyboardInterrupt, MemoryError])
def test_an_error_in_a_later_trace(say, error, way):
  net, names = model(), Names()

  def step(net, x):
    net.layers[0].kernel[...] += 1
    if len(x) > 2:
      raise error('inside')
    return x

  call = WAYS[way](step, net)
  for n in (2, 2, 2, 2, 3, 2, 2):
    say(n, error_of(lambda n=n: value_of(call(jnp.ones(n)))), *tree(net, names))


@ways
def test_plans_keep_nothing_alive(say, way):
  net = model()
  array, node = net.layers[0].kernel.get_raw_value(), weakref.ref(net)
  call = WAYS[way](looked, net)
  for _ in range(5):
    call(X)
  jitted = jitted_of(call)
  planned(jitted)
  array = weakref.ref(array)
  del net, call
  if 'partial' in way:
    jitted.partial_args.clear()  # it holds them, as upstream's does
  gc.collect()
  say(node() is None, array() is None, type(jitted).__name__)


def test_what_is_bound(say):
  """Arrays beside Variables among what is bound, the list itself changed, Variables passed late."""
  net, names, traces = Net(2, nnx.Param), Names(), []

  def step(net, array, x):
    net.layers[0].kernel[...] += array
    return x * array

  call = nnx.jit_partial(told(step, traces), net, jnp.ones(2), graph=False)
  for i in range(8):
    if i == 4:
      planned(call)
      call.partial_args[-1] = jnp.full(2, 3.0)
    if i == 5:
      call.partial_args[-1] = np.full(2, 4.0, np.float32)
    if i == 6:
      call.partial_args[-1] = 5.0
    if i == 7:
      call.partial_args.append(jnp.ones(2))
    say(i, error_of(lambda: value_of(call(X))), len(traces), *tree(net, names))
  del call.partial_args[-1]
  say(error_of(lambda: call(nnx.Param(jnp.ones(2)))), error_of(lambda: call(net)))
  say(error_of(lambda: value_of(call(X))), *tree(net, names))


def test_the_report(say):
  """Functions without graph updates are reported as the others are."""
  net = model()
  here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  tree_step, placed = nnx.jit(trained, graph=False), nnx.jit(trained, out_shardings=here, graph=False)
  for _ in range(5):
    tree_step(net, X), placed(net, X)
  if graph_fast.twin() == 'compiled':
    assert (tree_step._fast_site.calls, tree_step._fast_site.fast) == (5, 3)
    assert placed._fast_site.fast == 0
    assert any('shardings' in why for why in placed._fast_site.reasons)
  say(*tree(net))


def test_trying_less_often(say):
  """A function for whose model no plan can be made tries in some calls only, until one can."""
  net, names = model(), Names()
  net.layers[0].kernel.set_value({'a': jnp.ones(2)})
  step = nnx.jit(lambda net: net.layers[1].kernel[...] * 2, graph=False)
  for i in range(200):
    if i == 100:
      net.layers[0].kernel.set_value(jnp.ones(2))
    out = step(net)
  say(value_of(out), *tree(net, names))
  if graph_fast.twin() == 'compiled':
    assert step._fast_site.fast == 200 - 128  # the 128th call tries
    assert sum(step._fast_site.reasons.values()) >= 97
