"""Writes to the dicts of a planned model, by every way there is, between two calls.

A plan does not compare a dict again that nothing was written to since, so each way has to be noticed.
"""

import gc

import jax.numpy as jnp
import pytest
from flax import nnx
from telling import Names, error_of, tree, value_of
from test_plans import model, planned
from zoo import Linear

X = jnp.ones(2)


def attribute(o, d, key, value):
  setattr(o, key, value)


def base_attribute(o, d, key, value):
  object.__setattr__(o, key, value)


def item(o, d, key, value):
  d[key] = value


def update(o, d, key, value):
  d.update({key: value})


def union(o, d, key, value):
  d |= {key: value}


def init(o, d, key, value):
  dict.__init__(d, {key: value})


def popped(o, d, key, value):
  d.pop(key)
  d.setdefault(key, value)


def deleted(o, d, key, value):
  del d[key]
  d[key] = value


def last(o, d, key, value):
  d[key] = d.pop(key)
  d.popitem()
  d[key] = value


def cleared(o, d, key, value):
  old = dict(d)
  d.clear()
  d.update({**old, key: value})


def cleared_then_filled(o, d, key, value):
  """An empty dict takes over the table of the first one that is put into it."""
  old = dict(d)
  d.clear()
  d.update(old)
  d[key] = value


WAYS = {
  way.__name__: way
  for way in (
    attribute, base_attribute, item, update, union, init, popped, deleted, last, cleared,
    cleared_then_filled,
  )
}  # fmt: skip


def metadata_of(variable):
  return object.__getattribute__(variable, '_var_metadata')


PLACES = {
  'root': lambda net: (net, vars(net), 'flag'),
  'nested': lambda net: (net.layers[0], vars(net.layers[0]), 'size'),
  'metadata': lambda net: (None, metadata_of(net.layers[0].bias), 'note'),
}


def counted():
  """A step that depends on what is written, and the list that each trace adds to."""
  traces = []

  @nnx.jit
  def step(net, x):
    note = net.layers[0].bias.get_metadata().get('note')
    traces.append((net.flag, net.layers[0].size, note))
    net.layers[0].kernel[...] += 1
    return net(x) * len(traces)

  return step, traces


@pytest.mark.parametrize('place', PLACES)
@pytest.mark.parametrize('way', WAYS)
def test_one_write(say, way, place):
  net, names = model(), Names()
  step, traces = counted()
  owner, mapping, key = PLACES[place](net)
  if owner is None and 'attribute' in way:
    owner = net.layers[0].bias  # which keeps what is set on it in its metadata
  for i in range(9):
    if i in (4, 6):
      planned(step)
      say(error_of(WAYS[way], owner, mapping, key, f'written {i}'))
    say(i, error_of(lambda: value_of(step(net, X))), traces)
  say(*tree(net, names))


@pytest.mark.parametrize('place', ['root', 'nested'])
def test_stores_of_one_instruction(say, place):
  """The interpreter specialises a store that runs often; each of them is seen."""
  net = model()
  step, traces = counted()
  owner, _, key = PLACES[place](net)
  for i in range(60):
    if key == 'flag':
      owner.flag = i // 3
    else:
      owner.size = i // 3
    say(value_of(step(net, X)), len(traces))
  planned(step)


def test_written_and_written_back(say):
  net = model()
  step, traces = counted()
  for i in range(8):
    if i > 3:
      net.flag, net.flag = 2, 1
      metadata_of(net.layers[0].bias).update(note='c', extra=1)
      metadata_of(net.layers[0].bias).update(note='b')
      del metadata_of(net.layers[0].bias)['extra']
    say(value_of(step(net, X)), len(traces))


@pytest.mark.parametrize('keeping', [False, True])
def test_another_dict_in_its_place(say, keeping):
  """`__dict__` assigned: an equal one, then one with another value; the old one lives on or dies."""
  net, kept = model(), []
  step, traces = counted()
  for i in range(10):
    if i in (4, 7):
      if keeping:
        kept.append(vars(net))
      object.__setattr__(net, '__dict__', {**vars(net), 'flag': 1 if i == 4 else 2})
    say(value_of(step(net, X)), len(traces))
  planned(step)


def test_a_dict_moves_to_another_object(say):
  """The attributes of a Module that was replaced by one with the same `__dict__`."""
  net, names = model(), Names()
  step, traces = counted()
  for i in range(8):
    if i == 4:
      old = net.layers[0]
      new = object.__new__(Linear)
      object.__setattr__(new, '__dict__', vars(old))
      net.layers[0] = new
      del old
      gc.collect()
    say(value_of(step(net, X)), len(traces))
  say(*tree(net, names))


def test_another_model_is_written(say):
  """Which changes nothing for this one."""
  net, other = model(), model()
  step, traces = counted()
  step(other, X)
  for i in range(8):
    other.flag = i
    say(value_of(step(net, X)), value_of(step(other, X)), len(traces))


def test_a_watched_model_dies(say):
  step, traces = counted()
  for _ in range(5):
    net = model()
    for _ in range(4):
      say(value_of(step(net, X)), len(traces))
    del net
    gc.collect()


def test_attributes_keep_their_order(say):
  net = model()
  step, _ = counted()
  for _ in range(5):
    step(net, X)
    for node in (net, net.layers, net.layers[0]):
      say(*vars(node), sorted(vars(node)) == list(vars(node)))


ADD_OR_DELETE = {
  'attribute': (lambda net: setattr(net, 'added', 1), lambda net: delattr(net, 'added')),
  'item': (lambda net: vars(net).update(added=1), lambda net: vars(net).pop('added')),
  'metadata': (
    lambda net: metadata_of(net.layers[0].bias).update(added=1),
    lambda net: metadata_of(net.layers[0].bias).pop('added'),
  ),
}


@pytest.mark.parametrize('way', ADD_OR_DELETE)
def test_only_added_then_only_deleted(say, way):
  net, names = model(), Names()
  step, traces = counted()
  add, delete = ADD_OR_DELETE[way]
  for i in range(12):
    if i in (4, 8):
      planned(step)
      (add if i == 4 else delete)(net)
    say(value_of(step(net, X)), len(traces))
  say(*tree(net, names))


def test_two_nodes_share_one_dict(say):
  """Each write to the one is a write to the other."""
  net = model()
  twin = object.__new__(Linear)
  object.__setattr__(twin, '__dict__', vars(net.layers[0]))
  net.twin = twin
  step, traces = counted()
  for i in range(10):
    if i == 4:
      twin.size = 77
    if i == 7:
      net.layers[0].size = 78
    say(error_of(lambda: value_of(step(net, X))), traces)


def test_two_functions_on_one_model(say):
  """A write that the one function's check has taken in is still news to the other's."""
  net = model()
  one, traces = counted()
  two, more_traces = counted()
  for i in range(12):
    if i in (4, 8):
      net.flag = i
      metadata_of(net.layers[0].bias)['note'] = f'note {i}'
    for step in (one, two, one) if i % 3 else (two,):
      say(value_of(step(net, X)), traces, more_traces)
  planned(one)
  planned(two)


def test_written_while_it_is_traced(say):
  """By the function itself, to the live model that it closes over; the trace goes on with the new value."""
  net = model()
  traces = []

  @nnx.jit
  def step(given, x):
    traces.append(given.flag)
    if len(traces) < 3:
      net.flag = 10 * len(traces)
    return given(x) * given.flag

  for _ in range(8):
    say(error_of(lambda: value_of(step(net, X))), traces, net.flag)
