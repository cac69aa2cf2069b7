"""Programs over object graphs: what each step does, and what can be observed after it.

A program is a list of steps (operation, four numbers). Numbers choose among what there is, so that
each program means something and stays one when steps are left out.
"""

import copy
import gc
import pickle
import typing as tp
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from telling import contexts, plain, tree, value_of
from zoo import GRAPHS, Alike, Counter, Linear, Registered

gc.freeze()  # what was imported is not looked at in each collection
NODES = 5  # at most that many roots at once
LARGEST = 300  # nodes below one root, counted as in a tree
HELD = 3  # containers within nodes that the program holds too
NAMES = ('a', 'b', 'kernel', 'layers', 'me', 'size', '_hidden', '0')
KINDS = (
  'module', 'net', 'shared', 'cyclic', 'containers', 'marked', 'dataclass', 'hooked', 'own_flatten',
  'optimizer', 'layers', 'reordered', 'long_list', 'nnx_dict', 'rngs', 'metric', 'empty', 'variable',
  'registered', 'named_tuple', 'payloads', 'refs', 'hijax', 'plain_list', 'plain_dict', 'tuple', 'alike', 'alike',
)  # fmt: skip
FILTERS = (
  nnx.Param,
  Counter,
  ...,
  'note',
  nnx.Not(nnx.Param),
  nnx.Any(Counter, nnx.BatchStat),
  nnx.PathContains('kernel'),
  nnx.Variable,
  nnx.RngState,
  lambda path, value: len(path) > 1,
)


class Same:
  """Equal to others of its kind, whatever they are."""

  def __eq__(self, other):
    return type(other) is Same

  def __hash__(self):
    return 1

  def __repr__(self):
    return 'Same()'


SAME = Same()
STATICS = (
  lambda: 'text',
  lambda: 3,
  lambda: 1000 + 1,
  lambda: float('nan'),
  lambda: -0.0,
  lambda: None,
  lambda: (1, 'x', (2.5,)),
  lambda: Same(),
  lambda: SAME,
  lambda: nnx.relu,
  lambda: frozenset([1, 2]),
  lambda: True,
  lambda: 1,
  lambda: 1.0,
  lambda: 0.0,
  lambda: jnp.float32,
)
PAYLOADS = (
  lambda x: x + 1,
  lambda x: jnp.array([1.0, 2.0]),
  lambda x: jnp.ones((2, 3)),
  lambda x: jnp.array(3),
  lambda x: np.array([0.5, -0.0], np.float32),
  lambda x: 2.5,
  lambda x: x,
  lambda x: jnp.array(np.nan),
  lambda x: jnp.array([True, False]),
  lambda x: jnp.zeros(0),
  lambda x: {'p': jnp.array(1.0), 'q': (jnp.array(2),)},
  lambda x: None,
  lambda x: jax.random.key(4),
  lambda x: jnp.array([1.0, 2.0], jnp.bfloat16),
  lambda x: jnp.full((2,), 1.5),  # of a weak type
  lambda x: placed(jnp.array([1.0, 2.0]), 1),
)
XS = (
  lambda: jnp.array([1.0, 2.0]),
  lambda: jnp.ones(3),
  lambda: np.array([2.0, 1.0], np.float32),
  lambda: 2,
  lambda: jnp.array([1, 2]),
  lambda: jnp.array([1.0, 2.0]),
  lambda: placed(jnp.array([1.0, 2.0]), 0),
  lambda: placed(jnp.array([1.0, 2.0]), 1),
)


def placed(array, where: int):
  """Committed to a device; 3: one copy on each; 4: cut in two; 5: committed to none."""
  if where == 5:
    return jnp.asarray(np.asarray(array))
  if where < 3:
    return jax.device_put(array, jax.devices()[where])
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ('d',))
  cut = where == 4 and array.ndim and array.shape[0] % 2 == 0
  return jax.device_put(
    array, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*['d'] * bool(cut)))
  )


# ---- what the jitted functions do ----


def numeric(node) -> list[nnx.Variable]:
  """The Variables below `node` that hold an array of numbers, in the order of the walk."""
  found = [value for _, value in nnx.iter_graph(node) if isinstance(value, nnx.Variable)]
  return [v for v in found if is_numeric(v.get_value())]


def is_numeric(value) -> bool:
  return isinstance(value, (jax.Array, np.ndarray)) and jnp.issubdtype(value.dtype, jnp.number)


