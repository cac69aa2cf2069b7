"""The graph types: what can be done with them, and what they refuse."""

import collections.abc
import copy
import dataclasses
import gc
import inspect
import weakref

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from flax.nnx import graphlib, statelib
from telling import error_of, plain
from zoo import GRAPHS, Linear

NAN = float('nan')


class Never:
  """Equal to nothing, itself included."""

  __hash__ = object.__hash__

  def __eq__(self, other):
    return False


class Always:
  __hash__ = object.__hash__

  def __eq__(self, other):
    return True


class Raises:
  __hash__ = object.__hash__

  def __eq__(self, other):
    raise ValueError('not to be compared')


NEVER, ALWAYS, RAISES = Never(), Always(), Raises()


def samples():
  mapping = graphlib.HashableMapping({'a': 1, 'b': None})
  array = graphlib.ArrayRefDef(4, None)
  variable = graphlib.VariableDef(nnx.Param, 1, None, mapping, None)
  node = graphlib.NodeDef(Linear, 0, None, 2, Linear)
  return {
    'NodeRef': graphlib.NodeRef(3),
    'ArrayRefDef': array,
    'VariableDef': variable,
    'holding': graphlib.VariableDef(nnx.Param, 1, 2, mapping, array),
    'NodeDef': node,
    'GraphDef': graphlib.GraphDef(
      [node, variable], [('w', graphlib.NODE_ATTR), ('n', graphlib.Static(3))], 1
    ),
  }


SAMPLES = list(samples())
every_sample = pytest.mark.parametrize('name', SAMPLES)


@every_sample
def test_looks(say, name):
  sample, other = samples()[name], samples()[name]
  cls = type(sample)
  say(repr(sample), str(sample), cls.__module__, cls.__qualname__, cls.__doc__)
  say([base.__name__ for base in cls.__mro__], cls.__match_args__, repr(cls))
  say(getattr(cls, '__slots__', 'none'), [f.name for f in dataclasses.fields(sample)])
  say(
    inspect.signature(cls),
    plain(error_of(lambda: cls[Linear])),
    getattr(cls, '__parameters__', None),
  )
  say(sample == other, sample != other, hash(sample) == hash(other), sample == 3, sample.__eq__(3))
  say(dataclasses.is_dataclass(sample), error_of(dataclasses.asdict, sample), error_of(vars, sample))
  say(dataclasses.replace(sample) == sample, jax.tree.leaves(sample) == [sample])
  say(jax.tree.structure((sample,)) == jax.tree.structure((other,)))
  say(gc.is_tracked(sample), error_of(lambda: type(weakref.ref(sample))))
  say(sorted(n for n in dir(sample) if not n.startswith('_')))


@every_sample
def test_refusals(say, name):
  sample = samples()[name]
  cls = type(sample)
  field = dataclasses.fields(sample)[0].name
  say(error_of(setattr, sample, field, 1), error_of(delattr, sample, field))
  say(error_of(setattr, sample, 'other', 1), error_of(delattr, sample, 'other'))
  say(error_of(getattr, sample, 'other'))
  for arguments, keywords in (((), {}), ((1,) * 7, {}), ((), {'other': 1}), ((1,), {field: 1})):
    say(error_of(lambda a=arguments, k=keywords: cls(*a, **k)))
  say(error_of(lambda: sample < sample), error_of(lambda: sample()), error_of(len, sample))
  say(error_of(lambda: object.__new__(cls) == object.__new__(cls)))
  say(error_of(repr, object.__new__(cls)), error_of(hash, object.__new__(cls)))


@every_sample
def test_copies(say, name):
  sample = samples()[name]
  for made in (copy.copy(sample), copy.deepcopy(sample)):
    say(type(made) is type(sample), made == sample, hash(made) == hash(sample), repr(made))


@every_sample
def test_subclasses(say, name):
  sample = samples()[name]
  cls = type(sample)
  values = [getattr(sample, f.name) for f in dataclasses.fields(sample)]

  class Sub(cls):
    def __init__(self, *arguments):
      super().__init__(*arguments)

    extra = 'more'

  sub = Sub(*values)
  say(
    sub == sample,
    sample == sub,
    sub == Sub(*values),
    hash(sub) == hash(sample),
    repr(sub),
    sub.extra,
  )
  say(
    error_of(setattr, sub, 'other', 1),
    error_of(setattr, sub, 'index', 1),
    error_of(setattr, sub, 'nodes', 1),
  )
  say(isinstance(sub, cls), copy.copy(sub) == sub, type(copy.copy(sub)).__name__)

  class Loose(cls):
    def __eq__(self, other):
      return True

    __hash__ = None

  say(Loose(*values) == 3, error_of(hash, Loose(*values)))


