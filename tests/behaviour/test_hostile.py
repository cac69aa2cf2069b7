"""Objects that lie, raise, mutate, re-enter, or die while they are walked.

Each gets upstream's result or upstream's error, from every walk, and never a crash.
"""

import collections
import gc
import sys
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.nnx import graphlib
from telling import Names, error_of, plain, tree
from together import in_threads, switching_all_the_time
from zoo import Counter, Empty, Linear, Net, Shared


def first_line(*arguments, **keywords):
  return error_of(*arguments, **keywords).split('\n')[0][:300]


class Loose(nnx.Module, pytree=False):
  """Takes any attribute, and has the walk judge each by its type."""


WALKS = {
  'split': lambda n: plain(nnx.split(n)),
  'by_type': lambda n: plain(nnx.split(n, nnx.Param, ...)),
  'round_trip': lambda n: tree(nnx.merge(*nnx.split(n))),
  'clone': lambda n: tree(nnx.clone(n)),
  'iter_graph': lambda n: [(p, type(v).__name__) for p, v in nnx.iter_graph(n)],
  'find_duplicates': lambda n: nnx.find_duplicates(n),
  'update': lambda n: nnx.update(n, nnx.state(n)),
  'equality': lambda n: nnx.graphdef(n) == nnx.graphdef(n),
  'hash': lambda n: hash(nnx.graphdef(n)) == hash(nnx.graphdef(n)),
  'jit': lambda n: [nnx.jit(lambda m: None)(n) for _ in range(3)],
  'pop': lambda n: plain(nnx.pop(n, Counter)),
}
ZOO = {}


def hostile(make):
  """Registers a function that makes a graph with a hostile object in it."""
  ZOO[make.__name__] = make
  return make


def holding(value, **more):
  node = Loose()
  vars(node)['held'] = value
  for name, other in more.items():
    vars(node)[name] = other
  node.w = nnx.Param(jnp.array(1.0))
  return node


def static_class(**methods):
  return type('Hostile', (), methods)


def raising(*arguments, **keywords):
  raise ValueError('hostile')


@hostile
def raising_eq():
  return holding(static_class(__eq__=raising, __hash__=object.__hash__)())


@hostile
def raising_hash():
  return holding(static_class(__hash__=raising)())


@hostile
def raising_repr():
  return holding(static_class(__repr__=raising)())


@hostile
def raising_bool_of_eq():
  truth = static_class(__bool__=raising)()
  return holding(static_class(__eq__=lambda a, b: truth, __hash__=object.__hash__)())


@hostile
def eq_returns_not_implemented():
  return holding(static_class(__eq__=lambda a, b: NotImplemented)())


@hostile
def eq_returns_array():
  return holding(static_class(__eq__=lambda a, b: np.array([True, False]), __hash__=object.__hash__)())


@hostile
def eq_mutates_graphdef():
  node = holding(None)

  def mutate(a, b):
    node.__dict__.pop('w', None)
    return True

  vars(node)['held'] = static_class(__eq__=mutate, __hash__=object.__hash__)()
  return node


@hostile
def raising_getattribute():
  return holding(static_class(__getattribute__=raising)())


@hostile
def raising_getattr():
  return holding(static_class(__getattr__=raising)())


@hostile
def lying_class():
  return holding(static_class(__class__=property(lambda self: nnx.Param))())


@hostile
def lying_class_of_module():
  return holding(static_class(__class__=property(lambda self: Linear))())


@hostile
def raising_class():
  return holding(static_class(__class__=property(raising))())


@hostile
def raising_jax_array():
  return holding(static_class(__jax_array__=raising, shape=property(raising), dtype=property(raising))())


@hostile
def odd_metaclass():
  class Meta(type):
    def __instancecheck__(cls, instance):
      raise ValueError('hostile')

    def __hash__(cls):
      return 7

    def __eq__(cls, other):
      return cls is other

  return holding(Meta('Odd', (), {})())


@hostile
def raising_metaclass_hash():
  class Meta(type):
    def __hash__(cls):
      raise ValueError('hostile')

  return holding(Meta('Odd', (), {})())


@hostile
def string_subclass_keys():
  class Key(str):
    def __lt__(self, other):
      return str.__gt__(self, other)

    def __hash__(self):
      return str.__hash__(self)

  return holding({Key('a'): nnx.Param(jnp.array(1)), Key('b'): 2})


