#!/usr/bin/env python3
"""The site: its links lead somewhere, its references are whole, it loads nothing from elsewhere, and it fits a phone.

The build's target "site" writes it. Headless Chromium opens pages at two widths in a light and a dark scheme, and
searches. Comments of C have no code, which no test would run.
"""
import ast
import html
import html.parser
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.parse
import xml.etree.ElementTree as ElementTree

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
BUILD = os.path.abspath(os.environ.get("EBB_BUILD_DIR", "build/release"))
SITE = os.environ.get("EBB_SITE", os.path.join(BUILD, "site"))
CORE = "{http://www.gtk.org/introspection/core/1.0}"
GLIB = "{http://www.gtk.org/introspection/glib/1.0}"
PAGES = {"class": "class", "record": "struct", "interface": "iface", "enumeration": "enum", "bitfield": "flags",
         "callback": "callback", "constant": "const", "function": "func", "method": "method", "constructor": "ctor",
         "property": "property"}
LOADS = {("link", "href"), ("script", "src"), ("img", "src"), ("source", "src"), ("iframe", "src")}
LOOK = """
<script>addEventListener('load', () => setTimeout(() => {
  document.body.dataset.found = JSON.stringify({
    overflow: document.documentElement.scrollWidth - innerWidth,
    page: getComputedStyle(document.body).backgroundColor, width: innerWidth,
    links: [...document.querySelectorAll('#search-results li > a')].map(link => link.getAttribute('href'))});
}, 2000))</script></body>"""
LOOKED_AT = ["index.html", "search.html", "docs/memory.html", "docs/porting/pytorch.html", "docs/benchmarks.html",
             "python/Tensor.html", "python/functions.html", "c/index.html", "c/overview.html",
             "c/func.checkpoint_wrapper.html", "c/class.Gpt.html"]


