"""Handlers of signals that raise, anywhere in a jitted call.

On the compiled twin alone: an interrupt between two of upstream's own statements can leave a model half
updated, or the cache of a `cached_partial` in a place where the next call refuses it.
"""

import functools
import random
import signal

import jax.numpy as jnp
import pytest
from telling import contexts
from test_threads import counting, values, zeros
from twins import Twin
from ways import WAYS, jitted_by_way

X = jnp.ones(2)
INTERRUPTS = 2500  # in each way: 10,000 together


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
  except ValueError as error:  # jax words it so where it was just comparing
    assert 'Interrupt' in f'{error}{error.__cause__!r}', error
  signal.setitimer(signal.ITIMER_REAL, 0)


def interrupted(say, way: str) -> None:
  """The model is as before a step or as after it, and the next step works."""
  net = zeros()
  call = functools.partial(jitted_by_way(counting, way, net)[1], X)
  for _ in range(4):
    call()
  chance = random.Random(0)
  signal.signal(signal.SIGALRM, interrupt)
  for _ in range(INTERRUPTS):
    until_interrupted(call, chance.uniform(1e-5, 4e-4))
    (before,) = values(net)
    call()
    assert values(net) == [before + 1] and contexts() == (0, 0, 0), (before, values(net), contexts())


@pytest.mark.parametrize('way', [*WAYS, 'cached_partial'])
def test_interrupts(way):
  twin = Twin('compiled')
  try:
    twin.said(__file__, 'interrupted', {'way': way})
  finally:
    twin.stop()
