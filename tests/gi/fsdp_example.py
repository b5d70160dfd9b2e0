"""The example that trains on many ranks: the same losses on any number of them, goes on, and says what is wrong."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from support import Ebb

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
_EXAMPLE = os.path.join(_ROOT, "examples", "python", "fsdp_gpt.py")
_TEXT = os.path.join(_ROOT, "LICENSE")  # it never changes, nor do the roundings of its losses
_LAUNCH = os.path.join(_ROOT, "tests", "mpi", "launch")
_HAS_MPI = shutil.which("mpirun") is not None and os.path.exists(
    os.path.join(os.environ.get("EBB_BACKEND_PATH", "."), "ebb-process-group-mpi.so"))
_IN_C = os.path.join(os.environ.get("GI_TYPELIB_PATH", "."), "examples")
_SIZES = ("--data", _TEXT, "--layers", "2", "--width", "32", "--heads", "2", "--context", "32", "--lr", "1e-3")
_SMALL = (*_SIZES, "--dropout", "0", "--steps", "6")


def environment():
    """Without what a launcher around the tests may have set."""
    return {name: value for name, value in os.environ.items()
            if not name.startswith(("OMPI_", "PMIX_", "PMI_", "SLURM_")) and name not in ("RANK", "WORLD_SIZE")}


class Example(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def run_program(self, *words):
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=100, env=environment())

    def train(self, *words, program=(sys.executable, _EXAMPLE)):
        """The report."""
        path = os.path.join(self.folder, "report.json")
        done = self.run_program(*program, *words, "--report", path)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.output = done.stdout
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
        os.remove(path)  # the programs in C replace reports of their own kind alone
        return report

    def assert_near(self, a, b):
        self.assertEqual(len(a), len(b))
        for x, y in zip(a, b):
            self.assertAlmostEqual(x, y, delta=1e-6)

    def test_losses_are_those_of_one_rank(self):
        one = self.train(*_SMALL)
        self.assertLess(one["final_loss"], one["losses"][0] - 0.1)
        self.assertEqual((one["final_loss"], len(one["ranks"]), one["last_step"]), (one["losses"][-1], 1, 6))
        for words in (("--ranks", "2"), ("--ranks", "3", "--checkpoint", "selective", "--store", "host"),
                      ("--ranks", "2", "--shard", "none", "--store", "disk"),
                      ("--ranks", "4", "--shard", "hybrid", "--shard-size", "2", "--checkpoint", "full")):
            report = self.train(*_SMALL, *words)
            self.assertEqual(len(report["ranks"]), int(words[1]))
            self.assert_near(report["losses"], one["losses"])

    def test_there_may_be_fewer_rows_than_ranks(self):
        words = (*_SMALL, "--batch", "2")
        for shard in "full", "none":
            report = self.train(*words, "--ranks", "4", "--shard", shard)
            self.assert_near(report["losses"], self.train(*words)["losses"])

    @unittest.skipUnless(_HAS_MPI, "there is no mpirun, or the library was built without MPI")
    def test_ranks_may_be_processes(self):
        report = self.train(*_SMALL, "--checkpoint", "full", program=(_LAUNCH, "2", sys.executable, _EXAMPLE))
        self.assertIn("2 ranks (mpi)", self.output)
        self.assertEqual(self.output.count("loss"), 6)  # one rank speaks
        self.assert_near(report["losses"], self.train(*_SMALL, "--ranks", "2")["losses"])

    def test_ranks_are_told_of_by_themselves(self):
        alone = self.train(*_SMALL, "--steps", "2")["ranks"][0]
        report = self.train(*_SMALL, "--steps", "2", "--ranks", "4", "--shard", "hybrid", "--shard-size", "2")
        self.assertEqual([row["rank"] for row in report["ranks"]], [0, 1, 2, 3])
        for row in report["ranks"]:
            for name in "parameter_bytes_held", "optimizer_bytes_held":
                self.assertAlmostEqual(row[name] / alone[name], 0.5, delta=0.02)
            self.assertEqual(set(row["communication"]), {"all_gather", "reduce_scatter", "all_reduce"})
        self.assertEqual(report["communication"], report["ranks"][0]["communication"])
        self.assertEqual((report["config"]["shard"], report["config"]["shard_size"]), ("hybrid", 2))
        table = self.output[self.output.index("rank  parameters"):].splitlines()
        self.assertEqual([line.split()[0] for line in table], ["rank", "0", "1", "2", "3", "Rank"])

    def test_batches_that_are_added_up_are_one_larger(self):
        words = (*_SMALL, "--clip", "1", "--ranks", "2", "--batch", "3", "--accumulate", "2")
        self.assert_near(self.train(*words)["losses"], self.train(*words, "--shard", "none")["losses"])

    def test_it_goes_on_bit_for_bit(self):
        words = (*_SIZES, "--ranks", "2", "--batch", "5", "--resume", os.path.join(self.folder, "state"))
        whole = self.train(*words[:-2], "--steps", "6")["losses"]
        first = self.train(*words, "--steps", "4")
        rest = self.train(*(word for word in words if word not in ("--batch", "5")), "--steps", "6")
        self.assertEqual((rest["first_step"], rest["config"]["batch"]), (4, 5))
        self.assertEqual(first["losses"] + rest["losses"], whole)
        done = self.run_program(sys.executable, _EXAMPLE, *words, "--seed", "7")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--seed 7: the training in", done.stderr)

    def test_a_folder_has_one_training(self):
        state = os.path.join(self.folder, "state")
        words = (*_SMALL, "--ranks", "2", "--resume", state)
        lock = Ebb.FolderLock.new(state)
        done = self.run_program(sys.executable, _EXAMPLE, *words)
        self.assertEqual((done.returncode, done.stdout, len(done.stderr.splitlines())), (1, "", 1), done.stderr)
        self.assertIn(f"the folder {state} is in use by process {os.getpid()} on ", done.stderr)
        lock.release()
        self.train(*words)
        self.assertNotIn(".ebb-lock", os.listdir(state))
        os.unlink(os.path.join(state, "index.json"))
        done = self.run_program(sys.executable, _EXAMPLE, *words)
        self.assertEqual((done.returncode, done.stdout, len(done.stderr.splitlines())), (1, "", 1), done.stderr)
        self.assertIn("but not its index.json", done.stderr)
        with open(os.path.join(state, "index.json.01234567.ebb-partial"), "wb"):  # as a first save that was killed
            pass
        self.assertEqual(self.train(*words)["first_step"], 0)
        self.assertEqual(len(os.listdir(state)), 7)

    @unittest.skipUnless(os.path.exists(os.path.join(_IN_C, "train_gpt")), "the programs in C were not built")
    def test_it_trains_as_the_programs_in_c(self):
        words = (*_SIZES, "--steps", "4")  # with dropout
        self.assert_near(self.train(*words)["losses"],
                         self.train(*words, program=(os.path.join(_IN_C, "train_gpt"),))["losses"])
        state = ("--ranks", "2", "--resume", os.path.join(self.folder, "state"))
        self.train(*words, *state)
        rest = self.train("--data", _TEXT, "--steps", "6", *state, program=(os.path.join(_IN_C, "fsdp_gpt"),))
        whole = self.train(*_SIZES, "--steps", "6", "--ranks", "2")
        self.assert_near(rest["losses"], whole["losses"][4:])

    def test_mistakes_are_told(self):
        for words, said in ((("--shard", "half"), "--shard"), (("--batch", "0"), "--batch: 0: it must be a whole"),
                            (("--dropout", "1"), "below 1"), (("--heads", "3"), "--heads 3: it must divide --width 32"),
                            (("--shard-size", "2"), "go together"), (("--lr", "nan"), "--lr: nan"),
                            (("--ranks", "3", "--shard", "hybrid", "--shard-size", "2"), "must divide --ranks 3")):
            done = self.run_program(sys.executable, _EXAMPLE, *_SMALL, *words)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(said, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1)
        done = self.run_program(sys.executable, _EXAMPLE, *_SMALL, "--ranks", "2", "--data", "/nowhere")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("/nowhere", done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1)


if __name__ == "__main__":
    unittest.main()
