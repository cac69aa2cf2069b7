"""Equality of the graph types: what is asked, of whom, in which order, on this Python."""
import pytest
from flax import nnx
from flax.nnx import graphlib
from graphtypes.samples import DATACLASSES, cls, fields_of, metadata, sample
from telling import error_of, plain


class Asked:
  """Equal to what `answer` says, and notes that it was asked."""

  def __init__(self, name, log, answer=True):
    self.name, self.log, self.answer = name, log, answer

  def __eq__(self, other):
    self.log.append(f'{self.name} == {getattr(other, "name", other)}')
    return self.answer

  def __hash__(self):
    self.log.append(f'hash({self.name})')
    return 1


class NeverEqual:
  __hash__ = object.__hash__

  def __eq__(self, other):
    return False


class RaisingEqual:
  __hash__ = object.__hash__

  def __eq__(self, other):
    raise ArithmeticError('asked to compare')


class UntruthfulAnswer:
  """`==` gives something whose truth cannot be told."""
  __hash__ = object.__hash__

  def __eq__(self, other):
    return self

  def __bool__(self):
    raise OverflowError('asked for truth')


class DeclinesToCompare:
  __hash__ = object.__hash__

  def __eq__(self, other):
    return NotImplemented


ODD = {
  'nan': lambda: float('nan'), 'never equal': NeverEqual, 'raising': RaisingEqual,
  'untruthful': UntruthfulAnswer, 'declines': DeclinesToCompare,
  'empty': list, 'text': lambda: 'text', 'type': lambda: nnx.Param,
}


@pytest.mark.parametrize('name', DATACLASSES)
def test_equal_and_different(say, name):
  one, two = sample(name), sample(name)
  assert one == two and not one != two and one is not two and one == one
  for field in fields_of(name):
    other = cls(name)(**{**fields_of(name), field: 'other'})
    assert one != other and not one == other
  say(one.__eq__(two), one.__eq__(5), one.__ne__(two), one.__ne__(5))


@pytest.mark.parametrize('name', DATACLASSES)
def test_other_types(say, name):
  one = sample(name)
  for other in (None, 5, 'text', one.__class__, object, tuple(fields_of(name).values()),
                *(sample(n) for n in DATACLASSES if n != name)):
    say(one == other, other == one, one.__eq__(other), one != other)


@pytest.mark.parametrize('name', DATACLASSES)
def test_not_ordered(say, name):
  say(error_of(lambda: sample(name) < sample(name)))
  say(error_of(lambda: sample(name) >= sample(name)))


@pytest.mark.parametrize('odd', ODD)
@pytest.mark.parametrize('name', DATACLASSES)
def test_odd_fields(say, name, odd):
  value = ODD[odd]()
  for field in fields_of(name):
    one = cls(name)(**{**fields_of(name), field: value})
    two = cls(name)(**{**fields_of(name), field: value})
    third = cls(name)(**{**fields_of(name), field: ODD[odd]()})
    for a, b in ((one, one), (one, two), (one, third), (one, sample(name)), (sample(name), one)):
      say(field, error_of(lambda a=a, b=b: bool(a == b)), error_of(lambda a=a, b=b: bool(a != b)))


@pytest.mark.parametrize('answer', [True, False, 0, 1, '', 'yes', None, NotImplemented])
@pytest.mark.parametrize('name', DATACLASSES)
def test_who_is_asked(say, name, answer):
  log: list = []
  one = cls(name)(**{f: Asked(f'left {f}', log, answer) for f in fields_of(name)})
  two = cls(name)(**{f: Asked(f'right {f}', log, answer) for f in fields_of(name)})
  for a, b in ((one, two), (two, one), (one, one)):
    log.clear()
    say(error_of(lambda a=a, b=b: a == b), '|', log)


@pytest.mark.parametrize('name', DATACLASSES)
def test_same_objects_in_the_fields(say, name):
  log: list = []
  shared = {f: Asked(f, log) for f in fields_of(name)}
  one, two = cls(name)(**shared), cls(name)(**shared)
  say(one == two, log)


def test_who_is_asked_within_lists(say):
  log: list = []
  names = ('a', 'b', 'c')
  one = graphlib.GraphDef([Asked(f'node {n}', log) for n in names],
                          [(n, Asked(f'attribute {n}', log)) for n in names], 3)
  two = graphlib.GraphDef([Asked(f'NODE {n}', log) for n in names],
                          [(n, Asked(f'ATTRIBUTE {n}', log)) for n in names], 3)
  for a, b in ((one, two), (two, one), (one, one)):
    log.clear()
    say(a == b, log)
  shorter = graphlib.GraphDef(two.nodes[:2], two.attributes, 3)
  log.clear()
  say(one == shorter, log)


def test_numbers_that_are_equal(say):
  for a, b in ((1, True), (1, 1.0), (0, False), (0.0, -0.0), (1, 1 + 0j)):
    for name in DATACLASSES:
      for field in fields_of(name):
        one = cls(name)(**{**fields_of(name), field: a})
        two = cls(name)(**{**fields_of(name), field: b})
        assert one == two, (name, field, a, b)
    one = graphlib.GraphDef([], [('x', graphlib.Static(a))], 0)
    two = graphlib.GraphDef([], [('x', graphlib.Static(b))], 0)
    assert one == two
    say(a, b)


