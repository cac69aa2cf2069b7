"""The jitted functions behind `nnx.jit` and `nnx.jit_partial`, with nodes as flat lists of leaves.

Calls use `outer`, whose arguments and results travel as flat lists; `lower`, `trace`, `eval_shape` and
a call under another trace get `full`, upstream's own. A function has one trace for both, by the one
that is asked first, and the other replays it. So traces are counted as upstream counts them.
"""
import functools
import inspect
import weakref

import jax
import numpy as np
from jax import core as jax_core
from jax.extend.core import jaxpr_as_fun

from cpython.list cimport PyList_GET_SIZE

from flax.nnx.fast cimport upstream
from flax.nnx.fast.flights cimport open_call, under_way
from flax.nnx.fast.nodes cimport has_states

cdef object tree_unflatten = jax.tree.unflatten
cdef tuple STAGES = ('lower', 'trace', 'eval_shape')
cdef tuple SCALARS = (int, float, bool, complex)


cdef class Outcome:
  def __init__(self, record, leaves):
    self.record, self.leaves = record, leaves


def outcome_flatten(Outcome outcome not None):
  return (outcome.leaves,), outcome.record


def outcome_unflatten(record, children):
  cdef Outcome outcome = Outcome.__new__(Outcome)
  outcome.record = record
  leaves = children[0]
  outcome.leaves = leaves if type(leaves) is list else [leaves]   # jax fills in whatever it likes
  return outcome


cdef bint all_values(list leaves) except -1:
  """Whether jax surely takes each of these as an argument and a result."""
  for leaf in leaves:
    cls = type(leaf)
    if not (
      cls is upstream.ArrayImpl or cls is upstream.KeyArray or isinstance(leaf, jax_core.Tracer)
      or cls in SCALARS or cls is upstream.ndarray or isinstance(leaf, np.generic)
    ):
      return False
  return True


cdef bint same_list(list a, list b) noexcept:
  cdef Py_ssize_t i
  if PyList_GET_SIZE(a) != PyList_GET_SIZE(b):
    return False
  for i in range(PyList_GET_SIZE(a)):
    if a[i] is not b[i]:
      return False
  return True


class NotPlain(Exception):
  """The arguments need upstream's own program."""


class Traced:
  """The function that jax traces for a program; to all appearances upstream's."""

  def __init__(self, program):
    # Weakly: a dropped function is no cycle. jax.jit copies attributes, and does not use this name.
    self.__program = weakref.ref(program)
    functools.update_wrapper(self, program.__wrapped__, updated=())

  def __repr__(self):
    return repr(self.__wrapped__)

  def __call__(self, *args, **kwargs):
    return self.__program().trace_outer(args, kwargs)


def outside(stage, *args, **kwargs):
  return open_call(stage, args, kwargs)


cdef class Program:
  def __init__(self, full, pure, options):
    self.full, self.pure, self.options = full, pure, options
    functools.update_wrapper(self, full, updated=())
    self.__wrapped__ = full.__wrapped__

  cdef bint flattens(self) except -1:
    """Whether there is a program over flat nodes; it is made when first asked for."""
    if self.outer is None and self.options is not None:
      made = jax.jit(Traced(self), **self.options)
      if self.outer is None:   # no other thread was faster
        self.outer = made
    return self.outer is not None

  def __getattr__(self, name):
    found = getattr(self.full, name)
    if name in STAGES and under_way():   # in a callback of a call by plan, whose contexts are others
      return functools.partial(outside, found)
    return found

  def _cache_size(self):
    return self.full._cache_size() + (0 if self.outer is None else self.outer._cache_size())

  def clear_cache(self):
    self.full.clear_cache()
    if self.outer is not None:
      self.outer.clear_cache()

  cdef bint is_static(self, object at, Py_ssize_t n) except -1:
    """Whether jax takes an argument as static, by its position among `n`, or by its name."""
    if self.statics is None:
      positions, names = static_args_of(
        self.full, self.options['static_argnums'], self.options['static_argnames']
      )
      self.statics = tuple(positions), frozenset(names)
    positions, names = self.statics
    return at in names if type(at) is str else at in positions or at - n in positions

  cdef bint static_states(self, tuple args, dict kwargs) except -1:
    """Whether a static argument is a node, or has one in it, which upstream's own program refuses."""
    cdef Py_ssize_t n = len(args)
    if self.options['static_argnums'] is None and self.options['static_argnames'] is None:
      return False
    return has_states([x for i, x in enumerate(args) if self.is_static(i, n)]) or has_states(
      [x for name, x in kwargs.items() if self.is_static(name, n)]
    )

  cdef object dynamic(self, tuple args, dict kwargs):
    """The arguments that are not static."""
    cdef Py_ssize_t n = len(args)
    return (
      tuple([x for i, x in enumerate(args) if not self.is_static(i, n)]),
      {key: x for key, x in kwargs.items() if not self.is_static(key, n)},
    )

  cdef bint leads(self, Leader one) noexcept:
    """Whether this one, of `outer` and `full`, traces by itself."""
    if self.leader is NEITHER:
      self.leader = one
    return self.leader is one

  cdef tuple replayed(self, tuple args, dict kwargs):
    """What the other one gives for these tracers, by its trace."""
    traced = (self.outer if self.leader is OUTER else self.full).trace(*args, **kwargs)
    leaves = jax.tree.leaves(self.dynamic(args, kwargs))
    # What the function captured of an outer trace, as a static function's closure does, comes first.
    outs = jaxpr_as_fun(traced.jaxpr)(*traced._consts, *leaves)
    return tree_unflatten(jax.tree.structure(traced.out_info), outs)


cdef tuple listed(object given):
  return () if given is None else (given,) if isinstance(given, (int, str)) else tuple(given)


cdef tuple static_args_of(object fun, object nums, object names):
  """Which arguments jax takes as static, by position and by name."""
  from jax._src.api_util import infer_argnums_and_argnames
  signature = None
  try:
    signature = inspect.signature(fun)
  except (ValueError, TypeError):   # jax asks no signature then either
    pass
  if signature is None:
    return listed(nums), listed(names)
  return infer_argnums_and_argnames(signature, nums, names)


def install() -> None:
  jax.tree_util.register_pytree_node(Outcome, outcome_flatten, outcome_unflatten)
