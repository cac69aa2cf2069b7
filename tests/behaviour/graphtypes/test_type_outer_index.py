"""with_no_outer_index, with_same_outer_index, with_matching_outer_index."""
import pytest
from flax import nnx
from flax.nnx import graphlib
from graphtypes.samples import cls, fields_of, sample
from telling import error_of, plain

WITH_OUTER = ('VariableDef', 'ArrayRefDef', 'NodeDef', 'GraphDef')


def outers(definition) -> list:
  nodes = definition.nodes if isinstance(definition, graphlib.GraphDef) else [definition]
  return [
    (getattr(n, 'outer_index', 'none'),
     plain(getattr(n, 'array_refdef', 'none'))) for n in nodes
  ]


@pytest.mark.parametrize('name', WITH_OUTER)
def test_none_and_same(say, name):
  made = sample(name)
  for method in ('with_no_outer_index', 'with_same_outer_index'):
    other = getattr(made, method)()
    assert type(other) is cls(name) and other is not made
    say(method, outers(other), other == made, hash(other) == hash(made))
  assert made == sample(name)


@pytest.mark.parametrize('name', WITH_OUTER)
def test_matching(say, name):
  made = sample(name)
  say(outers(made.with_matching_outer_index(made.with_no_outer_index())))
  say(outers(made.with_matching_outer_index(made.with_same_outer_index())))


@pytest.mark.parametrize('name', WITH_OUTER)
def test_matching_what_does_not_fit(say, name):
  made = sample(name)
  for other in (None, 5, *(sample(n) for n in WITH_OUTER), sample('NodeRef'),
                graphlib.GraphDef([], [], 0)):
    outcome = error_of(made.with_matching_outer_index, other)
    say(type(other).__name__, outcome)
  say(error_of(made.with_matching_outer_index))
  say(error_of(made.with_no_outer_index, 1))


def test_lists_are_shared_as_upstream_shares_them(say):
  made = sample('GraphDef')
  for other in (made.with_no_outer_index(), made.with_same_outer_index(),
                made.with_matching_outer_index(made)):
    say(other.attributes is made.attributes, other.nodes is made.nodes,
        other.nodes[-1] is made.nodes[-1], other.num_leaves)


def test_variable_with_other_array_references(say):
  for reference in (None, graphlib.NodeRef(3), 5, graphlib.ArrayRefDef(1, 2)):
    made = graphlib.VariableDef(**{**fields_of('VariableDef'), 'array_refdef': reference})
    for other in (made.with_no_outer_index(), made.with_same_outer_index()):
      say(plain(other.array_refdef), plain(other.outer_index))
    say(error_of(made.with_matching_outer_index, made.with_no_outer_index()))
    bare = graphlib.VariableDef(**{**fields_of('VariableDef'), 'array_refdef': None})
    say(error_of(made.with_matching_outer_index, bare))


def test_subclasses(say):
  for name in WITH_OUTER:

    class Own(cls(name)):
      pass

    own = Own(**fields_of(name))
    for method in ('with_no_outer_index', 'with_same_outer_index'):
      say(name, method, type(getattr(own, method)()).__name__)
    say(type(own.with_matching_outer_index(own)).__name__)


def test_nodes_of_other_kinds(say):

  class Odd:
    def with_no_outer_index(self):
      return 'none'

    def with_same_outer_index(self):
      return 'same'

    def with_matching_outer_index(self, other):
      return f'matching {other}'

  made = graphlib.GraphDef([Odd(), graphlib.NodeRef(1), Odd()], [], 0)
  say(made.with_no_outer_index().nodes, made.with_same_outer_index().nodes)
  say(made.with_matching_outer_index(graphlib.GraphDef('abc', [], 0)).nodes)
  say(error_of(graphlib.GraphDef([5], [], 0).with_no_outer_index))
  say(error_of(graphlib.GraphDef(None, [], 0).with_no_outer_index))


def test_of_a_model(say):
  graphdef = nnx.graphdef(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
  same = graphdef.with_same_outer_index()
  say(outers(graphdef), outers(same), same == graphdef, same.with_no_outer_index() == graphdef)
