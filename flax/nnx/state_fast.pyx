"""The compiled twin of `flax.nnx.statelib`: states between their nested and flat forms, filters."""
from flax.nnx.fast import mappings, states


def install(statelib: dict) -> None:
  """Replaces names in statelib's namespace; called once, by its last line."""
  mappings.install()
  states.install_statelib(statelib)
