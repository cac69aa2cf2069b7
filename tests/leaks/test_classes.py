"""Classes that come and go leave no more behind than in upstream's hands."""

import os
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).with_name('classes.py')
COUNT = 2000   # classes that the script makes
KEPT = 128   # NamedTuple classes that the compiled walk may remember
EXTRA = 16   # blocks for each registered class that it may add to upstream's


def measured(kind: str, switch: str) -> tuple[float, int]:
  """Blocks that stay for each class, and how many classes are gone."""
  env = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'FLAX_NNX_FAST': switch}
  done = subprocess.run(
    [sys.executable, '-P', str(SCRIPT), kind], env=env, capture_output=True, text=True
  )
  assert done.returncode == 0, done.stdout + done.stderr
  _, blocks, _, freed = done.stdout.split()
  return float(blocks), int(freed)


@pytest.mark.leaks
@pytest.mark.parametrize('kind', ['value', 'named_tuple', 'list_subclass', 'metaclass'])
def test_unregistered_classes_go(kind):
  blocks, freed = measured(kind, '1')
  assert blocks < 2
  assert freed >= COUNT - KEPT


@pytest.mark.leaks
@pytest.mark.parametrize('kind', ['attribute_names', 'states'])
def test_names_go(kind):
  """As far as Python lets them go: 3.12 keeps every interned string."""
  assert measured(kind, '1')[0] < measured(kind, '0')[0] + 1


@pytest.mark.leaks
@pytest.mark.parametrize('kind', ['module', 'variable'])
def test_registered_classes_stay_as_upstream_keeps_them(kind):
  assert measured(kind, '1')[0] < measured(kind, '0')[0] + EXTRA
