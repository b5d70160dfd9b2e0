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
NAMES = ["train_gpt", "fsdp_gpt", "train_bert", "finetune"]
IN_C = {name: [os.path.join(BUILD, "examples", name)] for name in NAMES}
PYTHON = "/usr/bin/python3"
HAS_PYTHON = (os.path.exists(os.path.join(BUILD, "Ebb-1.0.typelib")) and os.path.exists(PYTHON)
              and subprocess.run([PYTHON, "-c", "import gi"], stderr=subprocess.DEVNULL, check=False).returncode == 0)
IN_PYTHON = {f"{name}.py": [PYTHON, os.path.join(SOURCE, "examples", "python", f"{name}.py")]
             for name in ("fsdp_gpt", "oslo_gpt2", "nested_activations") if HAS_PYTHON}
COLUMNS = 80
SPINCOUNT_IN_PYTHON = "from gi.repository import Ebb; import os; print(os.environ.get('GOMP_SPINCOUNT'))"
SPINCOUNT_IN_JS = "const {Ebb, GLib} = imports.gi; Ebb.get_version_string(); print(GLib.getenv('GOMP_SPINCOUNT'))"
BINDINGS = {**({"python": [PYTHON, "-c", SPINCOUNT_IN_PYTHON]} if HAS_PYTHON else {}),
            **({"gjs": ["gjs", "-c", SPINCOUNT_IN_JS]} if HAS_PYTHON and shutil.which("gjs") else {})}


def run(program, *words, folder=None, **environment):
    return subprocess.run([*program, *map(str, words)], capture_output=True, text=True, timeout=200, check=False,
                          cwd=folder, env={**os.environ, "COLUMNS": str(COLUMNS), **environment})


