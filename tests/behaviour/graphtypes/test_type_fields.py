"""Fields, constructors and the dataclass tools of the graph types."""
import dataclasses
import typing as tp

import pytest
from graphtypes.samples import DATACLASSES, cls, fields_of, sample
from telling import error_of, plain


@pytest.mark.parametrize('name', DATACLASSES)
def test_declared_fields(say, name):
  for field in dataclasses.fields(cls(name)):
    say(field.name, field.type, field.init, field.repr, field.hash, field.compare, field.kw_only,
        field.default is dataclasses.MISSING, field.default_factory is dataclasses.MISSING)
  assert dataclasses.is_dataclass(cls(name)) and dataclasses.is_dataclass(sample(name))
  say(cls(name).__match_args__, list(cls(name).__annotations__), tp.get_type_hints(cls(name)))
  parameters = cls(name).__dataclass_params__
  say(plain(parameters))


@pytest.mark.parametrize('name', DATACLASSES)
def test_construction(say, name):
  fields = fields_of(name)
  by_keyword, by_position = cls(name)(**fields), cls(name)(*fields.values())
  half = len(fields) // 2
  mixed = cls(name)(*list(fields.values())[:half], **dict(list(fields.items())[half:]))
  assert by_keyword == by_position == mixed
  for field, value in fields.items():
    assert getattr(by_keyword, field) is getattr(by_position, field) is value


@pytest.mark.parametrize('name', DATACLASSES)
def test_refused_arguments(say, name):
  make, fields = cls(name), fields_of(name)
  values = list(fields.values())
  for count in range(len(values)):
    say(error_of(make, *values[:count]))
  for missing in fields:
    say(error_of(make, **{k: v for k, v in fields.items() if k != missing}))
  say(error_of(make, *values, 'extra'))
  say(error_of(make, *values, 'extra', 'more'))
  say(error_of(make, **fields, extra=1))
  say(error_of(make, values[0], **fields))
  say(error_of(make, **{**fields, 'Index': 1}))


@pytest.mark.parametrize('name', DATACLASSES)
def test_any_value_is_taken(say, name):
  odd = [None, object, 'text', [], float('nan')]
  fields = {field: odd[i] for i, field in enumerate(fields_of(name))}
  made = cls(name)(**fields)
  for field, value in fields.items():
    assert getattr(made, field) is value


@pytest.mark.parametrize('name', DATACLASSES)
def test_replace(say, name):
  before = sample(name)
  for field in fields_of(name):
    after = dataclasses.replace(before, **{field: 'new'})
    assert getattr(after, field) == 'new' and type(after) is cls(name)
    assert all(getattr(after, f) is getattr(before, f) for f in fields_of(name) if f != field)
  say(error_of(dataclasses.replace, before, nothing=1))
  if hasattr(before, '__replace__'):
    say(before.__replace__() == before, before.__replace__() is before)


@pytest.mark.parametrize('name', DATACLASSES)
def test_asdict_and_astuple(say, name):
  say(error_of(dataclasses.asdict, sample(name)))
  say(error_of(dataclasses.astuple, sample(name)))


@pytest.mark.parametrize('name', DATACLASSES)
def test_vars(say, name):
  say(error_of(vars, sample(name)))
  say(hasattr(sample(name), '__dict__'))
  say(error_of(lambda: sample(name).__slots__))


@pytest.mark.parametrize('name', DATACLASSES)
def test_attributes_that_are_not_there(say, name):
  say(error_of(getattr, sample(name), 'nothing'))
  say(error_of(getattr, cls(name), 'nothing'))
  blank = object.__new__(cls(name))
  for field in fields_of(name):
    say(error_of(getattr, blank, field))
  say(error_of(repr, blank))
  say(error_of(hash, blank))
  say(error_of(lambda: blank == object.__new__(cls(name))))
  say(error_of(lambda: blank == sample(name)))
  say(error_of(lambda: sample(name) == blank))


@pytest.mark.parametrize('name', DATACLASSES)
def test_public_names(say, name):
  own = {n for n in dir(sample(name)) if not n.startswith('_')}
  say(sorted(own))


def test_matching(say):
  match sample('NodeDef'):
    case cls_ if not isinstance(cls_, cls('NodeDef')):
      raise AssertionError
    case _:
      pass
  NodeDef, NodeRef = cls('NodeDef'), cls('NodeRef')
  match sample('NodeDef'):
    case NodeDef(type_, 0, outer, num_attributes=count):
      say(type_.__name__, outer, count)
  match sample('NodeRef'):
    case NodeRef(index):
      say(index)


def test_calling_init_again(say):
  for name in DATACLASSES:
    made = sample(name)
    say(name, error_of(made.__init__, **fields_of(name)), made == sample(name))
