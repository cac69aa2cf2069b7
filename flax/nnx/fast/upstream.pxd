"""What the compiled twins take from the pure modules and from jax, resolved once at import."""

# flax.nnx.graphlib
cdef dict GRAPH_REGISTRY       # class -> GraphNodeImpl
cdef dict PYTREE_REGISTRY      # class -> PytreeNodeImpl
cdef dict JAX_REGISTRY         # class -> jax's own registry entry
cdef object GraphNodeImpl
cdef object PytreeNodeImpl
cdef object get_node_impl      # (node) -> NodeImpl or None
cdef object GenericPytree      # stands for the class of a pytree that only jax knows
cdef object generic_impl       # the PytreeNodeImpl of those
cdef dict container_impls      # list, tuple, dict, State, NoneType -> the PytreeNodeImpl of each
cdef object NODE_ATTR
cdef object LEAF_ATTR
cdef object Static
cdef object DataElem             # marks a value in what a node flattens to, or in a container, as data
cdef object StaticElem
cdef object Repeated
cdef tuple held_values         # (NoUpdate, Repeated, ArrayRefOutput): what stands in for a reference

# flax.nnx.variablelib
cdef object Variable
cdef object is_array_ref       # (x) -> bool

# flax.nnx.statelib, flax.typing, flax.nnx.tracers
cdef object State
cdef object FlatState
cdef object HashableMapping
cdef object TraceState
cdef object current_jax_trace  # () -> an opaque trace state

# jax
cdef object ArrayImpl            # the concrete class of a jax.Array
cdef object KeyArray             # the class of typed keys
cdef object ndarray
cdef object array_types        # (jax.Array, np.ndarray), for isinstance
