#!/usr/bin/env python3
"""tests/bench/offload: what it counts is exact and the same in every run, bad options are one line, and the figures in
docs/ are what their script draws of what was measured.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ.get("EBB_SOURCE_DIR", os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
PROGRAM = os.path.join(os.environ.get("EBB_BUILD_DIR", os.path.join(SOURCE, "build", "release")), "tests", "bench",
                       "offload")
FIGURES = os.path.join(SOURCE, "docs", "figures")
LAYERS, INPUT_BYTES = 5, 2 * 32 * 32 * 4
SMALL = ["--layers", LAYERS, "--width", 32, "--heads", 2, "--vocab", 64, "--batch", 2, "--context", 32, "--threads", 1,
         "--rounds", 1, "--steps", 1]
EXACT = "store", "device", "put_bytes", "got_bytes", "stored_bytes", "peak_bytes"


def run(*words):
    return subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=200, check=False)


def measure(*words):
    done = run("--json", *SMALL, *words)
    if done.returncode != 0 or done.stderr:
        raise AssertionError(done)
    return json.loads(done.stdout)


def count(figures):
    """The figures that are exact."""
    return [[run_[key] for key in EXACT] for run_ in figures["runs"]]


class Bytes(unittest.TestCase):
    def test_they_are_the_same_in_every_run(self):
        first = measure("--factors", "4,0.5")
        self.assertEqual(count(measure("--factors", "4,0.5")), count(first))
        self.assertEqual(first["input_bytes"], INPUT_BYTES)
        for run_ in first["runs"]:
            if run_["store"] != "keep":
                self.assertEqual(run_["put_bytes"], LAYERS * INPUT_BYTES)
                self.assertEqual(run_["stored_bytes"], LAYERS * INPUT_BYTES)
            else:
                self.assertEqual(run_["put_bytes"], 0)

    def test_the_device_has_the_inputs_that_are_needed_and_those_ahead(self):
        for ahead in 0, 1, 2:
            keep, host = measure("--only", "sim", "--factors", 2, "--prefetch", ahead)["runs"]
            self.assertEqual(keep["peak_bytes"] - host["peak_bytes"], (LAYERS - ahead - 1) * INPUT_BYTES)
            self.assertEqual(host["got_bytes"], (LAYERS - 1) * INPUT_BYTES)  # the last one had not left yet

    def test_moving_takes_bytes_over_bandwidth(self):
        run_ = measure("--only", "sim", "--factors", 0.2)["runs"][1]
        self.assertGreaterEqual(run_["queue_copying_s"], 0.99 * run_["expected_s"])

    def test_a_trace_is_written(self):
        with tempfile.TemporaryDirectory(prefix="ebb-offload-") as folder:
            path = os.path.join(folder, "trace.json")
            measure("--only", "sim", "--factors", 1, "--trace", path)
            with open(path, encoding="utf-8") as file:
                events = json.load(file)["traceEvents"]
        self.assertEqual(sum(event.get("args", {}).get("bytes") == INPUT_BYTES for event in events), 2 * LAYERS - 1)


class Words(unittest.TestCase):
    def test_bad_options_are_one_line(self):
        for status, part, *words in ((2, "--layers 0: it must be at least 1", "--layers", 0),
                                     (2, "--factors 1,x", "--factors", "1,x"), (2, "--only gpu", "--only", "gpu"),
                                     (2, "--bogus", "--bogus"), (1, "/nonexistent", *SMALL, "--folder", "/nonexistent"),
                                     (1, "the CPU has no queues", *SMALL, "--only", "cpu", "--trace", "/tmp/x"),
                                     (1, "out of memory on sim", *SMALL, "--memory", "200K")):
            with self.subTest(words=words):
                done = run(*words)
                self.assertEqual((done.returncode, len(done.stderr.splitlines())), (status, 1), done.stderr)
                self.assertTrue(done.stderr.startswith("offload: "))
                self.assertIn(part, done.stderr)

    def test_help_lists_the_options(self):
        done = run("--help")
        self.assertEqual(done.returncode, 0)
        for option in "layers factors only prefetch rounds trace json folder".split():
            self.assertIn(f"--{option}", done.stdout)


class Figures(unittest.TestCase):
    def test_they_are_what_the_script_draws(self):
        with tempfile.TemporaryDirectory(prefix="ebb-figures-") as folder:
            for name in "offload.py", "offload.json", "svg.py":
                shutil.copy(os.path.join(FIGURES, name), folder)
            subprocess.run([sys.executable, os.path.join(folder, "offload.py")], check=True)
            for name in "offload-step.svg", "offload-bandwidth.svg":
                with open(os.path.join(folder, name), "rb") as new, open(os.path.join(FIGURES, name), "rb") as old:
                    self.assertEqual(new.read(), old.read(), f"{name}: run docs/figures/offload.py")


if __name__ == "__main__":
    if not os.access(PROGRAM, os.X_OK):
        print(f"{PROGRAM} is not there")
        sys.exit(77)
    unittest.main(verbosity=2)
