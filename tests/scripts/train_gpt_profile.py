#!/usr/bin/env python3
"""train_gpt --profile shows a table and writes a trace in which events nest; what can't be written is said at once."""
import json
import os
import subprocess
import tempfile
import unittest

PROGRAM = os.path.join(os.environ.get("EBB_BUILD_DIR", "build/release"), "examples", "train_gpt")
LAYERS = 2
MODEL = ["--layers", str(LAYERS), "--width", "32", "--heads", "2", "--context", "32", "--batch", "2", "--threads", "1"]


class ProfileTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ebb-profile-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with open(self.path("text.txt"), "w", encoding="utf-8") as text:
            text.writelines(f"Line {n} of {n * n}.\n" for n in range(300))

    def path(self, name):
        return os.path.join(self.folder, name)

    def run_program(self, *words):
        return subprocess.run([PROGRAM, "--data", "text.txt", *MODEL, *map(str, words)], cwd=self.folder, check=False,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=200)

    def profile(self, *words):
        """What was printed, and the events of the trace."""
        done = self.run_program("--profile", "trace.json", *words)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        with open(self.path("trace.json"), encoding="utf-8") as file:
            trace = json.load(file)
        return done.stdout.decode(), [event for event in trace["traceEvents"] if event["ph"] == "X"]

    def check_nesting(self, events):
        """Events of one track lie inside of each other or beside each other, as the viewers need it."""
        around = []
        for event in events:
            begin, end = round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)
            while around and around[-1] <= begin:
                around.pop()
            if around:
                self.assertLessEqual(end, around[-1])
            around.append(end)

    def count(self, events, category, name):
        return sum(event["cat"] == category and event["name"] == name for event in events)

    def test_events_of_a_checkpointed_step(self):
        text, events = self.profile("--steps", 6, "--checkpoint", "full", "--profile-steps", 2)
        self.check_nesting(events)
        self.assertEqual(self.count(events, "phase", "optimizer step"), 2)
        self.assertEqual(self.count(events, "phase", "backward"), 2)
        self.assertEqual(self.count(events, "phase", "recompute"), 2 * LAYERS)
        self.assertEqual(self.count(events, "module", "h.1.attn"), 2 * 2)
        products = [event["args"] for event in events if event["cat"] == "op" and event["name"] == "linear"]
        for phase, n in (("forward", 4), ("recompute", 3), ("backward", 4)):
            self.assertEqual(sum(args["phase"] == phase for args in products), 2 * LAYERS * n, phase)
        self.assertLessEqual({"h.0.attn", "h.0.mlp"}, {args["module"].rpartition(".c_")[0] for args in products})
        self.assertIn("Trace of steps 3 to 4: trace.json", text)
        for words in "recompute linear", "outside of ops", "floor: products alone", "2 steps of":
            self.assertIn(words, text)
        self.assertLessEqual(max(map(len, text.partition("\n\n")[2].splitlines())), 120)

    def test_a_short_run_is_profiled_as_it_is(self):
        for steps, shown in ((1, "1 to 1"), (3, "1 to 3"), (4, "2 to 4"), (9, "3 to 5")):
            text, events = self.profile("--steps", steps)
            self.assertIn(f"Trace of steps {shown}: trace.json", text)
            self.assertEqual(self.count(events, "phase", "optimizer step"), min(steps, 3))

    def test_quiet_writes_the_file_alone(self):
        text, events = self.profile("--steps", 2, "--quiet")
        self.assertEqual(text, "")
        self.assertGreater(len(events), 0)

    def test_profiling_changes_no_loss(self):
        losses = []
        for words in ((), ("--profile", "trace.json")):
            done = self.run_program("--steps", 5, "--quiet", "--report", "report.json", *words)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(self.path("report.json"), encoding="utf-8") as file:
                losses.append(json.load(file)["losses"])
        self.assertEqual(*losses)

    def test_what_cannot_be_is_said_before_the_first_step(self):
        for words, status, said in (
                (("--profile", "none/trace.json"), 1, "--profile none/trace.json: can't write in the folder none"),
                (("--profile", "."), 1, "--profile .: it is a folder"),
                (("--profile", ""), 2, "--profile: a name is missing"),
                (("--profile", "a", "--report", "a"), 2, "--report and --profile both name a"),
                (("--profile-steps", 2), 2, "--profile-steps 2: it needs --profile FILE"),
                (("--profile", "a", "--profile-steps", 0), 2, "--profile-steps 0: it must be at least 1"),
                (("--profile", "a", "--steps", 0), 2, "--profile a: with --steps 0 there is no step to profile")):
            done = self.run_program(*words)
            lines = done.stderr.decode().splitlines()
            self.assertEqual((done.returncode, len(lines), done.stdout), (status, 1, b""), done.stderr)
            self.assertIn(said, lines[0])
            self.assertEqual(os.listdir(self.folder), ["text.txt"])


if __name__ == "__main__":
    unittest.main()
