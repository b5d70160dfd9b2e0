"""Sphinx's settings for the site: cmake/site/build.py stages its sources and runs it."""
import json
import os
import re
import sys

from docutils import nodes
from docutils.utils import new_document

OUT = os.environ["EBB_SITE_OUT"]
STAGE = os.environ["EBB_SITE_STAGE"]
sys.path.insert(0, os.path.join(STAGE, "stub"))

project = "Ebb"
author = "The Ebb Authors"
release = os.environ["EBB_SITE_VERSION"]
html_title = f"Ebb {release}"
root_doc = "index"
include_patterns = ["*.md", "docs/*.md", "docs/porting/*.md", "tests/bench/README.md", "python/*.rst"]
exclude_patterns = ["README.md"]
suppress_warnings = ["myst.header", "toc.not_readable"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary"]
myst_heading_anchors = 6
smartquotes = False
autosummary_generate = False
autodoc_default_options = {"members": True, "undoc-members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
add_module_names = False
html_theme = "furo"
html_static_path = [os.path.join(STAGE, "static")]
html_css_files = ["style.css"]
html_js_files = ["local.js"]
html_copy_source = False
html_show_copyright = False
pygments_style = "default"
pygments_dark_style = "monokai"
PAGE_OF_KIND = {"function": "func", "function_macro": "func", "record": "struct", "interface": "iface",
                "constant": "const", "bitfield": "flags", "domain": "error"}


def show_fold(title, *lines):
    return f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n" + "".join(f"{line}\n" for line in lines) + "```\n"


def read_source(_app, name, source):
    """The repository's first page is the site's, and docs/README.md says what the folds of its menu have."""
    source[0] = re.sub(r"\]\(((?:\.\./)+)README\.md", r"](\1index.md", source[0])
    if name != "index":
        return
    with open(os.path.join(STAGE, "docs", "README.md"), encoding="utf-8") as file:
        sections = re.findall(r"^## (.*)\n((?:.+\n)+)", file.read(), re.MULTILINE)
    first = re.compile(r"^\| \[[^\]]*\]\(([\w./-]+)\.md\)", re.MULTILINE)
    folds = {title: [os.path.normpath(f"docs/{link}") for link in first.findall(rows)] for title, rows in sections}
    listed = {page for pages in folds.values() for page in pages} | {"docs/README"}
    folds["Use Ebb"] += sorted({f"docs/{page[:-3]}" for page in os.listdir(os.path.join(STAGE, "docs"))
                                if page.endswith(".md")} - listed)
    source[0] += "".join(show_fold(title, *pages) for title, pages in folds.items() if pages)
    source[0] += show_fold("Porting", ":glob:", "", "docs/porting/*")
    source[0] += show_fold("Reference", "Python <python/index>", "C <https://ebb.invalid/c/>",
                           "All pages <docs/README>", "Programs that measure <tests/bench/README>",
                           "What is new <CHANGELOG>")


def show_docstring(_app, _what, _name, _object, _options, lines):
    """Docstrings are plain text: paragraphs, lists of `name: text`, and words between single backquotes."""
    shown = []
    for part in re.split(r"\n\s*\n", "\n".join(lines)):
        part = re.sub(r"``?\s*([^`]+?)\s*``?", r"\\ ``\1``\\ ", "".join(
            piece if piece.startswith("`") else re.sub(r"([\\*|_])", r"\\\1", piece)
            for piece in re.split(r"(`[^`]+`)", part)))
        if re.match(r"Returns:|Raises:", part):
            head, _, rest = part.partition(":")
            shown.append(f":{head.lower()}: " + " ".join(rest.split()))
        elif all(re.match(r"\w+: |[ ]+\S", line.replace("\\", "")) for line in part.splitlines()):
            items = re.split(r"\n(?=\S)", part)
            shown.extend("* **{}**: {}".format(*" ".join(item.split()).split(": ", 1)) for item in items
                         if ": " in item)
        else:
            shown.append("\n".join(line if part.startswith("- ") else line.strip() for line in part.splitlines()))
    lines[:] = "\n\n".join(shown).splitlines()


def add_reference_of_c(app):
    """The search finds the pages that gi-docgen has written."""
    with open(os.path.join(OUT, "c", "index.json"), encoding="utf-8") as file:
        symbols = json.load(file)["symbols"]
    for symbol in symbols:
        kind, name = symbol["type"], symbol["name"]
        if kind == "content":
            continue
        owner = symbol.get("type_name") or symbol.get("struct_for")
        page = ".".join(filter(None, (PAGE_OF_KIND.get(kind, kind), owner, name)))
        shown = symbol.get("ident") or symbol.get("ctype") or f"Ebb{owner}:{name}"
        document = new_document(page)
        document.settings.env = app.env
        document += nodes.paragraph("", f"{name} {shown} {re.sub('<[^>]*>', '', symbol.get('summary') or '')}")
        app.env.all_docs[f"c/{page}"] = 0
        app.env.titles[f"c/{page}"] = nodes.title("", shown)
        app.builder.indexer.feed(f"c/{page}", f"c/{page}.html", f"{shown} (C)", document)
    return []


def setup(app):
    app.connect("source-read", read_source)
    app.connect("autodoc-process-docstring", show_docstring)
    app.connect("html-collect-pages", add_reference_of_c)
