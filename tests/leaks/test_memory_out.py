"""The compiled walks with every allocation failing in turn, each in a process of its own."""

import os
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).with_name('memory_out.py')
WALKS = ('flatten', 'flatten_without_paths', 'unflatten', 'copy', 'equal', 'refmap')


@pytest.mark.leaks
@pytest.mark.parametrize('walk', WALKS)
def test_no_crash(walk):
  pytest.importorskip('_testcapi', reason="this Python comes without CPython's own test hooks")
  env = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'FLAX_NNX_FAST': '1'}
  done = subprocess.run(
    [sys.executable, '-X', 'faulthandler', '-P', str(SCRIPT), walk],
    env=env, capture_output=True, text=True,
  )
  assert done.returncode == 0, done.stdout + done.stderr
