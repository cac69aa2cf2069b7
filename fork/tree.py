"""The tree that is built: upstream's files, ours laid over them, the splices added."""

import filecmp
import hashlib
import pathlib
import shutil
import tomllib

from fork import BuildError, archive
from fork.pin import ROOT

OURS = ROOT / 'flax'
TABLE = ROOT / 'fork' / 'splices.toml'
SOURCES = ('*.py', '*.pyx', '*.pxd')
OVERLAID = '.from-ours'  # lists the files of the tree that are ours
LINE = "from flax.nnx import twins as _twins; _twins.splice(globals(), '{twin}')  # compiled twin\n"


def assemble(wheel: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
  """Makes `folder` the tree to build, or brings it up to date; returns it.

  Files that did not change keep their time stamps, so that only what changed is compiled again.
  """
  if not _unpacked(wheel, folder).exists():
    shutil.rmtree(folder, ignore_errors=True)
    archive.unpack(wheel, folder)
    splice(folder)
    _unpacked(wheel, folder).touch()
  overlay(folder)
  return folder


def _unpacked(wheel: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
  """A mark that says which wheel, and which splices, the folder was made from."""
  digest = hashlib.sha256(wheel.read_bytes() + TABLE.read_bytes()).hexdigest()
  return folder / f'.from-{digest[:16]}'


def overlay(folder: pathlib.Path) -> None:
  """Copies our sources over the tree, and takes out those that are ours no more.

  BuildError where one would hide a file of upstream's.
  """
  note = folder / OVERLAID
  before = set(note.read_text().splitlines()) if note.exists() else set()
  ours = {str(path.relative_to(ROOT)) for pattern in SOURCES for path in OURS.rglob(pattern)}
  note.write_text('\n'.join(sorted(ours)))
  for name in sorted(ours):
    _lay_over(ROOT / name, folder / name, new=name not in before)
  for name in before - ours:
    _take_out(folder / name)


def _lay_over(source: pathlib.Path, target: pathlib.Path, new: bool) -> None:
  if target.exists() and filecmp.cmp(source, target, shallow=False):
    return
  if new and target.exists():
    raise BuildError(f'{target} is a file of upstream\'s; give ours another name.')
  target.parent.mkdir(parents=True, exist_ok=True)
  shutil.copyfile(source, target)


def _take_out(source: pathlib.Path) -> None:
  """Removes a source, and what was made of it."""
  for path in (source, source.with_suffix('.c'), *source.parent.glob(f'{source.stem}.*.so')):
    path.unlink(missing_ok=True)


def table() -> dict[str, list[dict]]:
  """The splices, and the upstream files that the compiled code relies on."""
  return tomllib.loads(TABLE.read_text())


def splice(folder: pathlib.Path) -> None:
  """Adds to each spliced module the line that loads its compiled twin."""
  entries = table()
  for entry in entries['splice'] + entries['relies_on']:
    _check(folder / entry['file'], entry)
  for entry in entries['splice']:
    with open(folder / entry['file'], 'a') as module:
      module.write('\n' + LINE.format(twin=entry['twin']))


def _check(path: pathlib.Path, entry: dict) -> None:
  found = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else 'no file'
  if found not in entry['sha256']:
    raise BuildError(
      f'{entry["file"]} is not the file that the compiled code was written for ({found}). '
      f'Read what changed in it, adapt the compiled twin, then add its sha256 to {TABLE.name}.'
    )
