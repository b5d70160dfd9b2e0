#!/bin/bash
# scripts/quickstart says what is wrong with its arguments, and a short run leaves what it promises.
set -euo pipefail
: "${EBB_SOURCE_DIR:?run this test through ctest}" "${EBB_BUILD_DIR:?run this test through ctest}"
quickstart=$EBB_SOURCE_DIR/scripts/quickstart
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

expect () {
  local wanted=$1 words=$2 status=0
  shift 2
  "$quickstart" "$@" >out 2>&1 || status=$?
  if [ "$status" -ne "$wanted" ] || ! grep -q -e "$words" out; then
    cat out
    echo "quickstart $*: status $status, wanted $wanted and the words: $words"
    exit 1
  fi
}

expect 0 "usage: scripts/quickstart" --help
expect 2 "usage: scripts/quickstart" --no-such-option
expect 2 "usage: scripts/quickstart" one two
expect 1 "no-such-file: no such file" no-such-file
expect 1 ".: no such file" .

# The run itself uses the release build, and builds nothing here.
if [ ! "$EBB_BUILD_DIR" -ef "$EBB_SOURCE_DIR/build/release" ]; then
  exit 0
fi
for number in $(seq 2000); do
  echo "Line $number of a text that is long enough for a few steps."
done >"a text.txt"
EBB_QUICKSTART_STEPS=3 expect 0 "The losses of all 3 steps are equal to the last digit" "a text.txt"
for file in ebb-quickstart.safetensors ebb-quickstart-{none,selective,full,full-disk,full-host}.json; do
  if [ ! -s "$file" ]; then
    cat out
    echo "$file was not left"
    exit 1
  fi
done
