#!/usr/bin/env python3
"""Writes the comments of a GIR as Python's docstrings: python-docs.py Ebb-1.0.gir docs.json.

The result has a text by name, "checkpoint_wrapper" or "Tensor.get_item", and for a class its properties, "Linear:bias".
"""
import json
import os
import re
import sys
import textwrap
import xml.etree.ElementTree as ElementTree

CORE = "{http://www.gtk.org/introspection/core/1.0}"
C = "{http://www.gtk.org/introspection/c/1.0}"
GLIB = "{http://www.gtk.org/introspection/glib/1.0}"
KINDS = ("class", "record", "interface")
CALLABLES = ("function", "method", "constructor", "virtual-method")
CONSTANTS = {"TRUE": "True", "FALSE": "False", "NULL": "None"}
WIDTH = 88
FAILURE = re.compile(r"(?:^|[;,.] )(?:or )?(?:on failure )?(?:False|None)(?: (?:with|if|and|on|where) (.*))?$")


def tag(element):
    return element.tag.removeprefix(CORE)


def children(element, *tags):
    return [child for child in element if tag(child) in tags]


def collect_names(namespace):
    """Python's names by C's."""
    names = {}
    for element in namespace:
        name = element.get("name")
        if element.get(C + "type"):
            names[element.get(C + "type")] = name
        if element.get(C + "identifier"):
            names[element.get(C + "identifier")] = name
        for member in children(element, "member"):
            names[member.get(C + "identifier")] = f"{name}.{member.get('name').upper()}"
        for member in children(element, *CALLABLES):
            if member.get(C + "identifier"):
                names[member.get(C + "identifier")] = f"{name}.{member.get('name')}"
    return names


class Writer:
    def __init__(self, namespace):
        self.names = collect_names(namespace)
        self.docs = {}
        for element in namespace:
            self.add(element, "")

    def translate(self, text):
        """A comment in the words of Python."""
        def name(match):
            found = self.names.get(match[1])
            return f"ebb.{found}" if found else match[1]

        text = re.sub(r"%(TRUE|FALSE|NULL)\b", lambda match: CONSTANTS[match[1]], text)
        text = re.sub(r"(?<![\w`])@(\w+)", r"\1", text)
        text = re.sub(r"#(Ebb\w+):([\w-]+)",
                      lambda match: f"ebb.{self.names.get(match[1], match[1])}.{match[2].replace('-', '_')}", text)
        text = re.sub(r"[#%]?\b((?:Ebb|ebb_|EBB_)\w+)(?: (?=\())?", name, text)
        return re.sub(r"[#%](?=[A-Za-z_])", "", text)

    def read(self, element):
        doc = element.find(CORE + "doc")
        text = self.translate(doc.text.strip()) if doc is not None and doc.text else ""
        return text.removeprefix("return location for ")

    def fill(self, text, **indents):
        return "\n".join(textwrap.wrap(" ".join(text.split()), WIDTH, break_on_hyphens=False, break_long_words=False,
                                       **indents))

    def fill_paragraphs(self, text):
        """Paragraphs are filled; what is indented or a list stays as it is."""
        parts = re.split(r"\n\s*\n", text)
        return "\n\n".join(part if re.search(r"^( {2,}|[-|*] )", part, re.MULTILINE) else self.fill(part)
                           for part in parts)

    def describe_callable(self, element):
        parts = [self.fill_paragraphs(self.read(element))]
        parameters = element.find(CORE + "parameters")
        given = children(parameters, "parameter") if parameters is not None else []
        hidden = set()
        for kind in [element.find(CORE + "return-value"), *given]:
            array = kind.find(CORE + "array") if kind is not None else None
            if array is not None and array.get("length"):
                hidden.add(int(array.get("length")))
            if kind is not None and kind.tag == CORE + "parameter":
                hidden.update(int(kind.get(key)) for key in ("closure", "destroy") if kind.get(key))
        lines, out = [], []
        for index, parameter in enumerate(given):
            text = self.read(parameter)
            if index in hidden or not text:
                continue
            (out if parameter.get("direction") == "out" else lines).append(
                self.fill(f"{parameter.get('name')}: {text}", subsequent_indent="    "))
        if lines:
            parts.append("\n".join(lines))
        result = element.find(CORE + "return-value")
        returned = " ".join(self.read(result).split()) if result is not None else ""
        # What a function that fails returns is said in C's words: "the sum; None with ebb.Error.SHAPE if …".
        fails = element.get("throws") == "1"
        failure = FAILURE.search(returned) if fails else None
        if failure:
            returned = returned[:failure.start()]
        if out:
            parts.append("Returns:\n" + "\n".join(textwrap.indent(line, "    ") for line in out))
        elif returned and not (fails and result.find(f"{CORE}type[@name='gboolean']") is not None):
            parts.append(self.fill(f"Returns: {returned}", subsequent_indent="    "))
        if fails:
            text = re.sub(r"^(an )?error( (is )?set)?( to)?[:, ]*", "", failure[1] if failure else "")
            named = text.startswith(("ebb.Error", "the error"))
            parts.append(self.fill("Raises: " + (text if named else f"ebb.Error {text}"), subsequent_indent="    "))
        return "\n\n".join(part for part in parts if part)

    def add(self, element, prefix):
        kind, name = tag(element), element.get("name")
        if kind in CALLABLES and kind != "virtual-method":
            self.docs[prefix + name] = self.describe_callable(element)
        elif kind in ("enumeration", "bitfield"):
            members = [f"{member.get('name').upper()}: {self.read(member)}" for member in children(element, "member")]
            self.docs[name] = "\n\n".join(filter(None, (
                self.fill_paragraphs(self.read(element)),
                "\n".join(self.fill(member, subsequent_indent="    ") for member in members))))
        elif kind == "property":
            self.docs[f"{prefix[:-1]}:{name}"] = self.fill_paragraphs(self.read(element))
        elif kind in KINDS and not element.get(GLIB + "is-gtype-struct-for"):
            self.docs[name] = self.fill_paragraphs(self.read(element))
            for child in element:
                self.add(child, f"{name}.")
        elif kind == "field" and self.read(element):
            self.docs[f"{prefix[:-1]}:{name}"] = self.fill_paragraphs(self.read(element))


def main(gir, path):
    namespace = ElementTree.parse(gir).getroot().find(CORE + "namespace")
    docs = {name: text for name, text in sorted(Writer(namespace).docs.items()) if text}
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(docs, file, ensure_ascii=False, indent=0)
    os.replace(path + ".new", path)


if __name__ == "__main__":
    main(*sys.argv[1:])
