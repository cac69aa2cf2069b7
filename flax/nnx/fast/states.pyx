"""States, nested and flat: from paths to dicts and back, in the order that upstream sorts to."""
from flax.nnx.fast cimport kinds, upstream
from flax.nnx.fast.children cimport sorted_items, state_mapping
from flax.nnx.fast.kinds cimport info_of


def install(graphlib: dict, pure: dict) -> dict:
  return {}
