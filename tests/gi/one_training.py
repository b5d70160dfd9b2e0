"""One training by the program train_gpt and by an EbbTrainer: equal losses and states; each resumes the other."""
import filecmp
import json
import os
import shutil
import subprocess
import tempfile

import ebb
from gi.module import get_introspection_module
from support import TestCase, main

Ebb = get_introspection_module("Ebb")
PROGRAM = os.path.join(os.environ["EBB_BUILD_DIR"], "examples", "train_gpt")
OPTIONS = ["--layers", "2", "--width", "32", "--heads", "2", "--context", "16", "--batch", "4", "--accumulate", "2",
           "--micro-batch", "3", "--clip", "1", "--seed", "3", "--dropout", "0.1", "--lr", "1e-3", "--warmup", "2",
           "--eval", "0.1", "--eval-every", "2"]
N_STEPS, N_FIRST = 6, 3


class OneTraining(TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        with open(self.path("text"), "w", encoding="utf-8") as file:
            file.writelines(f"{i * i} is followed by {(i + 1) ** 2}, " for i in range(300))

    def path(self, name):
        return os.path.join(self.folder, name)

    def run_program(self, state, n_steps):
        """The losses of the steps that it took, and those of the held-out data."""
        report = self.path("report.json")
        subprocess.run([PROGRAM, "-q", "-d", self.path("text"), *OPTIONS, "--steps", str(n_steps), "--resume",
                        self.path(state), "--report", report], check=True)
        with open(report, encoding="utf-8") as file:
            values = json.load(file)
        return values["losses"], [one["loss"] for one in values["evaluations"]]

    def run_trainer(self, state, n_steps, config=None):
        data = Ebb.TextDataset.new([self.path("text")], Ebb.ByteTokenizer.new(), 3)
        held_out = Ebb.Dataset.hold_out(data, 0.1)
        ebb.manual_seed(3)
        model = ebb.Gpt(ebb.GptConfig("tiny", layers=2, width=32, heads=2, context=16, vocab=256, dropout=0.1))
        optimizer = ebb.AdamW(model, 1e-3, weight_decay=0.01)
        optimizer.exclude_from_decay()
        options = Ebb.TrainerOptions.new()
        for name, value in {"batch-size": 4, "context": 16, "accumulate": 2, "micro-batch-size": 3, "clip": 1.0,
                            "steps": n_steps, "schedule": Ebb.CosineSchedule.new(2, N_STEPS, 1), "evaluate": held_out,
                            "evaluate-every": 2, "resume": self.path(state), "config": config}.items():
            options.set_property(name, value)
        trainer = Ebb.Trainer.new(model, optimizer, data, options)
        losses, evaluated = [], []
        trainer.connect("stepped", lambda trainer, step, loss: losses.append(loss))
        trainer.connect("evaluated", lambda trainer, step, loss, is_best: evaluated.append(loss))
        trainer.run(None)
        return losses, evaluated

    def assert_same_state(self, one, other):
        """Weights, moments, and random numbers that come next are in the first two files, and in the losses."""
        for kind in ("model", "optimizer"):
            files = [sorted(file for file in os.listdir(self.path(folder)) if file.startswith(kind + "-"))[-1]
                     for folder in (one, other)]
            self.assertTrue(filecmp.cmp(*(os.path.join(self.path(folder), file)
                                          for folder, file in zip((one, other), files)), shallow=False), files)

    def test_equal(self):
        self.assertEqual(self.run_program("program", N_STEPS), self.run_trainer("trainer", N_STEPS))
        self.assert_same_state("program", "trainer")

    def test_each_resumes_the_other(self):
        losses, _evaluated = self.run_program("whole", N_STEPS)
        self.assertEqual(self.run_program("first", N_FIRST)[0], losses[:N_FIRST])
        config = Ebb.TrainingState.read_config(self.path("first"))
        self.assertEqual(self.run_trainer("first", N_STEPS)[0], losses[N_FIRST:])
        self.assert_same_state("first", "whole")
        self.assertEqual(self.run_trainer("second", N_FIRST, config)[0], losses[:N_FIRST])
        self.assertEqual(self.run_program("second", N_STEPS)[0], losses[N_FIRST:])
        self.assert_same_state("second", "whole")


if __name__ == "__main__":
    main()