@pytest.mark.parametrize('name', DATACLASSES)
def test_subclasses(say, name):

  class Own(cls(name)):
    pass

  class Louder(cls(name)):
    def __eq__(self, other):
      return 'louder'

    __hash__ = None

  class Claims(cls(name)):
    __class__ = cls(name)

  base, own, louder = sample(name), Own(**fields_of(name)), Louder(**fields_of(name))
  claims = Claims(**fields_of(name))
  pairs = ((base, own), (own, base), (own, Own(**fields_of(name))), (base, louder),
           (louder, base), (base, claims), (claims, base), (claims, claims))
  for a, b in pairs:
    say(error_of(lambda a=a, b=b: a == b), error_of(lambda a=a, b=b: a.__eq__(b)))


def test_statics_within_a_graphdef(say):
  for odd, make in ODD.items():
    value = make()
    one = graphlib.GraphDef([], [('x', graphlib.Static(value))], 0)
    two = graphlib.GraphDef([], [('x', graphlib.Static(value))], 0)
    third = graphlib.GraphDef([], list(one.attributes), 0)
    for a, b in ((one, one), (one, two), (one, third)):
      say(odd, error_of(lambda a=a, b=b: bool(a == b)))


def test_lists_of_other_lengths_and_types(say):
  nodes, attributes, count = fields_of('GraphDef').values()
  forms = {
    'lists': (nodes, attributes), 'tuples': (tuple(nodes), tuple(attributes)),
    'shorter': (nodes[:-1], attributes), 'none': (None, None), 'text': ('ab', 'ab'),
    'generator': ((n for n in nodes), attributes),
  }
  made = {k: graphlib.GraphDef(n, a, count) for k, (n, a) in forms.items()}
  for a in made:
    say(a, [b for b in made if made[a] == made[b]])


def test_list_subclass_that_overrides_equality(say):

  class Loose(list):
    def __eq__(self, other):
      say('asked', len(self))
      return True

    __hash__ = None

  one = graphlib.GraphDef(Loose([1]), [], 0)
  say(one == graphlib.GraphDef([2], [], 0), graphlib.GraphDef([2], [], 0) == one, one == one)


def test_lists_changed_while_they_are_compared(say):
  lists: list = []

  class Shrinks:
    __hash__ = object.__hash__

    def __eq__(self, other):
      for found in lists:
        found.clear()
      return True

  class Grows(Shrinks):
    def __eq__(self, other):
      for found in lists:
        if len(found) < 50:
          found.append(Grows())
      return True

  for kind in (Shrinks, Grows):
    for field in ('nodes', 'attributes'):
      one, two = [[kind() for _ in range(5)] for _ in range(2)]
      lists[:] = [one, two]
      rest = {'nodes': [], 'attributes': [], 'num_leaves': 0}
      a = graphlib.GraphDef(**{**rest, field: one})
      b = graphlib.GraphDef(**{**rest, field: two})
      say(kind.__name__, field, error_of(lambda a=a, b=b: a == b), len(one), len(two))


def test_fields_removed_while_they_are_compared(say):
  for name in DATACLASSES:
    fields = list(fields_of(name))

    class Strips:
      __hash__ = object.__hash__
      victims: list = []

      def __eq__(self, other):
        for victim in self.victims:
          for field in fields:   # noqa: B023  (called within this round)
            if hasattr(victim, field):
              object.__delattr__(victim, field)
        return True

    one = cls(name)(**{f: Strips() for f in fields})
    two = cls(name)(**{f: Strips() for f in fields})
    Strips.victims[:] = [one, two]
    say(name, error_of(lambda a=one, b=two: a == b))


def test_a_definition_that_holds_itself(say):
  one = graphlib.GraphDef([], [], 0)
  two = graphlib.GraphDef([], [], 0)
  one.nodes.append(one)
  two.nodes.append(two)
  say(error_of(lambda: one == two).split(':')[0])
  say(error_of(lambda: hash(one)).split(':')[0])
  say(error_of(lambda: repr(one)).split(':')[0])


def test_a_long_chain_of_definitions(say):
  def chain(length):
    link = graphlib.NodeRef(0)
    for _ in range(length):
      link = graphlib.NodeRef(link)
    return link

  short, long = [chain(50) for _ in range(2)], [chain(100_000) for _ in range(2)]
  assert short[0] == short[1] and hash(short[0]) == hash(short[1])
  for call in (lambda: long[0] == long[1], lambda: hash(long[0])):
    outcome = error_of(call).split(':')[0]
    assert outcome == 'RecursionError', outcome


def test_metadata_decides(say):
  one = graphlib.VariableDef(nnx.Param, 0, None, metadata(a=1, b=(2, 3)), None)
  two = graphlib.VariableDef(nnx.Param, 0, None, metadata(b=(2, 3), a=1), None)
  three = graphlib.VariableDef(nnx.Param, 0, None, {'a': 1, 'b': (2, 3)}, None)
  four = graphlib.VariableDef(nnx.Param, 0, None, metadata(a=1, b=(2, float('nan'))), None)
  everything = (one, two, three, four)
  for a in everything:
    say([error_of(lambda a=a, b=b: a == b) for b in everything], plain(a.metadata))
