"""The pytree protocol of Variables, States and Pytrees, as jax calls it and as anybody may."""

import abc
import gc
import pickle
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.nnx import pytreelib, statelib, variablelib
from telling import Names, error_of, plain, state_lines, tree, value_of
from together import in_threads
from zoo import TREES, Counter, Linear, Net

X = jnp.ones(2)


def leaves_of(node):
  return [value_of(leaf) for leaf in jax.tree.leaves(node)]


def told(node):
  """All that a flattening gives."""
  paths, treedef = jax.tree_util.tree_flatten_with_path(node)
  leaves, other = jax.tree.flatten(node)
  yield plain(treedef)
  yield treedef == other, len(leaves), treedef.num_nodes
  yield [jax.tree_util.keystr(path) for path, _ in paths]
  yield [plain(repr(path)) for path, _ in paths]
  yield [value_of(leaf) for leaf in leaves]


@pytest.mark.parametrize('kind', TREES)
def test_flattened(say, kind):
  node = TREES[kind]()
  for _ in range(3):
    say(error_of(lambda: list(told(node))))
  say(*tree(node))


@pytest.mark.parametrize('kind', TREES)
def test_rebuilt(say, kind):
  def rebuild():
    leaves, treedef = jax.tree.flatten(TREES[kind]())
    return jax.tree.unflatten(treedef, leaves)

  say(error_of(lambda: list(told(rebuild()))))
  try:
    node = rebuild()
  except Exception:
    return
  say(*tree(node, Names()))
  say(error_of(lambda: [list(vars(m)) for _, m in nnx.iter_graph(node) if isinstance(m, nnx.Pytree)]))
  say(error_of(lambda: [value_of(x) for x in jax.tree.leaves(nnx.state(node))]))


@pytest.mark.parametrize('kind', TREES)
def test_mapped(say, kind):
  node = TREES[kind]()
  say(error_of(lambda: list(told(jax.tree.map(lambda x: (x, 1), node)))))
  # jax's message marks how addresses differ
  say(error_of(lambda: list(told(jax.tree.map(lambda x, y: y, node, TREES[kind]())))).split('\nso the diff')[0])
  say(error_of(lambda: plain(jax.tree.structure(jax.tree.map(lambda x: None, node)))))
  say(error_of(lambda: jax.tree.structure(node) == jax.tree.structure(TREES[kind]())))
  say(error_of(lambda: leaves_of(pickle.loads(pickle.dumps(node)))))


FILLED = {
  'object': object(),
  'string': 'leaf',
  'none': None,
  'shape': jax.ShapeDtypeStruct((2,), jnp.float32),
  'spec': jax.P('a', None),
  'bool': True,
  'list': [1, 2],
  'node': Linear,
}


@pytest.mark.parametrize('filled', FILLED)
@pytest.mark.parametrize('kind', ['module', 'net', 'variable', 'state', 'nnx_dict', 'long_list', 'layers'])
def test_filled_with_anything(say, kind, filled):
  treedef = jax.tree.structure(TREES[kind]())
  value = FILLED[filled] if filled != 'node' else Linear(1)
  node = treedef.unflatten([value] * treedef.num_leaves)
  say(type(node).__name__, error_of(lambda: plain(jax.tree.structure(node)))[:2000])
  say(error_of(lambda: jax.tree.leaves(node, is_leaf=lambda x: x is value)[:1] == [value]))


@pytest.mark.parametrize('kind', ['module', 'variable', 'state', 'nnx_dict', 'long_list'])
def test_wrong_number_of_leaves(say, kind):
  treedef = jax.tree.structure(TREES[kind]())
  for n in (0, treedef.num_leaves - 1, treedef.num_leaves + 1):
    say(error_of(treedef.unflatten, [1] * n))


# ---- the functions, called directly ----

FUNCTIONS = {
  'variable': variablelib._variable_flatten,
  'variable_with_keys': variablelib._variable_flatten_with_keys,
  'state': statelib._state_flatten,
  'state_with_keys': statelib._state_flatten_with_keys,
  'pytree_state': pytreelib._flatten_pytree_state,
  'pytree': nnx.Pytree._pytree__flatten,
  'pytree_with_keys': nnx.Pytree._pytree__flatten_with_paths,
}
GIVEN = {
  'variable': lambda: nnx.Param(X, tag='a'),
  'state': lambda: nnx.State({'b': 1, 'a': 2}),
  'module': lambda: Linear(1),
  'none': lambda: None,
  'number': lambda: 3,
  'class': lambda: nnx.Param,
  'array': lambda: X,
}


