"""Setting attributes of Modules, and what is asked of them then and after construction."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.nnx import graphlib, pytreelib, variablelib
from telling import error_of, plain, tree
from zoo import GRAPHS, Counter, Empty, Fields, Linear, Net, Point

X = jnp.ones(2)


class Plain(nnx.Module):
  default = 3
  data_field: jax.Array = nnx.data(default=None)

  def __init__(self):
    self.static = 1
    self.array = X
    self.variable = nnx.Param(X)
    self.module = Empty()
    self.nothing = None
    self.kept = nnx.static('kept')
    self.marked = nnx.data(5)


class Described(nnx.Module):
  def __init__(self):
    self.log = nnx.static([])

  @property
  def both(self):
    return self.log

  @both.setter
  def both(self, value):
    self.log.append(value)

  @property
  def fixed(self):
    return 1

  @functools.cached_property
  def cached(self):
    return 2


class Watching(nnx.Module):
  seen = ()

  def __setattr__(self, name, value):
    type(self).seen += (name,)
    super().__setattr__(name, value)


class OwnSetattr(nnx.Module):
  def _setattr(self, name, value):
    super()._setattr(f'own_{name}', value)


class OwnCheck(nnx.Module):
  checked = ()

  def _check_value(self, key, value, new_status):
    super()._check_value(key, value, new_status)
    type(self).checked += ((key, new_status),)


class NoPytree(nnx.Module, pytree=False):
  pass


OWNERS = {
  'plain': Plain,
  'described': Described,
  'watching': Watching,
  'own_setattr': OwnSetattr,
  'own_check': OwnCheck,
  'no_pytree': NoPytree,
  'dataclass': lambda: Fields(nnx.Param(X)),
  'list': lambda: nnx.List([nnx.Param(X), 1]),
  'dict': lambda: nnx.Dict(a=nnx.Param(X), b=1),
  'linear': lambda: nnx.Linear(1, 1, rngs=nnx.Rngs(0)),
  'rngs': lambda: nnx.Rngs(0),
  'metric': lambda: nnx.metrics.Average(),
}
NAMES = (
  'new', 'static', 'array', 'variable', 'module', 'nothing', 'kept', 'marked', 'default', 'annotated', 'data_field',
  'both', 'fixed', 'cached', '0', 'mro', 'register', '__call__', '_private', '_pytree__state', '_pytree__nodes',
  '__dict__', '__class__',
)  # fmt: skip
VALUES = {
  'int': lambda: 7,
  'string': lambda: 'text',
  'none': lambda: None,
  'function': lambda: len,
  'class': lambda: nnx.Param,
  'array': lambda: X + 1,
  'numpy': lambda: np.ones(2),
  'scalar': lambda: np.float32(1),
  'key': lambda: jax.random.key(0),
  'variable': lambda: nnx.Param(X),
  'counter': lambda: Counter(X),
  'ref': lambda: nnx.Param(X, ref=True),
  'hijax': lambda: nnx.Param(X, hijax=True),
  'module': lambda: Empty(),
  'no_pytree': NoPytree,
  'list': lambda: [1, 2],
  'list_of_arrays': lambda: [X],
  'dict': lambda: {'a': nnx.Param(X)},
  'tuple': lambda: (1, 'a'),
  'named': lambda: Point(1, X),
  'state': lambda: nnx.State({'a': nnx.Param(X)}),
  'data': lambda: nnx.data(3),
  'data_list': lambda: nnx.data([X]),
  'static': lambda: nnx.static('s'),
  'static_array': lambda: nnx.static(X),
  'inner_data': lambda: [nnx.data(1)],
  'field': lambda: dataclasses.field(),
  'spec': lambda: jax.P('a'),
  'dtype': lambda: jnp.float32,
}


def marks(node):
  return plain(vars(node).get('_pytree__nodes'))


def shown(node):
  return plain(list(vars(node))), marks(node), *tree(node)


@pytest.mark.parametrize('value', VALUES)
@pytest.mark.parametrize('owner', OWNERS)
def test_set(say, owner, value):
  for name in NAMES:
    node = OWNERS[owner]()
    say(name, error_of(setattr, node, name, VALUES[value]()))
    say(error_of(lambda: shown(node)))
    say(error_of(setattr, node, name, VALUES[value]()), error_of(lambda: shown(node)))
    say(error_of(pytreelib.check_pytree, node))


@pytest.mark.parametrize('value', VALUES)
def test_asked(say, value):
  """The questions themselves."""
  x = VALUES[value]()
  say(error_of(nnx.is_data, x), error_of(variablelib.is_array_ref, x), error_of(graphlib.is_node_leaf, x))
  say(error_of(graphlib.is_graph_node, x), error_of(graphlib.is_node, x))
  say([error_of(isinstance, x, cls) for cls in (nnx.Variable, nnx.Param, Counter, nnx.Pytree)])
  say([error_of(issubclass, cls, nnx.Variable) for cls in (nnx.Param, int)])


@pytest.mark.parametrize('kind', GRAPHS)
def test_asked_of_graphs(say, kind):
  x = GRAPHS[kind]()
  say(error_of(nnx.is_data, x), error_of(variablelib.is_array_ref, x), error_of(graphlib.is_graph_node, x))
  say([error_of(isinstance, x, cls) for cls in (nnx.Variable, nnx.Param, Counter)])


class Lying:
  __class__ = nnx.Param


class Raising:
  @property
  def __class__(self):
    raise RuntimeError('asked')


@nnx.register_data_type
@dataclasses.dataclass
class Registered:
  x: int = 1


def test_asked_of_strangers(say):
  for x in (Lying(), Raising(), Registered(), object(), nnx.Param, type, jax.Array, jax.ShapeDtypeStruct((), int)):
    say(error_of(nnx.is_data, x), error_of(variablelib.is_array_ref, x))
    say(error_of(isinstance, x, nnx.Variable), error_of(isinstance, x, nnx.Param))
    node = Empty()
    say(error_of(setattr, node, 'x', x), marks(node))
  say(error_of(pytreelib.is_data), error_of(pytreelib.is_data, 1, 2), error_of(pytreelib.is_data, value=1))
  say(error_of(variablelib.is_array_ref), error_of(variablelib.is_array_ref, x=X))
  say(error_of(type(nnx.Param).__instancecheck__, nnx.Param), error_of(type(nnx.Param).__instancecheck__, 3, 4))


def test_wrong_arguments(say):
  node = Plain()
  for name in ('_setattr', '__setattr__', '_check_value'):
    call = getattr(nnx.Pytree, name)
    say(error_of(call), error_of(call, node), error_of(call, node, 'a'), error_of(call, node, 'a', 1, None, 2))
    say(error_of(call, 3, 'a', 1), error_of(call, 3, 'a', 1, None), error_of(call, node, 3, 4))
    say(error_of(call, node, name='new', value=2), error_of(call, node, 'a', X, new_status=None))
    say(error_of(call, None, None, None, new_status=None), call.__qualname__)
  say(*shown(node))


def test_a_type_registered_later(say):
  class Later:
    pass

  node = Empty()
  node.first = Later()
  nnx.register_data_type(Later)
  say(error_of(setattr, node, 'first', Later()), error_of(setattr, node, 'second', Later()), marks(node))
  nnx.register_data_type(bytes)
  try:
    say(error_of(setattr, node, 'third', b'x'), error_of(nnx.is_data, b'x'), marks(node))
  finally:
    pytreelib.DATA_REGISTRY.discard(bytes)
  say(error_of(setattr, node, 'fourth', b'x'), marks(node))


def test_a_class_changed_later(say):
  class Late(nnx.Module):
    pass

  node = Late()
  node.a = 1
  Late.a = property(lambda self: 'property')
  say(error_of(setattr, node, 'a', 2), vars(node)['a'])
  Late.b = 5
  say(error_of(setattr, node, 'b', X), error_of(lambda: marks(node)))
  Late._check_value = lambda self, key, value, new_status: say('checked', key)
  node.c = X
  del Late._check_value, Late.a, Late.b
  say(error_of(setattr, node, 'a', nnx.Param(X)))
  say(error_of(lambda: shown(node)))


def test_marked_by_hand(say):
  node = Plain()
  vars(node)['_pytree__nodes']._mapping['static'] = True
  say(error_of(setattr, node, 'static', X), *shown(node))
  vars(node)['_pytree__nodes']._mapping['array'] = 1
  say(error_of(setattr, node, 'array', X), *shown(node))
  vars(node)['_pytree__is_pytree'] = False
  say(error_of(setattr, node, 'static', [X]), error_of(lambda: shown(node)))
  del vars(node)['_pytree__nodes']
  say(error_of(setattr, node, 'new', X), error_of(lambda: shown(node)))
  del vars(node)['_pytree__state']
  say(error_of(setattr, node, 'newer', X))


def test_other_traces(say):
  outside = Plain()

  def f(x):
    inside = Plain()
    for value in (1, x, nnx.Param(x), Empty(), [x]):
      say(error_of(setattr, outside, 'new', value), error_of(setattr, inside, 'new', value))
      jax.vmap(lambda y, v=value: say(error_of(setattr, inside, 'other', v)))(x)
    say(*shown(inside))
    return x

  say(error_of(lambda: plain(jax.make_jaxpr(f)(X))))
  jax.grad(lambda x: f(x).sum())(X)
  nnx.jit(lambda net: say(error_of(setattr, net, 'size', 3), error_of(setattr, net, 'new', X)))(outside)
  say(*shown(outside))


def test_construction(say):
  say(*tree(nnx.eval_shape(lambda: Net(1, nnx.Param))))
  say(error_of(lambda: tree(nnx.eval_shape(lambda: nnx.Linear(2, 3, rngs=nnx.Rngs(0))))))

  class Wrong(nnx.Module):
    def __init__(self):
      self.items = [1]
      self.items.append(X)

  class Late(nnx.Module):
    def __init__(self):
      vars(self)['hidden'] = X
      vars(self)['plain'] = 1

  say(error_of(Wrong), error_of(lambda: shown(Late())))
  say(*shown(Linear(1)))


@pytest.mark.parametrize('name', ['_setattr', '_check_value', '_check_valid_context'])
def test_methods_of_an_instance(say, name):
  node = Plain()
  vars(node)[name] = lambda *arguments: say(name, len(arguments))
  say(error_of(setattr, node, 'static', 3), error_of(setattr, node, 'new', X))
  say(vars(node)['static'], error_of(pytreelib.check_pytree, node))


def test_a_state_that_is_a_property(say):
  class Shadowed(nnx.Module):
    pass

  node = Shadowed()
  Shadowed._pytree__state = property(lambda self: say('asked') or vars(self)['_pytree__state'])
  node.new = 1
  say(error_of(lambda: vars(node)['new']))


def test_instancecheck_of_other_classes(say):
  check = type(nnx.Param).__instancecheck__
  say(error_of(check, int, 3), error_of(check, 3, int), error_of(check, nnx.Pytree, Empty()))
