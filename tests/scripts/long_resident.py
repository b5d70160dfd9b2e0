#!/usr/bin/env python3
"""A training with a plan takes at most 1.05 times the bytes that its tensors have, from 1 GiB on: GPT-2 in budgets that
are close to the least one, in the middle, and larger than what it takes without a plan."""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

BUILD = os.environ.get("EBB_BUILD_DIR", "build/release")
PROGRAM = os.path.join(os.path.abspath(BUILD), "examples", "train_gpt")
MODEL = ["--preset", "gpt2", "--batch", 4, "--context", 256, "--threads", 2, "--steps", 2]
MIB = 1 << 20


class Resident(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ebb-resident-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with open(os.path.join(self.folder, "text.txt"), "w", encoding="utf-8") as text:
            text.writelines(f"Line {n} of {n * n}: the quick brown fox, naïvely.\n" for n in range(3000))

    def run_program(self, *words):
        return subprocess.run([PROGRAM, "--data", "text.txt", "--quiet", "--report", "report.json", *map(str, MODEL),
                               *map(str, words)], cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=600, check=False,
                              env={**os.environ, "EBB_COST_FILE": os.path.join(self.folder, "costs")})

    def test_resident_over_counted(self):
        refused = self.run_program("--memory", "100MiB").stderr
        least = float(re.search(r"needs at least ([\d.]+) MiB", refused)[1])
        for budget in least + 8, least + 40, least + 200:
            done = self.run_program("--memory", int(budget * MIB))
            self.assertEqual((done.returncode, done.stderr, done.stdout), (0, "", ""))
            with open(os.path.join(self.folder, "report.json"), encoding="utf-8") as file:
                report = json.load(file)
            self.assertGreaterEqual(report["peak_bytes"], 1024 * MIB)
            self.assertLessEqual(report["rss_peak_bytes"], 1.05 * report["peak_bytes"])
            self.assertLessEqual(report["rss_peak_bytes"], budget * MIB)


if __name__ == "__main__":
    if not os.environ.get("EBB_LONG"):
        print("skipped: EBB_LONG is not set")
        sys.exit(77)
    unittest.main()
