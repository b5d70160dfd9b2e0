#!/usr/bin/env python3
"""What train_gpt and fsdp_gpt are given to train on: held-out data changes no bit and finds the best weights; documents
of JSON lines are packed, resumed and divided among ranks.
"""
import json
import math
import os
import subprocess
import tempfile
import unittest

BUILD = os.environ.get("EBB_BUILD_DIR", "build/release")
MODEL = ["--layers", "2", "--width", "32", "--heads", "2", "--context", "32", "--batch", "3", "--dropout", "0.1",
         "--lr", "1e-2", "--threads", "1"]
EVEN = ["--dropout", "0", "--batch", "4"]


class DataTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ebb-train-data-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.write("text.txt", "".join(f"Line {n} of {n * n}: the quick brown fox, naïvely.\n" for n in range(300)))
        self.write("held.txt", "".join(f"Line {n}: a slow brown fox.\n" for n in range(20)))
        self.write_lines("docs.jsonl", [{"text": f"Document {n}. " + "abc " * (n % 12)} for n in range(80)])
        self.write_lines("sums.jsonl", [{"prompt": f"{n} + {n} =", "completion": f" {2 * n}."} for n in range(90)])

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def write_lines(self, name, lines):
        self.write(name, "".join(json.dumps(line) + "\n" for line in lines))

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def run_program(self, *words, program="train_gpt"):
        return subprocess.run([os.path.join(BUILD, "examples", program), *map(str, words)], cwd=self.folder,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=200, check=False, text=True)

    def train(self, *words, program="train_gpt"):
        done = self.run_program(*MODEL, "--quiet", "--report", "report.json", *words, program=program)
        self.assertEqual((done.returncode, done.stderr, done.stdout), (0, "", ""))
        return json.loads(self.read("report.json"))

    def refuse(self, message, *words, status=2):
        done = self.run_program(*MODEL, *words)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1)
        self.assertIn(message, done.stderr)


class HeldOut(DataTest):
    def test_measuring_changes_no_bit(self):
        words = ["--data", "text.txt", "--steps", 12, "--checkpoint", "full"]
        plain = self.train(*words, "--save", "plain")
        held = self.train(*words, "--eval", "held.txt", "--eval-every", 5, "--save", "held")
        self.assertEqual(plain["losses"], held["losses"])
        self.assertEqual(self.read("plain"), self.read("held"))
        self.assertEqual([one["step"] for one in held["evaluations"]], [5, 10, 12])
        for one in held["evaluations"]:
            self.assertAlmostEqual(one["perplexity"], math.exp(one["loss"]))

    def test_the_best_weights_are_kept(self):
        """They are those of the reported step, also where the training was resumed in between."""
        words = ["--data", "text.txt", "--eval", 0.1, "--eval-every", 4, "--save-best", "best"]
        whole = self.train(*words, "--steps", 16)
        best = self.read("best")
        self.assertEqual(whole["best_loss"], min(one["loss"] for one in whole["evaluations"]))
        os.remove(self.path("best"))
        self.train(*words, "--steps", 8, "--resume", "state")
        rest = self.train("--data", "text.txt", "--save-best", "best", "--steps", 16, "--resume", "state")
        self.assertEqual(rest["evaluations"], whole["evaluations"][2:])
        self.assertEqual((rest["best_loss"], rest["best_step"]), (whole["best_loss"], whole["best_step"]))
        self.assertEqual(self.read("best"), best)

    def test_weights_are_measured_without_a_step(self):
        trained = self.train("--data", "text.txt", "--steps", 6, "--eval", "held.txt", "--save-best", "best")
        measured = self.train("--load", "best", "--steps", 0, "--eval", "held.txt")
        self.assertEqual(measured["evaluations"][0]["loss"], trained["evaluations"][-1]["loss"])

    def test_ranks_measure_the_same(self):
        words = ["--data", "text.txt", "--steps", 6, "--eval", "held.txt", "--eval-every", 3, *EVEN]
        one = self.train(*words)
        for more in ["--ranks", 2], ["--ranks", 3, "--shard", "none"], ["--ranks", 2, "--tensor-parallel", 2]:
            many = self.train(*words, *more, program="fsdp_gpt")
            for mine, other in zip(one["evaluations"], many["evaluations"], strict=True):
                self.assertAlmostEqual(mine["loss"], other["loss"], delta=2e-6)

    def test_what_does_not_fit_is_refused(self):
        text = ["--data", "text.txt"]
        self.refuse("--eval 1.5: a share of the text must be more than 0 and less than 1", *text, "--eval", 1.5)
        self.refuse("--eval: a file or a share of the text is missing", *text, "--eval", "")
        self.refuse("--eval-every 3: it needs --eval", *text, "--eval-every", 3)
        self.refuse("--save-best best: it needs --eval", *text, "--save-best", "best")
        self.refuse("--save and --save-best both name x", *text, "--eval", "held.txt", "--save", "x",
                    "--save-best", "x")
        self.refuse("--eval 0.1: without --data", "--steps", 0, "--eval", 0.1)
        self.refuse("--eval 0.001: text.txt: 15 tokens are too few", *text, "--eval", 0.001, status=1)
        self.refuse("absent.txt: No such file", *text, "--eval", "absent.txt", status=1)
        self.refuse("--eval docs.jsonl: it must be text, as --data text.txt is", *text, "--eval", "docs.jsonl")
        self.refuse("--data text.txt and docs.jsonl: one is text and one JSON lines", *text, "docs.jsonl")


