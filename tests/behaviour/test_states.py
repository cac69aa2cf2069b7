"""States and nested mappings: what they are made of, merged with, split into; filters."""

import collections
import copy
import pickle
import traceback
import types
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.core import FrozenDict
from flax.nnx import filterlib, statelib, traversals
from telling import error_of, plain, value_of
from zoo import GRAPHS, Counter, Linear


class Sub(nnx.State):
  pass


class Doubled(nnx.State):
  """Shows other items than it holds."""

  def items(self):
    return [(key + key, value) for key, value in super().items()]


class Key(str):
  """A string that hashes and compares by code of its own."""

  def __hash__(self):
    return hash(str(self))

  def __eq__(self, other):
    return str(self) == other


def param(value=1.0, **metadata):
  return nnx.Param(jnp.array(value), **metadata)


def clashing():
  """A leaf where others have a branch."""
  return nnx.State({'a': param(7.0), 'layers': param(8.0)})


STATES = {
  'model': lambda: nnx.state(Linear(2)),
  'other_model': lambda: nnx.state(Linear(2, 5.0)),
  'net': lambda: nnx.state(GRAPHS['net']()),
  'params': lambda: nnx.state(GRAPHS['net'](), nnx.Param),
  'counters': lambda: nnx.state(GRAPHS['net'](), Counter),
  'optimizer': lambda: nnx.state(GRAPHS['optimizer']()),
  'ints': lambda: nnx.State({2: param(2.0), 10: {1: param(1.0)}, 1: param(0.0)}),
  'mixed': lambda: nnx.State({'a': param(), 3: param(3.0)}),
  'nested': lambda: nnx.State({'b': {'y': param(), 'x': {}}, 'a': {'c': nnx.State({'d': param()})}}),
  'clashing': clashing,
  'branch': lambda: nnx.State({'a': {'b': param(1.0)}, 'layers': {}}),
  'raw': lambda: nnx.State({'x': jnp.array(1), 'y': np.ones(2), 'z': 3, 'n': None, 's': 'text'}),
  'empty': lambda: nnx.State({}),
  'hollow': lambda: nnx.State({'a': {}, 'b': {'c': {}}}),
  'strange': lambda: nnx.State({(1, 2): param(), 2.5: param(2.0), None: param(3.0)}),
  'truths': lambda: nnx.State({True: param(), 0: param(2.0)}),
  'keys': lambda: nnx.State({Key('a'): param(), 'b': {Key('c'): param(2.0)}}),
  'sub': lambda: Sub({'a': param(), 'b': {'c': param(2.0)}}),
  'doubled': lambda: Doubled({'a': param(), 'b': {'c': param(2.0)}}),
  'doubled_below': lambda: nnx.State({'z': Doubled({'a': param(), 'b': {'c': param(2.0)}})}),
  'emptied': lambda: nnx.State({'a': traversals.empty_node, 'b': param()}),
  'frozen': lambda: nnx.State({'a': FrozenDict({'b': param()}), 'c': param(2.0)}),
  'proxy': lambda: nnx.State({'a': types.MappingProxyType({'b': param()})}),
  'ordered': lambda: nnx.State({'b': collections.OrderedDict(z=param(), a=param(2.0))}),
  'dict': lambda: {'b': param(2.0), 'a': {'c': param()}},
  'flat': lambda: nnx.to_flat_state(nnx.state(Linear(2))),
  'variable': param,
  'none': lambda: None,
}  # fmt: skip
PAIRS = [
  ('params', 'counters'), ('counters', 'params'), ('model', 'other_model'), ('net', 'params'),
  ('net', 'clashing'), ('clashing', 'net'), ('branch', 'clashing'), ('clashing', 'branch'),
  ('nested', 'branch'), ('ints', 'model'), ('mixed', 'ints'), ('raw', 'nested'), ('model', 'empty'),
  ('empty', 'model'), ('hollow', 'nested'), ('strange', 'model'), ('truths', 'ints'), ('keys', 'branch'),
  ('branch', 'keys'), ('sub', 'branch'), ('branch', 'sub'), ('frozen', 'branch'), ('branch', 'frozen'),
  ('dict', 'branch'), ('branch', 'dict'), ('flat', 'model'), ('model', 'flat'), ('variable', 'model'),
  ('model', 'none'), ('ordered', 'branch'), ('proxy', 'branch'), ('optimizer', 'optimizer'),
  ('doubled', 'branch'), ('branch', 'doubled'), ('doubled_below', 'doubled'), ('emptied', 'branch'), ('branch', 'emptied'),
]  # fmt: skip
every_state = pytest.mark.parametrize('kind', STATES)
every_pair = pytest.mark.parametrize(('kind', 'other'), PAIRS)


