"""What bad input gets: upstream's error, and the model as upstream leaves it."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.nnx import graphlib
from telling import Names, contexts, error_of, plain, tree
from zoo import GRAPHS, Containers, Counter, Empty, Linear, Net, Point, Shared


def first_line(*arguments, **keywords):
  return error_of(*arguments, **keywords).split('\n')[0][:400]


def graphdef_of(*nodes, attributes=(), leaves=0):
  return graphlib.GraphDef(list(nodes), list(attributes), leaves)


def node_def(cls=Linear, index=0, outer=None, size=0, metadata=Linear):
  return graphlib.NodeDef(cls, index, outer, size, metadata)


MAPPING = graphlib.HashableMapping({'hijax': False, 'ref': False, 'eager_sharding': True})

GRAPHDEFS = {
  'none': None,
  'text': 'graphdef',
  'no_nodes': graphdef_of(leaves=1),
  'unknown_type': graphdef_of(node_def(int)),
  'no_type': graphdef_of(node_def(None)),
  'used_index': graphdef_of(node_def(size=1), node_def(), attributes=[('a', graphlib.NODE_ATTR)]),
  'no_index': graphdef_of(node_def(index=None)),
  'missing_attributes': graphdef_of(node_def(size=3)),
  'missing_nodes': graphdef_of(node_def(size=1), attributes=[('a', graphlib.NODE_ATTR)]),
  'missing_leaves': graphdef_of(node_def(size=1), attributes=[('a', graphlib.LEAF_ATTR)]),
  'odd_attribute': graphdef_of(node_def(size=1), attributes=[('a', 3)]),
  'odd_pair': graphdef_of(node_def(size=1), attributes=['abc']),
  'not_a_pair': graphdef_of(node_def(size=1), attributes=[5]),
  'odd_node': graphdef_of(node_def(size=1), 'node', attributes=[('a', graphlib.NODE_ATTR)]),
  'none_node': graphdef_of(None),
  'dangling_ref': graphdef_of(
    node_def(size=1), graphlib.NodeRef(7), attributes=[('a', graphlib.NODE_ATTR)]
  ),
  'ref_attribute': graphdef_of(node_def(size=1), attributes=[('me', graphlib.NodeRef(0))]),
  'root_ref': graphdef_of(graphlib.NodeRef(0)),
  'int_name': graphdef_of(node_def(size=1), attributes=[(5, graphlib.Static(1))]),
  'tuple_name': graphdef_of(node_def(size=1), attributes=[((1, 2), graphlib.Static(1))]),
  'text_size': graphdef_of(node_def(size='1')),
  'text_index': graphdef_of(node_def(index='x')),
  'list_index': graphdef_of(node_def(index=[])),
  'other_metadata': graphdef_of(node_def(metadata=int)),
  'abstract_class': graphdef_of(node_def(metadata=Empty)),
  'half_made': graphdef_of(object.__new__(graphlib.NodeDef)),
  'half_made_variable': graphdef_of(object.__new__(graphlib.VariableDef), leaves=1),
  'no_metadata': graphdef_of(
    graphlib.VariableDef(nnx.Param, 0, None, graphlib.HashableMapping({}), None), leaves=1
  ),
  'dict_metadata': graphdef_of(
    graphlib.VariableDef(nnx.Param, 0, None, {'hijax': False}, None), leaves=1
  ),
  'none_metadata': graphdef_of(graphlib.VariableDef(nnx.Param, 0, None, None, None), leaves=1),
  'none_variable': graphdef_of(graphlib.VariableDef(None, 0, None, MAPPING, None), leaves=1),
  'not_a_variable': graphdef_of(graphlib.VariableDef(int, 0, None, MAPPING, None), leaves=1),
  'odd_ref': graphdef_of(graphlib.VariableDef(nnx.Param, 0, None, MAPPING, 3), leaves=1),
  'array_ref': graphdef_of(graphlib.ArrayRefDef(0, None), leaves=1),
  'negative_leaves': graphdef_of(node_def(), leaves=-1),
  'tuple_nodes': graphlib.GraphDef((node_def(),), (), 0),
  'none_nodes': graphlib.GraphDef(None, None, 0),
  'container': graphdef_of(
    node_def(list, None, size=2, metadata=None),
    attributes=[('b', graphlib.Static(1)), ('a', graphlib.Static(2))],
  ),
  'pytree': graphdef_of(graphlib.NodeDef(graphlib.GenericPytree, None, None, 0, None)),
  'named_tuple': graphdef_of(
    graphlib.NodeDef(graphlib.GenericPytree, None, None, 1, nnx.graphdef(Point(1, 2)).nodes[0].metadata),
    attributes=[('x', graphlib.Static(1))],
  ),
}
LEAVES = {
  'none': [],
  'one': [jnp.array(1.0)],
  'variable': [nnx.Param(jnp.array(1.0))],
  'two': [1, 2],
  'no_list': None,
  'state': nnx.State({'a': 1}),
}


@pytest.mark.parametrize('name', GRAPHDEFS)
def test_graphdefs(say, name):
  graphdef = GRAPHDEFS[name]
  for leaves in LEAVES.values():
    say(first_line(lambda s=leaves: tree(nnx.unflatten(graphdef, s))))
    say(first_line(lambda s=leaves: tree(nnx.merge(graphdef, s))))
    indexes = graphlib.IndexMap()
    say(
      first_line(
        lambda s=leaves, i=indexes: tree(nnx.unflatten(graphdef, s, index_ref=i, copy_variables=True))
      ),
      sorted(indexes, key=str),
    )
  say(
    first_line(repr, graphdef),
    first_line(hash, graphdef) == first_line(hash, graphdef),
    first_line(lambda: graphdef == graphdef),
  )
  say(first_line(lambda: nnx.call((graphdef, nnx.State({})))))


STATES = {
  'none': None,
  'number': 3,
  'list': [1, 2],
  'dict': {},
  'missing': {'layers': {0: {'kernel': jnp.array(1.0)}}},
  'unknown_key': {'unknown': jnp.array(1.0)},
  'unknown_nested': {'layers': {0: {'unknown': 3, 'kernel': jnp.array([1.0, 1.0])}}},
  'subtree_for_leaf': {'layers': {0: {'kernel': {'deep': 1}}}},
  'leaf_for_subtree': {'layers': jnp.array(1.0)},
  'variable_for_subtree': {'layers': nnx.Param(jnp.array(1.0))},
  'none_for_subtree': {'layers': None},
  'list_for_subtree': {'layers': [1]},
  'mixed_keys': {'layers': 1, 3: 2},
  'text_index': {'layers': {'0': {'kernel': jnp.array([4.0, 4.0])}}},
  'far_index': {'layers': {9: Linear(1)}},
  'static_attribute': {'layers': {0: {'name': 'renamed', 'size': 7}}},
  'private': {'_pytree__state': 3},
  'other_type': {'layers': {0: {'kernel': Counter(jnp.array(1.0))}}},
  'state_in_state': nnx.State({'layers': nnx.State({0: nnx.State({'kernel': jnp.array([3.0, 3.0])})})}),
  'empty_state': nnx.State({}),
  'text_value': {'layers': {0: {'kernel': 'text'}}},
  'module_value': {'layers': {0: Linear(2, 9.0)}},
  'graphdef': nnx.graphdef(Linear(1)),
}


@pytest.mark.parametrize('name', STATES)
@pytest.mark.parametrize('wrapped', [False, True])
def test_states(say, name, wrapped):
  state = STATES[name]
  if wrapped and isinstance(state, dict):
    state = nnx.State(state)
  net, names = Net(2), Names()
  say(*tree(net, names))
  say(first_line(nnx.update, net, state), *tree(net, names))
  say(first_line(nnx.update, net, state, nnx.state(Net(2), Counter)), *tree(net, names))
  graphdef = nnx.graphdef(net)
  say(
    first_line(lambda: tree(nnx.merge(graphdef, state))),
    first_line(lambda: tree(nnx.unflatten(graphdef, state))),
  )
  say(first_line(lambda: tree(nnx.merge(graphdef, state, nnx.state(net)))))
  for target in (
    net.layers[0].kernel,
    [1, net],
    {'a': net},
    (net,),
    None,
    3,
    Point(net, 1),
    jnp.array(1),
    Empty,
  ):
    say(first_line(nnx.update, target, state))
  for function in (
    nnx.to_flat_state,
    nnx.to_pure_dict,
    nnx.merge_state,
    nnx.filter_state,
    nnx.split_state,
  ):
    say(
      first_line(
        lambda f=function: (
          f(state) if f not in (nnx.filter_state, nnx.split_state) else f(state, nnx.Param)
        )
      )
    )


FLAT = {
  'empty_path': [((), 1)],
  'through_leaf': [(('a',), 1), (('a', 'b'), 2)],
  'over_branch': [(('a', 'b'), 2), (('a',), 1)],
  'twice': [(('a',), 1), (('b',), 2), (('a',), 3)],
  'list_path': [(['a'], 1)],
  'text_path': [('ab', 1)],
  'no_path': [(None, 1)],
  'triple': [(('a',), 1, 2)],
  'unhashable': [(([],), 1)],
  'dict_leaf': [(('a',), {'b': 1}), (('a', 'c'), 2)],
  'one_and_true': [((1, 'a'), 1), ((True, 'b'), 2), ((1.0, 'c'), 3)],
  'none_leaf': [(('a', 'b'), None), (('a', 'c'), None)],
  'number': 3,
  'mapping': {('a', 'b'): 1, ('a', 'c'): 2},
  'generator': None,
}


@pytest.mark.parametrize('name', FLAT)
def test_flat_states(say, name):
  def given():
    return (x for x in [(('a', 'b'), 1)]) if name == 'generator' else FLAT[name]

  say(
    first_line(lambda: nnx.from_flat_state(given())),
    first_line(lambda: nnx.from_flat_state(given(), cls=dict)),
  )
  say(
    first_line(lambda: nnx.statelib.FlatState(given(), sort=True)),
    first_line(lambda: nnx.statelib.FlatState(given(), sort=False).to_nested_state()),
  )
  say(first_line(lambda: nnx.statelib.FlatState(given(), sort=False).split(nnx.Param, ...)))


KEYS = {
  'mixed': lambda: {'a': nnx.Param(1), 1: nnx.Param(2)},
  'tuples': lambda: {(1, 'a'): nnx.Param(1), (0, 'b'): nnx.Param(2)},
  'none': lambda: {None: nnx.Param(1)},
  'none_and_more': lambda: {None: nnx.Param(1), 'a': 1},
  'bools': lambda: {True: nnx.Param(1), False: nnx.Param(2)},
  'floats': lambda: {1.5: nnx.Param(1), 0.5: nnx.Param(2)},
  'nan': lambda: {float('nan'): nnx.Param(1), float('nan'): nnx.Param(2)},
  'types': lambda: {int: nnx.Param(1), str: nnx.Param(2)},
  'subclass': lambda: {np.str_('b'): nnx.Param(1), 'a': nnx.Param(2)},
  'big_ints': lambda: {2**70: nnx.Param(1), -(2**70): nnx.Param(2)},
}


@pytest.mark.parametrize('name', KEYS)
def test_keys(say, name):
  node = Containers()  # no pytree: jax never sees the keys
  node.table = KEYS[name]()
  for call in (
    nnx.split,
    nnx.state,
    nnx.graphdef,
    nnx.clone,
    lambda n: list(nnx.iter_graph(n)),
    nnx.find_duplicates,
    lambda n: nnx.pop(n, nnx.Param),
    lambda n: nnx.update(n, nnx.state(n)),
    nnx.jit(lambda n: None),
  ):
    say(first_line(lambda c=call: plain(c(node))), *tree(node))
  state = nnx.State(KEYS[name]())
  for call in (
    nnx.to_flat_state,
    nnx.to_pure_dict,
    lambda s: nnx.split_state(s, nnx.Param),
    lambda s: nnx.merge_state(s, s),
  ):
    say(first_line(call, state))


@pytest.mark.parametrize('kind', ['number', 'text', 'object', 'type', 'array', 'none'])
def test_not_a_graph(say, kind):
  value = {
    'number': 3,
    'text': 'x',
    'object': object(),
    'type': Linear,
    'array': np.ones(1),
    'none': None,
  }[kind]
  for call in (
    nnx.split,
    nnx.state,
    nnx.graphdef,
    nnx.clone,
    lambda n: list(nnx.iter_graph(n)),
    nnx.find_duplicates,
    lambda n: nnx.pop(n, nnx.Param),
    lambda n: nnx.update(n, {}),
    lambda n: list(nnx.iter_children(n)),
    lambda n: nnx.recursive_map(lambda p, x: x, n),
    lambda n: nnx.cached_partial(nnx.jit(lambda x: x), n)(),
  ):
    say(first_line(lambda c=call: plain(c(value))))


def test_index_maps(say):
  net = Shared()
  graphdef, flat = nnx.flatten(net)
  for indexes in (graphlib.IndexMap({0: net}), {}, graphlib.IndexMap({1: 3}), None, 3, [1]):
    say(first_line(lambda i=indexes: tree(nnx.unflatten(graphdef, flat, index_ref=i))))
  same = graphdef.with_same_outer_index()
  for outer in (
    {},
    {0: net},
    {0: Linear(1)},
    {0: 3},
    {0: net, 1: net.first, 2: 5},
    {0: net, 1: net.first, 2: net.first.bias},
    3,
  ):
    made = Shared()
    say(
      first_line(
        lambda o=outer, m=made: tree(nnx.unflatten(same, nnx.flatten(m)[1], outer_index_outer_ref=o))
      ),
      *tree(net),
    )
  for refs in ({}, graphlib.RefMap({net: 5}), graphlib.RefMap({net: 'x'}), 3, []):
    say(first_line(lambda r=refs: plain(nnx.flatten(net, ref_index=r))))
    say(first_line(lambda r=refs: plain(nnx.flatten(net, ref_outer_index=r)[0])))
  wrong = graphlib.GraphDef(same.nodes, same.attributes, 99)
  say(first_line(nnx.unflatten, wrong, flat), first_line(nnx.unflatten, same, list(flat.leaves)[:1]))


def test_contexts_misused(say):
  net = Net(1)
  for call in (
    lambda: nnx.current_update_context('none'),
    lambda: nnx.split_context('none').__enter__(),
    lambda: nnx.merge_context('none', True).__enter__().merge(None, None),
  ):
    say(first_line(call), contexts())
  with nnx.split_context() as context:
    say(
      first_line(context.flatten, net, nnx.Param, with_paths=False),
      first_line(context.split, 3),
      first_line(context.flatten, None),
    )
    say(first_line(context.flatten, net, ..., nnx.Param), len(context.ref_index))
  with nnx.merge_context() as context:
    say(
      first_line(context.unflatten, None, []),
      first_line(context.merge, nnx.graphdef(net)),
      first_line(context.unflatten, nnx.graphdef(net), [1], [2]),
    )


@pytest.mark.parametrize(
  'call', ['split', 'state', 'clone', 'iter_graph', 'find_duplicates', 'pop', 'update', 'jit']
)
def test_deep_chain(say, call):
  """5,000 Modules under each other: the right answer or a RecursionError, and then all works again."""
  root = node = Empty()
  for _ in range(5000):
    node.below = Empty()
    node = node.below
  node.w = nnx.Param(jnp.array(1.0))
  calls = {
    'split': lambda: nnx.split(root),
    'state': lambda: nnx.state(root),
    'clone': lambda: nnx.clone(root),
    'iter_graph': lambda: sum(1 for _ in nnx.iter_graph(root)),
    'find_duplicates': lambda: nnx.find_duplicates(root),
    'pop': lambda: nnx.pop(root, nnx.Param),
    'update': lambda: nnx.update(root, nnx.state(Empty())),
    'jit': lambda: nnx.jit(lambda n: None)(root),
  }
  limit = sys.getrecursionlimit()
  try:
    calls[call]()
    ended = True
  except RecursionError:
    ended = True
  assert ended and sys.getrecursionlimit() == limit
  say(*tree(nnx.merge(*nnx.split(Net(1)))), len(jax.tree.leaves(nnx.state(Net(2)))))
  while hasattr(root, 'below'):  # taken apart from the top: a deep graph's own deallocation is deep too
    root = root.below


def test_unlike_models(say):
  """A graphdef of one model with the state of another."""
  made = {kind: nnx.split(make()) for kind, make in GRAPHS.items() if kind not in ('jax_tree',)}
  for first, (graphdef, _) in made.items():
    for second, (_, state) in made.items():
      say(first, second, first_line(lambda g=graphdef, s=state: len(tree(nnx.merge(g, s)))))
