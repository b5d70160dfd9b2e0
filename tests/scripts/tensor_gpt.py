#!/usr/bin/env python3
"""train_gpt and fsdp_gpt on tensor ranks: sharing layers changes no loss but by rounding, partitioning none at all;
files are those of one rank; what does not go together is one line.
"""
import json
import os
import shutil
import subprocess
import tempfile
import unittest

BUILD = os.environ.get("EBB_BUILD_DIR", "build/release")
TRAIN, FSDP = (os.path.join(BUILD, "examples", name) for name in ("train_gpt", "fsdp_gpt"))
# A vocabulary that 4 ranks divide unevenly, and a batch that 2 models do not divide.
MODEL = ["--layers", "2", "--width", "32", "--heads", "4", "--context", "24", "--vocab", "259", "--batch", "3",
         "--lr", "3e-4", "--threads", "1"]
N_LAYERS = 2
MPIRUN = shutil.which("mpirun")
MPI_ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                   "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
HAS_MPI = MPIRUN is not None and any("mpi" in name for _, _, names in os.walk(os.path.join(BUILD, "ebb-1.0"))
                                     for name in names)
TOLERANCE = 1e-5
FULL = ["--checkpoint", "full"]


class TensorTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ebb-tensor-gpt-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with open(self.path("text.txt"), "w", encoding="utf-8") as text:
            text.writelines(f"Line {n} of {n * n}: the quick brown fox, naïvely.\n" for n in range(300))

    def path(self, name):
        return os.path.join(self.folder, name)

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def run_program(self, *words, program=(TRAIN,), more=()):
        return subprocess.run([*program, "--data", "text.txt", *map(str, words)], cwd=self.folder,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=100,
                              check=False, env={**os.environ, **MPI_ENVIRONMENT, "TMPDIR": "/tmp", **dict(more)})

    def train(self, n_tensor, *words, program=(TRAIN,), dropout=0):
        """The report of a model on so many tensor ranks."""
        done = self.run_program(*MODEL, "--quiet", "--report", "report.json", "--dropout", dropout,
                                "--tensor-parallel", n_tensor, *words, program=program)
        self.assertEqual((done.returncode, done.stderr, done.stdout), (0, b"", b""))
        return json.loads(self.read("report.json"))

    def share(self, n_ranks, n_tensor, *words, **keywords):
        """The same of several models, of which fsdp_gpt gives each its rows."""
        return self.train(n_tensor, "--ranks", n_ranks, *words, program=[FSDP], **keywords)

    def assert_close(self, losses, expected, what):
        self.assertEqual(len(losses), len(expected))
        for step, (loss, other) in enumerate(zip(losses, expected)):
            self.assertLessEqual(abs(loss - other), TOLERANCE * abs(other), f"{what}, step {step + 1}")


class SameLosses(TensorTest):
    def test_layers_that_are_shared_change_none(self):
        expected = self.train(1, "--steps", 10)["losses"]
        self.assertLess(expected[-1], expected[0])
        for n_tensor in 2, 4:
            for words in ([], FULL, ["--checkpoint", "selective"], ["--sequence-parallel"],
                          ["--sequence-parallel", *FULL], ["--sequence-parallel", "--checkpoint", "selective"],
                          [*FULL, "--partition"]):
                with self.subTest(n_tensor=n_tensor, words=words):
                    self.assert_close(self.train(n_tensor, "--steps", 10, *words)["losses"], expected, words)

    def test_models_beside_each_other_change_none(self):
        for more in [], ["--accumulate", 2, "--clip", 0.3]:
            expected = self.train(1, "--steps", 8, *more)["losses"]
            for n_ranks, words in ((4, []), (4, ["--shard", "none"]), (4, [*FULL, "--partition"]),
                                   (4, ["--sequence-parallel", *FULL, "--nesting", "checkpoint-outside"]),
                                   (8, ["--shard", "hybrid", "--shard-size", 2, *FULL])):
                with self.subTest(more=more, words=words):
                    self.assert_close(self.share(n_ranks, 2, "--steps", 8, *more, *words)["losses"], expected, words)

    def test_moments_in_half_and_steps_in_backward_go_on(self):
        for words in (["--dtype", "bf16"], ["--step-in-backward"]):
            expected = self.train(1, "--steps", 6, *words)["losses"]
            losses = self.train(2, "--steps", 6, *words)["losses"]
            for loss, other in zip(losses, expected):
                self.assertLess(abs(loss - other), (1e-2 if "bf16" in words else TOLERANCE) * other)

    def test_what_is_kept_where_changes_no_bit(self):
        expected = self.train(2, "--steps", 4, dropout=0.2)["losses"]
        for words in (FULL, [*FULL, "--partition"], [*FULL, "--partition", "--store", "host"],
                      [*FULL, "--partition", "--store", "disk"],
                      [*FULL, "--partition", "--store", "contiguous"],
                      [*FULL, "--partition", "--store", "contiguous+host", "--device", "sim"]):
            with self.subTest(words=words):
                self.assertEqual(self.train(2, "--steps", 4, *words, dropout=0.2)["losses"], expected)

    def test_a_seed_names_the_run(self):
        for words in [], ["--sequence-parallel"]:
            first, again, other = (self.train(2, "--steps", 4, "--seed", seed, *words, dropout=0.2)["losses"]
                                   for seed in (5, 5, 6))
            self.assertEqual(first, again)
            self.assertNotEqual(first, other)

    @unittest.skipUnless(HAS_MPI, "there is no MPI")
    def test_processes_compute_what_threads_compute(self):
        words = ["--steps", 5, *FULL, "--partition", "--report", "report.json"]
        expected = self.train(2, *words, dropout=0.1)["losses"]
        self.assertEqual(self.train(2, *words, program=[MPIRUN, "-n", "2", "--oversubscribe", TRAIN],
                                    dropout=0.1)["losses"], expected)
        expected = self.share(4, 2, *words, dropout=0.1)["losses"]
        self.assertEqual(self.train(2, *words, program=[MPIRUN, "-n", "4", "--oversubscribe", FSDP],
                                    dropout=0.1)["losses"], expected)


