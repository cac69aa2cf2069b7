"""The build: get the pinned upstream, verify it, lay our files over it, splice, compile.

Read in this order: `pin` (which release), `fetch` (where it comes from), `archive` (verified and
unpacked), `tree` (overlay and splices put together), `metadata` (what the distribution says of
itself), `extensions` (what is compiled, and how; with `unseen.h`). `setup.py` is the only caller.
"""

REVISION = 1  # of the fork, within one upstream release: the N of 0.12.12+fast.N


class BuildError(Exception):
  """Why a build cannot go on: what happened, where, and what to do."""
