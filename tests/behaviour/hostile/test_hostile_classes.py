"""Classes that lie through their metaclass, change after first use, or are registered late."""
import collections
import dataclasses

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from flax.nnx import graphlib
from hostile.outcomes import outcome, own_caches, say_outcomes, text
from telling import error_of


def param() -> nnx.Param:
  return nnx.Param(jnp.arange(2.0))


class Impostor(type):
  """Its classes hash like `target` and say that they equal it, so that a registry finds them there."""
  target: type = object

  def __hash__(cls):
    return hash(cls.target)

  def __eq__(cls, other):
    return other is cls.target or other is cls


TARGETS = {
  'list': list, 'tuple': tuple, 'dict': dict, 'None': type(None), 'State': nnx.State,
  'Param': nnx.Param, 'Variable': nnx.Variable, 'Linear': nnx.Linear, 'Module': nnx.Module,
  'List': nnx.List, 'int': int, 'str': str, 'array': type(jnp.zeros(1)), 'float': float,
  'PytreeState': nnx.pytreelib.PytreeState, 'NodeRef': graphlib.NodeRef,
  'GraphDef': graphlib.GraphDef, 'named tuple': collections.namedtuple('Pair', 'a b'),
}


def impostor_of(target: type, *bases) -> type:
  return Impostor('Posing', bases, {'target': target, '__repr__': lambda self: 'Posing()'})


@own_caches()
@pytest.mark.parametrize('name', TARGETS)
def test_impostors(say, name):
  target = TARGETS[name]
  known = {'list': [1], 'tuple': (1,), 'dict': {'a': 1}, 'None': None, 'int': 1}.get(name)
  graphlib.flatten([known, param(), nnx.Linear(1, 1, rngs=nnx.Rngs(0)), TARGETS['named tuple'](1, 2)])
  for bases in ((), (list,), (dict,), (tuple,)):
    cls = impostor_of(target, *bases)
    say(name, bases)
    say_outcomes(say, lambda cls=cls: {'x': cls(), 'y': param()},
                 ('flatten', 'round trip', 'clone', 'update', 'pop', 'iter_graph', 'find_duplicates'))
    say_outcomes(say, lambda cls=cls: cls(), ('flatten', 'iter_graph', 'find_duplicates', 'pop'))


@own_caches()
def test_classes_that_cannot_be_hashed(say):

  class Meta(type):
    def __hash__(cls):
      raise LookupError('a class without hash')

  class NoHash(metaclass=Meta):
    def __repr__(self):
      return 'NoHash()'

  say_outcomes(say, lambda: {'x': NoHash(), 'y': param()})
  say_outcomes(say, NoHash)


def test_metaclass_that_notes_every_access(say):
  log: list = []

  class Meta(type):
    def __getattribute__(cls, name):
      log.append(name)
      return super().__getattribute__(name)

    def __instancecheck__(cls, instance):
      log.append('instance check')
      return super().__instancecheck__(instance)

    def __subclasscheck__(cls, other):
      log.append('subclass check')
      return super().__subclasscheck__(other)

  class Noted(metaclass=Meta):
    pass

  value = Noted()
  for walk in ('flatten', 'split', 'clone', 'iter_graph', 'find_duplicates', 'pop'):
    for _ in range(2):
      say_outcomes(say, lambda: [value, param()], [walk])


def test_metaclass_whose_attributes_raise(say):

  class Meta(type):
    armed = False

    def __getattribute__(cls, name):
      if type.__getattribute__(Meta, 'armed'):
        raise ArithmeticError(f'{name} is not for you')
      return super().__getattribute__(name)

  class Guarded(metaclass=Meta):
    pass

  value = Guarded()
  Meta.armed = True
  for walk in ('flatten', 'split', 'iter_graph', 'find_duplicates'):
    say(walk, [line.replace('Guarded', '') for line in outcome(
      {'flatten': graphlib.flatten, 'split': nnx.split, 'iter_graph': lambda n: len(list(nnx.iter_graph(n))),
       'find_duplicates': nnx.find_duplicates}[walk], [value, param()])])
  Meta.armed = False


def test_module_metaclasses(say):

  class Meta(type(nnx.Module)):
    def __call__(cls, *args):
      node = super().__call__(*args)
      node.stamped = True
      return node

    def __len__(cls):
      raise ArithmeticError('measured')

    def __bool__(cls):
      raise ArithmeticError('judged')

  class Stamped(nnx.Module, metaclass=Meta):
    def __init__(self):
      self.a = param()

  say_outcomes(say, Stamped)


BUILTIN_BASES = {'dict': dict, 'list': list, 'int': int, 'str': str, 'tuple': tuple, 'set': set,
                 'Exception': Exception, 'deque': collections.deque, 'bytes': bytes}


