"""Runs each test that takes `say` on both twins and compares what it said.

Such a test is a plain function: it asserts what it likes and says what can be observed. It runs in
a process of the twin that its id names, `[compiled]` or `[pure]`; the two processes live as long
as the tests do. The compiled twin's transcript has to be the pure one's, line for line.
"""

import difflib

import pytest
from twins import SWITCH, Outcome, Twin

TWINS = {name: Twin(name) for name in SWITCH}
PURE: dict[tuple, Outcome] = {}  # of the pure twin


def pytest_generate_tests(metafunc):
  if 'say' in metafunc.fixturenames:
    metafunc.parametrize('twin', list(SWITCH), indirect=True)


@pytest.fixture
def twin(request):
  return request.param


@pytest.fixture
def say(twin):
  """Appends its words as a line to the transcript."""


def outcome(item, twin: str) -> Outcome:
  """Runs a test on `twin`; on the pure one, once for both of its ids."""
  arguments = {k: v for k, v in item.callspec.params.items() if k != 'twin'}
  if twin != 'pure':
    return TWINS[twin].run(str(item.path), item.originalname, arguments)
  key = (item.path, item.originalname, item.callspec.id.replace('compiled', 'pure'))
  if key not in PURE:
    PURE[key] = TWINS[twin].run(str(item.path), item.originalname, arguments)
  return PURE[key]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
  if 'say' not in pyfuncitem.fixturenames:
    return None
  lines, error = outcome(pyfuncitem, pyfuncitem.callspec.params['twin'])
  if error:
    pytest.fail(error, pytrace=False)
  reference, failed = outcome(pyfuncitem, 'pure')
  if lines != reference or failed:
    diff = difflib.unified_diff(
      [*reference, failed or ''], [*lines, ''], 'pure', 'compiled', lineterm=''
    )
    pytest.fail('the twins differ:\n' + '\n'.join(diff), pytrace=False)
  return True


def pytest_sessionfinish():
  for twin in TWINS.values():
    twin.stop()