@pytest.mark.parametrize('given', GIVEN)
@pytest.mark.parametrize('function', FUNCTIONS)
def test_flatten_functions(say, function, given):
  say(error_of(FUNCTIONS[function], GIVEN[given]()))


@pytest.mark.parametrize('function', FUNCTIONS)
def test_flatten_functions_with_wrong_arguments(say, function):
  say(error_of(FUNCTIONS[function]))
  say(error_of(FUNCTIONS[function], 1, 2))
  say(error_of(FUNCTIONS[function], x=1))
  say(error_of(FUNCTIONS[function], x=nnx.Param(X)))
  say(FUNCTIONS[function].__name__, FUNCTIONS[function].__qualname__)


UNFLATTENED = {
  'variable': (variablelib._variable_unflatten, (nnx.Param, (('hijax', False),), (1,))),
  'variable_no_child': (variablelib._variable_unflatten, (nnx.Param, (), ())),
  'variable_list': (variablelib._variable_unflatten, (nnx.Param, [('ref', True)], [1])),
  'variable_no_pairs': (variablelib._variable_unflatten, (nnx.Param, ('ab', 'cd'), (1,))),
  'variable_keys': (variablelib._variable_unflatten, (nnx.Param, ((1, 2), (None, 3)), (1,))),
  'variable_bad_pairs': (variablelib._variable_unflatten, (nnx.Param, ((1,),), (1,))),
  'variable_of_int': (variablelib._variable_unflatten, (int, (), (1,))),
  'variable_of_none': (variablelib._variable_unflatten, (None, (), (1,))),
  'state': (statelib._state_unflatten, (nnx.State, ('a', 'b'), (1, 2))),
  'state_short': (statelib._state_unflatten, (nnx.State, ('a', 'b'), (1,))),
  'state_long': (statelib._state_unflatten, (nnx.State, ('a',), (1, 2))),
  'state_lists': (statelib._state_unflatten, (nnx.State, ['a'], [1])),
  'state_twice': (statelib._state_unflatten, (nnx.State, ('a', 'a'), (1, 2))),
  'state_unhashable': (statelib._state_unflatten, (nnx.State, ([],), (1,))),
  'state_of_dict': (statelib._state_unflatten, (dict, ('a',), (1,))),
  'pytree_state': (pytreelib._unflatten_pytree_state, ((True, False), ())),
  'pytree_state_short': (pytreelib._unflatten_pytree_state, ((True,), ())),
  'pytree_state_odd': (pytreelib._unflatten_pytree_state, (('x', None), ())),
  'pytree': (Linear._pytree__unflatten, ((('kernel',), ('size',), (3,)), (1,))),
  'pytree_int': (nnx.List._pytree__unflatten, (((0, 1), ('_length',), (2,)), ('a', 'b'))),
  'pytree_short': (Linear._pytree__unflatten, ((('kernel',), (), ()), ())),
  'pytree_uneven': (Linear._pytree__unflatten, (((), ('size',), ()), ())),
  'pytree_no_parts': (Linear._pytree__unflatten, ((), ())),
  'pytree_keys': (Linear._pytree__unflatten, (((None,), (), ()), (1,))),
  'pytree_lists': (Linear._pytree__unflatten, ((['kernel'], ['size'], [3]), [1])),
}


@pytest.mark.parametrize('case', UNFLATTENED)
def test_unflatten_functions(say, case):
  function, arguments = UNFLATTENED[case]
  say(error_of(lambda: plain(function(*arguments))))
  say(error_of(lambda: list(vars(function(*arguments)))))
  say(error_of(lambda: function(*arguments).get_metadata()))
  say(error_of(function), error_of(function, *arguments, 1), error_of(function, *arguments, key=1))


# ---- metadata ----


class Odd:
  def __init__(self, log):
    self.log = log

  def __eq__(self, other):
    self.log.append('eq')
    return True

  def __hash__(self):
    self.log.append('hash')
    return 1

  def __lt__(self, other):
    self.log.append('lt')
    return True


METADATA = {
  'strings': lambda log: {'b': 'x', 'a': 'y'},
  'tuples': lambda log: {'names': ('a', None), 'deep': (('a', 1), (2.0, None))},
  'list': lambda log: {'names': ['a']},
  'nan': lambda log: {'nan': float('nan')},
  'array': lambda log: {'array': np.arange(2)},
  'odd': lambda log: {'z': Odd(log), 'a': Odd(log)},
  'function': lambda log: {'f': value_of},
  'many': lambda log: {f'k{i}': i for i in range(30)},
  'equal': lambda log: {'a': 1, 'b': True, 'c': 1.0},
}


