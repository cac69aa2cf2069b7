"""Nothing grows over thousands of walks: each loop in a process of its own."""

import os
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).with_name('loops.py')
LOOPS = (
  'split',
  'filters',
  'merge',
  'clone',
  'update',
  'iter_graph',
  'iter_graph_left',
  'find_duplicates',
  'pop',
  'hash',
  'flat',
  'jit',
  'tree',
  'simple',
  'partial',
  'short_lived_tree',
  'short_lived',
  'failing',
  'bad_merge',
)


@pytest.mark.leaks
@pytest.mark.parametrize('name', LOOPS)
def test_loop(name):
  env = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'FLAX_NNX_FAST': '1'}
  done = subprocess.run(
    [sys.executable, '-P', str(SCRIPT), name], env=env, capture_output=True, text=True
  )
  assert done.returncode == 0, done.stdout + done.stderr