@hostile
def raising_keys():
  class Key(str):
    def __lt__(self, other):
      raise ValueError('hostile')

    __gt__ = __lt__
    __hash__ = str.__hash__

  return holding({Key('a'): 1, Key('b'): 2})


@hostile
def attribute_of_odd_name():
  class Name(str):
    __hash__ = str.__hash__

  node = holding(1)
  vars(node)[Name('strange')] = 5
  return node


@hostile
def attribute_that_is_no_string():
  node = holding(1)
  vars(node)[5] = 5
  return node


@hostile
def dict_subclasses():
  return holding(
    collections.OrderedDict(b=1, a=nnx.Param(jnp.array(1))),
    other=collections.defaultdict(list, {'k': [1]}),
    counted=collections.Counter('aab'),
  )


@hostile
def list_and_tuple_subclasses():
  class Many(list):
    def __iter__(self):
      raise ValueError('hostile')

  class Fixed(tuple):
    pass

  return holding(Many([1, nnx.Param(jnp.array(1))]), other=Fixed((1, 2)))


@hostile
def named_tuple_with_odd_methods():
  class Odd(collections.namedtuple('Odd', 'b a')):
    def __iter__(self):
      return iter((1, 2, 3))

    def __len__(self):
      return 9

  return holding(Odd(nnx.Param(jnp.array(1)), 2))


@hostile
def named_tuple_that_refuses():
  class Refusing(collections.namedtuple('Refusing', 'b a')):
    def __new__(cls, *arguments, **keywords):
      if len(arguments) != 1:
        raise ValueError('hostile')
      return super().__new__(cls, arguments[0], arguments[0])

  return holding(Refusing(nnx.Param(jnp.array(1))))


@hostile
def list_that_contains_itself():
  things = [1]
  things.append(things)
  return holding((nnx.Param(jnp.array(1)), 'end'), fixed=nnx.Param(jnp.array(2)))


@hostile
def module_with_getattribute():
  class Odd(Linear):
    def __getattribute__(self, name):
      if name == 'size':
        return 99
      return super().__getattribute__(name)

  return Odd(1)


@hostile
def module_with_getattr():
  class Odd(Linear):
    def __getattr__(self, name):
      return f'made up {name}' if not name.startswith('_') else super().__getattribute__(name)

  return Odd(1)


@hostile
def module_with_dict_property():
  class Odd(Linear):
    __dict__ = property(lambda self: {'only': 1})

  return Odd(1)


@hostile
def module_with_setattr():
  class Odd(Linear):
    def __setattr__(self, name, value):
      super().__setattr__(name, value)
      if name == 'size':
        super().__setattr__('twice', value * 2)

  return Odd(1)


@hostile
def module_with_property_over_attribute():
  class Odd(nnx.Module):
    def __init__(self):
      vars(self)['size'] = 5
      self.w = nnx.Param(jnp.array(1.0))

    size = property(lambda self: 7)

  return Odd()


@hostile
def module_with_odd_nodes():
  node = Linear(1)
  vars(node)['_pytree__nodes'] = {'kernel': True, 'size': 1, 'bias': [], 'calls': 'yes'}
  return node


@hostile
def module_without_nodes():
  node = Linear(1)
  del vars(node)['_pytree__nodes']
  return node


@hostile
def module_without_state():
  node = Linear(1)
  del vars(node)['_pytree__state']
  return node


@hostile
def module_that_says_it_is_no_pytree():
  node = Linear(1)
  vars(node)['_pytree__is_pytree'] = False
  return node


@hostile
def module_that_says_it_has_int_keys():
  node = Linear(1)
  vars(node)['_pytree__has_int_keys'] = True
  vars(node)['10'] = 1
  vars(node)['9'] = 2
  vars(node)['09'] = 3
  return node


@hostile
def list_with_odd_digits():
  node = nnx.List([1])
  for name in ('07', '7', ' 8', '1_0', '-1', '٣'):
    vars(node)[name] = nnx.Param(jnp.array(1))
  return node


@hostile
def module_with_odd_hash():
  class Odd(Linear):
    def __hash__(self):
      raise ValueError('hostile')

    def __eq__(self, other):
      raise ValueError('hostile')

  return holding(Odd(1), again=Odd(1))


