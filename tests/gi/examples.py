"""The examples in Python and JavaScript run from the source tree and train."""
import os
import re
import shutil
import subprocess
import sys
import unittest

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
_TEXT = os.path.join(_ROOT, "docs", "benchmarks.md")


class Examples(unittest.TestCase):
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