def shown(value) -> list[str]:
  """The value's class, and all below it in order of iteration."""
  if isinstance(value, nnx.State | dict):
    lines = [type(value).__name__]
    items = value.raw_mapping if isinstance(value, nnx.State) else value
    for key, child in items.items():
      first, *rest = shown(child)
      lines += [f'  {key!r}: {first}', *['  ' + line for line in rest]]
    return lines
  if isinstance(value, tuple | list):
    return [type(value).__name__, *[line for item in value for line in shown(item)]]
  if isinstance(value, nnx.Variable):
    return [f'{type(value).__name__} {value_of(value.get_raw_value())} {value.get_metadata()}']
  return [value_of(value)]


def say_outcome(say, call, *arguments, **keywords):
  def told():
    with warnings.catch_warnings(record=True) as caught:
      warnings.simplefilter('always')
      result = call(*arguments, **keywords)
    say(*[plain(f'{w.category.__name__}: {w.message}') for w in caught])
    say(*shown(result))

  say(error_of(told))


def leaves_of(state):
  return [id(leaf) for leaf in traversals.flatten_mapping(state).values()]


# ---- algebra ----


@every_pair
def test_merge(say, kind, other):
  one, two = STATES[kind](), STATES[other]()
  say_outcome(say, nnx.merge_state, one, two)
  say_outcome(say, nnx.merge_state, one, two, one)
  say_outcome(say, nnx.merge_state, one, two, cls=Sub)
  say_outcome(say, lambda: one | two)
  say_outcome(say, lambda: type(one).merge(one, two))
  say(*shown(one), *shown(two))


@every_pair
def test_difference(say, kind, other):
  one, two = STATES[kind](), STATES[other]()
  say_outcome(say, statelib.diff, one, two)
  say_outcome(say, lambda: one - two)
  say_outcome(say, statelib.diff, one, one)
  say_outcome(say, statelib.diff, one, {})


@every_state
def test_merge_one(say, kind):
  state = STATES[kind]()
  for cls in (nnx.State, Sub):
    say_outcome(say, nnx.merge_state, state, cls=cls)
    say(error_of(lambda cls=cls: nnx.merge_state(state, cls=cls) is state))


@pytest.mark.parametrize('kind', ['model', 'net', 'nested', 'sub', 'mixed', 'keys'])
def test_merged_leaves_are_the_same_objects(say, kind):
  state = STATES[kind]()
  say(error_of(lambda: leaves_of(nnx.merge_state(state, STATES['ints']()))[:1] == leaves_of(state)[:1]))
  say(error_of(lambda: leaves_of(statelib.diff(state, STATES['ints']())) == leaves_of(state)))


@every_state
def test_map(say, kind):
  state, asked = STATES[kind](), []

  def doubled(path, leaf):
    asked.append(path)
    return leaf.replace(leaf.get_value() * 2) if isinstance(leaf, nnx.Variable) else [leaf]

  say_outcome(say, nnx.map_state, doubled, state)
  say(asked)
  say_outcome(say, nnx.map_state, lambda path, leaf: {'in': leaf}, state)
  say_outcome(say, nnx.map_state, lambda path, leaf: 1 / 0, state)
  say_outcome(say, lambda: state.map(lambda path, leaf: path))


# ---- forms ----


@every_state
def test_flat_and_back(say, kind):
  state = STATES[kind]()
  say_outcome(say, nnx.to_flat_state, state)
  say_outcome(say, lambda: nnx.from_flat_state(nnx.to_flat_state(state)))
  say_outcome(say, lambda: nnx.from_flat_state(dict(nnx.to_flat_state(state)), cls=Sub))
  say_outcome(say, lambda: nnx.from_flat_state(iter(nnx.to_flat_state(state))))
  say_outcome(say, lambda: state.flat_state())
  say_outcome(say, lambda: nnx.State.from_flat_path(nnx.to_flat_state(state)))
  say_outcome(say, lambda: nnx.to_flat_state(state)[1:])
  say_outcome(say, lambda: nnx.to_flat_state(state)[-1])
  say_outcome(say, lambda: [nnx.to_flat_state(state).paths, nnx.to_flat_state(state).leaves])


