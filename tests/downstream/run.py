"""Runs the suites of projects that use flax.nnx, under upstream and under this, and compares each test.

  python tests/downstream/run.py WHEEL [project ...]

The wheel is one for this Python. Each project of projects.toml gets two environments in .venv/, with
the same releases of everything but flax; its suite comes from its sdist on PyPI, verified by hash. Ends
with 1 where a test passes under upstream and not under this. Minutes for each project, most of them
spent installing.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = str(ROOT), str(HERE.parent)

import reports  # noqa: E402
from packaging.requirements import Requirement  # noqa: E402

from fork import fetch, pin  # noqa: E402

PROJECTS = tomllib.loads((HERE / 'projects.toml').read_text())
LINE = '{}.{}'.format(*sys.version_info)
PIP = ['-m', 'pip', '--disable-pip-version-check', '--quiet']
ARCHIVES = 'FLAX_FAST_DOWNSTREAM'  # names a folder of such archives, for machines without an index
PATIENCE = 1800  # seconds that a suite may take


def new_environment(name: str) -> str:
  """The Python of an environment in .venv/, emptied if it was there."""
  folder = ROOT / '.venv' / name
  subprocess.run([sys.executable, '-m', 'venv', '--clear', str(folder)], check=True)
  return str(folder / 'bin' / 'python')


def frozen(python: str) -> str:
  """What an environment has, but for flax."""
  lines = subprocess.check_output([python, *PIP, 'freeze'], text=True).splitlines()
  return '\n'.join(line for line in lines if '==' in line and not line.startswith('flax==')) + '\n'


def sdist(project: str, wanted: dict, folder: pathlib.Path) -> pathlib.Path:
  """The project's archive; pip asks it for its requirements with the tools that it names."""
  requirement = f'{project}=={wanted["version"]}'
  pinned = pin.Pin(Requirement(requirement), (wanted['sha256'],), f'{requirement} --hash=sha256:{wanted["sha256"]}')
  return fetch.sdist(pinned, folder, ARCHIVES, isolated=True)


def environments(project: str, wanted: dict, archive: pathlib.Path, wheel: str) -> dict[str, str]:
  """Two Pythons, with upstream and with this."""
  release = wheel_release(wheel)
  upstream = new_environment(f'downstream-{project}-upstream-{LINE}')
  alone = wanted.get('alone', False)
  itself = [] if alone else [str(archive)]
  subprocess.run(
    [upstream, *PIP, 'install', *itself, f'flax=={release}', 'pytest', 'pytest-xdist', *wanted['needs']],
    check=True,
  )
  if alone:
    subprocess.run([upstream, *PIP, 'install', '--no-deps', str(archive)], check=True)
  fork = new_environment(f'downstream-{project}-fork-{LINE}')
  with tempfile.NamedTemporaryFile('w', suffix='.txt') as same:
    same.write(frozen(upstream))
    same.flush()
    subprocess.run([fork, *PIP, 'install', '-r', same.name, '--no-deps', str(archive), wheel], check=True)
  return {'upstream': upstream, 'fork': fork}


def wheel_release(wheel: str) -> str:
  """The upstream release that a wheel is of: '0.12.12' of 'flax-0.12.12+fast.1-cp313-...'."""
  return pathlib.Path(wheel).name.split('-')[1].split('+')[0]


def run_suite(python: str, wanted: dict, tests: pathlib.Path) -> dict[str, str]:
  """test -> passed, skipped or failed."""
  report = tests / f'{pathlib.Path(python).parents[1].name}.xml'
  left_out = ['-k', wanted['left_out']] if 'left_out' in wanted else []
  subprocess.run(
    [python, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-n', '2', f'--junitxml={report}', *left_out,
     *wanted['tests']],
    cwd=tests, env={**os.environ, 'JAX_PLATFORMS': 'cpu'}, timeout=PATIENCE,
    stdout=report.with_suffix('.log').open('w'), stderr=subprocess.STDOUT,
  )  # fmt: skip
  if not report.exists():
    raise RuntimeError(report.with_suffix('.log').read_text()[-3000:])
  return dict(reports.outcomes(report))


def tried(project: str, wheel: str) -> list[str]:
  """The tests that upstream passes and this does not; prints a line of counts."""
  wanted = PROJECTS[project]
  if LINE not in wanted.get('pythons', [LINE]):
    print(f'{project} {wanted["version"]}: for Python {", ".join(wanted["pythons"])} only')
    return []
  with tempfile.TemporaryDirectory() as scratch:
    archive = sdist(project, wanted, pathlib.Path(scratch))
    pythons = environments(project, wanted, archive, wheel)
    with tarfile.open(archive) as tar:
      tar.extractall(scratch, filter='data')
    tests = pathlib.Path(scratch, archive.name.removesuffix('.tar.gz'))
    found = {name: run_suite(python, wanted, tests) for name, python in pythons.items()}
  for name, each in found.items():
    counts = {kind: list(each.values()).count(kind) for kind in ('passed', 'skipped', 'failed')}
    print(f'{project} {wanted["version"]} ({name}): {counts}', flush=True)
  return [
    test for test, kind in found['upstream'].items()
    if kind == 'passed' and found['fork'].get(test) != 'passed'
  ]  # fmt: skip


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('wheel')
  parser.add_argument('projects', nargs='*', default=list(PROJECTS))
  options = parser.parse_args()
  lost = {project: tried(project, options.wheel) for project in options.projects}
  for project, tests in lost.items():
    for test in tests:
      print(f'{project}: passes under upstream only: {test}')
  return 1 if any(lost.values()) else 0


if __name__ == '__main__':
  sys.exit(main())
