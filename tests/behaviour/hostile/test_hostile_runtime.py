"""Walks under tracing, profiling, tiny switch intervals, other threads and changed settings."""
import concurrent.futures
import gc
import sys
import threading

import jax.numpy as jnp
from flax import nnx
from flax.nnx import graphlib
from hostile.outcomes import result_of, say_outcomes, text


class Model(nnx.Module):
  def __init__(self, width: int = 2, depth: int = 4):
    self.layers = nnx.List([nnx.Linear(width, width, rngs=nnx.Rngs(i)) for i in range(depth)])
    self.shared = self.layers[0]
    self.extra = nnx.Dict(a=nnx.Param(jnp.zeros(width)), b=nnx.Dict(c=nnx.BatchStat(jnp.ones(1))))
    self.static = ('text', 1)


def everything(model) -> list:
  graphdef, state = nnx.split(model)
  merged = nnx.merge(graphdef, state)
  cloned = nnx.clone(model)
  nnx.update(cloned, state)
  paths = [path for path, _ in nnx.iter_graph(cloned)]
  return [graphdef == nnx.graphdef(merged), hash(graphdef) == hash(nnx.graphdef(cloned)), len(paths),
          len(nnx.find_duplicates(model)), len(nnx.to_flat_state(nnx.pop(cloned, nnx.BatchStat)))]


def test_trace_function_active(say):
  events: set = set()

  def trace(frame, event, argument):
    events.add(event)
    return trace

  model, before = Model(), sys.gettrace()
  sys.settrace(trace)
  try:
    answer = everything(model)
  finally:
    sys.settrace(before)
  say(answer, 'call' in events)


def test_profile_function_active(say):
  calls: list = []
  model, before = Model(), sys.getprofile()
  sys.setprofile(lambda frame, event, argument: calls.append(event))
  try:
    answer = everything(model)
  finally:
    sys.setprofile(before)
  say(answer, len(calls) > 0)


def test_trace_function_that_raises(say):

  def trace(frame, event, argument):
    if frame.f_code.co_name in ('flatten', 'unflatten', 'update'):
      raise ZeroDivisionError(f'in {frame.f_code.co_name}')
    return trace

  model, before = Model(), sys.gettrace()
  for call in (nnx.split, nnx.clone, lambda m: nnx.update(m, nnx.state(m))):
    sys.settrace(trace)
    try:
      outcome = result_of(call, model)
    finally:
      sys.settrace(before)
    say(outcome)
  say(everything(model))


def in_threads(call, count: int = 8) -> list:
  """The answers of `count` threads that start at one moment and switch as often as can be."""
  barrier, interval = threading.Barrier(count), sys.getswitchinterval()

  def run(i):
    barrier.wait()
    return call(i)

  sys.setswitchinterval(1e-6)
  try:
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
      return [f.result() for f in [pool.submit(run, i) for i in range(count)]]
  finally:
    sys.setswitchinterval(interval)


def test_threads_that_read_one_model(say):
  model = Model()
  serial = everything(model)
  answers = in_threads(lambda i: [everything(model) for _ in range(20)])
  assert all(answer == serial for thread in answers for answer in thread)
  say(serial)


def test_threads_with_models_of_their_own(say):
  serial = [everything(Model(width=1 + i % 4)) for i in range(8)]
  answers = in_threads(lambda i: [everything(Model(width=1 + i % 4)) for _ in range(5)])
  assert all(answer == serial[i] for i, thread in enumerate(answers) for answer in thread)
  say(serial)


def test_threads_that_hash_and_compare_one_graphdef(say):
  one, two = nnx.graphdef(Model()), nnx.graphdef(Model())
  expected = hash((tuple(one.nodes), tuple(one.attributes)))
  answers = in_threads(lambda i: [(hash(one) == expected, one == two, hash(two) == expected) for _ in range(200)])
  assert all(answer == (True, True, True) for thread in answers for answer in thread)


