"""Builds the fork: see `fork/__init__.py` for what happens in which order."""

import os
import pathlib
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parent
DATE = '315532800'  # of every file in the wheel: the first that a zip can tell
sys.path.insert(0, str(ROOT))  # isolated builds leave the project's own folder out

from setuptools import setup  # noqa: E402
from setuptools.command.build_py import build_py  # noqa: E402

from fork import BuildError, extensions, fetch, metadata, pin, tree  # noqa: E402


class Copy(build_py):
  """Copies the whole tree, data files too, but for what the compiler left in it."""

  def run(self) -> None:
    if self.editable_mode:
      return
    source = ROOT / self.distribution.package_dir['']
    for path in source.rglob('*'):
      below = path.relative_to(source)
      if path.is_file() and not _left_out(below):
        target = pathlib.Path(self.build_lib, below)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def _left_out(path: pathlib.Path) -> bool:
  return (
    path.suffix in ('.c', '.so', '.pyd', '.pyc')
    or path.name.startswith('.from-')
    or path.parts[0].endswith(('.dist-info', '.egg-info'))
  )


def main() -> None:
  os.environ.setdefault('SOURCE_DATE_EPOCH', DATE)
  extensions.check_interpreter()
  upstream = pin.current()
  python = f'{sys.version_info.major}.{sys.version_info.minor}'
  wheel = fetch.wheel(upstream, ROOT / 'build' / 'upstream')
  variant = f'{upstream.version}-py{python}{extensions.suffix()}'  # each keeps its own products
  built = tree.assemble(wheel, ROOT / 'build' / f'tree-{variant}')
  twins = [entry['twin'] for entry in tree.table()['splice']]
  print(extensions.banner(upstream.version, twins))
  packages = sorted('.'.join(p.parent.relative_to(built).parts) for p in built.rglob('__init__.py'))
  setup(
    **metadata.describe(upstream, built),
    packages=[name for name in packages if name.startswith('flax') and '_src' not in name],
    package_dir={'': str(built.relative_to(ROOT))},
    ext_modules=extensions.extensions(built.relative_to(ROOT)),
    cmdclass={'build_py': Copy, 'build_ext': extensions.Build},
    options={
      'build': {'build_base': f'build/work-{variant}'},
      'build_ext': {'parallel': extensions.jobs()},
    },
    zip_safe=False,
  )


try:
  main()
except BuildError as error:
  sys.exit(f'\nflax cannot be built: {error}')
