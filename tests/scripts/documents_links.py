#!/usr/bin/env python3
"""Links of README.md, CONTRIBUTING.md and docs/ lead somewhere, the index has every page, README's programs are files.

A link to a heading names a heading that is there, and a path of the tree between backquotes names a file that is there.
README.md's program in C is examples/first_step.c, and its program in Python is examples/python/first_step.py, to the
letter: other tests compile and run both.
"""
import glob
import os
import re
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "support"))
from document_blocks import NAMES, read, read_blocks  # noqa: E402

PAGES = [*NAMES, "CONTRIBUTING.md"]
PROGRAMS = {"c": (os.path.join("examples", "first_step.c"), "#include"),
            "python": (os.path.join("examples", "python", "first_step.py"), "import")}


def without_blocks(name):
    return re.sub(r"^```.*?^```$", "", read(name), flags=re.MULTILINE | re.DOTALL)


def read_anchors(name):
    """The anchors of a page's headings, as GitHub makes them: lower case, no punctuation, hyphens for blanks."""
    headings = re.findall(r"^#+ (.*)$", without_blocks(name), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def read_links(name):
    text = re.sub(r"`[^`]*`", "", without_blocks(name))
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


class Links(unittest.TestCase):
    def test_links_lead_to_files_and_headings(self):
        n_links = 0
        for name in PAGES:
            for link in read_links(name):
                with self.subTest(page=name, link=link):
                    path, _, anchor = link.partition("#")
                    target = os.path.normpath(os.path.join(os.path.dirname(name), path)) if path else name
                    self.assertTrue(os.path.exists(os.path.join(ROOT, target)), "there is no such file")
                    if anchor:
                        self.assertIn(anchor, read_anchors(target))
                n_links += 1
        self.assertGreater(n_links, 100)

    def test_paths_of_the_tree_exist(self):
        folders = "|".join(sorted(name for name in os.listdir(ROOT) if os.path.isdir(os.path.join(ROOT, name))))
        path = re.compile(rf"`((?:{folders})/[\w/.*-]*)`")
        paths = {(name, found) for name in PAGES for found in path.findall(without_blocks(name))
                 if "NAME" not in found and "PRESET" not in found and not found.startswith("build/")}
        self.assertGreater(len(paths), 60)
        for name, found in sorted(paths):
            with self.subTest(page=name, path=found):
                test = os.path.join(ROOT, "tests", f"{found}.c")    # tests/nn/args.c is the test nn/args
                self.assertTrue(glob.glob(os.path.join(ROOT, found)) or os.path.exists(test), "there is no such file")

    def test_the_index_has_every_page(self):
        index = os.path.join("docs", "README.md")
        pages = {os.path.relpath(name, "docs") for name in NAMES if name not in ("README.md", index)}
        self.assertEqual(pages - {link.partition("#")[0] for link in read_links(index)}, set())


class Programs(unittest.TestCase):
    def test_the_programs_of_the_readme_are_the_examples(self):
        for language, (path, first_word) in PROGRAMS.items():
            with self.subTest(program=path):
                shown = [block.code for block in read_blocks(language) if block.document == "README.md"]
                text = read(path)
                self.assertEqual([text[text.index(f"\n{first_word}") + 1:]], shown)


if __name__ == "__main__":
    unittest.main()