class Programs(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def test_help_fits_the_terminal(self):
        for name, program, option in [*((name, program, "--help") for name, program in {**IN_C, **IN_PYTHON}.items()),
                                      *((name, program, "--help-all") for name, program in IN_C.items())]:
            with self.subTest(program=name, option=option):
                done = run(program, option)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertEqual([line for line in done.stdout.splitlines() if len(line) > COLUMNS], [])
                self.assertIn("--version", done.stdout)

    @unittest.skipUnless(HAS_PYTHON, "the typelib is not built")
    def test_states_with_other_types_are_refused(self):
        script = ("import sys, json, ebb; folder, name = sys.argv[1:]; old = ebb.TrainingState.read_config(folder); "
                  "state = ebb.TrainingState.new(ebb.Linear(2, 2), None); state.set_property('config', "
                  "json.dumps({**json.loads(old), name: []})); state.save(folder, 1)")
        text = os.path.join(self.folder, "text.txt")
        with open(text, "w", encoding="utf-8") as file:
            file.write("The sea is wide. " * 99)
        words = [IN_C["train_gpt"], "--data", text, "--layers", 1, "--width", 16, "--heads", 1, "--context", 16, "-q"]
        self.assertEqual(run(*words, "--steps", 1, "--resume", "state", folder=self.folder).returncode, 0)
        for name in "seed", "gelu", "tied", "norm_eps", "reads_bytes":
            with self.subTest(name=name):
                shutil.rmtree(os.path.join(self.folder, "damaged"), ignore_errors=True)
                shutil.copytree(os.path.join(self.folder, "state"), os.path.join(self.folder, "damaged"))
                done = run([PYTHON], "-c", script, os.path.join(self.folder, "damaged"), name,
                           PYTHONPATH=os.path.join(SOURCE, "bindings", "python"), GI_TYPELIB_PATH=BUILD,
                           LD_LIBRARY_PATH=BUILD)
                self.assertEqual(done.returncode, 0, done.stderr)
                done = run(*words, "--resume", "damaged", folder=self.folder)
                self.assertEqual((done.returncode, done.stderr),
                                 (1, "train_gpt: --resume damaged: that state was not saved by train_gpt: its "
                                  f"{name} is []\n"))

    def test_help_offers_the_devices_that_are_here(self):
        modules = os.listdir(os.path.join(BUILD, "ebb-1.0", "backends"))
        for name, program in {**IN_C, **IN_PYTHON}.items():
            with self.subTest(program=name):
                text = run(program, "--help").stdout
                if "--device" in text:
                    self.assertEqual(re.search(r"\bcuda\b", text) is not None, "ebb-backend-cuda.so" in modules)
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

    def read_spinning(self, program, **environment):
        """What libgomp says about how long threads spin: a program that starts itself again says it twice."""
        words = [] if program in BINDINGS.values() else ["--version"]
        keeps = {key: value for key, value in os.environ.items() if key not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
        done = subprocess.run([*program, *words], capture_output=True, text=True, timeout=200, check=False,
                              env={**keeps, "OMP_DISPLAY_ENV": "verbose", **environment})
        self.assertEqual(done.returncode, 0, done.stderr)
        return re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)[-1], done.stdout

    def test_waiting_threads_spin_for_a_short_while(self):
        for name, program in {**IN_C, **IN_PYTHON, **BINDINGS}.items():
            with self.subTest(program=name):
                self.assertEqual(self.read_spinning(program)[0], "1000")

    def test_what_the_user_says_about_waiting_threads_holds(self):
        for name, program in {**IN_C, **IN_PYTHON, **BINDINGS}.items():
            with self.subTest(program=name):
                self.assertEqual(self.read_spinning(program, OMP_WAIT_POLICY="passive")[0], "0")
                self.assertGreater(int(self.read_spinning(program, OMP_WAIT_POLICY="active")[0]), 1000000)
                self.assertEqual(self.read_spinning(program, GOMP_SPINCOUNT="7")[0], "7")

    def test_bindings_leave_the_environment_as_it_was(self):
        for name, program in BINDINGS.items():
            with self.subTest(program=name):
                self.assertRegex(self.read_spinning(program)[1], r"^(None|null)\n$")

    @unittest.skipUnless(shutil.which("cc"), "there is no compiler")
    def test_a_program_of_ones_own_sets_it_as_documented(self):
        with open(os.path.join(SOURCE, "docs", "performance.md"), encoding="utf-8") as document:
            (code,) = re.findall(r"^```c\n(.*?)^```$", document.read(), re.MULTILINE | re.DOTALL)
        source, program = os.path.join(self.folder, "own.c"), os.path.join(self.folder, "own")
        with open(source, "w", encoding="utf-8") as file:
            file.write(code)
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "gio-2.0"], capture_output=True, text=True,
                               check=True).stdout.split()
        subprocess.run(["cc", "-Wall", "-Werror", source, "-o", program, f"-I{BUILD}/include", f"-I{BUILD}/generated",
                        f"-I{SOURCE}", f"-L{BUILD}", f"-Wl,-rpath,{BUILD}", "-lebb-1.0", *flags], check=True)
        self.assertEqual(self.read_spinning([program])[0], "1000")
        self.assertEqual(self.read_spinning([program], GOMP_SPINCOUNT="7")[0], "7")

    @unittest.skipUnless(os.path.exists("/lib64/ld-linux-x86-64.so.2"), "another dynamic linker")
    def test_a_program_that_the_dynamic_linker_starts_runs(self):
        done = run(["env", "-u", "OMP_WAIT_POLICY", "/lib64/ld-linux-x86-64.so.2", *IN_C["train_gpt"]], "--version")
        self.assertRegex(done.stdout, r" \(Ebb\) \d+\.\d+\.\d+\n$")

    def train(self, *words):
        with open(os.path.join(self.folder, "text.txt"), "w", encoding="utf-8") as text:
            text.write("Ebb and flow. " * 100)
        return run(IN_C["train_gpt"], "--data", "text.txt", "--width", 32, "--heads", 2, "--layers", 2, "--context",
                   32, "--batch", 2, "--steps", 1, "--report", "report.json", *words, folder=self.folder,
                   EBB_COST_FILE=os.path.join(self.folder, "costs"))  # kernels are measured once

    def read_config(self):
        with open(os.path.join(self.folder, "report.json"), encoding="utf-8") as report:
            return json.load(report)["config"]

    def test_sizes_take_units(self):
        for text, n_bytes in (("2G", 2 << 30), ("1.5GiB", 3 << 29), ("1500MB", 1_500_000_000), ("1500M", 1500 << 20),
                              ("100000000", 100_000_000), ("64 mib", 64 << 20)):
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

    def test_the_first_step_trains(self):
        done = run([os.path.join(BUILD, "examples", "first_step")])
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        losses = [float(loss) for loss in re.findall(r"^loss (\S+)$", done.stdout, re.MULTILINE)]
        self.assertEqual(len(losses), 10)
        self.assertLess(losses[-1], losses[0])

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
