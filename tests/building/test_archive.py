"""Archives: verified before they are opened, and never unpacked outside of their folder."""

import hashlib
import stat
import warnings
import zipfile

import pytest

from fork import BuildError, archive


def make(path, *entries):
  """A zip of (name, content) or (ZipInfo, content) pairs."""
  with warnings.catch_warnings(), zipfile.ZipFile(path, 'w') as written:
    warnings.simplefilter('ignore')  # of duplicate names
    for name, content in entries:
      written.writestr(name, content)
  return path


def special(name, kind):
  info = zipfile.ZipInfo(name)
  info.create_system, info.external_attr = 3, (kind | 0o777) << 16
  return info


def test_unpacks(tmp_path):
  path = make(
    tmp_path / 'a.whl', ('flax/__init__.py', 'x = 1'), ('flax/sub/', ''), ('flax/sub/b.txt', 'b')
  )
  archive.unpack(path, tmp_path / 'out')
  assert (tmp_path / 'out/flax/sub/b.txt').read_text() == 'b'


def test_hash(tmp_path):
  path = make(tmp_path / 'a.whl', ('a', 'a'))
  archive.verify(path, ('0' * 64, hashlib.sha256(path.read_bytes()).hexdigest()))
  with pytest.raises(BuildError, match='is not the pinned release'):
    archive.verify(path, ('0' * 64,))


@pytest.mark.parametrize(
  'name', ['/etc/passwd', '../out', 'a/../../out', 'C:/out', 'a\\..\\out', '//host/share']
)
def test_names_that_lead_out(tmp_path, name):
  path = make(tmp_path / 'a.whl', ('fine', 'x'), (name, 'evil'))
  with pytest.raises(BuildError, match='leads out of the folder'):
    archive.unpack(path, tmp_path / 'in' / 'out')
  assert not (tmp_path / 'in').exists()


@pytest.mark.parametrize('kind', [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK])
def test_links_and_devices(tmp_path, kind):
  path = make(tmp_path / 'a.whl', (special('flax/link', kind), '/etc/passwd'))
  with pytest.raises(BuildError, match='is a link or a device'):
    archive.unpack(path, tmp_path / 'out')


def test_duplicate_names(tmp_path):
  path = make(tmp_path / 'a.whl', ('a', 'one'), ('a', 'two'))
  with pytest.raises(BuildError, match='stands in it twice'):
    archive.unpack(path, tmp_path / 'out')


def test_huge_expansion(tmp_path, monkeypatch):
  monkeypatch.setattr(archive, 'LARGEST', 1000)
  path = tmp_path / 'a.whl'
  with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as written:
    written.writestr('zeros', b'\0' * 100_000)
  with pytest.raises(BuildError, match='unpacks to 100000 bytes, more than 1000'):
    archive.unpack(path, tmp_path / 'out')