class Report(TensorTest):
    def test_it_tells_of_every_rank_and_what_was_asked(self):
        words = ["--steps", 3, *FULL]
        alone, shared = self.train(1, *words), self.train(4, *words, "--partition")
        self.assertEqual([rank["rank"] for rank in shared["ranks"]], [0, 1, 2, 3])
        self.assertEqual(shared["parameters"], alone["parameters"])
        config = shared["config"]
        self.assertEqual([config[name] for name in ("tensor_parallel", "sequence_parallel", "partition")],
                         [4, False, True])
        for rank in shared["ranks"]:  # norms and positions are whole
            self.assertLess(rank["parameter_bytes_held"], 0.45 * alone["parameter_bytes"])
        self.assertTrue(self.train(2, *words, "--sequence-parallel")["config"]["sequence_parallel"])

    def test_collectives_of_layers_are_counted(self):
        def count(*words):
            found = self.train(2, "--steps", 2, "--layers", N_LAYERS, *words)["communication"]
            twice = self.train(2, "--steps", 2, "--layers", 2 * N_LAYERS, *words)["communication"]
            names = {"all_reduce", "all_gather", "reduce_scatter"}
            return {name: (twice.get(name, {"calls": 0})["calls"] - found.get(name, {"calls": 0})["calls"]) / N_LAYERS
                    for name in names}

        self.assertEqual(count(), {"all_reduce": 4, "all_gather": 0, "reduce_scatter": 0})
        self.assertEqual(count(*FULL), {"all_reduce": 5, "all_gather": 0, "reduce_scatter": 0})
        self.assertEqual(count(*FULL, "--partition"), {"all_reduce": 5, "all_gather": 1, "reduce_scatter": 0})

    def test_ranks_are_told_of(self):
        done = self.run_program(*MODEL, "--steps", 2, "--tensor-parallel", 2, *FULL, "--partition")
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertIn(b"2 ranks (thread) share one model, layer by layer, and what its blocks keep\n",
                      done.stdout)
        self.assertIn(b"Partition: each of 2 ranks keeps ", done.stdout)
        self.assertNotIn(b"Store (", done.stdout)
        self.assertIn(b"MiB of rank 0:", done.stdout)
        self.assertIn(b"Peak memory of rank 0 ", done.stdout)

    def test_what_stays_is_not_told_as_moved(self):
        words = [*MODEL, "--steps", 2, "--tensor-parallel", 2, *FULL, "--partition", "--store", "host", "--device"]
        for device, said in ("cpu", b"Store (host): no activation was moved"), ("sim", b"MiB moved there and"):
            done = self.run_program(*words, device)
            self.assertEqual((done.returncode, done.stderr), (0, b""))
            self.assertIn(b"Partition: each of 2 ranks keeps ", done.stdout)
            self.assertIn(said, done.stdout)

    def test_models_are_told_of(self):
        done = self.run_program(*MODEL, "--steps", 2, "--ranks", 4, "--tensor-parallel", 2, program=[FSDP])
        self.assertIn(b"4 ranks (thread), shard full: each 2 of them share one model, layer by layer\n", done.stdout)

    def test_a_sample_is_the_same_text(self):
        words = [*MODEL, "--quiet", "--dropout", 0, "--steps", 3, "--sample", 20]
        alone = self.run_program(*words).stdout
        self.assertGreater(len(alone), 10)
        for more in [], ["--sequence-parallel"], [*FULL, "--partition"]:
            self.assertEqual(self.run_program(*words, "--tensor-parallel", 2, *more).stdout, alone)


