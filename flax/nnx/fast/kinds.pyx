"""What a value is to a walk, by its type: worked out once, checked by a few pointers after that.

A type is recognised only where every attribute that the pure twin would ask it for is the standard
one, so that reading slots and dicts directly gives what the pure twin would have got.
"""
import functools
import sys
import types
import typing as tp

import jax
from jax._src.core import ShapedArray as _ShapedArray

from cpython.dict cimport PyDict_GetItemWithError, PyDict_Next, PyDict_Size
from cpython.object cimport PyObject, PyTypeObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE

from flax.nnx.fast cimport upstream
from flax.nnx.fast.slots cimport blank, fill, has_slot, offset_of, read, version_of

cdef extern from "Python.h":
  object PyObject_GenericGetDict(object o, void* context)
  PyObject* _PyType_Lookup(PyTypeObject* cls, object name)
  int PyType_IsSubtype(PyTypeObject* a, PyTypeObject* b) noexcept

cdef enum:
  RECENT = 64               # a power of two
  LAYOUTS_KEPT = 8          # for each class
  NAMED_TUPLES_KEPT = 128   # classes; they are in no registry, so nothing else keeps them alive
  STRANGERS_KEPT = 4096     # version tags, numbers that keep no class alive

cdef object Tracer = jax.core.Tracer
cdef object ShapedArray = _ShapedArray
# Types are known by address: a metaclass may have a type hash, and compare, as another one does.
cdef frozenset PLAIN_TYPES = frozenset(map(id, (
  int, float, complex, bool, str, bytes, type(...), type, functools.partial,
  types.FunctionType, types.BuiltinFunctionType, types.MethodType,
)))
cdef frozenset NO_REFS = PLAIN_TYPES | set(map(id, (type(None), tuple, list, dict)))

# What a class may not change if its Variables are to be read and written by slot.
cdef tuple VARIABLE_STANDARD = (
  '_raw_value', '_trace_state', '_var_metadata', 'var_type', 'hijax', 'ref', 'get_metadata',
  'get_raw_value', 'set_raw_value', 'update_from_state', 'copy', 'from_metadata', '_new',
  '_can_update', '_check_can_update', '__setattr__',
)
# What of those is enough to take one apart and put it together.
cdef tuple VARIABLE_SLOTS = ('_raw_value', '_trace_state', '_var_metadata', '_new')
# What a class may not change if its graph nodes are to be read and written by dict.
cdef object ABSTRACT = 1 << 20   # of a type's flags; `object.__new__` refuses such a class
cdef object BASES = vars(type)['__bases__'].__get__
cdef tuple GRAPH_HOOKS = ('flatten', 'create_empty', 'clear', 'init')

cdef dict infos = {}            # id of a type -> TypeInfo, of types that a registry keeps alive anyway
cdef list recent = [None] * RECENT   # some of those, by their address
cdef dict named_tuples = {}     # id of a class -> TypeInfo
cdef set strangers = set()      # version tags, which are never given twice, of types seen as STRANGER
cdef Py_ssize_t strangers_registered = 0   # how many types were registered then
cdef dict standard_variable     # what Variable itself defined of these when it was imported
cdef dict pytree_states = {}    # (initializing, is_setup) -> metadata, four at most
cdef dict makers = {}           # id of such metadata, or of a named tuple's -> (metadata, maker)
cdef object PytreeState = None


cdef object lookup(object cls, str name):
  """The attribute as it stands in the class that defines it, unbound; None where there is none.

  Asks no metaclass. It has the interpreter give the class a version tag, too.
  """
  cdef PyObject* found = _PyType_Lookup(<PyTypeObject*>cls, name)
  return None if found is NULL else <object>found


cdef tuple harmless_access():
  """The `__getattribute__`s that find every attribute which a walk asks for as `object` does: its
  own, those of tuples and classes, and the Optimizer's, which looks at the name 'model' alone."""
  optimizer = sys.modules.get('flax.nnx.training.optimizer')
  own = () if optimizer is None else (vars(optimizer.Optimizer).get('__getattribute__'),)
  return (object.__getattribute__, tuple.__getattribute__, type.__getattribute__, *own)


cdef bint standard_access(object cls):
  """Whether attributes of instances are found the way `object` finds them."""
  return (
    lookup(cls, '__getattribute__') in harmless_access()
    and lookup(cls, '__class__') is vars(object)['__class__']
    and type(lookup(cls, '__dict__')) in (types.GetSetDescriptorType, type(None))
  )


