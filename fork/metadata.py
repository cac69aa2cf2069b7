"""What the distribution says of itself: upstream's own words, with the fork's version and notice."""

import email.message
import email.parser
import pathlib
import shutil

from fork import REVISION
from fork.pin import ROOT, Pin


def describe(pin: Pin, tree: pathlib.Path) -> dict:
  """The arguments of `setuptools.setup` that come from upstream's METADATA."""
  info = tree / f'{pin.requirement.name}-{pin.version}.dist-info'
  upstream = email.parser.Parser().parsestr((info / 'METADATA').read_text())
  requires, extras = _requirements(upstream)
  return {
    'name': upstream['Name'],
    'version': f'{pin.version}+fast.{REVISION}',
    'description': upstream['Summary'],
    'long_description': (ROOT / 'README.md').read_text(),
    'long_description_content_type': 'text/markdown',
    'author_email': upstream['Author-email'],
    'classifiers': upstream.get_all('Classifier'),
    'project_urls': dict(url.split(', ') for url in upstream.get_all('Project-URL')),
    'python_requires': upstream['Requires-Python'],
    'install_requires': requires,
    'extras_require': extras,
    'license_files': _licences(info),
  }


def _requirements(upstream: email.message.Message) -> tuple[list[str], dict[str, list[str]]]:
  """Upstream's requirements, split by extra as setuptools wants them."""
  plain, extras = [], {name: [] for name in upstream.get_all('Provides-Extra', [])}
  for requirement in upstream.get_all('Requires-Dist', []):
    base, _, marker = requirement.partition(';')
    owner = next((name for name in extras if f'extra == "{name}"' in marker), None)
    if owner is None:
      plain.append(requirement)
      continue
    rest = marker.replace(f'extra == "{owner}"', '').strip().removesuffix('and').strip()
    extras[owner].append(f'{base};{rest}' if rest else base)
  return plain, extras


def _licences(info: pathlib.Path) -> list[str]:
  """Our licence and notice of changes, and upstream's own files, brought beside setup.py."""
  carried = ROOT / 'upstream'
  carried.mkdir(exist_ok=True)
  for path in (info / 'licenses').iterdir():
    shutil.copyfile(path, carried / path.name)
  return ['LICENSE', 'NOTICE', *sorted(f'upstream/{path.name}' for path in carried.iterdir())]
