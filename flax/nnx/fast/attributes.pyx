"""Setting an attribute of a Pytree, and the checks that upstream makes then and after construction.

What is done here: a plain static value, or an array, Variable or Pytree as data. Annotations,
containers, descriptors and whatever a class overrides are the pure functions' to handle, and so is
everything that raises.
"""
from cpython.dict cimport PyDict_Contains, PyDict_GetItemWithError
from cpython.object cimport PyObject

from flax.nnx.fast cimport kinds, upstream
from flax.nnx.fast.checks cimport DATA, STATIC, side_of
from flax.nnx.fast.kinds cimport TypeInfo, info_of, instance_dict, lookup
from flax.nnx.fast.slots cimport has_slot, read
from flax.nnx.fast.stepins cimport arguments, pure, step_in, takes
from flax.nnx.fast.traces cimport is_current

cdef extern from "Python.h":
  int PyObject_GenericSetAttr(object o, object name, object value) except -1

cdef tuple OWN = ('_pytree__is_pytree', '_setattr', '_check_value', '_check_valid_context')
cdef object pure_setattr, pure_check, pure_context   # Pytree's own functions


cdef dict plain_attributes(object node, TypeInfo info):
  """The `__dict__` of a Pytree that is marked as its class says; None: not so."""
  if info.kind is not kinds.GRAPH or not info.is_pytree:
    return None
  attributes = instance_dict(node)
  if type(attributes) is not dict:
    return None
  for name in OWN:   # an instance's own wins over the class's
    if PyDict_Contains(attributes, name):
      return None
  return attributes


cdef dict marks_in(TypeInfo info, dict attributes):
  """What `_pytree__nodes` maps; None: not standard."""
  cdef PyObject* nodes = PyDict_GetItemWithError(attributes, '_pytree__nodes')
  cdef object mapping = info.class_nodes if nodes is NULL else <object>nodes
  if type(mapping) is not upstream.HashableMapping:
    return None
  mapping = mapping._mapping
  return mapping if type(mapping) is dict else None


cdef bint marked(dict marks, object name) except -1:
  cdef PyObject* mark = PyDict_GetItemWithError(marks, name)
  return mark is not NULL and <object>mark is True


# ---- checking ----

cdef object check_value(PyObject* f, PyObject** args, size_t nargs, PyObject* names):
  """`_check_value(self, key, value, None)`: what the attribute holds by now is as it is marked."""
  cdef TypeInfo info
  cdef dict attributes, marks
  if arguments(args, nargs, names, 4, 'new_status') and args[3] is <PyObject*>None:
    node, key = <object>args[0], <object>args[1]
    side = side_of(<object>args[2])
    info = info_of(node)
    attributes = plain_attributes(node, info)
    marks = None if attributes is None or type(key) is not str else marks_in(info, attributes)
    if marks is not None and (side is STATIC or side is DATA and marked(marks, key)):
      return None
  return pure(f, args, nargs, names)


# ---- setting ----

cdef bint plain_name(object cls, object name) except -1:
  """Whether a name is an attribute of instances alone, of no class and no metaclass."""
  return type(name) is str and lookup(cls, name) is None and lookup(type(cls), name) is None


cdef bint standard_class(object cls) except -1:
  return (
    lookup(cls, '_check_value') is pure_check and lookup(cls, '_check_valid_context') is pure_context
    and lookup(cls, '_pytree__state') is None
  )


cdef bint is_valid(dict attributes) except -1:
  """Whether a Pytree surely belongs to the current trace."""
  state = attributes.get('_pytree__state')
  if info_of(state).kind is not kinds.PYTREE_STATE or not has_slot(state, kinds.STATE_TRACE):
    return False
  return is_current(read(state, kinds.STATE_TRACE, ''))


cdef bint was_set(object node, object name, object value) except -1:
  """Sets the attribute; False, and nothing is done, where the pure function has to look."""
  cdef TypeInfo info = info_of(node)
  cdef dict attributes = plain_attributes(node, info)
  cdef dict marks
  if attributes is None or not (standard_class(info.cls) and plain_name(info.cls, name)):
    return False
  side = side_of(value)
  marks = marks_in(info, attributes)
  if side is None or marks is None or not is_valid(attributes):
    return False
  if side is DATA and PyDict_Contains(attributes, name) and not marked(marks, name):
    return False
  if not PyDict_Contains(marks, name):
    marks = {**marks, name: side is DATA}
    nodes = upstream.HashableMapping(marks, copy=False)
    PyObject_GenericSetAttr(node, '_pytree__nodes', nodes)
  PyObject_GenericSetAttr(node, name, value)
  return True


cdef object set_attribute(PyObject* f, PyObject** args, size_t nargs, PyObject* names):
  if takes(nargs, names, 3) and was_set(<object>args[0], <object>args[1], <object>args[2]):
    return None
  return pure(f, args, nargs, names)


cdef object set_by_operator(PyObject* f, PyObject** args, size_t nargs, PyObject* names):
  """`node.name = value`, which asks `_setattr`."""
  if takes(nargs, names, 3):
    node = <object>args[0]
    if lookup(type(node), '_setattr') is pure_setattr:
      if was_set(node, <object>args[1], <object>args[2]):
        return None
  return pure(f, args, nargs, names)


def install(pytreelib: dict) -> None:
  global pure_setattr, pure_check, pure_context
  own = vars(pytreelib['Pytree'])
  pure_setattr, pure_check = own['_setattr'], own['_check_value']
  pure_context = own['_check_valid_context']
  step_in(pure_setattr, set_attribute)
  step_in(own['__setattr__'], set_by_operator)
  step_in(pure_check, check_value)
