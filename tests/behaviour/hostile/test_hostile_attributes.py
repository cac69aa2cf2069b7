"""Modules whose attributes do not behave: hooks on access, odd instance dicts, changing classes."""
import collections
import types

import jax.numpy as jnp
import pytest
from flax import nnx
from flax.nnx import graphlib
from flax.typing import HashableMapping
from hostile.outcomes import contents, outcome, say_outcomes, text
from telling import error_of


def param(size: int = 2) -> nnx.Param:
  return nnx.Param(jnp.arange(float(size)))


class Base(nnx.Module):
  def __init__(self):
    self.b = param()
    self.a = param(3)
    self.static = 'text'


class PropertyOverDict(Base):
  """A property of the name of an attribute that lies in the instance dict."""

  @property
  def a(self):
    return 'from the property'

  @a.setter
  def a(self, value):
    self.__dict__['a'] = value


class PropertyRaises(Base):
  @property
  def broken(self):
    raise ArithmeticError('broken property')


class DataDescriptor:
  def __get__(self, instance, owner=None):
    return 'from the descriptor'

  def __set__(self, instance, value):
    instance.__dict__['described'] = value


class HasDataDescriptor(Base):
  described = DataDescriptor()

  def __init__(self):
    super().__init__()
    self.described = param()


class GetattrInvents(Base):
  def __getattr__(self, name):
    if name.startswith('__'):
      raise AttributeError(name)
    return f'invented {name}'


class GetattributeLies(Base):
  def __getattribute__(self, name):
    if name == 'a':
      return 'a lie'
    return super().__getattribute__(name)


class GetattributeHidesDict(Base):
  def __getattribute__(self, name):
    if name == '__dict__':
      return {'hidden': 5}
    return super().__getattribute__(name)


class SetattrRecords(Base):
  def __setattr__(self, name, value):
    self.__dict__.setdefault('log', []).append(name)
    super().__setattr__(name, value)


class SetattrRefuses(Base):
  def __setattr__(self, name, value):
    if name in vars(self):
      raise PermissionError(f'{name} is set for good')
    super().__setattr__(name, value)


class DelattrRefuses(Base):
  def __delattr__(self, name):
    raise PermissionError(f'{name} stays')


class ClassLies(Base):
  @property
  def __class__(self):
    return nnx.Linear


class ClassIsVariable(Base):
  """Says that it is a Variable, and isinstance believes it."""
  __class__ = nnx.Param


class EqualToAll(Base):
  def __eq__(self, other):
    return True

  def __hash__(self):
    return 0


class Unhashable(Base):
  __hash__ = None


class LengthZero(Base):
  def __len__(self):
    return 0

  def __bool__(self):
    return False


class Iterates(Base):
  def __iter__(self):
    raise ArithmeticError('iterated')

  def __contains__(self, item):
    raise ArithmeticError('searched')

  def __getitem__(self, key):
    raise ArithmeticError('indexed')


class ReprRaises(Base):
  def __repr__(self):
    raise OSError('not printable')


class NewTakesArguments(Base):
  def __new__(cls, *args):
    if not args:
      raise TypeError('wants an argument')
    return super().__new__(cls)

  def __init__(self, *args):
    super().__init__()


class Callables(Base):
  """Functions, methods and partials as attributes."""

  def __init__(self):
    super().__init__()
    self.function, self.method, self.builtin = len, self.call, [].append

  def call(self):
    return 1


class HooksAreInstanceAttributes(Base):
  """The names of the walk's own functions, put into the instance dict."""

  def __init__(self):
    super().__init__()
    for name in ('_graph_node_flatten', '_graph_node_init', '_pytree__flatten', '__class_getitem__'):
      self.__dict__[name] = 'shadow'


class IsPytreeShadowed(Base):
  def __init__(self):
    super().__init__()
    self.__dict__['_pytree__is_pytree'] = False


