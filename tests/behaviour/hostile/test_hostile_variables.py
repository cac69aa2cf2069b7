"""Variables whose classes override what a walk uses, or whose contents are odd."""
import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.nnx import graphlib
from hostile.outcomes import WITHOUT_JIT, outcome, own_caches, result_of, say_outcomes, text
from telling import plain

LOG: list = []


class GetMetadata(nnx.Param):
  def get_metadata(self, *args, **kwargs):
    LOG.append('get_metadata')
    found = super().get_metadata(*args, **kwargs)
    return {**found, 'invented': 1} if isinstance(found, dict) and not args else found


class GetMetadataRaises(nnx.Param):
  def get_metadata(self, *args, **kwargs):
    raise ArithmeticError('no metadata for you')


class OtherVarType(nnx.Param):
  @property
  def var_type(self):
    LOG.append('var_type')
    return nnx.BatchStat


class SetRawValue(nnx.Param):
  def set_raw_value(self, value, **kwargs):
    LOG.append(f'set_raw_value {sorted(kwargs)}')
    super().set_raw_value(value * 2, **kwargs)


class SetRawValueRaises(nnx.Param):
  def set_raw_value(self, value, **kwargs):
    raise PermissionError('read only')


class GetRawValue(nnx.Param):
  def get_raw_value(self):
    LOG.append('get_raw_value')
    return super().get_raw_value() + 100


class Copies(nnx.Param):
  def copy(self, *args, **kwargs):
    LOG.append(f'copy {len(args)} {sorted(kwargs)}')
    return super().copy(*args, **kwargs)


class CopyGivesAnother(nnx.Param):
  def copy(self, *args, **kwargs):
    return nnx.BatchStat(jnp.zeros(1))


class CopyGivesNoVariable(nnx.Param):
  def copy(self, *args, **kwargs):
    return 'not a variable'


class FromMetadata(nnx.Param):
  @classmethod
  def from_metadata(cls, value, attributes):
    LOG.append(f'from_metadata {sorted(attributes)}')
    return super().from_metadata(value, {**attributes, 'rebuilt': True})


class FromMetadataRaises(nnx.Param):
  @classmethod
  def from_metadata(cls, value, attributes):
    raise ArithmeticError('cannot be rebuilt')


class UpdateFromState(nnx.Param):
  def update_from_state(self, variable_state):
    LOG.append('update_from_state')
    super().update_from_state(variable_state)


class NewOverridden(nnx.Param):
  @classmethod
  def _new(cls, value, metadata):
    LOG.append('_new')
    return super()._new(value, metadata)


class CanUpdate(nnx.Param):
  @property
  def _can_update(self):
    LOG.append('_can_update')
    return False


class Hooks(nnx.Param):
  def on_get_value(self, value):
    LOG.append('on_get_value')
    return value + 1

  def on_set_value(self, value):
    LOG.append('on_set_value')
    return value * 10

  def on_create_value(self, value):
    LOG.append('on_create_value')
    return value


class HooksRaise(nnx.Param):
  def on_get_value(self, value):
    raise ArithmeticError('not to be read')

  def on_set_value(self, value):
    raise ArithmeticError('not to be written')


class Setattr(nnx.Param):
  def __setattr__(self, name, value):
    LOG.append(f'setattr {name}')
    super().__setattr__(name, value)


class Getattribute(nnx.Param):
  def __getattribute__(self, name):
    if name in ('_raw_value', '_var_metadata'):
      LOG.append(f'get {name}')
    return super().__getattribute__(name)


class GetattrInvents(nnx.Param):
  def __getattr__(self, name):
    if name.startswith('_'):
      raise AttributeError(name)
    return f'invented {name}'


class Slots(nnx.Param):
  __slots__ = ('more',)


class WithInit(nnx.Param):
  def __init__(self, value, extra=None, **metadata):
    super().__init__(value, extra=extra, **metadata)


class EqualToAll(nnx.Param):
  def __eq__(self, other):
    return True

  def __hash__(self):
    return 1


class Unhashable(nnx.Param):
  __hash__ = None


class BoolRaises(nnx.Param):
  def __bool__(self):
    raise ArithmeticError('neither')

  def __len__(self):
    raise ArithmeticError('immeasurable')


