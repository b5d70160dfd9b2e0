#!/usr/bin/env python3
"""What all programs share: the name they were started with, --version, --help, sizes with units, an installed copy."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ.get("EBB_SOURCE_DIR", os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
BUILD = os.environ.get("EBB_BUILD_DIR", os.path.join(SOURCE, "build", "release"))
NAMES = ["train_gpt", "fsdp_gpt", "oslo_gpt2", "nested_activations"]
IN_C = {name: [os.path.join(BUILD, "examples", name)] for name in NAMES}
PYTHON = "/usr/bin/python3"
HAS_PYTHON = (os.path.exists(os.path.join(BUILD, "Ebb-1.0.typelib")) and os.path.exists(PYTHON)
              and subprocess.run([PYTHON, "-c", "import gi"], stderr=subprocess.DEVNULL, check=False).returncode == 0)
IN_PYTHON = {f"{name}.py": [PYTHON, os.path.join(SOURCE, "examples", "python", f"{name}.py")]
             for name in ("fsdp_gpt", "oslo_gpt2", "nested_activations") if HAS_PYTHON}
COLUMNS = 80


def run(program, *words, folder=None, **environment):
    return subprocess.run([*program, *map(str, words)], capture_output=True, text=True, timeout=200, check=False,
                          cwd=folder, env={**os.environ, "COLUMNS": str(COLUMNS), **environment})


class Programs(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def test_help_fits_the_terminal(self):
        for name, program in {**IN_C, **IN_PYTHON}.items():
            with self.subTest(program=name):
                done = run(program, "--help")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertEqual([line for line in done.stdout.splitlines() if len(line) > COLUMNS], [])
                self.assertIn("--version", done.stdout)

    def test_help_offers_the_devices_that_are_here(self):
        modules = os.listdir(os.path.join(BUILD, "ebb-1.0", "backends"))
        for name, program in {**IN_C, **IN_PYTHON}.items():
            with self.subTest(program=name):
                text = run(program, "--help").stdout
                if "--device" in text:
                    self.assertEqual("cuda" in text, "ebb-backend-cuda.so" in modules)
                    self.assertRegex(re.sub(r"\s+", " ", text), r": cpu(, \w+)*,? sim")

    def test_version_and_messages_have_the_name_of_the_start(self):
        for name, program in {**IN_C, **IN_PYTHON}.items():
            with self.subTest(program=name):
                self.assertRegex(run(program, "--version").stdout, rf"^{re.escape(name)} \(Ebb\) \d+\.\d+\.\d+\n$")
        for name, (program,) in IN_C.items():
            other = os.path.join(self.folder, f"my-{name}")
            os.symlink(program, other)
            with self.subTest(program=other):
                self.assertTrue(run([other], "--version").stdout.startswith(f"my-{name} (Ebb) "))
                done = run([other], "--none")
                self.assertEqual(done.returncode, 2)
                self.assertTrue(done.stderr.startswith(f"my-{name}: "), done.stderr)
                self.assertIn(f"(my-{name} --help lists the options)", done.stderr)

    def train(self, *words):
        with open(os.path.join(self.folder, "text.txt"), "w", encoding="utf-8") as text:
            text.write("Ebb and flow. " * 100)
        return run(IN_C["train_gpt"], "--data", "text.txt", "--width", 32, "--heads", 2, "--layers", 2, "--context",
                   32, "--batch", 2, "--steps", 1, "--report", "report.json", *words, folder=self.folder)

    def read_config(self):
        with open(os.path.join(self.folder, "report.json"), encoding="utf-8") as report:
            return json.load(report)["config"]

    def test_sizes_take_units(self):
        for text, n_bytes in (("2G", 2 << 30), ("1.5GiB", 3 << 29), ("1500MB", 1_500_000_000), ("1500M", 1500 << 20),
                              ("100000000", 100_000_000), ("64 mib", 64 << 20), ("0", 0)):
            with self.subTest(size=text):
                done = self.train("--memory", text, "--store", "host", "--store-limit", text)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertEqual((self.read_config()["memory"], self.read_config()["store_limit"]), (n_bytes, n_bytes))
        for text in "2X", "-1", "G", "1.5.5G", "1GiBB", "9999999T", "", "nan", "0x10":
            with self.subTest(size=text):
                done = self.train("--memory", text)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertIn(f'--memory {text}: "{text}" is not a size: write bytes or a unit', done.stderr)

    def test_weights_alone_are_sampled_from(self):
        self.assertEqual(self.train("--save", "m.safetensors").returncode, 0)
        done = run(IN_C["train_gpt"], "--load", "m.safetensors", "--sample", 40, "--quiet", folder=self.folder)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertGreaterEqual(len(done.stdout.encode()), 40)
        done = run(IN_C["train_gpt"], "--load", "m.safetensors", folder=self.folder)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--data is missing", done.stderr)

    def test_a_module_of_ones_own_is_checkpointed(self):
        done = run([os.path.join(BUILD, "examples", "own_module")])
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertTrue(done.stdout.startswith("Residual"), done.stdout)

    def test_installed_programs_need_no_build_folder(self):
        prefix = os.path.join(self.folder, "prefix")
        subprocess.run(["cmake", "--install", BUILD, "--prefix", prefix], check=True, stdout=subprocess.DEVNULL)
        for name in NAMES:
            installed = "ebb-" + name.replace("_", "-")
            path = os.path.join(prefix, "bin", installed)
            with self.subTest(program=installed):
                entries = subprocess.run(["readelf", "--dynamic", path], capture_output=True, text=True, check=True)
                self.assertNotIn(BUILD, entries.stdout)
                done = run([path], "--version", LD_LIBRARY_PATH="")
                self.assertTrue(done.stdout.startswith(f"{installed} (Ebb) "), done.stderr)
                libraries = subprocess.run(["ldd", path], capture_output=True, text=True, check=True,
                                           env={**os.environ, "LD_LIBRARY_PATH": ""}).stdout
                self.assertIn(prefix, libraries)
                self.assertNotIn(BUILD, libraries)


if __name__ == "__main__":
    if not os.access(IN_C["train_gpt"][0], os.X_OK):
        print(f"{IN_C['train_gpt'][0]} is not there")
        sys.exit(77)
    unittest.main()
