"""What is compiled, and how."""

import os
import pathlib
import platform
import shutil
import sysconfig

import Cython
from Cython.Build import cythonize
from setuptools import Extension
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CompileError, LinkError

from fork import BuildError

CHECKED = 'FLAX_FAST_CHECKED'  # 1: bounds, none and overflow checks, C assertions, -O1 -g
SANITIZED = 'FLAX_FAST_SANITIZED'  # 1: checked, and bad addresses and undefined behaviour end it
STRICT = 'FLAX_FAST_STRICT'  # 1: warnings of the C compiler are errors
FRAMES = 'FLAX_FAST_FRAMES'  # 1: compiled functions stand in tracebacks
SANITIZERS = ['-fsanitize=address,undefined', '-fno-sanitize-recover=undefined']
UNSEEN = pathlib.Path(__file__).parent / 'unseen.h'
QUIET = ['-Wno-unused-function', '-Wno-unused-parameter', '-Wno-missing-field-initializers']


def check_interpreter() -> None:
  """BuildError on a Python that the compiled twins are not written for."""
  kind = platform.python_implementation()
  if kind != 'CPython':
    raise BuildError(f"{kind} is not CPython. Use CPython, or upstream's flax.")
  if sysconfig.get_config_var('Py_GIL_DISABLED'):
    raise BuildError(
      'this Python is free-threaded, and the compiled twins rely on its global lock. Use the '
      "ordinary build of the same Python, or upstream's flax."
    )


def _set(variable: str) -> bool:
  return os.environ.get(variable, '0') == '1'


def _checked() -> bool:
  return _set(CHECKED) or _set(SANITIZED)


def suffix() -> str:
  """What sets the products of a checked or sanitized build apart."""
  return '-sanitized' if _set(SANITIZED) else '-checked' if _set(CHECKED) else ''


def directives() -> dict[str, bool | int]:
  """Cython's directives, the same for every module."""
  checked = _checked()
  return {
    'language_level': 3,
    'binding': True,
    'embedsignature': False,
    'boundscheck': checked,
    'wraparound': False,
    'initializedcheck': checked,
    'nonecheck': checked,
    'overflowcheck': checked,
  }


def _flags() -> list[str]:
  flags = ['-O1', '-g', '-UNDEBUG'] if _checked() else ['-O2', '-g0']
  flags += SANITIZERS if _set(SANITIZED) else []
  flags += ['-include', str(UNSEEN)] + (['-DFLAX_FAST_FRAMES'] if _set(FRAMES) else [])
  return flags + (['-Wall', '-Wextra', '-Werror', *QUIET] if _set(STRICT) else [])


def _settings() -> dict[str, list[str]]:
  linked = SANITIZERS[:1] if _set(SANITIZED) else []
  return {'extra_compile_args': _flags(), 'extra_link_args': linked}


def jobs() -> int:
  """How many modules are translated and compiled at once."""
  return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def extensions(tree: pathlib.Path) -> list[Extension]:
  """One extension module for each .pyx of the tree, translated to C where it changed."""
  modules = []
  for source in sorted(tree.rglob('*.pyx')):
    name = '.'.join(source.relative_to(tree).with_suffix('').parts)
    modules.append(Extension(name, [str(source)], **_settings(), depends=[str(UNSEEN)]))
  return cythonize(
    modules,
    include_path=[str(tree)],
    compiler_directives=directives(),
    nthreads=jobs(),
    quiet=True,
  )


def banner(upstream: str, twins: list[str]) -> str:
  """One line that says what is being built, and with what."""
  kind = suffix().removeprefix('-') or 'optimised'
  return (
    f'flax {upstream}: {kind} build of {", ".join(twins)} '
    f'for Python {platform.python_version()} with Cython {Cython.__version__}'
  )


class Build(build_ext):
  """Compiles; says what to do where that fails."""

  def build_extensions(self) -> None:
    compiler = (os.environ.get('CC') or sysconfig.get_config_var('CC') or 'cc').split()[0]
    if shutil.which(compiler) is None:
      raise BuildError(
        f'no C compiler: {compiler!r} is not on the path. Install one (Debian: gcc, with the '
        f'headers of this Python) or name another in CC.'
      )
    try:
      super().build_extensions()
    except (BaseError, CompileError, LinkError) as error:
      raise BuildError(f'the C compiler failed ({error}); its own messages are above.') from error
