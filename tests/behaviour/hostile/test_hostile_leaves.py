"""Leaves and roots of any kind: what is no node, no Variable and no array."""
import collections
import decimal
import enum
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.nnx import graphlib
from hostile.outcomes import outcome, result_of, say_outcomes


class Color(enum.Enum):
  RED = 1


class Plain:
  def __repr__(self):
    return 'Plain()'


class FakeArray:
  """Has all that arrays have, and is none."""
  shape, dtype, ndim, size = (2,), jnp.float32, 1, 2

  def __array__(self, *args, **kwargs):
    return np.ones(2)

  def __repr__(self):
    return 'FakeArray()'


class ArraySubclass(np.ndarray):
  pass


class ClaimsToBeAnArray:
  __class__ = np.ndarray

  def __repr__(self):
    return 'ClaimsToBeAnArray()'


class FakeRef:
  """Has the attribute names of a mutable array."""

  def __init__(self):
    self.value, self.aval = jnp.ones(1), jax.typeof(jnp.ones(1))

  def __getitem__(self, key):
    return self.value

  def __repr__(self):
    return 'FakeRef()'


def in_a_trace() -> jax.core.Tracer:
  found: list = []
  jax.jit(lambda x: found.append(x) or x)(1.0)
  return found[0]


LEAVES = {
  'text': lambda: 'text', 'bytes': lambda: b'bytes', 'true': lambda: True, 'int': lambda: 5,
  'float': lambda: 1.5, 'complex': lambda: 1j, 'none': lambda: None, 'object': object, 'plain': Plain,
  'enum': lambda: Color.RED, 'decimal': lambda: decimal.Decimal('1.5'), 'ellipsis': lambda: ...,
  'struct': lambda: jax.ShapeDtypeStruct((2,), jnp.float32),
  'partition spec': lambda: jax.sharding.PartitionSpec('x', None), 'dtype': lambda: jnp.dtype('float32'),
  'scalar type': lambda: jnp.float32, 'numpy': lambda: np.ones(2), 'numpy scalar': lambda: np.float32(1),
  'numpy of objects': lambda: np.array([None, 'x'], dtype=object), 'numpy subclass': lambda: np.ones(2).view(ArraySubclass),
  'masked': lambda: np.ma.array([1, 2], mask=[0, 1]), 'record': lambda: np.zeros(1, dtype=[('a', 'i4')])[0],
  'array': lambda: jnp.ones(2), 'key': lambda: jax.random.key(0), 'bfloat': lambda: jnp.ones(1, jnp.bfloat16),
  'deleted array': lambda: deleted(), 'fake array': FakeArray, 'claims to be an array': ClaimsToBeAnArray,
  'fake ref': FakeRef, 'ref': lambda: jax.new_ref(jnp.ones(2)), 'leaked tracer': in_a_trace,
  'set': lambda: {1}, 'frozenset': lambda: frozenset([1]), 'deque': lambda: collections.deque([1]),
  'ordered dict': lambda: collections.OrderedDict(b=1, a=jnp.ones(1)),
  'default dict': lambda: collections.defaultdict(int, b=1, a=2), 'counter': lambda: collections.Counter('ab'),
  'chain map': lambda: collections.ChainMap({'a': 1}), 'mapping proxy': lambda: types.MappingProxyType({'a': 1}),
  'namespace': lambda: types.SimpleNamespace(a=1), 'partial': lambda: functools.partial(len, 'x'),
  'jax partial': lambda: jax.tree_util.Partial(len, jnp.ones(1)), 'type': lambda: int, 'module': lambda: types,
  'exception': lambda: ValueError('x'), 'range': lambda: range(3), 'generator': lambda: (x for x in ()),
  'lambda': lambda: len, 'property': lambda: property(len), 'slice': lambda: slice(1), 'memory': lambda: memoryview(b'x'),
  'static': lambda: graphlib.Static(5), 'repeated': lambda: graphlib.REPEATED, 'no update': lambda: graphlib.NO_UPDATE,
  'array ref output': lambda: graphlib.ArrayRefOutput(jnp.ones(1)), 'node ref': lambda: graphlib.NodeRef(0),
  'graphdef': lambda: nnx.graphdef([nnx.Param(1)]), 'flat state': lambda: nnx.to_flat_state(nnx.State({'a': 1})),
  'refmap': lambda: graphlib.RefMap(), 'graph state': lambda: nnx.State({'a': {'b': nnx.Param(jnp.ones(1))}}),
  'data elem': lambda: graphlib.DataElem(5), 'rngs': lambda: nnx.Rngs(0), 'metric': lambda: nnx.metrics.Average(),
  'variable class': lambda: nnx.Param, 'module class': lambda: nnx.Linear, 'bound method': lambda: Plain().__repr__,
}


