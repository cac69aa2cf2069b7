"""What the graph types and the functions around them look like to people and tools."""
import inspect
import typing as tp

import jax
import pytest
import treescope
from flax import nnx
from flax.nnx import graphlib, statelib
from graphtypes.samples import DATACLASSES, NAMES, cls, sample
from telling import error_of, plain

FORKS_OWN_MODULES = ('fast', 'graph_fast', 'jit_fast', 'pytree_fast', 'state_fast', 'twins')


def functions_of(module) -> dict:
  return {
    name: value for name, value in sorted(vars(module).items())
    if inspect.isfunction(value) and not name.startswith('_')
  }


@pytest.mark.parametrize('name', NAMES)
def test_repr(say, name):
  say(plain(repr(sample(name))))
  say(plain(str(sample(name))))
  say(plain(f'{sample(name)}'))
  say(plain(repr(cls(name))))


def test_repr_of_a_models_graphdef(say):
  graphdef = nnx.graphdef(nnx.Sequential(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.relu))
  say(plain(repr(graphdef)))
  for node in graphdef.nodes:
    say(plain(repr(node)))


def test_repr_that_raises(say):

  class Mute:
    def __repr__(self):
      raise ValueError('no words')

  for name in DATACLASSES:
    say(name, error_of(repr, cls(name)(*[Mute()] * len(cls(name).__match_args__))))


@pytest.mark.parametrize('name', NAMES)
def test_treescope(say, name):
  say(plain(error_of(treescope.render_to_text, sample(name))))


@pytest.mark.parametrize('name', NAMES)
def test_names_and_docs(say, name):
  found = cls(name)
  say(found.__module__, found.__qualname__, found.__name__, found.__doc__)
  say([base.__module__ + '.' + base.__qualname__ for base in found.__mro__])
  say(type(found).__name__, plain(found.__bases__), plain(getattr(found, '__orig_bases__', None)))
  say(plain(getattr(found, '__parameters__', None)), found.__basicsize__ > 0)
  say(plain(error_of(inspect.signature, found)))
  say(getattr(graphlib, name) is getattr(inspect.getmodule(found), name))


@pytest.mark.parametrize('name', NAMES)
def test_methods(say, name):
  shown = [n for n in dir(cls(name)) if not n.startswith('_') or n in (
    '__init__', '__eq__', '__hash__', '__repr__', '__getitem__', '__setitem__', '__delitem__',
    '__len__', '__contains__', '__iter__', '__nnx_repr__', '__treescope_repr__', '__setattr__')]
  for method in shown:
    value = inspect.getattr_static(cls(name), method)
    function = getattr(value, '__func__', value)
    if not inspect.isfunction(function):
      continue
    say(method, type(value).__name__, function.__module__, function.__qualname__)
    say(plain(inspect.signature(function)), function.__doc__, plain(function.__defaults__),
        function.__kwdefaults__, plain(function.__annotations__))


def test_abc_registration(say):
  made = sample('RefMap')
  for abc in (tp.MutableMapping, tp.Mapping, tp.Hashable, tp.Sized, tp.Iterable, dict):
    say(abc, isinstance(made, abc), issubclass(cls('RefMap'), abc))
  say(isinstance(sample('IndexMap'), dict), issubclass(cls('RefMap'), graphlib.PythonRefMap))
  for name in DATACLASSES:
    say(name, isinstance(sample(name), tp.Hashable), isinstance(sample(name), tp.Sized))


@pytest.mark.parametrize('module', ['graphlib', 'statelib'])
def test_functions(say, module):
  for name, function in functions_of(getattr(nnx, module)).items():
    say(name, function.__module__, function.__qualname__, function.__name__, function.__doc__)
    say(plain(inspect.signature(function)), plain(function.__annotations__))
    say(plain(function.__defaults__), plain(function.__kwdefaults__))
    source = inspect.getsource(function)
    say(len(source), hash_of(source), inspect.getsourcelines(function)[1])


def hash_of(text: str) -> int:
  """The same in every process, unlike `hash`."""
  return sum(i * ord(c) for i, c in enumerate(text, 1)) % 1_000_000_007


@pytest.mark.parametrize('name', NAMES)
def test_source_of_the_classes(say, name):
  say(len(inspect.getsource(cls(name))), hash_of(inspect.getsource(cls(name))))
  say(inspect.getsourcefile(cls(name)).rpartition('/')[2])


def test_names_in_the_modules(say):
  for module in (graphlib, statelib):
    say(sorted(name for name in vars(module) if not name.startswith('_')))
  say([name for name in dir(nnx) if name not in FORKS_OWN_MODULES])


def test_annotations_resolve(say):
  for name in ('ArrayRefDef', 'NodeRef', 'NodeDef', 'VariableDef', 'GraphDef'):
    say(name, plain(error_of(tp.get_type_hints, cls(name))))


def test_known_to_jax(say):
  for name in NAMES:
    made = sample(name)
    leaves, treedef = jax.tree.flatten(made)
    say(name, len(leaves), leaves == [made], plain(treedef) if not leaves else '')
    other = jax.tree.structure(sample(name))
    say(treedef == other, jax.tree.unflatten(treedef, leaves) is made)
    say(graphlib.is_node(made), graphlib.is_graph_node(made), graphlib.is_pytree_node(made))


def test_registering_with_jax_again(say):
  for name in ('NodeRef', 'NodeDef', 'GraphDef'):
    say(name, error_of(jax.tree_util.register_static, cls(name)).split(',')[0])
  for name in DATACLASSES:

    class Own(cls(name)):
      pass

    say(name, jax.tree.leaves([sample(name), Own(*[0] * len(Own.__match_args__))]) != [])
