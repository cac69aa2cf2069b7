"""A short run of what `make memory` does at length: nothing grows, and no walk takes more than upstream's."""

import os
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).with_name('long.py')


def lines_of(fast: str, *options: str) -> list[list[str]]:
  env = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'FLAX_NNX_FAST': fast}
  command = [sys.executable, '-P', str(SCRIPT), *options]
  done = subprocess.run(command, env=env, capture_output=True, text=True)
  assert done.returncode == 0, done.stdout + done.stderr
  return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.leaks
def test_growth_and_peaks():
  peaks = {}
  for fast, calls, models in (('1', 2000, 800), ('0', 20, 2)):
    lines = lines_of(fast, f'--calls={calls}', f'--models={models}')
    peaks[fast] = {line[1]: int(line[2]) for line in lines if line[0] == 'peak'}
  assert len(peaks['1']) == 12
  assert {name: value for name, value in peaks['1'].items() if value > peaks['0'][name]} == {}