def deleted():
  array = jnp.ones(2) + 1
  array.delete()
  return array


WALKS = ('flatten', 'flatten without paths', 'split', 'graphdef', 'state', 'round trip', 'clone', 'update', 'pop',
         'iter_graph', 'find_duplicates')


@pytest.mark.parametrize('kind', LEAVES)
def test_as_root(say, kind):
  value = LEAVES[kind]()
  say_outcomes(say, lambda: value, WALKS)


@pytest.mark.parametrize('kind', LEAVES)
def test_in_containers(say, kind):
  value = LEAVES[kind]()
  say_outcomes(say, lambda: {'x': value, 'y': [value, (value,)], 'z': nnx.Param(jnp.ones(1))}, WALKS)


@pytest.mark.parametrize('kind', LEAVES)
def test_in_modules(say, kind):
  value = LEAVES[kind]()

  class Data(nnx.Module):
    def __init__(self):
      self.x = nnx.data(value)
      self.y = nnx.Param(jnp.ones(1))

  class Static(nnx.Module):
    def __init__(self):
      self.x = nnx.static(value)
      self.y = nnx.Param(jnp.ones(1))

  class Neither(nnx.Module, pytree=False):
    def __init__(self):
      self.x = value
      self.y = nnx.Param(jnp.ones(1))

  for cls in (Data, Static, Neither):
    made = result_of(cls)
    say(cls.__name__, made.startswith('gives'))
    if made.startswith('gives'):
      say_outcomes(say, cls, WALKS)


@pytest.mark.parametrize('kind', LEAVES)
def test_given_to_update_and_merge(say, kind):
  value = LEAVES[kind]()
  for state in ({'b': value}, value, {'b': {'x': value}}, {'d': value}, {'d': {'x': value}}, {'new': value}):
    model = {'b': nnx.Param(jnp.ones(1)), 'c': 5, 'd': {'x': nnx.Param(jnp.ones(1))}}
    say([line[:300] for line in outcome(lambda m, s=state: nnx.update(m, s), model)], outcome(lambda m: m, model))
  graphdef, _ = nnx.split({'b': nnx.Param(jnp.ones(1))})
  for state in (value, {'b': value}, [value]):
    say([line[:300] for line in outcome(lambda g, s=state: nnx.merge(g, s), graphdef)])
    say([line[:300] for line in outcome(lambda g, s=state: graphlib.unflatten(g, s), graphdef)])
  say([line[:300] for line in outcome(lambda v: nnx.merge(v, {}), value)])


@pytest.mark.parametrize('kind', LEAVES)
def test_as_an_argument_of_iteration(say, kind):
  value = LEAVES[kind]()
  for call in (lambda: [k for k, _ in nnx.iter_children([value])], lambda: [k for k, _ in nnx.iter_children(value)],
               lambda: nnx.recursive_map(lambda p, v: v, {'x': value}), lambda: graphlib.is_node(value),
               lambda: graphlib.is_graph_node(value), lambda: graphlib.is_node_leaf(value),
               lambda: nnx.map(lambda p, v: v, {'x': value})):
    say(result_of(call)[:300])
