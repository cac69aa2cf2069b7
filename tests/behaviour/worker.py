"""A process of one twin that runs test functions and sends back what they said.

Reads (file, function, arguments) from its standard input, pickled, and writes (transcript, error);
its first message says which twin it runs. Standard output belongs to the messages.
"""

import faulthandler
import importlib.util
import os
import pathlib
import pickle
import sys
import traceback

HERE = pathlib.Path(__file__).resolve().parent


def load(path: str, modules: dict):
  """The test module at `path`, imported once, with the helpers beside it importable."""
  if path not in modules:
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # so that pickle finds the classes in it
    spec.loader.exec_module(module)
    modules[path] = module
  return modules[path]


def run(path: str, name: str, arguments: dict, modules: dict):
  transcript: list[str] = []
  try:
    getattr(load(path, modules), name)(
      say=lambda *words: transcript.append(' '.join(map(str, words))), **arguments
    )
  except BaseException:
    return transcript, traceback.format_exc()
  return transcript, None


def main() -> None:
  faulthandler.enable()
  requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), 'wb')
  os.dup2(2, 1)  # whatever a test prints goes to the log
  sys.path.insert(0, str(HERE))
  from flax.nnx import graph_fast

  pickle.dump(graph_fast.twin(), answers)
  answers.flush()
  modules: dict = {}
  while True:
    try:
      request = pickle.load(requests)
    except EOFError:
      return
    pickle.dump(run(*request, modules), answers)
    answers.flush()


if __name__ == '__main__':
  main()
