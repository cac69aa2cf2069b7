"""Objects that die, come back, or act while a walk holds them."""
import gc
import inspect
import sys
import weakref

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from flax.nnx import graph_fast, graphlib
from hostile.outcomes import outcome, result_of, say_outcomes, text


def param(value: float = 1.0) -> nnx.Param:
  return nnx.Param(jnp.full(2, value))


class Node(nnx.Module):
  """A Module with a flatten that first does what it is told."""

  def __init__(self, act=None, **attributes):
    self.act = nnx.static(act)
    for name, value in attributes.items():
      setattr(self, name, value)

  def _graph_node_flatten(self):
    if self.act is not None:
      self.act()
    return super()._graph_node_flatten()


def test_a_finalizer_that_changes_the_model(say):
  log: list = []

  class Dies:
    def __init__(self, model):
      self.model = model

    def __del__(self):
      log.append('died')
      self.model['late'] = 1
      self.model.pop('c', None)

    def __repr__(self):
      return 'Dies()'

  def make():
    model: dict = {'a': param(), 'c': param()}
    box = [Dies(model)]
    model['b'] = Node(box.clear)
    return model

  say_outcomes(say, make, log=log)


def test_a_finalizer_that_walks(say):
  log: list = []

  class Dies:
    def __del__(self):
      log.append(text(nnx.split({'x': param()})[0].nodes[0]))

  box: list = []

  def make():
    box.append(Dies())
    return {'a': Node(box.clear, v=param()), 'b': param()}

  say_outcomes(say, make, log=log)


def test_a_value_that_comes_back_to_life(say):
  kept: list = []

  class Phoenix(nnx.Module):
    def __init__(self):
      self.v = param()

    def __del__(self):
      kept.append(self)

  model = {'x': Phoenix()}
  graphdef, state = nnx.split(model)
  del model
  gc.collect()
  say(len(kept), outcome(nnx.split, kept[0]), outcome(lambda g: nnx.merge(g, state), graphdef))
  kept.clear()
  gc.collect()
  kept.clear()


def test_weakref_callbacks_during_the_walk(say):
  log: list = []

  def make():
    box = [Node()]
    model: dict = {'a': param(), 'z': param()}
    reference = weakref.ref(box[0], lambda _: (log.append('called'), model.pop('z', None)))
    model['b'] = Node(box.clear)
    model['keep'] = reference
    return model

  walks = ('split', 'state', 'clone', 'iter_graph', 'find_duplicates', 'pop')
  say_outcomes(say, make, walks, log=log)


def test_the_root_is_held_by_nobody_else(say):
  for name, call in {'split': nnx.split, 'clone': nnx.clone, 'state': nnx.state,
                     'iter_graph': lambda n: [p for p, _ in nnx.iter_graph(n)]}.items():
    say(name, outcome(call, Node(gc.collect, v=param(), w=nnx.List([param()]))))


def test_the_graphdef_dies_while_it_is_merged(say):
  box: list = []

  class Clears(nnx.Module):
    def __init__(self):
      self.v = param()

    def _graph_node_init(self, attributes):
      box.clear()
      gc.collect()
      super()._graph_node_init(attributes)

    @staticmethod
    def _graph_node_create_empty(node_type):
      box.clear()
      return object.__new__(node_type)

  box += nnx.split({'a': Clears(), 'b': Clears(), 'c': param()})
  say(outcome(lambda b: nnx.merge(b[0], b[1]), box))


def test_lists_of_a_graphdef_changed_while_it_is_merged(say):

  class Meddles(nnx.Module):
    change = None

    def __init__(self):
      self.v = param()

    def _graph_node_init(self, attributes):
      Meddles.change()
      super()._graph_node_init(attributes)

  for change in ('clear nodes', 'clear attributes', 'extend nodes', 'extend attributes', 'clear leaves'):
    graphdef, leaves = graphlib.flatten({'a': Meddles(), 'b': Meddles(), 'c': param()}, with_paths=False)
    Meddles.change = {
      'clear nodes': graphdef.nodes.clear, 'clear attributes': graphdef.attributes.clear,
      'extend nodes': lambda g=graphdef: g.nodes.extend(g.nodes[:3]) if len(g.nodes) < 40 else None,
      'extend attributes': lambda g=graphdef: g.attributes.extend(g.attributes[:2]) if len(g.attributes) < 40 else None,
      'clear leaves': leaves.clear,
    }[change]
    say(change, result_of(lambda g=graphdef, x=leaves: list(graphlib.unflatten(g, x))))


