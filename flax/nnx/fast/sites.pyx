"""What is kept for each function that `nnx.jit` or `nnx.jit_partial` made: plans, and counts.

Plans are made by the general way of a call and kept if they still hold after it; the latest few are
kept, and none is made any more where one after the other went unused.
"""
import inspect
import logging
import weakref

from flax.nnx.fast cimport fallbacks
from flax.nnx.fast.arguments cimport Roots, arguments_of
from flax.nnx.fast.plans cimport Plan, recorded, why_not
from flax.nnx.fast.programs cimport same_list
from flax.nnx.fast.traces cimport at_top_level

cdef enum:
  SETTLED_KEPT = 8       # traces for each plan: batch shapes, say
  UNUSED_ALLOWED = 32    # plans made in a row without one use, before a site stops making them
  TRIES = 8              # calls in a row that make no plan, before a site tries in some calls only
  TRIED_AGAIN = 64       # calls from then on for each that tries; a power of two
  REASONS_KEPT = 100     # for each site

cdef Py_ssize_t plans_kept = 8   # for each site
cdef object MISS = object()
# At INFO, each reason for a call that was not by plan, once for each function.
cdef object LOG = logging.getLogger('flax.nnx.fast')
cdef object sites = weakref.WeakSet()


cdef class Planned:
  cdef bint fits(self, tuple args, dict kwargs, object cache, list held) except -1:
    if cache is not None if self.cache is None else self.cache() is not cache:
      return False
    return self.arguments.fit(args, kwargs, held)

  cdef str words(self, Py_ssize_t step):
    """Where the last check of the plan failed: 'model.blocks[3].cfg'."""
    cdef Py_ssize_t root = self.plan.root_of(step)
    return f'{self.root_names[root]}{self.plan.words(step)}'

  cdef int know(self, object settled, object replaced) except -1:
    """Expects what one trace leaves behind from now on; what it replaces may be None."""
    others = [one for one in self.settled or [] if one is not replaced]
    self.settled = [settled] + others[:SETTLED_KEPT - 1]
    self.expected = settled
    return 0


cdef class Site:
  def __init__(self, fun, program):
    self.name, self.fun = getattr(fun, '__qualname__', repr(fun)), program
    self.plans, self.reasons = [], {}
    sites.add(self)

  cdef int count(self, str why) except -1:
    if why not in self.reasons:
      if len(self.reasons) >= REASONS_KEPT:
        why = 'more reasons than are kept'
      LOG.info('%s: %s', self.name, why)
    self.reasons[why] = self.reasons.get(why, 0) + 1
    self.why = why
    return 0

  cdef int used(self) noexcept:
    """A call went by plan."""
    self.fast += 1
    self.unused = self.tried = 0
    return 0

  def clear(self):
    """Forgets all counts."""
    self.calls = self.fast = self.unused = self.tried = 0
    self.reasons.clear()

  cdef bint plannable(self) except -1:
    """Whether a call that goes the general way should make a plan."""
    if self.calls < 2 or plans_kept <= 0 or not at_top_level():   # most functions are called once
      return False
    if self.unused >= UNUSED_ALLOWED:
      self.count('plans were made time and again and none could be used: each call brings new objects')
      return False
    if self.tried >= TRIES and self.calls & (TRIED_AGAIN - 1):   # trying costs about what a walk does
      self.count(self.why or 'no plan could be made')
      return False
    self.tried += 1
    return True

  cdef Planned planned_for(self, tuple args, dict kwargs, tuple pure_args, dict pure_kwargs):
    """A plan for these arguments, which go as `pure_args` and `pure_kwargs`; None as of `planned`."""
    cdef Roots roots = Roots.__new__(Roots)
    cdef Planned planned
    arguments = arguments_of(args, kwargs, pure_args, pure_kwargs, self.parameter_names(), roots)
    if arguments is None or not roots.objects:
      self.count('an argument of a kind that plans do not cover')
      return None
    planned = self.planned(roots)
    if planned is not None:
      planned.arguments = arguments
    return planned

  cdef Planned planned(self, Roots roots):
    """A plan for these nodes as they are now; None, and the reason counted, where none is made."""
    cdef Planned planned = Planned.__new__(Planned)
    planned.tokens, planned.root_names = roots.tokens, roots.names
    planned.plan = recorded(roots.objects)
    if planned.plan is None:
      self.count(why_not())
      return None
    return planned if self.agrees(planned, roots.lists) else None

  cdef bint agrees(self, Planned planned, list lists) except -1:
    """Whether a plan takes the same arrays out as upstream's walk did."""
    cdef Plan plan = planned.plan
    cdef list own = plan.blank()
    cdef list theirs = []
    cdef Py_ssize_t step = plan.check()
    if step >= 0:
      self.count(f'{planned.words(step)} is held by something else too')
      return False
    plan.collect(own)
    for leaves in lists:
      theirs.extend(leaves)
    return same_list(own, theirs)

  cdef list parameter_names(self):
    """Of the positional parameters, for words."""
    if self.parameters is None:
      try:
        self.parameters = list(inspect.signature(self.fun).parameters)
      except (ValueError, TypeError):
        self.parameters = []
    return self.parameters

  cdef int keep(self, Planned planned) except -1:
    self.tried = 0
    if planned in self.plans:
      return 0
    self.plans = [planned] + self.plans[:plans_kept - 1]
    self.unused += 1
    return 0

  cdef Planned fitting(self, tuple args, dict kwargs, object cache, list held):
    """A plan for these arguments; `held` owns their nodes then."""
    cdef Planned planned
    cdef Py_ssize_t i
    for i in range(len(self.plans)):
      planned = self.plans[i]
      held.clear()
      if planned.fits(args, kwargs, cache, held):
        if i:
          self.plans = [planned] + [one for one in self.plans if one is not planned]
        return planned
    self.count('arguments that no plan is for')
    return None


cdef object uncompiled(object jit, tuple args, dict kwargs):
  fallbacks.count('jit', type(jit), 'a function that was copied deeply or unpickled')
  return type(jit).__call__.__wrapped__(jit, *args, **kwargs)


def all_sites() -> list:
  return list(sites)


def plan_limit(limit):
  global plans_kept
  if limit is not None:
    if limit < 0:
      raise ValueError(f'the number of plans kept cannot be negative, got {limit}')
    plans_kept = limit
    for site in sites:
      (<Site>site).plans = (<Site>site).plans[:limit]
  return plans_kept