def read(node, x, other):
  return sum([v[...].sum() for v in numeric(node)], jnp.sum(x))


def touch_nothing(node, x, other):
  return None


def write_all(node, x, other):
  for v in numeric(node):
    v[...] = v[...] + 1


def write_first(node, x, other):
  for v in numeric(node)[:1]:
    v[...] = v[...] * 2
  return jnp.sum(x)


def write_other(node, x, other):
  for v in numeric(other)[-1:]:
    v[...] = v[...] - 3
  return node


def write_same_back(node, x, other):
  for v in numeric(node):
    v.set_value(v.get_value())
  return {'x': x}


def copy_across(node, x, other):
  for v, w in zip(numeric(node), numeric(other)):
    v.set_value(w.get_value())


def exchange(node, x, other):
  """Each Variable gets the array of the next one of its kind, so that a plan fits the next call."""
  kinds: dict[tuple, list] = {}
  for v in numeric(node):
    kinds.setdefault((v.get_value().shape, v.get_value().dtype), []).append(v)
  for held in kinds.values():
    values = [v.get_value() for v in held]
    for v, value in zip(held, values[1:] + values[:1]):
      v.set_value(value)


def reshape(node, x, other):
  for v in numeric(node)[:1]:
    v.set_value(jnp.resize(v.get_value(), (2, 3)) + 0 * v.get_value().sum())


def add(node, x, other):
  node.added = nnx.Param(x)
  return node.added


def put_last(node, old: str, new: str) -> None:
  """An attribute's value under another name, or the same, at the end of `vars`."""
  value = getattr(node, old)
  delattr(node, old)
  setattr(node, new, value)


def remove(node, x, other):
  for name in attributes_of(node)[-1:]:
    delattr(node, name)


def rename(node, x, other):
  """Not an array, which a name with an underscore would make a static value: a tracer that leaks."""
  for name in [name for name in attributes_of(node) if not isinstance(vars(node)[name], jax.Array)][:1]:
    put_last(node, name, name + '_')


def graft(node, x, other):
  node.grafted = other


def change_static(node, x, other):
  node.size = (getattr(node, 'size', 0) or 0, x.shape)


def set_metadata(node, x, other):
  for v in numeric(node)[:1]:
    v.set_metadata(seen=jnp.shape(x))


def fail_late(node, x, other):
  write_all(node, x, other)
  raise ValueError('in the step')


def fail_on_three(node, x, other):
  write_first(node, x, other)
  if jnp.shape(x) == (3,):
    node.failing = 'yes'
    raise KeyError(3)
  return x


def give_back(node, x, other):
  return [node, other, nnx.state(node)], numeric(node)[:1]


def make_new(node, x, other):
  return Linear(2, 3.0), nnx.Param(x)


def nested(node, x, other):
  @nnx.jit
  def inner(node):
    write_first(node, x, other)
    return read(node, x, node)

  return inner(node) + inner(node)


def gradient(node, x, other):
  return nnx.grad(lambda node: jnp.asarray(read(node, x, node), float))(node)


def conditional(node, x, other):
  return nnx.cond(
    jnp.sum(x) > 3, lambda n: write_all(n, x, n), lambda n: write_first(n, x, n) and None, node
  )


def random(node, x, other):
  found = [value for _, value in nnx.iter_graph(node) if isinstance(value, nnx.RngStream)]
  return [jax.random.normal(stream()) for stream in found]


def looped(node, x, other):
  return nnx.fori_loop(0, 3, lambda i, n: (write_all(n, x, n), n)[1], node)


def write_by_shape(node, x, other):
  (write_all if jnp.ndim(x) else write_first)(node, x, other)
  return x


def call_back(node, x, other):
  write_first(node, x, other)
  jax.debug.callback(CALLED.append, x)
  return node


CALLED: list = []  # with what the callbacks were called
BODIES = (  # the first ones are drawn twice as often
  read, exchange, write_all, write_first, write_other, write_same_back, copy_across, conditional,
  touch_nothing, reshape, add, remove, rename, graft, change_static, set_metadata, fail_late, fail_on_three,
  give_back, make_new, nested, gradient, random, looped, write_by_shape, call_back,
)  # fmt: skip
TREE, SIMPLE = {'graph': False}, {'graph': True, 'graph_updates': False}
MODES = (*[{}] * 5, TREE, SIMPLE, {'donate_argnums': 0}, {**TREE, 'donate_argnums': 0})


