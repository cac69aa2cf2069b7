"""Graphs that have no end as pytrees. Each twin has a process of its own, which the errors wear out."""

import os
import subprocess
import sys

from twins import SWITCH

SCRIPT = """
import jax
from flax import nnx

class Loop(nnx.Module):
  pass

loop, short = Loop(), Loop()
loop.me = loop
for use in (jax.tree.leaves, jax.tree.structure, lambda x: jax.tree.map(abs, x)) * 2:
  try:
    use(loop)
  except RecursionError as error:
    print(error)
print(nnx.split(loop)[0], jax.tree.leaves(short))
"""


def test_a_cycle_as_a_pytree():
  """jax keeps the levels that it took: what is left to the program has to be what upstream leaves."""
  said = {}
  for twin, switch in SWITCH.items():
    env = {**os.environ, 'FLAX_NNX_FAST': switch, 'JAX_PLATFORMS': 'cpu'}
    said[twin] = subprocess.run(
      [sys.executable, '-P', '-c', SCRIPT], env=env, capture_output=True, text=True, timeout=300
    )
  one, other = said.values()
  assert one.stdout.count('maximum recursion depth') == 6, one.stderr
  assert (one.stdout, one.returncode) == (other.stdout, other.returncode), other.stderr
