"""The compiled twin of `flax.nnx.pytreelib`: the pytree protocol, as jax calls it.

It also covers what `variablelib` and `statelib` registered with jax before.
"""
import sys

from flax.nnx.fast import pytrees


def install(pytreelib: dict) -> None:
  """Steps in for the registered functions; called once, by the last line of pytreelib."""
  modules = [vars(sys.modules[f'flax.nnx.{name}']) for name in ('variablelib', 'statelib')]
  pytrees.install(*modules, pytreelib)