class IsAMappingToo(nnx.Param):
  def keys(self):
    return ['x']

  def items(self):
    return [('x', 1)]


class HijaxClassAttribute(nnx.Param):
  hijax = False
  ref = False


class RawValueProperty(nnx.Param):
  """Shadows the slot that holds the value."""

  @property
  def _raw_value(self):
    return jnp.full(2, 42.0)

  @_raw_value.setter
  def _raw_value(self, value):
    LOG.append('set the shadow')


ZOO = [
  GetMetadata, GetMetadataRaises, OtherVarType, SetRawValue, SetRawValueRaises, GetRawValue, Copies,
  CopyGivesAnother, CopyGivesNoVariable, FromMetadata, FromMetadataRaises, UpdateFromState,
  NewOverridden, CanUpdate, Hooks, HooksRaise, Setattr, Getattribute, GetattrInvents, Slots, WithInit,
  EqualToAll, Unhashable, BoolRaises, IsAMappingToo, HijaxClassAttribute, RawValueProperty,
]
NAMES = [cls.__name__ for cls in ZOO]


class Holder(nnx.Module):
  def __init__(self, cls):
    self.plain = nnx.Param(jnp.ones(2))
    self.v = cls(jnp.arange(2.0), note='n')


def holder(name):
  return result_of(lambda: Holder(globals()[name]))


@own_caches()
@pytest.mark.parametrize('name', NAMES)
def test_every_walk(say, name):
  say(holder(name)[:200])
  if holder(name).startswith('gives'):
    say_outcomes(say, lambda: Holder(globals()[name]), log=LOG)


@own_caches()
@pytest.mark.parametrize('name', NAMES)
def test_alone_and_in_containers(say, name):
  cls = globals()[name]
  if result_of(cls, jnp.ones(2)).startswith('gives'):
    walks = ('flatten', 'flatten without paths', 'state', 'round trip', 'clone', 'update', 'pop')
    say_outcomes(say, lambda: cls(jnp.ones(2)), walks, log=LOG)
    shared = cls(jnp.ones(2))
    say_outcomes(say, lambda: {'x': [shared], 'y': shared}, walks, log=LOG)


@own_caches()
@pytest.mark.parametrize('name', NAMES)
def test_updates_and_writes(say, name):
  if not holder(name).startswith('gives'):
    return
  for value in (jnp.full(2, 7.0), nnx.Param(jnp.full(2, 7.0), note='other'), 5, None, 'text',
                nnx.BatchStat(jnp.zeros(1)), nnx.State({}), {}, np.ones(2)):
    model = Holder(globals()[name])
    LOG.clear()
    say(type(value).__name__, result_of(nnx.update, model, {'v': value}), list(LOG))
    say(result_of(lambda m=model: m.v.get_raw_value()), result_of(lambda m=model: m.v.get_metadata()))

  @nnx.jit
  def step(model):
    model.v.set_raw_value(model.v.get_raw_value() + 1)
    return jnp.sum(model.plain[...])

  model = Holder(globals()[name])
  for _ in range(3):
    LOG.clear()
    say(result_of(step, model)[:300], list(LOG))
    say(result_of(lambda m=model: m.v.get_raw_value().tolist()), list(LOG))


CONTENTS = {
  'none': lambda: None, 'int': lambda: 5, 'text': lambda: 'text', 'list': lambda: [jnp.ones(1)],
  'dict': lambda: {'a': jnp.ones(1)}, 'empty tuple': lambda: (), 'numpy': lambda: np.ones(2),
  'numpy scalar': lambda: np.float32(2), 'object': lambda: NoRepr(), 'function': lambda: len,
  'module': lambda: nnx.Linear(1, 1, rngs=nnx.Rngs(0)), 'variable': lambda: nnx.Param(jnp.ones(1)),
  'struct': lambda: jax.ShapeDtypeStruct((2,), jnp.float32), 'key': lambda: jax.random.key(0),
  'state': lambda: nnx.State({'a': jnp.ones(1)}), 'repeated': lambda: graphlib.REPEATED,
  'no update': lambda: graphlib.NO_UPDATE, 'nan': lambda: float('nan'), 'class': lambda: int,
  'partition spec': lambda: jax.sharding.PartitionSpec('x'), 'bytes': lambda: b'x', 'set': lambda: {1},
}


