#!/bin/bash
# Ebb builds in a bare Debian 12 that has only what scripts/install-packages installs: Debian's own CMake and no ccache.
# First CUDA is hidden: scripts/quickstart trains for a few steps, and what README shows next runs. Then CUDA's folder
# is mounted: a fresh configuration finds it, and compiles one kernel and one program.
set -euo pipefail
root=$(realpath "$(dirname "$0")/../..")
bare=$root/build/bare-debian

skip () {
  echo "skipped: $*"
  exit 77
}
[ -n "${EBB_LONG-}" ] || skip "EBB_LONG is not set"
[ "$(id -u)" -eq 0 ] || skip "only root can make a bare Debian"
command -v mmdebstrap >/dev/null || skip "mmdebstrap was not found (Debian: apt-get install mmdebstrap)"
unshare --mount true 2>/dev/null || skip "there are no namespaces of mounts"
# Mounts below the folder belong to this namespace alone, which ends with this script however that ends.
if [ -z "${EBB_BARE_DEBIAN-}" ]; then
  EBB_BARE_DEBIAN=1 exec unshare --mount "$0"
fi

clean_up () {
  for folder in usr/local/cuda dev proc; do
    if mountpoint --quiet "$bare/$folder"; then umount --recursive "$bare/$folder"; fi
  done
  rm -rf --one-file-system "$bare"
}
clean_up
trap clean_up EXIT
trap 'exit 1' HUP INT TERM
mkdir -p "$bare"
log=$bare.log
if ! mmdebstrap --mode=root --variant=apt bookworm "$bare" >"$log" 2>&1; then
  tail -n 3 "$log"
  skip "mmdebstrap made no bare Debian: is its archive within reach?"
fi
for file in /etc/resolv.conf /etc/apt/apt.conf.d/*prox*; do
  if [ -e "$file" ]; then cp --dereference "$file" "$bare$file"; fi
done
mkdir "$bare/ebb"
(cd "$root" && git ls-files -z --cached --others --exclude-standard | xargs -0 tar --create --ignore-failed-read) \
  2>/dev/null | tar --extract --directory="$bare/ebb"
mount -t proc proc "$bare/proc"
mount --rbind /dev "$bare/dev"
mount --make-rslave "$bare/dev"

# Runs a command of a shell in the bare system's copy of the tree; how long it took is seen in CI.
inside () {
  local before=$SECONDS
  if ! chroot "$bare" env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LC_ALL=C.UTF-8 bash -euo pipefail -c "cd /ebb && $1" >"$log" 2>&1; then
    grep -A 8 -m 5 -E '^CMake Error|^FAILED: ' "$log" || true
    tail -n 30 "$log"
    echo "In a bare Debian this failed: $1"
    exit 1
  fi
  echo "$((SECONDS - before)) s: $1"
}

expect () {
  if ! grep -q -e "$1" "$log"; then
    cat "$log"
    echo "Its output lacks: $1"
    exit 1
  fi
}

inside "EBB_QUICKSTART_STEPS=20 scripts/quickstart"
inside "$(sed -n '\,^\(build/release/examples/\|export PYTHONPATH=\|/usr/bin/python3 \),p' "$root/README.md")"
expect "^loss "
nvcc=$(command -v "${CUDACXX:-nvcc}" || echo /usr/local/cuda/bin/nvcc)
if [ ! -x "$nvcc" ]; then
  echo "CUDA was not found: only a machine without it was tried"
  exit 0
fi
# The compiler may be a link, or a script that calls it.
cuda=$("$nvcc" --dryrun -x cu -c /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p')
cuda=$(realpath "${cuda:-$(dirname "$nvcc")/..}")
mkdir -p "$bare/usr/local/cuda"
mount --bind "$cuda" "$bare/usr/local/cuda"
inside "scripts/install-packages"
# What was configured is forgotten; objects whose commands are the same need not be compiled again.
inside "cd build/release && rm -r CMakeCache.txt CMakeFiles/[0-9]* && cd /ebb && cmake --preset release"
expect "CUDA compiler identification is NVIDIA"
inside "cmake --build build/release --target CMakeFiles/ebb-cuda-kernels.dir/tensor/cuda/kernels/copy.cu.o"
inside "cmake --build build/release --target example-first_step && build/release/examples/first_step"
expect "^loss "
inside "cmake --preset release -B build/off -DEBB_WITH_CUDA=OFF"
