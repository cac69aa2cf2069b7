"""What `graph_fast.report()` gives: how each jitted function's calls went, and why."""

import dataclasses
import typing as tp

ADVICE = {
  'not the object that was there before': 'hold on to one object, or change its value in place',
  'another object after the call': 'the function replaced it; change its value in place instead',
  'arguments that no plan is for': 'new models or containers each time; keep them, and pass them alike',
  'is held by something else too': 'drop the other reference to the list, dict or tuple',
  'an array that stays is held elsewhere': 'drop the other reference to the array',
  'changed the structure': 'add and remove attributes outside of the jitted function',
  'brings new objects': 'make models once, outside of the loop',
  'outside a Variable': 'wrap it in nnx.Variable, or make it a jax.Array once',
  'compares in a way of its own': 'make it a dataclass, or give it no __eq__',
  'not a jax.Array': 'store arrays or numbers in Variables',
  "upstream's own program runs": 'place the arrays instead, and let jax.jit infer it from them',
  'another kind of value': 'give a Variable one kind of value',
}


@dataclasses.dataclass(frozen=True)
class Row:
  """One function that `nnx.jit` made: how many calls, and for those not by plan, why not."""

  name: str
  calls: int
  by_plan: int
  reasons: dict[str, int]

  @property
  def general(self) -> int:
    return self.calls - self.by_plan

  def lines(self) -> tp.Iterator[str]:
    yield f'{self.name[:48]:<48} {self.calls:>9} {self.by_plan:>9} {self.general:>9}'
    for reason, times in sorted(self.reasons.items(), key=lambda item: -item[1]):
      yield f'    {times} x {reason}{advice(reason)}'


def advice(reason: str) -> str:
  return next((f' -> {what}' for key, what in ADVICE.items() if key in reason), '')


@dataclasses.dataclass(frozen=True)
class Report:
  """All functions of this process, the most called first; prints as a table."""

  functions: tuple[Row, ...]
  fallbacks: dict[tuple[str, str, str], int]

  def __str__(self) -> str:
    lines = [f'{"function":<48} {"calls":>9} {"by plan":>9} {"general":>9}']
    for row in self.functions:
      lines += row.lines()
    for (walk, cls, why), times in sorted(self.fallbacks.items(), key=lambda item: -item[1]):
      lines.append(f'{walk} left to the pure twin, {times} x: {cls}: {why}')
    return '\n'.join(lines)

  __repr__ = __str__


def report(sites: tp.Iterable[tp.Any], fallbacks: dict[tuple[str, str, str], int]) -> Report:
  rows = [Row(site.name, site.calls, site.fast, dict(site.reasons)) for site in sites if site.calls]
  return Report(tuple(sorted(rows, key=lambda row: (-row.calls, row.name))), fallbacks)