class IntKeysShadowed(Base):
  def __init__(self):
    super().__init__()
    self.__dict__['_pytree__has_int_keys'] = True
    self.__dict__['7'] = param()


class NotAPytree(Base, pytree=False):
  def __init__(self):
    super().__init__()
    self.children = [param(), {'x': param()}]


ZOO = [
  PropertyOverDict, PropertyRaises, HasDataDescriptor, GetattrInvents, GetattributeLies,
  GetattributeHidesDict, SetattrRecords, SetattrRefuses, DelattrRefuses, ClassLies, ClassIsVariable,
  EqualToAll, Unhashable, LengthZero, Iterates, ReprRaises, NewTakesArguments, Callables,
  HooksAreInstanceAttributes, IsPytreeShadowed, IntKeysShadowed, NotAPytree,
]


def made(cls):
  return cls(1) if cls is NewTakesArguments else cls()


@pytest.mark.parametrize('name', [cls.__name__ for cls in ZOO])
def test_every_walk(say, name):
  say_outcomes(say, lambda: made(globals()[name]))


@pytest.mark.parametrize('name', [cls.__name__ for cls in ZOO])
def test_below_another_module(say, name):

  def parent():
    child = made(globals()[name])
    module = nnx.Module()
    module.__dict__['one'] = module.__dict__['two'] = child
    module.three = nnx.List([param()])
    object.__setattr__(module, '_pytree__nodes', HashableMapping({'one': True, 'two': True,
                                                                 'three': True}))
    return module

  say_outcomes(say, parent, ('split', 'state', 'round trip', 'clone', 'update', 'pop', 'iter_graph',
                             'find_duplicates', 'jit'))


MARKS = {
  'empty': lambda: HashableMapping({}), 'plain dict': lambda: {'a': True, 'b': False},
  'ordered dict': lambda: collections.OrderedDict(a=True, static=True),
  'default dict': lambda: collections.defaultdict(lambda: True, a=True),
  'mapping proxy': lambda: types.MappingProxyType({'a': True}), 'chain': lambda: collections.ChainMap({'a': 1}),
  'list of names': lambda: ['a'], 'none': lambda: None, 'text': lambda: 'ab',
  'truthy marks': lambda: HashableMapping({'a': 1, 'b': 'yes', 'static': [0]}),
  'falsy marks': lambda: HashableMapping({'a': 0, 'b': '', 'static': None}),
  'statics are data': lambda: HashableMapping({'a': True, 'b': True, 'static': True}),
  'variables are static': lambda: HashableMapping({'a': False, 'b': False, 'static': False}),
  'arrays as marks': lambda: HashableMapping({'a': jnp.array(True), 'b': jnp.array([1, 2])}),
  'state is static': lambda: HashableMapping({'_pytree__state': False, 'a': True, 'b': True}),
}


class BoolRaises:
  def __bool__(self):
    raise ArithmeticError('no truth')


class BoolMeddles:
  def __init__(self):
    self.module, self.count = None, 0

  def __bool__(self):
    self.count += 1
    if self.module is not None:
      self.module.__dict__[f'added{self.count}'] = self.count
      self.module.__dict__.pop('b', None)
    return True


@pytest.mark.parametrize('kind', MARKS)
def test_marks_replaced(say, kind):

  def make():
    module = Base()
    object.__setattr__(module, '_pytree__nodes', MARKS[kind]())
    return module

  say_outcomes(say, make)


def test_marks_that_raise_or_change_the_module(say):

  def raising():
    module = Base()
    object.__setattr__(module, '_pytree__nodes', HashableMapping({'a': True, 'b': BoolRaises()}))
    return module

  def meddling():
    module = Base()
    mark = BoolMeddles()
    marks = {'_pytree__state': True, 'a': mark, 'b': mark, 'static': mark}
    object.__setattr__(module, '_pytree__nodes', HashableMapping(marks))
    mark.module = module
    return module

  walks = ('split', 'state', 'round trip', 'clone', 'iter_graph', 'find_duplicates', 'pop')
  say_outcomes(say, raising, walks)
  say_outcomes(say, meddling, walks)


