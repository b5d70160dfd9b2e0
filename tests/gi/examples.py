"""Examples in Python and JavaScript run from the source tree and train; first_step is the same in C and Python."""
import os
import re
import shutil
import subprocess
import sys
import unittest

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
_TEXT = os.path.join(_ROOT, "docs", "benchmarks.md")


_BUILD = os.environ.get("EBB_BUILD_DIR", os.path.join(_ROOT, "build", "release"))


class Examples(unittest.TestCase):
    def read_first_losses(self, *command):
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return re.findall(r"^loss (\S+)$", result.stdout, re.MULTILINE)

    def test_the_first_step_is_the_same_in_c_and_in_python(self):
        in_python = self.read_first_losses(sys.executable, os.path.join(_ROOT, "examples", "python", "first_step.py"))
        self.assertEqual(len(in_python), 10)
        self.assertLess(float(in_python[-1]), float(in_python[0]))
        self.assertEqual(self.read_first_losses(os.path.join(_BUILD, "examples", "first_step")), in_python)

    def check(self, *command):
        result = subprocess.run([*command, _TEXT, "20"], capture_output=True, text=True, check=False, timeout=100)
        self.assertEqual(result.returncode, 0, result.stderr)
        losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", result.stdout)]
        self.assertEqual(len(losses), 3)
        self.assertLess(losses[-1], losses[0])
        self.assertEqual(result.stderr, "")

    def test_the_example_in_python_trains(self):
        self.check(sys.executable, os.path.join(_ROOT, "examples", "python", "tiny_gpt.py"))

    @unittest.skipUnless(shutil.which("gjs"), "gjs was not found")
    def test_the_example_in_javascript_trains(self):
        self.check("gjs", "-m", os.path.join(_ROOT, "examples", "js", "tiny_gpt.js"))


if __name__ == "__main__":
    unittest.main()