@every_state
def test_pure_dicts(say, kind):
  state, asked = STATES[kind](), []
  say_outcome(say, nnx.to_pure_dict, state)
  say_outcome(say, nnx.to_pure_dict, state, lambda leaf: asked.append(type(leaf).__name__) or 'leaf')
  say(asked)
  say_outcome(say, nnx.to_pure_dict, state, lambda leaf: {'held': leaf})
  say_outcome(say, lambda: state.to_pure_dict())


def named(pure):
  """As a checkpoint gives it back: all keys are strings."""
  return {str(k): named(v) if isinstance(v, dict) else v for k, v in pure.items()}


@every_state
def test_replaced_by_pure_dict(say, kind):
  state = STATES[kind]()

  def replaced(change, *replace):
    nnx.replace_by_pure_dict(state, change(nnx.to_pure_dict(STATES[kind]())), *replace)
    return state

  def replace(leaf, value):
    return value if leaf is None else leaf

  say_outcome(say, replaced, lambda pure: pure)
  say_outcome(say, replaced, named)
  say_outcome(say, replaced, named, replace)
  say_outcome(say, replaced, lambda pure: {**pure, 'unknown': 1})
  say_outcome(say, replaced, lambda pure: {'a': {'b': 3}})
  say_outcome(say, lambda: nnx.restore_int_paths(named(nnx.to_pure_dict(state))))


@every_state
def test_as_a_mapping(say, kind):
  state = STATES[kind]()
  say_outcome(say, lambda: [list(state), len(state), 'a' in state, plain(state), bool(state)])
  say_outcome(say, lambda: [type(v).__name__ for v in state.values()])
  say_outcome(say, lambda: [state.a, state['b'], state.get('nothing')])
  say_outcome(say, lambda: state.nothing)
  say_outcome(say, lambda: state['nothing'])
  say_outcome(say, lambda: state == STATES[kind]())
  say_outcome(say, lambda: hash(state) and None)
  say_outcome(say, lambda: [state.pop('a', None), state.setdefault('new', 3), state.popitem()])

  def changed():
    state['a'] = nnx.State({'z': param(9.0)})
    state.b = {'y': param(8.0)}
    state['a']['more'] = param(7.0)
    state['b']['more'] = param(6.0)
    del state['b']['y']
    state.update({'c': param(5.0)})
    return state

  say_outcome(say, changed)
  say_outcome(say, lambda: nnx.to_flat_state(state))
  say_outcome(say, lambda: [copy.copy(state), copy.deepcopy(state), pickle.loads(pickle.dumps(state))])


@every_state
def test_path_filters(say, kind):
  say_outcome(say, lambda: len(statelib.create_path_filters(STATES[kind]())))


def test_ways_to_make_one(say):
  for given in ({'a': 1}, [('a', 1)], iter([('a', 1)]), nnx.State({'a': 1}), 'ab', None, 3):
    for keywords in ({}, {'_copy': False}, {'_copy': True}):
      say_outcome(say, nnx.State, given, **keywords)
  held = {'a': 1}
  state = nnx.State(held, _copy=False)
  state['b'] = 2
  say(held, nnx.State(held).raw_mapping is held, state.raw_mapping is held)
  for items in ([(('b',), 1), (('a',), 2)], [], [(3, 1)], [('x',)], None, [(('a',), 1), ((1,), 2)]):
    for sort in (True, False):
      say_outcome(say, statelib.FlatState, items, sort=sort)


# ---- filters ----


class Tagged(nnx.Variable):
  tag = 'of the class'


class Lazily(nnx.Variable):
  @property
  def tag(self):
    raise AttributeError('no tag')


def asked(log, name, answer):
  def predicate(path, value):
    log.append((name, path, type(value).__name__))
    return answer(path, value)

  return predicate


def filtered() -> nnx.State:
  return nnx.State({
    'a': {'kernel': param(tag='x'), 'bias': param(2.0, tag='y'), 'count': Counter(jnp.array(1))},
    'b': {'stat': nnx.BatchStat(jnp.ones(2), tag='x'), 'tagged': Tagged(jnp.ones(1))},
    'c': {'lazily': Lazily(jnp.ones(1)), 'own': Tagged(jnp.ones(1), note=3), 'none': param(tag=None)},
    'raw': jnp.array(3.0),
    'number': 4,
    'kernels': param(5.0, tag=Same()),
  })  # fmt: skip


class Same:
  """Equal to any string."""

  def __eq__(self, other):
    return isinstance(other, str)

  def __hash__(self):
    return 1

  def __repr__(self):
    return 'Same()'


