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
expect 2 "usage: scripts/quickstart" --compare one two
expect 2 "usage: scripts/quickstart" --compare --compare
expect 1 "no-such-file: no such file" no-such-file
expect 1 ".: no such file" .

# The run itself uses the release build, and builds nothing here.
if [ ! "$EBB_BUILD_DIR" -ef "$EBB_SOURCE_DIR/build/release" ]; then
  exit 0
fi
for number in $(seq 2000); do
  echo "Line $number of a text that is long enough for a few steps."
done >"a text.txt"
EBB_QUICKSTART_STEPS=3 expect 0 "The losses of all 3 steps are equal to the last digit" --compare "a text.txt"
EBB_QUICKSTART_STEPS=30 expect 0 "step 30/30" "a text.txt"
# One training whose loss falls, a sample, and last the page.
if ! awk '/^30 steps in/ { runs++; fell = $6 > $8 + 0 } END { exit !(runs == 1 && fell) }' out \
  || ! grep -q '^Once' out || [ "$(tail -n 1 out)" != "  $PWD/ebb-quickstart.html" ]; then
  cat out
  echo "it did not train once to a lower loss, or its sample or the path of its page is missing"
  exit 1
fi
# The command that it prints, and Python, work without another build.
bash -euc "$(grep -e '/generate --model' out)" >sample
if /usr/bin/python3 -c "import gi" 2>/dev/null; then
  env --unset=GI_TYPELIB_PATH --unset=LD_LIBRARY_PATH PYTHONPATH="$EBB_SOURCE_DIR/bindings/python" \
    /usr/bin/python3 -c "import ebb; ebb.open_model('ebb-quickstart')"
fi
for file in sample ebb-quickstart/model.safetensors ebb-quickstart.html \
  ebb-quickstart-{none,selective,full,full-disk,full-host}.json; do
  if [ ! -s "$file" ]; then
    cat out
    echo "$file was not left"
    exit 1
  fi
done
