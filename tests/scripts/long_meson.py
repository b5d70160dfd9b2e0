#!/usr/bin/env python3
"""A program that is built with Meson finds Ebb: an installed copy, and by cmake/ebb-1.0.wrap the source.

Meson comes from PyPI.
"""
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.environ.get("EBB_SOURCE_DIR") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("EBB_BUILD_DIR") or os.path.join(ROOT, "build", "release")


def run(*command, **environment):
    kept = {key: value for key, value in os.environ.items() if key not in ("LD_LIBRARY_PATH", "PKG_CONFIG_PATH")}
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**kept, **environment})


class Meson(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="ebb-meson-")
        cls.addClassCleanup(cls.folder.cleanup)
        tools = os.path.join(cls.folder.name, "tools")
        run(sys.executable, "-m", "venv", tools)
        done = run(os.path.join(tools, "bin", "pip"), "install", "--quiet", "meson>=1.3", "ninja")
        if done.returncode != 0:
            raise unittest.SkipTest(f"Meson can't be had here: {done.stderr.strip()[-300:]}")
        cls.path = os.path.join(tools, "bin")

    def copy_consumer(self, name):
        folder = os.path.join(self.folder.name, name)
        os.mkdir(folder)
        for file in ("meson.build", "main.c"):
            shutil.copy(os.path.join(ROOT, "tests", "consumer", file), folder)
        return folder

    def meson(self, *arguments, **environment):
        done = run(os.path.join(self.path, "meson"), *arguments, PATH=f"{self.path}:{os.environ['PATH']}",
                   **environment)
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr)
        return done.stdout

    def test_an_installed_copy_is_found_and_linked(self):
        prefix = os.path.join(self.folder.name, "prefix")
        self.assertEqual(run("cmake", "--install", BUILD, "--prefix", prefix).returncode, 0)
        pkgconfig = os.path.dirname(glob.glob(os.path.join(prefix, "**", "ebb-1.0.pc"), recursive=True)[0])
        folder = self.copy_consumer("installed")
        build = os.path.join(folder, "build")
        self.assertRegex(self.meson("setup", build, folder, PKG_CONFIG_PATH=pkgconfig),
                         r"Run-time dependency ebb-1\.0 found: YES")
        self.meson("compile", "-C", build)
        done = run(os.path.join(build, "consumer"), LD_LIBRARY_PATH=os.path.dirname(pkgconfig))
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_the_wrap_finds_the_source(self):
        folder = self.copy_consumer("wrapped")
        os.mkdir(os.path.join(folder, "subprojects"))
        shutil.copy(os.path.join(ROOT, "cmake", "ebb-1.0.wrap"), os.path.join(folder, "subprojects"))
        os.symlink(ROOT, os.path.join(folder, "subprojects", "ebb"))
        self.assertRegex(self.meson("setup", os.path.join(folder, "build"), folder),
                         r"Dependency ebb-1\.0 .*from subproject subprojects/ebb found: YES")


if __name__ == "__main__":
    if not os.environ.get("EBB_LONG"):
        print("skipped: EBB_LONG is not set")
        sys.exit(77)
    unittest.main(verbosity=2)
