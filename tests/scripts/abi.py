#!/usr/bin/env python3
"""The built library exports the functions in debian/libebb-1.0-1.symbols and no others, under the SONAME that is there.

A public function that is new is added to that file; --add does it. One that is gone, or a SONAME that changed, breaks
the programs that are linked with the library: EBB_SO_VERSION in CMakeLists.txt and the name of the package change then.
"""
import os
import re
import subprocess
import sys

SOURCE = os.environ.get("EBB_SOURCE_DIR", os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
BUILD = os.environ.get("EBB_BUILD_DIR", os.path.join(SOURCE, "build", "release"))
LIBRARY = os.path.join(BUILD, "libebb-1.0.so")
FILE = os.path.join(SOURCE, "debian", "libebb-1.0-1.symbols")


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main():
    version = run(os.path.join(SOURCE, "scripts", "version")).strip()
    soname, = re.findall(r"\(SONAME\).*\[(.*)\]", run("readelf", "--dynamic", "--wide", LIBRARY))
    symbols = run("nm", "--dynamic", "--defined-only", LIBRARY).splitlines()
    exported = {line.split()[-1].split("@")[0] for line in symbols}
    with open(FILE, encoding="utf-8") as file:
        lines = file.read().splitlines()
    listed = dict(re.findall(r"^ (\w+)@Base (\S+)$", "\n".join(lines), re.MULTILINE))
    if "--add" in sys.argv[1:]:
        listed.update({name: version for name in exported - set(listed)})
        with open(FILE, "w", encoding="utf-8") as file:
            file.write("\n".join([*(line for line in lines if not line.startswith(" ")),
                                  *(f" {name}@Base {listed[name]}" for name in sorted(listed)), ""]))
    problems = [f"{name} is not in {os.path.relpath(FILE, SOURCE)}: add it with tests/scripts/abi.py --add"
                for name in sorted(exported - set(listed))]
    problems += [f"{name} is gone: programs that are linked with {soname} need it"
                 for name in sorted(set(listed) - exported)]
    problems += [f"{name} is a public name that doesn't begin with ebb_" for name in sorted(exported)
                 if not name.startswith("ebb_")]
    if lines[0] != f"{soname} libebb-1.0-1 #MINVER#":
        problems.append(f"the SONAME is {soname}, not that of {lines[0]!r}")
    print("\n".join(problems) or f"{soname}: {len(exported)} symbols")
    return 1 if problems else 0


if __name__ == "__main__":
    if not os.path.exists(LIBRARY):
        print(f"{LIBRARY} is not there")
        sys.exit(77)
    sys.exit(main())