def test_marks_missing(say):

  def make():
    module = Base()
    del module.__dict__['_pytree__nodes']
    return module

  say_outcomes(say, make)


def test_state_missing(say):

  def make():
    module = Base()
    del module.__dict__['_pytree__state']
    return module

  say_outcomes(say, make)


class LyingDict(dict):
  """An instance dict whose methods show other things than it holds."""

  def items(self):
    return [('only', 5)]

  def values(self):
    return [5]

  def __iter__(self):
    return iter(['only'])

  def __len__(self):
    return 1


class LoudDict(dict):
  log: list = []

  def items(self):
    self.log.append('items')
    return super().items()

  def clear(self):
    self.log.append('clear')
    super().clear()

  def __setitem__(self, key, value):
    self.log.append(f'set {key}')
    super().__setitem__(key, value)

  def pop(self, *key):
    self.log.append(f'pop {key}')
    return super().pop(*key)


def test_instance_dict_of_another_class(say):
  for kind in (LyingDict, LoudDict, collections.OrderedDict):

    def make(kind=kind):
      module = Base()
      object.__setattr__(module, '__dict__', kind(module.__dict__))
      return module

    say(kind.__name__)
    say_outcomes(say, make, log=LoudDict.log)


def test_instance_dict_gains_keys_during_the_walk(say):

  class Child(nnx.Module):
    """Flattens its own way and changes the one who holds it."""
    parent = None

    def __init__(self):
      self.x = param()

    def _graph_node_flatten(self):
      if self.parent is not None:
        self.parent.__dict__[f'added{len(self.parent.__dict__)}'] = 1
        self.parent.__dict__.pop('z', None)
      return [('x', self.x)], type(self)

  def make():
    parent = Base()
    parent.m = Child()
    parent.z = param()
    Child.parent = parent
    return parent

  say_outcomes(say, make)
  Child.parent = None


def test_class_changed_between_calls(say):

  class Other(nnx.Module):
    def __init__(self):
      pass

  step = nnx.jit(lambda m: jnp.sum(m.a[...]))
  module = Base()
  for cls in (Base, Base, Other, Other, Base):
    module.__class__ = cls
    say(cls.__name__, outcome(nnx.split, module)[0], error_of(lambda: float(step(module))))


def test_class_changed_to_one_that_is_no_module(say):

  class Plain:
    pass

  module = Base()
  say(error_of(setattr, module, '__class__', Plain))
  say(error_of(object.__setattr__, module, '__class__', Plain))
  say(type(module).__name__, outcome(nnx.split, [module]))


def test_attribute_deleted_and_set_again(say):
  step = nnx.jit(lambda m: jnp.sum(m.a[...]))
  module = Base()
  for _ in range(4):
    say(float(step(module)), list(vars(module)))
    kept = module.a
    del module.a
    module.a = kept
    say(list(vars(module)), text(nnx.graphdef(module).attributes))


def test_slots_are_refused(say):

  def make_class():
    class Slotted(Base):
      __slots__ = ('hidden',)

  say(error_of(make_class))


def test_merge_into_a_class_that_refuses_attributes(say):

  class Refuses(nnx.Module):
    def __init__(self):
      self.a = param()

  graphdef, state = nnx.split(Refuses())
  Refuses.a = property(lambda self: 'read only')
  again = outcome(lambda g: nnx.merge(g, state), graphdef)
  say(again)
  del Refuses.a


def test_private_walk_functions_called_directly(say):
  module = Base()
  for call in (lambda: graphlib.graph_pop(module, (nnx.Param,)), lambda: graphlib.graph_pop(5, ()),
               lambda: graphlib.graph_pop(module, (5,)), lambda: graphlib.graph_pop(module, 5)):
    say(error_of(call)[:200], contents(module))
