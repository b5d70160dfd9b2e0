#!/usr/bin/env python3
"""--memory of fsdp_gpt and of train_gpt on tensor ranks: one plan for all ranks keeps the budget and the bits."""
import json
import math
import os
import re
import shutil
import subprocess
import tempfile
import unittest

BUILD = os.environ.get("EBB_BUILD_DIR", "build/release")
EXAMPLES = os.path.join(os.path.abspath(BUILD), "examples")
MODEL = ["--layers", 4, "--width", 64, "--heads", 4, "--context", 64, "--batch", 16, "--dropout", 0.1, "--steps", 2,
         "--threads", 1]
SIM = ["--device", "sim"]
MPIRUN = shutil.which("mpirun")
HAS_MPI = MPIRUN and os.path.exists(os.path.join(BUILD, "ebb-1.0", "backends", "ebb-process-group-mpi.so"))
MPI_ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class RanksTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="ebb-memory-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.plain = {}
        with open(os.path.join(cls.folder, "text.txt"), "w", encoding="utf-8") as text:
            text.writelines(f"Line {n} of {n * n}: the quick brown fox, naïvely.\n" for n in range(300))

    def run_program(self, *words, program=("fsdp_gpt", "--ranks", 2), launcher=()):
        """Kernels are measured once for all tests of a device: a file of costs has one device."""
        words = [*program[1:], "--data", "text.txt", *MODEL, *words]
        return subprocess.run([*launcher, os.path.join(EXAMPLES, program[0]), *map(str, words)], cwd=self.folder,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200, check=False,
                              env={**os.environ, **MPI_ENVIRONMENT, "TMPDIR": "/tmp", "EBB_COST_FILE": os.path.join(
                                  self.folder, "costs-sim" if "sim" in words else "costs")})

    def train_plain(self, *words, **keywords):
        """Once for all tests."""
        key = (words, str(keywords))
        if key not in self.plain:
            self.plain[key] = self.train(*words, **keywords)
        return self.plain[key]

    def train(self, *words, **keywords):
        done = self.run_program("--quiet", "--report", "report.json", *words, **keywords)
        self.assertEqual((done.returncode, done.stderr, done.stdout), (0, "", ""), words)
        with open(os.path.join(self.folder, "report.json"), encoding="utf-8") as file:
            return json.load(file)

    def refuse(self, message, *words, status=1, **keywords):
        done = self.run_program(*words, **keywords)
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (status, "", 1), done.stderr)
        self.assertRegex(done.stderr, message)
        return done.stderr

    def find(self, pattern, budget, **keywords):
        done = self.run_program("--memory", budget, **keywords)
        found = re.match(rf"fsdp_gpt: --memory {budget}: {pattern}\n", done.stderr)
        self.assertTrue(found, done.stderr)
        self.assertEqual((done.stdout, done.stderr.count("--memory")), ("", 1), done.stderr)
        return int((float(found[1]) + 1) * (1 << 20))  # what the program itself takes varies by some pages

    def find_least(self, **keywords):
        return self.find(r"1.0 MiB is too little: the training needs at least ([\d.]+) MiB \(tensors(?: of its ranks)? "
                         r"[\d.]+, gaps between them [\d.]+, the program itself [\d.]+\)(?:; with --allow .*)?", "1MiB",
                         **keywords)

    def check(self, report, plain, budget):
        """Threads share the budget of their process."""
        peaks = [rank["peak_bytes"] for rank in report["ranks"]]
        self.assertEqual(report["losses"], plain["losses"])
        self.assertEqual((report["budget_bytes"], max(peaks)), (budget, report["predicted_peak_bytes"]))
        self.assertLessEqual(sum(peaks), budget)
        self.assertLessEqual(report["least_bytes"], max(peaks))
        self.assertEqual([row["block"] for row in report["plan"]["blocks"]], ["h.0", "h.1", "h.2", "h.3"])


