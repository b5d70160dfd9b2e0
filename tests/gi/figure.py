"""The figures in docs/ are what their scripts draw of this library."""
import os
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
_FOLDER = os.path.join(_ROOT, "docs", "figures")


def draw(script):
    with tempfile.NamedTemporaryFile(suffix=".svg") as drawn:
        command = [sys.executable, os.path.join(_FOLDER, script), drawn.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if (done.returncode, done.stderr) != (0, ""):
            raise AssertionError(f"{script}: exit status {done.returncode}: {done.stderr}")
        with open(drawn.name, encoding="utf-8") as file:
            text = file.read()
    xml.etree.ElementTree.fromstring(text)
    return text


def read(*names):
    with open(os.path.join(*names), encoding="utf-8") as file:
        return file.read()


class Figures(unittest.TestCase):
    def test_activations_over_a_step(self):
        """To the last byte."""
        if draw("memory_over_time.py") != read(_FOLDER, "memory-over-time.svg"):
            self.fail("memory-over-time.svg shows another library than this: run docs/figures/memory_over_time.py")

    def test_memory_over_a_step(self):
        """Its peaks and the tops of its layers, not each of its steps: oneDNN chooses workspace for the processor."""
        peaks, tops = [], []
        for text in draw("memory_timeline.py"), read(_FOLDER, "memory-timeline.svg"):
            peaks.append([float(peak) for peak in re.findall(r"(?<=: peak )\d+\.\d(?= MiB)", text)])
            paths = re.findall(r'<path d="([^"]*)Z" class="(\w+)"/>', text)
            tops.append([(name, min(map(float, re.findall(r"(?<=V)[\d.]+", path)))) for path, name in paths])
        self.assertEqual(len(peaks[0]), 2)
        for drawn, committed in zip(*peaks):
            self.assertAlmostEqual(drawn, committed, delta=committed / 100)
            self.assertIn(f"{committed:.0f} MiB", read(_ROOT, "README.md"))
        self.assertEqual([name for name, _ in tops[0]], [name for name, _ in tops[1]])
        self.assertEqual(len(tops[0]), 2 * 5)  # all purposes but caches
        for (name, drawn), (_, committed) in zip(*tops):
            if abs(drawn - committed) > 2:
                self.fail(f"memory-timeline.svg shows other {name} than this: run docs/figures/memory_timeline.py")


if __name__ == "__main__":
    unittest.main()
