"""Gets an archive of the pinned release: from a path that the builder names, or with pip."""

import os
import pathlib
import subprocess
import sys
import tempfile

from fork import BuildError
from fork.archive import verify
from fork.pin import Pin

VARIABLE = 'FLAX_FAST_UPSTREAM'  # a wheel, or a folder that holds it, for machines without an index


def wheel(pin: Pin, folder: pathlib.Path) -> pathlib.Path:
  """The verified wheel of `pin`, kept in `folder`; BuildError where there is none to be had."""
  name = f'{pin.requirement.name}-{pin.version}-py3-none-any.whl'
  local = os.environ.get(VARIABLE)
  if local:
    path = _local(pathlib.Path(local), name)
  else:
    path = folder / name
    if not path.exists():
      _download(pin, folder)
  verify(path, pin.hashes)
  return path


def _local(given: pathlib.Path, name: str) -> pathlib.Path:
  path = given / name if given.is_dir() else given
  if not path.is_file():
    raise BuildError(f'{path} is not there. {VARIABLE} must name {name} or a folder that holds it.')
  return path


def _download(pin: Pin, folder: pathlib.Path) -> None:
  folder.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory() as scratch:
    requirements = pathlib.Path(scratch, 'upstream.txt')
    requirements.write_text(pin.line + '\n')
    command = [
      sys.executable,
      '-m',
      'pip',
      'download',
      '--no-deps',
      '--require-hashes',
      '--only-binary',
      ':all:',
      '--dest',
      str(folder),
      '--requirement',
      str(requirements),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
  if done.returncode:
    raise BuildError(
      f'pip could not get {pin.requirement.name} {pin.version}:\n{done.stderr.strip()}\n'
      f'Make a package index reachable, or set {VARIABLE} to the wheel or to a folder that holds it.'
    )
