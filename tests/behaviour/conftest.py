"""Runs each test that takes `say` on both twins and compares what it said.

Such a test is a plain function: it asserts what it likes and says what can be observed. It runs in
a process of the twin that its id names, `[compiled]` or `[pure]`; the two processes live as long
as the tests do. The compiled twin's transcript has to be the pure one's, line for line.
"""

import difflib
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import threading

import pytest

WORKER = pathlib.Path(__file__).with_name('worker.py')
SWITCH = {'compiled': '1', 'pure': '0'}
PATIENCE = 300  # seconds that one test may take


class Twin:
  """A worker process, started on first use and again after a crash."""

  def __init__(self, name: str):
    self.name, self.process, self.log = name, None, tempfile.TemporaryFile()

  def start(self) -> None:
    env = {
      **os.environ,
      'FLAX_NNX_FAST': SWITCH[self.name],
      'JAX_PLATFORMS': 'cpu',
      'XLA_FLAGS': '--xla_force_host_platform_device_count=4',
    }
    self.process = subprocess.Popen(
      [sys.executable, '-P', str(WORKER)],
      env=env,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=self.log,
    )
    loaded = pickle.load(self.process.stdout)
    assert loaded == self.name, f'the worker runs the {loaded} twin, not the {self.name} one'

  def run(self, *request) -> 'Outcome':
    if self.process is None:
      self.start()
    alarm = threading.Timer(PATIENCE, self.process.kill)
    alarm.start()
    try:
      pickle.dump(request, self.process.stdin)
      self.process.stdin.flush()
      return pickle.load(self.process.stdout)
    except (EOFError, BrokenPipeError):
      status, self.process = self.process.wait(), None
      self.log.seek(0)
      return [], f'the worker died with status {status}:\n{self.log.read().decode()[-4000:]}'
    finally:
      alarm.cancel()


TWINS = {name: Twin(name) for name in SWITCH}
Outcome = tuple[list[str], str | None]  # what was said, and the error that it ended with
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
    if twin.process is not None:
      twin.process.stdin.close()
      twin.process.wait()
