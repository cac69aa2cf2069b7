"""Graph types refuse to be changed, with upstream's errors."""
import dataclasses

import pytest
from graphtypes.samples import DATACLASSES, cls, fields_of, sample
from telling import error_of


@pytest.mark.parametrize('name', DATACLASSES)
def test_assignment_is_refused(say, name):
  made = sample(name)
  for field in (*fields_of(name), 'nothing', '__class__', '__dict__', '_hash', '__doc__'):
    say(field, error_of(setattr, made, field, 1))
    say(field, error_of(delattr, made, field))
  assert made == sample(name)


@pytest.mark.parametrize('name', DATACLASSES)
def test_errors_are_attribute_errors(say, name):
  with pytest.raises(dataclasses.FrozenInstanceError) as caught:
    setattr(sample(name), next(iter(fields_of(name))), 1)
  assert isinstance(caught.value, AttributeError)
  say(caught.value.args)


@pytest.mark.parametrize('name', DATACLASSES)
def test_subclass_instances_may_have_more(say, name):

  class Own(cls(name)):
    pass

  own = Own(**fields_of(name))
  for field in (*fields_of(name), 'note'):
    say(field, error_of(setattr, own, field, 1))
    say(field, error_of(getattr, own, field))
    say(field, error_of(delattr, own, field))


@pytest.mark.parametrize('name', DATACLASSES)
def test_objects_back_door(say, name):
  made = sample(name)
  for field in fields_of(name):
    object.__setattr__(made, field, 'forced')
    assert getattr(made, field) == 'forced'
    object.__delattr__(made, field)
    say(error_of(getattr, made, field))
  say(error_of(object.__setattr__, made, 'nothing', 1))


def test_refmap_and_indexmap_take_attributes(say):
  for name in ('RefMap', 'IndexMap'):
    made = sample(name)
    made.note = 'kept'
    say(name, made.note, sorted(k for k in vars(made) if k != '_mapping'))
    del made.note
    say(error_of(getattr, made, 'note'))
