"""What a function does besides computing, seen at the end of its trace.

A function that says where arrays lie may give back elsewhere what it did not touch. One that calls
back into Python may change the model while its program runs.
"""

import typing as tp
import weakref

import jax
from jax._src import core

_PLACES = (jax.sharding.Sharding, jax.Device)


def _is_place(value: tp.Any) -> bool:
  if isinstance(value, (tuple, list)):
    return any(map(_is_place, value))
  if isinstance(value, (jax.sharding.Mesh, jax.sharding.AbstractMesh)):
    return not value.empty
  return isinstance(value, _PLACES) or type(value).__name__ in ('Layout', 'Format')


def _lies_elsewhere(value: tp.Any) -> bool:
  """Whether a constant may decide where the program runs."""
  if not isinstance(value, jax.Array) or isinstance(value, core.Tracer):
    return False
  value = getattr(value, '_base_array', value)
  return value.committed or value.sharding.device_set != {jax.local_devices()[0]}


def _programs_in(value: tp.Any) -> tp.Iterator[tp.Any]:
  """The jaxprs, open or closed, in a parameter of an equation."""
  if isinstance(value, (tuple, list)):
    for item in value:
      yield from _programs_in(item)
  elif hasattr(type(value), 'eqns'):
    yield value


def _looked(equations: tp.Iterable, constants: tp.Iterable) -> tuple[bool, bool]:
  """Of equations and those inside them: whether any places arrays, and whether any calls back."""
  places, calls_back = any(map(_lies_elsewhere, constants)), False
  for equation in equations:
    name = equation.primitive.name
    calls_back = calls_back or 'callback' in name or 'debug' in name
    places = places or any(map(_is_place, equation.params.values()))
    for parameter in equation.params.values():
      for program in _programs_in(parameter):
        inner = _looked(program.eqns, getattr(program, 'consts', ()))
        places, calls_back = places or inner[0], calls_back or inner[1]
  return places, calls_back


def of_current_trace() -> tuple[bool, bool]:
  """(places arrays, calls back) of what the trace under way has seen; (False, False) without one."""
  frame = getattr(core.trace_ctx.trace, 'frame', None)
  if frame is None:
    return False, False
  equations = [one() if type(one) is weakref.ref else one for one in frame.tracing_eqns]
  return _looked(filter(None, equations), list(frame.constvar_to_val.values()))
