#!/usr/bin/env python3
"""train_gpt keeps its plan's promise: memory that runs out, a process that takes more than planned, other steps."""
import json
import os
import re
import subprocess
import tempfile
import unittest

BUILD = os.environ.get("EBB_BUILD_DIR", "build/release")
PROGRAM = os.path.join(os.path.abspath(BUILD), "examples", "train_gpt")
MODEL = ["--layers", 3, "--width", 64, "--heads", 2, "--context", 64, "--batch", 8, "--dropout", 0.1, "--steps", 4]
SIM = ["--device", "sim"]
LARGE = ["--batch", 48]  # of which a plan frees more than the pages of the heap have room for
GROWTH = 64 << 20  # of a process by the fault "grow"
RAN_AGAIN = r"step (\d+): .*; it ran again with a lower plan, whose peak is [\d.]+ MiB"


class Keep(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="ebb-keep-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        with open(os.path.join(cls.folder, "text.txt"), "w", encoding="utf-8") as text:
            text.writelines(f"Line {n} of {n * n}: the quick brown fox, naïvely.\n" for n in range(300))
        _, cls.plain = cls.train()
        cls.losses = cls.plain["losses"]
        _, cls.planned = cls.train(*SIM, "--memory", "1G")
        cls.peak = cls.planned["peak_bytes"]

    @classmethod
    def train(cls, *words, **environment):
        """What it printed as errors, and its report, None if it wrote none."""
        report = os.path.join(cls.folder, "report.json")
        if os.path.exists(report):
            os.remove(report)
        done = subprocess.run([PROGRAM, "--data", "text.txt", "--quiet", "--report", report,
                               *map(str, MODEL), *map(str, words)], cwd=cls.folder, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=200, check=False,
                              env={**os.environ, "EBB_COST_FILE": os.path.join(cls.folder, "costs"), **environment})
        if done.returncode not in (0, 1) or done.stdout != "":
            raise AssertionError(f"{words}: {done}")
        lines = [line.removeprefix("train_gpt: ") for line in done.stderr.splitlines()]
        if done.returncode == 1:
            return lines, None
        with open(report, encoding="utf-8") as file:
            return lines, json.load(file)

    def check(self, lines, report, *expected, losses=None):
        """It trained to the end, with the same bits, and said what it did."""
        self.assertIsNotNone(report, lines)
        self.assertEqual(report["losses"], losses or self.losses)
        self.assertEqual(report["corrections"], lines)
        self.assertEqual(len(lines), len(expected), lines)
        for line, pattern in zip(lines, expected):
            self.assertRegex(line, f"^{pattern}$")

    def test_nothing_is_said_of_a_training_that_goes_as_planned(self):
        self.assertEqual(self.planned["corrections"], [])
        self.assertEqual(self.planned["losses"], self.losses)

    def test_an_allocation_that_fails_once(self):
        """Before the training it ends the program; in any step the step runs again."""
        steps = set()
        self.train(*SIM, "--memory", "1G")  # times the kernels, unless their times are known
        for number in range(90, 1000, 220):
            lines, report = self.train(*SIM, "--memory", "1G", EBB_SIM_FAIL=f"alloc:{number}")
            if report is None:
                self.assertEqual(len(lines), 1, lines)
                self.assertIn("(asked to fail)", lines[0])
                self.assertNotIn("step", lines[0])
                continue
            self.check(lines, report, *[RAN_AGAIN for _ in lines])
            self.assertLessEqual(len(lines), 1)
            if lines:
                steps.add(re.match(RAN_AGAIN, lines[0])[1])
                self.assertLess(report["predicted_peak_bytes"], self.peak)
        self.assertGreaterEqual(len(steps), 2)

    def test_a_device_that_has_less_than_was_planned_for(self):
        least = self.planned["least_bytes"]
        memory = (self.peak + least) // 2 + (1 << 19)
        lines, report = self.train(*SIM, "--memory", self.peak, EBB_SIM_MEMORY=str(memory))
        self.check(lines, report, *[RAN_AGAIN for _ in lines])
        self.assertGreaterEqual(len(lines), 1)
        lines, report = self.train(*SIM, "--memory", "56M", "--width", 128, "--context", 128, "--batch", 16,
                                   EBB_SIM_MEMORY="16M")
        self.assertIsNone(report)
        self.assertEqual(len(lines), 1, lines)
        self.assertRegex(lines[0], r"; the step can't run again: no plan needs less than [\d.]+ MiB; no state was "
                         "saved: --resume FOLDER keeps one to go on from$")

    def test_it_ends_with_the_last_state(self):
        for words in [], ["--memory", "1G"]:
            folder = f"state{len(words)}"
            lines, report = self.train(*SIM, *words, "--resume", folder, EBB_GPT_JOB_FAULT="0:update:3:memory")
            self.assertIsNone(report)
            self.assertEqual(len(lines), 1, lines)
            self.assertRegex(lines[0], f"; --resume {folder} goes on from its last state, that of step 2$")
            _, report = self.train(*SIM, *words, "--resume", folder)
            self.assertEqual(report["losses"], self.losses[2:])

    def test_no_step_was_taken(self):
        lines, _ = self.train(*SIM, "--resume", "none", EBB_GPT_JOB_FAULT="0:backward:1:memory")
        self.assertEqual(len(lines), 1, lines)
        self.assertRegex(lines[0], "; no state was saved before$")

    def test_a_process_that_takes_more_is_planned_once_more(self):
        _, plain = self.train(*LARGE)
        for less, done in (4 << 20, "was planned again"), (16 << 20, "goes on with the plan that needs least"):
            budget = plain["rss_peak_bytes"] + GROWTH - less
            for step in 1, 2:
                lines, report = self.train(*LARGE, "--memory", budget, EBB_GPT_JOB_FAULT=f"0:forward:{step}:grow")
                self.check(lines, report, rf"step {step}: the training took [\d.]+ MiB more than its budget of [\d.]+ "
                           rf"MiB; it {done}, whose peak is [\d.]+ MiB", losses=plain["losses"])

    def test_what_planning_took_is_no_fault_of_the_training(self):
        budget = self.plain["rss_peak_bytes"] + (16 << 20)
        lines, report = self.train("--memory", budget, EBB_GPT_JOB_FAULT="0:plan:1:surge")
        self.check(lines, report)
        self.assertGreater(report["rss_peak_bytes"], budget)

    def test_a_plan_that_goes_on_shows_the_budget_that_is_left(self):
        budget = self.plain["rss_peak_bytes"] + (16 << 20)
        lines, report = self.train("--memory", budget, EBB_GPT_JOB_FAULT="0:forward:1:grow")
        self.check(lines, report, "step 1: .*; it goes on with the plan that needs least, whose peak is .*")
        plan = report["plan"]
        self.assertEqual(plan["budget_bytes"], plan["predicted_peak_bytes"])

    def test_another_step_is_named(self):
        lines, report = self.train(*SIM, "--memory", "1G", EBB_GPT_JOB_FAULT="0:backward:2:op")
        self.check(lines, report, r"step 2: the step isn't as it was planned: op \d+ is fill \(16384 bytes\) in .*, "
                   r"and was .*")

    def test_a_step_by_the_second_plan_is_named_too(self):
        _, plain = self.train(*LARGE)
        budget = plain["rss_peak_bytes"] + GROWTH - (4 << 20)
        lines, report = self.train(*LARGE, "--memory", budget, EBB_GPT_JOB_FAULT="0:forward:1:grow,0:backward:3:op")
        self.assertIn("it was planned again", lines[0])
        self.check(lines, report, "step 1: the training took .*", r"step 3: the step isn't as it was planned: op .*",
                   losses=plain["losses"])

    def test_a_check_that_lacks_memory_is_no_correction(self):
        lines, report = self.train(*SIM, "--memory", "1G", EBB_GPT_JOB_FAULT="0:check:2:memory")
        self.assertEqual(lines, ["step 2 wasn't compared with its plan: a failure was asked for, at 0:check:2:"])
        self.assertEqual((report["losses"], report["corrections"]), (self.losses, []))


if __name__ == "__main__":
    unittest.main()
