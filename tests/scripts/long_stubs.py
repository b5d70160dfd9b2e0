#!/usr/bin/env python3
"""mypy finds that the types of `import ebb` are those of the module, and what is wrong in a program.

mypy comes from PyPI.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.environ.get("EBB_SOURCE_DIR") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("EBB_BUILD_DIR") or os.path.join(ROOT, "build", "release")
PYTHON = "/usr/bin/python3"

# What mypy can't know of PyGObject's classes, and names that nobody calls.
OF_PYGOBJECT = re.compile(
    r" is not a function$| metaclass differs$|isn't marked with @|stub is a staticmethod but runtime is not$"
    r"|\.__(gtype|info|gsignals|gproperties|enum_values|flags_values|deepcopy|copy|array_ufunc|missing|str)__ "
    r"|\.do_\w+ is not present|\.__init__ is inconsistent, stub does not have \*|^$|^Found \d+ errors")

PROGRAM = """
import ebb
import ebb.nn.functional as F
from ebb import nn, optim
from ebb.utils.checkpoint import checkpoint
from ebb.utils.data import DataLoader, TensorDataset

for inputs, labels in DataLoader(TensorDataset(ebb.ones(4, 2), ebb.arange(4)), batch_size=2, shuffle=True):
    penalty: ebb.Tensor = F.cross_entropy(inputs, labels, label_smoothing=0.1) % 2
    penalty += nn.Parameter(ebb.zeros(1)).norm()
layers = nn.Sequential(nn.Linear(2, 2), nn.Softmax(dim=-1))
schedule = optim.lr_scheduler.LinearLR(optim.SGD(layers.parameters(), lr=0.1), total_iters=3)
rates: list[float] = schedule.get_last_lr()
nn.init.xavier_uniform_(layers[0].weight)
checkpoint(layers, ebb.ones(1, 2), use_reentrant=False)
model = ebb.Sequential(ebb.Linear(2, 3, bias=False), ebb.GELU())
optimizer = ebb.AdamW(model.parameters(), lr=1e-3)
x: ebb.Tensor = ebb.einsum("ij,jk->ik", ebb.ones(2, 2), ebb.ones(2, 2))
shape: tuple[int, ...] = x.shape
loss: ebb.Tensor = ebb.cross_entropy(model(x), ebb.arange(2))
loss.backward()
config = ebb.GptConfig("tiny", layers=2, activation="silu")
ebb.checkpoint_wrapper(model, policy="selective")
"""
MISTAKES = {'ebb.Linear("2", 3)': 'incompatible type "str"', "ebb.Linear(2)": "Missing positional argument",
            "ebb.GptConfig(layer=2)": "Unexpected keyword argument", "ebb.no_such_name": "has no attribute",
            'ebb.ones(2).reshap(1)': "has no attribute", 'ebb.layer_norm("x")': 'incompatible type "str"'}


def run(*command, **environment):
    return subprocess.run(command, capture_output=True, text=True, check=False,
                          env={**os.environ, "EBB_BUILD_DIR": BUILD, **environment})


class Stubs(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="ebb-stubs-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.environment = os.path.join(cls.folder.name, "environment")
        run(PYTHON, "-m", "venv", "--system-site-packages", cls.environment)
        done = run(os.path.join(cls.environment, "bin", "pip"), "install", "--quiet", "mypy")
        if done.returncode != 0:
            raise unittest.SkipTest(f"mypy can't be had here: {done.stderr.strip()[-300:]}")
        cls.packages = os.path.join(cls.folder.name, "packages")
        shutil.copytree(os.path.join(ROOT, "bindings", "python"), cls.packages)
        for name in ("__init__.pyi", "docs.json"):
            shutil.copy(os.path.join(BUILD, "python", "ebb", name), os.path.join(cls.packages, "ebb"))

    def mypy(self, program, *arguments):
        return run(os.path.join(self.environment, "bin", program), *arguments, PYTHONPATH=self.packages,
                   MYPYPATH=self.packages)

    def test_they_are_those_of_the_module(self):
        done = self.mypy("stubtest", "ebb", "--concise")
        self.assertIn("ebb.", done.stdout, done.stderr)
        self.assertEqual([line for line in done.stdout.splitlines() if not OF_PYGOBJECT.search(line)], [])

    def check(self, program):
        path = os.path.join(self.folder.name, "program.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(program)
        done = self.mypy("mypy", "--strict", path)
        return done.returncode, done.stdout + done.stderr

    def test_a_right_program_is_right(self):
        status, text = self.check(PROGRAM)
        self.assertEqual(status, 0, text)

    def test_mistakes_are_found(self):
        for line, words in MISTAKES.items():
            status, text = self.check(f"import ebb\n{line}\n")
            self.assertEqual(status, 1, text)
            self.assertIn(words, text)


if __name__ == "__main__":
    if not os.environ.get("EBB_LONG"):
        print("skipped: EBB_LONG is not set")
        sys.exit(77)
    if not os.path.exists(os.path.join(BUILD, "python", "ebb", "__init__.pyi")):
        print("this build has no types of Python")
        sys.exit(77)
    unittest.main(verbosity=2)
