#!/bin/bash
# The shell scripts are clean under shellcheck; skipped where that is missing.
set -euo pipefail
cd "$(dirname "$0")/../.."

if ! command -v shellcheck >/dev/null; then
  echo "shellcheck was not found"
  exit 77
fi
mapfile -t files < <(grep -lE '^#!/bin/(ba)?sh' -r scripts .ci tests --include='*' 2>/dev/null | LC_ALL=C sort)
shellcheck -x -P SCRIPTDIR "${files[@]}"