@pytest.mark.parametrize('kind', METADATA)
def test_metadata(say, kind):
  """Compared, sorted and asked as upstream does it."""
  log = []
  variables = [nnx.Param(X, **METADATA[kind](log)) for _ in range(3)]
  defs = [jax.tree.structure(variable) for variable in variables * 2]
  say(error_of(lambda: [defs[0] == other for other in defs]))
  say(error_of(lambda: len({hash(one) for one in defs})), log)
  copy = error_of(lambda: list(jax.tree.map(lambda x: x, variables[0]).get_metadata().items()))
  say(copy)
  count = [0]

  @jax.jit
  def f(variable):
    count[0] += 1
    return variable[...]

  say(error_of(lambda: [value_of(f(variable)) for variable in variables]), count, log)


def test_metadata_changed_between(say):
  variable = nnx.Param(X, note='a')
  structure = jax.tree.structure
  defs = [structure(variable)]
  for change in (
    lambda: variable.set_metadata(note='b'),
    lambda: variable.set_metadata(note='a'),
    lambda: variable.set_metadata('more', [1]),
    lambda: variable.get_metadata('more').append(2),
    lambda: variable.del_metadata('more'),
    lambda: object.__getattribute__(variable, '_var_metadata').update(extra=1),
    lambda: object.__getattribute__(variable, '_var_metadata').clear(),
  ):
    say(error_of(change))
    defs.append(structure(variable))
    say(plain(defs[-1]), [defs[-1] == other for other in defs])
    say(error_of(lambda: jax.tree.unflatten(defs[-1], [1]).get_metadata()))


def test_unflattened_metadata_is_ones_own(say):
  leaves, treedef = jax.tree.flatten(nnx.Param(X, note='a'))
  one, other = (jax.tree.unflatten(treedef, leaves) for _ in range(2))
  one.set_metadata(note='b')
  say(one.get_metadata(), other.get_metadata(), jax.tree.unflatten(treedef, leaves).get_metadata())


def test_nothing_is_kept(say):
  """Neither what metadata holds nor static attributes outlive their Variables and Modules."""

  class Held:
    pass

  def refs():
    variable, module = nnx.Param(X, held=Held(), more=(Held(),)), Linear(1)
    module.held = Held()
    yield weakref.ref(variable.get_metadata('held'))
    yield weakref.ref(variable.get_metadata('more')[0])
    yield weakref.ref(module.held)
    module.variable = variable
    for _ in range(3):
      jax.tree.leaves(jax.tree.map(lambda x: x, module))
      jax.tree_util.tree_flatten_with_path(module)

  held = list(refs())
  gc.collect()
  say([ref() is None for ref in held])


# ---- Variables of other classes ----


class Raw(nnx.Variable):
  """Looks for its value elsewhere."""

  @property
  def _raw_value(self):
    return 'elsewhere'

  @_raw_value.setter
  def _raw_value(self, value):
    pass


class Asked(nnx.Variable):
  def __getattribute__(self, name):
    if name == '_raw_value':
      return 'asked'
    return super().__getattribute__(name)


class New(nnx.Variable):
  @classmethod
  def _new(cls, value, metadata):
    return super()._new(('new', value), metadata)


@pytest.mark.parametrize('cls', [Raw, Asked, New, Counter, nnx.BatchStat, nnx.Variable])
def test_other_variables(say, cls):
  variable = nnx.Variable._new.__func__(cls, X, {'hijax': False, 'ref': False, 'eager_sharding': True})
  say(error_of(lambda: [plain(x) for x in jax.tree.leaves(variable)]))
  say(error_of(lambda: plain(jax.tree.structure(variable))))
  say(error_of(lambda: plain(jax.tree.leaves(jax.tree.map(lambda x: x, variable)))))


@pytest.mark.parametrize('slot', ['_raw_value', '_var_metadata', '_trace_state'])
def test_unset_slots(say, slot):
  variable = nnx.Param(X)
  object.__delattr__(variable, slot)
  say(error_of(jax.tree.leaves, variable), error_of(jax.tree.structure, variable))


