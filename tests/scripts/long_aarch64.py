#!/usr/bin/env python3
"""Cross-built for 64-bit ARM, the core of the suite passes in qemu: the kernels against float64, the unit tests on the
CPU that don't take minutes there, and the fuzzers with fewer cases."""
import os
import shutil
import subprocess
import sys

ROOT = os.environ.get("EBB_SOURCE_DIR") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Each takes more than two seconds without qemu, and twenty times as long in it.
MINUTES = ("curves", "steady", "dist/tensor-parallel/(activations|faults|mesh|state|state-private|vocab-loss)$",
           "offload/compositions", "offload/disk/(failures|sim)$", "offload/host/steps", "tensor/internal-allocation",
           "tensor/ops/(fused-linear-cross-entropy|op-cases)$", "tensor/sim/step-failures", "wrap/architectures",
           "wrap/checkpoint/tiles$", "wrap/plan/(lower|planner-(choices|grid|places|segments))$", "wrap/shard/memory",
           "wrap/shard/state/folder")


def find_missing():
    if not os.environ.get("EBB_LONG"):
        return "skipped: EBB_LONG is not set"
    for program, package in (("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"), ("mmdebstrap", "mmdebstrap"),
                             ("qemu-aarch64-static", "qemu-user-static")):
        if not shutil.which(program):
            return f"{program} was not found: install {package}"
    if subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "binfmt_misc", "none",
                       "/proc/sys/fs/binfmt_misc"], check=False, stderr=subprocess.DEVNULL).returncode != 0:
        return "there are no namespaces that have emulators of their own (Linux 6.7)"
    return None


if __name__ == "__main__":
    missing = find_missing()
    if missing is not None:
        print(missing)
        sys.exit(77)
    sys.exit(subprocess.run([os.path.join(ROOT, "scripts", "test-aarch64"), "--label-exclude", "sim|slow",
                             "--exclude-regex", "|".join(MINUTES)], check=False).returncode)
