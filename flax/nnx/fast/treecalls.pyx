"""A call of a function that `nnx.jit` made without graph updates, or `nnx.jit_partial`.

As in graph mode, a plan takes the place of upstream's walks over the arguments. What comes back is
simpler: the values of the Variables that changed, never a structure.
"""
from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject

from flax.nnx.fast cimport upstream
from flax.nnx.fast.arguments cimport Roots, tree_passes
from flax.nnx.fast.graphtypes cimport GraphDef, same_objects
from flax.nnx.fast.nodes cimport Flat, flat_like
from flax.nnx.fast.plans cimport Plan
from flax.nnx.fast.programs cimport Outcome
from flax.nnx.fast.sites cimport MISS, Planned, Site, uncompiled
from flax.nnx.fast.traces cimport at_top_level
from flax.nnx.fast.treeprograms cimport Changes, unpacked

cdef object check_no_aliases, apply_updates, apply_raw_updates
cdef object Opaque   # equal to any of its kind


cdef bint same_aux(object a, object b) except -1:
  """Whether two of a treedef's static parts are made of the same objects."""
  if a is b:
    return True
  if type(a) is not type(b):
    return False
  if type(a) is tuple or type(a) is list:
    return len(a) == len(b) and all([same_aux(x, y) for x, y in zip(a, b)])
  if type(a) is GraphDef:
    return same_objects(a, b)
  return type(a) is Opaque or type(a) in (str, int, bool) and a == b


cdef bint same_treedef(object a, object b, int depth) except -1:
  """Whether jax, which compares with the one, compares the same objects in the other."""
  if depth > 200 or (a.node_data() is None) is not (b.node_data() is None):
    return False
  if a.node_data() is None:
    return a.num_nodes == b.num_nodes
  a_type, a_aux = a.node_data()
  b_type, b_aux = b.node_data()
  a_children, b_children = a.children(), b.children()
  if a_type is not b_type or not same_aux(a_aux, b_aux) or len(a_children) != len(b_children):
    return False
  for x, y in zip(a_children, b_children):
    if not same_treedef(x, y, depth + 1):
      return False
  return True


cdef class Seen:
  pass


cdef Seen seen_of(Planned planned, Changes changes):
  cdef Seen seen
  for seen in planned.settled or []:
    if seen.changes is changes:
      return seen
  return None