# ---- what can be observed ----


class Numbers:
  """Numbers objects by first sight. Keeps no node alive; a Variable, which can't be weakly
  referenced, until `forget`."""

  def __init__(self):
    self.live: dict[int, tuple] = {}
    self.given = 0

  def __call__(self, value) -> str:
    found = self.live.get(id(value))
    if found is None or found[0]() is not value:
      ref = (lambda: value) if isinstance(value, nnx.Variable) else weakref.ref(value)
      self.live.pop(id(value), None)  # of one that died, in whose place this is
      self.live[id(value)] = found = (ref, f'#{self.given}')
      self.given += 1
    return found[1]

  def forget(self, others: tp.Collection[int]) -> None:
    """Lets go of the Variables that are not among `others`."""
    self.live = {
      at: found for at, found in self.live.items() if at in others or type(found[0]) is weakref.ref
    }

  def alive(self) -> list[str]:
    return [number for ref, number in self.live.values() if ref() is not None]


class World:
  def __init__(self):
    self.nodes: list = [Alike(), Linear(2)]
    self.numbers = Numbers()
    self.traces: dict[str, int] = {}
    self.jitted: dict = {}
    self.bound: dict = {}
    self.held: list = []
    self.forget_call()
    CALLED.clear()

  def forget_call(self) -> None:
    self.called = None  # the node of the latest call
    self.again = lambda: None  # makes that call

  def node(self, n: int):
    """Every other number is the node of the latest call: what happens to it is seen by the next."""
    if n % 2 == 0 and self.called is not None:
      return self.called
    return self.nodes[n // 2 % len(self.nodes)]

  def keep(self, node):
    self.nodes = [node, *self.nodes][:NODES]

  def function(self, body: int, mode: int):
    """The jitted function of a body in a mode, the same one each time."""
    key = body % len(BODIES), MODES.index(MODES[mode % len(MODES)])
    if key not in self.jitted:
      self.jitted[key] = nnx.jit(self.counted(BODIES[key[0]]), **MODES[key[1]])
    return self.jitted[key]

  def counted(self, body):
    def step(node, x, other):
      self.traces[body.__name__] = self.traces.get(body.__name__, 0) + 1
      return body(node, x, other)

    return step

  def seen(self) -> list[str]:
    """What there is now. A root that has grown too large, as copies of copies do, is dropped."""
    lines, kept, parts = [], [], {}
    for node in self.nodes:
      parts_of(node, parts)
    self.numbers.forget(parts.keys())
    for node in self.nodes:
      try:
        shown = tree(node, self.numbers)
      except Exception as error:  # an object that can't be shown
        shown = [plain(f'{type(error).__name__}: {error}')]
      if len(shown) <= LARGEST:
        kept.append(node)
      lines += shown
    self.nodes = kept or [Linear(2)]
    lines.append(f'held {[(id(one) in parts, len(one)) for one in self.held]}')
    jax.effects_barrier()
    return [
      *lines,
      f'arrays {together(parts.values())}',
      f'odd ones {[odd for part in parts.values() for odd in map(oddity, children_of(part)) if odd]}',
      f'traces {self.traces}',
      f'called back {len(CALLED)}',
      f'contexts {contexts()}',
    ]


def children_of(node) -> list:
  """What a node, a Variable or a container holds."""
  if isinstance(node, nnx.Variable):
    return [node.get_raw_value()]
  if isinstance(node, (nnx.Pytree, Registered)):
    return list(vars(node).values())
  return list(node.values() if isinstance(node, dict) else node if isinstance(node, (list, tuple)) else ())


def parts_of(node, met: dict[int, tp.Any]) -> None:
  """Adds all that lies below `node`, itself too, each once."""
  if id(node) not in met:
    met[id(node)] = node
    for child in children_of(node):
      parts_of(child, met)


def below(node) -> list:
  """All that lies below one node, itself too."""
  met: dict[int, tp.Any] = {}
  parts_of(node, met)
  return list(met.values())


def together(parts: tp.Iterable) -> list[list[int]]:
  """Which holders share an array, among those that were met one after the other."""
  held: dict[int, list[int]] = {}
  for i, part in enumerate(parts):
    for value in children_of(part):
      if isinstance(value, jax.Array):
        held.setdefault(id(value), []).append(i)
  return [holders for holders in held.values() if len(holders) > 1]


def oddity(value) -> str:
  """Of an array: its weak type, and where it lies if that is no matter of course."""
  array = getattr(value, '_base_array', value)
  if not isinstance(array, jax.Array) or isinstance(array, jax.core.Tracer) or array.is_deleted():
    return ''
  where = plain(array.sharding) if array.committed or array.sharding.device_set != {jax.devices()[0]} else ''
  return f'{array.shape} {"weak " * array.weak_type}{where}' if array.weak_type or where else ''


def told(value, numbers: Numbers) -> list[str]:
  """What came back: structure, values, and which of its nodes are known ones."""
  if too_large(value):
    return ['too large']
  if isinstance(value, nnx.State) or not isinstance(
    value, (nnx.Pytree, nnx.Variable, list, tuple, dict)
  ):
    leaves = jax.tree.leaves(value)
    return [plain(jax.tree.structure(value)), *map(value_of, leaves), *filter(None, map(oddity, leaves))]
  return tree(value, numbers)


def too_large(node, left: list[int] | None = None) -> bool:
  """Whether `node` is more than a few hundred nodes as a tree, as a cycle is, and much sharing."""
  left = [LARGEST] if left is None else left
  left[0] -= 1
  children = [] if isinstance(node, nnx.Variable) else children_of(node)
  return left[0] < 0 or any(too_large(child, left) for child in children)


def as_tree(node):
  if too_large(node):
    raise ValueError('too large as a tree')
  return node


# ---- operations ----


def make(world: World, kind, *_):
  world.keep(GRAPHS[KINDS[kind % len(KINDS)]]())


def set_static(world, at, name, which, existing):
  node = world.node(at)
  names = attributes_of(node) if existing % 2 else NAMES
  setattr(node, names[name % len(names)], STATICS[which % len(STATICS)]())


def set_node(world, at, name, other, form):
  value = world.node(other)
  form = (lambda v: v, lambda v: v, lambda v: nnx.List([v]), lambda v: nnx.data([v, 1]))[form % 4]
  setattr(world.node(at), NAMES[name % len(NAMES)], form(value))


def set_variable(world, at, name, payload, kind):
  value = PAYLOADS[payload % len(PAYLOADS)](jnp.array([1.0]))
  cls = (nnx.Param, Counter, nnx.BatchStat)[kind % 3]
  setattr(world.node(at), NAMES[name % len(NAMES)], cls(value, note=kind))


def set_array(world, at, name, payload, form):
  value = PAYLOADS[payload % len(PAYLOADS)](jnp.array([1.0]))
  setattr(world.node(at), NAMES[name % len(NAMES)], nnx.data(value) if form % 2 else value)


def attributes_of(node) -> list[str]:
  return [name for name in vars(node) if not name.startswith('_pytree__')]


def remove_attribute(world, at, name, *_):
  names = attributes_of(world.node(at))
  delattr(world.node(at), names[name % len(names)])


def move_attribute(world, at, name, *_):
  """To the end of `vars`."""
  node = world.node(at)
  names = attributes_of(node)
  put_last(node, names[name % len(names)], names[name % len(names)])


def rename_attribute(world, at, which, name, _):
  """The last one keeps its place in `vars`."""
  node = world.node(at)
  names = attributes_of(node)
  put_last(node, names[-1 if which % 2 else which % len(names)], NAMES[name % len(NAMES)])


def rename_key(world, at, which, name, key):
  """Of a dict within a node, or of a Variable's metadata: each value keeps its place."""
  found = [part for part in below(world.node(at)) if (type(part) is dict and part) or isinstance(part, nnx.Variable)]
  part = found[which % len(found)]
  mapping = part if type(part) is dict else part._var_metadata
  names = [name for name in mapping if name not in ('hijax', 'ref') or key % 8 == 0]
  old = names[key % len(names)]
  renamed = [(NAMES[name % len(NAMES)] if k == old else k, value) for k, value in mapping.items()]
  mapping.clear()
  mapping.update(renamed)


def share(world, at, other, which, name):
  """A node or Variable from within one root in another."""
  parts = [v for _, v in nnx.iter_graph(world.node(other)) if isinstance(v, (nnx.Pytree, nnx.Variable))]
  setattr(world.node(at), NAMES[name % len(NAMES)], parts[which % len(parts)])


def edit_list(world, at, which, how, other):
  lists = [v for _, v in nnx.iter_graph(world.node(at)) if isinstance(v, nnx.List)]
  items = lists[which % len(lists)]
  match how % 4:
    case 0:
      items.append(world.node(other))
    case 1:
      items.pop()
    case 2:
      items.reverse()
    case 3:
      items[0] = items[-1]


def variable_of(world, at, which):
  found = [v for _, v in nnx.iter_graph(world.node(at)) if isinstance(v, nnx.Variable)]
  return found[which % len(found)]


def hold(world, at, which, *_):
  """A list, dict or tuple from within a node, which a call may put another in the place of."""
  found = [part for part in below(world.node(at)) if type(part) in (list, dict, tuple)]
  world.held = [found[which % len(found)], *world.held][:HELD]


def set_value(world, at, which, payload, _):
  variable = variable_of(world, at, which)
  variable.set_value(PAYLOADS[payload % len(PAYLOADS)](variable.get_value()))


def set_item(world, at, which, *_):
  variable = variable_of(world, at, which)
  variable[...] = variable[...] * 3


def copy_value(world, at, one, other, _):
  """Two Variables that hold the same array."""
  variable_of(world, at, one).set_value(variable_of(world, at, other).get_value())


def set_metadata_of(world, at, which, value, how):
  variable = variable_of(world, at, which)
  if how % 3:
    variable.set_metadata(note=STATICS[value % len(STATICS)]())
  else:
    variable._var_metadata['note'] = 'mutated'  # in place; get_metadata gives a copy


def delete_value(world, at, which, *_):
  variable_of(world, at, which).get_value().delete()


def place(world, at, which, where, rest):
  """Puts a Variable's array somewhere else; those of all Variables for some numbers."""
  found = numeric(world.node(at))
  for variable in found if rest % 3 == 0 else [found[which % len(found)]]:
    variable.set_value(placed(variable.get_value(), where % 6))


def call(world, body, mode, at, x):
  node, other = world.node(at), world.node(at + 1 + x // 8)
  mode = 0 if too_large([node, other]) else mode
  step, check = world.function(body, mode), as_tree if MODES[mode % len(MODES)] else len
  world.called = node
  world.again = lambda: check([node, other]) and step(node, XS[x % len(XS)](), other)
  return world.again()


def call_again(world, body, mode, at, x):
  """As a training loop does."""
  call(world, body, mode, at, x)
  return repeat(world, at)


def repeat(world, times=2, *_):
  return [world.again() for _ in range(1 + times % 3)][-1]


def repeat_elsewhere(world, device, *_):
  """The latest call where another device is the default."""
  with jax.default_device(jax.devices()[device % 3]):
    return world.again()


def call_bound(world, body, which, at, x):
  """By cached_partial or jit_partial, over a node that is bound once."""
  node, other = world.node(at), world.node(at + 1)
  which = 0 if too_large([node]) else which
  key, check = (body % len(BODIES), which % 3, id(node)), as_tree if which % 3 else len
  if key not in world.bound:
    f = world.counted(BODIES[key[0]])
    make = (
      lambda: nnx.cached_partial(nnx.jit(f), node),
      lambda: nnx.jit_partial(lambda node, x: f(node, x, node), node, graph=False),
      lambda: nnx.jit_partial(lambda node, x: f(node, x, node), node, **SIMPLE),
    )[key[1]]
    world.bound[key] = make(), node
  bound, rest = world.bound[key][0], () if key[1] else (other,)
  world.called = node
  world.again = lambda: check([node]) and bound(XS[x % len(XS)](), *rest)
  return repeat(world)


def ask(world, body, mode, at, how):
  step = world.function(body, mode)
  arguments = world.node(at), XS[0](), world.node(at)
  if MODES[mode % len(MODES)]:
    as_tree(arguments)
  if how % 2:
    return step.eval_shape(*arguments)
  lowered = step.lower(*arguments)
  return [plain(lowered.out_tree), plain(lowered.args_info)]


def split(world, at, which, *_):
  filters = (FILTERS[which % len(FILTERS)], ...) if which % 2 else ()
  graphdef, *states = nnx.split(world.node(at), *filters)
  world.keep(nnx.merge(graphdef, *states))
  return states


def state(world, at, which, *_):
  return nnx.state(world.node(at), FILTERS[which % len(FILTERS)])


def other_number(value, plain: bool):
  """Other than `value`, in its place; a scalar becomes a plain number if asked."""
  if not is_numeric(value):
    return 4 if type(value) is float else value
  return 3.5 if plain and jnp.ndim(value) == 0 else value + 2


def update(world, at, other, which, how):
  """From what another node has, as Variables or as plain values, and with other numbers."""
  state = nnx.state(world.node(other), FILTERS[which % len(FILTERS)])
  if how % 3:
    state = jax.tree.map(lambda x: other_number(x, how % 3 == 2), state)
  nnx.update(world.node(at), nnx.to_pure_dict(state) if how % 2 else state)


def pop(world, at, which, *_):
  return nnx.pop(world.node(at), FILTERS[which % len(FILTERS)])


def clone(world, at, *_):
  world.keep(nnx.clone(world.node(at)))


def compare(world, at, other, *_):
  one, two = nnx.graphdef(world.node(at)), nnx.graphdef(world.node(other))
  return [one == two, one == nnx.graphdef(world.node(at)), hash(one) == hash(two), repr(one)[:2000]]


def walk(world, at, *_):
  return [(path, type(value).__name__) for path, value in nnx.iter_graph(world.node(at))]


def tree_map(world, at, *_):
  world.keep(jax.tree.map(lambda x: x + 1 if is_numeric(x) else x, as_tree(world.node(at))))


def switch(world, at, how, *_):
  (world.node(at).train if how % 2 else world.node(at).eval)()


def duplicate(world, at, how, *_):
  node = world.node(at)
  world.keep(copy.deepcopy(node) if how % 2 else pickle.loads(pickle.dumps(node)))


def optimize(world, at, *_):
  world.keep(nnx.Optimizer(world.node(at), optax.sgd(0.1, momentum=0.9), wrt=nnx.Param))


def drop(world, at, *_):
  """Forgets a root, and says what lives on."""
  if len(world.nodes) > 1:
    gone = world.nodes.pop(at % len(world.nodes))
    world.bound = {key: value for key, value in world.bound.items() if value[1] is not gone}
    del gone
  world.forget_call()
  world.held.clear()
  world.seen()
  gc.collect()
  return world.numbers.alive()


def drop_functions(world, *_):
  world.forget_call()
  world.held.clear()
  world.jitted.clear()
  world.bound.clear()
  gc.collect()
  return world.numbers.alive()


CHANGES = (
  set_static, set_node, set_variable, set_array, remove_attribute, move_attribute, rename_attribute, rename_key,
  share, edit_list, set_value, set_item, set_metadata_of, delete_value, switch, update, clone, copy_value, hold,
  delete_value, update, copy_value, hold, place, place,
)  # fmt: skip


def disturb(world, which, a, b, c):
  """A change to the node of the latest call, with which that call is made again."""
  try:
    CHANGES[which % len(CHANGES)](world, 0, a, b, c)
  finally:
    try:
      repeated = repeat(world)
    finally:
      revive(world.called)
  return repeated


def revive(node) -> None:
  """Puts arrays where there are deleted ones, and back on the first device, so that the node can be called again."""
  for _, variable in nnx.iter_graph(node):
    array = variable.get_raw_value() if isinstance(variable, nnx.Variable) else None
    if not isinstance(array, jax.Array):
      continue
    if array.is_deleted():
      variable.set_value(jnp.zeros(array.shape))
    elif is_numeric(array) and array.sharding.device_set != {jax.devices()[0]}:
      variable.set_value(placed(array, 5))


Step = tuple[str, tuple[int, int, int, int]]
OPERATIONS: dict[str, tp.Callable] = {
  f.__name__: f
  for f in (
    make, set_static, set_node, set_variable, set_array, remove_attribute, move_attribute, rename_attribute, rename_key,
    share, edit_list, hold, set_value, copy_value, set_item, set_metadata_of, delete_value, place,
    call, call_again, repeat, repeat_elsewhere,
    disturb,
    call_bound, ask,
    split, state, update, pop, clone, compare, walk, tree_map, switch, duplicate, optimize, drop,
    drop_functions,
  )
}  # fmt: skip


def outcome(world: World, name: str, numbers) -> str:
  try:
    return '\n'.join(told(OPERATIONS[name](world, *numbers), world.numbers))
  except Exception as error:
    return plain(f'{type(error).__name__}: {error}')


def run(say, program: list[Step]) -> None:
  """Runs a program, and says after each step what it gave and what there is."""
  world = World()
  for i, (name, numbers) in enumerate(program):
    say(f'---- {i}: {name}{numbers}')
    say(outcome(world, name, numbers))
    say('\n'.join(world.seen()))
