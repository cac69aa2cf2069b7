"""Pickles cross between upstream and the fork, in both directions and in every protocol.

`samples/` holds what each of the two wrote. Here both twins read all of it: the compiled twin reads
upstream's, and the pure twin, which is upstream's code, reads the fork's.
"""
import pathlib
import pickle

import cloudpickle
import flax
import pytest
from flax import nnx
from flax.nnx import graphlib
from pickles.gen_samples import dump, file_name, folder
from pickles.subjects import ALL, SUBJECTS
from telling import error_of, plain, state_lines, value_of

DEFINITIONS = (graphlib.GraphDef, graphlib.NodeDef, graphlib.VariableDef, graphlib.NodeRef,
               graphlib.ArrayRefDef)
# Of the releases that tests/pins adds there are no samples; there the twins' own round trips have to do.
PINS = pathlib.Path(__file__).parents[2] / 'pins'
sampled = pytest.mark.skipif(
  PINS.joinpath(f'{flax.__version__}.txt').exists(), reason='samples are of the releases that are published'
)


def looks(value) -> list[str]:
  """Lines that are equal for equal subjects."""
  if isinstance(value, graphlib.RefMap):
    return [f'{type(value).__name__} {list(value.items())} {len(value)}']
  if isinstance(value, (graphlib.IndexMap, *DEFINITIONS)):
    return [plain(repr(value))]
  if isinstance(value, nnx.FlatState):
    return [f'{path}: {value_of(leaf.get_raw_value())}' for path, leaf in value]
  if isinstance(value, nnx.State):
    return state_lines(value)
  graphdef, state = nnx.split(value)
  return [type(value).__name__, plain(repr(graphdef)), *state_lines(state)]


def same(value, fresh, holds_code: bool) -> bool:
  """Functions that were pickled as code are equal to nothing but themselves; the rest is."""
  if isinstance(value, DEFINITIONS) and not holds_code:
    return value == fresh and fresh == value and hash(value) == hash(fresh)
  return looks(value) == looks(fresh)


@sampled
@pytest.mark.parametrize('maker', ['upstream', 'fork'])
@pytest.mark.parametrize('name', SUBJECTS)
def test_samples(say, name, maker):
  subject = SUBJECTS[name]
  for protocol in subject.protocols:
    sample = folder(maker) / file_name(name, subject, protocol)
    value, fresh = pickle.loads(sample.read_bytes()), subject.make()
    assert type(value) is type(fresh)
    assert same(value, fresh, subject.holds_code), (protocol, looks(value), looks(fresh))
    say(protocol, *looks(value))


@sampled
@pytest.mark.parametrize('maker', ['upstream', 'fork'])
@pytest.mark.parametrize('name', ['linear', 'batch_norm', 'sequential', 'optimizer'])
def test_unpickled_models_work(say, name, maker):
  subject = SUBJECTS[name]
  sample = folder(maker) / file_name(name, subject, subject.protocols[-1])
  model = pickle.loads(sample.read_bytes())
  say(*looks(nnx.clone(model)))
  graphdef, state = nnx.split(model)
  nnx.update(model, state)
  say(nnx.merge(graphdef, state) is not model, nnx.graphdef(model) == graphdef)
  say(*looks(nnx.jit(lambda m: nnx.state(m))(model)))


@pytest.mark.parametrize('name', SUBJECTS)
def test_round_trips(say, name):
  subject = SUBJECTS[name]
  for protocol in ALL:
    value = subject.make()
    outcome = error_of(lambda v=value, p=protocol: len(dump(v, p)))
    say(protocol, outcome.split(',')[0] if not outcome.startswith('no error') else 'pickles')
    if outcome.startswith('no error'):
      assert protocol in subject.protocols
      again = pickle.loads(dump(value, protocol))
      assert type(again) is type(value) and same(again, value, subject.holds_code)


def test_a_pickle_after_the_hash_was_asked_for(say):
  for name in ('graph_def', 'graphdef_of_linear', 'variable_def', 'node_def'):
    value = SUBJECTS[name].make()
    before = hash(value)
    for protocol in SUBJECTS[name].protocols:
      again = pickle.loads(dump(value, protocol))
      assert again == value and hash(again) == before
    say(name, len(pickle.dumps(value, 2)) == len(pickle.dumps(SUBJECTS[name].make(), 2)))


def test_sharing_and_cycles(say):
  node = SUBJECTS['node_def'].make()
  ring = graphlib.GraphDef([node, node], [], 0)
  ring.nodes.append(ring)
  for protocol in (2, 3, 4, 5):
    again = pickle.loads(pickle.dumps(ring, protocol))
    say(protocol, again.nodes[0] is again.nodes[1], again.nodes[2] is again)


class OwnGraphDef(graphlib.GraphDef):
  """A user's subclass, found by name in this module."""


class OwnRefMap(graphlib.RefMap):
  """A user's subclass with an attribute beside the map."""

  def __init__(self, *args):
    super().__init__(*args)
    self.note = 'kept'


@pytest.mark.parametrize('protocol', ALL[:-1])
def test_subclasses(say, protocol):
  import sys
  sys.modules.setdefault(OwnGraphDef.__module__, sys.modules[__name__])
  one = OwnGraphDef([graphlib.NodeRef(1)], [], 0)
  outcome = error_of(lambda: pickle.loads(pickle.dumps(one, protocol)) == one)
  say(protocol, outcome)
  again = pickle.loads(pickle.dumps(OwnRefMap([('a', 1)]), protocol))
  say(type(again).__name__, list(again.items()), again.note)


class Restored:
  """Unpickles as an instance of `cls` that is given `state`."""

  def __init__(self, cls, state):
    self.cls, self.state = cls, state

  def __reduce__(self):
    return object.__new__, (self.cls,), self.state


def test_states_that_do_not_fit(say):
  states = {
    'node_ref': [{'index': 1}, {'index': None}], 'refmap': [{'_mapping': {}}, {'note': 1}],
    'variable_def': [{'index': 1}, {'index': 1, 'outer_index': 2, 'type': nnx.Param}],
    'node_def': [[1], [1, 2, 3, 4, 5, 6], 5, {'index': 1}], 'graph_def': [[[]], [[], [], 0, 7], 5],
  }
  for name, given in states.items():
    for state in given:
      written = pickle.dumps(Restored(type(SUBJECTS[name].make()), state))
      say(name, state, error_of(lambda w=written: repr(pickle.loads(w))))


def test_whole_classes_by_reference(say):
  for name in ('RefMap', 'IndexMap', 'NodeRef', 'VariableDef', 'ArrayRefDef', 'NodeDef', 'GraphDef'):
    cls = getattr(graphlib, name)
    for write in (pickle.dumps, cloudpickle.dumps):
      written = write(cls)
      assert pickle.loads(written) is cls and len(written) < 200
  alias = pickle.loads(pickle.dumps(graphlib.GraphDef[nnx.Linear]))
  say(alias == graphlib.GraphDef[nnx.Linear])


def test_functions_by_reference(say):
  for name in ('split', 'merge', 'state', 'update', 'clone', 'flatten', 'unflatten', 'iter_graph'):
    function = getattr(graphlib, name)
    for write in (pickle.dumps, cloudpickle.dumps):
      written = write(function)
      assert pickle.loads(written) is function and len(written) < 200, name
