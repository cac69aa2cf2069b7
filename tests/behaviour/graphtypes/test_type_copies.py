"""Copies, subclasses and subscripts of the graph types."""
import copy
import typing as tp

import pytest
from flax import nnx
from flax.nnx import graphlib
from graphtypes.samples import DATACLASSES, NAMES, cls, fields_of, sample
from telling import error_of, plain


@pytest.mark.parametrize('name', DATACLASSES)
def test_copy(say, name):
  before = sample(name)
  hash(before)
  after = copy.copy(before)
  assert after is not before and after == before and type(after) is cls(name)
  assert all(getattr(after, f) is getattr(before, f) for f in fields_of(name))
  assert hash(after) == hash(before)


@pytest.mark.parametrize('name', DATACLASSES)
def test_deepcopy(say, name):
  before = sample(name)
  hash(before)
  after = copy.deepcopy(before)
  assert after is not before and after == before and hash(after) == hash(before)
  for field in fields_of(name):
    say(field, getattr(after, field) is getattr(before, field))


def test_deepcopy_keeps_sharing_and_cycles(say):
  node = sample('NodeDef')
  twice = copy.deepcopy(graphlib.GraphDef([node, node], [], 0))
  assert twice.nodes[0] is twice.nodes[1] is not node
  ring = graphlib.GraphDef([], [], 0)
  ring.nodes.append(ring)
  assert (other := copy.deepcopy(ring)).nodes[0] is other is not ring


def test_deepcopy_after_the_lists_changed(say):
  made = sample('GraphDef')
  hash(made)
  other = copy.deepcopy(made)
  other.nodes.append(graphlib.NodeRef(0))
  third = copy.copy(other)
  assert third == other and hash(third) == hash((tuple(other.nodes), tuple(other.attributes)))


def test_copies_of_maps(say):
  for name in ('RefMap', 'IndexMap'):
    before = sample(name)
    before.note = ['kept']
    for make in (copy.copy, copy.deepcopy):
      after = make(before)
      say(name, make.__name__, type(after).__name__, list(after.items()), after.note,
          after.note is before.note, after is before)
      after[list(after)[0]] = 100
      say(list(before.items()), list(after.items()))


def test_a_copy_of_a_refmap_shares_or_not(say):
  key, other = object(), object()
  before = graphlib.RefMap([(key, 1)])
  after = copy.copy(before)
  after[other] = 2
  say(len(before), len(after), other in before, key in after)
  deep = copy.deepcopy(before)
  say(len(deep), key in deep, list(deep.items())[0][1], error_of(list, deep.values()).split(':')[0])
  deep[key] = 5
  say(len(deep), deep[key], [k is key for k in deep])


def test_reduce(say):
  for name in NAMES:
    for protocol in (0, 1, 2, 4):
      outcome = error_of(lambda n=name, p=protocol: sample(n).__reduce_ex__(p))
      say(name, protocol, outcome.split(':')[0] if 'rror:' in outcome else 'reduces')


@pytest.mark.parametrize('name', DATACLASSES)
def test_plain_subclass(say, name):

  class Own(cls(name)):
    """A subclass with a method."""

    def twice(self):
      return 2

  own = Own(**fields_of(name))
  assert own.twice() == 2 and isinstance(own, cls(name))
  assert hash(own) == hash(sample(name))
  say(own == sample(name), plain(repr(own)))
  say(error_of(copy.copy, own) == error_of(copy.copy, own), copy.copy(own) == own)
  say(type(copy.deepcopy(own)).__name__)


@pytest.mark.parametrize('name', DATACLASSES)
def test_subclass_with_slots_or_init(say, name):

  class Slotted(cls(name)):
    __slots__ = ('more',)

  class Made(cls(name)):
    def __init__(self):
      super().__init__(**fields_of(name))
      object.__setattr__(self, 'more', 1)

  slotted, made = Slotted(**fields_of(name)), Made()
  say(error_of(setattr, slotted, 'more', 2), error_of(lambda: slotted.more))
  say(made.more, error_of(lambda: made == sample(name)))


@pytest.mark.parametrize('name', DATACLASSES)
def test_subclass_that_is_a_dataclass(say, name):
  import dataclasses

  @dataclasses.dataclass(frozen=True)
  class More(cls(name)):
    extra: int = 3

  more = More(**fields_of(name))
  say([f.name for f in dataclasses.fields(more)], more == More(**fields_of(name)))
  say(plain(repr(more)), error_of(setattr, more, 'extra', 1))
  say(dataclasses.replace(more, extra=4).extra)

  def thawed():
    @dataclasses.dataclass
    class Thawed(cls(name)):
      extra: int = 3

  say(error_of(thawed))


def test_subclass_of_two(say):
  def both():
    class Both(graphlib.NodeDef, graphlib.GraphDef):
      pass

  say(error_of(both).split(':')[0])


def test_maps_subclassed(say):

  class Own(graphlib.RefMap):
    def __getitem__(self, key):
      return super().__getitem__(key) + 100

  class Indexes(graphlib.IndexMap):
    pass

  key = object()
  own = Own([(key, 1)])
  say(own[key], own.get(key), list(own.values()), own.pop(key), len(own))
  say(type(Indexes.from_refmap(own)).__name__, type(Own.from_indexmap(Indexes())).__name__)


def test_subscripts(say):
  for name in NAMES:
    say(name, plain(error_of(lambda n=name: cls(n)[int])))
  alias = graphlib.GraphDef[nnx.Linear]
  say(tp.get_origin(alias) is graphlib.GraphDef, tp.get_args(alias))
  say(alias == graphlib.GraphDef[nnx.Linear], hash(alias) == hash(graphlib.GraphDef[nnx.Linear]))
  say(plain(error_of(lambda: alias(**fields_of('GraphDef')))))
  say(error_of(lambda: graphlib.GraphDef[int, str]))
  say(error_of(isinstance, sample('GraphDef'), alias))
  say(tp.Optional[alias], graphlib.NodeDef[nnx.Linear] | None)


def test_class_subscript_as_a_base(say):

  class Own(graphlib.GraphDef[nnx.Linear]):
    pass

  say(Own(**fields_of('GraphDef')) == sample('GraphDef'), Own.__orig_bases__)


def test_setting_the_class(say):

  class Own(graphlib.NodeRef):
    pass

  own = Own(1)
  say(error_of(object.__setattr__, own, '__class__', graphlib.NodeRef))
  say(error_of(object.__setattr__, sample('NodeRef'), '__class__', Own))
  say(error_of(object.__setattr__, sample('NodeRef'), '__class__', graphlib.ArrayRefDef))
