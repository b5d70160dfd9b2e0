#!/usr/bin/env python3
"""--estimate of train_gpt and fsdp_gpt: the bytes of a training, to the byte, by purpose, without training."""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "support"))
from gpt2_folder import write_gpt2_folder  # noqa: E402

BUILD = os.environ.get("EBB_BUILD_DIR", "build/release")
SMALL = ["--layers", 3, "--width", 64, "--heads", 4, "--context", 64, "--batch", 8]
PURPOSES = {"parameters": "parameter_bytes", "gradients": "gradient_bytes", "optimizer": "optimizer_bytes",
            "activations": "activation_bytes_peak", "cache": "cache_bytes", "workspace": "workspace_bytes"}
FULL = ["--checkpoint", "full"]
SELECTIVE = ["--checkpoint", "selective"]
SIM = ["--device", "sim"]
WEIGHTS = [*FULL, "--dtype", "bf16", "--weights", "bf16", "--moments", "8bit", "--step-in-backward"]


class EstimateTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """Kernels are measured once for all tests."""
        folder = tempfile.TemporaryDirectory(prefix="ebb-costs-")
        cls.addClassCleanup(folder.cleanup)
        cls.environment = {**os.environ, "EBB_COST_FILE": os.path.join(folder.name, "costs")}

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ebb-estimate-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with open(self.path("text.txt"), "w", encoding="utf-8") as text:
            text.writelines(f"Line {n} of {n * n}: the quick brown fox, naïvely.\n" for n in range(300))

    def path(self, name):
        return os.path.join(self.folder, name)

    def run_program(self, program, *words, **options):
        return subprocess.run([os.path.join(os.path.abspath(BUILD), "examples", program), "--data", "text.txt",
                               *map(str, words)], cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=200, check=False, env=self.environment, **options)

    def report(self, program, *words):
        done = self.run_program(program, "--quiet", "--report", "report.json", *words)
        self.assertEqual((done.returncode, done.stderr, done.stdout), (0, "", ""), words)
        with open(self.path("report.json"), encoding="utf-8") as file:
            return json.load(file)

    def check(self, program, *words, by_purpose=True):
        with self.subTest(program=program, words=words):
            estimate = self.report(program, *words, "--estimate")
            trained = self.report(program, *words, "--steps", 3)
            self.assertEqual(estimate["predicted_peak_bytes"], trained["peak_bytes"])
            if by_purpose:
                self.assertEqual(estimate["peak_bytes_by_purpose"],
                                 {name: trained[key] for name, key in PURPOSES.items()})
            self.assertGreaterEqual(estimate["heap_bytes"], estimate["predicted_peak_bytes"])


class Bytes(EstimateTest):
    def test_one_rank(self):
        for words in ([], [*FULL, *SIM], ["--accumulate", 2, "--clip", 1, *SIM], ["--dtype", "bf16", *SELECTIVE],
                      [*FULL, "--store", "host", *SIM], WEIGHTS, [*WEIGHTS, *SIM]):
            self.check("train_gpt", *SMALL, *words)

    def test_ranks(self):
        for words in ([2], [2, *SIM], [4, *FULL], [2, "--shard", "none"],
                      [4, "--tensor-parallel", 2, "--sequence-parallel"], [2, *WEIGHTS],
                      [2, "--tensor-parallel", 2, *FULL, "--partition", *SIM]):
            self.check("fsdp_gpt", *SMALL, "--ranks", *words)

    def test_a_folder_and_a_state(self):
        write_gpt2_folder(self.path("model"))
        self.check("train_gpt", "--model", "model", "--batch", 2, *FULL)
        self.report("train_gpt", *SMALL, "--steps", 1, "--resume", "state")
        self.check("train_gpt", *SMALL, "--resume", "state", by_purpose=False)  # reading a state takes workspace