cdef class TreeSite(Site):
  def __init__(self, fun, program):
    super().__init__(fun, program)
    self.program = program

  # ---- making plans ----

  cdef Planned note(self, object jit, tuple args, dict kwargs, tuple flat):
    """A plan for these arguments as they are now; None, and the reason counted, where none is made."""
    return self.planned_for(args, kwargs, flat[0], flat[1])

  cdef object places(self, Plan plan, object variables):
    """For each place that upstream names, the leaf of the Variable there."""
    cdef dict leaf_of = leaves_by_owner(plan)
    return {place: leaf_of[id(one)] for place, one in variables.items() if id(one) in leaf_of}

  cdef int settle(self, Planned planned, Changes changes) except -1:
    """Keeps a plan that still holds after a call, with what came back."""
    cdef Seen seen = Seen.__new__(Seen)
    cdef Py_ssize_t step = planned.plan.check()
    if step >= 0:
      return self.count(f'{planned.words(step)}: another object after the call')
    if not changes.single:
      return self.count('the function gave a Variable another kind of value')
    seen.changes, seen.leaves = changes, [planned.places[place] for place in changes.places]
    for i, token in enumerate(planned.tokens):   # which jax then knows by identity
      if same_treedef(changes.treedefs[i], token, 0):
        planned.tokens[i] = changes.treedefs[i]
    planned.know(seen, seen_of(planned, changes))
    return self.keep(planned)

  # ---- calling ----

  cdef Planned fit(self, object jit, tuple args, dict kwargs, list held):
    return self.fitting(args, kwargs, None, held)

  cdef tuple outer_args(self, object jit, Planned planned, tuple args, dict kwargs, list arrays):
    cdef list lists = planned.plan.by_root(arrays)
    cdef list nodes = []
    cdef Py_ssize_t i
    for i in range(PyList_GET_SIZE(lists)):
      nodes.append(flat_like(planned.tokens[i], lists[i]))
    return planned.arguments.built(args, kwargs, nodes)

  cdef object by_plan(self, object jit, tuple args, dict kwargs):
    """What the function returns, or MISS before anything was done."""
    cdef list held = []
    cdef Planned planned = self.fit(jit, args, kwargs, held)
    cdef Plan plan
    cdef list arrays, owners
    cdef Py_ssize_t step
    if planned is None:
      return MISS
    plan = planned.plan
    arrays, owners = plan.blank(), plan.blank()
    step = plan.check()
    if step >= 0:
      self.count(f'{planned.words(step)}: not the object that was there before')
      return MISS
    plan.collect(arrays)
    plan.collect_owners(None, owners)
    outer = self.outer_args(jit, planned, args, kwargs, arrays)
    if outer is None:
      self.count('an argument is a node that holds something else than arrays')
      return MISS
    outer_args, outer_kwargs = outer
    outs = self.program.flat_run(outer_args, outer_kwargs)
    self.landed(jit, planned, outs, owners)
    return returned(jit, outs[0])

  cdef int landed(self, object jit, Planned planned, tuple outs, list owners) except -1:
    cdef Seen seen = planned.expected
    cdef Outcome outcome
    cdef Py_ssize_t i, k
    if type(outs[1]) is not Outcome:
      return self.merged(jit, planned, outs, owners)
    outcome = outs[1]
    if seen.changes is not outcome.record:
      seen = seen_of(planned, outcome.record)
    if seen is None:
      return self.merged(jit, planned, outs, owners)
    for i in range(PyList_GET_SIZE(outcome.leaves)):
      k = seen.leaves[i]
      planned.plan.store(k, outcome.leaves[i], owners[k])
    planned.expected = seen
    return self.used()

  cdef int merged(self, object jit, Planned planned, tuple outs, list owners) except -1:
    """The second half of upstream's call, where a plan's call came back with something new."""
    changes, _, updates = unpacked(outs)
    self.apply(self.variables(jit, planned, owners), updates)
    return 0 if changes is None else self.settle(planned, changes)

  cdef object general(self, object jit, tuple args, dict kwargs):
    """Upstream's call, step by step; a plan is noted on the way, and kept if it still holds after."""
    cdef Planned planned = None
    cdef bint plannable = self.plannable()
    pure_args, pure_kwargs, variables = self.taken(jit, args, kwargs)
    flat = self.program.flat_call(pure_args, pure_kwargs)
    if plannable and self.covers(flat):
      planned = self.note(jit, args, kwargs, flat)
      if planned is not None:
        planned.places = self.places(planned.plan, variables)
    changes, out, updates = self.program.run(flat, pure_args, pure_kwargs)
    self.apply(variables, updates)
    if planned is not None and changes is not None:
      self.settle(planned, changes)
    return jit._maybe_from_tree(out)

  cdef tuple taken(self, object jit, tuple args, dict kwargs):
    """(args, kwargs, Variables by place) as upstream's jitted function and updates take them."""
    pure_args, pure_kwargs = jit._maybe_to_tree((*jit.partial_args, *args), kwargs)
    return pure_args, pure_kwargs, check_no_aliases('jit', args=pure_args, kwargs=pure_kwargs)

  cdef object variables(self, object jit, Planned planned, list owners):
    """The same Variables, where a plan has them."""
    return {place: owners[k] for place, k in planned.places.items()}

  cdef int apply(self, object variables, object updates) except -1:
    apply_updates(variables, updates)
    return 0

  cdef bint covers(self, tuple flat) except -1:
    if flat is None:
      self.count(
        'upstream\'s own program runs: shardings, a device or a backend were given, or a node holds '
        'something else than arrays'
      )
    return flat is not None