@pytest.mark.parametrize('name', BUILTIN_BASES)
def test_modules_that_are_builtins_too(say, name):

  def make_class():
    class Both(nnx.Module, BUILTIN_BASES[name]):
      def __init__(self):
        self.a = param()

      def __repr__(self):
        return 'Both()'

    return Both

  say(error_of(make_class).split('<')[0])
  if error_of(make_class).startswith('no error'):
    cls = make_class()
    say(error_of(cls))
    if error_of(cls).startswith('no error'):
      say_outcomes(say, cls)


@pytest.mark.parametrize('name', BUILTIN_BASES)
def test_subclasses_of_builtins_as_values(say, name):
  cls = type('Own', (BUILTIN_BASES[name],), {'__repr__': lambda self: 'Own()'})
  say_outcomes(say, lambda: {'x': cls(), 'y': param()})

  class Holder(nnx.Module):
    def __init__(self):
      self.x = nnx.static(cls())
      self.y = param()

  say_outcomes(say, Holder)


def test_hooks_replaced_after_first_use(say):
  for hook in ('flatten', 'create_empty', 'clear', 'init', 'set_key', 'pop_key'):

    class Model(nnx.Module):
      def __init__(self):
        self.a = param()
        self.b = 'static'

    say(hook, *outcome(nnx.split, Model()))

    def replaced(*args, hook=hook):
      raise ArithmeticError(f'{hook} replaced')

    setattr(Model, f'_graph_node_{hook}', replaced)
    say_outcomes(say, Model, ('split', 'round trip', 'clone', 'update', 'pop', 'iter_graph'))


def test_class_attributes_replaced_after_first_use(say):
  for name, value in (('_pytree__is_pytree', False), ('_pytree__has_int_keys', True),
                      ('_pytree__nodes', {}), ('_pytree__nodes', None), ('__getattribute__', None),
                      ('__setattr__', None), ('__slots__', ()), ('__init__', None)):

    class Model(nnx.Module):
      def __init__(self):
        self.a = param()
        self.b = 'static'
        self.__dict__['7'] = 1

    models = [Model() for _ in range(20)]
    say(name, text(value), *outcome(nnx.split, Model()))
    setattr(Model, name, value)
    say_outcomes(say, models.pop, ('split', 'round trip', 'clone', 'pop', 'iter_graph'))


def test_bases_replaced_after_first_use(say):

  class Plain(nnx.Module):
    pass

  class Loud(nnx.Module):
    def _graph_node_flatten(self):
      raise ArithmeticError('loud')

  class Model(Plain):
    def __init__(self):
      self.a = param()

  model = Model()
  say(*outcome(nnx.split, model))
  Model.__bases__ = (Loud,)
  say(*outcome(nnx.split, model), *outcome(nnx.clone, model))
  Model.__bases__ = (Plain,)
  say(*outcome(nnx.split, model))


def test_registry_entry_replaced(say):

  class Model(nnx.Module):
    def __init__(self):
      self.a = param()

  model = Model()
  say(*outcome(nnx.split, model))
  old = graphlib.GRAPH_REGISTRY[Model]
  changes = {
    'flatten': lambda node: ([('renamed', vars(node)['a'])], Model),
    'create_empty': lambda metadata: object.__new__(nnx.Linear),
    'init': lambda node, pairs: node.__dict__.update(count=len(list(pairs))),
    'clear': lambda node: None,
    'type': nnx.Linear,
  }
  for name, value in changes.items():
    graphlib.GRAPH_REGISTRY[Model] = dataclasses.replace(old, **{name: value})
    say_outcomes(say, Model, ('split', 'round trip', 'clone', 'update', 'iter_graph'))
  del graphlib.GRAPH_REGISTRY[Model]
  say_outcomes(say, Model, ('split', 'round trip', 'iter_graph'))
  graphlib.GRAPH_REGISTRY[Model] = old
  say_outcomes(say, Model, ('split', 'round trip'))


def test_registry_entry_of_a_container_replaced(say):
  for cls in (list, dict, tuple):
    old = graphlib.PYTREE_REGISTRY[cls]
    value = {list: [param()], dict: {'a': param()}, tuple: (param(),)}[cls]
    say(*outcome(nnx.split, value))
    try:
      graphlib.PYTREE_REGISTRY[cls] = dataclasses.replace(
        old, flatten=lambda x: ([('odd', 5)], 'metadata'), unflatten=lambda n, m: ('made', list(n), m))
      say_outcomes(say, lambda v=value: v, ('split', 'round trip', 'clone', 'iter_graph'))
      del graphlib.PYTREE_REGISTRY[cls]
      say_outcomes(say, lambda v=value: v, ('split', 'round trip', 'clone', 'iter_graph'))
    finally:
      graphlib.PYTREE_REGISTRY[cls] = old
    say(*outcome(nnx.split, value))