class Meta(type):
  def __instancecheck__(cls, value):
    return isinstance(value, Counter)


class Counting(metaclass=Meta):
  pass


def raising(*_):
  return 1 / 0


class RaisingMeta(type):
  __instancecheck__ = raising


class RaisingClass(metaclass=RaisingMeta):
  pass


class Raising:
  __eq__ = raising
  __hash__ = None


FILTERS = {
  'type': nnx.Param,
  'base': nnx.Variable,
  'array': type(jnp.array(1)),
  'int': int,
  'abstract': collections.abc.Hashable,
  'meta': Counting,
  'tag': 'x',
  'class_tag': 'of the class',
  'no_tag': 'none has it',
  'true': True,
  'false': False,
  'rest': ...,
  'none': None,
  'list': [nnx.BatchStat, 'y'],
  'tuple': (nnx.BatchStat, ('y', Counter)),
  'nothing_listed': [],
  'any': nnx.Any(Counter, 'x'),
  'any_of_none': nnx.Any(),
  'all': nnx.All(nnx.Param, 'x'),
  'all_of_none': nnx.All(),
  'not': nnx.Not(nnx.Param),
  'not_tag': nnx.Not('x'),
  'deep': nnx.Any(nnx.All(nnx.Not(nnx.Any(Counter, 'x')), nnx.Param), nnx.All(nnx.BatchStat, ...)),
  'not_all': nnx.Not(...),
  'path': nnx.PathContains('kernel'),
  'inexact': nnx.PathContains('kernel', exact=False),
  'paths': filterlib.PathIn(('a', 'bias'), ('raw',)),
  'with_tag': filterlib.WithTag('y'),
  'tag_number': filterlib.WithTag(3),
  'of_type': filterlib.OfType(Counter),
  'of_types': filterlib.OfType((Counter, int)),
  'of_union': filterlib.OfType(Counter | int),
  'of_nothing': filterlib.OfType('Counter'),
  'everything': filterlib.Everything(),
  'function': lambda path, value: path[0] == 'a',
  'truthy': lambda path, value: path[1:],
  'raising': lambda path, value: 1 / (len(path) - 1),
  'wrong_arity': lambda path: True,
  'untruthful': lambda path, value: np.ones(2),
  'number': 3,
  'text_in_list': ['x', 3],
}


@pytest.mark.parametrize('name', FILTERS)
def test_filters(say, name):
  one = FILTERS[name]
  for filters in ((one,), (one, ...), (nnx.Param, one), (..., one), (one, one, ...)):
    say_outcome(say, nnx.split_state, filtered(), *filters)
    say_outcome(say, nnx.filter_state, filtered(), *filters)
    say_outcome(say, lambda filters=filters: nnx.to_flat_state(filtered()).split(*filters))
    say_outcome(say, lambda filters=filters: nnx.to_flat_state(filtered()).filter(*filters))


@pytest.mark.parametrize('name', FILTERS)
def test_filters_of_models(say, name):
  for kind in ('layers', 'optimizer', 'hooked', 'containers', 'payloads'):
    say_outcome(say, lambda kind=kind: nnx.state(GRAPHS[kind](), FILTERS[name]))
    say_outcome(say, lambda kind=kind: nnx.split(GRAPHS[kind](), FILTERS[name], ...)[1:])
    say_outcome(say, lambda kind=kind: nnx.pop(GRAPHS[kind](), FILTERS[name]))


def test_predicates_are_asked_in_order(say):
  log: list = []
  first = asked(log, 'first', lambda path, value: len(path) > 1 and path[1] == 'bias')
  second = asked(log, 'second', lambda path, value: isinstance(value, nnx.Param))
  third = asked(log, 'third', lambda path, value: 0)
  for filters in (
    (first, second, ...),
    (nnx.Any(first, second), third, ...),
    (nnx.All(first, second), nnx.Not(third)),
    (nnx.Not(nnx.All(second, nnx.Any(first, third))), nnx.Any(nnx.Param, third), third, ...),
    (nnx.All('x', second), nnx.Any('x', second), third, ...),
  ):
    say_outcome(say, nnx.split_state, filtered(), *filters)
    say(*[f'{line}\n' for line in log])
    log.clear()


