"""Python functions in front of compiled ones, to all appearances the pure functions.

A compiled function shows a type, a repr and argument errors of its own. A front is a Python
function with the pure one's signature, name, docstring and module that passes its arguments on;
`__wrapped__` is the pure function, so that its source is what tools find. It costs one call.
"""

import ast
import builtins
import dis
import functools
import inspect
import types
import typing as tp

Function = tp.Callable[..., tp.Any]


def _declared(parameter: inspect.Parameter) -> str:
  star = {parameter.VAR_POSITIONAL: '*', parameter.VAR_KEYWORD: '**'}.get(parameter.kind, '')
  default = '' if parameter.default is parameter.empty else '=None'
  return star + parameter.name + default


def _passed(parameter: inspect.Parameter) -> str:
  name = parameter.name
  form = {
    parameter.VAR_POSITIONAL: f'*{name}',
    parameter.VAR_KEYWORD: f'**{name}',
    parameter.KEYWORD_ONLY: f'{name}={name}',
  }
  return form.get(parameter.kind, name)


def _signature(parameters: tp.Sequence[inspect.Parameter]) -> str:
  """The parameter list as source, with the `/` and `*` that it needs; defaults are None."""
  parts, kinds = [], [p.kind for p in parameters]
  for i, parameter in enumerate(parameters):
    first_keyword = parameter.kind is parameter.KEYWORD_ONLY and parameter.kind not in kinds[:i]
    if first_keyword and parameter.VAR_POSITIONAL not in kinds:
      parts.append('*')
    parts.append(_declared(parameter))
    last_positional = parameter.kind not in kinds[i + 1 :]
    if parameter.kind is parameter.POSITIONAL_ONLY and last_positional:
      parts.append('/')
  return ', '.join(parts)


def front(compiled: Function, pure: Function) -> Function:
  """A Python function with the signature and looks of `pure` that calls `compiled`.

  In a traceback it stands where `pure` would, at its first line.
  """
  parameters = list(inspect.signature(pure).parameters.values())
  call = f'_compiled({", ".join(map(_passed, parameters))})'
  body = f'return {call}'
  if inspect.isgeneratorfunction(pure):  # what it gives is a generator of Python's own, too
    body = f'for item in {call}: yield item'
  code = pure.__code__
  blank = '\n' * (code.co_firstlineno - 1)
  source = f'{blank}def front({_signature(parameters)}): {body}\n'
  if inspect.isgeneratorfunction(pure):
    source = f'{blank[1:]}def front({_signature(parameters)}):\n  {body}\n'
  namespace: dict[str, tp.Any] = {'_compiled': compiled}
  exec(compile(source, code.co_filename, 'exec'), namespace)
  function = functools.wraps(pure)(namespace['front'])
  function.__code__ = function.__code__.replace(co_name=code.co_name, co_qualname=code.co_qualname)
  function.__defaults__, function.__kwdefaults__ = pure.__defaults__, pure.__kwdefaults__
  return function


def _call_of(name: str, code: types.CodeType) -> dis.Positions:
  """Where a function's code calls what the function holds by that name; reads no source."""
  steps = iter(dis.get_instructions(code))
  next(step for step in steps if step.argval == name)
  return next(step.positions for step in steps if step.opname.startswith('CALL'))


@functools.cache
def _passing(code: types.CodeType, called: str, taken: str, passed: str) -> types.CodeType:
  """The code of a function that takes and passes on what is said, where `code` calls `called`."""
  at = _call_of(called, code)
  tree = ast.parse(f'def front({taken}): return _compiled({passed})')
  for node in ast.walk(tree):
    for name in node._attributes:
      setattr(node, name, getattr(at, name))
  tree.body[0].lineno = code.co_firstlineno
  namespace: dict[str, tp.Any] = {}
  exec(compile(tree, code.co_filename, 'exec'), namespace)
  return namespace['front'].__code__.replace(co_name=code.co_name, co_qualname=code.co_qualname)


def _packing(compiled: Function, pure: Function, called: str, taken: str, passed: str) -> Function:
  code = _passing(pure.__code__, called, taken, passed)
  namespace = {'_compiled': compiled, '__builtins__': builtins}
  return functools.wraps(pure)(types.FunctionType(code, namespace))


def call_front(compiled: Function, pure: Function, called: str) -> Function:
  """A front for a method `pure(self, *args, **kwargs)`: `compiled(self, args, kwargs)`.

  In a traceback it stands where `pure` calls what it holds by the name `called`.
  """
  return _packing(compiled, pure, called, 'self, *args, **kwargs', 'self, args, kwargs')


def inner_front(compiled: Function, pure: Function, called: str) -> Function:
  """A front for such a method where a compiled function calls it: it takes what `compiled` takes."""
  return _packing(compiled, pure, called, 'self, args, kwargs', 'self, args, kwargs')


def wrapper_front(compiled: Function, wrapper: Function, called: str) -> Function:
  """A front for a wrapper that takes whatever it gets: `compiled(args, kwargs)`; see `call_front`."""
  function = _packing(compiled, wrapper, called, '*args, **kwargs', 'args, kwargs')
  function.__wrapped__ = wrapper.__wrapped__
  return function


def fronts(pure: tp.Mapping[str, Function], compiled: tp.Mapping[str, Function]) -> dict[str, Function]:
  """A front for each compiled function, by the name of the pure one that it stands for."""
  return {name: front(function, pure[name]) for name, function in compiled.items()}