@pytest.mark.parametrize('name', ['ArrayRefDef', 'VariableDef', 'holding', 'NodeDef', 'GraphDef'])
def test_outer_indices(say, name):
  sample = samples()[name]
  same = sample.with_same_outer_index()
  for made in (same, same.with_no_outer_index(), sample.with_matching_outer_index(same)):
    say(type(made).__name__, repr(made), made == sample)
  say(error_of(sample.with_matching_outer_index, 3))


@pytest.mark.parametrize(
  'static', ['nan', 'never', 'always', 'raises', 'array', 'one_true', 'unhashable']
)
def test_equality_of_statics(say, static):
  """Which Python compares what with itself, and what an answer that is no bool does."""
  value = {
    'nan': NAN,
    'never': NEVER,
    'always': ALWAYS,
    'raises': RAISES,
    'array': jnp.arange(2),
    'one_true': 1,
    'unhashable': [1, 2],
  }[static]
  other = {'one_true': True, 'unhashable': [1, 2], 'nan': float('nan')}.get(static, value)

  def graphdef(v):
    return graphlib.GraphDef([graphlib.NodeDef(Linear, 0, None, 1, v)], [('s', graphlib.Static(v))], 0)

  def variable(v):
    return graphlib.VariableDef(nnx.Param, 0, None, graphlib.HashableMapping({'m': v}), None)

  for make in (
    graphdef,
    variable,
    graphlib.Static,
    lambda v: graphlib.NodeDef(Linear, 0, None, 1, v),
  ):
    first, second, third = make(value), make(value), make(other)
    say(
      error_of(lambda: first == first),
      error_of(lambda: first == second),
      error_of(lambda: first == third),
    )
    say(error_of(lambda: first != second), error_of(lambda: hash(first) == hash(second)))
    say(error_of(lambda: [first] == [first]), error_of(lambda: (first,) == (second,)))


def test_hash_follows_mutable_statics(say):
  """A hash is kept only where nothing it depends on can change."""

  class Mutable:
    def __init__(self):
      self.value = 1

    def __hash__(self):
      return self.value

    def __eq__(self, other):
      return self.value == other.value

  mutable = Mutable()
  graphdef = graphlib.GraphDef([], [('s', graphlib.Static((1, mutable)))], 0)
  first = hash(graphdef)
  mutable.value = 2
  say(hash(graphdef) == first)
  fixed = graphlib.GraphDef([], [('s', graphlib.Static((1, 'x', Linear)))], 0)
  say(hash(fixed) == hash(fixed) == hash(copy.copy(fixed)))


@every_sample
def test_hash_formula(say, name):
  """Equal to that of the tuple of fields, as a dataclass has it."""
  sample = samples()[name]
  values = tuple(getattr(sample, f.name) for f in dataclasses.fields(sample))
  if name == 'GraphDef':
    values = (tuple(sample.nodes), tuple(sample.attributes))
  say(hash(sample) == hash(values))


