"""The tables in docs/parallel.md, and the output of its Python programs, are those of this library."""
import os
import subprocess
import sys
import unittest

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
_SCRIPT = os.path.join(_ROOT, "docs", "figures", "parallel.py")


class ParallelDocument(unittest.TestCase):
    def test_it_shows_this_library(self):
        done = subprocess.run([sys.executable, _SCRIPT, "--check"], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""), "run docs/figures/parallel.py")


if __name__ == "__main__":
    unittest.main()
