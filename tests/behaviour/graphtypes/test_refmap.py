"""RefMap and IndexMap as mappings: keys by identity, errors, order, changes during a loop."""
import pytest
from flax.nnx import graphlib
from flax.nnx.graphlib import IndexMap, RefMap
from telling import error_of, plain


class Unhashable:
  __hash__ = None


class EqualToAll:
  def __eq__(self, other):
    return True

  def __hash__(self):
    return 0


class RaisingKey:
  def __eq__(self, other):
    raise ArithmeticError('compared')

  def __hash__(self):
    raise ArithmeticError('hashed')


def test_keys_by_identity(say):
  keys = [1000, 1000.0, 'text', (), [], {}, None, True, 1, Unhashable(), EqualToAll(),
          EqualToAll(), RaisingKey(), float('nan'), object]
  refmap = RefMap((key, i) for i, key in enumerate(keys))
  assert len(refmap) == len(keys)
  for i, key in enumerate(keys):
    assert refmap[key] == i and key in refmap and refmap.get(key) == i
  assert [] not in refmap and EqualToAll() not in refmap
  assert refmap.get([]) is None and refmap.get([], 'other') == 'other'
  assert [k is key for k, key in zip(refmap, keys)] == [True] * len(keys)


def test_errors(say):
  refmap = RefMap([('one', 1)])
  missing: list = []
  for call in (lambda: refmap[missing], lambda: refmap.__delitem__(missing),
               lambda: refmap.pop(missing)):
    with pytest.raises(KeyError) as caught:
      call()
    assert caught.value.args == (id(missing),)
  say(refmap.pop(missing, 'default'), len(refmap))
  say(error_of(RefMap, 5))
  say(error_of(RefMap, [1]))
  say(error_of(RefMap, [(1, 2, 3)]))
  say(error_of(RefMap, 'ab'), error_of(RefMap, ['ab']))
  say(error_of(RefMap, [], []))
  say(error_of(RefMap, mapping=[]))
  say(error_of(RefMap().popitem))
  say(error_of(refmap.get), error_of(refmap.get, 1, 2, 3), error_of(refmap.get, default=1))
  say(error_of(refmap.__getitem__), error_of(refmap.__setitem__, 1), error_of(hash, refmap))
  say(error_of(refmap.get, key='one'), error_of(refmap.get, 'one', default=4))


def test_order(say):
  keys = ['a', 'b', 'c', 'd', 'e', 'f']
  refmap = RefMap((key, i) for i, key in enumerate(keys))
  refmap['a'] = 10
  del refmap['b']
  refmap['b'] = 11
  refmap['g'] = 12
  say(list(refmap), list(refmap.values()), list(refmap.items()), list(refmap.keys()))
  say(refmap.popitem(), refmap.setdefault('a', 5), refmap.setdefault('z', 5), list(refmap))
  refmap.clear()
  say(len(refmap), list(refmap), bool(refmap))


def test_many_entries_with_deletions(say):
  keys = [object() for _ in range(5000)]
  refmap = RefMap()
  for i, key in enumerate(keys):
    refmap[key] = i
  for key in keys[::3]:
    del refmap[key]
  for i, key in enumerate(keys[::6]):
    refmap[key] = -i
  expected = {id(key): i for i, key in enumerate(keys)}
  for key in keys[::3]:
    del expected[id(key)]
  for i, key in enumerate(keys[::6]):
    expected[id(key)] = -i
  assert {id(key): value for key, value in refmap.items()} == expected
  assert [id(key) for key in refmap] == list(expected)
  assert all((key in refmap) == (id(key) in expected) for key in keys)


def test_constructors(say):
  base = RefMap([('one', 1)])
  for source in (None, {}, {'a': 1}, [('a', 1)], base, IndexMap({1: 'a'}), iter([('b', 2)])):
    say(list(RefMap(source).items()))
  assert RefMap(base) is not base
  refmap = RefMap({'a': 1})
  refmap.update({'b': 2}, c=3)
  refmap.update([('d', 4)])
  refmap.update(RefMap([('e', 5)]))
  say(list(refmap.items()))


def test_init_twice(say):
  refmap = RefMap([('one', 1)])
  say(error_of(refmap.__init__, [('two', 2)]), list(refmap.items()))


def test_without_init(say):
  blank = object.__new__(RefMap)
  for call in (lambda: len(blank), lambda: blank['a'], lambda: 'a' in blank, lambda: blank.get('a'),
               lambda: list(blank), lambda: blank.items(), lambda: repr(blank), lambda: blank._mapping,
               lambda: blank.__setitem__('a', 1), lambda: blank == {}, lambda: blank.clear()):
    say(error_of(call))
  say(error_of(graphlib.flatten, [1], ref_index=blank))


def test_values_of_any_kind(say):
  refmap = RefMap([('a', None), ('b', 'text'), ('c', []), ('d', 2**70), ('e', -1)])
  say(list(refmap.values()), refmap.get('a', 'default'), refmap.get('z', 'default'))


