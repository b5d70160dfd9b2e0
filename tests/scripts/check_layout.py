#!/usr/bin/env python3
"""The source tree keeps its order.

Folders include only what stands to their left, public headers include no private one, backends know nothing of
autograd, the map in docs/architecture.md shows the folders in their order, the umbrella lists every public header,
files open with their licence, stay short and have lines within 120 columns, each public function has its
documentation above its definition, and files are read by readers that refuse pipes and devices.
"""
import os
import re
import sys

ROOT = os.environ.get("EBB_SOURCE_DIR") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDERS = ["tensor", "nn", "dist", "offload", "wrap", "train"]
# The order of the folders inside each: a file includes headers of its own folder and of those to the left. "." is the
# folder's own files. Those of tensor/ are below its subfolders, but a tensor has a graph, a device and ops, so they may
# include any of them. docs/architecture.md says what each folder is for.
SUBFOLDERS = {
    "tensor": [".", "util", "backend", "cpu", "cpu/simd", "sim", "cuda", "cuda/kernels", "profile/page", "profile",
               "autograd", "ops"],
    "nn": [".", "files", "layers", "optim", "data", "data/tokenizer", "state", "models", "models/folder"],
    "dist": ["group", ".", "thread", "mpi", "nccl", "tensor-parallel"],
    "offload": ["transfer", ".", "host", "disk", "contiguous", "partitioned", "kinds"],
    "wrap": [".", "shard", "shard/state", "checkpoint", "lora", "plan/chain", "plan", "plan/planner",
             "compat"],
    "train": ["."],
}
# Folders that know nothing of each other, whatever their order: they meet at the owner of a parameter.
STRANGERS = {"wrap": [("checkpoint", "shard")]}
MAX_FILES = 45
SKIPPED = {"build", ".git", ".venv", "__pycache__"}
MAX_LINES = 1200
MAX_COLUMNS = 120
# C++ and CUDA: of the library its kernels, of the tests what stands in for CUDA.
C_ENDINGS = (".c", ".h")
CXX_ENDINGS = (".cpp", ".cc", ".cu", ".cuh")
NO_ENDING = "no ending"    # of scripts that are started by their names
LICENCE = "SPDX-License-Identifier: Apache-2.0"
# Below the first line and, in a header, below its guard.
OPENING = re.compile(r"[^\n]*\n(#pragma once\n\n)?(/\* |// )")
GLIB_LOCK = re.compile(r"\b(GMutex|GRecMutex|GRWLock|GCond|G_LOCK_DEFINE\w*)\b")
# What a backend may know of its own folder: views of memory, never tensors with a graph.
BACKEND_FORBIDDEN = re.compile(r"tensor/(autograd/.*|ops/.*|tensor|tensor-private|thread-private)\.h")

# Calls that wait for a pipe's writer and read a device without end. Files of the kernel are what they are: a path that
# begins with /proc/ or /sys/ stands in the call, or in the lines above it.
UNGUARDED_READ = re.compile(r"\b(g_file_get_contents|g_file_load_contents|g_mapped_file_new|fopen|\w+_load_from_file"
                            r"|\w+_load_from_mapped_file|open \([^;]*O_RDONLY(?![^;]*O_DIRECTORY)) ?")
KERNEL_FILE = re.compile(r"/(proc|sys)/|/dev/null")
LINES_TO_KERNEL_FILE = 15
GUARDED_READERS = ("tensor/util/atomic-file.c", "examples/common/read-file.c")

# Programs that call private functions of the library until EbbTrainer calls these for them. They compile the sources
# themselves (cmake/EbbExamples.cmake).
INSIDERS = ("examples/common/memory/concessions.c", "examples/common/report/log.h", "examples/common/report/progress.c")

problems = []


def complain(path, line, message):
    problems.append(f"{os.path.relpath(path, ROOT)}:{line}: {message}")


def files(folder, *endings):
    for parent, folders, names in os.walk(os.path.join(ROOT, folder)):
        folders[:] = sorted(f for f in folders if f not in SKIPPED)
        for name in sorted(names):
            if name.endswith(endings) or (NO_ENDING in endings and "." not in name):
                yield os.path.join(parent, name)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def is_private(header):
    return header.endswith("-private.h")


def public_headers():
    yield os.path.join(ROOT, "tensor", "version.h.in")
    for folder in FOLDERS:
        for path in files(folder, ".h"):
            if not is_private(path):
                yield path


def get_subfolder(relative):
    return os.path.relpath(os.path.dirname(relative), relative.split("/")[0])


