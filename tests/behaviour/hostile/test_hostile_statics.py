"""Static attributes whose `__eq__`, `__hash__` or `__repr__` raise, lie, or change the model."""
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hostile.outcomes import own_caches, say_outcomes, shown
from telling import error_of


class Holder(nnx.Module):
  def __init__(self, static):
    self.weight = nnx.Param(jnp.arange(3.0))
    self.static = static


class EqualityRaises:
  __hash__ = object.__hash__

  def __eq__(self, other):
    raise ArithmeticError('not comparable')


class HashRaises:
  def __hash__(self):
    raise LookupError('not hashable')


class ReprRaises:
  def __repr__(self):
    raise OSError('not printable')


class EqualToEverything:
  def __eq__(self, other):
    return True

  def __hash__(self):
    return 0

  def __repr__(self):
    return 'EqualToEverything()'


class EqualToNothing:
  __hash__ = object.__hash__

  def __eq__(self, other):
    return False

  def __repr__(self):
    return 'EqualToNothing()'


class ChangesItsHash:
  count = 0

  def __hash__(self):
    ChangesItsHash.count += 1
    return ChangesItsHash.count

  def __eq__(self, other):
    return isinstance(other, ChangesItsHash)

  def __repr__(self):
    return 'ChangesItsHash()'


class AnswersWithArrays:
  """Equality whose truth cannot be told, as arrays have it."""
  __hash__ = object.__hash__

  def __eq__(self, other):
    return np.array([True, False])

  def __repr__(self):
    return 'AnswersWithArrays()'


class NoBool:
  def __bool__(self):
    raise ValueError('neither true nor false')

  def __repr__(self):
    return 'NoBool()'


class NoLength:
  def __len__(self):
    raise ValueError('immeasurable')

  def __iter__(self):
    raise ValueError('not iterable')

  def __repr__(self):
    return 'NoLength()'


@dataclasses.dataclass
class UnhashableRecord:
  x: int = 1


class IntWithEquality(int):
  def __eq__(self, other):
    raise ArithmeticError('an int that cannot be compared')

  __hash__ = int.__hash__


class TextWithHash(str):
  def __hash__(self):
    raise LookupError('a text that cannot be hashed')


ZOO = {
  'equality raises': EqualityRaises, 'hash raises': HashRaises, 'repr raises': ReprRaises,
  'equal to everything': EqualToEverything, 'equal to nothing': EqualToNothing,
  'changes its hash': ChangesItsHash, 'answers with arrays': AnswersWithArrays,
  'no bool': NoBool, 'no length': NoLength, 'unhashable record': UnhashableRecord,
  'int with equality': lambda: IntWithEquality(3), 'text with hash': lambda: TextWithHash('abc'),
  'nan': lambda: float('nan'), 'set': lambda: {1, 2}, 'bytearray': lambda: bytearray(b'x'),
  'generator': lambda: (x for x in ()), 'module': lambda: jax, 'class': lambda: Holder,
  'ellipsis': lambda: ..., 'not implemented': lambda: NotImplemented,
  'complex': lambda: 1j, 'frozenset': lambda: frozenset([1]), 'range': lambda: range(3),
  'slice': lambda: slice(1, 2), 'memoryview': lambda: memoryview(b'abc'),
  'exception': lambda: ValueError('kept'), 'big int': lambda: 10**100, 'lambda': lambda: len,
}


def without_addresses(make):
  """Some values print their address or none at all; a fixed class name is enough."""
  return lambda: Holder(make())


@pytest.mark.parametrize('kind', ZOO)
def test_every_walk(say, kind):
  say_outcomes(say, without_addresses(ZOO[kind]))


@pytest.mark.parametrize('kind', ZOO)
def test_graphdefs_compared_and_hashed(say, kind):
  static = ZOO[kind]()
  one, two = nnx.graphdef(Holder(static)), nnx.graphdef(Holder(static))
  third = nnx.graphdef(Holder(ZOO[kind]()))
  for a, b in ((one, one), (one, two), (one, third)):
    say(error_of(lambda a=a, b=b: bool(a == b)))
  say(error_of(lambda: hash(one) == hash(one)), error_of(lambda: hash(one) == hash(two)))


@own_caches()
@pytest.mark.parametrize('kind', ZOO)
def test_traces_counted(say, kind):
  traces = []

  @nnx.jit
  def step(model):
    traces.append(1)
    model.weight[...] += 1
    return model.weight[...]

  model = Holder(ZOO[kind]())
  for _ in range(4):
    say(error_of(lambda: step(model).tolist()), len(traces), model.weight[...].tolist())
  other = Holder(model.static)
  say(error_of(lambda: step(other).tolist()), len(traces))


