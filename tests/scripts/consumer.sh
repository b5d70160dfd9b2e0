#!/bin/bash
# A program outside the tree builds against an installed copy and runs, through CMake and through pkg-config.
set -euo pipefail
. "$(dirname "$0")/../support/install-copy.sh"

consumer=$EBB_SOURCE_DIR/tests/consumer

cmake -S "$consumer" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
cmake --build "$work/cmake" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$work/cmake/consumer"

read -ra flags <<<"$(pkg-config --cflags --libs ebb-1.0)"
"${CC:-cc}" -std=c11 -Wall -Wextra -Werror "$consumer/main.c" -o "$work/consumer" "${flags[@]}" "-Wl,-rpath,$libdir"
"$work/consumer"

# A header of its own is refused, with a word on what to include.
echo '#include <ebb/tensor/version.h>' >"$work/direct.c"
if "${CC:-cc}" -c "$work/direct.c" -o "$work/direct.o" "${flags[@]}" 2>"$work/log"; then
  echo "a header other than <ebb/ebb.h> was accepted"
  exit 1
fi
grep -q 'Only <ebb/ebb.h> can be included directly' "$work/log"

# The headers are C++ as well, where there is a compiler for it.
if command -v c++ >/dev/null; then
  printf '#include <ebb/ebb.h>\nint main () { return ebb_check_version (0, 0, 0) ? 0 : 1; }\n' >"$work/main.cc"
  c++ -Wall -Werror "$work/main.cc" -o "$work/consumer-cc" "${flags[@]}" "-Wl,-rpath,$libdir"
  "$work/consumer-cc"
fi
echo "built and ran outside the tree"
