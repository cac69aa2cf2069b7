"""Hashes of the graph types."""
import pytest
from flax import nnx
from flax.nnx import graphlib
from graphtypes.samples import DATACLASSES, cls, fields_of, metadata, sample
from telling import error_of


@pytest.mark.parametrize('name', DATACLASSES)
def test_equal_objects_hash_alike(say, name):
  one, two = sample(name), sample(name)
  assert hash(one) == hash(two) == hash(one)
  if name != 'GraphDef':
    assert hash(one) == hash(tuple(fields_of(name).values()))
  else:
    assert hash(one) == hash((tuple(one.nodes), tuple(one.attributes)))
  assert len({one, two}) == 1 and {one: 'found'}[two] == 'found'


def test_numbers_that_are_equal(say):
  for a, b in ((1, True), (1, 1.0), (0.0, -0.0)):
    one = graphlib.GraphDef([], [('x', graphlib.Static(a))], 0)
    two = graphlib.GraphDef([], [('x', graphlib.Static(b))], 0)
    assert one == two and hash(one) == hash(two)


@pytest.mark.parametrize('name', DATACLASSES)
def test_unhashable_fields(say, name):
  for field in fields_of(name):
    made = cls(name)(**{**fields_of(name), field: [[]]})
    say(field, error_of(lambda made=made: isinstance(hash(made), int)))


def test_unhashable_statics(say):
  for value in ([], {}, set(), bytearray(b'x'), ([],), {'a': 1}):
    made = graphlib.GraphDef([], [('x', graphlib.Static(value))], 0)
    for _ in range(3):
      say(error_of(hash, made))
    assert made == graphlib.GraphDef([], [('x', graphlib.Static(value))], 0)


def test_static_that_becomes_unhashable(say):

  class Fickle:
    calls = 0

    def __hash__(self):
      Fickle.calls += 1
      if Fickle.calls > 1:
        raise LookupError('hashed once too often')
      return 7

  made = graphlib.GraphDef([], [('x', graphlib.Static(Fickle()))], 0)
  say(error_of(lambda: isinstance(hash(made), int)))
  say(error_of(lambda: isinstance(hash(made), int)), Fickle.calls)


def test_a_hash_that_changes_is_followed(say):

  class Moving:
    now = 1

    def __hash__(self):
      return self.now

  for wrap in (lambda x: x, lambda x: (1, (x,)), lambda x: metadata(a=x),
               lambda x: frozenset([x])):
    value = Moving()
    made = graphlib.GraphDef([], [('x', graphlib.Static(wrap(value)))], 0)
    before = hash(made)
    value.now = 2
    fresh = graphlib.GraphDef([], [('x', graphlib.Static(wrap(value)))], 0)
    say(hash(made) == before, hash(made) == hash(fresh))


def test_subclasses_of_builtins_with_hashes_of_their_own(say):

  class Int(int):
    now = 1

    def __hash__(self):
      return Int.now

  class Text(str):
    def __hash__(self):
      return Int.now

  class Pair(tuple):
    def __hash__(self):
      return Int.now

  for value in (Int(5), Text('five'), Pair((5, 5))):
    Int.now = 1
    made = graphlib.GraphDef([], [('x', graphlib.Static(value))], 0)
    before = hash(made)
    Int.now = 2
    say(type(value).__name__, hash(made) == before)


def test_a_class_whose_hash_is_replaced(say):

  class Later:
    pass

  value = Later()
  made = graphlib.GraphDef([], [('x', graphlib.Static(value))], 0)
  before = hash(made)
  Later.__hash__ = lambda self: 99
  fresh = graphlib.GraphDef([], [('x', graphlib.Static(value))], 0)
  say(hash(made) == before, hash(made) == hash(fresh))


def test_lists_changed_in_place(say):
  for field in ('nodes', 'attributes'):
    for change in (list.clear, list.reverse, lambda items: items.append(items[0]), lambda items: items.insert(0, items.pop())):
      made, other = sample('GraphDef'), sample('GraphDef')
      for one in (made, other):
        items = getattr(one, field)
        items += [graphlib.NodeRef(7)] if field == 'nodes' else [('z', graphlib.Static(7))]
      hash(made)
      change(getattr(made, field))
      change(getattr(other, field))
      assert made == other and hash(made) == hash(other) == hash((tuple(made.nodes), tuple(made.attributes)))
      assert made != sample('GraphDef')


def test_lists_changed_while_they_are_hashed(say):
  lists: list = []

  class Clears:
    def __hash__(self):
      for found in lists:
        found.clear()
      return 3

  for field in ('nodes', 'attributes'):
    items = [Clears() for _ in range(5)]
    lists[:] = [items]
    made = graphlib.GraphDef(**{'nodes': [], 'attributes': [], 'num_leaves': 0, field: items})
    say(field, isinstance(hash(made), int), len(items))
    say(field, isinstance(hash(made), int), len(items))


def test_subclasses(say):

  class Own(graphlib.GraphDef):
    pass

  class Silent(graphlib.GraphDef):
    def __hash__(self):
      return 5

  class Equal(graphlib.GraphDef):
    def __eq__(self, other):
      return True

  fields = fields_of('GraphDef')
  assert hash(Own(**fields)) == hash(sample('GraphDef'))
  say(hash(Silent(**fields)), error_of(hash, Equal(**fields)))


def test_hash_of_a_models_graphdef(say):
  one, two = [nnx.graphdef(nnx.Linear(2, 3, rngs=nnx.Rngs(0))) for _ in range(2)]
  assert one == two and hash(one) == hash(two)
  assert hash(one) == hash((tuple(one.nodes), tuple(one.attributes)))


def test_num_leaves_is_no_part_of_it(say):
  fields = fields_of('GraphDef')
  other = graphlib.GraphDef(**{**fields, 'num_leaves': 5})
  assert hash(other) == hash(sample('GraphDef')) and other != sample('GraphDef')
