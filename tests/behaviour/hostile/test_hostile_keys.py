"""Keys of dicts, states, paths and instance dicts that hash, compare or sort in their own way."""
import jax.numpy as jnp
import pytest
from flax import nnx
from flax.nnx import graphlib
from hostile.outcomes import WITHOUT_JIT, outcome, say_outcomes, text
from telling import error_of


class SortsBackwards(str):
  def __lt__(self, other):
    return str.__gt__(self, other)

  def __gt__(self, other):
    return str.__lt__(self, other)

  __hash__ = str.__hash__


class SortRaises(str):
  def __lt__(self, other):
    raise ArithmeticError('cannot be sorted')

  __hash__ = str.__hash__


class SortAnswersNonsense(str):
  def __lt__(self, other):
    return 'yes'

  __hash__ = str.__hash__


class EqualToOthers(str):
  def __eq__(self, other):
    return True

  def __hash__(self):
    return hash('a')


class NeverEqualKey(str):
  def __eq__(self, other):
    return False

  __hash__ = str.__hash__


class HashedElsewhere(str):
  """Equal to the same text, but not found where it lies."""

  def __hash__(self):
    return 12345


class IntKey(int):
  def __lt__(self, other):
    return int(self) > int(other)

  __hash__ = int.__hash__


class TextWithSlots(str):
  """Just a subclass: no behaviour of its own."""


PLAIN = {'text', 'digits'}
KEYS = {
  'text': 'b', 'digits': '10', 'sorts backwards': SortsBackwards('b'),
  'sort raises': SortRaises('b'), 'sort answers nonsense': SortAnswersNonsense('b'),
  'equal to others': EqualToOthers('b'), 'never equal': NeverEqualKey('b'),
  'hashed elsewhere': HashedElsewhere('b'), 'subclass of text': TextWithSlots('b'),
  'int': 5, 'negative int': -5, 'big int': 2**80, 'bool': True, 'int subclass': IntKey(5),
  'float': 1.5, 'nan': float('nan'), 'none': None, 'tuple': ('b', 1), 'bytes': b'b',
  'empty': '', 'dotted': 'b.c', 'surrogate': '\ud800', 'type': int, 'private': '_b',
  'dunder': '__class__', 'frozenset': frozenset([1]),
}


def leaves():
  return nnx.Param(jnp.arange(2.0))


@pytest.mark.parametrize('kind', KEYS)
def test_in_a_dict(say, kind):
  say_outcomes(say, lambda: {'a': leaves(), KEYS[kind]: leaves(), 'c': leaves()})
  say_outcomes(say, lambda: {KEYS[kind]: {'x': leaves()}}, ('split', 'round trip', 'clone', 'pop'))


@pytest.mark.parametrize('kind', KEYS)
def test_in_a_state(say, kind):
  make = lambda: nnx.State({'a': leaves(), KEYS[kind]: {'x': leaves()}, 'c': leaves()})   # noqa: E731
  say_outcomes(say, make, WITHOUT_JIT)
  for call in (nnx.to_flat_state, nnx.to_pure_dict, lambda s: nnx.filter_state(s, nnx.Param),
               lambda s: nnx.merge_state(s, s), lambda s: s.filter(nnx.Param)):
    say(outcome(call, make()))


@pytest.mark.parametrize('kind', KEYS)
def test_in_an_instance_dict(say, kind):

  def make():
    module = nnx.Module()
    module.a = leaves()
    module.__dict__[KEYS[kind]] = leaves()
    module.c = leaves()
    return module

  say_outcomes(say, make)


@pytest.mark.parametrize('kind', KEYS)
def test_in_a_dict_module(say, kind):

  def make():
    module = nnx.Dict()
    module['a'] = leaves()
    module[KEYS[kind]] = leaves()
    return module

  outcome_of_making = error_of(make)
  say(outcome_of_making.split(',')[0][:200])
  if outcome_of_making.startswith('no error'):
    say_outcomes(say, make, WITHOUT_JIT)


