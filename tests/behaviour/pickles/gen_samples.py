"""Writes the pickles that the tests read: `python -m pickles.gen_samples` in `tests/behaviour`.

The flax that is installed is the maker: `upstream`, or `fork` where the compiled twin is loaded.
Samples lie in `samples/RELEASE/MAKER/SUBJECT.PROTOCOL`; those that hold byte code end with the
Python that wrote them, and only those are written again by a second Python (`--code-only`).
"""
import argparse
import importlib.util
import pathlib
import pickle
import sys

import cloudpickle
import flax
from pickles.subjects import SUBJECTS, Subject

SAMPLES = pathlib.Path(__file__).with_name('samples')


def maker() -> str:
  if importlib.util.find_spec('flax.nnx.graph_fast') is None:
    return 'upstream'
  from flax.nnx import graph_fast
  if graph_fast.twin() != 'compiled':
    raise SystemExit('This is the fork with the compiled twin switched off; samples come from '
                     'upstream itself or from the compiled twin. Unset FLAX_NNX_FAST.')
  return 'fork'


def dump(value, protocol) -> bytes:
  if protocol == 'cloudpickle':
    return cloudpickle.dumps(value)
  return pickle.dumps(value, protocol)


def python_tag() -> str:
  return f'cp{sys.version_info.major}{sys.version_info.minor}'


def file_name(name: str, subject: Subject, protocol) -> str:
  return f'{name}.{protocol}' + (f'.{python_tag()}' if subject.holds_code else '')


def folder(made_by: str) -> pathlib.Path:
  return SAMPLES / flax.__version__ / made_by


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--code-only', action='store_true', help='only the samples with byte code')
  code_only = parser.parse_args().code_only
  target = folder(maker())
  target.mkdir(parents=True, exist_ok=True)
  for name, subject in SUBJECTS.items():
    if subject.holds_code or not code_only:
      for protocol in subject.protocols:
        path = target / file_name(name, subject, protocol)
        path.write_bytes(dump(subject.make(), protocol))
  print(f'{len(list(target.iterdir()))} samples in {target}')


if __name__ == '__main__':
  main()
