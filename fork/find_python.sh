#!/bin/sh
# find_python.sh [VERSION ...]: prints the first Python of these versions, by default the newest that
# the fork supports: on the path by version, then pyenv's.
for version in ${*:-3.13 3.12 3.11}; do
  for python in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version".*/bin/python; do
    # A pyenv shim stands on the path for versions that are not active, and fails.
    if "$python" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" 2>/dev/null; then
      command -v "$python"
      exit 0
    fi
  done
done
echo "no Python ${*:-3.11, 3.12 or 3.13} found on the path or under pyenv; name one with PYTHON=" >&2
exit 1
