"""What a build without a working C compiler says."""

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip('Cython')
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
