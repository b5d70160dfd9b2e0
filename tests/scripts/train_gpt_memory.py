#!/usr/bin/env python3
"""--memory of train_gpt: a plan that keeps the budget and the bits; plans in files; budgets that can't be kept."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BUILD = os.environ.get("EBB_BUILD_DIR", "build/release")
PROGRAM = os.path.join(os.path.abspath(BUILD), "examples", "train_gpt")
MODEL = ["--layers", 4, "--width", 128, "--heads", 4, "--context", 128, "--batch", 16, "--dropout", 0.1, "--steps", 2]
SIM = ["--device", "sim"]

sys.path.insert(0, os.path.join(os.environ.get("EBB_SOURCE_DIR", "."), "tests", "support"))
from address_limit import limit_to, map_idle  # noqa: E402
from control_group import make_group  # noqa: E402


class MemoryTest(unittest.TestCase):
    """All classes share a folder, and in it what their trainings would only repeat: the kernels' costs, the plain runs,
    the least budget, and a plan in a file."""
    @classmethod
    def make_all(cls):
        folder = tempfile.TemporaryDirectory(prefix="ebb-memory-")
        unittest.addModuleCleanup(folder.cleanup)
        cls.folder = folder.name
        with open(cls.path("text.txt"), "w", encoding="utf-8") as text:
            text.writelines(f"Line {n} of {n * n}: the quick brown fox, naïvely.\n" for n in range(300))
        cls.plain = {device: cls.train("--device", device) for device in ("cpu", "sim")}
        cls.peak = cls.plain["sim"]["peak_bytes"]
        cls.budget = cls.peak * 3 // 4
        cls.made = cls.train(*SIM, "--memory", cls.budget, "--plan", "made.json")
        cls.least = cls.made["least_bytes"]

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder, name)

    @classmethod
    def run_program(cls, *words, limit=None, **environment):
        """Kernels are measured once for all tests of a device: a file of costs has one device. limit: of addresses."""
        return subprocess.run([PROGRAM, "--data", "text.txt", *map(str, MODEL), *map(str, words)], cwd=cls.folder,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200, check=False,
                              preexec_fn=limit_to(limit),
                              env={**os.environ, "EBB_COST_FILE": cls.path("costs-sim" if "sim" in words else "costs"),
                                   **environment})

    @classmethod
    def train(cls, *words, limit=None):
        done = cls.run_program("--quiet", "--report", "report.json", *words, limit=limit)
        if (done.returncode, done.stderr, done.stdout) != (0, "", ""):
            raise AssertionError(f"{words}: {done}")
        with open(cls.path("report.json"), encoding="utf-8") as file:
            return json.load(file)

    def refuse(self, message, *words, status=1, **environment):
        done = self.run_program(*words, **environment)
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (status, "", 1), done.stderr)
        self.assertRegex(done.stderr, message)

    def check(self, report, budget, device="cpu"):
        self.assertEqual(report["losses"], self.plain[device]["losses"])
        self.assertEqual(report["budget_bytes"], budget)
        self.assertEqual(report["peak_bytes"], report["predicted_peak_bytes"])
        self.assertLessEqual(report["rss_peak_bytes" if device == "cpu" else "peak_bytes"], budget)
        if device == "cpu":
            self.assertLessEqual(report["rss_peak_bytes"], report["peak_bytes"] + (32 << 20))
        self.assertLessEqual(report["least_bytes"], report["predicted_peak_bytes"])
        self.assertEqual([row["block"] for row in report["plan"]["blocks"]], ["h.0", "h.1", "h.2", "h.3"])


def setUpModule():
    MemoryTest.make_all()


class Budgets(MemoryTest):
    def test_a_device_keeps_the_budget_and_the_bits(self):
        peak = self.plain["sim"]["peak_bytes"]
        least = self.train(*SIM, "--memory", peak)["least_bytes"]
        for budget in peak, (peak + least) // 2, least:
            self.check(self.train(*SIM, "--memory", budget), budget, "sim")
        self.refuse(r"--memory \d+: a budget of [\d.]+ MiB is too small: the step needs at least [\d.]+ MiB "
                    r"\(parameters ", *SIM, "--memory", least - 1)

    def test_the_process_keeps_the_budget_on_the_cpu(self):
        resident = self.plain["cpu"]["rss_peak_bytes"]
        for budget in resident + (16 << 20), resident - (4 << 20):
            self.check(self.train("--memory", budget), budget)
        for little in "8", "34":
            done = self.run_program("--memory", f"{little}MiB")
            found = re.fullmatch(rf"train_gpt: --memory {little}MiB: {little}.0 MiB is too little: the training needs "
                                 r"at least ([\d.]+) MiB \(tensors [\d.]+, gaps between them [\d.]+, the program "
                                 r"itself [\d.]+\).*\n", done.stderr)
            self.assertTrue(found, done.stderr)
        enough = int((float(found[1]) + 1) * (1 << 20))  # what the program itself takes varies by some pages
        self.check(self.train("--memory", enough), enough)

    def test_kernels_are_timed_within_the_budget(self):
        """The report's peak of resident bytes is that of planning, too."""
        budget = 50 << 20
        done = self.run_program("--context", 256, "--batch", 8, "--memory", budget, "--allow",
                                "micro-batches,8bit-moments", "--report", "timed.json", EBB_COST_FILE="")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, ", checkpoint by the plan, ")
        with open(self.path("timed.json"), encoding="utf-8") as file:
            report = json.load(file)
        self.assertEqual(report["corrections"], [])
        self.assertLessEqual(report["rss_peak_bytes"], budget)

    def test_a_budget_without_a_unit_is_bytes(self):
        self.refuse("--memory 1: 1 byte is too little: the training needs at least", "--memory", 1)
        self.refuse("--memory 50: a budget of 50 bytes is too small: the step needs at least", *SIM, "--memory", 50)

    def test_a_hard_limit_of_address_space_is_kept(self):
        """ulimit -v: neither planning nor training maps more than the budget beside what an idle process maps."""
        idle = map_idle(PROGRAM, self.path("text.txt"))
        self.assertLess(idle, 512 << 20)
        resident = self.plain["cpu"]["rss_peak_bytes"]
        for budget in resident + (16 << 20), resident - (4 << 20):
            self.check(self.train("--memory", budget, limit=budget + idle), budget)

    def test_all_that_is_free(self):
        for words in ["--memory", "auto"], ["--checkpoint", "auto"]:
            report = self.train(*words)
            self.assertEqual(report["losses"], self.plain["cpu"]["losses"])
            self.assertEqual(report["peak_bytes"], self.plain["cpu"]["peak_bytes"])
            self.assertEqual({row["do"] for row in report["plan"]["blocks"]}, {"keep"})

    def test_a_plan_fits_where_nothing_else_does(self):
        peak = self.plain["sim"]["peak_bytes"]
        environment = {"EBB_SIM_MEMORY": str(peak * 3 // 4)}
        self.refuse("not enough memory on sim|out of memory on sim", *SIM, **environment)
        done = self.run_program(*SIM, "--memory", peak * 2 // 3, **environment)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_resumed_training_says_auto_again(self):
        self.train("--checkpoint", "auto", "--resume", "auto")
        self.refuse("--resume auto: this training had --checkpoint auto: say it again", "--resume", "auto", "--steps",
                    4, status=2)
        self.train("--checkpoint", "auto", "--resume", "auto", "--steps", 4)

    def test_what_a_store_keeps_is_that_of_the_plan(self):
        """Memory that a store keeps from step to step is for what the plan's blocks save."""
        for device, own in ("cpu", 35 << 20), ("sim", 0):
            words = ["--device", device, "--store", "contiguous"]
            plain = self.train(*words)
            report = self.train(*words, "--memory", own + plain["peak_bytes"] * 4 // 5)
            self.assertEqual(report["peak_bytes"], report["predicted_peak_bytes"])
            self.assertLess(report["peak_bytes"], plain["peak_bytes"])
            self.assertEqual((report["losses"], report["corrections"]), (plain["losses"], []))
            self.assertLess(report["least_bytes"], plain["peak_bytes"] * 2 // 3)

    def test_blocks_choose_what_goes_to_a_disk(self):
        disk = ["--store", "disk", "--store-folder", self.path(".")]
        report = self.train("--memory", "auto", *disk)
        self.assertEqual((report["losses"], report["peak_bytes"], report["store"]["bytes_put"]),
                         (self.plain["cpu"]["losses"], self.plain["cpu"]["peak_bytes"], 0))
        least = self.train(*SIM, "--memory", "auto", *disk)["least_bytes"]
        report = self.train(*SIM, "--memory", least, *disk, "--plan", "disk.json")
        self.check(report, least, "sim")
        self.assertIn("disk", {row["place"] for row in report["plan"]["blocks"]})
        self.assertGreater(report["store"]["bytes_put"], 0)
        again = self.train(*SIM, *disk, "--plan", "disk.json")
        self.assertEqual(again["losses"], report["losses"])
        self.assertGreater(again["store"]["bytes_put"], 0)
        self.refuse("nowhere/d", "--memory", "1GiB", "--store", "disk", "--store-folder", "nowhere/d")

    def test_what_the_user_wrapped_stays(self):
        done = self.run_program(*SIM, "--checkpoint", "full", "--memory", "1G")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("h.0 to h.3  as you wrapped it", done.stdout)

    def test_no_budget(self):
        self.refuse("--report and --plan both name r", "--memory", "1G", "--report", "r", "--plan", "r", status=2)
        self.refuse("--plan nowhere/p: can't write in the folder nowhere: No such file", "--memory", "1G", "--plan",
                    "nowhere/p")
        self.refuse("--memory 0: leave the option out to train without a budget", "--memory", 0, status=2)
        self.refuse('--memory -1: "-1" is not a size', "--memory", -1, status=2)
        self.refuse('--memory 5X: "5X" is not a size', "--memory", "5X", status=2)


class ControlGroup(MemoryTest):
    """Planning is no reason to be killed, also where no kernel's time is known yet."""
    def plan(self, n_mib, program, *words):
        with make_group(n_mib << 20) as join:
            if join is None:
                self.skipTest("this process may make no control groups")
            return subprocess.run([PROGRAM.replace("train_gpt", program), "--data", "text.txt", "--memory", "auto",
                                   *map(str, words)], cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True,
                                  text=True, timeout=200, check=False, preexec_fn=join,
                                  env={**os.environ, "EBB_COST_FILE": ""})

    def test_a_training_that_does_not_fit_is_refused(self):
        gpt2 = ["--preset", "gpt2", "--context", 128, "--batch", 2]
        for words in ["train_gpt", *gpt2], ["train_gpt", *MODEL], ["fsdp_gpt", *gpt2, "--ranks", 2]:
            done = self.plan(40, *words)
            self.assertEqual((done.returncode, done.stdout), (1, ""), words)
            self.assertRegex(done.stderr, r"^\w+: --memory auto: [\d.]+ MiB is too little: the training needs at least "
                             r"[\d.]+ MiB .*\n$")

    def test_a_training_that_fits_is_planned(self):
        done = self.plan(72, "train_gpt", *MODEL)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


class Interrupt(MemoryTest):
    def test_control_c_ends_planning(self):
        words = ["--data", "text.txt", "--memory", "20GiB", "--estimate"]
        for program, *more in ("train_gpt", "--preset", "gpt2-xl"), ("fsdp_gpt", "--preset", "gpt2", "--ranks", "2"):
            with subprocess.Popen([PROGRAM.replace("train_gpt", program), *words, *more], cwd=self.folder,
                                  stderr=subprocess.PIPE, text=True,
                                  env={**os.environ, "EBB_COST_FILE": self.path("costs-xl")}) as planning:
                time.sleep(0.5)
                planning.send_signal(signal.SIGINT)
                errors = planning.communicate(timeout=100)[1]
            self.assertEqual(planning.returncode, 130)
            self.assertRegex(errors, r"^\w+: .*interrupted before the first step: nothing is kept\n$")


class Allowed(MemoryTest):
    """What changes values is taken where it is named, and only as far as it is needed."""

    def test_moments(self):
        budget = self.least - (1 << 20)
        report = self.train(*SIM, "--memory", budget, "--allow", "8bit-moments,bf16-moments")
        self.assertEqual((report["config"]["moments"], report["config"]["step_in_backward"]), ("bf16", False))
        self.assertEqual(report["peak_bytes"], report["predicted_peak_bytes"])
        self.assertLessEqual(report["peak_bytes"], budget)
        bf16 = self.train(*SIM, "--moments", "bf16")
        self.assertEqual(report["losses"], bf16["losses"])
        enough = self.train(*SIM, "--memory", self.least, "--allow", "bf16-moments")
        self.assertEqual(enough["config"]["moments"], "f32")

    def test_a_batch_in_parts(self):
        """Parts weigh what they predict, so only the order of sums differs from the whole batch's."""
        words = [*SIM, "--dropout", 0]
        whole = self.train(*words)
        for rows in 5, 8:
            parts = self.train(*words, "--micro-batch", rows)
            self.assertLess(parts["peak_bytes"], whole["peak_bytes"])
            for one, other in zip(parts["losses"], whole["losses"], strict=True):
                self.assertAlmostEqual(one, other, delta=1e-5)
        budget = self.least - (2 << 20)
        report = self.train(*SIM, "--memory", budget, "--allow", "micro-batches")
        self.assertEqual((report["config"]["micro_batch"], report["config"]["moments"]), (8, "f32"))
        self.assertEqual(report["peak_bytes"], report["predicted_peak_bytes"])
        self.assertLessEqual(report["peak_bytes"], budget)
        self.assertEqual(report["losses"], self.train(*SIM, "--micro-batch", 8)["losses"])
        self.refuse("--step-in-backward and --micro-batch 4: parts that are summed", "--step-in-backward",
                    "--micro-batch", 4, status=2)

    def test_the_least_is_that_of_what_is_allowed(self):
        """Steps in backward, which are tried last, need more than a batch in parts. Some 3 MiB of the least are held
        back, and no reason to refuse."""
        allowed = ["--dropout", 0, "--allow", "micro-batches,step-in-backward"]
        done = self.run_program("--memory", "40MiB", *allowed)
        least = re.search(r"the training needs at least ([\d.]+) MiB", done.stderr)
        self.assertTrue(least, done.stderr)
        fewer = int((float(least[1]) - 5) * (1 << 20))
        self.refuse("is too little", "--memory", fewer, *allowed)
        self.assertGreater(self.train("--memory", fewer + (6 << 20), *allowed)["config"]["micro_batch"], 0)

    def test_logits_in_smaller_chunks(self):
        """A vocabulary that takes most of the memory."""
        words = [*SIM, "--vocab", 50257, "--width", 16, "--layers", 1, "--batch", 8]
        least = self.train(*words, "--memory", "1G")["least_bytes"]
        report = self.train(*words, "--memory", least - (30 << 20), "--allow", "loss-chunk,8bit-moments")
        self.assertEqual((report["config"]["loss_chunk"], report["config"]["moments"]), (16 << 20, "f32"))
        self.assertEqual(report["peak_bytes"], report["predicted_peak_bytes"])
        same = self.train(*words, "--loss-chunk", "16MiB")
        self.assertEqual(report["losses"], same["losses"])
        for one, other in zip(report["losses"], self.train(*words)["losses"], strict=True):
            self.assertAlmostEqual(one, other, delta=1e-4)
        self.train(*words, "--loss-chunk", "16MiB", "--resume", "chunked", "--steps", 1)
        resumed = self.train(*words, "--resume", "chunked", "--steps", 2)
        self.assertEqual((resumed["losses"], resumed["config"]["loss_chunk"]), (same["losses"][1:], 16 << 20))

    def test_no_more_than_is_needed(self):
        """8-bit moments are taken in place of those in bf16."""
        least = self.train(*SIM, "--memory", "1G", "--moments", "8bit")["least_bytes"]
        done = self.run_program(*SIM, "--memory", least, "--allow", "bf16-moments,8bit-moments,step-in-backward")
        self.assertIn("\ntaken, as --allow says: 8bit-moments\n", done.stdout)

    def test_a_resumed_training_takes_it_too(self):
        self.train(*SIM, "--resume", "state", "--memory", self.least)
        report = self.train(*SIM, "--resume", "state", "--steps", 4, "--memory", self.least - (1 << 20), "--allow",
                            "bf16-moments")
        self.assertEqual(report["config"]["moments"], "bf16")

    def test_what_excludes_each_other_is_left_out(self):
        budget = self.least - (1 << 20)
        for words in ["--clip", 1], ["--accumulate", 2]:
            self.refuse("is too small: .*; with --allow micro-batches it fits", *SIM, "--memory", budget, *words,
                        "--allow", "step-in-backward")

    def test_what_would_be_enough_is_named(self):
        self.refuse("is too small: .*; with --allow micro-batches it fits", *SIM, "--memory", self.least - (1 << 20))
        done = self.run_program(*SIM, "--memory", "1MiB", "--allow", "bf16-moments")
        self.assertIn("too small: the step needs at least", done.stderr)
        self.assertNotIn("it fits", done.stderr)
        both = self.train(*SIM, "--memory", "1G", "--micro-batch", 2, "--moments", "bf16")["least_bytes"]
        self.refuse("is too small: .*; with --allow micro-batches,bf16-moments it fits", *SIM, "--memory", both,
                    "--allow", "bf16-moments")

    def test_micro_batches_go_with_all_but_steps_in_backward(self):
        words = [*SIM, "--dtype", "bf16", "--layers", 1, "--width", 64, "--steps", 1]
        both = self.train(*words, "--memory", "1G", "--micro-batch", 2, "--residual", "bf16")["least_bytes"]
        done = self.run_program(*words, "--memory", both, "--allow", "bf16-residual,step-in-backward,micro-batches")
        self.assertIn("\ntaken, as --allow says: micro-batches,bf16-residual\n", done.stdout, done.stderr)

    def test_a_file_says_what_its_plan_needs(self):
        words = [*SIM, "--plan", "needs.json"]
        made = self.train(*words, "--memory", self.least - (1 << 20), "--allow", "bf16-moments")
        self.assertEqual(made["plan"]["needs"], ["bf16-moments"])
        self.refuse("--plan needs.json: the plan was made with bf16-moments, which this training doesn't have; with "
                    "--allow bf16-moments it fits$", *words)
        again = self.train(*words, "--moments", "bf16")
        self.assertEqual((again["losses"], again["plan"]), (made["losses"], made["plan"]))

    def test_memory_that_planning_cannot_get_is_no_budget_that_is_too_small(self):
        self.refuse(r"\(asked to fail\); in use: nothing\n$", *SIM, "--memory", "1G", EBB_SIM_FAIL="alloc:1",
                    EBB_COST_FILE=self.path("other-costs"))

    def test_mistakes(self):
        self.refuse('--allow: there is no "magic"; it must be loss-chunk, micro-batches, bf16-moments, 8bit-moments,',
                    "--memory", "1G", "--allow", "magic", status=2)
        self.refuse("--allow 8bit-moments: it needs --memory", "--allow", "8bit-moments", status=2)


class Files(MemoryTest):
    def plan(self):
        """A test's own copy of the plan."""
        shutil.copy(self.path("made.json"), self.path(f"{self.id()}.json"))
        return ["--plan", f"{self.id()}.json"]

    def test_a_plan_is_used_again(self):
        again = self.train(*SIM, *self.plan())
        self.assertEqual(again["plan"], self.made["plan"])
        self.check(again, self.budget, "sim")
        self.check(self.train(*SIM, *self.plan(), "--memory", self.peak), self.peak, "sim")

    def test_the_same_command_uses_the_plan_that_it_made(self):
        """A plan that fills its budget, too: on the CPU what the program itself takes varies."""
        for words, budget in (SIM, self.made["least_bytes"]), ([], self.plain["cpu"]["rss_peak_bytes"] - (4 << 20)):
            words = [*words, "--memory", budget, "--plan", f"{len(words)}.json"]
            first, again = self.train(*words), self.train(*words)
            self.assertEqual(again["plan"], first["plan"])
            self.assertEqual(again["budget_bytes"], budget)

    def test_the_limit_is_that_of_the_budget(self):
        """That of --memory, not the one for which the plan was made."""
        budget = self.made["predicted_peak_bytes"]
        self.train(*SIM, *self.plan(), "--memory", budget, "--memory-timeline", "step.html")
        with open(self.path("step.html"), encoding="utf-8") as page:
            self.assertIn(f'"budget":{budget},', page.read())

    def test_another_training_is_refused(self):
        self.refuse("a plan for another model: it has 52 parameters, and this one 40", *SIM, *self.plan(),
                    "--layers", 3)
        self.refuse("with it a step of this training needs .* remove the file to plan again", *SIM, *self.plan(),
                    "--batch", 24)
        self.refuse("with it a training needs .*, and --memory is .*: remove the file to plan again", *SIM,
                    *self.plan(), "--memory", self.budget // 2)
        self.refuse("--plan none.json: there is no such file; say --memory SIZE to make it", "--plan", "none.json",
                    status=2)

    def test_a_damaged_file(self):
        words = self.plan()
        with open(self.path(words[-1]), "r+", encoding="utf-8") as file:
            file.truncate(100)
        self.refuse(r"\.json: ", *SIM, *words)

    def test_an_estimate_has_the_plan(self):
        estimate = self.train(*SIM, *self.plan(), "--estimate")
        self.assertEqual(estimate["predicted_peak_bytes"], self.made["peak_bytes"])
        self.assertEqual(estimate["least_bytes"], self.made["least_bytes"])


if __name__ == "__main__":
    unittest.main()
