"""Makes a typed class from a pure one: the same to look at, with slots and compiled methods.

The fields of a typed class are `__slots__`, so compiled code reads them as C pointers; everything
else (bases, docstring, dataclass machinery, the methods that are not replaced) is the pure class's
own. A `cdef class` would not do: `object.__new__` cannot make one, and that is what pickles of
protocols 0 and 1 that the pure class wrote call.
"""

import dataclasses
import functools
import types
import typing as tp

from flax.nnx.fast.fronts import front
from flax.nnx.fast.kinds import attributes_of

# What `type` makes anew for each class.
PER_CLASS = ('__dict__', '__weakref__', '__slots__', '__abstractmethods__', '_abc_impl')


def _replaced(own: tp.Any, method: tp.Any) -> tp.Any:
  if isinstance(own, staticmethod):
    return staticmethod(front(method, own.__func__))
  return front(method, own) if isinstance(own, types.FunctionType) else method


def rebuild(pure: type, slots: tuple[str, ...], methods: dict[str, tp.Any]) -> type:
  """A class like `pure` whose instances hold `slots`; `methods` replace or join its own."""
  names = {
    name: value
    for name, value in vars(pure).items()
    if name not in PER_CLASS and not isinstance(value, types.MemberDescriptorType)
  }
  for name, method in methods.items():
    names[name] = _replaced(names.get(name), method)
  cls = type(pure)(pure.__name__, pure.__bases__, {**names, '__slots__': slots})
  if '__slots__' in vars(pure):  # what it says of its slots is what the pure class says
    cls.__slots__ = vars(pure)['__slots__']
  else:
    del cls.__slots__
  return cls


def rebuild_dataclass(pure: type, methods: dict[str, tp.Any], extra_slots: tuple[str, ...] = ()) -> type:
  """`rebuild` for a frozen dataclass: one slot a field."""
  fields = tuple(field.name for field in dataclasses.fields(pure))
  if '__slots__' in vars(pure):
    return rebuild(pure, fields + extra_slots, methods)
  slots = fields + ('__dict__', '__weakref__') + extra_slots
  more = {'__annotations__': _resolved(pure, fields), **_in_place_of_a_dict(fields)}
  cls = rebuild(pure, slots, {**methods, **more})
  _freeze(cls, pure, fields)
  return cls


def _resolved(pure: type, fields: tuple[str, ...]) -> dict[str, tp.Any]:
  """The annotations; one that names a field is evaluated, or it would find the slot by that name."""
  hints = tp.get_type_hints(pure)
  return {
    name: hints[name] if any(text.startswith(f'{field}[') for field in fields) else text
    for name, text in pure.__annotations__.items()
  }


def _in_place_of_a_dict(fields: tuple[str, ...]) -> dict[str, tp.Any]:
  """`vars()`, pickling and missing fields, as an instance with a dict would have them."""

  def state(self) -> dict[str, tp.Any]:
    held = {name: getattr(self, name) for name in fields if hasattr(self, name)}
    return {**held, **attributes_of(self)}

  def __setstate__(self, state):
    for name, value in state.items():
      object.__setattr__(self, name, value)

  def __getattr__(self, name):
    raise AttributeError(
      f'{type(self).__name__!r} object has no attribute {name!r}', name=name, obj=self
    )

  return {
    '__dict__': property(state),
    '__getstate__': state,
    '__setstate__': __setstate__,
    '__getattr__': __getattr__,
  }


def _freeze(cls: type, pure: type, fields: tuple[str, ...]) -> None:
  """Refuses assignment, as the pure class does in functions that name it, not this class."""

  def frozen(self, name: str) -> bool:
    return type(self) is cls or name in fields

  @functools.wraps(pure.__setattr__)
  def __setattr__(self, name, value):
    if frozen(self, name):
      raise dataclasses.FrozenInstanceError(f'cannot assign to field {name!r}')
    super(cls, self).__setattr__(name, value)

  @functools.wraps(pure.__delattr__)
  def __delattr__(self, name):
    if frozen(self, name):
      raise dataclasses.FrozenInstanceError(f'cannot delete field {name!r}')
    super(cls, self).__delattr__(name)

  cls.__setattr__, cls.__delattr__ = __setattr__, __delattr__
