"""Overlay and splices: one line at the end of a module, and only where the module is the known one."""

import hashlib

import pytest

from fork import BuildError, tree


@pytest.fixture
def table(tmp_path, monkeypatch):
  """A splice table for two made-up modules, and a tree that holds them."""
  folder = tmp_path / 'tree'
  (folder / 'flax').mkdir(parents=True)
  entries = []
  for kind, name, twin in (('splice', 'graph', "twin = 'flax.fast'"), ('relies_on', 'other', '')):
    (folder / f'flax/{name}.py').write_text(f'{name} = 1\n')
    digest = hashlib.sha256((folder / f'flax/{name}.py').read_bytes()).hexdigest()
    entries.append(f"[[{kind}]]\nfile = 'flax/{name}.py'\n{twin}\nsha256 = ['{digest}']\n")
  path = tmp_path / 'splices.toml'
  path.write_text('\n'.join(entries))
  monkeypatch.setattr(tree, 'TABLE', path)
  return folder


def test_splice_is_one_line(table):
  tree.splice(table)
  assert (table / 'flax/graph.py').read_text() == 'graph = 1\n\n' + tree.LINE.format(twin='flax.fast')
  assert (table / 'flax/other.py').read_text() == 'other = 1\n'


@pytest.mark.parametrize('name', ['graph', 'other'])
@pytest.mark.parametrize('change', ['changed', 'missing'])
def test_another_upstream_file_is_refused(table, name, change):
  path = table / f'flax/{name}.py'
  path.write_text('changed') if change == 'changed' else path.unlink()
  with pytest.raises(
    BuildError, match=f'flax/{name}.py is not the file.*add its sha256 to splices.toml'
  ):
    tree.splice(table)
  assert (
    'twins' not in (table / 'flax/graph.py').read_text() if (table / 'flax/graph.py').exists() else True
  )


def test_overlay_keeps_time_stamps(tmp_path):
  tree.overlay(tmp_path)
  file = tmp_path / 'flax/nnx/graph_fast.pyx'
  before = file.stat().st_mtime_ns
  tree.overlay(tmp_path)
  assert file.stat().st_mtime_ns == before


def test_the_real_table():
  table = tree.table()
  assert [entry['twin'] for entry in table['splice']] == ['flax.nnx.graph_fast', 'flax.nnx.state_fast']
  assert all(len(h) == 64 for kind in table.values() for entry in kind for h in entry['sha256'])
