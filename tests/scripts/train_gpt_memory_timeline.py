#!/usr/bin/env python3
"""--memory-timeline records the second step: its numbers are the report's and the page's; mistakes are refused."""
import json
import os
import re
import subprocess
import tempfile
import unittest

EXAMPLES = os.path.join(os.environ.get("EBB_BUILD_DIR", "build/release"), "examples")
MODEL = ["--layers", "2", "--width", "32", "--heads", "2", "--context", "32", "--batch", "2", "--threads", "1"]
PURPOSES = {"parameters": "parameter_bytes", "gradients": "gradient_bytes", "optimizer": "optimizer_bytes",
            "activations": "activation_bytes_peak", "cache": "cache_bytes", "workspace": "workspace_bytes"}


class MemoryTimelineTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ebb-memory-timeline-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with open(self.path("text.txt"), "w", encoding="utf-8") as text:
            text.writelines(f"Line {n} of {n * n}.\n" for n in range(300))

    def path(self, name):
        return os.path.join(self.folder, name)

    def run_program(self, *words, program="train_gpt"):
        return subprocess.run([os.path.join(EXAMPLES, program), "--data", "text.txt", *MODEL, *words], cwd=self.folder,
                              env={**os.environ, "EBB_COST_FILE": self.path("costs")}, check=False, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=200)

    def read_report(self):
        with open(self.path("report.json"), encoding="utf-8") as file:
            return json.load(file)

    def read_page(self):
        with open(self.path("step.html"), encoding="utf-8") as file:
            page = file.read()
        self.assertNotIn("http", page)
        return json.loads(re.search(r'id="recordings">(.*?)</script>', page, re.DOTALL).group(1))

    def check_run(self, program, *words):
        done = self.run_program("--memory-timeline", "step.html", "--report", "report.json", *words, program=program)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("Picture of the memory of step 2: step.html\n", done.stdout)
        report = self.read_report()
        timeline = report["memory_timeline"]
        self.assertIn(f"Memory of step 2: peak {timeline['peak_bytes'] / 2**20:.2f} MiB", done.stdout)
        self.assertEqual(timeline["peak_bytes"], report["peak_bytes"])
        for purpose, name in PURPOSES.items():
            self.assertEqual(timeline["purposes"][purpose], report[name], purpose)
        self.assertEqual(len(timeline["holders"]), 10)
        run, = self.read_page()["runs"]
        self.assertEqual(run["peak"], [*timeline["purposes"].values(), timeline["peak_bytes"]])
        return run

    def test_its_numbers_are_the_reports(self):
        for checkpoint, phases in ("none", {0, 2, 3}), ("full", {0, 1, 2, 3}):
            run = self.check_run("train_gpt", "--steps", "3", "--checkpoint", checkpoint)
            self.assertEqual(set(run["spans"][::3]) - {4}, phases)  # 4: in none of the phases
            self.assertLessEqual({"h.0.mlp.c_proj", "h.1.attn.c_attn"}, set(run["texts"]))

    def test_a_plan_is_drawn_beside_the_step_without_it(self):
        large = ["--width", "128", "--batch", "32", "--quiet", "--report", "report.json", "--memory-timeline",
                 "step.html"]
        for words in ["--device", "sim", "--steps", "2"], ["--device", "sim", "--estimate"]:
            done = self.run_program(*large, "--memory", "15MiB", *words)
            self.assertEqual((done.returncode, done.stderr), (0, ""), words)
            report, page = self.read_report(), self.read_page()
            none, planned = page["runs"]
            self.assertEqual((none["name"], planned["name"]), ("none", "planned"))
            self.assertEqual((none["dry"], planned["dry"]), (True, "--estimate" in words))
            self.assertEqual(planned["peak"][-1], report["memory_timeline"]["peak_bytes"])
            self.assertLessEqual(planned["peak"][-1], page["budget"])
            self.assertGreater(none["peak"][-1], page["budget"])
            self.assertEqual(page["budget"], 15 << 20)

    def test_a_rank_records_its_own(self):
        self.check_run("fsdp_gpt", "--steps", "3", "--ranks", "2", "--checkpoint", "full")
        names = {(holder["name"], holder["op"]) for holder in self.read_report()["memory_timeline"]["holders"]}
        self.assertIn(("h.0 (EbbTransformerBlock), unsharded", "all_gather"), names)

    def test_quiet_writes_the_picture_alone(self):
        done = self.run_program("--steps", "1", "--memory-timeline", "step.svg", "--quiet")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        with open(self.path("step.svg"), encoding="utf-8") as file:
            self.assertTrue(file.read().startswith("<svg "))

    def test_mistakes_are_refused(self):
        for status, words, message in (
                (2, ("step.png",), "--memory-timeline step.png: the name must end in .html or in .svg"),
                (2, ("step.html", "--steps", "0"), "step.html: with --steps 0 there is no step to record"),
                (1, ("nowhere/step.html",), "nowhere")):
            done = self.run_program("--memory-timeline", *words)
            self.assertEqual((done.returncode, done.stdout), (status, ""), words)
            self.assertIn(message, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)


if __name__ == "__main__":
    unittest.main()
