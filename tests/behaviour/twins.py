"""A process of each twin, which runs functions of test modules: see worker.py."""

import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import threading

WORKER = pathlib.Path(__file__).with_name('worker.py')
PROGRAMS = tempfile.TemporaryDirectory()  # compiled ones
SWITCH = {'compiled': '1', 'pure': '0'}
SLOW = hasattr(sys, 'gettotalrefcount') or 'LD_PRELOAD' in os.environ  # a debug build, a sanitizer
PATIENCE = 3000 if SLOW else 300  # seconds that one test may take

Outcome = tuple[list[str], str | None]  # what was said, and the error that it ended with


class Twin:
  """A worker process, started on first use and again after a crash."""

  def __init__(self, name: str, patience: float = PATIENCE):
    self.name, self.patience = name, patience
    self.process, self.log = None, tempfile.TemporaryFile()

  def start(self) -> None:
    env = {
      **os.environ,
      'FLAX_NNX_FAST': SWITCH[self.name],
      'JAX_PLATFORMS': 'cpu',
      'PYTHONHASHSEED': '0',  # an error of upstream's lists the names in a set
      'XLA_FLAGS': '--xla_force_host_platform_device_count=4',
      # Most tests compile what others did: a third of their time.
      'JAX_COMPILATION_CACHE_DIR': PROGRAMS.name,
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
      'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
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

  def stop(self) -> None:
    """Ends the process; the next request starts another."""
    if self.process is not None:
      self.process.stdin.close()
      self.process.wait()
      self.process.stdout.close()
      self.process = None

  def run(self, *request) -> Outcome:
    if self.process is None:
      self.start()
    alarm = threading.Timer(self.patience, self.process.kill)
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

  def said(self, *request) -> list[str]:
    """What it said; AssertionError where it ended with an error."""
    lines, error = self.run(*request)
    assert not error, error
    return lines
