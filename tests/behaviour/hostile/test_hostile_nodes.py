"""Node types with functions of their own: what they may give, change, raise or throw away."""
import gc
import sys
import weakref

import jax.numpy as jnp
import pytest
from flax import nnx
from flax.nnx import graphlib
from hostile.outcomes import WITHOUT_JIT, outcome, say_outcomes, text
from telling import error_of


def param(value: float = 1.0) -> nnx.Param:
  return nnx.Param(jnp.full(2, value))


class Node:
  """A graph node whose flatten is `flatten(self)`, given for each instance."""

  def __init__(self, flatten=None, **attributes):
    vars(self).update(attributes)
    vars(self)['_flatten'] = flatten

  def __repr__(self):
    return f'Node({sorted(k for k in vars(self) if k != "_flatten")})'


def attributes_of(node) -> list:
  return [(k, v) for k, v in vars(node).items() if k != '_flatten']


def flatten_node(node):
  flatten = vars(node).get('_flatten')
  return (attributes_of(node), Node) if flatten is None else flatten(node)


graphlib.register_graph_node_type(
  Node, flatten=flatten_node,
  set_key=lambda node, key, value: vars(node).__setitem__(key, value),
  pop_key=lambda node, key: vars(node).pop(key),
  create_empty=lambda cls: cls(), clear=lambda node: vars(node).clear(),
  init=lambda node, pairs: vars(node).update(pairs))

PAIRS = [('b', 1), ('a', param())]
SHAPES = {
  'generator of pairs': lambda n: ((p for p in PAIRS), None),
  'iterator of pairs': lambda n: (iter(PAIRS), None),
  'tuple of pairs': lambda n: (tuple(PAIRS), None),
  'dict': lambda n: (dict(PAIRS), None),
  'dict items': lambda n: (dict(PAIRS).items(), None),
  'set of pairs': lambda n: ({('b', 1)}, None),
  'zip': lambda n: (zip('ba', [1, 2], strict=True), None),
  'lists as pairs': lambda n: ([['b', 1], ['a', 2]], None),
  'texts as pairs': lambda n: (['bx', 'ay'], None),
  'text': lambda n: ('bxay', None),
  'triples': lambda n: ([('b', 1, 2)], None),
  'singles': lambda n: ([('b',)], None),
  'not pairs': lambda n: ([1, 2], None),
  'none': lambda n: (None, None),
  'number': lambda n: (5, None),
  'duplicate keys': lambda n: ([('a', param()), ('a', 2), ('a', 3)], None),
  'unsorted keys': lambda n: ([('z', param()), ('a', param()), (3, param())], None),
  'keys of mixed types': lambda n: ([(1, param()), ('1', param()), (None, param())], None),
  'unhashable keys': lambda n: ([([], param()), ({}, 1)], None),
  'unhashable metadata': lambda n: (PAIRS, [[]]),
  'no metadata': lambda n: PAIRS,
  'three results': lambda n: (PAIRS, None, None),
  'nothing': lambda n: None,
  'itself': lambda n: ([('me', n)], None),
  'the same child twice': lambda n: ([('x', PAIRS[1][1]), ('y', PAIRS[1][1])], None),
  'elements marked as data': lambda n: ([('x', graphlib.DataElem(5)), ('y', graphlib.DataElem(param()))], None),
  'elements marked as static': lambda n: (
    [('x', graphlib.StaticElem(param())), ('y', graphlib.StaticElem(jnp.ones(1)))], None),
  'marked twice': lambda n: ([('x', graphlib.DataElem(graphlib.DataElem(5)))], None),
  'length lies': lambda n: (LyingLength(PAIRS), None),
  'grows while it is read': lambda n: (Growing(PAIRS), None),
  'empty': lambda n: ([], None),
}


class LyingLength(list):
  def __len__(self):
    return 1


class Growing(list):
  def __iter__(self):
    for i, item in enumerate(list.__iter__(self)):
      if i < 3:
        self.append((f'new{i}', i))
      yield item


@pytest.mark.parametrize('kind', SHAPES)
def test_what_flatten_gives(say, kind):
  say_outcomes(say, lambda: Node(SHAPES[kind]))
  say_outcomes(say, lambda: {'x': [Node(SHAPES[kind])], 'y': param()}, WITHOUT_JIT)


def test_results_of_odd_lengths(say):
  for size in (-1, 2**70, 'x', None, 1.5):

    class Sized:
      def __len__(self, size=size):
        return size

      def __iter__(self):
        return iter(PAIRS)

    say(size)
    say_outcomes(say, lambda sized=Sized: [Node(lambda n: (sized(), None))],
                 ('split', 'iter_graph', 'find_duplicates'))


ERRORS = {
  'ValueError': ValueError('from flatten'), 'KeyError': KeyError('from flatten'),
  'AttributeError': AttributeError('from flatten'), 'StopIteration': StopIteration('from flatten'),
  'RecursionError': RecursionError('from flatten'), 'MemoryError': MemoryError('from flatten'),
  'KeyboardInterrupt': KeyboardInterrupt('from flatten'), 'SystemExit': SystemExit(3),
  'GeneratorExit': GeneratorExit('from flatten'),
}


