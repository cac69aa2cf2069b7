"""What the compiled sources may not have: Cython makes code of it that takes a traceback for granted.

An error that was raised in compiled code has none; see fork/unseen.h.
"""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SOURCES = sorted(ROOT.glob('flax/**/*.pyx'))


def handlers(text: str) -> list[str]:
  """The blocks of `except` clauses, each with its first line."""
  clause = r'^( *)except\b.*:.*\n((?:\1 +.*\n|\s*\n)*)'
  return [match[0] for match in re.finditer(clause, text, re.MULTILINE)]


def test_handlers():
  text = 'try:\n  f()\nexcept A:\n  a()\n\n  return b\nreturn c\n  except B: pass\n  return d\n'
  assert handlers(text) == ['except A:\n  a()\n\n  return b\n', '  except B: pass\n']


@pytest.mark.parametrize('path', SOURCES, ids=lambda path: path.stem)
def test_no_with_statement(path):
  assert not re.findall(r'^ *with .*:', path.read_text(), re.MULTILINE)


@pytest.mark.parametrize('path', SOURCES, ids=lambda path: path.stem)
def test_no_way_out_of_an_except_clause(path):
  left = re.compile(r'^\s*(return|break|continue)\b|except.*: *(return|break|continue)', re.MULTILINE)
  assert not [handler for handler in handlers(path.read_text()) if left.search(handler)]
