"""What the build runs: every tool by hash, and of a version that pyproject.toml allows."""

import tomllib

import pytest

from fork import pin

PINS = {p.requirement.name: p for p in pin.read(pin.ROOT / 'fork' / 'tools.txt')}
WANTED = tomllib.loads((pin.ROOT / 'pyproject.toml').read_text())['build-system']['requires']


@pytest.mark.parametrize('name', PINS)
def test_by_hash(name):
  assert all(len(digest) == 64 for digest in PINS[name].hashes) and PINS[name].hashes


@pytest.mark.parametrize('wanted', WANTED)
def test_versions(wanted):
  requirement = pin.Requirement(wanted)
  if requirement.name != 'pip':  # which each Python brings along
    assert requirement.specifier.contains(PINS[requirement.name].version)
