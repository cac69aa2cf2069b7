"""Every public traversal over every kind of node."""

import gc

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from flax.nnx import graphlib
from telling import Names, error_of, plain, state_lines, tree, value_of
from zoo import GRAPHS, TREES, Counter, Linear

every_graph = pytest.mark.parametrize('kind', GRAPHS)
both_modes = pytest.mark.parametrize(
  ('kind', 'graph'), [(k, True) for k in GRAPHS] + [(k, False) for k in TREES]
)
FILTERS = {
  'none': (),
  'all': (...,),
  'by_type': (nnx.Param, ...),
  'two_types': (Counter, nnx.Param, ...),
  'not_exhaustive': (Counter,),
  'tag': ('hooked', ...),
  'path': (nnx.PathContains('kernel'), ...),
  'any': (nnx.Any(Counter, 'hooked'), nnx.Not(nnx.Param), ...),
  'callable': (lambda path, leaf: len(path) > 1, ...),
  'early_all': (..., nnx.Param),
  'nothing': (None, True),
  'wrong': (3.5,),
}


def say_graphdef(say, graphdef):
  for node in graphdef.nodes:
    say('node', plain(node))
  for key, attribute in graphdef.attributes:
    say('attribute', repr(key), plain(attribute))
  say('leaves', graphdef.num_leaves)


@every_graph
def test_flatten(say, kind):
  node = GRAPHS[kind]()

  def flattened():
    graphdef, flat = nnx.flatten(node)
    say_graphdef(say, graphdef)
    for path, leaf in flat:
      say(path, value_of(leaf))

  say(error_of(flattened))
  say(*tree(node))


@every_graph
def test_flatten_without_paths(say, kind):
  node = GRAPHS[kind]()

  def flattened():
    ref_index = graphlib.RefMap()
    graphdef, leaves = nnx.flatten(node, with_paths=False, ref_index=ref_index)
    say_graphdef(say, graphdef)
    say([value_of(leaf) for leaf in leaves], len(ref_index), [type(k).__name__ for k in ref_index])
    again, leaves = nnx.flatten(node, with_paths=False, ref_index=ref_index)
    say(plain(again), len(leaves), len(ref_index))

  say(error_of(flattened))


@every_graph
@pytest.mark.parametrize('filters', FILTERS)
def test_split_merge(say, kind, filters):
  node = GRAPHS[kind]()

  def round_trip():
    graphdef, *states = nnx.split(node, *FILTERS[filters])
    for state in states:
      say('state', *state_lines(state))
    merged = nnx.merge(graphdef, *states)
    say(*tree(merged))
    names = Names()
    say(*tree(node, names), *tree(merged, names))
    say(graphdef == nnx.graphdef(merged), nnx.graphdef(node) == graphdef)

  say(error_of(round_trip))


@every_graph
@pytest.mark.parametrize('filters', FILTERS)
def test_state(say, kind, filters):
  def taken():
    states = nnx.state(GRAPHS[kind](), *FILTERS[filters])
    for state in states if isinstance(states, tuple) else (states,):
      say('state', *state_lines(state), plain(state))

  say(error_of(taken))


@every_graph
def test_clone(say, kind):
  def cloned():
    for keywords in ({}, {'variables': False}, {'arrays': True}):
      names, node = Names(), GRAPHS[kind]()
      say(*tree(node, names))
      say(*tree(nnx.clone(node, **keywords), names))

  say(error_of(cloned))


@every_graph
def test_update(say, kind):
  def updated():
    node, names = GRAPHS[kind](), Names()
    say(*tree(node, names))
    state = nnx.state(node)
    doubled = jax.tree.map(lambda x: x if isinstance(x, jax.ShapeDtypeStruct | str) else x * 2, state)
    nnx.update(node, doubled)
    say(*tree(node, names))
    nnx.update(node, nnx.to_pure_dict(state))
    say(*tree(node, names))
    nnx.update(node, *[nnx.state(GRAPHS[kind](), f) for f in (nnx.Param, nnx.Not(nnx.Param))])
    say(*tree(node, names))

  say(error_of(updated))


class Moving(nnx.Module):
  """Puts another Variable in place of `z` when `a` is set."""

  def __setattr__(self, name, value):
    super().__setattr__(name, value)
    if name == 'a' and hasattr(self, 'z'):
      self.z = nnx.Param(jnp.array(10.0))


