"""How a node of the arguments goes into a jitted call: as one pytree node over its leaves.

Its structure goes along as one static object, which jax compares by identity first; no Variable or
State is flattened or made. Names of arguments in messages and dumps are upstream's.
"""
import jax

from cpython.object cimport PyObject

cdef extern from "Python.h":
  ctypedef struct Allocating "PyTypeObject":
    object tp_new(Allocating* cls, object args, PyObject* kwargs)

cdef object tree_unflatten = jax.tree.unflatten


cdef class Split:
  pass


class _States:
  """Names the leaves in messages and dumps as upstream's NodeStates does: `model.states[0][3]`."""

  def __str__(self):
    return '.states[0]'


cdef object STATES = _States()
# Where two of them do not compare, jax's message names the class, which is GraphDef upstream.
cdef object SplitClass = type('GraphDef', (Split,), {'__slots__': (), '__module__': 'flax.nnx.graphlib'})


cdef Split split_of(object graphdef, list leaves):
  cdef Split split = (<Allocating*>SplitClass).tp_new(<Allocating*>SplitClass, (), NULL)
  split.graphdef, split.leaves = graphdef, leaves
  return split


def split_with_keys(Split split not None):
  return ((STATES, split.leaves),), split.graphdef


def split_flatten(Split split not None):
  return (split.leaves,), split.graphdef   # jax takes a list apart faster than another node


def split_unflatten(graphdef, children):
  (leaves,) = children
  return split_of(graphdef, leaves if type(leaves) is list else [leaves])   # jax puts in what it likes


cdef class Flat:
  pass


cdef Flat flat_like(object treedef, list leaves):
  cdef Flat flat = Flat.__new__(Flat)
  flat.treedef, flat.leaves = treedef, leaves
  return flat


class _Path:
  """Names a leaf in messages and dumps as its place in the tree does: `model.linear.kernel.value`."""

  def __init__(self, path):
    self.path = path

  def __str__(self):
    return jax.tree_util.keystr(self.path)

  def __eq__(self, other):
    return type(other) is _Path and self.path == other.path

  def __hash__(self):
    return hash(self.path)


def flat_with_keys(Flat flat not None):
  tree = tree_unflatten(flat.treedef, flat.leaves)
  paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
  return tuple([(_Path(path), leaf) for path, leaf in zip(paths, flat.leaves)]), flat.treedef


def flat_flatten(Flat flat not None):
  return flat.leaves, flat.treedef


def flat_unflatten(treedef, children):
  return flat_like(treedef, list(children))


cdef list states_in(object carried):
  """The NodeStates in lists, tuples and dicts, in jax's order."""
  cdef list found = []
  collect_states(carried, found)
  return found


cdef int collect_states(object x, list found) except -1:
  if type(x) is NodeStates:
    found.append(x)
  elif type(x) is dict and sortable(x):   # others are in no plan
    for key in sorted(x):
      collect_states((<dict>x)[key], found)
  elif type(x) is tuple or type(x) is list:
    for item in x:
      collect_states(item, found)
  return 0


cdef bint sortable(dict mapping) except -1:
  """Whether jax sorts the keys without code of theirs: all are strings, or all are ints."""
  cdef object cls = None
  for key in mapping:
    if cls is None:
      cls = type(key)
    if type(key) is not cls or cls is not str and cls is not int:
      return False
  return True


def is_states(x):
  return type(x) is NodeStates


cdef bint plain_states(object states) except -1:
  """Whether NodeStates holds one list of leaves and nothing else, as without StateSharding."""
  parts = states.states
  return (
    states.metadata is None and type(parts) is tuple and len(parts) == 1 and type(parts[0]) is list
  )


cdef bint has_states(object x) except -1:
  """Whether there are NodeStates anywhere in a pytree."""
  return any([is_states(leaf) for leaf in jax.tree.leaves(x, is_leaf=is_states)])


cdef object rebuilt(object x, object visit):
  """Lists, tuples and `sortable` dicts anew, in jax's order, with what `visit` gives for the rest."""
  cls = type(x)
  if cls is tuple:
    return tuple([rebuilt(item, visit) for item in <tuple>x])
  if cls is list:
    return [rebuilt(item, visit) for item in <list>x]
  if cls is dict and sortable(x):
    return {key: rebuilt(x[key], visit) for key in sorted(<dict>x)}
  return visit(x)


cdef tuple carried(object node):
  """(what stands for the structure, the leaves); (None, None) where it is none of these."""
  if type(node) is NodeStates and plain_states(node):
    return node._graphdef, node.states[0]
  if type(node) is Flat:
    return (<Flat>node).treedef, (<Flat>node).leaves
  return None, None


def install(node_states, tree_state) -> None:
  global NodeStates, TreeState
  NodeStates, TreeState = node_states, tree_state
  register = jax.tree_util.register_pytree_with_keys
  register(SplitClass, split_with_keys, split_unflatten, split_flatten)
  register(Flat, flat_with_keys, flat_unflatten, flat_flatten)
