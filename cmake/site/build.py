#!/usr/bin/env python3
"""Builds the site: build.py SOURCE BUILD GIR STUB VERSION.

gi-docgen writes the reference of C, Sphinx the guide and the reference of Python, with one search for the three.
Nothing in the site is loaded from elsewhere: it opens from disk and from any server of files.
"""
import ast
import glob
import os
import re
import shutil
import subprocess
import sys

import gidocgen

LINKS = """<div class="section"><h5>Ebb</h5><div class="links">
<a href="../index.html">Guide</a><a href="../python/index.html">Python</a><a href="overview.html">Overview</a>
</div></div>
<div class="search section"><form action="../search.html"><input type="text" name="q" placeholder="Search"
 aria-label="Search"/></form></div>"""
NARROW = """
/* Wide lines scroll inside their box, so that the page fits a phone. */
body { overflow-wrap: anywhere; }
pre, .docblock { overflow-x: auto; }
"""


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write_theme(folder):
    """gi-docgen's own theme, whose search and links are the site's."""
    shutil.copytree(os.path.join(os.path.dirname(gidocgen.__file__), "templates", "basic"),
                    os.path.join(folder, "basic"))
    base = os.path.join(folder, "basic", "base.html")
    text = re.sub(r"\{% if CONFIG\.search_index %\}\s*<div class=\"search.*?\{% endif %\}", lambda _: LINKS, read(base),
                  flags=re.DOTALL)
    text = re.sub(r"\{% if CONFIG\.search_index %\}\s*<script src=\"fzy.*?\{% endif %\}", "", text, flags=re.DOTALL)
    write(base, text)
    for path in glob.glob(os.path.join(folder, "basic", "*.html")):
        write(path, read(path).replace('<section id="main"', '<section id="main" role="main"'))
    write(os.path.join(folder, "basic", "style.css"), read(os.path.join(folder, "basic", "style.css")) + NARROW)
    toml = os.path.join(folder, "basic", "basic.toml")
    write(toml, re.sub(r'  "(fzy|search)\.js",\n', "", read(toml)))


def write_python_pages(stub, stage):
    """A page for each class of the stub, and one for its functions."""
    text = "from __future__ import annotations\n" + read(stub).replace("builtins.", "")
    write(os.path.join(stage, "stub", "ebb.py"), text)
    tree = ast.parse(text)
    public = next(ast.literal_eval(node.value) for node in tree.body
                  if isinstance(node, ast.Assign) and node.targets[0].id == "__all__")
    defined = {node.name: type(node) for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    classes = [name for name in public if defined.get(name) is ast.ClassDef]
    functions = [name for name in public if defined.get(name) is ast.FunctionDef]
    others = [name for name in public if name not in classes and name not in functions]

    def head(title):
        return f"{title}\n{'=' * len(title)}\n\n.. py:currentmodule:: ebb\n\n"

    for name in classes:
        write(os.path.join(stage, "python", f"{name}.rst"), head(name) + f".. autoclass:: ebb.{name}\n")
    write(os.path.join(stage, "python", "functions.rst"),
          head("Functions") + "".join(f".. autofunction:: ebb.{name}\n\n" for name in functions))
    write(os.path.join(stage, "python", "constants.rst"),
          head("Constants and other names") + "".join(f".. py:data:: {name}\n\n" for name in others))
    write(os.path.join(stage, "python", "index.rst"), head("Python") + (
        "``import ebb`` has these names. :doc:`/docs/python` says how to install it, and :doc:`/docs/tutorial` how to "
        "begin. A failure raises ``ebb.Error``.\n\n.. toctree::\n   :hidden:\n\n   functions\n   constants\n" + "".join(
            f"   {name}\n" for name in classes) + "\nClasses\n-------\n.. autosummary::\n\n" + "".join(
            f"   {name}\n" for name in classes) + "\nFunctions\n---------\n.. autosummary::\n\n" + "".join(
            f"   {name}\n" for name in functions)))


def finish(out):
    # Debian's Furo takes this file from a path of the server, and has lost the dark scheme of the system.
    styles = os.path.join(out, "_static", "styles")
    shutil.copy("/usr/share/javascript/normalize.css/normalize.css", styles)
    furo = os.path.join(styles, "furo.css")
    text = read(furo).replace("url(/javascript/normalize.css/normalize.css)", "url(normalize.css)")
    dark = re.search(r'body\[data-theme="dark"\] (\{[^}]*\})', text)[1]
    write(furo, f'{text}@media (prefers-color-scheme: dark) {{ body:not([data-theme="light"]) {dark} }}\n')
    for path in glob.glob(f"{out}/**/*.html", recursive=True):
        if not path.startswith(os.path.join(out, "c", "")):
            depth = os.path.relpath(out, os.path.dirname(path))
            text = read(path)
            write(path, text.replace("https://ebb.invalid/c/", f"{depth}/c/index.html"))


def main(source, build, gir, stub, version):
    stage, out = os.path.join(build, "site-source"), os.path.join(build, "site")
    for folder in (stage, out):
        shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(stage)
    for name in ("docs", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "examples", "cmake", "scripts", "tensor",
                 "tests"):
        os.symlink(os.path.join(source, name), os.path.join(stage, name))
    os.symlink(os.path.join(source, "README.md"), os.path.join(stage, "index.md"))
    for name in ("style.css", "local.js"):
        write(os.path.join(stage, "static", name), read(os.path.join(source, "cmake", "site", name)))
    write_theme(os.path.join(stage, "theme"))
    write_python_pages(stub, stage)
    environment = dict(os.environ, EBB_SITE_OUT=out, EBB_SITE_STAGE=stage, EBB_SITE_VERSION=version,
                       PYTHONDONTWRITEBYTECODE="1")
    subprocess.run(["gi-docgen", "generate", "--quiet", "--no-namespace-dir", f"--config={build}/ebb.toml",
                    f"--content-dir={source}/cmake/site", f"--templates-dir={stage}/theme",
                    f"--output-dir={out}/c", gir], check=True)
    subprocess.run([sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-E", "-b", "html",
                    "-d", os.path.join(stage, "doctrees"), "-c", os.path.join(source, "cmake", "site"), stage, out],
                   env=environment, check=True)
    finish(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