def test_a_class_changed_later(say):
  class Late(nnx.Variable):
    pass

  variable = Late(X)
  say(leaves_of(variable))
  Late._raw_value = property(lambda self: 'late')
  say([plain(x) for x in jax.tree.leaves(variable)])
  del Late._raw_value
  say(leaves_of(variable))


# ---- Pytrees of other classes ----


class Ints(nnx.Module):
  _pytree__has_int_keys = True

  def __init__(self):
    for name in ('10', '9', 'x', '-1', '007'):
      setattr(self, name, nnx.Param(X))
    self.size = 1


class Guarded(nnx.Module):
  """A property with a setter, which unflattening calls."""

  def __init__(self):
    self.inner = nnx.Param(X)
    vars(self)['guarded'] = 3

  @property
  def guarded(self):
    return vars(self)['guarded']

  @guarded.setter
  def guarded(self, value):
    vars(self)['guarded'] = (value, 'set')


class OwnHooks(nnx.Module):
  def __init__(self):
    self.a, self.b = nnx.Param(X), 2

  def _pytree__flatten(self):
    children, static = super()._pytree__flatten()
    return list(reversed(children)), static


@pytest.mark.parametrize('cls', [Ints, Guarded, OwnHooks])
def test_other_pytrees(say, cls):
  def scenario():
    node = cls()
    yield list(told(node))
    copy = jax.tree.map(lambda x: x, node)
    yield tree(copy), list(vars(copy))
    yield list(told(jax.tree.map(lambda x: x, copy)))

  say(error_of(lambda: list(scenario())))


def test_marks_change(say):
  """An attribute is data in one instance and static in another, or changes sides."""
  nodes = [Linear(1) for _ in range(3)]
  nodes[1].size = nnx.data(5)
  nodes[2].items = nnx.static((1, 2))
  for node in nodes * 2:
    say(*told(node))
  nodes[1].size = nnx.static(6)
  vars(nodes[0])['_pytree__nodes']._mapping['size'] = True
  for node in nodes:
    say(*told(node))


def test_attributes_come_and_go(say):
  node = Linear(1)
  for i in range(12):
    setattr(node, f'extra{i % 5}', i)
    say(*told(node))
    if i % 3 == 0:
      delattr(node, f'extra{i % 5}')


# ---- States ----

MAPPINGS = {
  'empty': {},
  'sorted': {'a': 1, 'b': 2},
  'unsorted': {'b': 2, 'a': 1, 'c': {'z': 1, 'y': 2}},
  'ints': {2: 'b', 10: 'c', 1: 'a'},
  'mixed': {1: 'a', 'b': 2},
  'bools': {True: 1, 0: 2},
  'tuples': {('b', 1): 1, ('a', 2): 2},
  'none': {None: 1},
  'many': {f'k{i}': i for i in reversed(range(40))},
  'nested': {'a': nnx.State({'c': 1, 'b': 2})},
}


class Sub(nnx.State):
  pass


@pytest.mark.parametrize('cls', [nnx.State, Sub])
@pytest.mark.parametrize('kind', MAPPINGS)
def test_states(say, kind, cls):
  state = cls(MAPPINGS[kind])
  for _ in range(2):
    say(error_of(lambda: list(told(state))))
  say(error_of(lambda: list(told(jax.tree.map(lambda x: [x], state)))))
  say(error_of(lambda: type(jax.tree.map(lambda x: x, state)).__name__), list(state))


def test_a_state_that_was_taken_apart(say):
  state = nnx.State({'a': 1})
  for change in (
    lambda: vars(state).update(_mapping=[('b', 1)]),
    lambda: vars(state).clear(),
    lambda: vars(state).update(_mapping=nnx.State({'c': 1})),
  ):
    change()
    say(error_of(lambda: list(told(state))))


# ---- traces ----


def test_trace_states(say):
  """What jax rebuilds belongs to the trace that it is rebuilt under."""
  net, kept = Net(1, nnx.Param), []

  def change(node):
    node.layers[0].kernel[...] += 1
    node.layers[0].size = 3
    return value_of(node.layers[0].kernel)[:12]

  @jax.jit
  def f(node):
    kept.append(node)
    say(error_of(change, node), error_of(change, net))

    @jax.jit
    def g(inner):
      say(error_of(change, inner), error_of(change, node))
      return inner

    kept.append(g(node))
    say(error_of(change, kept[-1]))
    jax.vmap(lambda _: say(error_of(change, node)))(X)
    say(error_of(change, jax.tree.map(lambda x: x, node)))
    return node

  out = f(net)
  say(error_of(change, out), error_of(change, net))
  for node in kept:
    say(error_of(lambda n=node: setattr(n, 'size', 1)))
  say(error_of(change, jax.tree.map(lambda x: x, net)))
  say(*tree(out))


