"""The figure in docs/ is what its script draws of this library, to the last byte."""
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))), "docs", "figures")
_SCRIPT = os.path.join(_FOLDER, "memory_over_time.py")


class Figure(unittest.TestCase):
    def test_the_figure_is_that_of_this_library(self):
        with tempfile.NamedTemporaryFile(suffix=".svg") as drawn:
            done = subprocess.run([sys.executable, _SCRIPT, drawn.name], capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            new = drawn.read()
        xml.etree.ElementTree.fromstring(new)
        with open(os.path.join(_FOLDER, "memory-over-time.svg"), "rb") as committed:
            if new != committed.read():
                self.fail("memory-over-time.svg shows another library than this: run docs/figures/memory_over_time.py")


if __name__ == "__main__":
    unittest.main()