def test_index_maps_changed_while_they_are_used(say):

  class Meddles(nnx.Module):
    change = None

    def __init__(self):
      self.v = param()

    def _graph_node_init(self, attributes):
      Meddles.change()
      super()._graph_node_init(attributes)

  model = {'a': Meddles(), 'b': Meddles(), 'c': param()}
  graphdef, leaves = graphlib.flatten(model, with_paths=False)
  for kind in (graphlib.IndexMap, dict):
    index_ref = kind()
    Meddles.change = index_ref.clear
    say(kind.__name__, result_of(lambda i=index_ref: list(graphlib.unflatten(graphdef, leaves, index_ref=i))),
        sorted(index_ref))
    index_ref = kind()
    Meddles.change = lambda i=index_ref: i.update({n: 'taken' for n in range(10)})
    say(kind.__name__, result_of(lambda i=index_ref: list(graphlib.unflatten(graphdef, leaves, index_ref=i))))


def test_reference_maps_changed_while_they_are_filled(say):
  for change in ('clear', 'add', 'mapping'):
    refs = graphlib.RefMap()
    strangers = [object() for _ in range(200)]

    def act(refs=refs, change=change, strangers=strangers):
      if change == 'clear':
        refs.clear()
      elif change == 'add':
        refs.update((s, 1000 + i) for i, s in enumerate(strangers))
      else:
        refs._mapping.clear()

    model = {'a': Node(act, v=param()), 'b': param(), 'c': Node(act, v=param())}
    say(change, outcome(lambda m, r=refs: graphlib.flatten(m, ref_index=r), model), len(refs))
  shared = param()
  refs = graphlib.RefMap()
  model = {'a': shared, 'b': Node(refs.clear), 'c': shared}
  say(outcome(lambda m: graphlib.flatten(m, ref_index=refs), model))


def test_a_loop_that_changes_what_it_iterates(say):
  for change in ('add', 'clear', 'replace', 'drop'):
    model: dict = {'a': [param(), param()], 'b': {'x': param()}, 'c': nnx.List([param()])}
    seen = []
    for path, _ in nnx.iter_graph(model):
      seen.append(path)
      if len(seen) > 60:
        break
      {'add': lambda m=model, s=seen: m.__setitem__(f'new{len(s)}', [param()]), 'clear': model.clear,
       'replace': lambda m=model: m.__setitem__('c', None), 'drop': lambda m=model: m.pop('b', None)}[change]()
      gc.collect()
    say(change, seen)


def test_an_iterator_left_in_the_middle(say):
  model = {'a': [param(), param()], 'b': {'x': param()}}
  walk = nnx.iter_graph(model)
  say(next(walk)[0], next(walk)[0])
  walk.close()
  say(result_of(next, walk))
  walk = nnx.iter_graph(model)
  next(walk)
  say(result_of(walk.throw, ValueError('thrown in')), result_of(next, walk))
  walk = nnx.iter_graph(model)
  say(type(walk).__name__, hasattr(walk, 'send'), iter(walk) is walk)
  other = nnx.iter_graph(model)
  say([(a[0], b[0]) for a, b in zip(walk, other, strict=True)])
  ring: dict = {'a': Node()}
  ring['walk'] = nnx.iter_graph(ring)
  next(ring['walk'])
  gone = weakref.ref(ring['a'])
  del ring
  gc.collect()
  assert gone() is None


def test_an_iterator_that_runs_itself(say):
  walk = None

  class Reenters(nnx.Module):
    def _graph_node_flatten(self):
      next(walk)
      return super()._graph_node_flatten()

  walk = nnx.iter_graph([Reenters(), param()])
  say(result_of(lambda: [p for p, _ in walk]))


def test_models_made_and_freed_at_one_address(say):
  graphdefs = []
  for i in range(50):
    model = nnx.Linear(2, 2 + i % 3, rngs=nnx.Rngs(0))
    graphdefs.append(nnx.graphdef(model))
    del model
  say([graphdefs[i] == graphdefs[i + 3] for i in range(20)], graphdefs[0] == graphdefs[1])


def test_classes_made_and_freed(say):
  answers = []
  for i in range(60):

    class Short(nnx.Module):
      def __init__(self, i=i):
        self.v = param(i)

    class Value:
      pass

    answers.append(len(nnx.split([Short(), Value(), type('Own', (list,), {})()])[0].nodes))
    del Short, Value
    gc.collect() if i % 20 == 0 else None
  say(answers)


