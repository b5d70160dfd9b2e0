#!/usr/bin/env python3
"""The benchmarks measure what they say and hold their figures against the bounds that they are given. How fast anything
is here is nobody's business.
"""
import json
import os
import subprocess
import sys
import types
import unittest

BUILD = os.environ.get("EBB_BUILD_DIR", "build/release")
SOURCE = os.environ.get("EBB_SOURCE_DIR", ".")
PROGRAM = os.path.join(BUILD, "tests", "bench", "checkpoint")
MODEL = ["--preset", "tiny", "--batch", "2", "--context", "64", "--rounds", "1", "--threads", "1"]

sys.path.insert(0, os.path.join(SOURCE, "tests", "bench"))
import compare_torch  # noqa: E402


class Checkpoint(unittest.TestCase):
    def run_program(self, *words):
        return subprocess.run([PROGRAM, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=200, check=False)

    def test_each_strategy_keeps_less_than_the_one_before(self):
        done = self.run_program("--json", "--only-steps", *MODEL)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        figures = json.loads(done.stdout)
        kept = [figures[f"{name}.gb"] for name in ("none", "selective", "selective_without_qkv", "full")]
        self.assertEqual(kept, sorted(kept, reverse=True))
        self.assertEqual(len(set(kept)), 4)
        for name in ("selective", "selective_without_qkv", "full"):
            self.assertGreater(figures[f"{name}.ratio"], 0)

    def test_calls_are_measured_alone(self):
        figures = json.loads(self.run_program("--json", "--only-calls").stdout)
        self.assertLessEqual({"call.us", "no_grad_call.us"}, set(figures))
        self.assertNotIn("none.gb", figures)

    def test_a_bound_that_is_missed_fails(self):
        for bound, status in (("full.gb=1e-9", 1), ("full.gb=0", 0), ("full.gb=1", 0)):
            others = [word for name in ("selective", "selective_without_qkv", "full")
                      for word in ("--bound", f"{name}.ratio=0")]
            done = self.run_program("--check", "--only-steps", *MODEL, *others, "--bound", bound)
            self.assertEqual(done.returncode, status, done.stdout)
            self.assertEqual("MISSED" in done.stdout, status == 1)

    def test_bad_options_are_one_line(self):
        for words in (["--bound", "full.gb"], ["--bound", "nothing=1"], ["--bound", "full.gb=much"],
                      ["--preset", "none"], ["--batch", "0"], ["--nothing"]):
            done = self.run_program("--only-steps", *words)
            self.assertEqual((done.returncode, done.stdout, len(done.stderr.splitlines())), (2, "", 1), words)


class CompareTorch(unittest.TestCase):
    @staticmethod
    def result(seconds, kept):
        return {"seconds": seconds, "kept_bytes": kept, "above_bytes": 1e9}

    def missed(self, *bounds):
        results = {("Ebb", "none"): self.result(1.0, 2e9), ("Ebb", "full"): self.result(1.25, 1e9),
                   ("PyTorch", "none"): self.result(2.0, 4e9)}
        options = types.SimpleNamespace(checkpoint=["none", "full"],
                                        bound=[compare_torch.bound_of(bound) for bound in bounds])
        return list(compare_torch.missed_bounds(options, results))

    def test_bounds_are_held_against_what_was_measured(self):
        self.assertEqual(self.missed("none.kept_gb=2", "full.time_to_none=1.25", "none.time_to_torch=0.5",
                                     "none.kept_to_torch=0.5", "none.memory_to_torch=1"), [])
        self.assertEqual(self.missed("full.time_to_none=1.2"), ["full.time_to_none is 1.250, above 1.2"])

    def test_a_bound_on_what_was_not_measured_is_missed(self):
        self.assertRegex(self.missed("full.time_to_torch=9")[0], "^full.time_to_torch: not measured; there is none")


if __name__ == "__main__":
    unittest.main(verbosity=2)
