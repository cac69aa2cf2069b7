"""What the compiled twins take from the pure modules and from jax, resolved once at import."""
import jax
import numpy as np


def key_array_class():
  """The class of jax's typed keys, which lies where the jax release has it."""
  try:
    from jax._src.random.prng import PRNGKeyArray
  except ImportError:
    from jax._src.prng import PRNGKeyArray
  return PRNGKeyArray


def resolve(graphlib: dict) -> None:
  """Takes the names from graphlib's namespace; called once, at the end of its import."""
  global GRAPH_REGISTRY, PYTREE_REGISTRY, JAX_REGISTRY, GraphNodeImpl, PytreeNodeImpl
  global get_node_impl, GenericPytree, generic_impl, NODE_ATTR, LEAF_ATTR, Static, Repeated
  global Variable, is_array_ref, State, FlatState, HashableMapping, TraceState
  global held_values, DataElem, StaticElem
  global current_jax_trace, ArrayImpl, KeyArray, ndarray, array_types, container_impls
  from flax.nnx import tracers
  from jax._src.array import ArrayImpl as _ArrayImpl
  GRAPH_REGISTRY = graphlib['GRAPH_REGISTRY']
  PYTREE_REGISTRY = graphlib['PYTREE_REGISTRY']
  JAX_REGISTRY = graphlib['JAX_PYTREE_REGISTRY']
  GraphNodeImpl = graphlib['GraphNodeImpl']
  PytreeNodeImpl = graphlib['PytreeNodeImpl']
  get_node_impl = graphlib['get_node_impl']
  GenericPytree = graphlib['GenericPytree']
  generic_impl = graphlib['PYTREE_NODE_IMPL']
  NODE_ATTR = graphlib['NODE_ATTR']
  LEAF_ATTR = graphlib['LEAF_ATTR']
  Static = graphlib['Static']
  DataElem, StaticElem = graphlib['DataElem'], graphlib['StaticElem']
  Repeated = graphlib['Repeated']
  held_values = (graphlib['NoUpdate'], Repeated, graphlib['ArrayRefOutput'])
  Variable = graphlib['Variable']
  is_array_ref = graphlib['is_array_ref']
  State = graphlib['State']
  FlatState = graphlib['FlatState']
  HashableMapping = graphlib['HashableMapping']
  container_impls = {
    cls: PYTREE_REGISTRY[cls] for cls in (list, tuple, dict, State, type(None))
  }
  TraceState = tracers.TraceState
  current_jax_trace = tracers.current_jax_trace
  ArrayImpl = _ArrayImpl
  KeyArray = key_array_class()
  ndarray = np.ndarray
  array_types = (jax.Array, np.ndarray)
