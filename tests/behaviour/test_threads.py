"""Threads, event loops and forked processes that call the same jitted functions.

What will be compiled is compiled before the threads meet, but for one test: where jaxlib compares
static values by their Python code and another thread's first call comes between, it crashes, with
plain `jax.jit` too.
"""

import asyncio
import concurrent.futures
import contextlib
import gc
import os
import threading
import warnings
import weakref

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from flax.nnx import graph_fast
from telling import contexts, error_of, tree, value_of
from together import in_threads, switching_all_the_time
from ways import WAYS
from zoo import Linear, Net

X = jnp.ones(2)
every_way = pytest.mark.parametrize('way', WAYS)


def trained(net, x):
  net.layers[0].kernel[...] += 1
  return net(x)


def counting(net, x):
  """Every array of the net goes up by one."""
  for _, variable in nnx.iter_graph(net):
    if isinstance(variable, nnx.Variable):
      variable[...] += 1
  return x


def warmed(step, *arguments):
  """The function, with all that calls with such arguments compile: a first call and those after it."""
  for _ in range(3):
    step(*arguments)
  return step


def values(net) -> list[float]:
  """The distinct numbers in a net that was made of zeros."""
  return sorted({float(x) for leaf in jax.tree.leaves(nnx.state(net)) for x in leaf.reshape(-1)})


def zeros(depth=2):
  net = nnx.List([Linear(2, 0.0) for _ in range(depth)])
  jax.block_until_ready(nnx.state(net))
  return net


@every_way
def test_own_models(say, way):
  step = warmed(nnx.jit(trained, **WAYS[way]), Net(2, nnx.Param), X)
  nets = [Net(2, nnx.Param) for _ in range(8)]

  def work(net):
    for _ in range(50):
      step(net, X)

  with switching_all_the_time():
    in_threads(work, nets)
  say(contexts(), *[line for net in nets for line in tree(net)])


@every_way
def test_own_bound_models(say, way):
  """One function, bound to a model in each thread; and models that take each other's place."""
  step = warmed(nnx.jit(trained, **WAYS[way]), Net(2, nnx.Param), X)
  nets = [Net(2, nnx.Param) for _ in range(8)]

  def work(net):
    call = nnx.cached_partial(step, net) if way == 'jit' else nnx.jit_partial(trained, net, graph=False)
    for _ in range(30):
      call(X)
      step(net, X)

  with switching_all_the_time():
    in_threads(work, nets)
  say(contexts(), *[line for net in nets for line in tree(net)])


@pytest.mark.parametrize('way', ['tree', 'simple'])
def test_a_shared_model_that_is_read(say, way):
  """Not in the default mode, which writes each Variable back: upstream fails where threads meet in that."""
  net, outs, errors = Net(3, nnx.Param), [], []
  step = nnx.jit(lambda net, x: sum(layer.kernel[...] * x for layer in net.layers), **WAYS[way])
  warmed(step, net, X)

  def work(_):
    for _ in range(50):
      errors.append(error_of(lambda: outs.append(value_of(step(net, X)))))

  with switching_all_the_time():
    in_threads(work, range(8))
  say(set(outs), len(outs), set(errors), contexts(), *tree(net))


@every_way
def test_models_made_and_dropped(say, way):
  step, gone, errors = nnx.jit(counting, **WAYS[way]), [], []
  for depth in range(1, 5):
    warmed(step, zeros(depth), X)

  def work(depth):
    for _ in range(15):
      net = zeros(depth)
      errors.append(error_of(lambda net=net: [step(net, X) for _ in range(4)] and None))
      assert values(net) == [4.0], values(net)
      gone.append(weakref.ref(net))

  with switching_all_the_time():
    in_threads(work, [1, 2, 3, 4] * 2)
  del work
  gc.collect()
  say(sorted(set(errors)), contexts(), sum(one() is not None for one in gone))


def test_a_model_that_another_thread_changes(say):
  """Structure and statics change under walks: an answer or upstream's error, and no harm."""
  net, done, errors = Net(3, nnx.Param), [], []

  def change(_):
    for i in range(200):
      net.note = f'{i % 3}'
      net.layers[2].kernel = nnx.Param(X * i)
      net.layers[1].extra = nnx.Param(X)
      net.layers.append(Linear(1))
      net.layers[1].extra.set_metadata(seen=i)
      del net.layers[1].extra
      net.layers.pop()
    done.append(True)

  def walk(_):
    while not done:
      for call in (nnx.split, nnx.clone, nnx.find_duplicates, jax.tree.leaves, lambda n: list(nnx.iter_graph(n))):
        errors.append(error_of(call, net)[:20])

  with switching_all_the_time():
    in_threads(lambda work: work(0), [change, walk, walk, walk])
  say(done, contexts(), *tree(net), len(nnx.to_flat_state(nnx.state(net))))


