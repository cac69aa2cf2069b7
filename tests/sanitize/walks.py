"""The loops of tests/leaks, a few rounds of each, for tools that make a process thirty times slower."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / 'leaks'))
import loops  # noqa: E402

node = loops.Root()
for name, loop in loops.LOOPS.items():
  for _ in range(4):
    loop(node)
  print(name, flush=True)
