# shellcheck shell=bash
# To be sourced: installs the build into a folder that goes when the test ends. Sets work, prefix and libdir.
: "${EBB_SOURCE_DIR:?run this test through ctest}" "${EBB_BUILD_DIR:?run this test through ctest}"

# The build's own library must not be found instead of the installed one.
unset LD_LIBRARY_PATH GI_TYPELIB_PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix
cmake --install "$EBB_BUILD_DIR" --prefix "$prefix" >"$work/log" 2>&1 || {
  cat "$work/log"
  exit 1
}
pkgconfig=$(find "$prefix" -name ebb-1.0.pc)
# shellcheck disable=SC2034 # for the test that reads this file
libdir=$(dirname "$(dirname "$pkgconfig")")
export PKG_CONFIG_PATH="${pkgconfig%/*}"
