#!/usr/bin/env python3
"""The examples oslo_gpt2, in C and Python: each of OSLO's options takes off what it promises, and changes no loss."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ.get("EBB_SOURCE_DIR", os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
BUILD = os.environ.get("EBB_BUILD_DIR", os.path.join(SOURCE, "build", "release"))
sys.path.insert(0, os.path.join(SOURCE, "tests", "support"))
from gpt2_folder import write_gpt2_folder  # noqa: E402

IN_C = [os.path.join(BUILD, "examples", "oslo_gpt2")]
IN_PYTHON = ["/usr/bin/python3", os.path.join(SOURCE, "examples", "python", "oslo_gpt2.py")]
HAS_PYTHON = (os.path.exists(os.path.join(BUILD, "Ebb-1.0.typelib")) and shutil.which(IN_PYTHON[0])
              and subprocess.run([IN_PYTHON[0], "-c", "import gi"], stderr=subprocess.DEVNULL, check=False).returncode
              == 0)
MPIRUN = shutil.which("mpirun")
MPI_ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                   "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
HAS_MPI = MPIRUN is not None and any("mpi" in name for _, _, names in os.walk(os.path.join(BUILD, "ebb-1.0"))
                                     for name in names)
LAYERS, WIDTH, BATCH, SEQUENCE, RANKS = 12, 64, 16, 128, 4
SIZES = ["--preset", "tiny", "--layers", LAYERS, "--width", WIDTH, "--heads", 4, "--batch", BATCH, "--sequence",
         SEQUENCE]
INPUT = BATCH * SEQUENCE * WIDTH * 4 / (1 << 20)  # of a block, MiB
WAYS = ["plain", "partitioned", "+ contiguous", "+ host"]
COLUMNS = "kept", "host", "then", "activations", "all", "seconds", "loss"


def run(program, *words):
    return subprocess.run([*program, *map(str, words)], capture_output=True, text=True, timeout=200, check=False,
                          env={**os.environ, **MPI_ENVIRONMENT})


def read_table(output):
    """Of each way a list of dictionaries, one a rank."""
    rows, name = {}, None
    for line in output.splitlines():
        found = re.match(r"(.{18})\s+(\d+)((?:\s+[\d.]+){7})$", line)
        if found:
            name = found[1].strip() or name
            rows.setdefault(name, []).append(dict(zip(COLUMNS, map(float, found[3].split()))))
    return rows


class OsloTest(unittest.TestCase):
    def table(self, program, *words, n_ranks=RANKS):
        done = run(program, *SIZES, *words)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        rows = read_table(done.stdout)
        self.assertEqual(list(rows), WAYS, done.stdout)
        self.assertEqual([len(each) for each in rows.values()], [n_ranks] * len(WAYS))
        self.assertEqual(len({row["loss"] for each in rows.values() for row in each}), 1)
        self.assertIn("The losses of all rows are equal, bit for bit.", done.stdout)
        return rows

    def check(self, rows, moves):
        """@moves: the device's memory is not the host's."""
        for plain, divided, contiguous, host in zip(*rows.values()):
            self.assertAlmostEqual(plain["kept"], LAYERS * INPUT, delta=0.01)
            for row in divided, contiguous:
                self.assertLessEqual(row["kept"], plain["kept"] / 3.9)
                self.assertEqual(row["host"], 0)
            self.assertLessEqual(divided["then"], plain["then"] - 0.74 * LAYERS * INPUT)
            self.assertGreaterEqual(plain["activations"], 1.8 * divided["activations"])
            self.assertLessEqual(contiguous["activations"], 1.1 * divided["activations"])
            self.assertEqual(host["kept"], 0 if moves else contiguous["kept"])
            self.assertLessEqual(host["host"], contiguous["kept"] if moves else 0)
            if moves:
                self.assertLessEqual(host["then"], plain["then"] - 0.99 * LAYERS * INPUT)
                self.assertLess(host["activations"], divided["activations"])


class Table(OsloTest):
    def test_each_option_takes_off_what_it_promises(self):
        self.check(self.table(IN_C), True)

    def test_it_does_on_the_cpu(self):
        self.check(self.table(IN_C, "--device", "cpu"), False)

    @unittest.skipUnless(HAS_PYTHON, "there is no Python with introspection")
    def test_python_has_the_same_table(self):
        ours, theirs = self.table(IN_C), self.table(IN_PYTHON)
        for name in WAYS:
            for mine, other in zip(ours[name], theirs[name]):
                for column in "kept", "host", "activations":
                    self.assertAlmostEqual(mine[column], other[column], delta=0.05, msg=f"{name}, {column}")
                self.assertEqual(mine["loss"], other["loss"])

    @unittest.skipUnless(HAS_MPI, "there is no MPI")
    def test_processes_are_ranks(self):
        rows = self.table([MPIRUN, "-n", "2", "--oversubscribe", *IN_C], "--ranks", 0, n_ranks=2)
        for plain, divided in zip(rows["plain"], rows["partitioned"]):
            self.assertLessEqual(divided["kept"], plain["kept"] / 1.95)


class BadInput(unittest.TestCase):
    def test_it_is_one_line(self):
        for words, status, said in ((["--batch", 0], 2, "--batch"), (["--width", "x"], 2, "x"),
                                    (["more"], 2, "options"), (["--preset", "big"], 1, "big"),
                                    (["--nothing"], 2, "--nothing"),
                                    ([*SIZES, "--heads", 5], 1, "5 heads"), ([*SIZES, "--ranks", 3], 1, "heads"),
                                    ([*SIZES, "--device", "none"], 1, "\"none\"")):
            with self.subTest(words=words):
                done = run(IN_C, *words)
                self.assertEqual((done.returncode, done.stderr.count("\n")), (status, 1), done.stderr)
                self.assertIn(said, done.stderr)


@unittest.skipUnless(HAS_PYTHON, "there is no Python with introspection")
class Folder(OsloTest):
    """The tutorial with a model's own weights and tokenizer; transformers computes the losses from the same folder."""
    SIZES = ["--batch", 4, "--sequence", 32, "--ranks", 2]
    TEXTS = "the man and the sea\n\nan\nand all that is in the water, as the boats are, at high water and at low\n"
    LOSS = 5.304468

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder, self.text = folder.name, os.path.join(folder.name, "texts.txt")
        write_gpt2_folder(folder.name)
        with open(self.text, "w", encoding="utf-8") as file:
            file.write(self.TEXTS)

    def test_its_tokenizer_padding_labels_and_weights_are_the_tutorials(self):
        for program in [IN_PYTHON]:
            done = run(program, "--model", self.folder, "--data", self.text, *self.SIZES)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            rows = read_table(done.stdout)
            self.assertEqual(list(rows), WAYS, done.stdout)
            for row in (row for each in rows.values() for row in each):
                self.assertAlmostEqual(row["loss"], self.LOSS, delta=2e-6 * self.LOSS)

    def test_bad_folders_are_one_line(self):
        for words, status, said in ((["--model", "/none"], 1, "/none"),
                                    (["--model", self.folder, "--layers", 2], 2, "--layers"),
                                    (["--model", self.folder, "--preset", "tiny"], 2, "--preset"),
                                    (["--model", self.folder, "--sequence", 65], 1, "--sequence 65: the model has 64")):
            for program in [IN_PYTHON]:
                with self.subTest(words=words, program=program):
                    done = run(program, "--ranks", 2, *words)
                    self.assertEqual((done.returncode, done.stderr.count("\n")), (status, 1), done.stderr)
                    self.assertIn(said, done.stderr)

    def test_heads_that_the_ranks_do_not_divide_are_named_before_the_table(self):
        for program in [IN_PYTHON]:
            done = run(program, "--model", self.folder, "--data", self.text, *self.SIZES, "--ranks", 3)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1), done.stderr)
            self.assertIn("its 4 heads and 4 heads of keys and values can't be divided among 3 ranks: take 2",
                          done.stderr)


