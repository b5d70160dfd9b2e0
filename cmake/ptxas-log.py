#!/usr/bin/env python3
"""Runs a compiler and keeps what ptxas says of each kernel in OBJECT.ptxas instead of printing it.

cmake/ptxas-log.py NVCC ARGUMENT...
"""
import subprocess
import sys

command = sys.argv[1:]
result = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
is_ptxas, kept, shown = False, [], []
for line in result.stderr.splitlines(keepends=True):
    # "ptxas info" lines, and the indented ones that go on with stack frame and spills.
    is_ptxas = line.startswith("ptxas info") or (is_ptxas and line.startswith(" "))
    (kept if is_ptxas else shown).append(line)
sys.stderr.writelines(shown)
if "-o" in command and kept:
    with open(command[command.index("-o") + 1] + ".ptxas", "w", encoding="utf-8") as file:
        file.writelines(kept)
sys.exit(result.returncode)
