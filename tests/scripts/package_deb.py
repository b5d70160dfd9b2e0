#!/usr/bin/env python3
"""scripts/package deb gives each state of the tree a later version, keeps the caller's build profiles, and shows the
first error of a build; a stand-in for dpkg-buildpackage builds nothing."""
import os
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.environ.get("EBB_SOURCE_DIR", os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
FILES = ("CMakeLists.txt", "debian/control", "scripts/package", "scripts/package-deb", "scripts/package-wheel",
         "scripts/version")
STAND_IN = """#!/bin/bash
[ -z "$FAILS" ] || { echo "CMake Error at a.cmake:1"; seq 100; exit 2; }
head -n 1 debian/changelog >../ebb.changes
echo "profiles $DEB_BUILD_PROFILES" >../ebb.buildinfo
touch ../ebb.deb
"""


class PackageDeb(unittest.TestCase):
    def setUp(self):
        self.tree = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.tree)
        for name in FILES:
            os.makedirs(os.path.dirname(os.path.join(self.tree, name)), exist_ok=True)
            shutil.copy2(os.path.join(ROOT, name), os.path.join(self.tree, name))
        self.write(".gitignore", "/build\n/bin\n")
        self.git("init", "--quiet")
        self.commit()

    def write(self, name, text):
        path = os.path.join(self.tree, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)

    def git(self, *words):
        subprocess.run(["git", "-C", self.tree, "-c", "user.name=A", "-c", "user.email=a@example.org", *words],
                       env={**os.environ, "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z"}, check=True)

    def commit(self):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "Files")

    def package(self, kind="deb", path=os.environ["PATH"], **variables):
        return subprocess.run(["/bin/bash", os.path.join(self.tree, "scripts", "package"), kind], capture_output=True,
                              text=True, check=False, env={**os.environ, "PATH": path, "EBB_PACKAGE_CUDA": "no",
                                                           "FAILS": "", **variables})

    def read_version(self, **variables):
        self.write("bin/dpkg-buildpackage", STAND_IN)
        done = self.package(path=f"{self.tree}/bin:{os.environ['PATH']}", **variables)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(os.path.join(self.tree, "build", "packages", "ebb.changes"), encoding="utf-8") as file:
            return re.match(r"ebb \((.*)\) ", file.read()).group(1)

    def test_each_change_has_a_later_version(self):
        released = self.read_version(EBB_PACKAGE_RELEASE="yes")
        self.assertRegex(released, r"^\d+\.\d+\.\d+$")
        committed = self.read_version()
        self.assertRegex(committed, rf"^{re.escape(released)}\+git\d{{14}}\.[0-9a-f]+$")
        self.assertEqual(self.read_version(), committed)
        self.assertEqual(self.read_version(GIT_TEST_ASSUME_DIFFERENT_OWNER="1"), committed)  # another user's folder
        self.write("debian/new-file", "A change\n")
        changed = self.read_version()
        if shutil.which("dpkg"):
            for older, newer in ((released, committed), (committed, changed)):
                subprocess.run(["dpkg", "--compare-versions", older, "lt", newer], check=True)

    def test_the_profiles_of_the_caller_are_kept(self):
        self.read_version(DEB_BUILD_PROFILES="nodoc")
        with open(os.path.join(self.tree, "build", "packages", "ebb.buildinfo"), encoding="utf-8") as file:
            self.assertEqual(file.read().split(), ["profiles", "nodoc"])

    def test_a_failure_shows_its_first_error(self):
        self.write("bin/dpkg-buildpackage", STAND_IN)
        done = self.package(path=f"{self.tree}/bin:{os.environ['PATH']}", FAILS="yes")
        self.assertEqual(done.returncode, 1)
        self.assertTrue(done.stderr.startswith("CMake Error at a.cmake:1\n"), done.stderr)

    def test_what_is_missing_is_named(self):
        few = os.path.join(self.tree, "few")
        os.mkdir(few)
        for name in ("bash", "dirname", "sed"):
            os.symlink(shutil.which(name), os.path.join(few, name))
        done = self.package(path=few)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
        self.assertIn("dpkg-buildpackage was not found", done.stderr)
        self.write("scripts/package-other", "#!/no/such/python3 -u\n")
        done = self.package("other", path=few)
        self.assertEqual((done.returncode, done.stderr),
                         (1, "package other: there is no /no/such/python3 (Debian: apt-get install python3)\n"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
