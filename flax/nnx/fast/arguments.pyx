"""What stood in the place of each argument when a plan was made, and whether it still does.

Nodes are compared by address, and their structure by the plan; the others are jax's to compare, and
only have to be of a kind that no walk looks into.
"""
import numpy as np

from cpython.object cimport PyObject

from flax.nnx.fast cimport kinds, upstream
from flax.nnx.fast.kinds cimport TypeInfo, info_of
from flax.nnx.fast.nodes cimport carried, sortable


cdef class Roots:
  def __cinit__(self):
    self.objects, self.names, self.tokens, self.lists = [], [], [], []


cdef bint passes(object value) except -1:
  """Whether jax takes `value` as one leaf, or as none, and no walk looks into it."""
  cls = type(value)
  if cls is upstream.ArrayImpl or cls is upstream.ndarray or cls is int or cls is float:
    return True
  cdef TypeInfo info = info_of(value)
  return (
    info.kind is kinds.ARRAY or info.kind is kinds.PLAIN or info.kind is kinds.NONE
    or cls is upstream.KeyArray or isinstance(value, np.generic)
  )


cdef bint tree_passes(object value, int depth) except -1:
  """Whether a list, tuple or dict holds nothing but such values and others like itself."""
  cls = type(value)
  if depth > 20:
    return False
  if cls is dict:
    if not sortable(value):
      return False
    value = (<dict>value).values()
  elif cls is not list and cls is not tuple:
    return passes(value)
  for item in value:
    if not tree_passes(item, depth + 1):
      return False
  return True


cdef class Argument:
  cdef bint fits(self, object value, list held) except -1:
    """Adds the roots to `held`, so that they live whatever a comparison of the others may run."""
    cdef Py_ssize_t i
    cdef tuple items
    if self.shape is ROOT:
      held.append(value)
      return <size_t><PyObject*>value == self.address
    if self.shape is PASSED:
      return passes(value)
    if type(value) is not self.cls:
      return False
    if self.shape is TREE:
      return tree_passes(value, 0)
    if self.shape is MAPPING and tuple(value) != self.keys:
      return False
    items = tuple((<dict>value).values()) if self.shape is MAPPING else tuple(value)
    if len(items) != len(self.parts):
      return False
    for i in range(len(self.parts)):
      if not (<Argument>self.parts[i]).fits(items[i], held):
        return False
    return True

  cdef object built(self, object value, list nodes):
    """The same with each root replaced by its entry in `nodes`."""
    if self.shape is ROOT:
      return nodes[self.root]
    if self.shape is SEQUENCE:
      items = [(<Argument>part).built(item, nodes) for part, item in zip(self.parts, value)]
      return items if self.cls is list else tuple(items)
    if self.shape is MAPPING:
      return {
        key: (<Argument>part).built(value[key], nodes) for key, part in zip(self.keys, self.parts)
      }
    return value


cdef Argument argument_of(object value, object pure, Roots roots):
  """None: no plan covers it. `pure` is what the jitted call takes in its place."""
  cdef Argument argument = Argument.__new__(Argument)
  cdef TypeInfo info = info_of(value)
  argument.cls = type(value)
  argument.shape = PASSED
  if info.kind is kinds.GRAPH or info.kind is kinds.VARIABLE:
    token, leaves = carried(pure)
    if leaves is None:
      return None
    argument.shape, argument.root = ROOT, len(roots.objects)
    argument.address = <size_t><PyObject*>value
    roots.objects.append(value)
    roots.tokens.append(token)
    roots.lists.append(leaves)
    return argument
  if passes(value):
    return argument
  argument.shape = TREE
  if argument.cls in (list, tuple, dict) and tree_passes(value, 0):
    return argument
  if argument.cls not in (list, tuple, dict) or type(pure) is not argument.cls:
    return None
  return parts_of(argument, value, pure, roots)


cdef Argument parts_of(Argument argument, object value, object pure, Roots roots):
  if argument.cls is dict:
    # The roots are walked in the order of sorted keys, as jax flattens a dict.
    argument.shape, argument.keys = MAPPING, tuple(value)
    if any([type(key) is not str for key in value]) or not list(value) == sorted(value) == list(pure):
      return None
    pairs = [(value[key], pure[key]) for key in value]
  else:
    argument.shape = SEQUENCE
    if len(value) != len(pure):
      return None
    pairs = list(zip(value, pure))
  parts = [argument_of(item, one, roots) for item, one in pairs]
  if None in parts:
    return None
  argument.parts = tuple(parts)
  return argument


cdef class Arguments:
  cdef bint fit(self, tuple args, dict kwargs, list held) except -1:
    cdef Py_ssize_t i
    cdef Py_ssize_t n = len(args)
    if len(self.parts) != n + len(self.names):
      return False
    if len(kwargs) != len(self.names) or kwargs and tuple(kwargs) != self.names:
      return False
    for i in range(n):
      if not (<Argument>self.parts[i]).fits(args[i], held):
        return False
    if kwargs:
      for i, name in enumerate(self.names):
        if not (<Argument>self.parts[n + <Py_ssize_t>i]).fits(kwargs[name], held):
          return False
    return True

  cdef tuple built(self, tuple args, dict kwargs, list nodes):
    """(args, kwargs) with each root replaced by its entry in `nodes`."""
    cdef Py_ssize_t i
    cdef Py_ssize_t n = len(args)
    cdef list positional = []
    cdef dict named = {}
    for i in range(n):
      positional.append((<Argument>self.parts[i]).built(args[i], nodes))
    for i in range(len(self.names)):
      name = self.names[i]
      named[name] = (<Argument>self.parts[n + i]).built(kwargs[name], nodes)
    return tuple(positional), named


cdef Arguments arguments_of(
  tuple args, dict kwargs, tuple pure_args, dict pure_kwargs, list parameters, Roots roots
):
  cdef Arguments made = Arguments.__new__(Arguments)
  cdef list parts = []
  cdef Py_ssize_t i
  for i in range(len(args)):
    parts.append(argument_of(args[i], pure_args[i], roots))
    name = parameters[i] if i < len(parameters) else f'argument {i}'
    roots.names.extend([name] * (len(roots.objects) - len(roots.names)))
  for name in kwargs:
    parts.append(argument_of(kwargs[name], pure_kwargs[name], roots))
    roots.names.extend([name] * (len(roots.objects) - len(roots.names)))
  if None in parts:
    return None
  made.parts, made.names = tuple(parts), tuple(kwargs)
  return made
