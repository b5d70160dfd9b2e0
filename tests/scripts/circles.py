#!/usr/bin/env python3
"""Few files of the library need each other.

A C file needs another if its object has an undefined symbol that the other's object defines: nm reads both from a
build. A circle is a set of two or more files, each of which needs all others, if by way of others again (a strongly
connected component). A source that is compiled several times, once for each instruction set, is one file with the
symbols of all its objects. A module's symbols are looked up in the module first, then in the library.

The script prints the circles, largest first, and how many each folder has. It fails if there are more than the options
allow. A circle lies across folders if its files do; files of tensor/ itself may form one with its subfolders, since a
tensor has a graph, a device, and ops. Build all targets first: a source without an object is a fault, unless the build
leaves its module out.
"""
import argparse
import collections
import json
import os
import re
import subprocess
import sys

ROOT = os.environ.get("EBB_SOURCE_DIR") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("EBB_BUILD_DIR") or os.path.join(ROOT, "build", "release")
FOLDERS = ("tensor/", "nn/", "dist/", "offload/", "wrap/", "train/")
# The objects of the library; each other target is a module.
LIBRARY = re.compile(r"ebb-objects|ebb-simd-\w+")


def read_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--circles", type=int, default=10, help="circles that may be (%(default)s)")
    parser.add_argument("--files", type=int, default=50, help="files that may lie in circles (%(default)s)")
    parser.add_argument("--largest", type=int, default=16, help="files that one circle may have (%(default)s)")
    parser.add_argument("--across", type=int, default=0, help="circles that may lie across folders (%(default)s)")
    parser.add_argument("--why", action="store_true", help="print the symbols that close the circles")
    return parser.parse_args()


def find_objects():
    """[(source, target, object)] of the library's C files, by the commands of the build."""
    path = os.path.join(BUILD, "compile_commands.json")
    if not os.path.exists(path):
        sys.exit(f"{path} is not there: configure a build first, or name another by EBB_BUILD_DIR")
    with open(path, encoding="utf-8") as file:
        commands = json.load(file)
    found = []
    for command in commands:
        source = os.path.relpath(command["file"], ROOT)
        output = re.search(r" -o (\S+/([^/\s]+)\.dir/\S+\.o)\b", command["command"])
        if source.startswith(FOLDERS) and source.endswith(".c") and output:
            found.append((source, output.group(2), os.path.join(command["directory"], output.group(1))))
    return found


def read_symbols(objects):
    """{object: (defined, undefined)}"""
    symbols = {path: (set(), set()) for path in objects}
    output = subprocess.run(["nm", "--print-file-name", "--format=posix", "--extern-only", *objects],
                            capture_output=True, text=True, check=True).stdout
    for line in output.splitlines():
        path, _, symbol = line.partition(": ")
        name, kind = symbol.split()[:2]
        symbols[path][kind in "Uvw"].add(name)
    return symbols


def find_needs(found, symbols):
    """{source: {needed source: symbols}}"""
    definers = collections.defaultdict(dict)     # unit: {symbol: source}
    for source, target, path in found:
        unit = "" if LIBRARY.fullmatch(target) else target
        definers[unit].update((name, source) for name in symbols[path][0])
    needs = collections.defaultdict(lambda: collections.defaultdict(set))
    for source, target, path in found:
        unit = "" if LIBRARY.fullmatch(target) else target
        for name in symbols[path][1]:
            needed = definers[unit].get(name) or definers[""].get(name)
            if needed and needed != source:
                needs[source][needed].add(name)
    return needs


def find_circles(needs):
    """Strongly connected components of two or more files, largest first (Tarjan, without recursion)."""
    index, low, stack, on_stack, circles = {}, {}, [], set(), []
    for start in sorted(needs):
        work = [(start, iter(sorted(needs[start])))] if start not in index else []
        while work:
            file, rest = work[-1]
            if file not in index:
                index[file] = low[file] = len(index)
                stack.append(file)
                on_stack.add(file)
            for needed in rest:
                if needed not in index:
                    work.append((needed, iter(sorted(needs[needed] if needed in needs else ()))))
                    break
                if needed in on_stack:
                    low[file] = min(low[file], index[needed])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[file])
                if low[file] == index[file]:
                    position = stack.index(file)
                    circle = stack[position:]
                    del stack[position:]
                    on_stack.difference_update(circle)
                    if len(circle) > 1:
                        circles.append(sorted(circle))
    return sorted(circles, key=lambda circle: (-len(circle), circle))


def lies_across(circle):
    folders = {os.path.dirname(file) for file in circle}
    return len(folders) > 1 and not ("tensor" in folders and all(folder.startswith("tensor") for folder in folders))


def name_folder(circle):
    return os.path.commonpath([os.path.dirname(file) for file in circle]) or "."


def print_circles(circles, needs, why):
    for circle in circles:
        print(f"{len(circle)} files{', across folders' if lies_across(circle) else ''}: {' '.join(circle)}")
        for file in circle if why else []:
            for needed in sorted(set(needs[file]) & set(circle)):
                print(f"    {file} -> {needed}: {' '.join(sorted(needs[file][needed]))}")
    by_folder = collections.defaultdict(list)
    for circle in circles:
        by_folder[name_folder(circle)].append(len(circle))
    for folder, sizes in sorted(by_folder.items()):
        print(f"{folder}/: {len(sizes)} circle{'s' * (len(sizes) > 1)} with {sum(sizes)} files")


def main():
    options = read_options()
    found = find_objects()
    built = [entry for entry in found if os.path.exists(entry[2])]
    symbols = read_symbols([path for _, _, path in built]) if built else {}
    needs = find_needs(built, symbols)
    circles = find_circles(needs)
    print_circles(circles, needs, options.why)

    problems = []
    for file in sorted({source for source, _, _ in found} - {source for source, _, _ in built}):
        problems.append(f"{file} has no object below {BUILD}: build it first")
    figures = [
        ("circles", len(circles), options.circles),
        ("files in circles", sum(map(len, circles)), options.files),
        ("files in the largest circle", max(map(len, circles), default=0), options.largest),
        ("circles across folders", sum(map(lies_across, circles)), options.across),
    ]
    problems += [f"{count} {what}: at most {most} may be" for what, count, most in figures if count > most]
    print(", ".join(f"{count} {what}" for what, count, _ in figures))
    print("\n".join(problems) or "no more than the limits allow")
    sys.exit(1 if problems else 0)


main()
