"""Random programs over object graphs, run by both twins: each step has to give the same on both.

A short run by default; `make fuzz` sets `FUZZ_SECONDS`, and `FUZZ_SEED` for other programs. With `FUZZ_PROGRAMS` it is
so many of them, however long they take. One that fails is made as short as can be and printed: it belongs into
KNOWN then.
"""

import difflib
import os
import pathlib
import time

import hypothesis
import pytest
from fuzz.world import OPERATIONS
from hypothesis import strategies as st
from twins import SWITCH, Twin

WORLD = str(pathlib.Path(__file__).with_name('world.py'))
SECONDS = float(os.environ.get('FUZZ_SECONDS', '15'))
SEED = int(os.environ.get('FUZZ_SEED', '0'))
AT_MOST = int(os.environ.get('FUZZ_PROGRAMS', '0'))
PROGRAMS = 40  # of each seed
SHORTEN = os.environ.get('FUZZ_SHORTEN') != '0'  # a program that fails, which takes minutes
PHASES = [hypothesis.Phase.generate, *[hypothesis.Phase.shrink] * SHORTEN]
TWINS = {name: Twin(name, patience=60) for name in SWITCH}
KNOWN: dict[str, list] = {  # programs that once found a fault
  'several Variables that hold None': [
    ('set_variable', (0, 0, 11, 0)),
    ('set_variable', (0, 1, 11, 0)),
    ('call_again', (0, 0, 0, 1)),
  ],
  'no array used of a model on a device': [
    ('call_bound', (1, 0, 0, 0)),
    ('disturb', (1, 2, 0, 0)),
    ('call_again', (0, 0, 0, 6)),
    ('call_again', (10, 0, 0, 0)),
    ('disturb', (0, 5, 5, 1)),
  ],
  'a model made where another device was the default': [
    ('disturb', (2, 0, 11, 0)),
    ('make', (0, 0, 0, 0)),
    ('call_bound', (0, 0, 1, 2)),
    ('repeat_elsewhere', (1, 0, 0, 0)),
    ('repeat', (0, 0, 0, 0)),
  ],
  'deleted before a call that traces again': [
    ('call_again', (9, 0, 7, 1)),
    ('disturb', (13, 2, 0, 0)),
    ('disturb', (13, 2, 0, 0)),
  ],
}

numbers = st.tuples(*[st.integers(0, 31)] * 4)
OFTEN = ('call_again', 'call_again', 'call_bound', 'disturb', 'disturb', 'disturb', 'make')
names = st.sampled_from(sorted(OPERATIONS) + [*OFTEN] * 5)
programs = st.lists(st.tuples(names, numbers), min_size=12, max_size=60)
counts = {'programs': 0, 'steps': 0, 'deaths': 0}


def said_of(program) -> dict[str, list[str]]:
  said = {}
  for name, twin in TWINS.items():
    lines, error = twin.run(WORLD, 'run', {'program': program})
    text = (error or '').splitlines()
    said[name] = '\n'.join(lines).splitlines() + text[: 1 if died(text) else None]
  return said


def died(lines: list[str]) -> bool:
  """By jax: it keeps the levels that a RecursionError took; donated twice, an array on several devices crashes it."""
  return any(line.startswith('the worker died') for line in lines)


def compare(program) -> None:
  said = said_of(program)
  counts['programs'] += 1
  counts['steps'] += len(program)
  counts['deaths'] += died(said['pure'])
  if said['pure'] != said['compiled']:
    # Again in new processes: jax's caches, which all programs share, compare with what others left.
    for twin in TWINS.values():
      twin.stop()
    said = said_of(program)
  if said['pure'] != said['compiled']:
    first = next(i for i, (a, b) in enumerate(zip(*said.values(), strict=False)) if a != b)
    diff = difflib.unified_diff(said['pure'][: first + 60], said['compiled'][: first + 60], lineterm='')
    pytest.fail(f'the twins differ in {program}:\n' + '\n'.join(diff), pytrace=False)


@pytest.mark.parametrize('name', KNOWN)
def test_known(name):
  compare(KNOWN[name])


def test_random():
  end, seed = time.monotonic() + SECONDS, SEED
  try:
    while counts['programs'] < AT_MOST if AT_MOST else time.monotonic() < end:
      every = hypothesis.settings(
        max_examples=PROGRAMS,
        deadline=None,
        database=None,
        print_blob=False,
        phases=PHASES,
        suppress_health_check=list(hypothesis.HealthCheck),
      )
      hypothesis.seed(seed)(every(hypothesis.given(programs)(compare)))()
      seed += 1
  finally:
    print(f'seeds {SEED} to {seed - 1}: {counts}', flush=True)


def teardown_module():
  for twin in TWINS.values():
    twin.stop()
