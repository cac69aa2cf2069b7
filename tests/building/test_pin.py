"""The pin file: which release a Python builds, and what an unfit file gets."""

import platform

import pytest

from fork import BuildError, pin

FILE = """\
# a comment
flax==9.1 ; python_version >= "3.{new}" \\
    --hash=sha256:aaaa \\
    --hash=sha256:bbbb
flax==9.0 ; python_version < "3.{new}" \\
    --hash=sha256:cccc
"""


@pytest.fixture
def pin_file(tmp_path, monkeypatch):
  path = tmp_path / 'pins.txt'
  monkeypatch.setenv(pin.VARIABLE, str(path))
  return path


def test_newest_for_this_python(pin_file):
  pin_file.write_text(FILE.format(new=11))
  assert (pin.current().version, pin.current().hashes) == ('9.1', ('aaaa', 'bbbb'))


def test_older_line(pin_file):
  pin_file.write_text(FILE.format(new=99))
  assert (pin.current().version, pin.current().hashes) == ('9.0', ('cccc',))


@pytest.mark.parametrize(
  'text',
  [
    'flax==9.1 ; python_version >= "3.99" --hash=sha256:aaaa',
    'flax==9.1',
    'flax==9.1 --hash=sha256:aaaa\nflax==9.2 --hash=sha256:bbbb',
    '',
  ],
)
def test_unsupported_python(pin_file, text):
  pin_file.write_text(text)
  with pytest.raises(BuildError, match=f'Python {platform.python_version()}; one is needed'):
    pin.current()


def test_missing_file(pin_file):
  with pytest.raises(BuildError, match=f'cannot be read.*Check {pin.VARIABLE}'):
    pin.current()


def test_the_real_file(monkeypatch):
  monkeypatch.delenv(pin.VARIABLE, raising=False)
  assert [p.version for p in pin.read(pin.pin_file())] == ['0.12.12', '0.12.8']
  assert all(len(h) == 64 for p in pin.read(pin.pin_file()) for h in p.hashes)
