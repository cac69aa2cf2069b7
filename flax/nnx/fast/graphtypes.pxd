"""The typed graph types: frozen dataclasses to look at, slots at fixed offsets to compiled code."""

cdef object NodeRef
cdef object VariableDef
cdef object ArrayRefDef
cdef object NodeDef
cdef object GraphDef

# Where the fields lie that a walk reads, each in an object whose exact type the walk has tested.
cdef Py_ssize_t REF_INDEX
cdef Py_ssize_t VAR_TYPE, VAR_INDEX, VAR_OUTER, VAR_METADATA, VAR_ARRAY_REF
cdef Py_ssize_t NODE_TYPE, NODE_INDEX, NODE_OUTER, NODE_SIZE, NODE_METADATA
cdef Py_ssize_t STATIC_VALUE

cdef object new_node_ref(object index)
cdef object new_node_def(object cls, object index, object outer_index, object size, object metadata)
cdef object new_variable_def(
  object cls, object index, object outer_index, object metadata, object array_refdef
)
cdef object new_static(object value)

cdef bint reflexive(object value) noexcept   # whether `value == value` is True for sure, unasked
cdef bint same_objects(object a, object b) except -1   # GraphDefs that hold the very same values
