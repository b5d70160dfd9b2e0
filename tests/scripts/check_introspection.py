#!/usr/bin/env python3
"""What other languages see is what the public headers say: nothing private, nothing moved, nothing missing."""
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

ROOT = os.environ["EBB_SOURCE_DIR"]
BUILD = os.environ["EBB_BUILD_DIR"]
GIR = os.path.join(BUILD, "Ebb-1.0.gir")
LIBRARY = os.path.join(BUILD, "libebb-1.0.so")
CORE = "{http://www.gtk.org/introspection/core/1.0}"
C = "{http://www.gtk.org/introspection/c/1.0}"
FOLDERS = ["tensor", "nn", "dist", "offload", "wrap", "train"]

# Functions that a type is meant to capture.
CAPTURED = {"ebb_device_get", "ebb_device_get_cpu", "ebb_bert_config_get_preset_names",
            "ebb_gpt_config_get_preset_names"}

problems = []

if not os.path.exists(GIR):
    print("Ebb-1.0.gir was not built here")
    sys.exit(77)


def public_text():
    text = open(os.path.join(BUILD, "generated", "tensor", "version.h"), encoding="utf-8").read()
    for folder in FOLDERS:
        for parent, _, names in os.walk(os.path.join(ROOT, folder)):
            for name in names:
                if name.endswith(".h") and not name.endswith("-private.h"):
                    text += open(os.path.join(parent, name), encoding="utf-8").read()
    return text


public = public_text()
words = set(re.findall(r"\w+", public))
tree = ElementTree.parse(GIR)

for element in tree.iter():
    name = element.get(C + "identifier") or element.get(C + "type") or element.get("name")
    if element.get("moved-to") and name not in CAPTURED:
        problems.append(f"{name} was moved to {element.get('moved-to')}: rename it so that nothing captures it")
    symbol = element.get(C + "identifier")
    if symbol and symbol not in words:
        # G_DECLARE and G_DEFINE macros declare these.
        if not symbol.endswith("_get_type"):
            problems.append(f"{symbol} is in the GIR and in no public header")
    kind = element.tag.removeprefix(CORE)
    declared = element.get(C + "type", "").rstrip("*")
    if kind in ("class", "record", "interface", "enumeration", "bitfield", "callback", "alias"):
        if declared.startswith("Ebb") and declared not in words and declared.removesuffix("Class") not in words:
            problems.append(f"{declared} is in the GIR and in no public header")
    if kind in ("property", "method", "virtual-method") and "private" in (element.get("name") or ""):
        problems.append(f"{element.get('name')} is in the GIR, though private by its name")

for cls in tree.iter(CORE + "class"):
    members = {}
    for member in cls:
        kind = member.tag.removeprefix(CORE)
        if kind in ("property", "method"):
            name = (member.get("name") or "").replace("-", "_")
            if name in members and members[name] != kind:
                problems.append(f"{cls.get('name')}.{name} is a property and a method")
            members[name] = kind

nm = shutil.which("nm")
if nm:
    listing = subprocess.run([nm, "-D", "--defined-only", LIBRARY], capture_output=True, text=True, check=True).stdout
    defined = {line.split()[-1].split("@")[0] for line in listing.splitlines()}
    for symbol in sorted(defined):
        if symbol not in words and not (symbol.startswith("ebb_") and symbol.endswith("_get_type")):
            problems.append(f"{symbol} is exported and in no public header")
    for symbol in re.findall(r"^EBB_AVAILABLE_IN_ALL\s+(?!G_DECLARE)[^;(]*?\b(ebb_\w+)\s*\(", public, re.MULTILINE):
        if symbol not in defined:
            problems.append(f"{symbol} is declared in a public header and not exported")

# Programs load them without a GPU, and without MPI: vendors' libraries are linked to modules alone.
VENDORS = re.compile(r"lib(cu\w+|nccl|nv\w+|mpi\w*|open-\w+)\.so")
for namespace in tree.iter(CORE + "namespace"):
    for library in (namespace.get("shared-library") or "").split(","):
        if os.path.basename(library) != "libebb-1.0.so.1":
            problems.append(f"the typelib loads {library}")
readelf = shutil.which("readelf")
if readelf:
    dynamic = subprocess.run([readelf, "-d", LIBRARY], capture_output=True, text=True, check=True).stdout
    problems += [f"the library is linked to {name}" for name in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
                 if VENDORS.match(name)]

print("\n".join(problems) or "the introspection data is in order")
sys.exit(1 if problems else 0)