class NoRepr:
  def __repr__(self):
    return 'NoRepr()'


@own_caches()
@pytest.mark.parametrize('kind', CONTENTS)
def test_odd_contents(say, kind):
  variable = result_of(lambda: nnx.Param(CONTENTS[kind]()))
  say(variable[:200])
  if variable.startswith('gives'):
    say_outcomes(say, lambda: {'v': nnx.Param(CONTENTS[kind]()), 'w': nnx.Param(jnp.ones(2))})

    def raw():
      made = nnx.Param(jnp.ones(1))
      object.__setattr__(made, '_raw_value', CONTENTS[kind]())
      return [made, made]

    say_outcomes(say, raw, WITHOUT_JIT)


BROKEN = {
  'metadata is no dict': ('_var_metadata', 5), 'metadata is none': ('_var_metadata', None),
  'metadata is a dict subclass': ('_var_metadata', type('D', (dict,), {})(hijax=False, ref=False)),
  'metadata lacks keys': ('_var_metadata', {}), 'metadata has odd keys': ('_var_metadata', {1: 2, None: 3}),
  'hijax is text': ('_var_metadata', {'hijax': 'no', 'ref': False}),
  'hijax is zero': ('_var_metadata', {'hijax': 0, 'ref': 0}),
  'ref is true': ('_var_metadata', {'hijax': False, 'ref': True}),
  'trace state is none': ('_trace_state', None), 'trace state is text': ('_trace_state', 'text'),
}


@own_caches()
@pytest.mark.parametrize('kind', BROKEN)
def test_broken_slots(say, kind):
  slot, value = BROKEN[kind]

  def make():
    variable = nnx.Param(jnp.ones(2))
    object.__setattr__(variable, slot, value)
    return {'v': variable, 'w': nnx.Param(jnp.ones(2))}

  say_outcomes(say, make)
  say(result_of(nnx.update, make(), {'v': jnp.zeros(2)}))
  say(result_of(nnx.update, make(), {'v': nnx.Param(jnp.zeros(2))}))
  say(result_of(nnx.update, {'v': nnx.Param(jnp.zeros(2))}, make()))


@own_caches()
@pytest.mark.parametrize('slot', ['_raw_value', '_var_metadata', '_trace_state'])
def test_slots_that_were_never_set(say, slot):

  def make():
    variable = nnx.Param(jnp.ones(2))
    object.__delattr__(variable, slot)
    return {'v': variable, 'w': nnx.Param(jnp.ones(2))}

  say_outcomes(say, make)
  for state in ({'v': jnp.zeros(2)}, {'v': nnx.Param(jnp.zeros(2))}):
    say(result_of(nnx.update, make(), state))
  say(result_of(nnx.update, {'v': nnx.Param(jnp.zeros(2))}, make()))
  say_outcomes(say, lambda: {'v': object.__new__(nnx.Param)})


def test_classes_that_only_claim_to_be_variables(say):

  class Claims:
    __class__ = nnx.Param

    def __repr__(self):
      return 'Claims()'

  class Registered:
    def __repr__(self):
      return 'Registered()'

  say_outcomes(say, lambda: {'x': Claims(), 'y': nnx.Param(jnp.ones(1))})
  say_outcomes(say, Claims)

  class ClaimsAndBehaves(Claims):
    var_type = nnx.Param
    value = jnp.ones(1)

    def get_raw_value(self):
      return self.value

    def get_metadata(self, *args):
      return {'hijax': False, 'ref': False}

    def copy(self, **kwargs):
      return self

    def update_from_state(self, other):
      LOG.append('updated')

    def set_raw_value(self, value, **kwargs):
      LOG.append('set')

  say_outcomes(say, lambda: {'x': ClaimsAndBehaves(), 'y': nnx.Param(jnp.ones(1))}, log=LOG)
  say_outcomes(say, lambda: {'x': Registered()}, ('split', 'iter_graph'))


