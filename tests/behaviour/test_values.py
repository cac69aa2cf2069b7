"""Reading and setting a Variable's value, in eager code and under traces."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from telling import error_of, plain, value_of
from zoo import Counter, Hooked

X = jnp.arange(4.0)


def hooked(**hooks):
  def make():
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')
      return nnx.Param(X, **hooks)

  return make


class Overriding(nnx.Variable):
  def get_value(self, **keywords):
    return super().get_value(**keywords) * 2

  def set_value(self, value, **keywords):
    super().set_value(value + 1, **keywords)


class Locked(nnx.Variable):
  @property
  def _can_update(self):
    return False

  def _check_can_update(self):
    raise RuntimeError('locked')


class Setting(nnx.Variable):
  def __setattr__(self, name, value):
    super().__setattr__(name, value if name != '_raw_value' else value * 3)


VARIABLES = {
  'array': lambda: nnx.Param(X),
  'matrix': lambda: nnx.Param(jnp.ones((2, 3), jnp.int32)),
  'scalar': lambda: Counter(jnp.array(2)),
  'weak': lambda: nnx.Param(jnp.asarray(2.0)),
  'key': lambda: nnx.Param(jax.random.key(0)),
  'numpy': lambda: nnx.Param(np.arange(4.0, dtype=np.float32)),
  'int': lambda: nnx.Param(3),
  'float': lambda: nnx.Param(2.5),
  'none': lambda: nnx.Param(None),
  'list': lambda: nnx.Param([X, 1]),
  'dict': lambda: nnx.Param({'a': X}),
  'string': lambda: nnx.Param('text'),
  'variable': lambda: nnx.Param(nnx.Param(X)),
  'shape': lambda: nnx.Param(jax.ShapeDtypeStruct((4,), jnp.float32)),
  'ref': lambda: nnx.Param(X, ref=True),
  'hijax': lambda: nnx.Param(X, hijax=True),
  'hooked': lambda: Hooked(X),
  'overriding': lambda: Overriding(X),
  'locked': lambda: Locked(X),
  'setting': lambda: Setting(X),
  'on_get': hooked(on_get_value=lambda variable, value: value + 10),
  'on_get_pair': hooked(on_get_value=(lambda v, value: value + 1, lambda v, value: value * 2)),
  'on_set': hooked(on_set_value=lambda variable, value: value * 5),
}
INDICES = {'whole': ..., 'first': 0, 'slice': slice(1, 3), 'none': None, 'key': 'a', 'pair': (..., 0)}
NEW = {
  'array': lambda: X + 1,
  'ints': lambda: jnp.arange(4),
  'shorter': lambda: X[:2],
  'number': lambda: 7,
  'numpy': lambda: np.ones(4, np.float32),
  'none': lambda: None,
  'list': lambda: [X],
  'key': lambda: jax.random.key(1),
  'variable': lambda: nnx.Param(X),
}


def raw(variable):
  return error_of(lambda: value_of(variable.get_raw_value()))


@pytest.mark.parametrize('index', INDICES)
@pytest.mark.parametrize('kind', VARIABLES)
def test_read(say, kind, index):
  variable, index = VARIABLES[kind](), INDICES[index]
  say(error_of(lambda: value_of(variable[index])))
  say(error_of(lambda: value_of(variable.get_value(index=index))))
  say(error_of(lambda: value_of(variable.get_value())))
  say(error_of(lambda: variable[...] is variable.get_raw_value()))
  say(error_of(lambda: variable.get_value() is variable.get_raw_value()))


@pytest.mark.parametrize('new', NEW)
@pytest.mark.parametrize('kind', VARIABLES)
def test_set(say, kind, new):
  for name in ('whole', 'first', 'slice'):
    variable, value = VARIABLES[kind](), NEW[new]()
    say(name, error_of(variable.__setitem__, INDICES[name], value), raw(variable))
  variable, value = VARIABLES[kind](), NEW[new]()
  say(error_of(variable.set_value, value), raw(variable))
  say(error_of(lambda: variable.get_raw_value() is value))
  say(error_of(variable.set_value, value, index=...), raw(variable))
  say(error_of(variable.set_value, value, index=None), raw(variable))


def test_wrong_arguments(say):
  variable = nnx.Param(X)
  for call in (variable.get_value, variable.set_value, variable.__getitem__, variable.__setitem__):
    say(error_of(call), error_of(call, 1, 2, 3), error_of(call, other=1), error_of(call, index=..., key=1))
  say(error_of(variable.get_value, ...), error_of(variable.set_value, X, ...))
  say(error_of(variable.set_value, value=X + 1, index=...), raw(variable))
  say(error_of(variable.set_value, index=..., value=X + 2), raw(variable))
  for call in (nnx.Variable.get_value, nnx.Variable.__getitem__, nnx.Variable.set_value):
    say(error_of(call, None), error_of(call, 3, ...), error_of(call, X, X), error_of(call, nnx.Param, X))
  say(nnx.Variable.get_value.__name__, nnx.Variable.__setitem__.__qualname__)


def test_deleted_arrays(say):
  for new in (X + 1, X):
    variable = nnx.Param(jnp.arange(4.0))
    variable.get_raw_value().delete()
    say(error_of(lambda: value_of(variable[...])), error_of(lambda v=variable: v.set_value(X)))
    variable = nnx.Param(jnp.arange(4.0))
    variable.get_raw_value().delete()
    say(error_of(variable.__setitem__, ..., new), raw(variable))


@pytest.mark.parametrize('slot', ['_raw_value', '_var_metadata', '_trace_state'])
def test_unset_slots(say, slot):
  variable = nnx.Param(X)
  object.__delattr__(variable, slot)
  say(error_of(lambda: value_of(variable[...])), error_of(variable.get_value))
  say(error_of(variable.set_value, X + 1), error_of(variable.__setitem__, ..., X + 1))


def test_hooks_that_come_and_go(say):
  variable = nnx.Param(X)
  say(value_of(variable[...]))
  variable.set_metadata(on_get_value=lambda variable, value: value + 1)
  say(value_of(variable[...]), value_of(variable.get_value()))
  variable.set_metadata(on_set_value=lambda variable, value: value * 2)
  variable[...] = X
  variable.set_value(variable.get_raw_value())
  say(raw(variable))
  variable.del_metadata('on_get_value')
  variable.del_metadata('on_set_value')
  variable[...] = X
  say(value_of(variable[...]))


def test_a_class_changed_later(say):
  class Late(nnx.Variable):
    pass

  variable = Late(X)
  say(value_of(variable[...]))
  Late.get_value = lambda self, *, index=None: ('late', index)
  say(variable[...], error_of(variable.get_value))
  Late.set_value = lambda self, value, *, index=None: say('set', value_of(value), index)
  variable[...] = X + 1
  del Late.get_value, Late.set_value
  variable[...] = X + 2
  say(value_of(variable[...]))


def uses(variable, x):
  variable[...] = variable[...] + x
  variable.set_value(variable.get_value() * 2)
  variable[0] = variable[1]
  variable[...] = x
  return variable[...].sum() + variable.sum()


@pytest.mark.parametrize('kind', ['array', 'ref', 'hooked', 'overriding', 'on_get', 'on_set', 'numpy'])
def test_traced(say, kind):
  """The same operations in the same order, and the same error for a Variable of another trace."""
  outside = VARIABLES[kind]()

  def f(value, x):
    say(error_of(lambda: outside.set_value(x)), error_of(lambda: outside.__setitem__(..., x)))
    say(error_of(lambda: outside.set_value(X)), error_of(lambda: outside.__setitem__(..., X)))
    variable = type(outside)(value)
    jax.vmap(lambda y: say(error_of(lambda: variable.set_value(y)), error_of(lambda: variable[...] + y)))(x)
    return uses(variable, x)

  say(error_of(lambda: plain(jax.make_jaxpr(f)(X, X))))
  say(error_of(lambda: value_of(jax.jit(f)(X, X))))
  say(error_of(lambda: value_of(jax.grad(f)(X, X))))
  say(error_of(lambda: value_of(nnx.jit(uses)(outside, X))), raw(outside))


def test_shardings(say):
  """A value on another device, or placed in another way, is set as upstream sets it."""
  device = jax.devices()[0]
  mesh = jax.make_mesh((1,), ('a',))
  spread = jax.device_put(X, jax.NamedSharding(mesh, jax.P('a')))
  committed = jax.device_put(X, device)
  for old in (X, committed, spread):
    for new in (X + 1, committed + 1, spread + 1):
      variable = nnx.Param(old)
      say(error_of(variable.__setitem__, ..., new)[:300])
      now = variable.get_raw_value()
      say(now is new, plain(now.sharding), now.committed, value_of(now))


def test_after_a_jitted_call(say):
  variable = nnx.Param(X)
  step = nnx.jit(lambda variable: variable.set_value(variable[...] + 1))
  for _ in range(4):
    step(variable)
    variable[...] = variable[...] * 2
    variable.set_value(variable.get_value() - 1)
    say(value_of(variable[...]))


class Mixin:
  """Gives instances a `__dict__`."""


class WithDict(Mixin, nnx.Variable):
  pass


def test_methods_of_an_instance(say):
  variable = WithDict(X)
  say(value_of(variable[...]), value_of(variable.get_value()))
  vars(variable)['get_value'] = lambda *, index=None: ('own', index)
  say(variable[...], error_of(variable.get_value))
  vars(variable)['set_value'] = lambda value, *, index=None: say('set', value_of(value), index)
  variable[...] = X + 1
  vars(variable).clear()
  variable[...] = X + 2
  say(value_of(variable[...]))
  vars(variable)['_check_can_update'] = lambda: say('checked')
  variable[...] = X + 3
  variable.set_value(X + 4)
  say(raw(variable))
  module = nnx.Module()
  module.variable = variable
  graphdef, state = nnx.split(module)
  say(value_of(nnx.merge(graphdef, state).variable.get_raw_value()))


def test_a_deleted_new_value(say):
  variable, new = nnx.Param(X), jnp.arange(4.0)
  new.delete()
  say(error_of(variable.__setitem__, ..., new), error_of(variable.set_value, new), raw(variable))


def test_concrete_arrays_set_under_a_trace(say):
  def f(x):
    variable = nnx.Param(X)
    variable[...] = X + 1
    variable.set_value(X + 2)
    return variable[...] + x

  say(plain(jax.make_jaxpr(f)(X)), value_of(jax.jit(f)(X)))
