"""Verifies an archive before it is opened, and unpacks it without leaving the folder."""

import hashlib
import pathlib
import stat
import zipfile

from fork import BuildError

LARGEST = 100 * 2**20  # bytes unpacked; upstream's wheels are under 3 MiB


def verify(path: pathlib.Path, hashes: tuple[str, ...]) -> None:
  """BuildError unless the file's sha256 is one of `hashes`."""
  found = hashlib.sha256(path.read_bytes()).hexdigest()
  if found not in hashes:
    raise BuildError(
      f'{path} has sha256 {found}, and the pin file allows {" or ".join(hashes)}. '
      f'It is not the pinned release: delete it and get it again from a source that you trust.'
    )


def unpack(path: pathlib.Path, folder: pathlib.Path) -> None:
  """Writes every file of a verified wheel below `folder`; executes and links nothing."""
  with zipfile.ZipFile(path) as archive:
    members = archive.infolist()
    _refuse_unsafe(path, members, folder.resolve())
    for member in members:
      target = folder / member.filename
      if member.is_dir():
        target.mkdir(parents=True, exist_ok=True)
      else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(archive.read(member))


def _refuse_unsafe(path: pathlib.Path, members: list[zipfile.ZipInfo], folder: pathlib.Path) -> None:
  names = [member.filename for member in members]
  for member in members:
    reason = _unsafe(member, folder)
    if reason is None and names.count(member.filename) > 1:
      reason = 'stands in it twice'
    if reason:
      raise BuildError(f'{path}: {member.filename!r} {reason}; the archive is not unpacked.')
  total = sum(member.file_size for member in members)
  if total > LARGEST:
    raise BuildError(f'{path} unpacks to {total} bytes, more than {LARGEST}; it is not unpacked.')


def _unsafe(member: zipfile.ZipInfo, folder: pathlib.Path) -> str | None:
  name = member.filename
  if name.startswith(('/', '\\')) or ':' in name or '\\' in name or '..' in name.split('/'):
    return 'leads out of the folder'
  if not (folder / name).resolve().is_relative_to(folder):
    return 'leads out of the folder'
  kind = stat.S_IFMT(member.external_attr >> 16)
  if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
    return 'is a link or a device'
  return None
