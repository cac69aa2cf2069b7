"""The build in an environment of its own, as `pip install .` makes it: pip puts there what
pyproject.toml names, and nothing else."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from fork import REVISION, fetch, pin

ROOT = pathlib.Path(__file__).resolve().parents[2]
PRODUCTS = ('build', 'dist', '.git', '.venv', '*.egg-info', '*.so', '__pycache__', 'results')


@pytest.mark.slow
def test_upstream_is_fetched_in_isolation(tmp_path):
  """The build's tools are not the installing environment's: its pip cannot be seen from there."""
  tree = shutil.copytree(ROOT, tmp_path / 'fork', ignore=shutil.ignore_patterns(*PRODUCTS))
  env = {name: value for name, value in os.environ.items() if name != fetch.WHEEL}
  command = ['-m', 'pip', 'install', '--dry-run', '--no-deps', '--ignore-installed', str(tree)]
  done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True)
  assert f'flax-{pin.current().version}+fast.{REVISION}' in done.stdout, done.stderr