def test_registered_with_jax_after_first_use(say):

  class Late:
    def __init__(self, x=None):
      self.x = param() if x is None else x

    def __repr__(self):
      return 'Late()'

  class Holder(nnx.Module):
    def __init__(self):
      self.late = nnx.data(Late())
      self.other = param()

  say_outcomes(say, lambda: [Late(), param()])
  say_outcomes(say, Holder)
  jax.tree_util.register_pytree_with_keys(
    Late, lambda v: (((jax.tree_util.GetAttrKey('x'), v.x),), None), lambda _, xs: Late(*xs))
  say_outcomes(say, lambda: [Late(), param()])
  say_outcomes(say, Holder)


def test_registered_as_a_node_after_first_use(say):

  class Late:
    def __init__(self):
      self.x = param()

    def __repr__(self):
      return 'Late()'

  say_outcomes(say, lambda: [Late(), param()], ('split', 'clone', 'iter_graph'))
  graphlib.register_graph_node_type(
    Late, flatten=lambda n: (list(vars(n).items()), type(n)),
    set_key=setattr, pop_key=lambda n, k: vars(n).pop(k), create_empty=object.__new__,
    clear=lambda n: vars(n).clear(), init=lambda n, pairs: vars(n).update(pairs))
  say_outcomes(say, lambda: [Late(), param()])
  say_outcomes(say, Late)
  del graphlib.GRAPH_REGISTRY[Late]
  say_outcomes(say, lambda: [Late(), param()], ('split', 'clone', 'iter_graph'))
  graphlib.register_pytree_node_type(
    Late, flatten=lambda n: (list(vars(n).items()), None), unflatten=lambda pairs, _: dict(pairs))
  say_outcomes(say, lambda: [Late(), param()], ('split', 'clone', 'iter_graph', 'update', 'pop'))
  del graphlib.PYTREE_REGISTRY[Late]


def test_registered_in_both_registries(say):

  class Twice(nnx.Module):
    def __init__(self):
      self.a = param()

  say_outcomes(say, Twice, ('split', 'clone'))
  graphlib.register_pytree_node_type(
    Twice, flatten=lambda n: ([('b', 1)], None), unflatten=lambda pairs, _: dict(pairs))
  say_outcomes(say, Twice)
  say_outcomes(say, lambda: [Twice()])
  del graphlib.PYTREE_REGISTRY[Twice]


def test_named_tuples_with_ideas_of_their_own(say):
  Pair = collections.namedtuple('Pair', 'b a')

  class Reversed(Pair):
    def __iter__(self):
      return iter((self.a, self.b))

  class Short(Pair):
    def __len__(self):
      return 1

  class Refuses(Pair):
    def __new__(cls, *args):
      raise ArithmeticError('not made this way')

  class WrongFields(Pair):
    _fields = ('x', 'y', 'z')

  class OddFields(tuple):
    _fields = 'ab'

  values = {
    'plain': lambda: Pair(param(), 1), 'reversed': lambda: Reversed(param(), 1),
    'short': lambda: Short(param(), 1), 'refuses': lambda: tuple.__new__(Refuses, (param(), 1)),
    'wrong length': lambda: tuple.__new__(Pair, (param(),)),
    'wrong fields': lambda: WrongFields(param(), 1), 'odd fields': lambda: OddFields((param(), 1)),
  }
  for name, make in values.items():
    say(name)
    say_outcomes(say, make)
    say_outcomes(say, lambda make=make: {'x': make()}, ('split', 'round trip', 'clone', 'jit'))


def test_fields_of_a_named_tuple_changed_after_first_use(say):
  Pair = collections.namedtuple('Pair', 'b a')
  value = Pair(param(), 1)
  graphdef, state = nnx.split(value)
  for fields in (('a', 'b'), ('x', 'y'), ('b',), (), None, ['b', 'a'], ('b', 'a')):
    Pair._fields = fields
    say_outcomes(say, lambda: value, ('split', 'round trip', 'iter_graph', 'find_duplicates'))
    say(outcome(lambda g: nnx.merge(g, state), graphdef))


def test_jax_dataclass_and_static_nodes(say):

  @jax.tree_util.register_dataclass
  @dataclasses.dataclass
  class Record:
    b: object
    a: object

  @jax.tree_util.register_static
  class Constant:
    def __repr__(self):
      return 'Constant()'

  say_outcomes(say, lambda: Record(param(), {'x': param()}))
  say_outcomes(say, lambda: [Constant(), Record(1, None)])
