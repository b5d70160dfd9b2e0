"""Kernels of the GPU spill no registers but where tensor/cuda/kernels/spills.txt allows it.

A spill is a value that ptxas keeps in memory since it ran out of registers. The build keeps what ptxas says beside each
object (cmake/ptxas-log.py). A line of the list is: architecture, bytes of spill stores, bytes of spill loads, kernel;
"#" begins a comment. A kernel that spills more than its line says is a fault, and so is a line without a kernel that
spills. With --write the list is written anew, from a build for all architectures.
"""
import glob
import os
import re
import subprocess
import sys

ROOT = os.environ.get("EBB_SOURCE_DIR") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("EBB_BUILD_DIR") or os.path.join(ROOT, "build", "release")
LIST = os.path.join(ROOT, "tensor", "cuda", "kernels", "spills.txt")
HEADER = """# Kernels that spill registers: architecture, bytes stored, bytes loaded, kernel.
# Blocks of most have up to 512 threads, which leaves 128 registers for each: a few values more lie in the cache.
# tests/scripts/cuda_spills.py reads this list.
"""


def demangle(names):
    if not names:
        return {}
    result = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    # Without the parameters, which a kernel's template arguments imply.
    return dict(zip(names, result.stdout.splitlines()))


def read_spills(paths):
    """{(architecture, mangled name): (stores, loads)} of those that spill, the architectures, the number of kernels."""
    spills, architectures, count = {}, set(), 0
    for path in paths:
        key = None
        with open(path, encoding="utf-8") as file:
            for line in file:
                entry = re.search(r"Compiling entry function '(\S+)' for '(\S+)'", line)
                bytes_ = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line)
                if entry:
                    key = (entry.group(2), entry.group(1))
                    architectures.add(entry.group(2))
                    count += 1
                elif bytes_ and key:
                    if bytes_.group(1) != "0" or bytes_.group(2) != "0":
                        spills[key] = (int(bytes_.group(1)), int(bytes_.group(2)))
                    key = None
    return spills, architectures, count


def read_list():
    allowed = {}
    if not os.path.exists(LIST):
        return allowed
    with open(LIST, encoding="utf-8") as file:
        for line in file:
            fields = line.partition("#")[0].split(None, 3)
            if len(fields) == 4:
                allowed[fields[0], fields[3].strip()] = (int(fields[1]), int(fields[2]))
    return allowed


def main():
    paths = glob.glob(os.path.join(BUILD, "CMakeFiles", "ebb-cuda-kernels.dir", "**", "*.ptxas"), recursive=True)
    # Objects of sources that are gone stay where they were built.
    paths = [p for p in paths if os.path.exists(os.path.join(ROOT, "tensor", "cuda", "kernels",
                                                             os.path.basename(p)[:-len(".o.ptxas")]))]
    if not paths:
        print("no kernels were compiled for GPUs here")
        sys.exit(77)
    mangled, architectures, count = read_spills(paths)
    names = demangle(sorted({name for _, name in mangled}))
    spills = {(architecture, names[name]): size for (architecture, name), size in mangled.items()}
    if sys.argv[1:] == ["--write"]:
        with open(LIST, "w", encoding="utf-8") as file:
            file.write(HEADER)
            file.writelines(f"{a} {stores} {loads} {name}\n" for (a, name), (stores, loads) in sorted(spills.items()))
        print(f"{len(spills)} of {count} kernels spill: {LIST}")
        return
    allowed, problems = read_list(), []
    for key, (stores, loads) in sorted(spills.items()):
        most = allowed.get(key, (0, 0))
        if stores > most[0] or loads > most[1]:
            problems.append(f"{key[0]} {stores} {loads} {key[1]}: {most[0]} and {most[1]} bytes are allowed")
    for key in sorted(set(allowed) - set(spills)):
        if key[0] in architectures:
            problems.append(f"{key[0]} {key[1]}: it is in the list, but does not spill")
    print("\n".join(problems) or f"{count} kernels, {len(spills)} of them spill as the list says")
    sys.exit(1 if problems else 0)


main()