@pytest.mark.parametrize('kind', KEYS)
def test_as_a_path(say, kind):
  key = KEYS[kind]
  paths = ([(('a',), 1), ((key,), 2)], {('a', key): 1, ('a', 'c'): 2}, [((key, key), 1)],
           [((key,), 1), ((key, 'x'), 2)], [(('a', 'x'), 1), ((key, 'x'), {'y': 2})])
  for given in paths:
    say(outcome(nnx.from_flat_state, given))
    say(outcome(lambda g: nnx.to_flat_state(nnx.from_flat_state(g)), given))


@pytest.mark.parametrize('kind', KEYS)
def test_as_an_updates_key(say, kind):
  for value in (leaves(), jnp.ones(2), {'x': leaves()}, 5):
    module = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    say(error_of(nnx.update, module, {KEYS[kind]: value}), sorted(map(str, vars(module))))
    say(error_of(nnx.update, module, {'kernel': {KEYS[kind]: value}}))
    container = {'a': leaves()}
    say(error_of(nnx.update, container, {KEYS[kind]: value}), text(list(container)))


@pytest.mark.parametrize('kind', KEYS)
def test_in_a_graphdef_made_by_hand(say, kind):
  nodes = [graphlib.NodeDef(nnx.Dict, 0, None, 1, nnx.Dict)]
  made = graphlib.GraphDef(nodes, [(KEYS[kind], graphlib.LEAF_ATTR)], 1)
  say(outcome(lambda g: graphlib.unflatten(g, [jnp.ones(1)]), made))
  nodes = [graphlib.NodeDef(dict, None, None, 1, None)]
  made = graphlib.GraphDef(nodes, [(KEYS[kind], graphlib.LEAF_ATTR)], 1)
  say(outcome(lambda g: graphlib.unflatten(g, [jnp.ones(1)]), made))


def test_two_keys_of_equal_text(say):

  class Other(str):
    def __eq__(self, other):
      return self is other

    __hash__ = str.__hash__

  first, second = Other('same'), Other('same')
  say_outcomes(say, lambda: {first: leaves(), second: leaves(), 'same': leaves()})


def test_keys_that_change_the_dict_while_they_are_sorted(say):

  class Grows(str):
    def __lt__(self, other):
      if len(mapping) < 20:
        mapping[f'new{len(mapping)}'] = 1
      return str.__lt__(self, other)

    __hash__ = str.__hash__

  class Clears(Grows):
    def __lt__(self, other):
      mapping.clear()
      return str.__lt__(self, other)

    __hash__ = str.__hash__

  for kind in (Grows, Clears):
    for name in ('split', 'state', 'clone', 'iter_graph', 'find_duplicates', 'pop', 'update'):
      mapping = {kind(k): leaves() for k in 'dbca'}
      say(kind.__name__)
      say_outcomes(say, lambda: mapping, [name])   # noqa: B023  (called within this round)
      say(text(list(mapping)))


def test_a_key_is_shown_as_it_was_put_in(say):
  key = TextWithSlots('kernel')
  module = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
  value = module.__dict__.pop('kernel')
  module.__dict__[key] = value
  again = nnx.merge(*nnx.split(module))
  say([type(k).__name__ for k in vars(again)], [type(k).__name__ for k in vars(nnx.clone(module))])
  say([type(p[0]).__name__ for p, _ in nnx.to_flat_state(nnx.state(module))])


def test_how_often_a_key_is_asked(say):
  log: list = []

  class Asked(str):
    def __lt__(self, other):
      log.append(f'{str(self)} < {str(other)}')
      return str.__lt__(self, other)

    def __eq__(self, other):
      log.append(f'{str(self)} == {str(other)}')
      return str.__eq__(self, other)

    def __hash__(self):
      return str.__hash__(self)

  def module():
    made = nnx.Module()
    for key in 'cab':
      made.__dict__[Asked(key)] = leaves()
    return made

  say_outcomes(say, lambda: {Asked(k): leaves() for k in 'cab'}, log=log)
  say_outcomes(say, module, ('split', 'state', 'clone', 'iter_graph'), log=log)
