"""Puts what can be observed of objects into words, the same words for the same observations."""

import re

import jax
import numpy as np
from flax import nnx
from flax.nnx import graphlib

ADDRESS = re.compile(r'0x[0-9a-f]+')


class Names:
  """Numbers objects by first sight, so that identities can be compared between processes."""

  def __init__(self):
    self.known: list = []  # keeps them alive: an address must not be used twice

  def __call__(self, value) -> str:
    for i, known in enumerate(self.known):
      if known is value:
        return f'#{i}'
    self.known.append(value)
    return f'#{len(self.known) - 1}'


def plain(text) -> str:
  """Text without addresses."""
  return ADDRESS.sub('0x...', str(text))


def value_of(value) -> str:
  if isinstance(value, (jax.Array, np.ndarray)) and not isinstance(value, jax.core.Tracer):
    if isinstance(value, jax.Array) and value.is_deleted():
      return f'{type(value).__name__} {value.dtype} deleted'
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
      return f'key {jax.random.key_data(value).tolist()}'
    return f'{type(value).__name__} {value.dtype} {np.asarray(value).tolist()}'
  return plain(repr(value))


def variable(value: nnx.Variable) -> str:
  """A Variable's class, value and metadata, in the order of its metadata."""
  metadata = plain(list(value.get_metadata().items()))
  return f'{type(value).__name__}({value_of(value.get_raw_value())}, {metadata})'


def tree(node, names: Names | None = None, seen: set | None = None, depth: int = 0) -> list[str]:
  """Lines that show an object graph: classes, identities, `vars()` order, values, sharing."""
  names, seen = names or Names(), set() if seen is None else seen
  indent = '  ' * depth
  if isinstance(node, nnx.Variable):
    return [f'{indent}{names(node)} {variable(node)}']
  if isinstance(node, nnx.Pytree):
    head = f'{indent}{names(node)} {type(node).__name__}'
    if id(node) in seen:
      return [f'{head} again']
    seen.add(id(node))
    items = [(k, v) for k, v in vars(node).items() if not k.startswith('_pytree__')]
  elif isinstance(node, dict):
    head, items = f'{indent}{type(node).__name__}', list(node.items())
  elif isinstance(node, (list, tuple)):
    head, items = f'{indent}{type(node).__name__}', list(enumerate(node))
  else:
    return [f'{indent}{value_of(node)}']
  lines = [head]
  for key, child in items:
    below = tree(child, names, seen, depth + 1)
    lines += [f'{indent}  {key!r}: {below[0].strip()}', *below[1:]]
  return lines


def error_of(call, *arguments, **keywords) -> str:
  """The type and text of what a call raises, or what it returns."""
  try:
    result = call(*arguments, **keywords)
  except BaseException as error:
    return plain(f'{type(error).__name__}: {error}')
  return f'no error, {plain(repr(result))[:300]}'


def state_lines(state) -> list[str]:
  """A state's paths in order, and its leaves."""
  return (
    [
      f'{path}: {variable(leaf) if isinstance(leaf, nnx.Variable) else value_of(leaf)}'
      for path, leaf in nnx.to_flat_state(state)
    ]
    if isinstance(state, nnx.State)
    else [value_of(state)]
  )


def contexts() -> tuple[int, int, int]:
  """How deep the context stacks are: all zero outside of any call."""
  context = graphlib.GRAPH_CONTEXT
  return (
    len(context.update_context_stacks),
    len(context.ref_index_stack),
    len(context.index_ref_stack),
  )
