"""What is pickled: makers of objects by name, the protocols that take them, and how to look at them.

Below protocol 2 neither a `PyTreeDef` nor a class with slots can be pickled, and a locally defined
function only by cloudpickle: as byte code, which one Python version alone reads.
"""
import dataclasses
import typing as tp

import jax.numpy as jnp
import optax
from flax import nnx
from flax.nnx import graphlib
from flax.typing import HashableMapping

ALL = (0, 1, 2, 3, 4, 5, 'cloudpickle')
SLOTS = ALL[2:]
CODE = ('cloudpickle',)


@dataclasses.dataclass(frozen=True)
class Subject:
  make: tp.Callable[[], tp.Any]
  protocols: tuple = ALL

  @property
  def holds_code(self) -> bool:
    return self.protocols == CODE


def linear() -> nnx.Linear:
  return nnx.Linear(2, 3, rngs=nnx.Rngs(0))


def shared() -> dict:
  """Containers around a Variable that two paths lead to."""
  weight = nnx.Param(jnp.arange(3.0), tag=('x', 1))
  return {'a': [weight, nnx.BatchStat(jnp.ones(2))], 'b': (weight, None), 'c': 'static'}


def optimizer() -> nnx.Optimizer:
  return nnx.Optimizer(linear(), optax.adam(0.1), wrt=nnx.Param)


def array_ref_def() -> graphlib.ArrayRefDef:
  return graphlib.ArrayRefDef(4, 9)


def variable_def() -> graphlib.VariableDef:
  metadata = HashableMapping({'tag': ('x', None)})
  return graphlib.VariableDef(nnx.Param, 1, 7, metadata, array_ref_def())


def node_def() -> graphlib.NodeDef:
  return graphlib.NodeDef(nnx.Linear, 0, None, 2, nnx.Linear)


def graph_def() -> graphlib.GraphDef:
  attributes = [('kernel', graphlib.NODE_ATTR), ('size', graphlib.Static(5))]
  return graphlib.GraphDef([node_def(), variable_def(), graphlib.NodeRef(1)], attributes, 1)


SUBJECTS = {
  'refmap': Subject(lambda: graphlib.RefMap([('one', 1), ('two', 2)])),
  'refmap_empty': Subject(lambda: graphlib.RefMap()),
  'indexmap': Subject(lambda: graphlib.IndexMap({1: 'one', 2: 'two'})),
  'node_ref': Subject(lambda: graphlib.NodeRef(3)),
  'array_ref_def': Subject(array_ref_def),
  'variable_def': Subject(variable_def),
  'node_def': Subject(node_def),
  'graph_def': Subject(graph_def),
  'graphdef_of_containers': Subject(lambda: nnx.graphdef(shared())),
  'graphdef_of_linear': Subject(lambda: nnx.graphdef(linear()), SLOTS),
  'graphdef_of_optimizer': Subject(lambda: nnx.graphdef(optimizer()), CODE),
  'variable': Subject(lambda: nnx.Param(jnp.arange(3.0), tag=('x', 1))),
  'containers': Subject(shared),
  'state': Subject(lambda: nnx.state(shared())),
  'flat_state': Subject(lambda: nnx.to_flat_state(nnx.state(shared())), SLOTS),
  'linear': Subject(linear, SLOTS),
  'batch_norm': Subject(lambda: nnx.BatchNorm(3, rngs=nnx.Rngs(0)), SLOTS),
  'dropout': Subject(lambda: nnx.Dropout(0.5, rngs=nnx.Rngs(0)), SLOTS),
  'sequential': Subject(lambda: nnx.Sequential(linear(), nnx.relu), CODE),
  'optimizer': Subject(optimizer, CODE),
  'optimizer_state': Subject(lambda: nnx.state(optimizer())),
}