@pytest.mark.parametrize('options', [{}, {'graph': False}], ids=str)
def test_first_calls(say, options):
  """Threads that meet in the first call of a function, which makes what all later ones share."""
  errors = []
  with switching_all_the_time() if graph_fast.twin() == 'compiled' else contextlib.nullcontext():
    for _ in range(15):
      step, nets = nnx.jit(trained, **options), [Net(2, nnx.Param) for _ in range(6)]
      in_threads(lambda net, step=step: errors.append(error_of(step, net, X)), nets)
  say(sorted(set(errors)), contexts())


def test_walks_and_pytrees(say):
  """Every thread its own model, and the same walks over one that all of them read."""
  shared, outs = Net(3, nnx.Param), []

  def work(net):
    for _ in range(30):
      graphdef, state = nnx.split(net)
      nnx.update(net, jax.tree.map(lambda x: x + 1, state))
      outs.append(len(jax.tree.leaves(nnx.merge(graphdef, state))))
      outs.append(len(nnx.to_flat_state(nnx.state(shared))))
      outs.append(len(jax.tree.leaves(shared)))
      outs.append(len(list(nnx.iter_graph(nnx.clone(shared)))))

  nets = [Net(2, nnx.Param) for _ in range(8)]
  with switching_all_the_time():
    in_threads(work, nets)
  say(sorted(set(outs)), len(outs), contexts(), *[line for net in nets for line in tree(net)])


def test_optimizers(say):
  pairs, algorithm = [], optax.adam(0.1)
  for _ in range(4):
    model = Net(2, nnx.Param)
    pairs.append((model, nnx.Optimizer(model, algorithm, wrt=nnx.Param)))

  @nnx.jit
  def step(model, optimizer, x):
    grads = nnx.grad(lambda model: jnp.sum(model(x) ** 2))(model)
    optimizer.update(model, grads)

  warmed(step, *pairs[0], X)
  with switching_all_the_time():
    in_threads(lambda pair: [step(*pair, X) for _ in range(20)], pairs)
  say(contexts(), *[line for pair in pairs for node in pair for line in tree(node)])


def test_event_loop(say):
  """Steps by `run_in_executor`, of models of their own and of one behind a lock."""
  step, nets, shared, lock = nnx.jit(counting), [zeros() for _ in range(6)], zeros(), threading.Lock()

  def locked():
    with lock:
      step(shared, X)

  warmed(step, shared, X)

  async def serve(executor):
    loop = asyncio.get_running_loop()
    for _ in range(20):
      calls = [loop.run_in_executor(executor, step, net, X) for net in nets]
      await asyncio.gather(*calls, *[loop.run_in_executor(executor, locked) for _ in range(3)])

  with concurrent.futures.ThreadPoolExecutor(4) as executor:
    asyncio.run(serve(executor))
  say(contexts(), [values(net) for net in nets], values(shared))


def test_a_call_within_a_callback_of_another_thread(say):
  """A jitted call made by a thread while another is in the middle of its own."""
  step, nets, outer = warmed(nnx.jit(counting), zeros(), X), [zeros() for _ in range(2)], zeros()

  def inner(x):
    in_threads(lambda net: step(net, X), nets)
    return x

  @nnx.jit
  def calling(net, x):
    counting(net, x)
    return jax.pure_callback(lambda x: inner(x), jax.ShapeDtypeStruct((2,), jnp.float32), x)

  for _ in range(4):
    jax.block_until_ready(calling(outer, X))
  say(contexts(), values(outer), [values(net) for net in nets])


def test_fork(say):
  """A forked child makes its walks and makes plans of its own; what it changes stays in it."""
  step, net = nnx.jit(counting), zeros()
  for _ in range(4):
    step(net, X)
  reader, writer = os.pipe()
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # jax warns of forks: it has threads
    child = os.fork()
  if child == 0:
    try:
      graphdef, state = nnx.split(net)
      copy = nnx.merge(graphdef, state)
      net.layers = 'changed'
      lines = [str(graphdef == nnx.graphdef(copy)), str(len(jax.tree.leaves(copy))), str(contexts())]
      os.write(writer, '\n'.join(lines).encode())
    finally:
      os._exit(0)
  os.close(writer)
  said, status = os.read(reader, 10_000).decode(), os.waitpid(child, 0)[1]
  os.close(reader)
  step(net, X)
  say(said, status, values(net), hasattr(net, 'layers'), contexts())
