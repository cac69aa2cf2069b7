"""The graph types and the garbage collector."""
import gc
import weakref

import pytest
from flax.nnx import graphlib
from graphtypes.samples import DATACLASSES, NAMES, cls, fields_of, sample
from telling import error_of


class Sentinel:
  pass


def reachable(value) -> list:
  """What the collector finds directly under `value`, or in its instance dict."""
  found = gc.get_referents(value)
  return found + [x for inner in found if type(inner) is dict for x in gc.get_referents(inner)]


@pytest.mark.parametrize('name', NAMES)
def test_weak_references(say, name):
  made = sample(name)
  outcome = error_of(weakref.ref, made)
  say(outcome.split(',')[0])
  if outcome.startswith('no error'):
    gone: list = []
    reference = weakref.ref(made, gone.append)
    assert reference() is made
    del made
    assert reference() is None and len(gone) == 1


@pytest.mark.parametrize('name', NAMES)
def test_tracked(say, name):
  say(gc.is_tracked(sample(name)))


@pytest.mark.parametrize('name', DATACLASSES)
def test_fields_are_referents(say, name):
  fields = {field: Sentinel() for field in fields_of(name)}
  found = reachable(cls(name)(**fields))
  for field, value in fields.items():
    assert any(x is value for x in found), field


def test_keys_of_a_refmap_are_reachable(say):
  keys = [Sentinel() for _ in range(20)]
  made = graphlib.RefMap([(key, i) for i, key in enumerate(keys)])
  seen, todo = {id(made)}, [made]
  while todo:
    for found in gc.get_referents(todo.pop()):
      if id(found) not in seen and not isinstance(found, type):
        seen.add(id(found))
        todo.append(found)
  assert all(id(key) in seen for key in keys)


@pytest.mark.parametrize('name', DATACLASSES)
def test_fields_are_freed(say, name):
  sentinels = {field: Sentinel() for field in fields_of(name)}
  references = [weakref.ref(value) for value in sentinels.values()]
  made = cls(name)(**sentinels)
  del sentinels
  assert all(r() is not None for r in references)
  del made
  assert all(r() is None for r in references)


@pytest.mark.parametrize('name', DATACLASSES)
def test_cycles_are_collected(say, name):
  for field in fields_of(name):
    sentinel = Sentinel()
    reference = weakref.ref(sentinel)
    sentinel.made = cls(name)(**{**fields_of(name), field: sentinel})
    del sentinel
    gc.collect()
    assert reference() is None, field


def test_cycles_through_maps_are_collected(say):
  for as_key in (True, False):
    for touch in (lambda m: None, lambda m: m._mapping, lambda m: list(m), lambda m: m.items()):
      sentinel = Sentinel()
      reference = weakref.ref(sentinel)
      made = graphlib.RefMap()
      made[sentinel if as_key else 'key'] = 1 if as_key else sentinel
      touch(made)
      sentinel.made = made
      del sentinel, made
      gc.collect()
      assert reference() is None
  ring = graphlib.RefMap()
  ring[ring] = 0
  gone = weakref.ref(ring)
  del ring
  gc.collect()
  assert gone() is None


def test_a_map_keeps_its_keys_alive(say):
  sentinel = Sentinel()
  reference = weakref.ref(sentinel)
  made = graphlib.RefMap([(sentinel, 0)])
  del sentinel
  gc.collect()
  assert reference() is not None
  made.clear()
  assert reference() is None
  made[kept := Sentinel()] = 0
  reference = weakref.ref(kept)
  del kept, made
  assert reference() is None


def test_finalizers_that_use_the_map_they_are_in(say):
  log: list = []

  class Talks:
    def __init__(self, refmap):
      self.refmap = refmap

    def __del__(self):
      log.append((len(self.refmap), self in self.refmap, self.refmap.get(self)))
      self.refmap[self] = 5

  made = graphlib.RefMap()
  made[Talks(made)] = 0
  made.clear()
  gc.collect()
  say(log, len(made))
  log.clear()
  ring = graphlib.RefMap()
  ring[Talks(ring)] = 1
  del ring
  gc.collect()
  say(log)


def test_values_whose_death_changes_the_map(say):

  class Bomb:
    def __init__(self, refmap, keys):
      self.refmap, self.keys = refmap, keys

    def __del__(self):
      for key in self.keys:
        self.refmap[key] = 'late'

  keys = [Sentinel() for _ in range(100)]
  made = graphlib.RefMap()
  made[keys[0]] = Bomb(made, keys)
  made[keys[0]] = 'first'
  say(len(made), made[keys[0]], made[keys[99]])
  made[keys[1]] = Bomb(made, keys[2:4])
  del made[keys[1]]
  say(len(made), keys[1] in made, made[keys[2]])
