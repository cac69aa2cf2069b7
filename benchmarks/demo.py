"""The main job, shown: training loops on both twins beside their floor, a graph, and real digits.

  python benchmarks/demo.py [--json FILE]

Every row is measured in a process of its own. Ends with status 1 where the twins' losses or
accuracies differ.
"""

import argparse
import sys
import typing as tp

import measuring
from matplotlib import pyplot
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

TWINS = tuple(measuring.SWITCH)
FLOOR = 'jax.jit over flat leaves'
# XLA compiles another program for another set of outputs, and may sum in another order.
TOLERANCE = 1e-5


JOBS = {'training loops': 'loops.py', 'step time against size': 'depth.py', 'digits': 'digits.py'}


def measure(console: Console) -> dict[str, dict[str, dict]]:
  columns = (TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
  results: dict[str, dict[str, dict]] = {}
  with Progress(*columns, console=console) as progress, measuring.programs_kept():
    task = progress.add_task('', total=len(JOBS) * len(TWINS))
    for title, script in JOBS.items():
      results[title] = {}
      for twin in TWINS:
        progress.update(task, description=f'{title} ({twin})')
        results[title][twin] = measuring.on_twin(twin, script)
        progress.advance(task)
  return results


def loop_tables(result: dict[str, dict]) -> tp.Iterator[Table]:
  """One for steps that are waited for, one for each size for steps that are not."""
  sizes = {twin: r['sizes'] for twin, r in result.items()}
  for i, size in enumerate(sizes['pure']):
    for how in ('waited', 'asynchronous')[i > 0 :]:
      title = 'each step waited for' if how == 'waited' else 'asynchronous'
      measured = {twin: s[size][how] for twin, s in sizes.items()}
      yield loop_table(f'{title}, batch and width {size}', measured)


def loop_table(title: str, result: dict[str, dict]) -> Table:
  """Microseconds a step on each twin, each beside the ratio to the floor of its own process."""
  table = Table(title=title)
  table.add_column('way')
  for heading in ('pure us', 'x floor', 'compiled us', 'x floor', 'faster'):
    table.add_column(heading, justify='right')
  pure, compiled = result['pure'], result['compiled']
  for way in pure:
    table.add_row(
      way,
      f'{pure[way]:.0f}',
      f'{pure[way] / pure[FLOOR]:.2f}',
      f'{compiled[way]:.0f}',
      f'{compiled[way] / compiled[FLOOR]:.2f}',
      f'{pure[way] / compiled[way]:.1f}x',
    )
  return table


def compare_losses(result: dict[str, dict]) -> list[str]:
  """What is wrong: a way that differs between the twins, or from the floor by more than rounding."""
  wrong = []
  for size, measured in result['compiled']['sizes'].items():
    pure, compiled = result['pure']['sizes'][size]['losses'], measured['losses']
    for way in pure:
      if pure[way] != compiled[way]:
        wrong.append(f'{way}, size {size}: the twins give different losses')
      worst = max(abs(a - b) / abs(b) for a, b in zip(compiled[way], compiled[FLOOR]))
      if worst > TOLERANCE:
        wrong.append(f'{way}, size {size}: losses differ from the floor by up to {worst:.1e}')
  return wrong


def draw(result: dict[str, dict]) -> str:
  """The graph: step time against leaves for the floor and both twins. Returns the file's path."""
  figure, axes = pyplot.subplots(figsize=(7, 4.5), layout='constrained')
  series = (
    ('pure', 'nnx.jit', 'nnx.jit, pure Python', 'C3', 'o'),
    ('compiled', 'nnx.jit', 'nnx.jit, compiled', 'C0', 's'),
    ('compiled', 'jax.jit', 'jax.jit over the flat leaves', '0.4', '^'),
  )
  for twin, call, label, color, marker in series:
    rows = result[twin]['depths'].values()
    axes.loglog(
      [r['leaves'] for r in rows], [r[call] for r in rows], marker, ls='-', color=color, label=label
    )
  axes.set_xlabel('arrays in model and optimizer')
  axes.set_ylabel('microseconds a step')
  axes.set_title('What a step costs before it computes anything')
  axes.grid(which='major', alpha=0.3)
  axes.legend()
  measuring.RESULTS.mkdir(exist_ok=True)
  path = measuring.RESULTS / 'step_time.png'
  figure.savefig(path, dpi=150)
  return str(path.relative_to(measuring.HERE.parent))


def digits_table(result: dict[str, dict]) -> Table:
  table = Table(title='1,797 digits, a convolutional network, unmodified nnx.jit code')
  for heading in ('twin', 'test accuracy', 'seconds', 'steps', 'us a step'):
    table.add_column(heading, justify='right')
  for twin in ('pure', 'compiled'):
    r = result[twin]
    table.add_row(
      twin,
      f'{100 * r["accuracy"]:.2f} %',
      f'{r["seconds"]:.2f}',
      str(r['steps']),
      f'{1e6 * r["seconds"] / r["steps"]:.0f}',
    )
  return table


def show(results: dict[str, dict[str, dict]], console: Console) -> list[str]:
  wrong = []
  for title, result in results.items():
    failed = [f'{title} ({twin}): {r["error"]}' for twin, r in result.items() if 'error' in r]
    if failed:
      wrong += failed
    elif title == 'digits':
      console.print(digits_table(result))
      pure, compiled = result['pure'], result['compiled']
      console.print(f'{pure["seconds"] / compiled["seconds"]:.2f} times faster with the compiled twin')
      if compiled['accuracy'] != pure['accuracy'] or compiled['accuracy'] <= 0.97:
        wrong.append(f'digits: accuracies {pure["accuracy"]} and {compiled["accuracy"]}')
    elif title == 'step time against size':
      console.print(f'graph: {draw(result)}')
    else:
      console.print(*loop_tables(result), sep='\n')
      wrong += compare_losses(result)
  return wrong


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--json', metavar='FILE', help='write all results there')
  options = parser.parse_args()
  console = Console()
  results = measure(console)
  wrong = show(results, console)
  measuring.emit(results, options.json)
  if wrong:
    sys.exit('\n'.join(wrong))
  console.print(
    'losses: each way gives the same on both twins, to the last bit, and the ways agree within '
    f'{TOLERANCE:g} (other outputs make another XLA program, which may round otherwise)'
  )


if __name__ == '__main__':
  main()