@hostile
def variable_with_odd_eq():
  return holding(nnx.Param(np.array([1, 2])), again=nnx.Param('text'))


@hostile
def variable_without_value():
  return holding(object.__new__(nnx.Param))


@hostile
def variable_with_odd_metadata():
  variable = nnx.Param(jnp.array(1))
  object.__setattr__(
    variable, '_var_metadata', collections.OrderedDict(hijax=False, ref=False, eager_sharding=True)
  )
  return holding(variable)


@hostile
def variable_without_metadata_entries():
  variable = nnx.Param(jnp.array(1))
  object.__setattr__(variable, '_var_metadata', {'ref': False})
  return holding(variable)


@hostile
def variable_with_odd_trace_state():
  variable = nnx.Param(jnp.array(1))
  object.__setattr__(variable, '_trace_state', 'none')
  return holding(variable)


def variable_class(**methods):
  return type('Odd', (nnx.Param,), methods)


@hostile
def variable_with_own_var_type():
  return holding(variable_class(var_type=property(lambda self: Counter))(jnp.array(1)))


@hostile
def variable_with_own_set_raw_value():
  def set_raw_value(self, value, **keywords):
    nnx.Param.set_raw_value(self, value, **keywords)
    self._var_metadata['sets'] = self._var_metadata.get('sets', 0) + 1

  return holding(variable_class(set_raw_value=set_raw_value)(jnp.array(1)))


@hostile
def variable_with_own_copy():
  return holding(
    variable_class(copy=lambda self, **keywords: Counter(self.get_raw_value()))(jnp.array(1))
  )


@hostile
def variable_with_own_from_metadata():
  return holding(
    variable_class(from_metadata=classmethod(lambda cls, value, metadata: Counter(value)))(jnp.array(1))
  )


@hostile
def variable_with_own_update():
  return holding(variable_class(update_from_state=raising)(jnp.array(1)))


@hostile
def variable_with_own_setattr():
  return holding(variable_class(__setattr__=raising)(jnp.array(1)))


@hostile
def variable_that_is_a_mapping():
  return holding(variable_class(keys=lambda self: ['a'], items=lambda self: [('a', 1)])(jnp.array(1)))


@hostile
def variable_of_odd_values():
  node = holding(None)
  for i, value in enumerate(
    (
      'text',
      b'bytes',
      True,
      object,
      (1, 'a'),
      [jnp.array(1)],
      {'a': 1},
      1 + 2j,
      np.float32(1),
      jax.sharding.PartitionSpec('x'),
      nnx.State({'a': 1}),
      len,
      Ellipsis,
      range(3),
      frozenset((1,)),
    )
  ):
    setattr(node, f'v{i}', nnx.Param(value))
  return node


@hostile
def odd_leaves():
  return holding(
    jax.ShapeDtypeStruct((1,), jnp.float32),
    spec=jax.sharding.PartitionSpec('a'),
    number=np.float32(1),
    dtype=np.dtype('int8'),
    key=jax.random.key(0),
    scalar=np.ones(()),
    flag=True,
  )


@hostile
def registered_that_raises():
  return holding(registered(flatten=raising))


@hostile
def registered_with_generator():
  return holding(registered(flatten=lambda node: ((pair for pair in [('a', 1)]), None)))


@hostile
def registered_with_short_pairs():
  return holding(registered(flatten=lambda node: ([('a',)], None)))


@hostile
def registered_with_long_pairs():
  return holding(registered(flatten=lambda node: ([('a', 1, 2)], None)))


@hostile
def registered_with_duplicates():
  return holding(
    registered(
      flatten=lambda node: ([('a', nnx.Param(jnp.array(1))), ('a', nnx.Param(jnp.array(2)))], None)
    )
  )


@hostile
def registered_with_temporaries():
  """Each flatten makes children that nothing else keeps."""
  return holding(registered(flatten=lambda node: ([('a', Linear(1)), ('b', Linear(1))], None)))


@hostile
def registered_that_reenters():
  return holding(registered(flatten=lambda node: ([('a', len(nnx.split(Net(1))[1]))], None)))


@hostile
def registered_that_collects():
  return holding(registered(flatten=lambda node: ([('a', gc.collect() * 0)], None)))


