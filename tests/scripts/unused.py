#!/usr/bin/env python3
"""Each private function has a caller outside of tests/.

A private function is one that is neither static nor exported: it is defined in a source of the library or of the
programs, and debian/libebb-1.0-*.symbols does not list it. A function that only tests call is code that nobody needs:
take it out, and have the tests ask in a public way.
"""
import glob
import os
import re
import sys

ROOT = os.environ.get("EBB_SOURCE_DIR") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDERS = ("tensor", "nn", "dist", "offload", "wrap", "train", "examples")
ENDINGS = (".c", ".h", ".cpp", ".cc", ".cu", ".cuh")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
# A definition has its name at the beginning of a line, its type on the line above.
DEFINITION = re.compile(r"^(?!static|typedef)([^\n#{}();]*)\n([a-z]\w+) \(", re.MULTILINE)
# A declaration begins with its type, at the beginning of a line.
DECLARATION = re.compile(r"^(?:extern )?(?!#|return|else|static inline)\w[\w *]*?[ *]([a-z]\w+) \(", re.MULTILINE)
WORD = re.compile(r"\b[A-Za-z_]\w*\b")


def read_sources():
    """The sources without comments, by path. Strings stay: functions of modules are looked up by name."""
    sources = {}
    for folder in FOLDERS:
        for parent, _, names in os.walk(os.path.join(ROOT, folder)):
            for name in names:
                path = os.path.join(parent, name)
                if name.endswith(ENDINGS):
                    with open(path, encoding="utf-8") as file:
                        sources[os.path.relpath(path, ROOT)] = COMMENT.sub(" ", file.read())
    return sources


def read_exported():
    path, = glob.glob(os.path.join(ROOT, "debian", "libebb-1.0-*.symbols"))
    with open(path, encoding="utf-8") as file:
        return set(re.findall(r"^ (\w+)@", file.read(), re.MULTILINE))


def main():
    sources = read_sources()
    exported = read_exported()
    defined = {}
    mentions = {}
    for path, text in sources.items():
        own = [] if path.endswith(".h") else [match[2] for match in DEFINITION.finditer(text)
                                              if "static" not in match[1].split()]
        defined.update({name: path for name in own if name not in exported and name != "main"})
        counts = mentions.setdefault
        for word in WORD.findall(text):
            mentions[word] = counts(word, 0) + 1
        for name in own + DECLARATION.findall(text):
            mentions[name] -= 1
    unused = sorted((path, name) for name, path in defined.items() if mentions[name] <= 0)
    for path, name in unused:
        print(f"{path}: {name} () has no caller outside of tests/: take it out", file=sys.stderr)
    print(f"{len(defined)} private functions, {len(unused)} without a caller")
    return 1 if unused or not defined else 0


if __name__ == "__main__":
    sys.exit(main())
