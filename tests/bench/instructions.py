#!/usr/bin/env python3
"""Counts the instructions of kernels on 64-bit ARM in qemu, where there is no such machine to time them.

Prints a table for docs/performance.md: instructions for each multiply-add or element, of the kernels as they are built
and compiled with other flags, and the share of vector instructions. Needs the build that scripts/test-aarch64 makes.
"""

import argparse
import collections
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from suite.process import ROOT, Failure, progress  # noqa: E402
from suite.report import as_markdown  # noqa: E402

BUILD = os.path.join(ROOT, "build", "aarch64")
SYSROOT = os.path.join(ROOT, "build", "aarch64-sysroot")
PROGRAM = "tests/bench/instructions"
# What the cases run, of tensor/cpu/simd/.
KERNELS = ["few-rows.c", "attention.c", "softmax.c", "unary.c", "layer-norm.c", "random.c", "convert.c", "copy.c"]
# The processor that is emulated, and the flags that the kernels are compiled with as well.
VARIANTS = {
    "as built": ("neoverse-n1", []),
    "N1, fused": ("neoverse-n1", ["-ffp-contract=fast", "-mcpu=neoverse-n1"]),
    "v8.6, fused": ("max,sve=off", ["-ffp-contract=fast", "-march=armv8.6-a"]),
    "SVE, fused": ("max,sve256=on", ["-ffp-contract=fast", "-march=armv8.2-a+sve"]),
}
VECTOR = re.compile(r"\b[vz]\d+\.|\bq\d+\b")
LINE = re.compile(r"^ *([0-9a-f]+):\t[0-9a-f]{8} *\t(.*)$", re.MULTILINE)


def run(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    if done.returncode != 0:
        raise Failure(f"{' '.join(command)[:200]}: {done.stderr[-2000:]}")
    return done.stdout


def build(flags, folder):
    """The program at fixed addresses, with these kernels compiled once more if there are flags."""
    with open(os.path.join(BUILD, "compile_commands.json"), encoding="utf-8") as file:
        sources = [entry for entry in json.load(file) if entry["file"].partition("/tensor/cpu/simd/")[2] in KERNELS]
    jobs, objects = [], []
    for entry in sources:
        words = shlex.split(entry["command"])
        target = os.path.join(folder, os.path.basename(entry["file"]) + ".o")
        words[words.index("-o") + 1] = target
        objects.append(target)
        jobs.append(" ".join(map(shlex.quote, [*words[:-2], *flags, *words[-2:]])))
    if flags:
        run("xargs", f"-P{os.cpu_count()}", "-d\n", "-n1", "sh", "-c", input="\n".join(jobs), cwd=BUILD)
    link = shlex.split(run("ninja", "-C", BUILD, "-t", "commands", PROGRAM).splitlines()[-1].partition("&& ")[2])
    link = link[:link.index("&&")]
    program = os.path.join(folder, "instructions")
    link[link.index("-o") + 1] = program
    first = next(i for i, word in enumerate(link) if word.endswith(".o"))
    run(*link[:first], "-no-pie", *(objects if flags else []), *link[first:], cwd=BUILD)
    return program


def trace(program, cpu, cases):
    """The cases in the order in which they ran, and for each how often each address was executed."""
    counts, current = [], None
    with tempfile.TemporaryDirectory(prefix="ebb-instructions-") as folder:
        pipe = os.path.join(folder, "trace")
        os.mkfifo(pipe)
        command = ["qemu-aarch64-static", "-cpu", cpu, "-L", SYSROOT, "-singlestep", "-d", "exec,nochain", "-D", pipe,
                   program, *cases]
        with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE,
                              text=True) as process:
            was_mark = False
            with open(pipe, "rb") as lines:
                for line in lines:
                    is_mark = line.endswith(b" mark\n")
                    if is_mark and not was_mark:
                        current = None if current is not None else collections.Counter()
                        if current is not None:
                            counts.append(current)
                    elif current is not None and not is_mark:
                        current[line.split(b"/", 2)[1]] += 1
                    was_mark = is_mark
            listed = [line.split() for line in process.stdout]
        if process.returncode != 0:
            raise Failure("the program failed")
    return list(zip(listed, counts, strict=True))


def describe(counts, work, text):
    """Instructions for each unit of work, the share of the program's own that is for vectors, and that of libraries."""
    total = sum(counts.values())
    own = {address: n for address, n in ((f"{int(at, 16):x}", n) for at, n in counts.items()) if address in text}
    n_own = sum(own.values())
    vector = sum(n for address, n in own.items() if VECTOR.search(text[address]))
    elsewhere = f", {1 - n_own / total:.0%} oneDNN" if n_own < 0.9 * total else ""
    return f"{total / work:.2f} ({vector / n_own:.0%}{elsewhere})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="a case", metavar="CASE")
    parser.add_argument("--variant", action="append", choices=VARIANTS, help="flags to compile with")
    options = parser.parse_args()
    variants = options.variant or list(VARIANTS)
    rows = collections.defaultdict(list)
    for variant in variants:
        cpu, flags = VARIANTS[variant]
        with tempfile.TemporaryDirectory(prefix="ebb-instructions-") as folder:
            progress(f"{variant}: compiling")
            program = build(flags, folder)
            progress(f"{variant}: running")
            text = dict(LINE.findall(run("aarch64-linux-gnu-objdump", "-d", program)))
            for (case, work, unit), counts in trace(program, cpu, options.only):
                rows[case, unit].append(describe(counts, int(work), text))
    print(as_markdown(["", "for each", *variants], [[case, unit, *cells] for (case, unit), cells in rows.items()]))


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"instructions.py: {failure}")