@unittest.skipUnless(HAS_PYTHON, "there is no Python with introspection")
class Failures(OsloTest):
    programs = [IN_PYTHON]
    by_argparse = "--batch 0", "--dropout -1"

    def test_bad_input_is_one_line(self):
        empty = tempfile.NamedTemporaryFile()
        self.addCleanup(empty.close)
        for words, status, said in ((["--batch", 0], 2, "--batch 0"), (["--ranks", 1], 2, "--ranks 1"),
                                    (["--width", "x"], 2, "x"), (["more"], 2, "more"),
                                    (["--ranks", 0], 2, "--ranks"), (["--heads", 0], 2, "--heads"),
                                    (["--heads", 5], 2, "5 heads"), (["--dropout", 1], 2, "--dropout 1"),
                                    (["--lr", -1], 2, "--lr"), (["--preset", "big"], 2, "big"),
                                    (["--data", "/none"], 1, "--data /none"),
                                    (["--data", empty.name], 1, f"--data {empty.name}: there is nothing in it"),
                                    ([*SIZES, "--ranks", 3], 2, "heads"), (["--device", "none"], 2, "--device none")):
            for program in self.programs:
                with self.subTest(words=words, program=program):
                    done = run(program, *words)
                    self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (status, "", 1),
                                     done.stderr)
                    self.assertIn(said.replace(" ", ": ", 1) if said in self.by_argparse and program is IN_PYTHON
                                  else said, done.stderr)

    def test_a_process_without_a_rank_0_speaks_for_itself(self):
        for program in self.programs:
            done = run(["env", "SLURM_PROCID=1", *program], "--ranks", 1)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done.stderr)

    @unittest.skipUnless(HAS_MPI, "there is no MPI")
    def test_one_process_is_too_few(self):
        for program in self.programs:
            done = run([MPIRUN, "-n", "1", *program], *SIZES)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn("one process was started", done.stderr)

    def test_more_is_told_as_more(self):
        done = run(IN_PYTHON, "--preset", "tiny", "--layers", 2, "--width", 32, "--heads", 4, "--batch", 2,
                   "--sequence", 16)
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout, r"all at most \+\d+ %")
        self.assertNotIn("1/0.", done.stdout)


if __name__ == "__main__":
    unittest.main()
