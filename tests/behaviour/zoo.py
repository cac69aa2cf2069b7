"""Object graphs of every kind of node, each made anew by a function without arguments."""

import dataclasses
import typing as tp

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx


class Empty(nnx.Module):
  pass


class Counter(nnx.Variable):
  pass


class Linear(nnx.Module):
  def __init__(self, size, value=1.0):
    self.size = size
    self.name = 'linear'
    self.kernel = nnx.Param(jnp.full((size,), value))
    self.bias = nnx.Param(jnp.zeros(size), out_sharding=None, note='b')
    self.calls = Counter(jnp.array(0))

  def __call__(self, x):
    self.calls[...] += 1
    return x * self.kernel[...] + self.bias[...]


class Net(nnx.Module):
  """Modules in a List, beside a static function and arrays that are attributes."""

  def __init__(self, depth=3, hold=lambda array: array):
    self.layers = nnx.List([Linear(2, float(i)) for i in range(depth)])
    self.activation = nnx.relu
    self.scale = hold(jnp.array([1.0, 2.0]))
    self.offset = hold(np.array([0.5, 0.25]))

  def __call__(self, x):
    for layer in self.layers:
      x = self.activation(layer(x))
    return x * self.scale + self.offset


class Shared(nnx.Module):
  """A Module and a Variable under two names each."""

  def __init__(self):
    self.first = Linear(2)
    self.second = self.first
    self.weight = self.first.kernel


class Cyclic(Shared):
  def __init__(self):
    super().__init__()
    self.me = self


class Containers(nnx.Module, pytree=False):
  """Plain containers of Modules, Variables and statics."""

  def __init__(self):
    self.pair = (Linear(1), nnx.Param(jnp.array(2.0)))
    self.table = {'b': Linear(1, 2.0), 'a': [nnx.Param(jnp.array(1)), None, 'text', 3]}
    self.nothing = None
    self.state = nnx.State({'y': nnx.Param(jnp.array(1)), 'x': {'z': nnx.Param(jnp.array(2))}})
    self.numbers = np.arange(3)


class Marked(nnx.Module):
  """Attributes marked as data and as static against what their types say."""

  def __init__(self):
    self.steps = nnx.data(5)
    self.note = nnx.static('kept')
    self.items = nnx.data([Linear(1), 7, jnp.array(3)])
    self.nothing = nnx.data(None)
    self.table = nnx.data({'one': nnx.Param(jnp.array(1)), 'two': 2})


@nnx.dataclass
class Fields(nnx.Module):
  weight: nnx.Param
  label: str = 'fields'
  rate: float = nnx.data(default=0.5)


class Point(tp.NamedTuple):
  y: tp.Any
  x: tp.Any


class Named(nnx.Module):
  def __init__(self):
    self.point = nnx.data(Point(nnx.Param(jnp.array(1)), Linear(1)))
    self.empty = nnx.data(())


class Payloads(nnx.Module):
  """Variables that hold other things than arrays."""

  def __init__(self):
    self.nothing = nnx.Param(None)
    self.number = nnx.Param(3)
    self.array = nnx.Param(np.array([1, 2]))
    self.tree = nnx.Param({'a': jnp.array(1), 'b': (jnp.array(2), 'x')})
    self.shape = nnx.Param(jax.ShapeDtypeStruct((2,), jnp.float32))
    self.key = nnx.Param(jax.random.key(0))


class Hooked(nnx.Variable):
  """Overrides the accessors that users may override, and one that they rarely do."""

  def get_value(self, **keywords):
    return super().get_value(**keywords)

  def get_metadata(self, *arguments, **keywords):
    return super().get_metadata(*arguments, **keywords)


class WithHooked(nnx.Module):
  def __init__(self):
    self.hooked = Hooked(jnp.array(1.0), tag='hooked')
    self.plain = Counter(jnp.array(1))


class Renamed(nnx.Module):
  """Flattens under other names than its attributes have."""

  def __init__(self):
    self.inner = Linear(1)
    self.size = 4

  def _graph_node_flatten(self):
    nodes, metadata = super()._graph_node_flatten()
    return list(nodes), metadata


