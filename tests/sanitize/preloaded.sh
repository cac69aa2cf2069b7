#!/bin/sh
# Runs a command with the sanitizers' libraries before all others. Python's own allocator would hide what is freed
# twice or used after that, and what Python keeps until it ends is no leak.
set -eu
library() { "${CC:-gcc}" -print-file-name="$1"; }
export LD_PRELOAD="$(library libasan.so) $(library libubsan.so) $(library libstdc++.so.6)"
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 PYTHONMALLOC=malloc
exec "$@"