class Files(TensorTest):
    def test_weights_are_those_of_one_rank(self):
        self.train(1, "--steps", 2, "--save", "one")
        for n_tensor, words in (2, []), (4, ["--sequence-parallel"]):
            self.train(n_tensor, "--steps", 0, "--load", "one", "--save", "again", *words)
            self.assertEqual(self.read("again"), self.read("one"))
        self.share(4, 2, "--steps", 0, "--load", "one", "--save", "again")
        self.assertEqual(self.read("again"), self.read("one"))
        self.train(2, "--steps", 2, "--save", "two")
        after = [self.train(1, "--steps", 1, "--load", name)["losses"] for name in ("one", "two")]
        self.assert_close(after[1], after[0], "trained on 2 ranks")

    def test_a_training_goes_on_bit_for_bit(self):
        for number, words in enumerate((FULL, ["--sequence-parallel"], [*FULL, "--partition"])):
            with self.subTest(words=words):
                state = f"state-{number}"
                words = [*words, "--accumulate", 2, "--clip", 1]
                whole = self.train(2, "--steps", 6, "--save", "whole", *words, dropout=0.1)
                begun = self.train(2, "--steps", 3, "--resume", state, *words, dropout=0.1)
                rest = self.train(2, "--steps", 6, "--resume", state, "--save", "resumed", dropout=0.1)
                self.assertEqual(rest["first_step"], 3)
                self.assertEqual(whole["losses"], begun["losses"] + rest["losses"])
                self.assertEqual(self.read("whole"), self.read("resumed"))

    def test_what_is_given_switches_off_what_contradicts_it(self):
        def go_on(*words, program=(TRAIN,), n_tensor=2):
            self.steps += 1
            config = self.train(n_tensor, "--steps", self.steps, "--resume", "state", *words, program=program)["config"]
            return [config[name] for name in ("checkpoint", "partition", "sequence_parallel")]

        self.steps = 0
        self.assertEqual(go_on(*FULL, "--partition"), ["full", True, False])
        self.assertEqual(go_on("--sequence-parallel"), ["full", False, True])
        self.assertEqual(go_on("--partition"), ["full", True, False])
        self.assertEqual(go_on("--checkpoint", "selective"), ["selective", False, False])
        self.assertEqual(go_on("--partition", *FULL), ["full", True, False])
        self.assertEqual(go_on("--no-partition"), ["full", False, False])
        self.assertEqual(go_on("--sequence-parallel"), ["full", False, True])
        # On ranks that share no layers it is neither had nor lost.
        self.assertEqual(go_on("--ranks", 2, program=[FSDP], n_tensor=1), ["full", False, False])
        self.assertEqual(go_on(), ["full", False, True])
        self.assertEqual(go_on("--no-sequence-parallel"), ["full", False, False])

    def test_models_beside_each_other_go_on_bit_for_bit(self):
        whole = self.share(4, 2, "--steps", 6, dropout=0.1)["losses"]
        begun = self.share(4, 2, "--steps", 3, "--resume", "state", dropout=0.1)["losses"]
        self.assertEqual(whole, begun + self.share(4, 2, "--steps", 6, "--resume", "state", dropout=0.1)["losses"])

    def test_another_number_of_ranks_goes_on(self):
        whole = self.train(1, "--steps", 8)["losses"]
        losses = self.train(4, "--steps", 2, "--resume", "state")["losses"]
        losses += self.train(2, "--steps", 4, "--resume", "state")["losses"]
        losses += self.share(4, 2, "--steps", 6, "--resume", "state")["losses"]
        losses += self.share(1, 1, "--steps", 8, "--resume", "state")["losses"]
        self.assert_close(losses, whole, "4, 2, 2 x 2 and 1 ranks")

    def test_one_rank_alone_goes_on_and_others_from_it(self):
        for more in [], ["--dtype", "bf16", "--moments", "bf16"], ["--step-in-backward"]:
            with self.subTest(more=more):
                folder = "state" + "".join(more)
                whole = self.train(1, "--steps", 8, *more)["losses"]
                losses = []
                for n_tensor, steps in (1, 2), (2, 4), (1, 6), (4, 8):
                    losses += self.train(n_tensor, "--steps", steps, "--resume", folder, *more)["losses"]
                for loss, other in zip(losses, whole, strict=True):
                    self.assertLess(abs(loss - other), (1e-2 if "bf16" in more else TOLERANCE) * other)


