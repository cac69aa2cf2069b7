"""Which upstream release this Python builds, and the hashes that its archives must have."""

import dataclasses
import os
import pathlib
import platform

from packaging.requirements import Requirement

from fork import BuildError

ROOT = pathlib.Path(__file__).resolve().parent.parent
VARIABLE = 'FLAX_FAST_PIN'  # names another pin file


@dataclasses.dataclass(frozen=True)
class Pin:
  """One line of the pin file: a requirement, as pip reads it, with hashes."""

  requirement: Requirement
  hashes: tuple[str, ...]
  line: str

  @property
  def version(self) -> str:
    (specifier,) = self.requirement.specifier
    return specifier.version


def pin_file() -> pathlib.Path:
  return pathlib.Path(os.environ.get(VARIABLE) or ROOT / 'upstream.txt')


def _parse(line: str) -> Pin:
  requirement, *options = line.split('--hash=')
  hashes = tuple(option.strip().removeprefix('sha256:') for option in options)
  return Pin(Requirement(requirement.strip()), hashes, line)


def read(path: pathlib.Path) -> list[Pin]:
  """The pins of a file in pip's requirements format, continued lines joined."""
  try:
    text = path.read_text()
  except OSError as error:
    raise BuildError(f'{path}: the pin file cannot be read ({error}). Check {VARIABLE}.') from error
  lines = text.replace('\\\n', ' ').splitlines()
  return [_parse(line) for line in lines if line.strip() and not line.lstrip().startswith('#')]


def current() -> Pin:
  """The pin whose marker admits the running Python; BuildError where none or several do."""
  path = pin_file()
  fits = [p for p in read(path) if p.requirement.marker is None or p.requirement.marker.evaluate()]
  if len(fits) == 1 and fits[0].hashes:
    return fits[0]
  raise BuildError(
    f'{path} pins {len(fits)} releases with hashes for Python {platform.python_version()}; '
    f'one is needed. Name exactly one with --hash for this Python, or use another Python.'
  )