def test_update_adds_keys(say):
  """What the keys of a node are, or hold, is looked at once, before the first key is added."""
  value = jnp.array(3.0)

  def mixed():
    node = {0: nnx.Param(jnp.array(1.0)), 1: nnx.Param(jnp.array(2.0))}
    say(error_of(lambda: nnx.update(node, {'a': value, 'b': value, 1: value})))
    return tree(node)

  def moved():
    node = Moving()
    node.a, node.z = nnx.data(jnp.array(1.0)), nnx.Param(jnp.array(2.0))
    old = node.z
    nnx.update(node, {'a': value, 'z': value})
    return *tree(node), *tree(old)

  def around(new):
    """A key that the update of a child adds, by a way back to the node."""
    node = Moving()
    node.c = Moving()
    node.c.parent = node
    nnx.update(node, {'c': {'parent': {'new': nnx.Param(value)}}, 'new': new})
    del node.c.parent
    return tree(node)

  for case in (mixed, moved, lambda: around(value), lambda: around({'x': value}), lambda: around(nnx.Param(value))):
    say(error_of(lambda: say(*case())))


@pytest.mark.parametrize('wrap', [dict, nnx.State])
@pytest.mark.parametrize('change', ['another value', 'one more', 'one less', 'one for another'])
def test_update_from_a_state_that_changes(say, wrap, change):
  """A setter of the node's class changes the state while it is read."""

  class Changes(nnx.Module):
    def __setattr__(self, name, value):
      super().__setattr__(name, value)
      if name != 'b' or not hasattr(self, 'c'):
        return
      if change in ('one less', 'one for another'):
        del source['c']
      if change in ('one more', 'one for another'):
        source['d'] = jnp.array(7.0)
      if change == 'another value':
        source['c'] = jnp.array(6.0)

  node = Changes()
  node.a, node.b, node.c = nnx.Param(jnp.array(1.0)), nnx.data(jnp.array(1.0)), nnx.Param(jnp.array(1.0))
  source = {name: jnp.array(2.0) for name in 'abc'}
  state = wrap(source, _copy=False) if wrap is nnx.State else source
  say(error_of(lambda: nnx.update(node, state)))
  say(*tree(node))


@every_graph
def test_pop(say, kind):
  def popped():
    for filters in ((Counter,), (nnx.Param, Counter), (...,), ('nothing',)):
      node = GRAPHS[kind]()
      states = nnx.pop(node, *filters)
      for state in states if isinstance(states, tuple) else (states,):
        say(*state_lines(state))
      say(*tree(node))

  say(error_of(popped))
  say(error_of(nnx.pop, GRAPHS[kind]()))


@both_modes
def test_iterators(say, kind, graph):
  node, names = GRAPHS[kind](), Names()

  def iterated():
    for path, value in nnx.iter_graph(node, graph=graph):
      say(
        path,
        type(value).__name__,
        names(value) if isinstance(value, nnx.Pytree | nnx.Variable) else plain(value),
      )

  say(error_of(iterated))
  say(error_of(lambda: [(k, names(v)) for k, v in nnx.iter_children(node, graph=graph)]))
  say(error_of(lambda: [(p, names(v)) for p, v in nnx.iter_modules(node, graph=graph)]))
  say(error_of(nnx.find_duplicates, node))
  say(error_of(nnx.find_duplicates, node, only=nnx.Variable))


@both_modes
def test_maps(say, kind, graph):
  def visit(path, node):
    say('visit', path, type(node).__name__)
    return node

  say(error_of(lambda: say(*tree(nnx.recursive_map(visit, GRAPHS[kind](), graph=graph)))))

  def zero(path, leaf):
    say('map', path)
    return leaf.replace(0) if isinstance(leaf, nnx.Variable) else leaf

  say(error_of(lambda: say(*tree(nnx.map(zero, GRAPHS[kind](), graph=graph)))))


@pytest.mark.parametrize('kind', TREES)
def test_tree_mode(say, kind):
  def round_trip():
    node, names = GRAPHS[kind](), Names()
    graphdef, state = nnx.split(node, graph=False)
    say_graphdef(say, graphdef)
    say(*state_lines(state))
    for copy in (False, True):
      say(*tree(nnx.merge(graphdef, state, copy=copy), names))
    say(*tree(node, names))

  say(error_of(round_trip))


@every_graph
def test_unflatten_onto_existing(say, kind):
  """The four steps of an update context by hand, through index maps."""

  def stepped():
    node, names = GRAPHS[kind](), Names()
    say(*tree(node, names))
    outer_refs = graphlib.RefMap()
    graphdef, flat = nnx.flatten(node, ref_index=outer_refs)
    inner_indexes = graphlib.IndexMap()
    inner = nnx.unflatten(graphdef, flat, index_ref=inner_indexes, copy_variables=True)
    say(sorted(inner_indexes), *tree(inner, names))
    inner_refs = graphlib.RefMap.from_indexmap(inner_indexes)
    changed, flat = nnx.flatten(inner, ref_index=graphlib.RefMap(), ref_outer_index=inner_refs)
    say_graphdef(say, changed)
    outer_indexes = graphlib.IndexMap.from_refmap(outer_refs)
    again = nnx.unflatten(
      changed, flat, index_ref=graphlib.IndexMap(), outer_index_outer_ref=outer_indexes
    )
    say(again is node, *tree(again, names))
    say_graphdef(say, changed.with_no_outer_index())
    say_graphdef(say, changed.with_same_outer_index())
    say_graphdef(say, graphdef.with_matching_outer_index(changed))

  say(error_of(stepped))