cdef Py_ssize_t registered_types() noexcept:
  return (
    PyDict_Size(upstream.GRAPH_REGISTRY) + PyDict_Size(upstream.PYTREE_REGISTRY)
    + PyDict_Size(upstream.JAX_REGISTRY)
  )


cdef class Layout:
  cdef bint fits(self, dict attributes) noexcept:
    cdef PyObject* key
    cdef PyObject* value
    cdef Py_ssize_t position = 0
    cdef Py_ssize_t i = 0
    if PyDict_Size(attributes) != PyTuple_GET_SIZE(self.keys):
      return False
    while PyDict_Next(attributes, &position, &key, &value):
      if key is not <PyObject*>PyTuple_GET_ITEM(self.keys, i):
        return False
      i += 1
    return True


cdef Layout new_layout(TypeInfo info, dict attributes):
  cdef Layout layout = Layout.__new__(Layout)
  layout.keys, layout.sides = tuple(attributes), []
  layout.standard = all([type(key) is str for key in layout.keys]) and not (
    '_pytree__is_pytree' in attributes or '_pytree__has_int_keys' in attributes
  )
  if not layout.standard:
    return layout
  walked = [as_int(key) for key in layout.keys] if info.int_keys else list(layout.keys)
  layout.order = sorted(range(len(walked)), key=lambda i: (type(walked[i]) is str, walked[i]))
  layout.walked = tuple([walked[i] for i in layout.order])
  layout.distinct = len(set(walked)) == len(walked)
  layout.names = tuple([layout.keys[i] for i in layout.order])
  layout.nodes_at = (
    layout.keys.index('_pytree__nodes') if '_pytree__nodes' in attributes else -1
  )
  return layout


cdef object as_int(str key):
  number = key
  try:
    number = int(key)
  except ValueError:
    pass
  return number


cdef class TypeInfo:
  cdef Layout layout_of(self, dict attributes):
    cdef Layout layout
    for layout in self.layouts:
      if layout.fits(attributes):
        return layout
    layout = new_layout(self, attributes)
    self.layouts = [layout] + self.layouts[:LAYOUTS_KEPT - 1]
    return layout


cdef TypeInfo info_of(object value):
  return info_of_type(type(value))


cdef TypeInfo info_of_type(object cls):
  cdef size_t address = <size_t><PyObject*>cls
  cdef TypeInfo info = recent[(address >> 5) & (RECENT - 1)]
  if info is not None and info.cls is cls and current(info):
    return info
  info = infos.get(address)
  if info is not None and current(info):
    recent[(address >> 5) & (RECENT - 1)] = info
    return info
  info = named_tuples.get(address)
  if info is not None and current(info):
    return info
  if version_of(cls) in strangers and strangers_registered == registered_types():
    return STRANGER_INFO
  return study(cls)


cdef bint current(TypeInfo info):
  if not info.version or info.version != version_of(info.cls):
    return False
  if info.kind is GRAPH:
    return PyDict_GetItemWithError(upstream.GRAPH_REGISTRY, info.cls) is <PyObject*>info.impl
  if info.impl is not None and (
    PyDict_GetItemWithError(upstream.PYTREE_REGISTRY, info.cls) is not <PyObject*>info.impl
  ):
    return False
  return info.registered == registered_types()


cdef TypeInfo study(object cls):
  """Works out what a type is, and keeps that unless nothing but a cache would keep the type."""
  cdef TypeInfo info = TypeInfo.__new__(TypeInfo)
  lookup(cls, '__doc__')   # for the version tag
  info.cls = cls
  info.version = version_of(cls)
  info.registered = registered_types()
  info.layouts = []
  info.kind = OTHER
  info.why = 'the compiled walk does not know its type'
  if PyType_IsSubtype(<PyTypeObject*>cls, <PyTypeObject*>upstream.Variable):
    study_variable(info)
  elif cls in upstream.GRAPH_REGISTRY:
    study_graph_node(info, upstream.GRAPH_REGISTRY[cls])
  elif cls in upstream.PYTREE_REGISTRY:
    study_container(info, upstream.PYTREE_REGISTRY[cls])
  elif cls in upstream.JAX_REGISTRY:
    study_pytree(info)
  elif PyType_IsSubtype(<PyTypeObject*>cls, <PyTypeObject*>tuple):
    study_named_tuple(info)
    return info
  elif cls is upstream.ArrayImpl or cls is upstream.ndarray:
    info.kind = ARRAY
  elif id(cls) in PLAIN_TYPES:
    info.kind = PLAIN
  else:
    return STRANGER_INFO if study_stranger(info) else info
  infos[id(cls)] = info
  return info


