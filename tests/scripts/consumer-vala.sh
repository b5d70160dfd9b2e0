#!/bin/bash
# A Vala program builds against an installed copy and runs.
set -euo pipefail
for tool in valac vapigen; do
  if ! command -v $tool >/dev/null; then
    echo "$tool was not found"
    exit 77
  fi
done
. "$(dirname "$0")/../support/install-copy.sh"

if [ ! -e "$prefix/share/vala/vapi/ebb-1.0.vapi" ]; then
  echo "ebb-1.0.vapi was not built here"
  exit 77
fi
valac --vapidir="$prefix/share/vala/vapi" --pkg=ebb-1.0 --directory="$work" --output=consumer-vala \
  --Xcc="-Wl,-rpath,$libdir" --Xcc=-w "$EBB_SOURCE_DIR/tests/consumer/main.vala"
"$work/consumer-vala"
