#!/usr/bin/env python3
"""The numbers that programs report agree with each other and with their formulas: rates, speeds, held-out losses."""
import json
import math
import os
import shutil
import statistics
import subprocess
import tempfile
import unittest

PROGRAMS = os.path.join(os.path.abspath(os.environ.get("EBB_BUILD_DIR", "build/release")), "examples")
SMALL = ["--layers", 1, "--width", 16, "--heads", 2, "--context", 16, "--threads", 1, "--quiet"]


class Reports(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ebb-reports-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with open(self.path("text.txt"), "w", encoding="utf-8") as text:
            text.writelines(f"Line {n} of {n * n}: the quick brown fox.\n" for n in range(300))

    def path(self, name):
        return os.path.join(self.folder, name)

    def run_program(self, program, *words):
        done = subprocess.run([os.path.join(PROGRAMS, program), *map(str, words)], cwd=self.folder, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=200, check=False)
        self.assertEqual(done.returncode, 0, f"{program} {words}: {done.stderr}")
        return done.stdout

    def read_report(self):
        with open(self.path("report.json"), encoding="utf-8") as file:
            return json.load(file)

    def train(self, program, *words):
        """The report, and the rows of the log."""
        self.run_program(program, "--data", "text.txt", "--log", "log", "--report", "report.json", *words)
        report = self.read_report()
        with open(self.path("log/steps.jsonl"), encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        return report, rows

    def check_rates(self, rows, expected):
        self.assertEqual([row["step"] for row in rows], list(range(1, len(expected) + 1)))
        for row, rate in zip(rows, expected):
            self.assertAlmostEqual(row["lr"] / rate, 1, delta=1e-12, msg=row)

    def test_a_constant_rate_follows_its_warmup(self):
        _, rows = self.train("train_gpt", *SMALL, "--batch", 2, "--steps", 7, "--lr", 0.0125, "--warmup", 3)
        self.check_rates(rows, [0.0125 * min(step / 3, 1) for step in range(1, 8)])

    def test_a_cosine_comes_down_to_the_least_rate_in_a_resumed_training_too(self):
        lr, least, warmup, steps = 0.0125, 0.0003, 3, 11
        cosine = ["--batch", 2, "--lr", lr, "--schedule", "cosine", "--warmup", warmup, "--min-lr", least, "--steps",
                  steps]

        def rate(step):
            if step < warmup:
                return lr * (step + 1) / warmup
            share = (step - warmup) / (steps - warmup)
            return least + (lr - least) * (1 + math.cos(math.pi * share)) / 2

        _, rows = self.train("train_gpt", *SMALL, *cosine)
        self.check_rates(rows, [rate(step) for step in range(steps)])
        _, rows = self.train("train_gpt", *SMALL, *cosine, "--resume", "state")
        os.remove(self.path("log/steps.jsonl"))
        _, rows = self.train("train_gpt", *SMALL, *cosine, "--resume", "state", "--steps", steps + 3)
        self.assertEqual([row["step"] for row in rows], [steps + 1, steps + 2, steps + 3])
        self.assertGreaterEqual(min(row["lr"] for row in rows), least * (1 - 1e-12))

    def check_speed(self, report, rows, tokens):
        for row in rows:
            self.assertAlmostEqual(row["tokens_per_second"] * row["seconds"] / tokens, 1, delta=1e-6, msg=row)
        self.assertEqual(report["step_seconds"], [row["seconds"] for row in rows])
        self.assertEqual(report["losses"], [row["loss"] for row in rows])
        median = statistics.median(report["step_seconds"])
        self.assertAlmostEqual(report["tokens_per_second"] * median / tokens, 1, delta=1e-6)

    def test_speed_counts_the_tokens_of_all_accumulated_batches(self):
        report, rows = self.train("train_gpt", *SMALL, "--batch", 4, "--accumulate", 3, "--steps", 6)
        self.check_speed(report, rows, 4 * 3 * 16)

    def test_speed_counts_the_tokens_of_all_ranks(self):
        report, rows = self.train("fsdp_gpt", *SMALL, "--batch", 4, "--accumulate", 2, "--steps", 6, "--backend",
                                  "thread", "--ranks", 2)
        self.check_speed(report, rows, 4 * 2 * 16)

    def test_the_communication_of_unequal_ranks_is_each_ones_own(self):
        report, _ = self.train("fsdp_gpt", *SMALL, "--batch", 3, "--steps", 2, "--backend", "thread", "--ranks", 3)
        sent = [rank["communication"] for rank in report["ranks"]]
        self.assertEqual(sent[0], report["communication"])
        self.assertEqual([list(one) for one in sent], [list(sent[0])] * 3)
        n_bytes = [sum(one["bytes"] for one in rank.values()) for rank in sent]
        self.assertEqual(len(set(n_bytes)), 3, "each rank has another share of the model, and sends another one")

    def test_adapters_drop_nothing_in_held_out_losses_and_in_generation(self):
        finetune = ["--model", "model", "--context", 16, "--batch", 2, "--threads", 1, "--quiet", "--eval", 0.2]
        self.run_program("train_gpt", "--data", "text.txt", *SMALL, "--steps", 2, "--save", "model/")
        self.train("finetune", *finetune, "--lora", 4, "--lr", 0.05, "--steps", 8, "--save", "adapter")
        with open(self.path("adapter/adapter_config.json"), encoding="utf-8") as file:
            config = json.load(file)
        seen, texts = [], []
        shutil.rmtree(self.path("log"))
        for dropout in (0.0, 0.75):
            with open(self.path("adapter/adapter_config.json"), "w", encoding="utf-8") as file:
                json.dump({**config, "lora_dropout": dropout}, file)
            report, _ = self.train("finetune", *finetune, "--adapter", "adapter", "--steps", 1, "--save",
                                   f"out{dropout}")
            seen.append((report["evaluations"][0], report["losses"][0]))
            shutil.rmtree(self.path("log"))
            texts.append(self.run_program("generate", "--model", "model", "--adapter", "adapter", "--prompt", "Line 7",
                                          "--tokens", 12, "--temperature", 0))
        self.assertEqual(seen[0][0], seen[1][0])
        self.assertNotEqual(seen[0][1], seen[1][1], "dropout has no effect on the training itself")
        self.assertEqual(texts[0], texts[1])

    def test_an_estimate_of_unequal_ranks_is_that_of_the_largest(self):
        words = ["--data", "text.txt", *SMALL[:-1], "--width", 192, "--batch", 7, "--backend", "thread", "--ranks", 3,
                 "--report", "report.json"]
        text = self.run_program("fsdp_gpt", *words, "--estimate")
        estimate = self.read_report()
        self.run_program("fsdp_gpt", *words, "--quiet", "--steps", 3)
        ranks = self.read_report()["ranks"]
        peaks = [rank["peak_bytes"] for rank in ranks]
        self.assertGreater(max(peaks), min(peaks), "the ranks are equal, so this tests nothing")
        self.assertEqual(estimate["predicted_peak_bytes"], max(peaks))
        largest = ranks[peaks.index(max(peaks))]
        self.assertRegex(text, rf"^A step needs {max(peaks) / 2**20:.1f} MiB of cpu on the rank that needs most")
        for name, key in (("parameters", "parameter_bytes"), ("gradients", "gradient_bytes"),
                          ("optimizer", "optimizer_bytes"), ("activations", "activation_bytes_peak"),
                          ("workspace", "workspace_bytes")):
            self.assertEqual(estimate["peak_bytes_by_purpose"][name], largest[key], name)
            self.assertRegex(text, rf"(?m)^  {name} +{largest[key] / 2**20:.1f} MiB$")


if __name__ == "__main__":
    unittest.main()