@pytest.mark.parametrize('kind', ERRORS)
def test_functions_that_raise(say, kind):

  def raises(*args):
    raise ERRORS[kind]

  say_outcomes(say, lambda: {'a': param(), 'b': Node(raises), 'c': param()})
  old = graphlib.GRAPH_REGISTRY[Node]
  import dataclasses
  for name in ('set_key', 'pop_key', 'create_empty', 'clear', 'init'):
    graphlib.GRAPH_REGISTRY[Node] = dataclasses.replace(old, **{name: raises})
    try:
      model = Node(a=param(), b=5)
      say(name, error_of(nnx.update, model, {'a': param(5.0), 'new': param()}), sorted(vars(model)))
      step = nnx.jit(lambda m: setattr(m, 'b', 6))
      say(name, error_of(step, model)[:100], text(model))
    finally:
      graphlib.GRAPH_REGISTRY[Node] = old


def test_an_error_half_way_leaves_contexts_clean(say):

  def raises(node):
    raise ValueError('half way')

  model = {'a': param(), 'b': Node(raises)}
  with pytest.raises(ValueError, match='half way'):
    nnx.split(model)
  with pytest.raises(ValueError, match='half way'), graphlib.split_context() as context:
    context.split(model)
  with pytest.raises(ValueError, match='half way'):
    nnx.jit(lambda m: None)(model)
  say(graphlib.GRAPH_CONTEXT.ref_index_stack, graphlib.GRAPH_CONTEXT.index_ref_stack,
      {k: len(v) for k, v in graphlib.GRAPH_CONTEXT.update_context_stacks.items()})
  say(outcome(nnx.split, {'a': param()}))


MUTATIONS = {
  'adds a key': lambda model: model.__setitem__(f'new{len(model)}', 1),
  'removes a key': lambda model: model.pop('d', None),
  'clears': lambda model: model.clear(),
  'replaces a later value': lambda model: model.__setitem__('d', param(7.0)),
  'replaces an earlier value': lambda model: model.__setitem__('a', param(7.0)),
  'changes a value in place': lambda model: model['d'].set_raw_value(jnp.zeros(3)) if 'd' in model else None,
}


@pytest.mark.parametrize('kind', MUTATIONS)
def test_flatten_that_changes_what_is_being_walked(say, kind):

  def make():
    model: dict = {'a': param(1.0), 'd': param(4.0)}

    def flatten(node):
      MUTATIONS[kind](model)
      return [('x', param(9.0))], None

    model['b'] = Node(flatten)
    return model

  say_outcomes(say, make)


@pytest.mark.parametrize('kind', ['append', 'clear', 'pop', 'replace'])
def test_flatten_that_changes_the_list_it_is_in(say, kind):

  def make():
    model: list = []

    def flatten(node):
      {'append': lambda: model.append(1) if len(model) < 40 else None, 'clear': model.clear,
       'pop': lambda: model.pop() if len(model) > 1 else None,
       'replace': lambda: model.__setitem__(-1, 'replaced') if model else None}[kind]()
      return [], None

    model += [param(), Node(flatten), param(), Node(flatten), param()]
    return model

  say_outcomes(say, make)


def test_flatten_that_changes_the_module_it_is_in(say):

  def make():
    module = nnx.Linear(2, 2, rngs=nnx.Rngs(0))

    def flatten(node):
      vars(module).pop('kernel', None)
      vars(module)['zz'] = 1
      return [], None

    vars(module)['bb'] = Node(flatten)
    module._pytree__nodes  # noqa: B018  (reading it must not matter)
    object.__setattr__(module, '_pytree__nodes', module._pytree__nodes.update({'bb': True}))
    return module

  say_outcomes(say, make)


def test_flatten_that_reenters(say):
  depth: list = []

  def flatten(node):
    inner = 'deep'
    if len(depth) < 3:
      depth.append(1)
      inner = text(nnx.split([param(), node])[0].nodes)
      depth.pop()
    return [('a', param()), ('b', inner)], None

  say_outcomes(say, lambda: {'x': Node(flatten), 'y': param()})


def test_flatten_that_reenters_in_a_context(say):

  def flatten(node):
    with graphlib.split_context() as context:
      context.split(nnx.Linear(1, 1, rngs=nnx.Rngs(0)))
    return [('a', param())], None

  def make():
    return {'x': Node(flatten), 'y': param()}

  say_outcomes(say, make)
  with graphlib.split_context() as context:
    say(text(context.split(make())[0]))
    say(text(context.split(make())[0]))


def test_init_that_reenters(say):
  old = graphlib.GRAPH_REGISTRY[Node]
  import dataclasses

  def init(node, pairs):
    pairs = list(pairs)
    vars(node).update(pairs)
    vars(node)['again'] = text(nnx.clone({'x': param()}))

  graphlib.GRAPH_REGISTRY[Node] = dataclasses.replace(old, init=init)
  try:
    say_outcomes(say, lambda: {'x': Node(a=param()), 'y': Node(a=1)}, ('round trip', 'clone'))
  finally:
    graphlib.GRAPH_REGISTRY[Node] = old