def test_threads_that_write_one_model(say):
  """Upstream promises nothing for the values; what may not happen is a crash or a broken structure."""
  model = Model()
  graphdef, state = nnx.split(model)

  def write(i):
    for k in range(30):
      result_of(nnx.update, model, state)
      setattr(model, f'own{i}', k)
      result_of(nnx.split, model)
      result_of(nnx.clone, model)
      delattr(model, f'own{i}')

  names = set(vars(model))
  in_threads(write)
  # Setting an attribute rewrites the marks of them all, so threads can lose each other's marks.
  vars(model)['_pytree__nodes'] = vars(Model())['_pytree__nodes']
  assert set(vars(model)) == names and nnx.graphdef(model) == graphdef
  say(everything(model))


def test_threads_that_change_a_shared_list(say):
  model: list = [nnx.Param(jnp.zeros(1)) for _ in range(50)]
  stop = threading.Event()

  def change(i):
    if i == 0:
      for _ in range(300):
        model.append(nnx.Param(jnp.zeros(1)))
        model.pop(0)
        model[:] = list(model)
      stop.set()
      return
    while not stop.is_set():
      result_of(graphlib.flatten, model)
      result_of(lambda: [p for p, _ in nnx.iter_graph(model)])
      result_of(nnx.clone, model)

  in_threads(change, 4)
  say(len(model), text(nnx.graphdef(model).num_leaves))


def test_threads_in_one_jitted_function(say):
  traces: list = []

  @nnx.jit
  def step(model):
    traces.append(1)
    model.extra.a[...] += 1
    return model.extra.a[...].sum()

  models = [Model() for _ in range(8)]
  for model in models:
    step(model)
  answers = in_threads(lambda i: [float(step(models[i])) for _ in range(10)])
  assert all(answer == [2.0 * (k + 2) for k in range(10)] for answer in answers)
  say(len(traces))


def test_threads_that_register_types(say):

  def register(i):
    answers = []
    for _ in range(10):

      class Own(nnx.Module):
        def __init__(self):
          self.v = nnx.Param(jnp.full(1, i))

      answers.append([int(x.get_raw_value()[0]) for _, x in nnx.to_flat_state(nnx.state([Own(), Own()]))])
    return answers

  answers = in_threads(register)
  assert all(answer == [i, i] for i, thread in enumerate(answers) for answer in thread)


def test_collector_runs_at_every_allocation(say):
  model, threshold = Model(depth=2), gc.get_threshold()
  serial = everything(model)
  gc.set_threshold(1, 1, 1)
  try:
    assert everything(model) == serial
  finally:
    gc.set_threshold(*threshold)
  say(serial)


def test_collector_disabled(say):
  model = Model()
  gc.disable()
  try:
    say(everything(model))
  finally:
    gc.enable()


def test_type_caches_cleared(say):
  model = Model()
  serial = everything(model)
  for _ in range(3):
    if hasattr(sys, '_clear_internal_caches'):
      sys._clear_internal_caches()
    else:
      sys._clear_type_cache()
    assert everything(model) == serial
  say(serial)


def test_more_types_than_there_are_version_tags_for(say):
  """A class that is changed again and again loses its place in the interpreter's caches; the walk
  then has to look anew each time."""

  class Own(nnx.Module):
    def __init__(self):
      self.v = nnx.Param(jnp.ones(1))

  class Value:
    pass

  model = [Own(), Value()]
  serial = text(nnx.graphdef(model).nodes)
  for i in range(3000):
    Own.counter = i
    Value.counter = i
    if i % 500 == 0:
      assert text(nnx.graphdef(model).nodes) == serial
  Own._graph_node_flatten = None
  say_outcomes(say, lambda: model, ('split', 'iter_graph'))


def test_registries_replaced_by_equal_ones(say):
  """Somebody swaps the registry dicts in the module for copies, as a test's fixture may."""
  graph, tree = graphlib.GRAPH_REGISTRY, graphlib.PYTREE_REGISTRY
  graphlib.GRAPH_REGISTRY, graphlib.PYTREE_REGISTRY = dict(graph), dict(tree)
  try:
    say_outcomes(say, lambda: {'x': nnx.Linear(1, 1, rngs=nnx.Rngs(0)), 'y': [None]},
                 ('split', 'round trip', 'clone', 'iter_graph'))
  finally:
    graphlib.GRAPH_REGISTRY, graphlib.PYTREE_REGISTRY = graph, tree
