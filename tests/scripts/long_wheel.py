#!/usr/bin/env python3
"""The wheel of scripts/package works in fresh virtual environments: with the system's packages and without, beside
another library's bindings, and beside another oneDNN. Where PyPI can be reached, PyGObject 3.50 is compiled as well.
"""
import base64
import csv
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

ROOT = os.environ.get("EBB_SOURCE_DIR") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("EBB_BUILD_DIR") or os.path.join(ROOT, "build", "release")
PYTHON = "/usr/bin/python3"

# The settings for tests of the build must not lead to it.
ENVIRONMENT = {key: value for key, value in os.environ.items()
               if key not in ("GI_TYPELIB_PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "EBB_BACKEND_PATH", "EBB_BUILD_DIR")}

TRAIN = """
import ebb
ebb.manual_seed(1)
model = ebb.Gpt(ebb.GptConfig("tiny", layers=2))
ebb.checkpoint_wrap_each(model, ebb.TransformerBlock, store=ebb.HostStore())
optimizer = ebb.AdamW(model, 1e-3)
text = ebb.tensor([[1, 2, 3, 4, 5, 6, 7, 8, 9]])
losses = []
for step in range(5):
    loss = model.loss(text[:, :-1], text[:, 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
assert losses[-1] < losses[0], losses
assert ebb.ones(2, device="sim").sum().item() == 2      # a module beside the library
print(ebb.__file__)
"""
MAPS = """
files = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
print(*sorted(file for file in files if "/lib" in file), sep="\\n")
"""


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", env=ENVIRONMENT, **options)


def find_missing():
    for program, package in (("patchelf", "patchelf"), ("readelf", "binutils"), ("cc", "gcc")):
        if not shutil.which(program):
            return f"{program} was not found (Debian: apt-get install {package})"
    if not os.path.exists(os.path.join(BUILD, "python", "ebb", "docs.json")):
        return "this build has no bindings of Python"
    if run(PYTHON, "-c", "import venv, ensurepip").returncode != 0:
        return "venv was not found (Debian: apt-get install python3-venv)"
    return None


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="ebb-wheel-test-")
        cls.addClassCleanup(cls.folder.cleanup)
        done = run(sys.executable, os.path.join(ROOT, "scripts", "package-wheel"), BUILD)
        if done.returncode != 0:
            raise AssertionError(done.stdout + done.stderr)
        (path,) = re.findall(r"^(\S+\.whl): ", done.stdout, re.MULTILINE)
        cls.wheel = os.path.join(ROOT, "build", "packages", os.path.basename(path))
        cls.with_system = cls.make_environment("with", "--system-site-packages")
        cls.without_system = cls.make_environment("without")

    @classmethod
    def make_environment(cls, name, *options):
        """A virtual environment with the wheel; returns its folder."""
        folder = os.path.join(cls.folder.name, name)
        for command in ((PYTHON, "-m", "venv", *options, folder),
                        (os.path.join(folder, "bin", "pip"), "install", "--quiet", "--no-index", cls.wheel)):
            done = run(*command)
            if done.returncode != 0:
                raise AssertionError(done.stdout + done.stderr)
        return folder

    def check(self, folder, program, *arguments):
        done = run(os.path.join(folder, "bin", "python"), "-c", program, *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return done.stdout

    def test_its_record_is_that_of_its_files(self):
        with zipfile.ZipFile(self.wheel) as archive:
            names = set(archive.namelist())
            (record,) = [name for name in names if name.endswith(".dist-info/RECORD")]
            rows = list(csv.reader(archive.read(record).decode().splitlines()))
            self.assertIn("\nName: ebb-train\n", archive.read(record.replace("RECORD", "METADATA")).decode())
            self.assertEqual({row[0] for row in rows}, names)
            for name, digest, size in rows:
                if name != record:
                    data = archive.read(name)
                    self.assertEqual(int(size), len(data))
                    wanted = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
                    self.assertEqual(digest, f"sha256={wanted}")
            texts = [archive.read(name).decode() for name in names if "/licenses/" in name]
        self.assertTrue(any("oneDNN" in text or "Intel" in text for text in texts))
        self.assertFalse([name for name in names if "libglib" in name or "json" in name and name.endswith(".so.0")])

    def test_it_looks_for_libraries_beside_itself_alone(self):
        package = glob.glob(os.path.join(self.with_system, "lib", "python3*", "site-packages", "ebb"))[0]
        programs = glob.glob(os.path.join(package, "bin", "*"))
        self.assertGreaterEqual(len(programs), 7)
        modules = glob.glob(os.path.join(package, "lib", "ebb-1.0", "backends", "*.so"))
        self.assertIn("ebb-backend-sim.so", map(os.path.basename, modules))
        for path in modules:
            text = run("readelf", "--dynamic", "--wide", path).stdout
            others = set(re.findall(r"\(NEEDED\).*\[(?!ld-linux)(.*)\.so\.\d+\]", text))
            self.assertEqual(others - {"libc", "libm", "libglib-2.0", "libgobject-2.0"}, set(), path)
        for path in [*glob.glob(os.path.join(package, "lib", "lib*")), *modules, *programs]:
            text = run("readelf", "--dynamic", "--wide", path).stdout
            for folders in re.findall(r"\(R(?:UN)?PATH\).*\[(.*)\]", text):
                self.assertIn(folders, ("$ORIGIN", "$ORIGIN/../lib"))
            self.assertNotIn("[libdnnl.so", text)

    def test_it_trains_with_the_packages_of_the_system(self):
        self.assertIn(self.with_system, self.check(self.with_system, TRAIN))

    def test_a_process_has_one_glib_and_no_other_onednn(self):
        files = self.check(self.with_system, TRAIN + MAPS).splitlines()
        for name in ("libglib-2.0", "libgobject-2.0", "libebb-1.0", "libgomp"):
            self.assertEqual(len([file for file in files if f"/{name}" in file]), 1, files)
        self.assertEqual([file for file in files if "/libdnnl" in file], [])
        self.assertEqual(len([file for file in files if "/libebb-dnnl" in file]), 1)

    def test_it_works_beside_another_library_of_introspection(self):
        before = "import gi\ngi.require_version('Gio', '2.0')\nfrom gi.repository import Gio, GObject\n" \
                 "class Own(GObject.Object): pass\nown = Own()\n"
        after = "assert Gio.File.new_for_path('/').get_path() == '/'\n" \
                "assert isinstance(ebb.Linear(1, 1), GObject.Object)\n"
        self.check(self.with_system, before + TRAIN + after)
        self.check(self.with_system, TRAIN + before + after)

    def test_names_of_another_onednn_are_not_meant(self):
        """A library of the process that offers all names of oneDNN, and ends the program where one is called."""
        library = glob.glob(os.path.join(self.with_system, "lib", "python3*", "site-packages", "ebb", "lib",
                                         "libebb-1.0.so.1"))[0]
        names = sorted(set(re.findall(r" (dnnl_\w+)", run("nm", "--dynamic", "--undefined-only", library).stdout)))
        self.assertGreater(len(names), 20)
        source, other = (os.path.join(self.folder.name, name) for name in ("other.c", "libother.so"))
        with open(source, "w", encoding="utf-8") as file:
            file.write("#include <stdlib.h>\n" + "".join(f"void {name} (void) {{ abort (); }}\n" for name in names))
        self.assertEqual(run("cc", "-shared", "-fPIC", source, "-o", other).returncode, 0)
        self.check(self.with_system, f"import ctypes\nctypes.CDLL({other!r}, mode=ctypes.RTLD_GLOBAL)\n" + TRAIN)

    def test_its_programs_run(self):
        text = os.path.join(self.folder.name, "text.txt")
        with open(text, "w", encoding="utf-8") as file:
            file.write("What is trained on is a text of a few words. " * 50)
        for environment in (self.with_system, self.without_system):    # without PyGObject, too
            done = run(os.path.join(environment, "bin", "ebb-train-gpt"), "--data", text, "--preset", "tiny",
                       "--context", "32", "--batch", "2", "--steps", "2", "--device", "sim", "--quiet")
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_without_pygobject_one_sentence_says_what_to_install(self):
        done = run(os.path.join(self.without_system, "bin", "python"), "-c", "import ebb")
        self.assertEqual(done.returncode, 1)
        line = done.stderr.strip().splitlines()[-1]
        self.assertTrue(line.startswith("ImportError: ebb needs PyGObject"), done.stderr)
        self.assertIn("python3-gi", line)
        self.assertIn("python3-dev", line)

    def test_pygobject_from_pypi_will_do(self):
        folder = self.make_environment("pypi")
        done = run(os.path.join(folder, "bin", "pip"), "install", "--quiet", f"{self.wheel}[gi,numpy]")
        if done.returncode != 0:
            self.skipTest("PyGObject 3.50 can't be compiled here: " + done.stderr.strip()[-300:])
        found = self.check(folder, TRAIN + "import gi; print(gi.__version__, ebb.ones(2).numpy())")
        self.assertRegex(found, r"3\.50\.\d+ \[1\. 1\.\]")
        self.assertIn(folder, found)


if __name__ == "__main__":
    if not os.environ.get("EBB_LONG"):
        print("skipped: EBB_LONG is not set")
        sys.exit(77)
    missing = find_missing()
    if missing is not None:
        print(missing)
        sys.exit(77)
    unittest.main(verbosity=2)
