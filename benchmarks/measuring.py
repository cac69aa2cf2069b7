"""Timing, and running a script of this folder on either twin in a process of its own."""

import contextlib
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import typing as tp

import jax

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE / 'results'
SWITCH = {'compiled': '1', 'pure': '0'}
Call = tp.Callable[[], tp.Any]


def best_of_rounds(calls: dict[str, Call], rounds: int = 7, budget: float = 0.05) -> dict[str, float]:
  """Microseconds a call: the best of what `rounds_of` measures."""
  return {name: us['best'] for name, us in rounds_of(calls, rounds, budget).items()}


def rounds_of(
  calls: dict[str, Call], rounds: int, budget: float = 0.02, repeats: int | None = None
) -> dict[str, dict[str, float]]:
  """Microseconds a call: best, median and worst of the rounds, in which the calls take turns.

  Each call is warmed up first; in a round it repeats for about `budget` seconds, or `repeats` times,
  and only the end of the round waits for the results. Garbage is collected as always.
  """
  taken: dict[str, list[float]] = {name: [] for name in calls}
  counts = {}
  for name, call in calls.items():
    for _ in range(5):
      jax.block_until_ready(call())
    counts[name] = repeats or max(3, int(budget / _timed(call, 3)))
  for _ in range(rounds):
    for name, call in calls.items():
      taken[name].append(_timed(call, counts[name]) * 1e6)
  return {
    name: {'best': min(us), 'median': statistics.median(us), 'worst': max(us)}
    for name, us in taken.items()
  }


def _timed(call: Call, repeats: int) -> float:
  """Seconds a call."""
  start = time.perf_counter()
  for _ in range(repeats):
    result = call()
  jax.block_until_ready(result)
  return (time.perf_counter() - start) / repeats


@contextlib.contextmanager
def programs_kept() -> tp.Iterator[None]:
  """Processes started meanwhile compile what they have in common once: no compiling is timed."""
  before = dict(os.environ)
  with tempfile.TemporaryDirectory() as folder:
    os.environ |= {
      'JAX_COMPILATION_CACHE_DIR': folder,
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
      'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
    }
    try:
      yield
    finally:
      os.environ.clear()
      os.environ |= before


def on_twin(twin: str, script: str, *arguments: str, **settings: str) -> dict:
  """What `script --json -` prints, run on `twin`; {'error': ...} where it fails.

  `settings` are added to the environment.
  """
  return _result(_started(twin, script, *arguments, **settings), twin)


def on_twin_joined(twin: str, script: str, processes: int, *arguments: str, **settings: str) -> dict:
  """The same of the first of several processes, each told how to join the others."""
  with socket.socket() as s:
    s.bind(('localhost', 0))
    port = str(s.getsockname()[1])
  started = [
    _started(twin, script, *arguments, '--join', port, str(rank), str(processes), **settings)
    for rank in range(processes)
  ]
  return [_result(process, twin) for process in started][0]


def _started(twin: str, script: str, *arguments: str, **settings: str) -> subprocess.Popen:
  env = {'JAX_PLATFORMS': 'cpu', **os.environ, **settings, 'FLAX_NNX_FAST': SWITCH[twin]}
  command = [sys.executable, str(HERE / script), *arguments, '--json', '-']
  return subprocess.Popen(
    command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
  )


def _result(process: subprocess.Popen, twin: str) -> dict:
  out, err = process.communicate()
  if process.returncode:
    return {'error': err.strip().splitlines()[-1] if err.strip() else 'no message'}
  result = json.loads(out.splitlines()[-1])
  if result['twin'] != twin:
    return {'error': f'the process ran the {result["twin"]} twin, not the {twin} one'}
  return result


def this_process() -> dict[str, str]:
  """What a result is worth nothing without: the twin and the versions that gave it."""
  import importlib.metadata

  from flax.nnx import graph_fast

  return {
    'twin': graph_fast.twin(),
    'flax': importlib.metadata.version('flax'),
    'jax': jax.__version__,
    'python': sys.version.split()[0],
  }


def emit(result: dict, target: str | None) -> None:
  """Writes a result as JSON to a file, to standard output for '-', or nowhere."""
  if target == '-':
    print(json.dumps(result))
  elif target:
    pathlib.Path(target).write_text(json.dumps(result, indent=1))
