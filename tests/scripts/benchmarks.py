#!/usr/bin/env python3
"""The benchmarks measure what they say and hold their figures against the bounds that they are given. How fast anything
is here is nobody's business.
"""
import json
import os
import subprocess
import sys
import tempfile
import types
import unittest
import xml.etree.ElementTree

BUILD = os.environ.get("EBB_BUILD_DIR", "build/release")
SOURCE = os.environ.get("EBB_SOURCE_DIR", ".")
PROGRAM = os.path.join(BUILD, "tests", "bench", "checkpoint")
MODEL = ["--preset", "tiny", "--batch", "2", "--context", "64", "--rounds", "1", "--threads", "1"]

sys.path.insert(0, os.path.join(SOURCE, "tests", "bench"))
import compare_torch  # noqa: E402
from suite import main as suite, report, targets  # noqa: E402


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


class Kernels(unittest.TestCase):
    def test_copies_both_ways_have_rates(self):
        words = ["--json", "--device", "sim", "--context", "16", "--head-width", "8", "--vocab", "30", "--rounds", "1"]
        program = os.path.join(BUILD, "tests", "bench", "kernels")
        for size, moves in ((["--rows", "1024", "--width", "1024"], True), (["--rows", "64", "--width", "16"], False)):
            done = subprocess.run([program, *words, *size], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, timeout=200, check=False)
            figures = json.loads(done.stdout)
            for name in ("to_host_gbs", "from_host_gbs"):
                self.assertEqual(figures.get(name, 0) > 0, moves, name)


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


class Busy(unittest.TestCase):
    def test_each_setting_is_measured_alone_and_beside_loops(self):
        done = subprocess.run([sys.executable, os.path.join(SOURCE, "tests", "bench", "busy.py"), "--rounds", "2",
                               "--steps", "1", "--loops", "1", "--threads", "2", "--json", "--program",
                               os.path.join(BUILD, "tests", "bench", "step"), *MODEL[:6], "--layers", "1"],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        figures = json.loads(done.stdout)
        self.assertEqual(list(figures), ["alone", "busy"])
        for rows in figures.values():
            self.assertEqual(list(rows), ["default", "programs", "passive", "one thread"])
            self.assertEqual(rows["default"]["ratio"], 1)
            self.assertTrue(all(row["seconds"] > 0 for row in rows.values()))


class LossCurves(unittest.TestCase):
    @staticmethod
    def run_program(*words):
        program = os.path.join(SOURCE, "tests", "bench", "loss_curves.py")
        return subprocess.run([sys.executable, program, "--build", os.path.abspath(BUILD), "--threads", "1", *words],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=200, check=False)

    def test_each_way_is_held_against_f32(self):
        done = self.run_program("--steps", "12", "--last", "2", "--seeds", "1,2", "--only",
                                "f32-one-thread,bf16-residual", "--markdown")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()
                 if line.startswith("|")]
        self.assertEqual([line[0] for line in lines[2:]],
                         ["f32 throughout", "`--threads 1`", "`--dtype bf16 --residual bf16`"])
        f32, same, reduced = ([float(cell) for cell in line[1:3]] for line in lines[2:])
        self.assertEqual(f32, same)
        self.assertNotEqual(f32, reduced)
        self.assertNotEqual(*f32)
        self.assertEqual(lines[3][3], "+0.0000, +0.0000")

    def test_bad_options_are_refused(self):
        for words in (["--only", "nothing"], ["--last", "0"], ["--steps", "2", "--last", "3"], ["--seeds", "a"]):
            done = self.run_program(*words)
            self.assertEqual((done.returncode, done.stdout), (2, ""), words)