cdef TypeInfo stranger_info():
  cdef TypeInfo info = TypeInfo.__new__(TypeInfo)
  info.cls, info.kind, info.layouts = object, STRANGER, []
  info.why = 'its type is registered nowhere'
  return info


cdef TypeInfo STRANGER_INFO = stranger_info()


cdef bint study_stranger(TypeInfo info) except -1:
  """Whether instances are surely no Variables either, by their class or by claiming another."""
  global strangers_registered
  from flax.nnx.variablelib import HijaxVariable
  if (
    not standard_access(info.cls)
    or PyType_IsSubtype(<PyTypeObject*>info.cls, <PyTypeObject*>Tracer)
    or PyType_IsSubtype(<PyTypeObject*>info.cls, <PyTypeObject*>HijaxVariable)
  ):
    return False
  if len(strangers) >= STRANGERS_KEPT or strangers_registered != info.registered:
    strangers.clear()
  if info.version:
    strangers_registered = info.registered
    strangers.add(info.version)
  return True


cdef int study_variable(TypeInfo info) except -1:
  cdef object cls = info.cls
  cdef bint plain = (
    standard_access(cls) and lookup(cls, '__dict__') is None and not cls.__flags__ & ABSTRACT
  )
  info.slotted = plain and all(
    [lookup(cls, name) is standard_variable[name] for name in VARIABLE_SLOTS]
  )
  for name in VARIABLE_STANDARD:
    if lookup(cls, name) is not standard_variable[name]:
      info.why = f'its class changes Variable.{name}'
      return 0
  if issubclass(cls, tp.Mapping):
    info.why = 'its class is a Mapping too'
  elif plain:
    info.kind = VARIABLE
  else:
    info.why = 'its class changes how attributes are found, or is abstract'
  return 0


cdef bint is_hook(object function, str name) except -1:
  """Whether a registered function is the one that upstream's text defines, whoever patched what."""
  from flax.nnx import pytreelib
  code = getattr(function, '__code__', None)
  return (
    type(function) is types.FunctionType and code.co_filename == pytreelib.__file__
    and code.co_qualname == f'Pytree._graph_node_{name}'
  )


cdef int study_graph_node(TypeInfo info, object impl) except -1:
  cdef object cls = info.cls
  info.impl = impl
  if (
    type(impl) is not upstream.GraphNodeImpl or impl.type is not cls
    or cls in upstream.PYTREE_REGISTRY
  ):
    info.why = 'it is registered with functions of its own'
    return 0
  for name in GRAPH_HOOKS:
    if not is_hook(getattr(impl, name), name):
      info.why = f'its class has a _graph_node_{name} of its own'
      return 0
  info.class_nodes = lookup(cls, '_pytree__nodes')
  is_pytree = lookup(cls, '_pytree__is_pytree')
  int_keys = lookup(cls, '_pytree__has_int_keys')
  if not (
    standard_access(cls) and type(info.class_nodes) is upstream.HashableMapping
    and type(is_pytree) is bool and type(int_keys) is bool
  ):
    info.why = 'its class changes how attributes are found'
    return 0
  info.is_pytree, info.int_keys, info.kind = is_pytree, int_keys, GRAPH
  return 0


cdef int study_container(TypeInfo info, object impl) except -1:
  info.impl = impl
  info.why = 'it is registered with functions of its own'
  kinds = ((list, LIST), (tuple, TUPLE), (dict, DICT), (type(None), NONE), (upstream.State, STATE))
  for cls, kind in kinds:
    if info.cls is cls and impl is upstream.container_impls[cls]:
      info.kind = kind
  return 0