class Threads(RanksTest):
    def check_budgets(self, n, program):
        plain = self.train(*SIM, program=program)
        peak = max(rank["peak_bytes"] for rank in plain["ranks"])
        least = self.train(*SIM, "--memory", n * peak, program=program)["least_bytes"]
        for budget in n * (peak + least) // 2, n * least:
            self.check(self.train(*SIM, "--memory", budget, program=program), plain, budget)
        said = self.refuse(
            rf"--memory \d+, shared by {n} ranks: a budget of [\d.]+ MiB is too small: the step needs at least", *SIM,
            "--memory", n * least - n, program=program)
        total = re.search(rf"\); {n} ranks together need --memory ([\d.]+)MiB", said)
        self.assertEqual(total[1] if total else said, f"{math.ceil(n * least / (1 << 20) * 10) / 10:.1f}")

    def test_sharded(self):
        self.check_budgets(2, ("fsdp_gpt", "--ranks", 2))

    def test_four_with_unequal_rows(self):
        self.check_budgets(4, ("fsdp_gpt", "--ranks", 4, "--batch", 14, "--shard", "hybrid", "--shard-size", 2))

    def test_tensor_ranks(self):
        self.check_budgets(2, ("train_gpt", "--tensor-parallel", 2))

    def test_the_process_keeps_the_budget(self):
        budget = self.find_least()
        report = self.train("--memory", budget)
        self.check(report, self.train_plain(), budget)
        self.assertLessEqual(report["rss_peak_bytes"], budget)

    def test_the_least_that_is_named_is_enough(self):
        """Where tensors are large beside what the program takes itself, too: an estimate plans without training."""
        large = ["--width", 512, "--context", 128, "--estimate", "--quiet"]
        on_sim = ("train_gpt", "--tensor-parallel", 2), *SIM, *large
        for program, *words in (("fsdp_gpt", "--ranks", 4), *large), on_sim:
            done = self.run_program(*words, "--memory", "1MiB", program=program)
            found = re.search(r"together need --memory ([\d.]+)MiB|training needs at least ([\d.]+) MiB", done.stderr)
            self.assertTrue(found, done.stderr)
            done = self.run_program(*words, "--memory", f"{found[1] or found[2]}MiB", program=program)
            self.assertEqual((done.returncode, done.stderr), (0, ""), words)

    def test_all_that_is_free(self):
        plain = self.train_plain()
        for words in ["--memory", "auto"], ["--checkpoint", "auto"]:
            report = self.train(*words)
            self.assertEqual((report["losses"], report["peak_bytes"]), (plain["losses"], plain["peak_bytes"]))
            self.assertEqual({row["do"] for row in report["plan"]["blocks"]}, {"keep"})
        self.refuse("--nesting shard-outside: it needs --checkpoint", "--checkpoint", "auto", "--nesting",
                    "shard-outside", status=2)

    def test_a_plan_is_used_again(self):
        budget = 10 << 20
        made = self.train(*SIM, "--memory", budget, "--plan", "plan.json")
        again = self.train(*SIM, "--plan", "plan.json")
        self.assertEqual((again["plan"], again["losses"]), (made["plan"], made["losses"]))
        self.check(again, made, budget)
        estimate = self.train(*SIM, "--plan", "plan.json", "--estimate")
        self.assertEqual((estimate["predicted_peak_bytes"], estimate["least_bytes"]),
                         (made["peak_bytes"], made["least_bytes"]))
        self.refuse("a plan for another model", *SIM, "--plan", "plan.json", "--ranks", 4)
        self.refuse("with it a training needs .*, and --memory is .*: remove the file", *SIM, "--plan", "plan.json",
                    "--memory", "4MiB")
        self.refuse("--plan none: there is no such file; say --memory SIZE to make it", *SIM, "--plan", "none",
                    status=2)

    def test_what_allow_names_is_taken_on_all_ranks(self):
        least = self.train(*SIM, "--memory", "1G")["least_bytes"]
        budget = 2 * least - (1 << 16)
        self.refuse("is too small: .*; with --allow [a-z0-9-]+ it fits", *SIM, "--memory", budget)
        report = self.train(*SIM, "--memory", budget, "--allow", "bf16-moments")
        self.assertEqual(report["config"]["moments"], "bf16")
        self.check(report, self.train(*SIM, "--moments", "bf16"), budget)
        least = self.train(*SIM, "--memory", "1G", "--micro-batch", 1)["least_bytes"]
        report = self.train(*SIM, "--memory", 2 * least, "--allow", "micro-batches")
        self.assertEqual(report["config"]["micro_batch"], 1)
        self.refuse('--allow: there is no "magic"', "--memory", "1G", "--allow", "magic", status=2)


@unittest.skipUnless(HAS_MPI, "no MPI")
class Processes(RanksTest):
    def test_each_keeps_the_budget(self):
        ranks = {"program": ("fsdp_gpt",), "launcher": (MPIRUN, "-n", "2", "--oversubscribe")}
        budget = self.find_least(**ranks)
        report = self.train("--memory", budget, "--plan", "plan.json", **ranks)
        self.assertEqual(report["losses"], self.train(**ranks)["losses"])
        for rank in report["ranks"]:
            self.assertEqual(rank["peak_bytes"], report["predicted_peak_bytes"])
            self.assertLessEqual(rank["rss_peak_bytes"], budget)


if __name__ == "__main__":
    unittest.main()
