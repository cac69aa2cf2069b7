"""The compiled twin of `flax.nnx.pytreelib`: the pytree protocol, as jax calls it.

It also covers what `variablelib` and `statelib` registered with jax before, how a Variable's value
is read and set, and how a Pytree's attributes are set and what is asked of them then.
"""
import sys

from flax.nnx.fast import attributes, checks, pytrees, values


def install(pytreelib: dict) -> None:
  """Steps in for the registered functions; called once, by the last line of pytreelib."""
  modules = [vars(sys.modules[f'flax.nnx.{name}']) for name in ('variablelib', 'statelib')]
  pytrees.install(*modules, pytreelib)
  values.install(modules[0])
  checks.install(modules[0], pytreelib)
  attributes.install(pytreelib)
