"""Makes a typed class from a pure one: the same to look at, with slots and compiled methods.

The fields of a typed class are `__slots__`, so compiled code reads them as C pointers; everything
else (bases, docstring, dataclass machinery, the methods that are not replaced) is the pure class's
own. A `cdef class` would not do: `object.__new__` cannot make one, and that is what pickles of
protocols 0 and 1 that the pure class wrote call.
"""
import dataclasses
import types
import typing as tp

from flax.nnx.fast.fronts import front

# What `type` makes anew for each class.
PER_CLASS = ('__dict__', '__weakref__', '__slots__', '__abstractmethods__', '_abc_impl')


def _replaced(own: tp.Any, method: tp.Any) -> tp.Any:
  if isinstance(own, staticmethod):
    return staticmethod(front(method, own.__func__))
  return front(method, own) if isinstance(own, types.FunctionType) else method


def rebuild(pure: type, slots: tuple[str, ...], methods: dict[str, tp.Any]) -> type:
  """A class like `pure` whose instances hold `slots`; `methods` replace or join its own."""
  names = {
    name: value for name, value in vars(pure).items()
    if name not in PER_CLASS and not isinstance(value, types.MemberDescriptorType)
  }
  for name, method in methods.items():
    names[name] = _replaced(names.get(name), method)
  return type(pure)(pure.__name__, pure.__bases__, {**names, '__slots__': slots})


def rebuild_dataclass(
  pure: type, methods: dict[str, tp.Any], extra_slots: tuple[str, ...] = ()
) -> type:
  """`rebuild` for a frozen dataclass: one slot a field, and assignment refused as before."""
  fields = tuple(field.name for field in dataclasses.fields(pure))
  if '__slots__' not in vars(pure):   # its instances have a dict and weak references
    extra_slots += ('__weakref__',)
    methods = {**methods, **_dict_of_fields(fields)}
  cls = rebuild(pure, fields + extra_slots, methods)
  _freeze(cls, fields)
  return cls


def _dict_of_fields(fields: tuple[str, ...]) -> dict[str, tp.Any]:
  """`vars()` and pickling of slots, in the form that an instance with a dict gives them."""

  def state(self) -> dict[str, tp.Any]:
    return {name: getattr(self, name) for name in fields if hasattr(self, name)}

  def __setstate__(self, state):
    for name, value in state.items():
      object.__setattr__(self, name, value)

  return {'__dict__': property(state), '__getstate__': state, '__setstate__': __setstate__}


def _freeze(cls: type, fields: tuple[str, ...]) -> None:

  def frozen(self, name: str) -> bool:
    return type(self) is cls or name in fields

  def __setattr__(self, name, value):
    if frozen(self, name):
      raise dataclasses.FrozenInstanceError(f'cannot assign to field {name!r}')
    super(cls, self).__setattr__(name, value)

  def __delattr__(self, name):
    if frozen(self, name):
      raise dataclasses.FrozenInstanceError(f'cannot delete field {name!r}')
    super(cls, self).__delattr__(name)

  cls.__setattr__, cls.__delattr__ = __setattr__, __delattr__
