"""The compiled twin of `flax.nnx.transforms.compilation`: calls of jitted functions by plan.

The classes stay upstream's. Their `jitted_fn` becomes a program whose nodes travel as flat lists of
leaves, and their `__call__` looks for a plan first.
"""
import inspect
import sys
import weakref

from flax.nnx.fast import flights, graphcalls, graphprograms, nodes, partials, plans, programs
from flax.nnx.fast import treecalls, treeprograms, watch
from flax.nnx.fast.fronts import call_front, front

# Options under which upstream's own program has to run: they name what the flat one does not have.
PLACED = ('in_shardings', 'out_shardings', 'device', 'backend')
DONATED = ('donate_argnums', 'donate_argnames')
PASSED_ON = ('static_argnums', 'static_argnames', 'keep_unused', 'inline')


def _without(obj, hidden):
  return {name: value for name, value in vars(obj).items() if name != hidden}


def _shared(pure_class):
  """Upstream's traced function, as a class that takes its trace from the one that calls use."""

  class JitFn(pure_class):
    program = staticmethod(lambda: None)   # a weak reference, once `init` made a program

    def __call__(self, *args, **kwargs):
      program = self.program()
      return super().__call__(*args, **kwargs) if program is None else program.traced(args, kwargs)

    def __getstate__(self):
      return _without(self, 'program')

  for name in ('__module__', '__name__', '__qualname__', '__doc__'):
    setattr(JitFn, name, getattr(pure_class, name))
  return JitFn


def _fast_init(pure_init, pure_class, make):
  """`make`: what gives the program and the site of a function, from their parts."""
  signature = inspect.signature(pure_init)

  def init(self, *args, **kwargs):
    pure_init(self, *args, **kwargs)
    bound = signature.bind(self, *args, **kwargs)
    bound.apply_defaults()
    shared = self.jitted_fn.__wrapped__
    pure = pure_class.__call__.__get__(shared)
    program, self._fast_site = make(self.fun, self.jitted_fn, pure, bound.arguments)
    self.jitted_fn, shared.program = program, weakref.ref(program)

  return init


def _copy(self):
  made = object.__new__(type(self))
  vars(made).update(vars(self))
  return made


def _state(self):
  """What a deep copy or a pickle holds, which is upstream's: its calls go upstream's way."""
  state = _without(self, '_fast_site')
  state['jitted_fn'] = getattr(self.jitted_fn, 'full', self.jitted_fn)
  return state


def _graph(fun, full, pure, options):
  # A donated array has to come back, so nothing could be left out.
  simple = all([options[name] is None for name in PLACED + DONATED])
  passed_on = {name: options[name] for name in PASSED_ON}
  program = graphprograms.GraphProgram(full, pure, passed_on if simple else None)
  return program, graphcalls.GraphSite(fun, program)


def _tree(fun, full, pure, options, listed=False):
  simple = all([options[name] is None for name in PLACED])
  passed_on = {name: options[name] for name in PASSED_ON + DONATED}
  program = treeprograms.TreeProgram(full, pure, passed_on if simple else None, listed)
  return program, (treecalls.PartialSite if listed else treecalls.TreeSite)(fun, program)


def _partial(fun, full, pure, options):
  return _tree(fun, full, pure, options, listed=True)


# Class of what `nnx.jit` or `nnx.jit_partial` gives -> class of what it traces, and our parts.
SPLICED = {
  'JitWrapped': ('JitFn', _graph, graphcalls.call),
  'SimpleJitWrapped': ('SimpleJitFn', _tree, treecalls.call),
  'SimpleJitPartialWrapped': ('SimpleJitPartialFn', _partial, treecalls.call),
}


def install(compilation: dict) -> None:
  """Replaces methods in compilation's classes; called once, by its last line."""
  from jax._src import core
  graphlib = vars(sys.modules['flax.nnx.graphlib'])
  extract = sys.modules['flax.nnx.extract']
  plans.install(core.eval_trace._weakref)
  watch.install()
  flights.install(graphlib)
  nodes.install(extract.NodeStates, extract.TreeState)
  programs.install()
  graphprograms.install()
  graphcalls.install(graphlib)
  treecalls.install(compilation)
  partials.install(compilation)
  for name, (traced, make, call) in SPLICED.items():
    wrapped, pure_class = compilation[name], compilation[traced]
    compilation[traced] = _shared(pure_class)
    wrapped.__init__ = front(_fast_init(wrapped.__init__, pure_class, make), wrapped.__init__)
    wrapped._fast_site, wrapped.__copy__, wrapped.__getstate__ = None, _copy, _state
    wrapped.__call__ = call_front(call, wrapped.__call__, 'jitted_fn')