cdef dict leaves_by_owner(Plan plan):
  cdef Py_ssize_t i
  cdef dict leaf_of = {}
  for i in range(plan.n_leaves):
    leaf_of[<size_t>plan.owners[i]] = i
  return leaf_of


cdef object returned(object jit, object out):
  """The result, with graphs made of the trees in it."""
  return out if tree_passes(out, 0) else jit._maybe_from_tree(out)


cdef class PartialSite(TreeSite):
  cdef Planned note(self, object jit, tuple args, dict kwargs, tuple flat):
    """A plan for what is bound; the other arguments are jax's to compare."""
    cdef Roots roots = Roots.__new__(Roots)
    cdef Flat bound = flat[0][0]
    if len(bound.leaves) != len(jit.partial_args):
      self.count('a bound Variable holds something else than one array')
      return None
    for i, value in enumerate(jit.partial_args):
      if isinstance(value, upstream.Variable):
        roots.objects.append(value)
        roots.names.append(f'bound value {i}')
        roots.lists.append([bound.leaves[i]])
    roots.tokens.append(bound.treedef)
    return self.planned(roots) if roots.objects else None

  cdef object places(self, Plan plan, object variables):
    cdef dict leaf_of = leaves_by_owner(plan)
    return [leaf_of.get(id(value), -1) for value in variables]

  cdef Planned fit(self, object jit, tuple args, dict kwargs, list held):
    """The latest plan, where the list of what is bound still is as it was."""
    if type(jit.partial_args) is not list:
      return None
    cdef Planned planned = self.plans[0]
    cdef list bound = jit.partial_args
    cdef list places = planned.places
    cdef Py_ssize_t i, k
    if PyList_GET_SIZE(bound) != PyList_GET_SIZE(places):
      return None
    for i in range(PyList_GET_SIZE(bound)):
      k = places[i]
      if k < 0:
        if type(bound[i]) is not upstream.ArrayImpl:
          return None
      elif <PyObject*>bound[i] is not planned.plan.owners[k]:
        return None
      else:
        held.append(bound[i])
    return planned

  cdef tuple outer_args(self, object jit, Planned planned, tuple args, dict kwargs, list arrays):
    cdef list leaves = list(jit.partial_args)
    cdef Py_ssize_t i, k
    if PyList_GET_SIZE(arrays) == PyList_GET_SIZE(leaves):
      leaves = arrays   # Variables only, whose order is the plan's
    else:
      for i in range(PyList_GET_SIZE(leaves)):
        k = planned.places[i]
        if k >= 0:
          leaves[i] = arrays[k]
    if not (tree_passes(args, 0) and tree_passes(kwargs, 0)):   # there may be nodes in it
      both = self.program.flattened(((), *args), kwargs)
      if both is None:
        return None
      args, kwargs = both[0][1:], both[1]
    return (flat_like(planned.tokens[0], leaves), *args), kwargs

  cdef tuple taken(self, object jit, tuple args, dict kwargs):
    return (jit.partial_args, *args), kwargs, jit.partial_args

  cdef object variables(self, object jit, Planned planned, list owners):
    return jit.partial_args

  cdef int apply(self, object variables, object updates) except -1:
    apply_raw_updates(variables, updates)
    return 0


def call(jit, tuple args, dict kwargs):
  """What calling a function that `nnx.jit` made without graph updates does."""
  cdef TreeSite site = jit._fast_site
  cdef object result
  if site is None:
    return uncompiled(jit, args, kwargs)
  site.calls += 1
  if site.plans and at_top_level():
    result = site.by_plan(jit, args, kwargs)
    if result is not MISS:
      return result
  return site.general(jit, args, kwargs)


def install(compilation: dict) -> None:
  global check_no_aliases, apply_updates, apply_raw_updates, Opaque
  extract = compilation['extract']
  Opaque = extract.Opaque
  check_no_aliases, apply_updates = extract.check_no_aliases, extract.apply_updates
  apply_raw_updates = compilation['_apply_raw_updates']
