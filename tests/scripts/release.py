#!/usr/bin/env python3
"""scripts/release makes the same sources each time, and refuses a release whose files or versions don't agree."""
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

ROOT = os.environ.get("EBB_SOURCE_DIR", os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))


def git(*words, folder=ROOT):
    return subprocess.run(["git", "-C", folder, "-c", "user.name=A", "-c", "user.email=a@example.org", *words],
                          capture_output=True, text=True, check=True).stdout


class Release(unittest.TestCase):
    def setUp(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        self.tree, self.files = os.path.join(folder, "tree"), os.path.join(folder, "files")
        git("clone", "--quiet", "--shared", ROOT, self.tree)
        # As the tree is, committed or not.
        for name in ("CHANGELOG.md", "CMakeLists.txt", "scripts/release", "scripts/version"):
            shutil.copy2(os.path.join(ROOT, name), os.path.join(self.tree, name))
        git("commit", "--quiet", "--allow-empty", "--all", "--message", "As it is", folder=self.tree)
        self.version = subprocess.run([os.path.join(self.tree, "scripts", "version")], capture_output=True, text=True,
                                      check=True).stdout.strip()

    def release(self, *words):
        return subprocess.run([os.path.join(self.tree, "scripts", "release"), *words], capture_output=True, text=True,
                              check=False, env={**os.environ, "EBB_RELEASE_FOLDER": self.files})

    def refuse(self, said, *words):
        done = self.release(*words)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn(said, done.stderr)

    def replace(self, name, old, new):
        path = os.path.join(self.tree, name)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        self.assertIn(old, text)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace(old, new))

    def test_sources_are_all_files_and_changes_are_seen(self):
        done = self.release("--sources")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        path = os.path.join(self.files, f"ebb-{self.version}.tar.gz")
        with tarfile.open(path) as archive:
            names = {name.split("/", 1)[1] for name in archive.getnames() if not archive.getmember(name).isdir()}
        self.assertEqual(names, set(git("ls-files", folder=self.tree).split("\n")) - {""})
        with open(os.path.join(self.files, "SHA256SUMS"), "w", encoding="utf-8") as file:
            file.write(f"{'0' * 64}  ebb-{self.version}.tar.gz\n")
        done = self.release("--check")
        self.assertEqual(done.returncode, 1)
        self.assertIn("files have changed", done.stderr)

    def test_what_does_not_agree_is_refused(self):
        self.refuse("make the release first", "--check")
        self.replace("CHANGELOG.md", f"## {self.version}\n", "## 0.0.1\n")
        self.refuse("there are changes that are not committed", "--sources")
        git("commit", "--quiet", "--all", "--message", "Another version", folder=self.tree)
        self.refuse(f"CHANGELOG.md has version 0.0.1; CMakeLists.txt has {self.version}", "--sources")


if __name__ == "__main__":
    if not shutil.which("git") or not os.path.exists(os.path.join(ROOT, ".git")):
        print("this is no checkout of git")
        sys.exit(77)
    unittest.main(verbosity=2)