class Registered:
  """A class of a user's own, registered as a graph node."""

  def __init__(self):
    self.parts = {'w': nnx.Param(jnp.array(1.0)), 'n': 2, 'sub': Linear(1)}


nnx.graphlib.register_graph_node_type(
  Registered,
  flatten=lambda node: (sorted(node.parts.items()), 'static part'),
  set_key=lambda node, key, value: node.parts.__setitem__(key, value),
  pop_key=lambda node, key: node.parts.pop(key),
  create_empty=lambda metadata: object.__new__(Registered),
  clear=lambda node: node.parts.clear(),
  init=lambda node, items: setattr(node, 'parts', dict(items)),
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class JaxTree:
  """A pytree that only jax knows."""

  left: tp.Any
  right: tp.Any


def refs():
  module = Empty()
  module.array = nnx.Param(jnp.array([1.0, 2.0]), ref=True)
  module.again = module.array
  return module


def hijax():
  module = Empty()
  module.weight = nnx.Param(jnp.array([1.0, 2.0]), hijax=True)
  module.other = nnx.Param(jnp.array(3.0))
  return module


def optimizer():
  model = Net(2)
  return {'model': model, 'optimizer': nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)}


def layers():
  rngs = nnx.Rngs(0, dropout=1)
  return nnx.Sequential(
    nnx.Linear(2, 3, rngs=rngs), nnx.BatchNorm(3, rngs=rngs), nnx.relu, nnx.Dropout(0.5, rngs=rngs)
  )


def reordered():
  module = Linear(2)
  kernel = module.kernel
  del module.kernel
  module.kernel = kernel
  return module


def long_list():
  return nnx.List([nnx.Param(jnp.array(i)) for i in range(12)] + ['static'])


class Alike(nnx.Module):
  """Variables of one shape that differ in what they hold."""

  def __init__(self):
    self.a, self.b, self.c = [nnx.Param(jnp.array([i, 0.5])) for i in (1.0, 2.0, 3.0)]
    self.number = nnx.Variable(2.5)
    self.pair = nnx.data([Counter(jnp.array([4.0, 0.5])), nnx.Param(jnp.array([5.0, 0.5]))])


GRAPHS = {
  'empty': Empty,
  'alike': Alike,
  'module': lambda: Linear(2),
  'net': Net,
  'shared': Shared,
  'cyclic': Cyclic,
  'containers': Containers,
  'marked': Marked,
  'dataclass': lambda: Fields(nnx.Param(jnp.array(1.0))),
  'named_tuple': Named,
  'payloads': Payloads,
  'hooked': WithHooked,
  'own_flatten': Renamed,
  'registered': Registered,
  'jax_tree': lambda: JaxTree(Linear(1), [nnx.Param(jnp.array(1))]),
  'refs': refs,
  'hijax': hijax,
  'optimizer': optimizer,
  'layers': layers,
  'reordered': reordered,
  'long_list': long_list,
  'nnx_dict': lambda: nnx.Dict(b=Linear(1), a=nnx.Param(jnp.array(1)), c='static'),
  'plain_list': lambda: [Linear(1), nnx.Param(jnp.array(1)), 3],
  'plain_dict': lambda: {2: Linear(1), 1: nnx.Param(jnp.array(1))},
  'tuple': lambda: (Linear(1), Linear(1, 2.0)),
  'variable': lambda: nnx.Param(jnp.array([1.0])),
  'array': lambda: jnp.array([1.0]),
  'none': lambda: None,
  'state': lambda: nnx.state(Net(1)),
  'rngs': lambda: nnx.Rngs(0, params=1),
  'metric': lambda: nnx.MultiMetric(loss=nnx.metrics.Average('loss'), acc=nnx.metrics.Accuracy()),
  'key': lambda: nnx.Param(jax.random.key(3)),
}

# A cycle has no end as a jax pytree: jax's own recursion is then all that can be observed.
TREES = {kind: make for kind, make in GRAPHS.items() if kind != 'cyclic'}
