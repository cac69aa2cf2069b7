"""Where the pinned wheel comes from, and what is said where it cannot be had."""

import hashlib

import pytest
from packaging.requirements import Requirement

from fork import BuildError, fetch
from fork.pin import Pin

NAME = 'flax-9.1-py3-none-any.whl'


def pinned(content=b'wheel'):
  digest = hashlib.sha256(content).hexdigest()
  return Pin(Requirement('flax==9.1'), (digest,), f'flax==9.1 --hash=sha256:{digest}')


@pytest.mark.parametrize('named', ['file', 'folder'])
def test_local(tmp_path, monkeypatch, named):
  (tmp_path / NAME).write_bytes(b'wheel')
  monkeypatch.setenv(fetch.WHEEL, str(tmp_path / NAME if named == 'file' else tmp_path))
  assert fetch.wheel(pinned(), tmp_path / 'cache') == tmp_path / NAME


def test_local_is_missing(tmp_path, monkeypatch):
  monkeypatch.setenv(fetch.WHEEL, str(tmp_path))
  with pytest.raises(BuildError, match=f'is not there. {fetch.WHEEL} must name {NAME}'):
    fetch.wheel(pinned(), tmp_path)


def test_local_is_another_file(tmp_path, monkeypatch):
  (tmp_path / NAME).write_bytes(b'another')
  monkeypatch.setenv(fetch.WHEEL, str(tmp_path))
  with pytest.raises(BuildError, match='has sha256 .* and the pin file allows'):
    fetch.wheel(pinned(), tmp_path)


def test_no_index(tmp_path, monkeypatch):
  monkeypatch.delenv(fetch.WHEEL, raising=False)
  for name, value in (('PIP_NO_INDEX', '1'), ('PIP_CONFIG_FILE', '/dev/null'), ('PIP_FIND_LINKS', '')):
    monkeypatch.setenv(name, value)
  with pytest.raises(BuildError, match=f'pip could not get flax 9.1(.|\n)*{fetch.WHEEL}'):
    fetch.wheel(pinned(), tmp_path)


def test_kept_download_is_verified_again(tmp_path, monkeypatch):
  monkeypatch.delenv(fetch.WHEEL, raising=False)
  (tmp_path / NAME).write_bytes(b'tampered with')
  with pytest.raises(BuildError, match='delete it and get it again'):
    fetch.wheel(pinned(), tmp_path)


def test_index_serves_another_file(tmp_path, monkeypatch):
  """An index whose file has the pinned name and the pinned hash in its link, but other content."""
  page = tmp_path / 'index' / 'flax' / 'index.html'
  page.parent.mkdir(parents=True)
  (page.parent / NAME).write_bytes(b'another')
  page.write_text(f'<a href="{NAME}#sha256={pinned().hashes[0]}">{NAME}</a>')
  monkeypatch.delenv(fetch.WHEEL, raising=False)
  index = (tmp_path / 'index').as_uri()
  for name, value in (('PIP_INDEX_URL', index), ('PIP_CONFIG_FILE', '/dev/null'), ('PIP_FIND_LINKS', '')):
    monkeypatch.setenv(name, value)
  with pytest.raises(BuildError, match='DO NOT MATCH THE HASHES'):
    fetch.wheel(pinned(), tmp_path / 'cache')
  assert not list((tmp_path / 'cache').iterdir())