@every_graph
def test_merge_raw_values(say, kind):
  def merged():
    graphdef, state = nnx.split(GRAPHS[kind]())
    say(*tree(nnx.merge(graphdef, nnx.as_pure(state))))
    leaves = jax.tree.leaves(nnx.as_pure(state))
    say(*tree(nnx.merge(graphdef, leaves)))
    say(error_of(lambda: say(*tree(nnx.merge(graphdef, nnx.as_pure(state), recreate_variables=False)))))

  say(error_of(merged))


@every_graph
def test_unpack_call_and_metadata(say, kind):
  def unpacked():
    node = GRAPHS[kind]()
    state = nnx.unpack(node)
    say(plain(state)[:500])
    say(*tree(nnx.merge(state)))
    nnx.set_metadata(node, only=nnx.Param, note='set')
    say(*tree(node))

  say(error_of(unpacked))


def test_a_variable_refused_at_one_of_its_places(say):
  """`pop` can't take a leaf from a list; the error names the place that the filter chose."""
  for at in ((0,), (1,), (2, 'x'), (3, 'y')):
    v = nnx.Param(jnp.array(1.0))
    below = Linear(2)
    below.y = v
    say(at, error_of(lambda v=v, at=at, below=below: nnx.pop([v, v, {'x': v}, below], lambda path, x: path == at)))
    say(*tree(below))


def test_states_that_show_other_items(say):
  class Reversed(nnx.State):
    def items(self):
      return [(key, self[other]) for key, other in zip(self, reversed(list(self)), strict=True)]

  class Fewer(nnx.State):
    def __iter__(self):
      return iter(list(super().__iter__())[:-1])

  for cls in (Reversed, Fewer):
    node = Linear(2)
    graphdef, state = nnx.split(node)
    other = cls(dict(state.raw_mapping))
    say(error_of(lambda: say(*tree(nnx.merge(graphdef, other)))))  # noqa: B023
    say(error_of(lambda: say(*tree(nnx.graphlib.unflatten(graphdef, other)))))  # noqa: B023
    say(error_of(lambda: nnx.update(node, other)), *tree(node))  # noqa: B023
    say(error_of(lambda: say(*tree(nnx.merge(graphdef, nnx.State({**state.raw_mapping, 'kernel': other}))))))  # noqa: B023


def test_registered_functions_are_asked_once(say):
  """A type's own functions run as often, and in the same order, as upstream runs them."""

  class Loud:
    pass

  def heard(name, result):
    def function(*arguments):
      say(name, len(arguments))
      return result(*arguments)

    return function

  nnx.graphlib.register_graph_node_type(
    Loud,
    flatten=heard('flatten', lambda node: (sorted(vars(node).items()), None)),
    set_key=heard('set_key', setattr),
    pop_key=heard('pop_key', lambda node, key: vars(node).pop(key)),
    create_empty=heard('create_empty', lambda _: Loud()),
    clear=heard('clear', lambda node: vars(node).clear()),
    init=heard('init', lambda node, items: vars(node).update(items)),
  )
  loud = Loud()
  loud.w, loud.n = nnx.Param(jnp.array(1)), 2
  graphdef, state = nnx.split([loud, {'x': loud}])
  nnx.merge(graphdef, state)
  nnx.update([loud], {0: {'w': jnp.array(5)}})
  say(len(list(nnx.iter_graph(loud))), value_of(loud.w[...]))
  nnx.pop(loud, nnx.Param)
  say(sorted(vars(loud)))


def test_nothing_stays_alive(say):
  """What a walk made or met is freed with its last user, at once."""
  import weakref

  node = GRAPHS['net']()
  watched = [weakref.ref(v) for _, v in nnx.iter_graph(node) if isinstance(v, nnx.Pytree)]
  gc.collect()
  gc.disable()
  try:
    for _ in range(3):
      graphdef, state = nnx.split(node, nnx.Param, ...)[:2]
      nnx.update(nnx.clone(node), state)
      nnx.merge(*nnx.split(node))
    del graphdef, state, node
    say(sum(ref() is not None for ref in watched), 'of', len(watched), 'alive')
  finally:
    gc.enable()