def test_the_last_reference_to_the_node_is_dropped(say):
  gone: list = []

  def make():
    box: list = [param()]

    def flatten(node):
      box[1] = None
      gc.collect()
      return attributes_of(node), None

    box.append(Node(flatten, a=param()))
    weakref.finalize(box[1], gone.append, 1)
    return {'box': box, 'after': param()}

  say_outcomes(say, make, log=gone)
  gc.collect()


def test_children_that_only_flatten_holds(say):
  log: list = []

  class Mortal(nnx.Module):
    def __init__(self):
      self.a = param()

    def __del__(self):
      log.append('gone')

  def make():
    return {'x': Node(lambda n: ([('m', Mortal()), ('n', Mortal())], None)), 'y': param()}

  for name in ('split', 'state', 'graphdef', 'iter_graph', 'find_duplicates'):
    say_outcomes(say, make, [name])
    gc.collect()
    say(len(log) > 0)
    log.clear()


def test_collections_during_the_walk(say):

  def flatten(node):
    gc.collect()
    return attributes_of(node), None

  threshold = gc.get_threshold()
  gc.set_threshold(1, 1, 1)
  try:
    say_outcomes(say, lambda: [Node(flatten, a=param(), b=nnx.Linear(2, 2, rngs=nnx.Rngs(0)))],
                 ('split', 'clone', 'iter_graph', 'update', 'pop'))
  finally:
    gc.set_threshold(*threshold)


def test_recursion_limit_reached_within_flatten(say):

  def flatten(node):
    return [('child', Node(flatten))], None

  for name in ('split', 'iter_graph', 'find_duplicates'):
    outcome_of = {'split': nnx.split, 'find_duplicates': nnx.find_duplicates,
                  'iter_graph': lambda n: [x for x, _ in zip(nnx.iter_graph(n), range(2), strict=False)]}
    if name == 'iter_graph':
      continue   # it goes down without recursion, and so without end
    say(name, outcome(outcome_of[name], Node(flatten))[0].split(':')[0])
  say(sys.getrecursionlimit())


def test_pytree_types_with_odd_functions(say):

  class Tree:
    def __init__(self, *children):
      self.children = children

    def __repr__(self):
      return 'Tree()'

  graphlib.register_pytree_node_type(
    Tree, flatten=lambda t: ([(i, c) for i, c in enumerate(t.children)], len(t.children)),
    unflatten=lambda pairs, size: Tree(*(v for _, v in pairs)))
  say_outcomes(say, lambda: Tree(param(), Tree(), 5))
  say_outcomes(say, lambda: {'x': Tree(param(), None), 'y': param()})
  shared = param()
  say_outcomes(say, lambda: {'x': Tree(shared, shared), 'y': shared})
  for wrong in (lambda pairs, m: None, lambda pairs, m: 1 / 0, lambda pairs, m: list(pairs) + pairs,
                lambda pairs: 5, lambda pairs, m: pairs.clear()):
    import dataclasses
    graphlib.PYTREE_REGISTRY[Tree] = dataclasses.replace(
      graphlib.PYTREE_REGISTRY[Tree], unflatten=wrong)
    say_outcomes(say, lambda: {'x': Tree(param(), 1)}, ('round trip', 'clone'))
  del graphlib.PYTREE_REGISTRY[Tree]


def test_hooks_overridden_in_a_module(say):

  class Renames(nnx.Module):
    def __init__(self):
      self.a, self.b = param(), 5

    def _graph_node_flatten(self):
      nodes, metadata = super()._graph_node_flatten()
      return [(f'x{k}', v) for k, v in nodes], metadata

    def _graph_node_init(self, attributes):
      super()._graph_node_init((k[1:], v) for k, v in attributes)

  class Drops(Renames):
    def _graph_node_flatten(self):
      return [], type(self)

  class StaticCreate(nnx.Module):
    def __init__(self):
      self.a = param()

    @staticmethod
    def _graph_node_create_empty(node_type):
      node = object.__new__(node_type)
      vars(node)['created'] = True
      return node

  class ClearKeeps(nnx.Module):
    def __init__(self):
      self.a = param()
      self.kept = 1

    def _graph_node_clear(self):
      vars(self).pop('a')

  class SetKeyRefuses(nnx.Module):
    def __init__(self):
      self.a, self.b = param(), jnp.ones(2)

    def _graph_node_set_key(self, key, value):
      raise PermissionError(f'{key} is not to be set')

    def _graph_node_pop_key(self, key):
      raise PermissionError(f'{key} is not to be taken')

  for cls in (Renames, Drops, StaticCreate, ClearKeeps, SetKeyRefuses):
    say(cls.__name__)
    say_outcomes(say, cls)
    say_outcomes(say, lambda cls=cls: {'x': cls(), 'y': [cls()]}, ('split', 'round trip', 'update', 'pop'))
