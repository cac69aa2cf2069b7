"""Ways in which compiled code crashes, or answers otherwise, where Python would not."""
import sys
import threading

import jax.numpy as jnp
import pytest
from flax import nnx
from flax.nnx import graphlib
from telling import error_of, plain, tree
from zoo import Empty, Linear, Net, Shared


def first_line(*arguments, **keywords):
  return error_of(*arguments, **keywords).split('\n')[0][:300]


def test_dict_subclasses_where_a_dict_is_taken(say):
  """An argument that is declared a dict refuses subclasses, and an IndexMap is one."""

  class Mine(dict):
    pass

  graphdef, flat = nnx.flatten(Shared())
  for indexes in (graphlib.IndexMap(), {}, Mine()):
    say(*tree(nnx.unflatten(graphdef, flat, index_ref=indexes)), sorted(indexes))
  for state in (nnx.State({}), {}, Mine(), Mine(first=Mine(size=9))):
    net = Shared()
    say(first_line(nnx.update, net, state), *tree(net))
    say(first_line(lambda s=state: plain(nnx.merge(graphdef, s))))


def test_none_where_an_extension_type_is_taken(say):
  """None passes for any extension type unless it is refused, and then has no fields."""
  sample = graphlib.VariableDef(nnx.Param, 0, None, None, None)
  for call in (
    sample.with_matching_outer_index, nnx.graphdef(Net(1)).with_matching_outer_index,
    graphlib.RefMap.from_indexmap, graphlib.IndexMap.from_refmap, nnx.to_flat_state, nnx.from_flat_state,
    nnx.merge, nnx.iter_graph, lambda x: nnx.flatten(Net(1), ref_index=graphlib.RefMap(), ref_outer_index=x) and 'fine',
    lambda x: nnx.unflatten(x, []), lambda x: nnx.unflatten(nnx.graphdef(Net(1)), x), lambda x: sample == x,
  ):
    say(first_line(call, None))
  say(first_line(graphlib.RefMap.__len__, None), first_line(graphlib.GraphDef.__hash__, None), first_line(graphlib.RefMap.get, 3, 4))
  say(first_line(graphlib.GraphDef.__eq__, None, None), first_line(graphlib.NodeDef.with_no_outer_index, 5))


@pytest.mark.parametrize('make', ['list', 'dict', 'state', 'tuple'])
def test_containers_that_contain_themselves(say, make):
  """Endless recursion ends in a RecursionError, in a thread with a small stack too."""
  inner = []
  thing = {'list': inner, 'dict': {'a': inner}, 'state': nnx.State({'a': {}}), 'tuple': (inner,)}[make]
  inner.append(thing)
  if make == 'state':
    thing.raw_mapping['a']['b'] = thing
  ends = []

  def walk():
    for call in (nnx.split, nnx.find_duplicates, lambda n: nnx.update(n, n), lambda n: nnx.pop(n, nnx.Param)):
      try:
        call(thing)
        ends.append('ended')
      except BaseException as error:
        ends.append(type(error).__name__)

  walk()
  size = threading.stack_size(1 << 20)
  try:
    thread = threading.Thread(target=walk)
    thread.start()
    thread.join()
  finally:
    threading.stack_size(size)
  say(ends, len(tree(Net(1))))


def test_chains_around_the_depth_where_the_pure_twin_takes_over(say):
  """Nesting of 150 to 450 levels, across the change from one twin to the other."""
  limit = sys.getrecursionlimit()
  sys.setrecursionlimit(20_000)
  try:
    for depth in (150, 199, 200, 201, 202, 203, 250, 450):
      root = node = Empty()
      for i in range(depth):
        node.n = i
        node.below = Linear(1) if i % 50 == 0 else Empty()
        node = node.below
      node.top = root
      graphdef, state = nnx.split(root)
      clone = nnx.clone(root)
      say(depth, hash(graphdef) == hash(nnx.graphdef(clone)), len(graphdef.nodes), len(nnx.to_flat_state(state)))
      nnx.update(clone, state)
      say(len(list(nnx.iter_graph(clone))), len(nnx.find_duplicates(clone)), graphdef == nnx.graphdef(clone))
      say(len(nnx.to_flat_state(nnx.pop(clone, nnx.Param))), len(nnx.to_flat_state(nnx.state(clone))))
  finally:
    sys.setrecursionlimit(limit)


def test_a_dict_that_keeps_its_size_while_it_changes(say):
  """One key out and one in, between two steps of a walk: the size tells nothing."""
  net = Empty()
  net.a, net.b, net.c = Linear(1), Linear(1), Linear(1)
  for path, _ in nnx.iter_graph(net):
    say(path)
    if path == ('a', 'kernel'):
      del net.c
      net.z = nnx.Param(jnp.array(1))


def test_errors_of_functions_that_return_nothing(say):
  """An error deep in a walk that fills lists must not be lost."""

  class Broken:
    pass

  nnx.graphlib.register_graph_node_type(
    Broken, flatten=lambda n: 1 / 0, set_key=setattr, pop_key=getattr, create_empty=lambda _: Broken(),
    clear=print, init=print)
  for wrap in (lambda n: n, lambda n: [n], lambda n: {'a': (n,)}, lambda n: nnx.data([n])):
    node = Empty()
    vars(node)['held'] = wrap(Broken())
    for call in (nnx.split, nnx.state, nnx.clone, nnx.find_duplicates, lambda n: list(nnx.iter_graph(n))):
      say(first_line(call, [node, wrap(Broken())]))


def test_names_that_other_modules_took(say):
  """Modules that imported a name from graphlib hold the compiled one."""
  import flax.nnx.bridge.wrappers as wrappers
  import flax.nnx.extract as extract

  say(nnx.GraphDef is graphlib.GraphDef, extract.graphlib.RefMap is graphlib.RefMap, wrappers.graphlib is graphlib)
  say(nnx.split is graphlib.split, nnx.iter_graph is graphlib.iter_graph, nnx.graph.split is graphlib.split)
  say(nnx.from_flat_state is nnx.statelib.from_flat_state, graphlib.statelib is nnx.statelib)
  say(type(nnx.graphdef(Linear(1))) is nnx.GraphDef, graphlib.PythonRefMap is graphlib.RefMap)
  say(plain(graphlib.NodeDefType), plain(graphlib.PureState))
