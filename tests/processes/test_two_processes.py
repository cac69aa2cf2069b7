"""Two processes joined by `jax.distributed` on this machine's loopback give what the pure twin gives."""

import os
import pathlib
import socket
import subprocess
import sys

PROGRAM = pathlib.Path(__file__).with_name('program.py')


def free_port() -> int:
  with socket.socket() as s:
    s.bind(('localhost', 0))
    return s.getsockname()[1]


def transcripts(switch: str, folder: pathlib.Path) -> list[str]:
  """What each of the two processes writes."""
  env = {
    **os.environ,
    'FLAX_NNX_FAST': switch,
    'JAX_PLATFORMS': 'cpu',
    'XLA_FLAGS': '--xla_force_host_platform_device_count=2',
  }
  port = str(free_port())
  files = [folder / f'{switch}-{rank}' for rank in '01']
  both = [
    subprocess.Popen(
      [sys.executable, '-P', str(PROGRAM), port, rank, str(file)],
      env=env,
      text=True,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
    )
    for rank, file in zip('01', files)
  ]
  outs = [process.communicate(timeout=300) for process in both]
  for process, (_, err) in zip(both, outs):
    assert process.returncode == 0, err[-3000:]
  return [file.read_text() for file in files]


def test_two_processes(tmp_path):
  assert transcripts('1', tmp_path) == transcripts('0', tmp_path)
