"""The ways to write an object's `__dict__`, for a look whether this interpreter tells of each.

In Python, since an interpreter that has specialised an instruction writes by another way.
"""


def _store(o):
  o.x = object()


def _add(o):
  o.new = object()


def _delete(o):
  del o.x


def _item(o):
  vars(o)['x'] = object()


def _new_item(o):
  vars(o)['new'] = object()


def _del_item(o):
  del vars(o)['x']


def _update(o):
  vars(o).update(x=object())


def _pop(o):
  vars(o).pop('x')


def _default(o):
  vars(o).setdefault('new', object())


def _last(o):
  vars(o).popitem()


def _clear(o):
  vars(o).clear()


WAYS = (_store, _add, _delete, _item, _new_item, _del_item, _update, _pop, _default, _last, _clear)
TIMES = 30  # an instruction is specialised after a few runs


class _Object:
  def __init__(self, shared):
    self.y = self.x = None
    if not shared:  # the dict gets a table of its own, as `watch.make_watchable` does it
      key, value = vars(self).popitem()
      vars(self)[key] = value


def every_write_counts(counter, shared: bool) -> bool:
  """`counter(mapping)` watches a dict and gives what tells how often dicts were written.

  `shared`: of an object whose values the dict shares.
  """
  for way in WAYS:
    for _ in range(TIMES):
      o = _Object(shared)
      count = counter(vars(o))
      before = count()
      way(o)
      if count() == before:
        return False
  return True
