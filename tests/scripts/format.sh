#!/bin/bash
# The C sources are formatted; skipped where clang-format 14 is missing.
exec "$(dirname "$0")/../../scripts/format" --check
