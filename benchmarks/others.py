"""What `bench.py` measures beside steps: walks, transforms, real models, meshes, steadiness.

Each is a script of its own, run on both twins.
"""

import typing as tp

import measuring
from rich.progress import Progress
from rich.table import Table

EIGHT = {'XLA_FLAGS': '--xla_force_host_platform_device_count=8'}
FOUR = {'XLA_FLAGS': '--xla_force_host_platform_device_count=4'}
# Ten thousand steps of the pure twin would take minutes.
GENERAL = {'compiled': (), 'pure': ('--general',)}
JOBS: dict[str, tp.Callable[[str], dict]] = {
  'walks': lambda twin: measuring.on_twin(twin, 'walks.py'),
  'transforms': lambda twin: measuring.on_twin(twin, 'transforms.py'),
  'models': lambda twin: measuring.on_twin(twin, 'models.py'),
  'eight devices': lambda twin: measuring.on_twin(twin, 'mesh.py', **EIGHT),
  'two processes of four devices': lambda twin: measuring.on_twin_joined(
    twin, 'mesh.py', 2, '--depth', '1', '--repeats', '5', **FOUR
  ),
  # It times a first call, with its compiling.
  'steadiness': lambda twin: measuring.on_twin(
    twin, 'steadiness.py', *GENERAL[twin], JAX_ENABLE_COMPILATION_CACHE='false'
  ),
}
FLOORS = ('floor', 'jax.jit(leaves)')
DRAWN = ('split', 'merge', 'update', 'tree.map(model)')


def measure(progress: Progress) -> dict[str, dict[str, dict]]:
  """For each job and twin what its script gives."""
  task = progress.add_task('others', total=len(JOBS) * len(measuring.SWITCH))
  results: dict[str, dict[str, dict]] = {}
  for name, job in JOBS.items():
    results[name] = {}
    for twin in measuring.SWITCH:
      progress.update(task, description=f'{name} ({twin})')
      results[name][twin] = job(twin)
      progress.advance(task)
  return results


def errors(results: dict[str, dict[str, dict]]) -> list[dict]:
  return [
    {'job': name, 'twin': twin, **one}
    for name, twins in results.items()
    for twin, one in twins.items()
    if 'error' in one
  ]


def sections(name: str, result: dict) -> dict[str, dict[str, float]]:
  """Title -> call -> microseconds."""
  if name == 'steadiness':
    return {'calls by the general way': result['general']}
  if name == 'walks':
    return {f'walks, {r["leaves"]} arrays': r['us'] for r in result['depths'].values()}
  if name == 'models':
    return {f'{model}, {r["leaves"]} arrays': r['us'] for model, r in result['models'].items()}
  best = {c: us if isinstance(us, float) else us['best'] for c, us in result['us'].items()}
  return {f'{name}, {result["leaves"]} arrays': best}


def tables(results: dict[str, dict[str, dict]]) -> tp.Iterator[Table]:
  for name, twins in results.items():
    if any('error' in one for one in twins.values()):
      continue
    pure, compiled = sections(name, twins['pure']), sections(name, twins['compiled'])
    for title in compiled:
      yield beside(title, pure[title], compiled[title])
    if name == 'steadiness':
      yield steadiness(twins['compiled'])


def beside(title: str, pure: dict[str, float], compiled: dict[str, float]) -> Table:
  """Both twins' microseconds, and their ratios to the floor where the section has one."""
  table = Table(title=f'{title}: microseconds a call')
  floor = next((call for call in FLOORS if call in compiled), None)
  table.add_column('call')
  for heading in ('pure', 'compiled', 'faster', *(['x floor, pure', 'compiled'] if floor else [])):
    table.add_column(heading, justify='right')
  for call in compiled:
    cells = [f'{pure[call]:.1f}', f'{compiled[call]:.1f}', f'{pure[call] / compiled[call]:.2f}']
    if floor:
      cells += [f'{us[call] / us[floor]:.2f}' for us in (pure, compiled)]
    table.add_row(call, *cells)
  return table


def steadiness(result: dict) -> Table:
  table = Table(title='what an average hides; the compiled twin')
  for heading in ('call', 'collections', 'median us', '99.9 %', 'slowest', 'two threads'):
    table.add_column(heading, justify='left' if heading == 'call' else 'right')
  for call, threads in result['threads'].items():
    us = result['slowest'].get(call, {})
    table.add_row(
      call, str(result['collections'].get(call, '')),
      *(f'{us[key]:.0f}' if us else '' for key in ('median', '99.9 %', 'slowest')),
      f'{threads["at once"] / threads["one after the other"]:.2f} x in turn',
    )  # fmt: skip
  return table


def draw(results: dict[str, dict[str, dict]], path) -> None:
  """Microseconds of the walks against the number of arrays, both twins."""
  twins = results.get('walks', {})
  if not twins or any('error' in one for one in twins.values()):
    return
  import matplotlib

  matplotlib.use('Agg')
  import matplotlib.pyplot as plt

  figure, axes = plt.subplots(figsize=(7, 4.5), layout='constrained')
  for color, call in enumerate(DRAWN):
    for twin, style in (('pure', '--'), ('compiled', '-')):
      depths = twins[twin]['depths'].values()
      axes.loglog(
        [r['leaves'] for r in depths], [r['us'][call] for r in depths], style,
        color=f'C{color}', marker='o', markersize=3, label=f'{call}, {twin}',
      )  # fmt: skip
  axes.set(xlabel='arrays', ylabel='microseconds a call', title='Walks')
  axes.legend(fontsize=7)
  figure.savefig(path, dpi=120)
