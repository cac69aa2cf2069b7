"""Filters that raise, lie, change the model, or count how often they are asked."""
import jax.numpy as jnp
import pytest
from flax import nnx
from flax.nnx import graphlib, statelib
from hostile.outcomes import outcome, text
from telling import error_of


class Model(nnx.Module):
  def __init__(self):
    self.b = nnx.Param(jnp.ones(2))
    self.a = nnx.BatchStat(jnp.ones(2))
    self.child = nnx.List([nnx.Param(jnp.zeros(1)), nnx.Dict(x=nnx.Param(jnp.zeros(1)))])
    self.again = self.b
    self.array = nnx.data(jnp.ones(3))
    self.static = 'text'


USES = {
  'split': lambda m, *f: nnx.split(m, *f),
  'state': lambda m, *f: nnx.state(m, *f),
  'pop': lambda m, *f: nnx.pop(m, *f),
  'filter_state': lambda m, *f: nnx.filter_state(nnx.state(m), *f),
  'split_state': lambda m, *f: nnx.split_state(nnx.state(m), *f),
  'State.filter': lambda m, *f: nnx.state(m).filter(*f),
  'State.split': lambda m, *f: nnx.state(m).split(*f),
  'FlatState.split': lambda m, *f: nnx.to_flat_state(nnx.state(m)).split(*f),
  'FlatState.filter': lambda m, *f: nnx.to_flat_state(nnx.state(m)).filter(*f),
  'find_duplicates': lambda m, *f: nnx.find_duplicates(m, only=f[0]),
}


@pytest.mark.parametrize('use', USES)
def test_calls_in_number_and_order(say, use):
  log: list = []

  def noting(name, answer):
    def predicate(path, value):
      log.append(f'{name} {path} {type(value).__name__}')
      return answer(path, value)
    return predicate

  answers = {
    'none': lambda p, v: False, 'all': lambda p, v: True, 'params': lambda p, v: isinstance(v, nnx.Param),
    'truthy': lambda p, v: 'yes', 'falsy': lambda p, v: [], 'by path': lambda p, v: 'child' in p,
  }
  for first in answers:
    for second in (None, 'all'):
      filters = [noting(first, answers[first])]
      filters += [noting('second', answers[second])] if second else []
      log.clear()
      say(first, second, [line[:80] for line in outcome(lambda m, f=filters: USES[use](m, *f), Model())])
      say(log)


class AnswersWithArray:
  def __call__(self, path, value):
    return jnp.array([True, False])


class AnswerHasNoTruth:
  def __call__(self, path, value):
    return self

  def __bool__(self):
    raise OverflowError('no truth in this')


class Raises:
  def __call__(self, path, value):
    raise ArithmeticError(f'at {path}')


class RaisesLater:
  def __init__(self):
    self.count = 0

  def __call__(self, path, value):
    self.count += 1
    if self.count > 2:
      raise KeyboardInterrupt(f'at {path}')
    return True


class TakesOneArgument:
  def __call__(self, path):
    return True


class EqualToEverything:
  """Compares equal to `...`, to True and to every other filter."""

  def __call__(self, path, value):
    return False

  def __eq__(self, other):
    return True

  __hash__ = None


class EqualityRaises:
  def __call__(self, path, value):
    return False

  def __eq__(self, other):
    raise ArithmeticError('filters are not compared')

  __hash__ = None


class FilterMeta(type):
  def __instancecheck__(cls, instance):
    return True


class MatchesEverything(nnx.Param, metaclass=type('M', (FilterMeta, type(nnx.Param)), {})):
  """A type that says every object is its instance."""


class CallableText(str):
  def __call__(self, path, value):
    raise ArithmeticError('called as a function')


FILTERS = {
  'answers with array': AnswersWithArray, 'answer has no truth': AnswerHasNoTruth, 'raises': Raises,
  'raises later': RaisesLater, 'takes one argument': TakesOneArgument,
  'equal to everything': EqualToEverything, 'equality raises': EqualityRaises,
  'matches everything': lambda: MatchesEverything, 'callable text': lambda: CallableText('params'),
  'number': lambda: 5, 'one': lambda: 1, 'zero': lambda: 0, 'none': lambda: None, 'false': lambda: False,
  'bytes': lambda: b'x', 'empty tuple': tuple, 'nested': lambda: ((nnx.Param,), [nnx.BatchStat]),
  'set': lambda: {nnx.Param}, 'object': object, 'class of no variable': lambda: int,
  'union': lambda: nnx.Param | nnx.BatchStat, 'ellipsis': lambda: ..., 'true': lambda: True,
  'filter objects': lambda: nnx.Not(nnx.All(nnx.Param, nnx.PathContains('child'))),
  'predicate of nothing': lambda: nnx.Any(), 'text': lambda: 'params', 'generator': lambda: (x for x in ()),
  'variable': lambda: nnx.Param(jnp.ones(1)), 'lambda of arguments': lambda: (lambda *a: len(a) == 2),
}


@pytest.mark.parametrize('kind', FILTERS)
def test_odd_filters(say, kind):
  for use in USES:
    model = Model()
    say(use, [line[:200] for line in outcome(lambda m, u=use: USES[u](m, FILTERS[kind]()), model)])
    say(sorted(vars(model)))
    model = Model()
    say(use, [line[:200] for line in outcome(lambda m, u=use: USES[u](m, FILTERS[kind](), ...), model)])
    say(use, [line[:200] for line in outcome(lambda m, u=use: USES[u](m, ..., FILTERS[kind]()), model)])


