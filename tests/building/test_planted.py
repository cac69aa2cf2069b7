"""The faults that `make planted` plants are changes of the sources as they are."""

import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / 'tests' / 'planted'))
import run as planting  # noqa: E402


@pytest.mark.parametrize('name', planting.FAULTS)
def test_fits(name):
  fault = planting.FAULTS[name]
  source = (ROOT / planting.SOURCES / fault['file']).read_text()
  assert planting.planted(source, fault) != source


def test_other_source():
  with pytest.raises(ValueError, match='has this 0 times, not once: x'):
    planting.planted('y', {'file': 'a.pyx', 'was': 'x', 'becomes': 'y'})


def test_difference():
  said = 'F\nthe twins differ in [1]:\n--- \n+++ \n@@ -1 +1 @@\n same\n-one\n+two\nother\n'
  assert planting.difference(said) == ['-one', '+two']
  assert planting.difference('2 passed\n') == []