def check_subfolders(path, number, relative, included):
    top = relative.split("/")[0]
    order = SUBFOLDERS[top]
    own, other = get_subfolder(relative), get_subfolder(included)
    if own not in order or other not in order:
        complain(path, number, f"{top}/{own if own not in order else other} has no place in the order of {top}/")
    elif order.index(other) > order.index(own) and (top, own) != ("tensor", "."):
        complain(path, number, f"{top}/{own}/ may not include {top}/{other}/, which stands to its right")
    for pair in STRANGERS.get(top, []):
        if {own.split("/")[0], other.split("/")[0]} == set(pair):
            complain(path, number, f"{top}/{own}/ and {top}/{other}/ may not include each other")


def check_map():
    """The map in docs/architecture.md has the folders in the order of SUBFOLDERS."""
    path = os.path.join(ROOT, "docs", "architecture.md")
    shown, top = [], None
    for line in read(path).partition("<!-- map -->\n```text\n")[2].partition("```")[0].splitlines():
        indent, name = re.match(r"( *)(\S+)/ ", line + " ").groups()
        top = top if indent else name.split("/")[0]
        shown.append(f"{top}/{name}" if indent else name)
    wanted = [os.path.normpath(os.path.join(top, name)) for top in FOLDERS for name in SUBFOLDERS[top]]
    if shown != wanted:
        complain(path, 1, f"the map shows {', '.join(shown)}; the order of folders is {', '.join(wanted)}")
    for folder in wanted:
        if not os.path.isdir(os.path.join(ROOT, folder)):
            complain(path, 1, f"the order of folders names {folder}/, which is not there")


def check_sizes():
    for folder in FOLDERS:
        for parent, folders, names in os.walk(os.path.join(ROOT, folder)):
            folders[:] = [f for f in folders if f not in SKIPPED]
            if len(names) > MAX_FILES:
                complain(parent, 1, f"{len(names)} files: a folder of the library has at most {MAX_FILES} of its own")