def test_equality(say):
  one, two = RefMap([('a', 1), ('b', 2)]), RefMap([('b', 2), ('a', 1)])
  say(one == two, one != two, one == {'a': 1, 'b': 2}, {'a': 1, 'b': 2} == one, one == 5,
      one == RefMap(), one.__eq__(5))
  unhashable = RefMap([([], 1)])
  say(error_of(lambda: unhashable == unhashable), error_of(lambda: unhashable == one))
  say(error_of(lambda: one == unhashable), error_of(lambda: unhashable != {}))
  say(error_of(lambda: RefMap([(RaisingKey(), 1)]) == one))
  say(error_of(lambda: one < two))


def test_repr(say):
  say(plain(repr(RefMap([('a', 1), ([], 2)]))), plain(repr(RefMap())), plain(str(RefMap())))
  say(plain(repr(IndexMap({1: 'a'}))))


def test_change_during_a_loop(say):
  def loop(walk, change):
    refmap = RefMap((key, i) for i, key in enumerate(['a', 'b', 'c', 'd']))
    seen = []
    for item in walk(refmap):
      seen.append(item)
      if len(seen) > 20:
        break
      change(refmap, item[0] if isinstance(item, tuple) else item)
    return seen, list(refmap.items())

  walks = {'iter': iter, 'items': lambda m: m.items(), 'keys': lambda m: m.keys(),
           'values': lambda m: m.values()}
  changes = {
    'insert': lambda m, k: m.__setitem__(f'new{len(m)}', 0), 'delete': lambda m, k: m.popitem(),
    'set': lambda m, k: m.__setitem__('a', 9), 'clear': lambda m, k: m.clear(),
    'replace': lambda m, k: (m.popitem(), m.__setitem__('z', 1)),
  }
  for walk_name, walk in walks.items():
    for change_name, change in changes.items():
      say(walk_name, change_name, error_of(loop, walk, change))


def test_views(say):
  refmap = RefMap([('a', 1), ('b', 2)])
  items, keys, values = refmap.items(), refmap.keys(), refmap.values()
  say(type(items).__name__, type(keys).__name__, type(values).__name__)
  refmap['c'] = 3
  say(list(items), list(keys), list(values), len(items), len(keys))
  say('a' in keys, 1 in values, ('a', 1) in items, error_of(reversed, keys) == '')


def test_the_mapping_attribute(say):
  key = object()
  refmap = RefMap([(key, 1)])
  mapping = refmap._mapping
  assert mapping == {id(key): (key, 1)} and refmap._mapping is mapping
  other = object()
  mapping[id(other)] = (other, 2)
  assert other in refmap and refmap[other] == 2 and len(refmap) == 2
  refmap[key] = 7
  assert mapping[id(key)] == (key, 7)
  refmap._mapping = {}
  say(len(refmap), key in refmap, list(vars(refmap)))


def test_odd_mapping_attributes(say):
  for mapping in ({5: 'ab'}, {5: 7}, {'x': ('k', 1)}):
    refmap = RefMap()
    refmap._mapping = mapping
    for call in (lambda m: len(m), lambda m: list(m), lambda m: list(m.items()), lambda m: m.get(5),
                 lambda m: m.__setitem__('k', 1), lambda m: 'k' in m):
      say(mapping.__class__.__name__, error_of(call, refmap))


def test_between_the_two_maps(say):
  keys = ['a', 'b', 'c']
  refmap = RefMap((key, i) for i, key in enumerate(keys))
  indexes = IndexMap.from_refmap(refmap)
  say(type(indexes).__name__, list(indexes.items()))
  back = RefMap.from_indexmap(indexes)
  say(type(back).__name__, list(back.items()))
  refmap['a'] = 2
  say(list(IndexMap.from_refmap(refmap).items()))
  for source in ({'a': 1}, [], None, RefMap()):
    say(error_of(IndexMap.from_refmap, source), error_of(RefMap.from_indexmap, source))
  say(error_of(IndexMap.from_refmap, RefMap([('a', [])])))


def test_maps_that_a_walk_fills(say):
  model = {'a': [1, 2], 'b': None}
  for refmap in (RefMap(), RefMap([('x', 3)]), {}, None, 5, [], IndexMap()):
    say(error_of(graphlib.flatten, model, ref_index=refmap))


def test_a_subclass_in_the_walk(say):
  from flax import nnx
  calls: list = []

  class Counting(RefMap):
    def __setitem__(self, key, value):
      calls.append(('set', type(key).__name__, value))
      super().__setitem__(key, value)

    def __contains__(self, key):
      calls.append(('in', type(key).__name__))
      return super().__contains__(key)

    def __len__(self):
      calls.append(('len',))
      return super().__len__()

  model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
  refmap = Counting()
  graphlib.flatten(model, ref_index=refmap)
  say(calls)
  calls.clear()
  graphlib.flatten(model, ref_index=RefMap(), ref_outer_index=refmap)
  say(calls)
