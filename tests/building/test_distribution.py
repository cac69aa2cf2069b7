"""The installed distribution: what it says of itself and what it holds."""

import importlib.metadata
import subprocess
import sys

import flax
from packaging.requirements import Requirement

from fork import REVISION, pin

DISTRIBUTION = importlib.metadata.distribution('flax')


def test_version():
  release = pin.current().version
  assert DISTRIBUTION.version == f'{release}+fast.{REVISION}'
  assert flax.__version__ == release
  assert Requirement(f'flax=={release}').specifier.contains(DISTRIBUTION.version)


def test_pip_is_content():
  pip = [sys.executable, '-m', 'pip', '--disable-pip-version-check']
  assert (
    'No broken requirements' in subprocess.run([*pip, 'check'], capture_output=True, text=True).stdout
  )
  asked = f'flax=={pin.current().version}'
  done = subprocess.run([*pip, 'install', '--no-index', asked], capture_output=True, text=True)
  assert f'already satisfied: {asked}' in done.stdout


def test_requirements_and_licences():
  requires = DISTRIBUTION.requires or []
  assert any(r.startswith('jax>=') for r in requires) and any(
    'extra == "testing"' in r for r in requires
  )
  assert {'testing', 'docs', 'dev'} <= set(DISTRIBUTION.metadata.get_all('Provides-Extra'))
  carried = DISTRIBUTION.metadata.get_all('License-File')
  assert sorted(carried) == ['LICENSE', 'NOTICE', 'upstream/AUTHORS', 'upstream/LICENSE']


def test_modules_and_sources():
  names = {str(file) for file in DISTRIBUTION.files or []}
  if not any(name.startswith('flax/') for name in names):
    return  # an editable installation lists no files
  for module in ('graph_fast', 'state_fast', 'fast/flatten'):
    assert f'flax/nnx/{module}.pyx' in names
    assert any(name.startswith(f'flax/nnx/{module}.') and name.endswith('.so') for name in names)
  assert not any(name.endswith('.c') for name in names)
  assert {'flax/py.typed', 'flaxlib_src/README.md'} <= names