class Documents(DataTest):
    def test_resumed_and_checkpointed_training_equals_straight_training(self):
        for data in "docs.jsonl", "sums.jsonl":
            words = ["--data", data, "--eval", 0.1, "--accumulate", 2]
            straight = self.train(*words, "--steps", 20, "--save", "straight")
            self.assertLess(straight["losses"][-1], straight["losses"][0])
            begun = self.train(*words, "--steps", 9, "--resume", "state-" + data)
            rest = self.train("--data", data, "--steps", 20, "--resume", "state-" + data, "--save", "rest",
                              "--checkpoint", "full")
            self.assertEqual(begun["losses"] + rest["losses"], straight["losses"])
            self.assertEqual(self.read("straight"), self.read("rest"))
            self.assertEqual(rest["evaluations"], straight["evaluations"])

    def test_ranks_share_the_rows(self):
        """Each rank's loss counts by the tokens that it predicts, of which rows have different numbers."""
        words = ["--data", "sums.jsonl", "--steps", 8, *EVEN]
        one = self.train(*words)
        for more in ["--ranks", 2], ["--ranks", 3, "--shard", "none"], ["--ranks", 2, "--tensor-parallel", 2]:
            many = self.train(*words, *more, program="fsdp_gpt")
            for mine, other in zip(one["losses"], many["losses"], strict=True):
                self.assertAlmostEqual(mine, other, delta=1e-5)

    def test_files_are_packed_if_asked(self):
        """With --pack a text is a document, so a window doesn't reach from one file into the next."""
        words = ["--data", "text.txt", "held.txt", "--steps", 2]
        self.assertNotEqual(self.train(*words)["losses"], self.train(*words, "--pack")["losses"])
        self.train("--data", "docs.jsonl", "text.txt", "--pack", "--steps", 1)

    def test_bad_lines_are_named(self):
        for name, text, message in [("open.jsonl", '{"text": "a"}\n{"text": "b', "line 2: byte 11: a string without end"),
                                    ("mixed.jsonl", '{"text": "a"}\n{"prompt": "b", "completion": "c"}\n',
                                     "line 2: prompt and completion, but the lines before it have text"),
                                    ("chat.jsonl", '{"messages": [{"role": "user", "content": "a"}]}\n',
                                     "line 1: messages need a tokenizer with a chat template"),
                                    ("none.jsonl", "\n", "none.jsonl is empty: there is nothing to train on")]:
            self.write(name, text)
            self.refuse(message, "--data", name, status=1)
        self.refuse("line 2", "--data", "docs.jsonl", "--eval", "mixed.jsonl", status=1)

    def test_another_held_out_share_is_another_text(self):
        self.train("--data", "docs.jsonl", "--eval", 0.1, "--steps", 2, "--resume", "state")
        self.refuse("go on with the text it was saved with", "--data", "docs.jsonl", "--eval", 0.2, "--steps", 4,
                    "--resume", "state", status=1)


if __name__ == "__main__":
    unittest.main()
