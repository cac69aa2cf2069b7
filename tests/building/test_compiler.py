"""What a build says without a working C compiler, and on another kind of Python."""

import os
import pathlib
import platform
import subprocess
import sys
import sysconfig

import pytest

pytest.importorskip('Cython')

from fork import BuildError, extensions  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from fork.extensions import Build
from setuptools import Distribution, Extension
build = Build(Distribution({{'ext_modules': [Extension('a', ['a.c'])]}}))
build.ensure_finalized()
try:
  build.run()
except Exception as error:
  print(type(error).__name__, error)
"""


def build(tmp_path, compiler):
  (tmp_path / 'a.c').write_text('this is no C')
  done = subprocess.run(
    [sys.executable, '-c', SCRIPT.format(root=str(ROOT))],
    cwd=tmp_path,
    capture_output=True,
    text=True,
    env={**os.environ, 'CC': compiler},
  )
  return done.stdout + done.stderr


def test_no_compiler(tmp_path):
  said = build(tmp_path, 'no-such-compiler')
  assert "BuildError no C compiler: 'no-such-compiler' is not on the path. Install one" in said


def test_compiler_fails(tmp_path):
  assert 'BuildError the C compiler failed' in build(tmp_path, 'false')


def test_free_threaded_python(monkeypatch):
  monkeypatch.setattr(sysconfig, 'get_config_var', {'Py_GIL_DISABLED': 1}.get)
  with pytest.raises(BuildError, match='this Python is free-threaded(.|\n)*Use the ordinary build'):
    extensions.check_interpreter()


def test_other_python(monkeypatch):
  monkeypatch.setattr(platform, 'python_implementation', lambda: 'PyPy')
  with pytest.raises(BuildError, match='PyPy is not CPython. Use CPython'):
    extensions.check_interpreter()


def test_this_python():
  extensions.check_interpreter()