@hostile
def registered_that_grows_its_owner():
  node = holding(None)
  vars(node)['held'] = registered(
    flatten=lambda r: ([('n', vars(node).setdefault('zz', nnx.Param(jnp.array(5))) and 1)], None)
  )
  return node


@hostile
def registered_that_empties_its_owner():
  node = holding(None, z=nnx.Param(jnp.array(2)))
  vars(node)['held'] = registered(flatten=lambda r: ([('n', vars(node).clear())], None))
  return node


@hostile
def registered_that_shrinks_a_list():
  things = []
  things += [
    registered(flatten=lambda r: ([('n', things.clear())], None)),
    nnx.Param(jnp.array(1)),
    nnx.Param(jnp.array(2)),
  ]
  return holding(things)


def registered(**functions):
  cls = type('Registered', (), {})
  defaults = {
    'flatten': lambda node: ([], None),
    'set_key': setattr,
    'pop_key': raising,
    'create_empty': lambda metadata: cls(),
    'clear': lambda node: None,
    'init': lambda node, items: list(items),
  }
  nnx.graphlib.register_graph_node_type(cls, **{**defaults, **functions})
  return cls()


# jax compares the keys of its caches when their hashes meet, which depends on addresses.
LOTTERY = {'raising_eq', 'raising_bool_of_eq', 'eq_returns_array', 'raising_class', 'raising_getattribute'}


@pytest.mark.parametrize(('name', 'walk'), [(n, w) for n in ZOO for w in WALKS if w != 'jit' or n not in LOTTERY])
def test_zoo(say, name, walk):
  node = ZOO[name]()
  for _ in range(2):
    say(first_line(WALKS[walk], node))
  say(first_line(lambda: tree(node)))


FILTERS = {
  'counts': lambda say: lambda path, leaf: say('asked', path) or len(path) % 2,
  'raises': lambda say: raising,
  'returns_text': lambda say: lambda path, leaf: 'yes',
  'returns_array': lambda say: lambda path, leaf: np.array([1, 2]),
  'raising_bool': lambda say: lambda path, leaf: static_class(__bool__=raising)(),
  'mutates_variable': lambda say: lambda path, leaf: setattr(leaf, '_raw_value', jnp.array(7.0)) or True,
  'splits': lambda say: lambda path, leaf: bool(nnx.split(Net(1))),
  'raising_eq': lambda say: type(
    'F', (), {'__eq__': raising, '__call__': lambda s, p, l: True, '__hash__': object.__hash__}
  )(),
  'equal_to_all': lambda say: type(
    'F',
    (),
    {'__eq__': lambda a, b: True, '__call__': lambda s, p, l: False, '__hash__': object.__hash__},
  )(),
  'odd_type': lambda say: type(
    'T', (type,), {'__instancecheck__': lambda c, i: say('instance?') or True}
  )('T', (), {}),
  'subclass_of_of_type': lambda say: type(
    'O', (nnx.OfType,), {'__call__': lambda s, p, l: say('asked') or True}
  )(int),
}


@pytest.mark.parametrize('name', FILTERS)
def test_filters(say, name):
  """User code in a filter: asked as often, in the same order, about the same leaves."""
  for call in (nnx.split, nnx.state, nnx.pop):
    net = Net(2)
    say(first_line(lambda c=call, n=net: plain(c(n, FILTERS[name](say), ...))), *tree(net))
    say(first_line(lambda c=call, n=net: plain(c(n, nnx.Param, FILTERS[name](say)))))
  say(first_line(lambda: plain(nnx.find_duplicates(Shared(), only=FILTERS[name](say)))))
  say(first_line(lambda: plain(nnx.filter_state(nnx.state(Net(1)), FILTERS[name](say)))))
  say(first_line(lambda: plain(nnx.split_state(nnx.state(Net(1)), FILTERS[name](say), ...))))


def test_loop_body_mutates(say):
  """The body of a loop over iter_graph changes the graph that it runs over."""
  net = Net(3)
  for path, _ in nnx.iter_graph(net):
    say(path)
    if path == ('layers', 0, 'kernel'):
      vars(net.layers).pop('2')
      net.layers[1].extra = nnx.Param(jnp.array(1))
  walk = nnx.iter_graph(Net(1))
  next(walk)
  walk.close()
  say(first_line(next, walk), first_line(walk.throw, KeyError('thrown')))
  say(first_line(lambda: nnx.iter_graph(Net(1)).send(3)), isinstance(walk, collections.abc.Generator))