def check_includes():
    for position, folder in enumerate(FOLDERS):
        for path in files(folder, *C_ENDINGS, *CXX_ENDINGS):
            relative = os.path.relpath(path, ROOT)
            for number, line in enumerate(read(path).splitlines(), 1):
                match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
                if not match:
                    continue
                included = match.group(1)
                top = included.split("/")[0]
                if top not in FOLDERS:
                    complain(path, number, f'write the include as "folder/file.h", not "{included}"')
                elif FOLDERS.index(top) > position:
                    complain(path, number, f"{folder}/ may not include {top}/, which stands to its right")
                elif top == folder:
                    check_subfolders(path, number, relative, included)
                if path.endswith(".h") and not is_private(path) and is_private(included):
                    complain(path, number, f"a public header includes the private {included}")
                if re.match(r"tensor/(cpu|cuda|sim)/", relative) and BACKEND_FORBIDDEN.fullmatch(included):
                    complain(path, number, f"a backend includes {included}: backends know nothing of autograd")
    for path in list(files("examples", *C_ENDINGS)) + list(files("tests", *C_ENDINGS)):
        relative = os.path.relpath(path, ROOT)
        if (re.match(r"tests/(support|fuzz|bench)/", relative) or "/* test: private-headers" in read(path)
                or relative in INSIDERS):
            continue
        for number, line in enumerate(read(path).splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+["<]((?:ebb/)?(?:%s)/[^">]+)[">]' % "|".join(FOLDERS), line)
            if match:
                complain(path, number, f"include <ebb/ebb.h>, not {match.group(1)}")


def check_umbrella():
    listed = re.findall(r'#include "([^"]+)"', read(os.path.join(ROOT, "ebb.h")))
    wanted = [os.path.relpath(path, ROOT).removesuffix(".in") for path in public_headers()]
    for header in sorted(set(wanted) - set(listed)):
        complain(os.path.join(ROOT, "ebb.h"), 1, f"{header} is missing: run scripts/update-umbrella")
    for header in sorted(set(listed) - set(wanted)):
        complain(os.path.join(ROOT, "ebb.h"), 1, f"{header} is no public header: run scripts/update-umbrella")
    if len(listed) != len(set(listed)):
        complain(os.path.join(ROOT, "ebb.h"), 1, "a header is listed twice: run scripts/update-umbrella")
    for path in public_headers():
        if "#error \"Only <ebb/ebb.h> can be included directly.\"" not in read(path):
            if os.path.basename(path) != "macros.h":
                complain(path, 1, "no guard against being included directly")


def check_text():
    for folder in FOLDERS + ["examples", "tests", "bindings", "cmake", "scripts", ".ci"]:
        plain = [NO_ENDING] if folder in ("scripts", ".ci") else []
        for path in files(folder, *C_ENDINGS, *CXX_ENDINGS, ".py", ".js", ".vala", ".sh", ".cmake", ".in", *plain):
            text = read(path)
            lines = text.splitlines()
            if path.endswith(C_ENDINGS + CXX_ENDINGS) and (not lines or LICENCE not in lines[0]):
                complain(path, 1, f"the first line does not say {LICENCE}")
            if path.endswith(CXX_ENDINGS) and not OPENING.match(text):
                complain(path, 2, "below the licence a comment says what the file is for")
            if len(lines) > MAX_LINES:
                complain(path, MAX_LINES, f"{len(lines)} lines: a file has one purpose and at most {MAX_LINES} lines")
            if text.startswith("#!") != os.access(path, os.X_OK):
                complain(path, 1, "a file that opens with #! is executable, and no other file is")
            if text and not text.endswith("\n"):
                complain(path, len(lines), "no newline at the end")
            for number, line in enumerate(lines, 1):
                if len(line) > MAX_COLUMNS:
                    complain(path, number, f"{len(line)} columns, more than {MAX_COLUMNS}")
                if line != line.rstrip():
                    complain(path, number, "blanks at the end of the line")
                if "\t" in line:
                    complain(path, number, "a tab")
                if GLIB_LOCK.search(line) and path.endswith(C_ENDINGS):
                    complain(path, number, "a lock of GLib's, which ThreadSanitizer can't see: take pthread_mutex_t")


def check_tests():
    """A test that isn't for the CPU alone also runs as NAME-on-sim, where only test_init () takes that device."""
    for folder in FOLDERS:
        for path in files(os.path.join("tests", folder), ".c"):
            text = read(path)
            if "  g_test_init (" in text and not re.match(r"[^\n]*\n/\* test: [a-z -]*\bcpu-only\b", text):
                complain(path, 2, "it runs on the emulated device, too: begin with test_init (), or declare cpu-only")


def public_functions():
    prototype = re.compile(r"^EBB_AVAILABLE_IN_ALL\s+(?!G_DECLARE)[^;(]*?\b(ebb_\w+)\s*\(", re.MULTILINE)
    for path in public_headers():
        text = read(path)
        for match in prototype.finditer(text):
            name = match.group(1)
            if not name.endswith(("_get_type", "_quark")):
                yield name, path, text[:match.start(1)].count("\n") + 1


def check_documentation():
    documented = re.compile(r"/\*\*\n \* (ebb_\w+):.*?\*/\n(?:[^\n{}();]*\n){1,3}?(ebb_\w+) \(", re.DOTALL)
    by_macro = re.compile(r"/\*\*\n \* (ebb_\w+):(?:(?!\*/).)*?\*/\n[A-Z][A-Z0-9_]+ \(", re.DOTALL)
    found = set()
    for folder in FOLDERS:
        for path in files(folder, ".c"):
            text = read(path)
            found.update(by_macro.findall(text))
            for match in documented.finditer(text):
                if match.group(1) == match.group(2):
                    found.add(match.group(1))
                else:
                    complain(path, text[:match.start()].count("\n") + 2,
                             f"the documentation of {match.group(1)} stands above {match.group(2)}")
    for name, path, line in public_functions():
        if name not in found:
            complain(path, line, f"{name} has no documentation above its definition")


def check_exports():
    exported = re.compile(r"^(?!EBB_AVAILABLE_IN_ALL)(?:const )?\w[\w *]*?\b(ebb_\w+) \([^;{]*\);", re.MULTILINE)
    for path in public_headers():
        text = read(path)
        for match in exported.finditer(text):
            before = text[:match.start()].rstrip().rsplit("\n", 1)[-1]
            if before != "EBB_AVAILABLE_IN_ALL" and not match.group(0).startswith("typedef"):
                complain(path, text[:match.start()].count("\n") + 1, f"{match.group(1)} has no EBB_AVAILABLE_IN_ALL")


def check_reads():
    """Files that others wrote are read by ebb_read_file (), or by programs by read_file_or_pipe ()."""
    for folder in FOLDERS + ["examples"]:
        for path in files(folder, *C_ENDINGS, *CXX_ENDINGS):
            lines = read(path).splitlines() if os.path.relpath(path, ROOT) not in GUARDED_READERS else []
            for number, line in enumerate(lines, 1):
                above = "\n".join(lines[max(0, number - LINES_TO_KERNEL_FILE):number])
                if UNGUARDED_READ.search(line) and not KERNEL_FILE.search(above):
                    complain(path, number, "it may hang on a pipe, or read a device without end: take ebb_read_file ()")


check_includes()
check_map()
check_sizes()
check_umbrella()
check_text()
check_tests()
check_documentation()
check_exports()
check_reads()
print("\n".join(problems) or "the layout is in order")
sys.exit(1 if problems else 0)
