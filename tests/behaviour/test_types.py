"""The graph types in use, and how the module's functions look; `graphtypes/` has the types in detail."""
import copy
import gc
import inspect
import weakref

from flax import nnx
from flax.nnx import graphlib, statelib
from telling import error_of, plain
from zoo import GRAPHS, Linear


def test_hash_follows_mutable_statics(say):
  """A hash is kept only where nothing it depends on can change."""

  class Mutable:
    def __init__(self):
      self.value = 1

    def __hash__(self):
      return self.value

    def __eq__(self, other):
      return self.value == other.value

  mutable = Mutable()
  graphdef = graphlib.GraphDef([], [('s', graphlib.Static((1, mutable)))], 0)
  first = hash(graphdef)
  mutable.value = 2
  say(hash(graphdef) == first)
  fixed = graphlib.GraphDef([], [('s', graphlib.Static((1, 'x', Linear)))], 0)
  say(hash(fixed) == hash(fixed) == hash(copy.copy(fixed)))


def test_ref_map_large(say):
  """Many entries, met in the order of their insertion."""
  objects = [object() for _ in range(5000)]
  refs = graphlib.RefMap()
  for i, o in enumerate(objects):
    refs[o] = i
  say(all(refs[o] == i for i, o in enumerate(objects)), object() in refs, len(refs))
  indexes = graphlib.IndexMap.from_refmap(refs)
  say(type(indexes).__name__, all(indexes[i] is o for i, o in enumerate(objects)), list(indexes)[:5])
  back = graphlib.RefMap.from_indexmap(indexes)
  say(
    all(back[o] == i for i, o in enumerate(objects)),
    [a is b for a, b in zip(back, refs)].count(False),
  )
  for o in objects[::2]:
    del refs[o]
  say(len(refs), objects[0] in refs, refs[objects[1]], next(iter(refs)) is objects[1])


def test_ref_map_subclass(say):
  class Noted(graphlib.RefMap):
    def __setitem__(self, key, value):
      say('set', value)
      super().__setitem__(key, value)

  noted = Noted()
  graphdef, flat = nnx.flatten(GRAPHS['shared'](), ref_index=noted)
  say(len(noted), plain(graphdef), len(flat))


def test_cycles_are_collected(say):
  class Node(nnx.Module):
    pass

  node = Node()
  node.graphdef = nnx.graphdef(Linear(1))
  node.refs = nnx.static(graphlib.RefMap())
  node.refs[node] = 0
  gone = weakref.ref(node)
  del node
  gc.collect()
  say(gone() is None)


def test_functions_look_like_upstream(say):
  """Types, signatures, docstrings and sources of all that graphlib and statelib show."""
  for module in (graphlib, statelib):
    for name, value in sorted(vars(module).items()):
      if name.startswith('_') or getattr(value, '__module__', None) != module.__name__:
        continue
      if inspect.isfunction(value):
        say(
          name,
          value.__qualname__,
          inspect.signature(value),
          plain(value),
          value.__doc__ is not None,
        )
        say(inspect.getsource(value)[:60], value.__defaults__, value.__kwdefaults__)
      elif inspect.isclass(value):
        say(
          name,
          value.__qualname__,
          sorted(
            n
            for n, v in vars(value).items()
            if not n.startswith('_') and not inspect.isdatadescriptor(v)
          ),
        )
        say(error_of(inspect.getsource, value)[:60])


def test_argument_errors_look_like_upstream(say):
  for function in (
    nnx.from_flat_state,
    nnx.to_flat_state,
    nnx.split,
    nnx.merge,
    nnx.iter_graph,
    nnx.clone,
    graphlib.RefMap.get,
    graphlib.RefMap.__init__,
    graphlib.IndexMap.from_refmap,
  ):
    say(error_of(function), error_of(function, 1, 2, 3, 4, 5, 6), error_of(function, other=1))
