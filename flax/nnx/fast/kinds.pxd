"""What a value is to a walk, by its type: worked out once, checked by a few pointers after that."""
cimport cython


cdef enum:
  DEEPEST = 200   # levels that a compiled walk goes down before the pure one takes over

cdef enum Kind:
  VARIABLE       # an nnx.Variable whose class keeps the standard accessors
  GRAPH          # an nnx.Pytree (Module, List, ...) whose class keeps the standard graph hooks
  LIST
  TUPLE
  DICT
  STATE
  NONE
  PYTREE_STATE   # the trace state and flags that each nnx.Pytree carries
  NAMED_TUPLE
  ARRAY          # a concrete jax or numpy array
  PLAIN          # a number, a string, a function: no node, no array, no reference
  STRANGER       # an object of a type that is nowhere registered: no node and no Variable
  OTHER          # whatever else: left to the pure twin


@cython.final
cdef class Layout:
  """An order of attributes that instances of a class have, and the order in which a walk goes."""
  cdef tuple keys            # the keys of the instance's dict, in its order, known by identity
  cdef tuple walked          # the same in walk order, as the walk names them: ints in a List
  cdef tuple names           # the same in walk order, as attribute names
  cdef list order            # walk position -> dict position
  cdef Py_ssize_t nodes_at   # dict position of `_pytree__nodes`; -1 where the class's own counts
  cdef bint standard         # False: the pure twin has to look at such an instance
  cdef list sides            # the latest few partings into data and static: `pytrees.Sides`
  cdef bint distinct         # False: several names walk as the same int ('7' and '07' in a List)

  cdef bint fits(self, dict attributes) noexcept


@cython.final
cdef class TypeInfo:
  """What a walk knows of a type, until the type changes or another is registered as a node."""
  cdef object cls
  cdef Kind kind
  cdef unsigned int version     # the type's version tag, which changes with its attributes
  cdef Py_ssize_t registered    # how many types were registered
  cdef object impl              # GRAPH and containers: the registered functions
  cdef bint is_pytree           # GRAPH: attributes are marked as data or static
  cdef bint int_keys            # GRAPH: attribute names that are digits walk as ints
  cdef object class_nodes       # GRAPH: the class's own `_pytree__nodes`
  cdef list layouts             # GRAPH: the latest few layouts
  cdef object metadata          # NAMED_TUPLE: what its NodeDef carries
  cdef list keys                # NAMED_TUPLE: the fields in walk order
  cdef list order               # NAMED_TUPLE: walk position -> position in the tuple
  cdef bint slotted             # of Variables: the slots are the standard ones, and `_new`
  cdef str why                  # OTHER: the reason, in words

  cdef Layout layout_of(self, dict attributes)


# Where a PytreeState keeps its slots; set once its class was looked at.
cdef Py_ssize_t STATE_TRACE, STATE_INITIALIZING, STATE_SETUP
cdef object PytreeState   # None until then

cdef object lookup(object cls, str name)          # as it stands in the class; None: it is not there
cdef Py_ssize_t registered_types() noexcept       # how many, in all registries
cdef TypeInfo info_of(object value)
cdef TypeInfo info_of_type(object cls)
cdef object instance_dict(object node)            # its `__dict__`, which can be a subclass's
cdef list marks_of(TypeInfo info, Layout layout, list values)   # None: not standard
cdef bint no_ref(object value) except -1          # whether it is surely no array reference
cdef object pytree_state_metadata(object state)   # what its NodeDef carries; None: not standard
# A pytree state's flags, or a named tuple's TypeInfo; None: unknown.
cdef object made_by(object metadata)
cdef object new_pytree_state(tuple flags, object trace_state)


cdef inline bint is_leaf_kind(Kind kind) noexcept:
  """Whether such a value is no node and no Variable for sure."""
  return kind is ARRAY or kind is PLAIN or kind is STRANGER
