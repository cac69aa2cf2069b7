"""The ways to write an object's `__dict__`, for a look whether this interpreter tells of each.

In Python, since an interpreter that has specialised an instruction writes by another way.
"""


def _store(o):
  o.x = object()


def _item(o):
  vars(o)['x'] = object()


def _renew(o):
  del o.x
  o.x = object()


def _update(o):
  vars(o).update(x=object())


def _default(o):
  vars(o).pop('x')
  vars(o).setdefault('x', object())


def _last(o):
  vars(o).popitem()
  vars(o)['x'] = object()


def _clear(o):
  vars(o).clear()
  o.x = object()


WAYS = (_store, _item, _renew, _update, _default, _last, _clear)
TIMES = 30   # an instruction is specialised after a few runs


class _Object:
  def __init__(self, shared):
    self.x = None
    if not shared:
      vars(self)[0] = None  # not an attribute: the dict gets a table of its own


def every_write_counts(counter, shared: bool) -> bool:
  """`counter(mapping)` watches a dict and gives what tells how often dicts were written.

  `shared`: of an object whose values the dict shares.
  """
  for way in WAYS:
    o = _Object(shared)
    count = counter(vars(o))
    for _ in range(TIMES):
      before = count()
      way(o)
      if count() == before:
        return False
  return True