class Failures(TensorTest):
    def check(self, status, said, *words, **keywords):
        with self.subTest(words=words):
            done = self.run_program(*words, **keywords)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count(b"\n")), (status, b"", 1), done.stderr)
            self.assertIn(said, done.stderr)
            self.assertEqual(os.listdir(self.folder), ["text.txt"])

    def test_what_does_not_go_together_is_one_line(self):
        two = ["--tensor-parallel", 2]
        for words, said in ((["--tensor-parallel", 0], b"--tensor-parallel 0: it must be from 1"),
                            (["--partition", *FULL], b"--partition: it needs --tensor-parallel"),
                            (["--sequence-parallel"], b"--sequence-parallel: it needs --tensor-parallel"),
                            ([*two, "--partition"], b"--partition: it needs --checkpoint full"),
                            ([*two, "--partition", "--checkpoint", "selective"], b"--partition: it needs --checkpoint"),
                            ([*two, "--partition", "--sequence-parallel", *FULL],
                             b"--partition and --sequence-parallel")):
            self.check(2, said, *words)
        self.check(2, b"2 processes were started together, each of which would train by itself: give "
                      b"--tensor-parallel 2", "--save", "weights", more={"OMPI_COMM_WORLD_SIZE": "2"})
        self.check(2, b"--tensor-parallel 2: there is one rank alone: say --ranks 2", *two, program=[FSDP])
        self.check(2, b"--tensor-parallel 2: it must divide --ranks 3", *two, "--ranks", 3, program=[FSDP])
        self.check(2, b"--shard-size 2: it must divide the 3 models", *two, "--ranks", 6, "--shard", "hybrid",
                   "--shard-size", 2, program=[FSDP])
        self.check(2, b"--nesting checkpoint-outside: it needs --checkpoint", "--nesting", "checkpoint-outside",
                   "--ranks", 2, program=[FSDP])
        self.check(2, b"3 processes were started together", *two, more={"OMPI_COMM_WORLD_SIZE": "3"})

    def test_what_can_not_be_divided_is_one_line(self):
        self.check(2, b"--tensor-parallel 3: 4 heads can't be divided among 3 ranks", *MODEL, "--tensor-parallel", 3)
        self.check(2, b"--sequence-parallel: --context 30 can't be divided among 4 ranks", *MODEL, "--context", 30,
                   "--tensor-parallel", 4, "--sequence-parallel")
        self.check(1, b"2 ranks together need", *MODEL, "--width", 128, "--device", "sim", "--tensor-parallel", 2,
                   more={"EBB_SIM_MEMORY": "1MiB"})

    def test_a_rank_that_fails_ends_all(self):
        for phase in "forward", "backward", "update":
            self.check(1, b"rank 1", *MODEL, "--quiet", "--tensor-parallel", 2, "--steps", 3, *FULL, "--partition",
                       more={"EBB_GPT_JOB_FAULT": f"1:{phase}:2:error", "EBB_PROCESS_GROUP_TIMEOUT": "20"})

    @unittest.skipUnless(HAS_MPI, "there is no MPI")
    def test_launched_processes_must_fit(self):
        done = self.run_program(*MODEL, "--tensor-parallel", 2, program=[MPIRUN, "-n", "3", "--oversubscribe", FSDP])
        ours = [line for line in done.stderr.splitlines() if line.startswith(b"fsdp_gpt: ")]
        self.assertEqual((done.returncode, len(ours)), (2, 1), done.stderr)
        self.assertIn(b"--tensor-parallel 2: it must divide the 3 ranks", ours[0])
        done = self.run_program(*MODEL, "--save", "w", program=[MPIRUN, "-n", "2", "--oversubscribe", TRAIN])
        ours = [line for line in done.stderr.splitlines() if line.startswith(b"train_gpt: ")]
        self.assertEqual((done.returncode, len(ours)), (2, 1), done.stderr)
        self.assertIn(b"--tensor-parallel 2", ours[0])
        done = self.run_program(*MODEL, "--heads", 2, "--tensor-parallel", 4,
                                program=[MPIRUN, "-n", "4", "--oversubscribe", TRAIN])
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(os.listdir(self.folder), ["text.txt"])


if __name__ == "__main__":
    unittest.main()