def test_patched_after_first_use(say):
  """Hooks and registrations that change after a class was walked."""

  class Patched(Linear):
    pass

  def show():
    say(*[first_line(walk, Patched(1)) for walk in WALKS.values()])

  show()
  impl = graphlib.GRAPH_REGISTRY[Patched]
  Patched._graph_node_flatten = raising  # upstream bound the hook when the class was made
  show()
  Patched._pytree__is_pytree = False
  show()
  Patched._pytree__has_int_keys = True
  show()
  graphlib.GRAPH_REGISTRY[Patched] = graphlib.GraphNodeImpl(
    Patched,
    lambda node: ([('only', 1)], None),
    impl.set_key,
    impl.pop_key,
    lambda metadata: Patched(1),
    impl.clear,
    impl.init,
  )
  show()
  del graphlib.GRAPH_REGISTRY[Patched]
  show()
  graphlib.GRAPH_REGISTRY[Patched] = impl
  show()


def test_patched_variable(say):
  class Patched(nnx.Param):
    pass

  def show():
    say(*[first_line(walk, holding(Patched(jnp.array(1.0)))) for walk in WALKS.values()])

  show()
  Patched.get_metadata = lambda self, *a, **k: {'hijax': False, 'ref': False, 'made': 'up'}
  show()
  del Patched.get_metadata
  Patched.set_raw_value = raising
  show()
  Patched.copy = raising
  show()


def test_registered_after_first_use(say):
  """A class that is walked as a static, then becomes a node for jax."""

  class Late:
    def __init__(self):
      self.w = nnx.Param(jnp.array(1.0))

  node = holding(Late())
  say(*[first_line(walk, node) for walk in WALKS.values()])
  jax.tree_util.register_pytree_node(Late, lambda x: ((x.w,), None), lambda aux, children: Late())
  say(*[first_line(walk, node) for walk in WALKS.values()])


def test_finalizers_run_in_a_walk(say):
  """Objects that die while a merge or an update replaces them."""
  deaths = []

  class Dying:
    def __init__(self, net):
      self.net = weakref.ref(net)

    def __del__(self):
      deaths.append(1)
      net = self.net()
      if net is not None:
        nnx.split(net)

  net = Loose()
  net.inner = Linear(1)
  for _ in range(3):
    net.dying = Dying(net)
    net.w = nnx.Param(jnp.array(1.0))
    nnx.update(net, nnx.state(net))
    nnx.jit(lambda n: setattr(n, 'dying', None))(net)
    gc.collect()
  say(len(deaths) > 0, *tree(net))


def test_tracing_functions(say):
  """Under sys.settrace and sys.setprofile every Python call of a walk can run code."""
  calls = []

  def tracer(frame, event, argument):
    calls.append(1)
    return tracer

  for start in (sys.settrace, sys.setprofile):
    start(tracer)
    try:
      lines = [first_line(walk, holding(Net(2))) for walk in WALKS.values()]
    finally:
      start(None)
    say(*lines)


def test_switching_threads(say):
  """Walks of one shared model from eight threads that switch all the time."""
  net, errors = Shared(), []
  expected = plain(nnx.graphdef(net))

  def work(_):
    try:
      for _ in range(100):
        graphdef, state = nnx.split(net)
        assert plain(nnx.graphdef(nnx.merge(graphdef, state))) == expected
        nnx.update(net, state)
        nnx.clone(net)
        assert len(list(nnx.iter_graph(net))) > 3
    except BaseException as error:
      errors.append(repr(error))

  with switching_all_the_time():
    in_threads(work, range(8))
  say(errors, *tree(net))


def test_named_tuple_classes_come_and_go(say):
  """More classes than any cache keeps."""
  names = Names()
  for i in range(300):
    cls = collections.namedtuple(f'T{i}', ['b', f'a{i}'])
    node = Empty()
    node.t = nnx.data(cls(nnx.Param(jnp.array(i)), 2))
    merged = nnx.merge(*nnx.split(node))
    if i % 50 == 0:
      say(*tree(merged, names), type(merged.t) is cls)
