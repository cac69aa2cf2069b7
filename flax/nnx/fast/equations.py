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


def _equations_of(frame: tp.Any) -> list:
  equations = [one() if type(one) is weakref.ref else one for one in frame.tracing_eqns]
  return [one for one in equations if one is not None]


def of_current_trace() -> tuple[bool, bool]:
  """(places arrays, calls back) of what the trace under way has seen; (False, False) without one."""
  frame = getattr(core.trace_ctx.trace, 'frame', None)
  if frame is None:
    return False, False
  return _looked(_equations_of(frame), list(frame.constvar_to_val.values()))


def _variable(value: tp.Any) -> int:
  """The identity of a tracer's variable, or of the variable itself."""
  return id(getattr(value, 'val', value))


def _needs(equation: tp.Any, wanted: list[bool]) -> list[bool]:
  """Which inputs of an equation these outputs surely need, however far jax looks for dead code."""
  programs = list(_programs_in(list(equation.params.values())))
  n = len(equation.invars)
  if not programs:
    return [True] * n
  inner = getattr(programs[0], 'jaxpr', programs[0])
  if len(programs) > 1 or len(inner.invars) != n or len(inner.outvars) != len(wanted):
    return [False] * n
  ends = {_variable(var) for var, is_wanted in zip(inner.outvars, wanted, strict=True) if is_wanted}
  _follow(inner.eqns, ends)
  return [_variable(var) in ends for var in inner.invars]


def _follow(equations: tp.Sequence, known: set[int]) -> None:
  """Adds the variables that those known surely need, from the last equation to the first."""
  for equation in reversed(equations):
    wanted = [_variable(var) in known for var in equation.outvars]
    if any(wanted):
      needs = _needs(equation, wanted)
      known.update(_variable(var) for var, need in zip(equation.invars, needs, strict=True) if need)


def surely_used(inputs: tp.Iterable, results: tp.Iterable) -> bool:
  """Whether the trace under way surely needs one of these inputs for what it gives.

  Where its program drops all that are committed to a device, jax runs it on the default one.
  """
  frame = getattr(core.trace_ctx.trace, 'frame', None)
  if frame is None:
    return False
  known = set(map(_variable, results))
  _follow(_equations_of(frame), known)
  return any(_variable(tracer) in known for tracer in inputs)
