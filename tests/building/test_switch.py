"""The switch, both ways, and a twin that does not load: an error, never a silent slow path."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

CODE = '''
from flax.nnx import graph_fast, graphlib
print(graph_fast.twin(), type(graphlib._graph_flatten).__name__)
'''


def run(code, **env):
  env = {**os.environ, 'JAX_PLATFORMS': 'cpu', **env}
  env = {name: value for name, value in env.items() if value is not None}
  return subprocess.run(
    [sys.executable, '-P', '-c', code], env=env, capture_output=True, text=True, cwd='/'
  )


@pytest.mark.parametrize(
  ('setting', 'said'),
  [
    ('1', 'compiled cython_function_or_method'),
    ('0', 'pure function'),
    (None, 'compiled cython_function_or_method'),
  ],
)
def test_setting(setting, said):
  assert run(CODE, FLAX_NNX_FAST=setting).stdout.strip() == said


def test_other_settings_are_refused():
  assert "FLAX_NNX_FAST='yes' is neither 0 (pure Python) nor 1" in run(CODE, FLAX_NNX_FAST='yes').stderr


@pytest.fixture
def broken(tmp_path):
  """A copy of the installed package whose compiled twin of graphlib is no extension module."""
  import flax

  shutil.copytree(pathlib.Path(flax.__file__).parent, tmp_path / 'flax')
  (extension,) = [p for p in (tmp_path / 'flax/nnx').glob('graph_fast*.so')]
  extension.write_bytes(b'not an extension module')
  return str(tmp_path)


def test_a_twin_that_does_not_load(broken):
  failed = run('import flax.nnx', PYTHONPATH=broken)
  assert failed.returncode
  assert 'flax.nnx.graph_fast, the compiled twin of flax.nnx.graphlib, does not load' in failed.stderr
  assert 'Reinstall this build of flax for this Python, or set FLAX_NNX_FAST=0' in failed.stderr


def test_the_switch_leaves_a_broken_twin_out(broken):
  done = run(
    'from flax import nnx; print(len(nnx.split(nnx.Linear(1, 1, rngs=nnx.Rngs(0)))))',
    PYTHONPATH=broken,
    FLAX_NNX_FAST='0',
  )
  assert done.stdout.strip() == '2', done.stderr