def test_threads_with_traces(say):
  net, results = Net(1, nnx.Param), []

  def work(i):
    @jax.jit
    def f(node):
      node.layers[0].kernel[...] += i
      return jax.tree.map(lambda x: x + 1, node)

    out = net
    for _ in range(20):
      out = f(out)
      out.layers[0].size = i
    results.append((i, value_of(out.layers[0].kernel.get_raw_value())))

  in_threads(work, range(4))
  say(*sorted(results))


# ---- loops that go through it ----


def test_functional_loop(say):
  graphdef, state = nnx.split(Net(2, nnx.Param))
  traces = []

  @jax.jit
  def step(state, x):
    traces.append(1)
    net = nnx.merge(graphdef, state)
    y = net(x)
    net.layers[0].kernel[...] += 1
    return y, nnx.state(net)

  for _ in range(5):
    y, state = step(state, X)
    say(value_of(y), len(traces), *state_lines(state))


def test_modules_through_jit(say):
  net, traces = Net(2, nnx.Param), []

  @jax.jit
  def step(net, x):
    traces.append(1)
    y = net(x)
    return y, net

  for i in range(5):
    y, net = step(net, X)
    if i == 2:
      net.layers[0].size = 7
    say(value_of(y), len(traces))
  say(*tree(net))


def test_grad_vmap_and_scan_over_modules(say):
  net = Net(2, nnx.Param)
  say(*tree(jax.grad(lambda net: net(X).sum(), allow_int=True)(net)))
  stacked = jax.tree.map(lambda *xs: jnp.stack(xs), Net(1, nnx.Param), Net(1, nnx.Param))
  say(value_of(jax.vmap(lambda net: net(X))(stacked)))
  carry, _ = jax.lax.scan(lambda net, _: (jax.tree.map(lambda x: x + 1, net), None), net, length=3)
  say(*tree(carry))
  say(*tree(jax.eval_shape(lambda net: net, net)))


# ---- hostile ----


def test_marks_that_empty_the_module(say):
  """A key in `_pytree__nodes` that empties the Module when it is compared."""
  for kept in (False, True):
    module = Linear(1)
    say(len(jax.tree.leaves(module)))

    class Evil:
      def __hash__(self):
        return hash('_pytree__nodes')

      def __eq__(self, other, module=module, kept=kept):
        vars(module).clear()
        if kept:
          vars(module)['left'] = 1
        return False

    evil = nnx.graphlib.HashableMapping({Evil(): True})
    object.__setattr__(module, '_pytree__nodes', evil)
    jax.tree.leaves(module)  # the order of comparisons is the dict's affair: no crash


def test_a_metaclass_that_equals_everything(say):
  class Meta(type):
    def __eq__(cls, other):
      return True

    def __hash__(cls):
      return 1

  class Held(metaclass=Meta):
    pass

  variable = nnx.Param(X, held=Held())
  ref = weakref.ref(variable.get_metadata('held'))
  jax.tree.leaves(jax.tree.map(lambda x: x, variable))
  del variable
  gc.collect()
  say(ref() is None)


def test_an_abstract_class(say):
  class Meta(type(nnx.Variable), abc.ABCMeta):
    pass

  class Abstract(nnx.Variable, metaclass=Meta):
    @abc.abstractmethod
    def missing(self): ...

  say(error_of(variablelib._variable_unflatten, Abstract, (), (1,)))
  say(error_of(Abstract, X))


def test_finalisers_that_change_what_is_flattened(say):
  """The collector may run at any allocation; what comes out is of before or after, and whole."""
  if not hasattr(gc, 'set_threshold'):
    return
  old = gc.get_threshold()
  gc.set_threshold(1)
  try:
    for _ in range(50):
      state = nnx.State({'b': 1, 'a': 2, 'c': 3})
      module = Linear(1)

      class Cycle:
        def __del__(self, state=state, module=module):
          state._mapping.pop('b', None)
          vars(module).pop('bias', None)

      cycle = Cycle()
      cycle.me = cycle
      del cycle
      leaves = jax.tree.leaves(state)
      assert leaves in ([2, 1, 3], [2, 3]), leaves
      assert len(jax.tree.leaves(module)) in (2, 3)
  finally:
    gc.set_threshold(*old)