class Suite(unittest.TestCase):
    """scripts/bench; PyTorch's side needs what is not here, so it must be said that it is left out."""

    @classmethod
    def setUpClass(cls):
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            cls.done = cls.run_script("--quick", "--build", BUILD, "--json", file.name)
            cls.data = json.load(file) if cls.done.returncode == 0 else None

    @staticmethod
    def run_script(*words):
        return subprocess.run([sys.executable, os.path.join(SOURCE, "scripts", "bench"), *words],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=250, check=False, env={**os.environ, "EBB_PEER_VENV": "/nonexistent"})

    def setUp(self):
        self.assertEqual(self.done.returncode, 0, self.done.stderr)

    def test_every_row_has_figures_of_every_strategy(self):
        self.assertEqual(list(self.data["rows"]), ["quick-gpt-f32", "quick-gpt-bf16", "quick-bert-f32"])
        # What else the machine was doing is no fault of the suite's.
        self.assertEqual([text for text in self.data["warnings"] if "the machine" not in text], [])
        for row in self.data["rows"].values():
            runs = [row["runs"][f"ebb-{name}"] for name in ("none", "selective", "full")]
            kept = [run["kept_bytes"] for run in runs]
            self.assertEqual((kept, len(set(kept))), (sorted(kept, reverse=True), 3))
            for run in runs:
                self.assertEqual((len(run["turns"]), len(run["warm_up"])), (row["rounds"], 2))
                self.assertTrue(0 < run["low"] <= run["seconds"] <= run["high"])
                self.assertTrue(0 < run["above_bytes"] < run["resident_bytes"])
                self.assertLess(run["last_loss"], run["first_loss"])
                self.assertGreater(run["peak_bytes"], 0)
            self.assertEqual(len({run["first_loss"] for run in runs}), 1)
        self.assertGreater(self.data["rows"]["quick-gpt-f32"]["floor"]["floor_s"], 0)

    def test_the_small_things_are_measured(self):
        self.assertGreater(self.data["tiny"]["ebb"]["forward_backward_us"], self.data["tiny"]["ebb"]["no_grad_us"] / 2)
        for name in ("start", "load"):
            self.assertTrue(all(value > 0 for value in self.data[name]["ebb"].values()))
        self.assertGreaterEqual(self.data["load"]["ebb"]["model_s"], self.data["load"]["ebb"]["file_s"])

    def test_what_is_kept_grows_with_context_and_layers(self):
        for name in ("context", "layers"):
            points = self.data["sweeps"][name]["points"]
            for strategy in ("none", "selective", "full"):
                kept = [point["runs"][strategy]["kept_bytes"] for point in points]
                self.assertEqual((kept, len(set(kept))), (sorted(kept), len(points)))

    def test_the_table_shows_what_was_measured_and_says_what_was_not(self):
        self.assertIn("PyTorch is left out", self.done.stderr)
        for word in ("Ebb, selective", "Ebb, full", "train_gpt --help", "Cost against layers"):
            self.assertIn(word, self.done.stdout)
        self.assertEqual(self.done.stdout, report.text(self.data) + "\n")

    def test_figures_are_drawn_of_any_run(self):
        for name, svg in suite.load_drawer().draw_all(self.data):
            xml.etree.ElementTree.fromstring(svg)
            self.assertTrue(name.endswith(".svg"))

    def test_bad_options_are_one_line(self):
        for words in (["--only", "nothing"], ["--threads", "0"], ["--quick", "--write"], ["--nothing"]):
            done = self.run_script(*words)
            self.assertEqual((done.returncode, done.stdout), (2, ""), words)
        for words in (["--from", "/nonexistent"], ["--build", "/nonexistent"]):
            done = self.run_script(*words)
            self.assertEqual((done.returncode, done.stdout, len(done.stderr.splitlines())), (1, "", 1), words)


class Generated(unittest.TestCase):
    def test_what_is_committed_is_what_the_committed_figures_give(self):
        if not os.path.exists(suite.DATA):
            self.skipTest("no figures are committed")
        with open(suite.DATA, encoding="utf-8") as file:
            data = json.load(file)
        names = []
        for path, text in suite.generated(data):
            names.append(os.path.basename(path))
            with open(path, encoding="utf-8") as file:
                if file.read() != text:
                    self.fail(f"{path} is not what scripts/bench --from docs/figures/benchmarks.json --write makes")
        self.assertEqual(names, ["benchmarks.json", "benchmarks.md", "benchmarks.svg", "growth.svg"])


class Targets(unittest.TestCase):
    @staticmethod
    def row(**seconds):
        runs = {name.replace("_", "-"): {"title": name, "turns": [value, value], "seconds": value, "above_bytes": 1e9}
                for name, value in seconds.items()}
        return {"title": "row", "dtype": "f32", "sizes": {"model": "gpt", "width": 768}, "runs": runs,
                "together": [[run["title"] for run in runs.values()]], "floor": {"floor_s": 0.9}}

    def words(self, rows, family=0, **parts):
        verdicts = targets.verdicts({"rows": rows, "machine": {"family": family}, **parts})
        return {verdict.what.removeprefix("row: "): verdict.word for verdict in verdicts}

    def test_a_target_is_reached_or_missed_or_was_not_measured(self):
        words = self.words({"gpt2-8x512-f32": self.row(ebb_none=1.0, ebb_full=1.25)})
        self.assertEqual(words, {"share of the floor": "reached", "full to none": "missed",
                                 "selective to none": "not measured", "ebb_full": "reached", "ebb_none": "reached"})

    def test_one_of_two_targets_is_enough(self):
        ebb, torch = ({"no_grad_us": us, "forward_backward_us": us} for us in (0.5, 2.0))
        words = self.words({}, tiny={"ebb": ebb, "torch": torch})
        self.assertEqual(words["tiny op, no grad"], "reached")
        self.assertEqual(self.words({}, tiny={"ebb": torch})["tiny op, no grad"], "missed")

    def test_ratios_are_taken_turn_by_turn(self):
        row = self.row(ebb_none=1.0, ebb_full=1.0)
        row["runs"]["ebb-none"]["turns"], row["runs"]["ebb-full"]["turns"] = [1.0, 2.0, 4.0], [1.1, 2.2, 8.0]
        self.assertAlmostEqual(targets.ratio(row, "ebb-full", "ebb-none"), 1.1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
