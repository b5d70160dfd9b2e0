#!/usr/bin/env python3
"""A training takes at most 1.05 times the bytes that its tensors have, from 1 GiB on: GPT-2 in budgets that are close
to the least one, in the middle, and larger than what it takes without a plan. Smaller ones take little more than their
tensors and than what a process has at its start: at most 16 MiB, and with the start at most 40."""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

BUILD = os.environ.get("EBB_BUILD_DIR", "build/release")
PROGRAM = os.path.join(os.path.abspath(BUILD), "examples", "train_gpt")
COMMON = ["--context", 256, "--threads", 2, "--steps", 2]
TINY = ["--layers", 1, "--width", 8, "--heads", 1, "--batch", 1]
LARGE = ["--preset", "gpt2", "--batch", 4]
SMALLER = (["--layers", 6, "--width", 384, "--heads", 6, "--batch", 8],
           ["--layers", 12, "--width", 512, "--heads", 8, "--batch", 4])
MIB = 1 << 20


class Resident(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ebb-resident-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with open(os.path.join(self.folder, "text.txt"), "w", encoding="utf-8") as text:
            text.writelines(f"Line {n} of {n * n}: the quick brown fox, naïvely.\n" for n in range(3000))

    def run_program(self, *words):
        return subprocess.run([PROGRAM, "--data", "text.txt", "--quiet", "--report", "report.json", *map(str, COMMON),
                               *map(str, words)], cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=600, check=False,
                              env={**os.environ, "EBB_COST_FILE": os.path.join(self.folder, "costs")})

    def train(self, *words):
        done = self.run_program(*words)
        self.assertEqual((done.returncode, done.stderr, done.stdout), (0, "", ""))
        with open(os.path.join(self.folder, "report.json"), encoding="utf-8") as file:
            return json.load(file)

    def find_least(self, *words):
        return float(re.search(r"needs at least ([\d.]+) MiB", self.run_program(*words, "--memory", "40MiB").stderr)[1])

    def test_resident_over_counted(self):
        least = self.find_least(*LARGE)
        for budget in least + 8, least + 40, least + 200:
            report = self.train(*LARGE, "--memory", int(budget * MIB))
            self.assertGreaterEqual(report["peak_bytes"], 1024 * MIB)
            self.assertLessEqual(report["rss_peak_bytes"], 1.05 * report["peak_bytes"])
            self.assertLessEqual(report["rss_peak_bytes"], budget * MIB)

    def test_resident_of_smaller_ones(self):
        start = self.train(*TINY)["rss_peak_bytes"]
        self.assertLessEqual(start, 24 * MIB)
        for model in SMALLER:
            least = self.find_least(*model)
            for words in [], ["--memory", int((least + 8) * MIB)], ["--memory", int((least + 40) * MIB)]:
                report = self.train(*model, *words)
                beside = (report["rss_peak_bytes"] - report["peak_bytes"]) / MIB
                print(*model, *words, f"{beside:.1f} MiB beside tensors")
                bound = start + report["peak_bytes"] + 24 * MIB
                self.assertLessEqual(report["rss_peak_bytes"], bound, (model, words))


if __name__ == "__main__":
    if not os.environ.get("EBB_LONG"):
        print("skipped: EBB_LONG is not set")
        sys.exit(77)
    unittest.main()
