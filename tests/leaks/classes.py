"""Classes that are made, walked and dropped: prints what stays of each.

  python classes.py KIND

`blocks` is what Python's allocator holds for each class after the first ones; `freed` is how many
of the classes are gone. A Module's or a Variable's class stays, for the registries of flax and jax
keep it; what a walk remembers of it may not be much more.
"""

import collections
import contextlib
import gc
import sys
import weakref

import jax.numpy as jnp
from flax import nnx

COUNT, WARM = 2000, 200


def param() -> nnx.Param:
  return nnx.Param(jnp.zeros(1))


def module(i: int):
  class Short(nnx.Module):
    def __init__(self):
      self.v = param()

  return Short, Short()


def variable(i: int):
  class Short(nnx.Variable):
    pass

  return Short, {'v': Short(jnp.zeros(1))}


def value(i: int):
  class Short:
    pass

  return Short, [Short(), param()]


def named_tuple(i: int):
  Short = collections.namedtuple('Short', 'a b')
  return Short, Short(param(), 1)


def list_subclass(i: int):
  class Short(list):
    pass

  return Short, [Short(), param()]


def metaclass(i: int):
  class Meta(type):
    pass

  class Short(metaclass=Meta):
    pass

  return Short, [Short(), param()]


def attribute_names(i: int):
  """No class of its own: a class that gets other attributes every time."""
  made = nnx.Module()
  for k in range(3):
    setattr(made, f'name_{i}_{k}', param())
  return None, made


def states(i: int):
  return None, nnx.State({f'name_{i}': {f'inner_{i}': param()}})


KINDS = {f.__name__: f for f in (
  module, variable, value, named_tuple, list_subclass, metaclass, attribute_names, states)}


def walk(node) -> None:
  graphdef, state = nnx.split(node)
  nnx.merge(graphdef, state)
  with contextlib.suppress(TypeError):   # a static list has no hash
    hash(graphdef)
  nnx.clone(node)
  nnx.update(node, state)
  list(nnx.iter_graph(node))
  nnx.find_duplicates(node)
  nnx.state(node, nnx.Param)


def run(kind, start: int, count: int) -> list:
  references = []
  for i in range(start, start + count):
    cls, node = kind(i)
    walk(node)
    if cls is not None:
      references.append(weakref.ref(cls))
  return references


def main(name: str) -> None:
  run(KINDS[name], 0, WARM)
  gc.collect()
  before = sys.getallocatedblocks()
  references = run(KINDS[name], WARM, COUNT)
  gc.collect()
  grown = sys.getallocatedblocks() - before - len(references)
  print('blocks', round(grown / COUNT, 2), 'freed', sum(r() is None for r in references))


if __name__ == '__main__':
  main(sys.argv[1])
