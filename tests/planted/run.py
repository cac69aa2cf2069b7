"""Plants faults in a copy of the sources, and sees whether the random programs find them.

  python tests/planted/run.py [--programs 800] [--seed 0] [fault ...]

Each fault of faults.toml is built by itself. Prints the first difference that the twins then show, and a
table at the end; ends with 1 where a fault passed. A minute or two for each, five where one passes.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tomllib

HERE = pathlib.Path(__file__).parent
SOURCES = pathlib.Path('flax/nnx/fast')
FAULTS = tomllib.loads((HERE / 'faults.toml').read_text())
LINES = 12  # of a difference


def planted(text: str, fault: dict) -> str:
  """The source with the fault in it; ValueError where it is not the one that the fault is made for."""
  for was, becomes in ((fault['was'], fault['becomes']), *fault.get('and', ())):
    if text.count(was) != 1:
      raise ValueError(f'{fault["file"]} has this {text.count(was)} times, not once: {was}')
    text = text.replace(was, becomes)
  return text


def copied(repository: pathlib.Path, copy: pathlib.Path) -> None:
  """The tracked files as they are now; what was built in the copy stays."""
  names = subprocess.run(
    ['git', 'ls-files', '-z'], cwd=repository, check=True, capture_output=True, text=True
  ).stdout
  for name in filter(None, names.split('\0')):
    source, target = repository / name, copy / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists() or target.read_bytes() != source.read_bytes():
      shutil.copy(source, target)


def make(copy: pathlib.Path, target: str, **settings) -> subprocess.CompletedProcess:
  return subprocess.run(
    ['make', '--no-print-directory', target, f'PYTHON={sys.executable}'],
    cwd=copy,
    env={**os.environ, **settings},
    capture_output=True,
    text=True,
  )


def difference(said: str) -> list[str]:
  """The lines of pytest's output from where the twins differ; none where they did not."""
  lines = said.splitlines()
  starts = [i for i, line in enumerate(lines) if line.startswith('the twins differ')]
  return [line for line in lines[starts[0] :] if line[:1] in '+-'][2:] if starts else []


def tried(copy: pathlib.Path, fault: dict, programs: int, seed: int) -> list[str]:
  """The difference that a fault makes."""
  source = copy / SOURCES / fault['file']
  sound = source.read_text()
  source.write_text(planted(sound, fault))
  try:
    built = make(copy, 'develop')
    if built.returncode:
      raise RuntimeError(built.stdout + built.stderr)
    fuzz = {'FUZZ_PROGRAMS': str(programs), 'FUZZ_SEED': str(seed), 'FUZZ_SHORTEN': '0'}
    return difference(make(copy, 'fuzz-develop', **fuzz).stdout)
  finally:
    source.write_text(sound)


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('faults', nargs='*', default=list(FAULTS))
  parser.add_argument('--programs', type=int, default=800)
  parser.add_argument('--seed', type=int, default=0)
  options = parser.parse_args()
  copy = HERE.parents[1] / 'build' / 'planted'
  copied(HERE.parents[1], copy)
  passed = []
  for name in options.faults:
    found = tried(copy, FAULTS[name], options.programs, options.seed)
    print(f'{name}: {"found" if found else "PASSED"} ({FAULTS[name]["seen"]})', flush=True)
    print(*[f'  {line[:160]}' for line in found[:LINES]], sep='\n', flush=True)
    passed += [] if found else [name]
  print(f'{len(options.faults)} planted, {len(options.faults) - len(passed)} found', *passed)
  return 1 if passed else 0


if __name__ == '__main__':
  sys.exit(main())