class Timeline(EstimateTest):
    def read_run(self):
        with open(self.path("step.html"), encoding="utf-8") as file:
            data = re.search(r'id="recordings">(.*?)</script>', file.read(), re.DOTALL).group(1)
        return json.loads(data)["runs"][0]

    def test_who_holds_the_bytes(self):
        done = self.run_program("train_gpt", *SMALL, "--estimate", "--memory-timeline", "step.html", "--report",
                                "report.json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        with open(self.path("report.json"), encoding="utf-8") as file:
            report = json.load(file)
        timeline = report["memory_timeline"]
        self.assertEqual(timeline["peak_bytes"], report["predicted_peak_bytes"])
        self.assertEqual(timeline["purposes"], report["peak_bytes_by_purpose"])
        self.assertAlmostEqual(timeline["seconds"], report["step_seconds"], 6)
        self.assertEqual(len(timeline["holders"]), 10)
        table = done.stdout.partition("At the peak the largest are:\n")[2].splitlines()[:10]
        for line, holder in zip(table, timeline["holders"]):
            self.assertEqual(line.split()[:3], [f"{holder['bytes'] / 2**20:.2f}", "MiB", holder["purpose"]])
            self.assertIn(holder["name"] or holder["module"], line)
        self.assertTrue(done.stdout.endswith("\nPicture of the memory of a step: step.html\n"))
        run = self.read_run()
        self.assertEqual(run["peak"], [*timeline["purposes"].values(), timeline["peak_bytes"]])
        self.assertTrue(run["dry"])

    def test_a_dry_step_is_the_real_one(self):
        """Launch for launch, byte for byte."""
        runs = []
        for words in (["--estimate"], ["--steps", 2]):
            self.report("train_gpt", *SMALL, *FULL, *words, "--memory-timeline", "step.html")
            run = self.read_run()
            names, blocks = run["texts"], run["blocks"]
            runs.append({"launches": run["launches"], "changes": [run["changes"][key] for key in ("launches", "to")],
                         "phases": run["spans"][::3],
                         "blocks": sorted((size, phase, names[module], names[op]) for size, phase, module, op in
                                          zip(*(blocks[key] for key in ("bytes", "phase", "module", "op"))))})
        self.assertEqual(*runs)


class Text(EstimateTest):
    def test_the_least_that_is_printed_is_enough(self):
        for program, *words in (["train_gpt", *SIM], ["train_gpt"], ["fsdp_gpt", "--ranks", 2, *SIM],
                                ["fsdp_gpt", "--ranks", 2]):
            with self.subTest(program=program, words=words):
                done = self.run_program(program, *SMALL, *words, "--estimate", "--report", "report.json")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                found = re.search(r"^With --memory it needs at least ([\d.]+ MiB)(: .*)?\.$", done.stdout, re.MULTILINE)
                with open(self.path("report.json"), encoding="utf-8") as file:
                    least = json.load(file)["least_memory_bytes"]
                self.assertEqual("the program itself" in found[0], "sim" not in words)
                if "sim" not in words:
                    parts = [float(part) for part in re.findall(r" ([\d.]+)(?:,|\.$)", found[0])]
                    self.assertEqual(len(parts), 3)
                    self.assertAlmostEqual(sum(parts), float(found[1].split()[0]), delta=0.4)
                self.assertLess(0, float(found[1].split()[0]) * 2**20 - least + 1)
                for size in found[1], least:
                    done = self.run_program(program, *SMALL, *words, "--steps", 1, "--quiet", "--memory", size)
                    self.assertEqual((done.returncode, done.stderr), (0, ""))
                if "sim" in words:
                    done = self.run_program(program, *SMALL, *words, "--steps", 1, "--memory", least - 2)
                    self.assertEqual(done.returncode, 1)

    def test_what_a_step_leaves_is_said(self):
        self.environment = {**self.environment, "EBB_GPT_JOB_FAULT": ",".join(f"0:forward:{n}:leak" for n in (1, 2, 3))}
        done = self.run_program("train_gpt", *SMALL, "--estimate", "--report", "report.json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("\nWarning: each step leaves 4000 bytes in 1 tensor made by ", done.stdout)
        with open(self.path("report.json"), encoding="utf-8") as file:
            report = json.load(file)
        self.assertEqual(report["leaked_bytes"], 4000)
        self.assertIn(f"\nWarning: {report['leak']}.\n", done.stdout)
        self.assertTrue(report["leak"].endswith(", f32 [1000]: the training will grow"), report["leak"])
        self.environment = {**self.environment, "EBB_GPT_JOB_FAULT": ""}
        self.assertLessEqual({"leak", "leaked_bytes"} & set(self.report("train_gpt", *SMALL, "--estimate")), set())


class WithoutTraining(EstimateTest):
    def test_a_configuration_is_enough(self):
        write_gpt2_folder(self.path("model"))
        os.mkdir(self.path("empty"))
        os.rename(self.path("model/config.json"), self.path("empty/config.json"))
        alone = self.estimate("--model", "empty")
        os.rename(self.path("empty/config.json"), self.path("model/config.json"))
        self.assertEqual(alone, self.estimate("--model", "model"))
        self.assertEqual(alone, self.estimate("--model", "model", "--data", "text.txt"))

    def estimate(self, *words):
        done = subprocess.run([os.path.join(os.path.abspath(BUILD), "examples", "train_gpt"), "--estimate", "--quiet",
                               "--report", "report.json", "--batch", "2", *words], cwd=self.folder, capture_output=True,
                              stdin=subprocess.DEVNULL, text=True, timeout=200, check=False, env=self.environment)
        self.assertEqual((done.returncode, done.stderr, done.stdout), (0, "", ""))
        with open(self.path("report.json"), encoding="utf-8") as file:
            report = json.load(file)
        return report["predicted_peak_bytes"], report["least_bytes"], report["peak_bytes_by_purpose"]

    def test_nothing_is_written(self):
        files = sorted(os.listdir(self.folder))
        done = self.run_program("train_gpt", *SMALL, "--estimate", "--save", "weights", "--resume", "state")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(sorted(os.listdir(self.folder)), files)
        self.assertRegex(done.stdout, r"^A step needs \d+\.\d MiB of cpu, at most at one time:\n  parameters +")
        self.assertIn("\nA step computes for about ", done.stdout)

    def test_a_model_that_does_not_fit(self):
        """GPT-2 XL at 32 rows, in 200 MiB, kernels that are measured included."""
        with open(self.path("text.txt"), "a", encoding="utf-8") as text:
            text.write("x" * 50000)
        words = ["--data", "text.txt", "--preset", "gpt2-xl", "--batch", "32", "--estimate", "--quiet", "--report",
                 "report.json"]
        program = os.path.join(os.path.abspath(BUILD), "examples", "train_gpt")
        process = subprocess.Popen([program, *words], cwd=self.folder, stdin=subprocess.DEVNULL, env=self.environment)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, 0)
        with open(self.path("report.json"), encoding="utf-8") as file:
            self.assertGreater(json.load(file)["predicted_peak_bytes"], 100 << 30)
        self.assertLess(used.ru_maxrss, 200 << 10)


if __name__ == "__main__":
    unittest.main()
