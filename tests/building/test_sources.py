"""What the compiled sources may not have.

Cython makes code of some statements that takes a traceback for granted, but an error raised in
compiled code has none: see fork/unseen.h. And it takes a typed attribute of what it knows as an
object only for a Python attribute, which is not there: an AttributeError on the day it is asked.
"""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SOURCES = sorted(ROOT.glob('flax/**/*.pyx'))
HEADERS = sorted(ROOT.glob('flax/**/*.pxd'))


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


def attributes(text: str) -> dict[str, set[str]]:
  """The attributes of extension types, with the C types that they have in one or another."""
  lines = re.findall(r'^  cdef (?:(?:public|readonly) )?([\w.]+\*?) ([^(#=\n]+?) *(?:#.*)?$', text, re.MULTILINE)
  found: dict[str, set[str]] = {}
  for kind, names in lines:
    for name in names.split(','):
      found.setdefault(name.strip(' *'), set()).add(kind)
  return found


def typed_of_untyped(text: str, known: dict[str, set[str]]) -> list[str]:
  """`a.b.c` where b is an object and c an attribute of an extension type."""
  found = re.finditer(r'\.(\w+)\.(\w+)\b(?!\()', text)
  return [m[0] for m in found if known.get(m[1]) == {'object'} and m[2] in known]


KNOWN = attributes('\n'.join(path.read_text() for path in HEADERS + SOURCES))


def test_attributes():
  known = attributes('  cdef object held   # any\n  cdef list a, b\n  cdef int f(self)\n')
  assert known == {'held': {'object'}, 'a': {'list'}, 'b': {'list'}}
  assert typed_of_untyped('x = self.held.a + self.a.b + self.held.c', known) == ['.held.a']
  assert KNOWN['expected'] == {'object'} and 'kept' in KNOWN


@pytest.mark.parametrize('path', SOURCES, ids=lambda path: path.stem)
def test_typed_attributes_of_typed_objects(path):
  assert not typed_of_untyped(path.read_text(), KNOWN)


def test_the_map():
  """docs/sources.md has a row, or a part of one, for each module."""
  rows = set(re.findall(r'`(?:fast/)?(\w+)(?:\.\w+)?`', (ROOT / 'docs/sources.md').read_text()))
  modules = {path.stem for path in ROOT.glob('flax/nnx/**/*.p*') if path.stem != '__init__'}
  assert modules <= rows, modules - rows
