"""The whole comparison: both twins, every way to call a step, the floor, and two other libraries.

  python benchmarks/bench.py [--depths 1 5 ...] [--quick]

Each measurement runs in a process of its own: steps (`libraries.py`) first, then what `others.py`
lists. Writes tables, JSON and graphs to benchmarks/results/.
"""

import argparse
import json
import platform

import measuring
import others
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

DEPTHS = (1, 3, 6, 12, 25)
SCENARIOS = ('empty', 'forward', 'train')
SOURCES = (('compiled', 'nnx'), ('pure', 'nnx'), ('pure', 'equinox'), ('pure', 'linen'))


def steps(depths: tuple[int, ...], progress: Progress) -> list[dict]:
  jobs = [(s, d, *source) for s in SCENARIOS for d in depths for source in SOURCES]
  results = []
  task = progress.add_task('steps', total=len(jobs))
  for scenario, depth, twin, library in jobs:
    progress.update(task, description=f'{scenario:<8} depth {depth:<3} {library:<8} {twin}')
    result = measuring.on_twin(
      twin, 'libraries.py', '--library', library, '--scenario', scenario, '--depth', str(depth)
    )
    results.append(
      {'scenario': scenario, 'depth': depth, 'library': library, 'twin': twin, **result}
    )
    progress.advance(task)
  return results


def rows(results: list[dict]):
  """(scenario, depth, leaves, who, best, median, worst, ratio of the bests to the floor)."""
  for one in results:
    if 'error' in one:
      yield one['scenario'], one['depth'], 0, f'{one["library"]}: {one["error"]}', 0, 0, 0, 0
      continue
    floor = one['us']['floor']['best']
    who = f'{one["library"]} {one["twin"]}' if one['library'] == 'nnx' else one['library']
    for name, us in one['us'].items():
      yield (
        one['scenario'], one['depth'], one['leaves'], f'{who}: {name}',
        us['best'], us['median'], us['worst'], us['best'] / floor,
      )  # fmt: skip


def table(results: list[dict]) -> Table:
  shown = Table(title='microseconds a step; ratio: best to the best of the floor beside it')
  for name in ('scenario', 'depth', 'leaves', 'step', 'best', 'median', 'worst', 'ratio'):
    shown.add_column(name, justify='left' if name in ('scenario', 'step') else 'right')
  for scenario, depth, leaves, who, best, median, worst, ratio in rows(results):
    cells = [f'{x:.1f}' for x in (best, median, worst)]
    shown.add_row(scenario, str(depth), str(leaves), who, *cells, f'{ratio:.2f}')
  return shown


def look(who: str) -> dict[str, str]:
  """The colour tells the way of calling, the style the twin; other libraries are grey."""
  library, _, way = who.partition(': ')
  if not library.startswith('nnx'):
    return {'color': 'grey', 'linestyle': '-.' if library == 'linen' else ':'}
  ways = ('nnx.jit', 'cached_partial', 'jit_partial', 'graph=False', 'graph_updates=False')
  return {'color': f'C{ways.index(way)}', 'linestyle': '--' if library == 'nnx pure' else '-'}


def draw(results: list[dict], path) -> None:
  import matplotlib

  matplotlib.use('Agg')
  import matplotlib.pyplot as plt

  figure, axes = plt.subplots(1, len(SCENARIOS), figsize=(15, 5), sharey=True)
  for axis, scenario in zip(axes, SCENARIOS):
    lines: dict[str, list] = {}
    for kind, _, leaves, who, _, _, _, ratio in rows(results):
      if kind == scenario and leaves and not who.endswith(': floor'):
        lines.setdefault(who, []).append((leaves, ratio))
    for who, points in lines.items():
      axis.plot(*zip(*sorted(points)), marker='o', markersize=3, label=who, **look(who))
    axis.axhline(1, color='black', linewidth=1)
    axis.set(xscale='log', yscale='log', title=scenario, xlabel='arrays')
    axis.xaxis.set_minor_formatter('')
  axes[0].set_ylabel('time of a step / time of its floor')
  axes[-1].legend(fontsize=7, loc='upper left', bbox_to_anchor=(1, 1))
  figure.tight_layout()
  figure.savefig(path, dpi=120)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--depths', type=int, nargs='+', default=DEPTHS)
  parser.add_argument('--quick', action='store_true', help='steps only, at two depths')
  options = parser.parse_args()
  console = Console(width=110)
  with Progress(console=console) as progress, measuring.programs_kept():
    results = steps((1, 6) if options.quick else tuple(options.depths), progress)
    rest = {} if options.quick else others.measure(progress)
  console.print(table(results), *others.tables(rest))
  measuring.RESULTS.mkdir(exist_ok=True)
  everything = {'machine': platform.platform(), 'results': results, 'others': rest}
  measuring.emit(everything, str(measuring.RESULTS / 'bench.json'))
  draw(results, measuring.RESULTS / 'bench.png')
  others.draw(rest, measuring.RESULTS / 'walks.png')
  console.print(f'{measuring.RESULTS}: bench.json, bench.png, walks.png')
  failed = [r for r in results if 'error' in r] + others.errors(rest)
  if failed:
    raise SystemExit('some measurements failed: ' + json.dumps(failed))


if __name__ == '__main__':
  main()
