"""Runs every traversal over a hostile model and says how each ended and what it left behind."""
import contextlib
import typing as tp

import jax
from flax import nnx
from flax.nnx import graphlib
from telling import plain, value_of

Make = tp.Callable[[], tp.Any]


def text(value) -> str:
  """The repr, or the error that it raises: hostile objects may not even have one."""
  try:
    return plain(repr(value))
  except BaseException as error:
    return f'no repr ({type(error).__name__}: {plain(error)})'


def result_of(call, *arguments) -> str:
  """What a call gives, or the error that it raises."""
  try:
    return f'gives {text(call(*arguments))}'
  except BaseException as error:
    return f'{type(error).__name__}: {plain(error)}'


def leaf(value) -> str:
  if isinstance(value, jax.Array):
    return value_of(value)
  return text(value)


def shown(value) -> list[str]:
  """Lines that tell one outcome of a walk from another."""
  if isinstance(value, graphlib.GraphDef):
    return [*(text(node) for node in value.nodes), *(text(a) for a in value.attributes),
            f'{value.num_leaves} leaves']
  if isinstance(value, nnx.State):
    return [text(pair) for pair in nnx.to_flat_state(value)]
  if isinstance(value, nnx.FlatState):
    return [text(path) + ' ' + leaf(x) for path, x in value]
  if isinstance(value, (tuple, list)):
    return [line for item in value for line in shown(item)]
  if is_pytree(value):
    return contents(value)
  return [leaf(value)]


def is_pytree(node) -> bool:
  """Whether its class derives from `nnx.Pytree`, without asking the object, the class or its metaclass."""
  return any(base is nnx.Pytree for base in type.mro(type(node)))


def contents(node) -> list[str]:
  """Names, types and values in the instance dict, in its order, one level down."""
  try:
    attributes = object.__getattribute__(node, '__dict__')
  except AttributeError:
    return [text(node)]
  return [f'{type(node).__name__}', *(
    f'  {text(key)}: {type(value).__name__} {leaf(value)}'
    for key, value in list(dict.items(attributes)) if text(key) != "'_pytree__state'")]


def round_trip(node):
  return nnx.merge(*nnx.split(node))


def update_with_itself(node):
  nnx.update(node, nnx.state(node))
  return node


@contextlib.contextmanager
def own_caches():
  """jax keeps what it compared in caches of the whole process: hostile objects must not stay there,
  where other tests' objects would be compared with them."""
  jax.clear_caches()
  try:
    yield
  finally:
    jax.clear_caches()


def three_calls(node):
  """A jitted call that reads every leaf, three times: the later ones may take a faster path."""
  with own_caches():
    step = nnx.jit(lambda n: sum(jax.numpy.sum(x) for x in jax.tree.leaves(nnx.state(n))))
    return [step(node) for _ in range(3)]


WALKS: dict[str, tp.Callable] = {
  'flatten': graphlib.flatten,
  'flatten without paths': lambda n: graphlib.flatten(n, with_paths=False),
  'split': nnx.split,
  'split by type': lambda n: nnx.split(n, nnx.Param, ...),
  'graphdef': nnx.graphdef,
  'state': nnx.state,
  'state of a type': lambda n: nnx.state(n, nnx.Param),
  'round trip': round_trip,
  'clone': nnx.clone,
  'update': update_with_itself,
  'pop': lambda n: nnx.pop(n, nnx.Param),
  'iter_graph': lambda n: list(nnx.iter_graph(n)),
  'find_duplicates': nnx.find_duplicates,
  'jit': three_calls,
}


def outcome(walk: tp.Callable, node) -> list[str]:
  try:
    return shown(walk(node))
  except BaseException as error:
    return [f'{type(error).__name__}: {plain(error)}']


WITHOUT_JIT = tuple(name for name in WALKS if name != 'jit')   # compiling costs more than all the rest


def say_outcomes(say, make: Make, walks: tp.Iterable[str] = WALKS, log: list | None = None) -> None:
  """Says for each walk over a model of its own: the outcome, the model after it, the calls noted."""
  for name in walks:
    node = make()
    if log is not None:
      log.clear()
    say(f'-- {name}')
    for line in outcome(WALKS[name], node):
      say('  ', line)
    if log is not None:
      say('   noted', list(log))
    if is_pytree(node):
      for line in contents(node):
        say('   left', line)
