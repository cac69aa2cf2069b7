"""Gets an archive of a pinned release: from a path that the builder names, or with pip."""

import os
import pathlib
import subprocess
import sys
import tempfile

from fork import BuildError
from fork.archive import verify
from fork.pin import Pin

# Each names a file, or a folder that holds it, for machines without an index.
WHEEL = 'FLAX_FAST_UPSTREAM'
SDIST = 'FLAX_FAST_UPSTREAM_SDIST'


def wheel(pin: Pin, folder: pathlib.Path) -> pathlib.Path:
  """The verified wheel of `pin`, kept in `folder`; BuildError where there is none to be had."""
  name = f'{pin.requirement.name}-{pin.version}-py3-none-any.whl'
  return _archive(pin, folder, name, WHEEL, ['--only-binary', ':all:'])


def sdist(pin: Pin, folder: pathlib.Path, variable: str = SDIST, isolated: bool = False) -> pathlib.Path:
  """Its verified source archive, which only the tests want. pip asks it for its requirements, with the
  tools that are here, or `isolated` with those that it names."""
  name = f'{pin.requirement.name.replace("-", "_")}-{pin.version}.tar.gz'
  form = ['--no-binary', ':all:'] + ['--no-build-isolation'] * (not isolated)
  return _archive(pin, folder, name, variable, form)


def _archive(pin: Pin, folder: pathlib.Path, name: str, variable: str, form: list[str]) -> pathlib.Path:
  local = os.environ.get(variable)
  if local:
    path = _local(pathlib.Path(local), name, variable)
  else:
    path = folder / name
    if not path.exists():
      _download(pin, folder, variable, form)
  verify(path, pin.hashes)
  return path


def _local(given: pathlib.Path, name: str, variable: str) -> pathlib.Path:
  path = given / name if given.is_dir() else given
  if not path.is_file():
    raise BuildError(f'{path} is not there. {variable} must name {name} or a folder that holds it.')
  return path


def _download(pin: Pin, folder: pathlib.Path, variable: str, form: list[str]) -> None:
  folder.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory() as scratch:
    requirements = pathlib.Path(scratch, 'pinned.txt')
    requirements.write_text(pin.line + '\n')
    command = [sys.executable, '-m', 'pip', 'download', '--no-deps', '--require-hashes', *form]
    command += ['--dest', str(folder), '--requirement', str(requirements)]
    done = subprocess.run(command, capture_output=True, text=True)
  if done.returncode:
    raise BuildError(
      f'pip could not get {pin.requirement.name} {pin.version}:\n{done.stderr.strip()}\n'
      f'Make a package index reachable, or set {variable} to the file or to a folder that holds it.'
    )