cdef int study_pytree(TypeInfo info) except -1:
  """A type that only jax knows; of these a walk knows the one that every nnx.Pytree carries."""
  from flax.nnx import pytreelib
  global PytreeState, STATE_TRACE, STATE_INITIALIZING, STATE_SETUP
  info.why = 'jax alone knows how to flatten it'
  if info.cls is pytreelib.PytreeState:
    STATE_TRACE = offset_of(info.cls, '_trace_state')
    STATE_INITIALIZING = offset_of(info.cls, '_initializing')
    STATE_SETUP = offset_of(info.cls, '_is_setup')
    PytreeState = info.cls
    info.kind = PYTREE_STATE
  return 0


cdef int study_named_tuple(TypeInfo info) except -1:
  cdef object cls = info.cls
  fields = lookup(cls, '_fields')
  info.why = 'a subclass of tuple with a structure of its own'
  cdef tuple bases = BASES(cls)
  if len(bases) != 1 or bases[0] is not tuple or not standard_access(cls):
    return 0
  if type(fields) is not tuple:
    return 0
  if any([type(field) is not str for field in fields]) or any(
    [lookup(cls, name) is not lookup(tuple, name) for name in ('__iter__', '__len__', '__getitem__')]
  ):
    return 0
  info.kind = NAMED_TUPLE
  info.order = sorted(range(len(fields)), key=fields.__getitem__)
  info.keys = [fields[i] for i in info.order]
  info.metadata = metadata_of(tuple.__new__(cls, fields))
  if len(named_tuples) >= NAMED_TUPLES_KEPT:
    for old in named_tuples.values():
      makers.pop(id((<TypeInfo>old).metadata), None)
    named_tuples.clear()
  named_tuples[id(cls)] = info
  makers[id(info.metadata)] = (info.metadata, info)
  return 0


cdef object metadata_of(object pytree):
  """What upstream's flatten of a jax pytree gives as metadata."""
  return upstream.generic_impl.flatten(pytree)[1]


cdef object pytree_state_metadata(object state):
  if not (has_slot(state, STATE_INITIALIZING) and has_slot(state, STATE_SETUP)):
    return None
  initializing = read(state, STATE_INITIALIZING, '')
  is_setup = read(state, STATE_SETUP, '')
  if type(initializing) is not bool or type(is_setup) is not bool:
    return None
  metadata = pytree_states.get((initializing, is_setup))
  if metadata is None:
    metadata = metadata_of(state)
    pytree_states[initializing, is_setup] = metadata
    makers[id(metadata)] = (metadata, (initializing, is_setup))
  return metadata


cdef object made_by(object metadata):
  known = makers.get(id(metadata))
  return None if known is None else known[1]


cdef object new_pytree_state(tuple flags, object trace_state):
  state = blank(PytreeState)
  fill(state, STATE_TRACE, trace_state)
  fill(state, STATE_INITIALIZING, flags[0])
  fill(state, STATE_SETUP, flags[1])
  return state


cdef list marks_of(TypeInfo info, Layout layout, list values):
  """For each attribute in walk order whether it is marked as data; where nothing is marked, as in a
  class that is no pytree, all are None."""
  cdef PyObject* mark
  cdef list marks = []
  if not info.is_pytree:
    return [None] * len(values)
  nodes = info.class_nodes if layout.nodes_at < 0 else values[layout.nodes_at]
  mapping = nodes._mapping if type(nodes) is upstream.HashableMapping else None
  if type(mapping) is not dict:
    return None
  for name in layout.names:
    mark = PyDict_GetItemWithError(mapping, name)
    if mark is NULL:
      marks.append(False)
    elif type(<object>mark) is bool:
      marks.append(<object>mark)
    else:   # its truth may be asked for once, in the order that upstream asks
      return None
  return marks


cdef object instance_dict(object node):
  return PyObject_GenericGetDict(node, NULL)


def attributes_of(instance) -> dict:
  """The dict that `instance` has in memory, whatever its class says `__dict__` is."""
  return instance_dict(instance)


cdef bint no_ref(object value) except -1:
  cdef object cls = type(value)
  if cls is upstream.ArrayImpl or cls is upstream.ndarray or (<size_t><PyObject*>cls) in NO_REFS:
    return True
  if PyType_IsSubtype(<PyTypeObject*>cls, <PyTypeObject*>Tracer):
    if type(value.aval) is ShapedArray:
      return True
  return not upstream.is_array_ref(value) and cls is not upstream.Repeated


def install() -> None:
  global standard_variable
  standard_variable = {name: vars(upstream.Variable)[name] for name in VARIABLE_STANDARD}
