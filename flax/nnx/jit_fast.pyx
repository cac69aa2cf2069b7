"""The compiled twin of `flax.nnx.transforms.compilation`: calls of `nnx.jit`'s functions by plan.

The classes stay upstream's. `JitWrapped` gets a `jitted_fn` whose untouched arrays stay where they
are, and a `__call__` that looks for a plan first.
"""
import dis
import inspect
import sys

from flax.nnx.fast import calls, flights, plans, programs
from flax.nnx.fast.fronts import front


def _shared(pure_class):
  """Upstream's traced function, as a class that takes its trace from the one that calls use."""

  class JitFn(pure_class):
    def __call__(self, *args, **kwargs):
      program = getattr(self, 'program', None)   # which `init` sets
      return super().__call__(*args, **kwargs) if program is None else program.traced(args, kwargs)

  for name in ('__module__', '__qualname__', '__doc__'):
    setattr(JitFn, name, getattr(pure_class, name))
  return JitFn


def _line_of(name, function):
  """The number of the first line in `function` that uses `name`; reads no source."""
  uses = (i.positions.lineno for i in dis.get_instructions(function) if i.argval == name)
  return next(uses, None)


# Options under which a program gives every array back, in a place that the caller chose.
PLACED = (
  'in_shardings', 'out_shardings', 'donate_argnums', 'donate_argnames', 'device', 'backend',
)
PASSED_ON = ('static_argnums', 'static_argnames', 'keep_unused', 'inline')


def _fast_init(pure_init, pure_class):
  signature = inspect.signature(pure_init)

  def init(self, *args, **kwargs):
    pure_init(self, *args, **kwargs)
    bound = signature.bind(self, *args, **kwargs)
    bound.apply_defaults()
    options = bound.arguments
    shared = self.jitted_fn.__wrapped__
    pure = pure_class.__call__.__get__(shared)
    simple = all([options[name] is None for name in PLACED])
    program = programs.Program(
      self.jitted_fn, pure, {name: options[name] for name in PASSED_ON} if simple else None
    )
    shared.program = program
    self.jitted_fn = program
    self._fast_site = calls.new_site(getattr(self.fun, '__qualname__', repr(self.fun)), program)

  return init


def install(compilation: dict) -> None:
  """Replaces methods in compilation's classes; called once, by its last line."""
  from jax._src import core
  graphlib = vars(sys.modules['flax.nnx.graphlib'])
  extract = sys.modules['flax.nnx.extract']
  plans.install(core.eval_trace._weakref)
  flights.install(graphlib)
  programs.install(extract.NodeStates)
  calls.install(graphlib)
  wrapped, pure_class = compilation['JitWrapped'], compilation['JitFn']
  compilation['JitFn'] = _shared(pure_class)
  wrapped.__init__ = front(_fast_init(wrapped.__init__, pure_class), wrapped.__init__)
  wrapped.__call__ = front(calls.call, wrapped.__call__, _line_of('jitted_fn', wrapped.__call__))
