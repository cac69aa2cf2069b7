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


def test_overlay_takes_out_what_is_ours_no_more(tmp_path, monkeypatch):
  monkeypatch.setattr(tree, 'ROOT', tmp_path)
  monkeypatch.setattr(tree, 'OURS', tmp_path / 'flax')
  (tmp_path / 'flax').mkdir()
  for name in ('kept', 'renamed'):
    (tmp_path / f'flax/{name}.pyx').touch()
  folder = tmp_path / 'tree'
  (folder / 'flax').mkdir(parents=True)
  upstream, product = folder / 'flax/upstream.pyx', folder / 'flax/renamed.cpython-3.so'
  upstream.touch(), product.touch()
  tree.overlay(folder)
  (tmp_path / 'flax/renamed.pyx').unlink()
  tree.overlay(folder)
  assert sorted(p.name for p in folder.glob('flax/*')) == ['kept.pyx', 'upstream.pyx']


def test_overlay_hides_nothing(tmp_path):
  (tmp_path / 'flax/nnx').mkdir(parents=True)
  (tmp_path / 'flax/nnx/graph_fast.pyx').write_text('theirs')
  with pytest.raises(BuildError, match="graph_fast.pyx is a file of upstream's"):
    tree.overlay(tmp_path)


def test_the_notice_names_what_was_changed():
  notice = (tree.ROOT / 'NOTICE').read_text()
  for entry in tree.table()['splice']:
    assert entry['file'] in notice
    assert entry['twin'].replace('.', '/') + '.pyx' in notice


def test_the_real_table():
  table = tree.table()
  assert [entry['twin'] for entry in table['splice']] == [
    'flax.nnx.graph_fast',
    'flax.nnx.state_fast',
    'flax.nnx.jit_fast',
    'flax.nnx.pytree_fast',
  ]
  assert all(len(h) == 64 for kind in table.values() for entry in kind for h in entry['sha256'])
