"""Runs upstream's own tests against the installed wheel, on both twins, and checks the counts.

  python tests/upstream/run.py PYTHON [--smoke] [--twin compiled|pure]

PYTHON is an environment with the wheel and what the tests import. The tests come from the pinned
sdist, verified by its hash; nothing else of it is used. What must come out stands in
`expected.toml`, test by test for what is skipped: any other count fails.
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
ROOT = HERE.parent.parent
sys.path[:0] = str(ROOT), str(HERE.parent)

import reports  # noqa: E402

from fork import fetch, pin  # noqa: E402

SUITE = ['nnx', 'flaxlib_test.py']
SMOKE = ['core', 'linen/linen_module_test.py', 'linen/linen_dtypes_test.py']
SWITCH = {'compiled': '1', 'pure': '0'}


def unpack_tests(path: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
  with tarfile.open(path) as tar:
    top = path.name.removesuffix('.tar.gz')
    members = [m for m in tar.getmembers() if m.name.startswith(f'{top}/tests/')]
    tar.extractall(folder, members, filter='data')
  return folder / top / 'tests'


def start(python: str, tests: pathlib.Path, paths: list[str], twin: str, report: pathlib.Path):
  env = {**os.environ, 'FLAX_NNX_FAST': SWITCH[twin], 'JAX_PLATFORMS': 'cpu'}
  return subprocess.Popen(
    [python, '-P', '-m', 'pytest', '-q', '-p', 'no:cacheprovider', f'--junitxml={report}', *paths],
    cwd=tests,
    env=env,
    stdout=open(report.with_suffix('.log'), 'w'),
    stderr=subprocess.STDOUT,
  )


def by_outcome(report: pathlib.Path) -> dict[str, list[str]]:
  """Test names by outcome."""
  found = {'passed': [], 'skipped': [], 'failed': []}
  for name, kind in reports.outcomes(report):
    found[kind].append(name)
  return found


def differences(found: dict[str, list[str]], expected: dict) -> list[str]:
  wrong = [f'failed: {name}' for name in found['failed']]
  if len(found['passed']) != expected['passed']:
    wrong.append(f'{len(found["passed"])} passed, expected {expected["passed"]}')
  unexpected = set(found['skipped']) ^ set(expected['skipped'])
  return wrong + [f'skipped by one only: {name}' for name in sorted(unexpected)]


def check_twin(python: str, twin: str) -> None:
  """The environment has to run the wheel, and the twin that the tests are told of."""
  code = 'import flax; from flax.nnx import graph_fast as g; print(flax.__file__, g.twin())'
  env = {**os.environ, 'FLAX_NNX_FAST': SWITCH[twin], 'JAX_PLATFORMS': 'cpu'}
  done = subprocess.run([python, '-P', '-c', code], env=env, cwd='/', capture_output=True, text=True)
  place, _, loaded = done.stdout.strip().rpartition(' ')
  if loaded != twin or not pathlib.Path(place).is_relative_to(
    pathlib.Path(python).absolute().parent.parent
  ):
    sys.exit(f'{python} does not run the installed wheel as {twin}: {done.stdout}{done.stderr}')


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('python')
  parser.add_argument('--smoke', action='store_true', help='the short part of core and linen')
  parser.add_argument('--twin', choices=SWITCH, action='append')
  parser.add_argument('--record', action='store_true', help='print what came out, as TOML')
  options = parser.parse_args()
  options.python = os.path.abspath(options.python)   # the suites run in another folder
  version = subprocess.check_output(
    [options.python, '-c', 'import sys; print("%d.%d" % sys.version_info[:2])'], text=True
  ).strip()
  markers = [(p, p.requirement.marker) for p in pin.read(pin.pin_file())]
  pinned = next(p for p, m in markers if m is None or m.evaluate({'python_version': version}))
  part = 'smoke' if options.smoke else 'nnx'
  known = tomllib.loads((HERE / 'expected.toml').read_text())
  expected = known.get(pinned.version, {}).get(part, {'passed': 0, 'skipped': []})
  paths = [*(SMOKE if options.smoke else SUITE), *[f'--ignore={path}' for path in expected.get('ignored', [])]]
  twins = options.twin or list(SWITCH)
  with tempfile.TemporaryDirectory() as scratch:
    tests = unpack_tests(fetch.sdist(pinned, ROOT / 'build' / 'upstream'), pathlib.Path(scratch))
    running = {}
    for twin in twins:
      check_twin(options.python, twin)
      report = pathlib.Path(scratch, f'{twin}.xml')
      running[twin] = (
        start(options.python, tests, paths, twin, report),
        report,
      )
    good = all(
      [settle(twin, *run, expected, pinned, part, options.record) for twin, run in running.items()]
    )
  sys.exit(not good)


def settle(twin, process, report, expected, pinned, part, record) -> bool:
  process.wait()
  if not report.exists():
    print(report.with_suffix('.log').read_text()[-3000:])
    return False
  found = by_outcome(report)
  if record:
    print(f'[{pinned.version!r}.{part}]\npassed = {len(found["passed"])}\nskipped = {found["skipped"]}')
  wrong = differences(found, expected)
  if wrong:
    print(report.with_suffix('.log').read_text()[-6000:])
    print(*wrong, sep='\n')
  print(
    f'upstream {pinned.version} {part} ({twin}): '
    f'{len(found["passed"])} passed, {len(found["skipped"])} skipped, {len(found["failed"])} failed'
    f' - {"as expected" if not wrong else "NOT as expected"}',
    flush=True,
  )
  return not wrong


if __name__ == '__main__':
  main()