def test_ref_map(say):
  key, other, unhashable = Linear(1), Linear(1), [1]
  refs = graphlib.RefMap([(key, 0), (unhashable, 1)])
  say(
    len(refs),
    key in refs,
    other in refs,
    unhashable in refs,
    refs[unhashable],
    refs.get(other, 'absent'),
  )
  refs[other] = None
  say(refs.get(other, 5), refs[other], list(refs.values()), len(list(refs)), bool(refs))
  say(isinstance(refs, collections.abc.MutableMapping), [b.__name__ for b in type(refs).__mro__])
  refs[key] = 7
  say(
    [v for _, v in refs.items()],
    refs.pop(key),
    len(refs),
    refs.setdefault(key, 9),
    [v for _, v in refs.items()],
  )
  del refs[unhashable]
  say(error_of(lambda: refs == refs), error_of(hash, refs), error_of(lambda: graphlib.RefMap([(3,)])))
  say(
    error_of(refs.__delitem__, unhashable).split(':')[0],
    error_of(refs.__getitem__, unhashable).split(':')[0],
  )
  say(
    graphlib.RefMap({1: 2}) == {1: 2},
    graphlib.RefMap({'a': 2}),
    sorted(vars(graphlib.RefMap({'a': 2}))),
  )
  small = graphlib.RefMap({'a': 1, 'b': 2})
  small.note = 'kept'
  for made in (copy.copy(small), copy.deepcopy(small)):
    say(made, made.note, 'a' in made, [v for _, v in made.items()])
  small.update({'c': 3}, d=4)
  say(small, small.popitem(), list(reversed(list(small))))
  small.clear()
  say(len(small), list(small), type(weakref.ref(small)).__name__)

  def grown():
    for k in refs:
      refs[object()] = k

  say(error_of(grown))
  view = small.items()
  small['z'] = 26
  say(len(view), list(view))


def test_ref_map_large(say):
  """Many entries, met in the order of their insertion."""
  objects = [object() for _ in range(5000)]
  refs = graphlib.RefMap()
  for i, o in enumerate(objects):
    refs[o] = i
  say(all(refs[o] == i for i, o in enumerate(objects)), object() in refs, len(refs))
  indexes = graphlib.IndexMap.from_refmap(refs)
  say(type(indexes).__name__, all(indexes[i] is o for i, o in enumerate(objects)), list(indexes)[:5])
  back = graphlib.RefMap.from_indexmap(indexes)
  say(
    all(back[o] == i for i, o in enumerate(objects)),
    [a is b for a, b in zip(back, refs)].count(False),
  )
  for o in objects[::2]:
    del refs[o]
  say(len(refs), objects[0] in refs, refs[objects[1]], next(iter(refs)) is objects[1])


def test_ref_map_subclass(say):
  class Noted(graphlib.RefMap):
    def __setitem__(self, key, value):
      say('set', value)
      super().__setitem__(key, value)

  noted = Noted()
  graphdef, flat = nnx.flatten(GRAPHS['shared'](), ref_index=noted)
  say(len(noted), plain(graphdef), len(flat))


def test_index_map(say):
  indexes = graphlib.IndexMap({1: 'a'})
  indexes[2] = 'b'
  say(
    indexes,
    dict(indexes),
    isinstance(indexes, dict),
    copy.copy(indexes),
    type(copy.copy(indexes)).__name__,
  )
  say(graphlib.IndexMap.__mro__[1].__name__, error_of(graphlib.IndexMap.from_refmap, None))


def test_cycles_are_collected(say):
  class Node(nnx.Module):
    pass

  node = Node()
  node.graphdef = nnx.graphdef(Linear(1))
  node.refs = nnx.static(graphlib.RefMap())
  node.refs[node] = 0
  gone = weakref.ref(node)
  del node
  gc.collect()
  say(gone() is None)


def test_functions_look_like_upstream(say):
  """Types, signatures, docstrings and sources of all that graphlib and statelib show."""
  for module in (graphlib, statelib):
    for name, value in sorted(vars(module).items()):
      if name.startswith('_') or getattr(value, '__module__', None) != module.__name__:
        continue
      if inspect.isfunction(value):
        say(
          name,
          value.__qualname__,
          inspect.signature(value),
          plain(value),
          value.__doc__ is not None,
        )
        say(inspect.getsource(value)[:60], value.__defaults__, value.__kwdefaults__)
      elif inspect.isclass(value):
        say(
          name,
          value.__qualname__,
          sorted(
            n
            for n, v in vars(value).items()
            if not n.startswith('_') and not inspect.isdatadescriptor(v)
          ),
        )
        say(error_of(inspect.getsource, value)[:60])


def test_argument_errors_look_like_upstream(say):
  for function in (
    nnx.from_flat_state,
    nnx.to_flat_state,
    nnx.split,
    nnx.merge,
    nnx.iter_graph,
    nnx.clone,
    graphlib.RefMap.get,
    graphlib.RefMap.__init__,
    graphlib.IndexMap.from_refmap,
  ):
    say(error_of(function), error_of(function, 1, 2, 3, 4, 5, 6), error_of(function, other=1))