class Page(html.parser.HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.loads = set(), [], []
        with open(path, encoding="utf-8") as file:
            self.feed(file.read())

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("id", "name"):
                self.ids.add(value)
            if (tag, name) in LOADS and ("rel", "canonical") not in attributes:
                self.loads.append(value)
            if name in ("href", "src"):
                self.links.append(value)


def list_files(ending):
    for parent, _, names in os.walk(SITE):
        yield from (os.path.join(parent, name) for name in names if name.endswith(ending))


def list_symbols():
    """The names of the pages that gi-docgen writes for the public symbols of the GIR."""
    namespace = ElementTree.parse(os.path.join(BUILD, "Ebb-1.0.gir")).getroot().find(CORE + "namespace")
    for element in namespace:
        kind, name = element.tag.removeprefix(CORE), element.get("name")
        if kind not in PAGES or element.get(GLIB + "is-gtype-struct-for") \
                or element.get("moved-to"):
            continue
        yield f"{'error' if element.get(GLIB + 'error-domain') else PAGES[kind]}.{name}"
        for child in element:
            child_kind = child.tag.removeprefix(CORE)
            if kind in ("class", "record", "interface") and child_kind in PAGES:
                page = "type_func" if child_kind == "function" else PAGES[child_kind]
                yield f"{page}.{name}.{child.get('name')}"


class Site(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if "EBB_SITE" not in os.environ:
            subprocess.run(["cmake", "--build", BUILD, "--target", "site"], check=True, stdout=subprocess.DEVNULL)
        cls.pages = {path: Page(path) for path in list_files(".html")}
        cls.folder = tempfile.mkdtemp(prefix="ebb-site-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)

    def test_links_lead_to_files_and_anchors(self):
        broken, n_links = set(), 0
        for path, page in self.pages.items():
            for link in page.links:
                parts = urllib.parse.urlsplit(link)
                if parts.scheme or parts.netloc:
                    continue
                n_links += 1
                target = os.path.normpath(os.path.join(os.path.dirname(path), urllib.parse.unquote(parts.path)))
                target = target if parts.path else path
                anchor = urllib.parse.unquote(parts.fragment)
                if not os.path.isfile(target) or anchor and target in self.pages \
                        and anchor not in self.pages[target].ids:
                    broken.add((os.path.relpath(path, SITE), link))
        self.assertEqual(sorted(broken), [])
        self.assertGreater(n_links, 10000)

    def test_nothing_is_loaded_from_elsewhere(self):
        for path, page in self.pages.items():
            self.assertEqual([link for link in page.loads if re.match(r"(\w+:)?//", link)], [], path)
        for path in list_files(".css"):
            with open(path, encoding="utf-8") as file:
                self.assertNotRegex(file.read(), r"(url\(|@import )[\"']?(https?:)?/", path)

    def test_every_symbol_of_c_has_a_page(self):
        symbols = set(list_symbols())
        self.assertGreater(len(symbols), 900)
        self.assertEqual([name for name in sorted(symbols)
                          if not os.path.exists(os.path.join(SITE, "c", f"{name}.html"))], [])

    def test_every_name_of_python_has_an_entry(self):
        with open(os.path.join(BUILD, "python", "ebb", "__init__.pyi"), encoding="utf-8") as file:
            tree = ast.parse(file.read())
        names = set(next(ast.literal_eval(node.value) for node in tree.body
                         if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"))
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name[0] != "_":
                names |= {f"{node.name}.{item.name}" for item in node.body
                          if isinstance(item, ast.FunctionDef) and item.name[0] != "_"}
        ids = set().union(*(page.ids for path, page in self.pages.items()
                            if os.path.basename(os.path.dirname(path)) == "python"))
        self.assertGreater(len(names), 1000)
        self.assertEqual(sorted(name for name in names if f"ebb.{name}" not in ids), [])

    def test_comments_of_c_have_no_code(self):
        tree = ElementTree.parse(os.path.join(BUILD, "Ebb-1.0.gir"))
        self.assertEqual([doc.text for doc in tree.iter(CORE + "doc")
                          if re.search(r"\|\[|```|\n\n {4,}\S", doc.text or "")], [])

    def browse(self, name, width=1280, dark=False, query=""):
        """What is found in a page, which gets a script and is otherwise as it is."""
        path = os.path.join(SITE, name)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        copy = os.path.join(os.path.dirname(path), f"look-{width}-{os.path.basename(path)}")
        with open(copy, "w", encoding="utf-8") as file:
            file.write(text.replace("</body>", LOOK))
        # A window of a browser is never narrower than 500 pixels; a frame is.
        frame = os.path.join(SITE, "look-frame.html")
        with open(frame, "w", encoding="utf-8") as file:
            file.write(f'<body><iframe id="frame" width="{width}" height="800" style="border: 0" '
                       f'src="{os.path.relpath(copy, SITE)}{query}"></iframe>'
                       "<script>setTimeout(() => document.body.dataset.found = document.getElementById('frame')"
                       ".contentDocument.body.dataset.found, 4000)</script></body>")
        self.addCleanup(lambda: [os.path.exists(file) and os.remove(file) for file in (copy, frame)])
        done = subprocess.run(
            ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1300,900", "--no-first-run",
             "--virtual-time-budget=6000", f"--user-data-dir={self.folder}", "--host-resolver-rules=MAP * ~NOTFOUND",
             "--allow-file-access-from-files", f"--blink-settings=preferredColorScheme={0 if dark else 1}",
             "--dump-dom", f"file://{frame}"], capture_output=True, text=True, check=True, timeout=200)
        match = re.search(r'data-found="([^"]*)"', done.stdout)
        self.assertIsNotNone(match, (name, done.stdout[-2000:], done.stderr[-2000:]))
        return json.loads(html.unescape(match.group(1)))

    def test_pages_fit_a_desk_and_a_phone_by_day_and_by_night(self):
        for name in LOOKED_AT:
            with self.subTest(page=name):
                found = [self.browse(name, width, dark) for width, dark in ((1280, False), (375, True))]
                self.assertEqual([look["width"] for look in found], [1280, 375])
                self.assertLessEqual(max(look["overflow"] for look in found), 0, found)
                self.assertNotEqual(found[0]["page"], found[1]["page"])

    def test_a_search_finds_the_guide_and_both_references(self):
        links = self.browse("search.html", query="?q=checkpoint_wrapper")["links"]
        for page in (r"c/func\.checkpoint_wrapper\.html", r"python/functions\.html#ebb\.checkpoint_wrapper$",
                     r"docs/porting/fairscale\.html"):
            self.assertTrue(any(re.match(page, link) for link in links), (page, links))


if __name__ == "__main__":
    missing = [name for name in ("gi-docgen", "sphinx-build", "chromium") if not shutil.which(name)]
    if not os.environ.get("EBB_LONG") or missing:
        print("skipped:", f"{missing} not found" if os.environ.get("EBB_LONG") else "EBB_LONG is not set")
        sys.exit(77)
    unittest.main()
