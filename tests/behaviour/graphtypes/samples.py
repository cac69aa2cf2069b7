"""One instance of each typed graph type, made anew on every call."""
from flax import nnx
from flax.nnx import graphlib
from flax.typing import HashableMapping

DATACLASSES = ('NodeRef', 'VariableDef', 'ArrayRefDef', 'NodeDef', 'GraphDef')
NAMES = ('RefMap', 'IndexMap', *DATACLASSES)


def metadata(**entries) -> HashableMapping:
  return HashableMapping(entries)


def fields_of(name: str) -> dict:
  """Values for each field of the type `name`, no two alike."""
  return {
    'NodeRef': lambda: dict(index=3),
    'ArrayRefDef': lambda: dict(index=4, outer_index=9),
    'VariableDef': lambda: dict(
      type=nnx.Param, index=1, outer_index=7, metadata=metadata(sharding=('x', None)),
      array_refdef=sample('ArrayRefDef')),
    'NodeDef': lambda: dict(
      type=nnx.Linear, index=0, outer_index=8, num_attributes=2, metadata=nnx.Linear),
    'GraphDef': lambda: dict(
      nodes=[sample('NodeDef'), sample('VariableDef'), sample('NodeRef')],
      attributes=[('kernel', graphlib.NODE_ATTR), ('size', graphlib.Static(5))], num_leaves=1),
  }[name]()


def sample(name: str):
  if name == 'RefMap':
    return graphlib.RefMap([('one', 1), ('two', 2)])
  if name == 'IndexMap':
    return graphlib.IndexMap({1: 'one', 2: 'two'})
  return getattr(graphlib, name)(**fields_of(name))


def cls(name: str) -> type:
  return getattr(graphlib, name)