@pytest.mark.parametrize('depth', [150, 300, 200_000])
@pytest.mark.parametrize('around', ['Not', 'Any', 'All'])
def test_nested_filters(say, around, depth):
  """As upstream's, to the RecursionError of those without end."""
  one, around = nnx.Param, getattr(nnx, around)
  for _ in range(depth):
    one = around(one)
  say_outcome(say, nnx.split_state, filtered(), one, ...)


@pytest.mark.parametrize('name', ['raising_class', 'raising_tag', 'raising_function'])
def test_errors_of_filters(say, name):
  """Each line of the traceback, within filters of flax's own too."""
  one = {'raising_class': RaisingClass, 'raising_tag': filterlib.WithTag(Raising()), 'raising_function': raising}[name]
  for around in (one, nnx.Not(one), nnx.Any(Counter, nnx.All(one, ...))):
    try:
      nnx.split_state(filtered(), around, ...)
    except ZeroDivisionError as error:
      frames = traceback.extract_tb(error.__traceback__)
      say([frame.name for frame in frames if frame.filename != statelib.__file__])


# ---- nested mappings ----

OPTIONS = {
  'plain': {},
  'empty_nodes': {'keep_empty_nodes': True},
  'separator': {'sep': '/'},
  'leaf': {'is_leaf': lambda path, value: len(path) == 1},
  'falsy': {'keep_empty_nodes': 0, 'is_leaf': False, 'sep': ''},
}


@every_state
@pytest.mark.parametrize('options', OPTIONS)
def test_flatten_mapping(say, kind, options):
  state = STATES[kind]()
  say_outcome(say, traversals.flatten_mapping, state, **OPTIONS[options])
  say_outcome(say, lambda: list(traversals.flatten_mapping(state, **OPTIONS[options])))
  if options in ('plain', 'leaf'):
    say_outcome(say, traversals.flatten_to_sequence, state, **OPTIONS[options])


FLAT = {
  'paths': lambda: {('b', 'x'): 1, ('a',): 2, ('b', 'a'): 3},
  'ints': lambda: {(2, 'x'): 1, (1,): 2, (2, 1): 3},
  'pairs': lambda: [(('b', 'x'), 1), (('a',), 2), (('b', 'x'), 3)],
  'generator': lambda: ((('b', i), i) for i in range(2)),
  'zip': lambda: zip([('a', 'b')], [1]),
  'dicts': lambda: {('a',): {'b': 1}, ('a', 'c'): 2},
  'leaf_first': lambda: {('a',): 1, ('a', 'b'): 2},
  'leaf_last': lambda: {('a', 'b'): 2, ('a',): 1},
  'none_first': lambda: {('a',): None, ('a', 'b'): 2},
  'empty_path': lambda: {(): 1},
  'empty_node': lambda: {('a', 'b'): traversals.empty_node, ('a', 'c'): 1},
  'strings': lambda: {'ab': 1, 'ac': 2},
  'separated': lambda: {'a/b': 1, 'a/c': 2, 'd': 3},
  'lists': lambda: [[['a', 'b'], 1]],
  'floats': lambda: {(1.5, 'a'): 1, (None,): 2},
  'unhashable': lambda: [(([],), 1)],
  'triples': lambda: [(('a',), 1, 2)],
  'state': lambda: nnx.State({('a', 'b'): 1}),
  'number': lambda: 3,
  'none': lambda: None,
  'nothing': lambda: {},
}


@pytest.mark.parametrize('kind', FLAT)
def test_unflatten_mapping(say, kind):
  for options in ({}, {'sep': '/'}, {'sep': ''}, {'sep': 3}):
    say_outcome(say, traversals.unflatten_mapping, FLAT[kind](), **options)
    say_outcome(say, nnx.from_flat_state, FLAT[kind]())


def test_wrong_arguments(say):
  for f in (traversals.flatten_mapping, traversals.flatten_to_sequence, traversals.unflatten_mapping):
    for arguments in ((), (1, 2), ('text',), ([1],)):
      say_outcome(say, f, *arguments)
    say_outcome(say, f, xs={})
    say_outcome(say, f, {}, nothing=1)
    say(f.__name__, f.__module__, f.__qualname__, f.__doc__ is not None, str(f.__kwdefaults__))


def test_deep_mappings(say):
  for depth in (150, 300, 5000):
    nest: dict = {'leaf': 1}
    for _ in range(depth):
      nest = {'in': nest}
    say(depth, error_of(lambda nest=nest: len(str(traversals.flatten_mapping(nest)))))
    say(error_of(lambda nest=nest: traversals.unflatten_mapping(traversals.flatten_mapping(nest)) == nest))
