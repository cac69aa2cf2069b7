"""Counts what the compiled twins hand to the pure ones, and why."""

cdef enum:
  REASONS_KEPT = 1000   # distinct ones; further ones are counted as one

# Asked for without asking the class's metaclass.
cdef object MODULE = vars(type)['__module__'].__get__
cdef object QUALNAME = vars(type)['__qualname__'].__get__
cdef dict counts = {}   # (walk, class name, why) -> times


cdef int count(str walk, object cls, str why) except -1:
  key = (walk, f'{MODULE(cls)}.{QUALNAME(cls)}', why)
  if key not in counts and len(counts) >= REASONS_KEPT:
    key = (walk, '', 'more reasons than are kept')
  counts[key] = counts.get(key, 0) + 1
  return 0


def fallbacks() -> dict[tuple[str, str, str], int]:
  """How often each walk handed something to the pure twin: {(walk, class, reason): times}."""
  return dict(counts)


def reset() -> None:
  counts.clear()
