"""What users see of models: reprs, tables, notebooks."""

import io
import re

import jax.numpy as jnp
import pytest
import rich.console
import treescope
from flax import nnx
from telling import error_of, plain
from zoo import GRAPHS

UNIQUE = re.compile(r'[0-9a-f]{24,}|treescope_[a-z_]*[0-9a-f]+|[0-9a-f]{8}-[0-9a-f-]{27}')
SHOWN = {
  **GRAPHS,
  'graphdef': lambda: nnx.graphdef(GRAPHS['net']()),
  'split': lambda: nnx.split(GRAPHS['layers'](), nnx.Param, ...),
  'flat_state': lambda: nnx.to_flat_state(nnx.state(GRAPHS['net']())),
  'variable_type': lambda: nnx.Param,
  'model_in_dict': lambda: {'x': GRAPHS['layers'](), 'y': [nnx.state(GRAPHS['module']())]},
}  # fmt: skip
every_kind = pytest.mark.parametrize('kind', SHOWN)


def same_text(text: str) -> str:
  """Without what is new in each process or page."""
  return UNIQUE.sub('...', plain(text))


@every_kind
def test_reprs(say, kind):
  say(error_of(lambda: say(plain(repr(SHOWN[kind]())))))
  say(error_of(lambda: say(plain(str(SHOWN[kind]())))))


@every_kind
def test_rich(say, kind):
  out = io.StringIO()
  console = rich.console.Console(file=out, width=100, color_system=None)
  say(error_of(lambda: console.print(SHOWN[kind]())), plain(out.getvalue()))


@every_kind
@pytest.mark.parametrize('form', ['text', 'html'])
def test_treescope(say, kind, form):
  def rendered():
    with treescope.active_autovisualizer.set_scoped(None):
      if form == 'text':
        return treescope.render_to_text(SHOWN[kind]())
      return treescope.render_to_html(SHOWN[kind](), compressed=False)

  say(error_of(lambda: say(same_text(rendered()))))


@every_kind
def test_display(say, kind):
  """Outside of a notebook it prints."""
  say(error_of(lambda: nnx.display(SHOWN[kind](), 3)))


TABLES = {
  'layers': (lambda: GRAPHS['layers'](), (jnp.ones((1, 2)),), {}),
  'mlp': (lambda: nnx.Sequential(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.relu), (jnp.ones((4, 2)),), {}),
  'flops': (
    lambda: nnx.Sequential(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.Linear(3, 3, rngs=nnx.Rngs(1))),
    (jnp.ones((4, 2)),),
    {'compute_flops': True, 'compute_vjp_flops': True},
  ),
  'shallow': (lambda: GRAPHS['layers'](), (jnp.ones((1, 2)),), {'depth': 1}),
}  # fmt: skip


@pytest.mark.parametrize('kind', TABLES)
def test_tabulate(say, kind):
  """Of models that it can show: where it fails, upstream leaves the layers' classes changed."""
  make, inputs, options = TABLES[kind]
  plainly = {'width': 120, 'force_terminal': False, 'color_system': None}
  say(plain(nnx.tabulate(make(), *inputs, **options, console_kwargs=plainly)))
