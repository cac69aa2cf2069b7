"""Handlers of signals that raise, anywhere in a jitted call."""

import random
import signal

import jax.numpy as jnp
import pytest
from flax import nnx
from flax.nnx import graph_fast
from telling import contexts
from test_threads import WAYS, counting, values, zeros

X = jnp.ones(2)
INTERRUPTS = 25  # in each way: 10,000 together


class Interrupt(BaseException):
  pass


def interrupt(*_):
  raise Interrupt


def until_interrupted(call, seconds: float) -> None:
  """Calls, until a signal's handler raises; again and again should Python have had to swallow that."""
  try:
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.1)
    while True:
      call()
  except Interrupt:
    pass
  except ValueError as error:  # jax words it so where a static was just being compared
    assert isinstance(error.__cause__, Interrupt), error
  signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.mark.parametrize('way', [*WAYS, 'cached_partial'])
def test_interrupts(say, way):
  """The model is as before a step or as after it, and the next step works.

  Upstream's own loops over Variables can be left between two; a plan's cannot.
  """
  step, net = nnx.jit(counting, **WAYS.get(way, {})), zeros()
  bound = nnx.cached_partial(step, net) if way == 'cached_partial' else None
  call = (lambda: bound(X)) if bound else (lambda: step(net, X))
  for _ in range(4):
    call()
  chance, torn = random.Random(0), 0
  old = signal.signal(signal.SIGALRM, interrupt)
  try:
    for _ in range(INTERRUPTS):
      until_interrupted(call, chance.uniform(1e-5, 4e-4))
      torn += len(values(net)) != 1
      if len(values(net)) != 1:  # from here on again
        for _, variable in nnx.iter_graph(net):
          if isinstance(variable, nnx.Variable):
            variable.set_value(jnp.zeros_like(variable.get_value()))
  finally:
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, old)
  say(contexts())
  assert graph_fast.twin() == 'pure' or not torn, torn
  before = values(net)
  call()
  say([after - value for value, after in zip(before, values(net), strict=True)], contexts())
