"""Hands a pure module's namespace to its compiled twin, unless the switch says no.

The last line of each spliced module calls `splice`. `FLAX_NNX_FAST` is read once a process:
unset or `1` loads every twin, `0` leaves them all out. A twin that does not load is an error,
never a silent slow path.
"""

import importlib
import os
import typing as tp

SWITCH = 'FLAX_NNX_FAST'


def enabled() -> bool:
  """Whether this process loads the compiled twins; raises ValueError on any other setting."""
  setting = os.environ.get(SWITCH, '1')
  if setting not in ('0', '1'):
    raise ValueError(
      f'{SWITCH}={setting!r} is neither 0 (pure Python) nor 1 (compiled, the default); '
      f'set one of the two, or unset it.'
    )
  return setting == '1'


def splice(namespace: dict[str, tp.Any], twin: str) -> None:
  """Lets the compiled module `twin` replace names in the pure module's `namespace`.

  Raises ImportError, saying what to do, where the compiled module does not load.
  """
  if not enabled():
    return
  try:
    module = importlib.import_module(twin)
  except ImportError as error:
    raise ImportError(
      f'{twin}, the compiled twin of {namespace["__name__"]}, does not load ({error}). '
      f'Reinstall this build of flax for this Python, or set {SWITCH}=0 to run pure Python.'
    ) from error
  module.install(namespace)