CHANGES = {
  'adds an attribute': lambda m, p, v: setattr(m, 'zz', nnx.Param(jnp.ones(1))),
  'deletes an attribute': lambda m, p, v: vars(m).pop('b', None),
  'clears the module': lambda m, p, v: vars(m).clear(),
  'clears the list': lambda m, p, v: vars(m.child).clear() if 'child' in vars(m) else None,
  'changes the value': lambda m, p, v: v.set_raw_value(jnp.zeros(5)) if isinstance(v, nnx.Variable) else None,
  'changes the class': lambda m, p, v: object.__setattr__(m, '__class__', nnx.Linear),
  'replaces the value': lambda m, p, v: vars(m).update(b=nnx.BatchStat(jnp.zeros(1))),
  'pops within the pop': lambda m, p, v: nnx.pop(m, nnx.BatchStat),
}


@pytest.mark.parametrize('kind', CHANGES)
@pytest.mark.parametrize('use', USES)
def test_filters_that_change_the_model(say, use, kind):
  for answer in (True, False):
    model = Model()

    def meddles(path, value, model=model, answer=answer):
      CHANGES[kind](model, path, value)
      return answer

    say([line[:200] for line in outcome(lambda m, f=meddles: USES[use](m, f, ...), model)])
    say(type(model).__name__, sorted(vars(model)))


def test_filters_that_change_the_state_they_filter(say):
  for change in ('clear', 'add', 'delete'):
    state = nnx.state(Model())

    def meddles(path, value, state=state, change=change):
      raw = state.raw_mapping
      {'clear': raw.clear, 'add': lambda: raw.update({f'new{len(raw)}': 1}) if len(raw) < 30 else None,
       'delete': lambda: raw.pop('b', None)}[change]()
      return True

    say(change, outcome(lambda s, f=meddles: nnx.filter_state(s, f), state), sorted(map(str, state)))
    state = nnx.state(Model())
    flat = nnx.to_flat_state(state)
    say(change, outcome(lambda s, f=meddles: statelib.split_state(s, f, ...), state),
        [text(p) for p, _ in flat])


def test_filters_that_reenter(say):
  model = Model()
  depth: list = []

  def reenters(path, value):
    if len(depth) < 3:
      depth.append(path)
      nnx.state(model, reenters)
      nnx.pop(Model(), reenters)
    return True

  say(outcome(lambda m: nnx.state(m, reenters), model), len(depth))


def test_filter_types_with_metaclasses(say):

  class Sub(nnx.Param):
    pass

  class Meta(type(nnx.Variable)):
    def __subclasscheck__(cls, other):
      raise ArithmeticError('subclasses are not checked')

    def __instancecheck__(cls, instance):
      log.append(type(instance).__name__)
      return type(instance) is nnx.BatchStat

  class Odd(nnx.Param, metaclass=Meta):
    pass

  log: list = []
  for wanted in (Sub, nnx.Param, nnx.Variable, object, Odd):
    log.clear()
    say(wanted.__name__, outcome(lambda m, w=wanted: nnx.state(m, w), Model()), log)
  class HasOdd(nnx.Module):
    def __init__(self):
      self.x = Odd(jnp.ones(1))
      self.y = Sub(jnp.ones(1))

  for wanted in (Sub, nnx.Param, nnx.Variable, Odd):
    log.clear()
    say(wanted.__name__, outcome(lambda m, w=wanted: nnx.state(m, w), HasOdd()), log)


def test_filters_by_the_claimed_class(say):
  """`OfType` also asks a value for its `type`, which may say anything."""

  class Typed:
    type = nnx.Param

    def __repr__(self):
      return 'Typed()'

  class Lying(nnx.BatchStat):
    @property
    def type(self):
      return nnx.Param

  state = nnx.State({'a': Typed(), 'b': Lying(jnp.ones(1)), 'c': nnx.Param(jnp.ones(1))})
  for wanted in (nnx.Param, nnx.BatchStat, nnx.Variable, Typed):
    say(wanted.__name__, outcome(lambda s, w=wanted: nnx.filter_state(s, w), state))
    say(wanted.__name__, outcome(lambda s, w=wanted: nnx.state(s, w), {'x': Lying(jnp.ones(1))}))


def test_pop_of_what_cannot_be_popped(say):
  Pair = __import__('collections').namedtuple('Pair', 'a b')
  for make in (lambda: [nnx.Param(jnp.ones(1))], lambda: (nnx.Param(jnp.ones(1)),),
               lambda: Pair(nnx.Param(jnp.ones(1)), 1), lambda: {'a': (1, nnx.Param(jnp.ones(1)))},
               lambda: nnx.State({'a': nnx.Param(jnp.ones(1))}), lambda: nnx.Param(jnp.ones(1)),
               lambda: jnp.ones(1), lambda: 5, lambda: None, lambda: 'text'):
    node = make()
    say(outcome(lambda n: nnx.pop(n, nnx.Param), node), text(node))
    say(error_of(nnx.pop, node), error_of(lambda n=node: graphlib.pop(n, ...)))