@own_caches()
def test_equality_that_changes_the_model(say):
  log: list = []

  class Meddles:
    def __init__(self, model=None):
      self.model = model

    def __eq__(self, other):
      log.append('asked')
      if self.model is not None and len(log) < 50:
        self.model.added = len(log)
        self.model.weight = nnx.Param(jnp.zeros(2))
      return True

    __hash__ = object.__hash__

    def __repr__(self):
      return 'Meddles()'

  @nnx.jit
  def step(model):
    return model.weight.get_raw_value().sum()

  model = Holder(Meddles())
  model.static.model = model
  for _ in range(4):
    say(error_of(lambda: float(step(model))), len(log), sorted(vars(model)))
  one, two = nnx.graphdef(model), nnx.graphdef(model)
  say(error_of(lambda: one == two), sorted(vars(model)))
  del model.static.model


def test_hash_that_changes_the_model(say):

  class Meddles:
    def __init__(self):
      self.model, self.count = None, 0

    def __hash__(self):
      self.count += 1
      if self.model is not None:
        setattr(self.model, f'added{self.count}', self.count)
      return 1

    def __repr__(self):
      return f'Meddles({self.count})'

  model = Holder(Meddles())
  model.static.model = model
  graphdef = nnx.graphdef(model)
  say(isinstance(hash(graphdef), int), sorted(vars(model)), *shown(graphdef))
  say(isinstance(hash(nnx.graphdef(model)), int), sorted(vars(model)))
  del model.static.model


def test_repr_that_changes_the_graphdef(say):

  class Meddles:
    graphdef = None

    def __repr__(self):
      self.graphdef.nodes.clear()
      self.graphdef.attributes.clear()
      return 'Meddles()'

  model = Holder(Meddles())
  Meddles.graphdef = nnx.graphdef(model)
  say(error_of(repr, Meddles.graphdef))
  say(error_of(lambda: nnx.merge(Meddles.graphdef, nnx.state(model))))


def test_equality_that_reenters_the_walk(say):
  depth: list = []

  class Reenters:
    model = None

    def __eq__(self, other):
      if len(depth) < 5:
        depth.append(1)
        return nnx.graphdef(self.model) == nnx.graphdef(self.model)
      return True

    __hash__ = object.__hash__

  model = Holder(Reenters())
  Reenters.model = model
  say(nnx.graphdef(model) == nnx.graphdef(model), len(depth))
  Reenters.model = None


def test_statics_deep_inside_containers(say):
  for kind in ('equality raises', 'hash raises', 'equal to nothing', 'text with hash'):
    model = {'list': [Holder(ZOO[kind]())], 'tuple': (ZOO[kind](), None)}
    graphdef, state = nnx.split(model)
    say(kind, error_of(lambda g=graphdef: bool(g == g)), error_of(lambda g=graphdef: hash(g) != 0))
    again = nnx.merge(graphdef, state)
    say(again['list'][0].static is model['list'][0].static, again['tuple'][0] is model['tuple'][0])


@own_caches()
def test_metadata_with_odd_values(say):

  class Tagged(nnx.Module):
    def __init__(self, tag):
      self.a = nnx.Param(jnp.ones(2), tag=tag)
      self.b = nnx.Param(jnp.ones(2), tag=tag)

  for kind, make in ZOO.items():
    model = Tagged(make())
    graphdef, state = nnx.split(model)
    say(kind, error_of(lambda g=graphdef: bool(g == g)),
        error_of(lambda g=graphdef, m=model: bool(g == nnx.graphdef(m))))
    again = nnx.merge(graphdef, state)
    say(again.a.tag is model.a.tag, nnx.clone(model).a.tag is model.a.tag)
    say(error_of(nnx.update, model, nnx.state(again)), model.a.tag is again.a.tag)
    traces: list = []
    step = nnx.jit(lambda m, t=traces: t.append(1))
    say([error_of(step, model) for _ in range(3)], len(traces))


@own_caches()
def test_who_is_asked_in_a_jitted_call(say):
  log: list = []

  class Counts:
    def __init__(self, name):
      self.name = name

    def __eq__(self, other):
      log.append(f'{self.name} == {getattr(other, "name", "?")}')
      return isinstance(other, Counts)

    def __hash__(self):
      log.append(f'hash {self.name}')
      return 5

    def __repr__(self):
      return f'Counts({self.name})'

  step = nnx.jit(lambda m: m.weight[...] * 2)
  first, second = Holder(Counts('first')), Holder(Counts('second'))
  for model in (first, first, first, second, second, first):
    log.clear()
    step(model)
    say(bool(log), model.static)