@pytest.mark.parametrize('limit', [200, 300, 500])
def test_low_recursion_limits(say, limit):
  """Deep chains end in RecursionError or in the right answer, never in a crash."""

  def chain(depth):
    node = {'v': param()}
    for _ in range(depth):
      node = {'n': node}
    return node

  used = len(inspect.stack())
  for depth in (10, limit // 2, limit * 3):
    model = chain(depth)
    for walk in (nnx.split, nnx.clone, lambda m: nnx.update(m, nnx.state(m)), nnx.find_duplicates,
                 lambda m: nnx.pop(m, nnx.Param), lambda m: list(nnx.iter_graph(m)) and None):
      before = sys.getrecursionlimit()
      sys.setrecursionlimit(used + limit)
      try:
        walk(model)
      except RecursionError:
        pass
      finally:
        sys.setrecursionlimit(before)
  assert graphlib.GRAPH_CONTEXT.ref_index_stack == []
  say(outcome(nnx.split, chain(3)))


def test_arrays_freed_during_the_walk(say):
  array = jnp.ones(3) + 1
  gone = weakref.ref(array)
  variable = nnx.Param(array)
  model = {'a': variable, 'b': Node(lambda: variable.set_raw_value(jnp.zeros(1)))}
  del array
  graphdef, leaves = graphlib.flatten(model, with_paths=False)
  say([x.tolist() for x in leaves if isinstance(x, jax.Array)], gone() is not None)
  del leaves, graphdef
  gc.collect()
  assert gone() is None


class Sentinel(nnx.Module):
  """A Module that can be watched by weak reference; so can its array."""

  def __init__(self, static=None):
    self.v = param()
    self.static = static


def freed_at_once(use) -> list[bool]:
  """Whether a model, its child and its array die with the last reference, without the collector."""
  model = {'m': Sentinel(), 'list': [Sentinel()], 'p': param()}
  watched = [model['m'], model['list'][0], model['m'].v.get_raw_value(), model['p'].get_raw_value()]
  references = [weakref.ref(x) for x in watched]
  del watched
  gc.collect()
  gc.disable()
  try:
    kept = use(model)
    del model, kept
    return [reference() is None for reference in references]
  finally:
    gc.enable()


USES = {
  'split': nnx.split, 'split by type': lambda m: nnx.split(m, nnx.Param, ...), 'state': nnx.state,
  'graphdef': nnx.graphdef, 'clone': nnx.clone, 'round trip': lambda m: nnx.merge(*nnx.split(m)),
  'update': lambda m: nnx.update(m, nnx.state(m)), 'pop': lambda m: nnx.pop(m, nnx.Param),
  'iter_graph': lambda m: list(nnx.iter_graph(m)) and None, 'iter_graph left': lambda m: next(nnx.iter_graph(m)) and None,
  'find_duplicates': nnx.find_duplicates, 'hash': lambda m: hash(nnx.graphdef(m)),
  'flatten': lambda m: graphlib.flatten(m, ref_index=graphlib.RefMap()),
  'flat state': lambda m: nnx.from_flat_state(nnx.to_flat_state(nnx.state(m))),
  'error': lambda m: result_of(nnx.split, [m, Node(lambda: 1 / 0)]),
  'error in merge': lambda m: result_of(nnx.merge, nnx.graphdef(m), {}),
  'error in update': lambda m: result_of(nnx.update, m, {'m': {'v': {'x': 1}}, 'p': 5}),
  'context': lambda m: in_contexts(m), 'jit': lambda m: nnx.jit(lambda x: None)(m),
  'jit with a write': lambda m: nnx.jit(lambda x: x['p'].set_raw_value(jnp.zeros(2)))(m),
  'jit with an error': lambda m: result_of(nnx.jit(lambda x: 1 / 0), m),
}


def in_contexts(model) -> None:
  with graphlib.split_context() as context:
    graphdef, state = context.split(model)
  with graphlib.merge_context() as context:
    context.merge(graphdef, state)


# The pure twin's inner functions refer to themselves, so what they held waits for the collector.
PURE_LEAVES_CYCLES = ('clone', 'round trip', 'flat state', 'context')


@pytest.mark.parametrize('name', USES)
def test_models_are_freed_at_once(say, name):
  for _ in range(3):
    modules_and_arrays = freed_at_once(USES[name])
    assert all(modules_and_arrays[:2])
    if graph_fast.twin() == 'compiled' or name not in PURE_LEAVES_CYCLES:
      assert all(modules_and_arrays)


def test_what_a_graphdef_keeps_alive(say):
  for make in (object, Sentinel, lambda: (object(),), lambda: Sentinel):
    static = make()
    model = Sentinel(static)
    graphdef, state = nnx.split(model)
    gone = weakref.ref(model)
    array = weakref.ref(model.v.get_raw_value())
    hash(graphdef)
    del model, static
    gc.collect()
    say(gone() is None, array() is not None)
    del state
    gc.collect()
    assert array() is None
    merged = result_of(nnx.merge, graphdef, {'v': 5})
    say(merged.startswith('gives'))


def test_statics_die_with_the_last_graphdef(say):

  class Value:
    pass

  value = Value()
  gone = weakref.ref(value)
  model = Sentinel(value)
  graphdefs = [nnx.graphdef(model), nnx.clone(model), nnx.state(model)]
  hash(graphdefs[0])
  del value, model, graphdefs
  gc.collect()
  assert gone() is None