def test_methods_replaced_after_first_use(say):

  class Own(nnx.Param):
    pass

  def fresh():
    return {'v': Own(jnp.ones(2)), 'w': nnx.Param(jnp.ones(2))}

  say_outcomes(say, fresh, ('split', 'round trip', 'clone', 'update', 'jit'))
  for name in ('get_metadata', 'get_raw_value', 'set_raw_value', 'copy', 'from_metadata', 'update_from_state',
               'var_type', '_can_update', '__setattr__'):

    def replaced(*args, name=name, **kwargs):
      raise ArithmeticError(f'{name} was replaced')

    kept = fresh()
    wrapped = {'from_metadata': classmethod, 'var_type': property, '_can_update': property}
    setattr(Own, name, wrapped.get(name, lambda f: f)(replaced))
    try:
      say(name)
      say_outcomes(say, lambda kept=kept: dict(kept), ('split', 'round trip', 'clone', 'update', 'jit'))
      if name != '__setattr__':
        say(result_of(nnx.update, kept, {'v': jnp.zeros(2)}))
    finally:
      delattr(Own, name)
  say_outcomes(say, fresh, ('split', 'round trip', 'clone', 'update', 'jit'))


def test_methods_of_the_base_class_replaced(say):
  calls: list = []
  original = nnx.Variable.get_raw_value

  def noting(self):
    calls.append(1)
    return original(self)

  model = {'v': nnx.Param(jnp.ones(2))}
  say_outcomes(say, lambda: model, ('split', 'clone', 'update'))
  nnx.Variable.get_raw_value = noting
  try:
    for walk in (nnx.split, nnx.clone, nnx.state):
      calls.clear()
      walk(model)
      say(walk.__name__, len(calls))
  finally:
    nnx.Variable.get_raw_value = original
  calls.clear()
  nnx.split(model)
  say(len(calls))


def test_class_of_a_variable_changed(say):
  variable = nnx.Param(jnp.ones(2))
  model = {'v': variable}
  step = nnx.jit(lambda m: jnp.sum(m['v'][...]))
  for cls in (nnx.Param, nnx.BatchStat, GetMetadata, nnx.Param):
    say(cls.__name__, result_of(object.__setattr__, variable, '__class__', cls))
    say(type(variable).__name__, outcome(nnx.split, model), result_of(step, model))


def test_metadata_changed_between_calls(say):
  variable = nnx.Param(jnp.ones(2), tag=1)
  model = {'v': variable}
  traces: list = []
  step = nnx.jit(lambda m: traces.append(1))
  changes = [lambda m: m.update(tag=1), lambda m: m.update(tag=2), lambda m: m.update(new=3),
             lambda m: m.pop('new'), lambda m: m.update(tag=m.pop('tag')), lambda m: m.update(tag=True)]
  for change in changes:
    step(model)
    before = len(traces)
    change(variable._var_metadata)
    step(model)
    say(len(traces) - before, plain(nnx.graphdef(model).nodes[-1].metadata),
        list(variable.get_metadata().items()))


def test_metadata_that_changes_itself(say):

  class Meddles:
    def __eq__(self, other):
      target._var_metadata[f'added{len(target._var_metadata)}'] = 1
      return True

    def __hash__(self):
      return 3

    def __repr__(self):
      return 'Meddles()'

  target = nnx.Param(jnp.ones(2), tag=Meddles())
  other = nnx.Param(jnp.zeros(2), tag=Meddles())
  say(result_of(nnx.update, {'v': target}, {'v': other}), sorted(target.get_metadata()))
  one, two = nnx.graphdef({'v': target}), nnx.graphdef({'v': other})
  say(result_of(lambda: one == two), sorted(target.get_metadata()))


def test_values_whose_death_changes_the_model(say):
  log: list = []

  class Bomb:
    def __init__(self, variable, model):
      self.variable, self.model = variable, model

    def __del__(self):
      log.append('gone')
      self.variable.set_raw_value('set by the dying value')
      self.model['late'] = nnx.Param(jnp.ones(1))

  variable = nnx.Param(jnp.ones(2))
  model = {'v': variable}
  variable.set_raw_value(Bomb(variable, model))
  say(result_of(nnx.update, model, {'v': jnp.zeros(2)}))
  gc.collect()
  say(log, text(variable.get_raw_value()), list(model))
  variable.set_raw_value(Bomb(variable, model))
  say(result_of(nnx.update, model, {'v': nnx.Param(jnp.zeros(2)), 'w': nnx.Param(jnp.zeros(2))}))
  gc.collect()
  say(log, text(variable.get_raw_value()), list(model))
