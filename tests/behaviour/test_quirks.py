"""What upstream does and few would expect, kept: docs/compatibility.md lists it."""

import sys

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx


class Model(nnx.Module):
  def __init__(self, static=None):
    self.static = static
    self.weight = nnx.Param(jnp.ones(2))


def counted(body=lambda model: None, **settings):
  """A jitted function, and the list of what it saw when it was traced."""
  traced = []

  @nnx.jit(**settings)
  def step(model):
    traced.append(model.static)
    return body(model)

  return step, traced


@pytest.mark.parametrize('later', [True, 1.0, np.int64(1)])
def test_equal_statics(say, later):
  """A static value that equals the traced one is no other: the call puts the traced one back."""
  step, traced = counted()
  model = Model(1)
  step(model)
  model.static = later
  step(model)
  say(traced, repr(model.static))
  assert traced == [1] and type(model.static) is int


def test_negative_zero(say):
  step, traced = counted()
  model = Model(0.0)
  step(model)
  model.static = -0.0
  step(model)
  say(traced, repr(model.static))
  assert repr(model.static) == '0.0'


def test_not_a_number(say):
  """It never equals the traced one, so that each call traces; up to Python 3.12 the same object passes."""
  step, traced = counted()
  model = Model(float('nan'))
  for _ in range(4):
    step(model)
  say(len(traced))
  assert len(traced) == (4 if sys.version_info >= (3, 13) else 1)


def test_order_of_attributes(say):
  """A call that adds an attribute leaves all of them in the order of their names."""
  step, _ = counted(lambda model: setattr(model, 'added', nnx.Param(jnp.ones(1))))
  model = Model()
  step(model)
  found = [name for name in vars(model) if '__' not in name]
  say(found)
  assert found == ['added', 'static', 'weight']


@pytest.mark.parametrize('value', [2.5, np.ones(2)])
def test_payloads_become_arrays(say, value):
  """A Variable's number or numpy array is a jax array after a call, touched or not."""
  step, _ = counted()
  model = Model()
  model.weight = nnx.Param(value)
  step(model)
  found = type(model.weight.get_value()).__name__
  say(found)
  assert found == 'ArrayImpl'


def test_shared_array(say):
  """Two Variables that hold one array hold one each once a call wrote to either."""

  def write(model):
    model.weight[...] += 1

  step, _ = counted(write)
  model = Model()
  model.other = nnx.Param(model.weight.get_value())
  step(model)
  say(model.weight.get_value().tolist(), model.other.get_value().tolist())
  assert model.weight.get_value() is not model.other.get_value()


def test_failing_step(say):
  """What a step wrote before it raised is lost, attributes too."""

  def fail(model):
    model.weight[...] += 1
    model.added = 3
    raise ValueError

  step, _ = counted(fail)
  model = Model()
  with pytest.raises(ValueError):
    step(model)
  say(model.weight.get_value().tolist(), hasattr(model, 'added'))
  assert not hasattr(model, 'added')


def test_states_hold_the_variables(say):
  """A State is no copy: what is done to its Variables is done to the model's."""
  model = Model()
  nnx.state(model)['weight'].set_value(jnp.zeros(2))
  graphdef, state = nnx.split(model)
  again = nnx.merge(graphdef, state)
  say(model.weight.get_value().tolist(), again.weight is model.weight)
  assert again.weight is model.weight
