#!/usr/bin/env python3
"""The examples nested_activations, in C and in Python: their numbers fit each other, and bad input is one line."""
import os
import shutil
import subprocess
import sys
import unittest

SOURCE = os.environ.get("EBB_SOURCE_DIR", os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
BUILD = os.environ.get("EBB_BUILD_DIR", os.path.join(SOURCE, "build", "release"))
IN_C = [os.path.join(BUILD, "examples", "nested_activations")]
IN_PYTHON = ["/usr/bin/python3", os.path.join(SOURCE, "examples", "python", "nested_activations.py")]
HAS_PYTHON = (os.path.exists(os.path.join(BUILD, "Ebb-1.0.typelib")) and shutil.which(IN_PYTHON[0])
              and subprocess.run([IN_PYTHON[0], "-c", "import gi"], stderr=subprocess.DEVNULL, check=False).returncode
              == 0)
PROGRAMS = {"C": IN_C, **({"Python": IN_PYTHON} if HAS_PYTHON else {})}
COLUMNS = "inner", "outer", "store", "most", "blocks", "parts"


def run(program, *words):
    return subprocess.run([*program, *map(str, words)], capture_output=True, text=True, timeout=100, check=False)


def read_table(output):
    """The rows by name, each a dictionary of its numbers; and the explanations by name."""
    head, table, texts, last = output.split("\n\n")
    rows = {}
    for line in table.splitlines()[1:]:
        name, *numbers = line[:22].strip(), *map(int, line[22:].split())
        rows[name] = dict(zip(COLUMNS, numbers))
    return head, rows, dict(line.split(": ", 1) for line in texts.splitlines()), last


class Table(unittest.TestCase):
    def check(self, n_blocks, n_bytes, *words):
        done = run(IN_C, *words)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        head, rows, texts, last = read_table(done.stdout)
        self.assertIn(f"an input has {n_bytes} bytes", head)
        self.assertEqual(set(rows), set(texts))
        self.assertIn(f"all {12 * n_blocks} parameters", last)
        none, blocks, model, both = (rows[name] for name in ("none", "blocks", "model", "blocks in model"))
        parts = rows["parts in blocks"]

        # what is kept after the forward
        self.assertEqual((none["outer"], none["store"]), (0, 0))
        self.assertGreater(none["inner"], 8 * n_blocks * n_bytes)
        self.assertEqual([row["inner"] for name, row in rows.items() if name != "none"], [0] * (len(rows) - 1))
        for name, row in rows.items():
            inputs = 0 if name == "none" else 1 if "model" in name else n_blocks
            self.assertEqual(row["outer"] + row["store"], inputs * n_bytes, name)
            stored = name.endswith("disk") or name.endswith("host")
            self.assertEqual(row["outer" if stored else "store"], 0, name)
        # the most at a time: a store leaves the input that backward needs and the next one on the device
        self.assertGreater(none["most"], none["inner"])
        # its own input may be freed a little earlier than tensors that were saved all the time; where the workspace of
        # attention decides, that input and its gradient are beside it
        self.assertLessEqual(model["most"], none["most"] + 2 * n_bytes + 64)
        self.assertLess(none["most"] - model["most"], 2 * n_bytes)
        self.assertEqual(both["most"], blocks["most"])
        # where a block is as small as 96 bytes the workspace of attention decides
        (self.assertLess if n_bytes > 96 else self.assertLessEqual)(parts["most"], blocks["most"])
        away = max(n_blocks - 2, 0) * n_bytes
        self.assertEqual(blocks["most"] - rows["blocks, host"]["most"], away)
        self.assertEqual(rows["blocks, disk"], rows["blocks, host"])
        self.assertEqual(parts["most"] - rows["parts in blocks, disk"]["most"], away)
        self.assertEqual(rows["blocks in model, disk"]["most"], both["most"])
        if n_blocks > 1:
            self.assertLess(blocks["most"], none["most"])
        return rows

        # what is run
        for name, row in rows.items():
            # a block's input that is the model's, too, needs no recompute of the model
            times = 1 if name == "none" else 3 if "in model" in name and n_blocks > 1 else 2
            self.assertEqual(row["blocks"], times * n_blocks, name)
            self.assertEqual(row["parts"], 2 * n_blocks * (3 if "parts" in name else times), name)

    def test_the_numbers_fit_each_other(self):
        self.check(4, 65536)

    def test_more_blocks_add_their_inputs(self):
        four, nine = self.check(4, 65536), self.check(9, 65536, "--blocks", 9)
        self.assertEqual(nine["blocks"]["most"] - four["blocks"]["most"], 5 * 65536)
        self.assertEqual(nine["parts in blocks"]["most"] - four["parts in blocks"]["most"], 5 * 65536)
        self.assertEqual(nine["blocks, host"]["most"], four["blocks, host"]["most"])
        self.assertEqual(nine["none"]["most"] - four["none"]["most"], nine["none"]["inner"] - four["none"]["inner"])

    def test_on_the_cpu(self):
        done = run(IN_C, "--device", "cpu")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        rows = read_table(done.stdout)[1]
        self.assertEqual(rows["blocks, host"], rows["blocks"])  # nothing moves
        self.assertEqual(rows["blocks, disk"]["store"], 4 * 65536)

    def test_other_sizes(self):
        self.check(1, 96, "--blocks", 1, "--width", 8, "--heads", 1, "--batch", 1, "--tokens", 3)
        self.check(3, 20480, "--blocks", 3, "--width", 32, "--heads", 2, "--batch", 5, "--tokens", 32, "--dropout", 0)

    @unittest.skipUnless(HAS_PYTHON, "introspection was not built")
    def test_python_prints_what_c_prints(self):
        for words in [], ["--blocks", 2, "--width", 48, "--heads", 3, "--batch", 1, "--tokens", 40, "--dropout", 0.5], \
                ["--device", "cpu"]:
            in_c, in_python = run(IN_C, *words), run(IN_PYTHON, *words)
            self.assertEqual((in_python.returncode, in_python.stderr), (0, ""))
            self.assertEqual(in_python.stdout, in_c.stdout)


# The program with one gradient of its third row changed.
CHANGED = """
import sys
sys.path.insert(0, sys.argv[1])
import nested_activations
run_step, rows = nested_activations.run_step, []
def run_and_change(*words):
    row, gradients = run_step(*words)
    rows.append(row)
    if len(rows) == 3:
        gradients["0.mlp.c_fc.weight"] = gradients["0.mlp.c_fc.weight"] * 2
    return row, gradients
nested_activations.run_step = run_and_change
nested_activations.main([])
"""


class Gradients(unittest.TestCase):
    @unittest.skipUnless(HAS_PYTHON, "introspection was not built")
    def test_another_gradient_is_a_failure(self):
        done = run([IN_PYTHON[0], "-c", CHANGED, os.path.dirname(IN_PYTHON[1])])
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, "-c: model: the gradient of 0.mlp.c_fc.weight is not that of the model "
                                      "without wrappers\n")
        self.assertNotIn("bit for bit", done.stdout)


class BadInput(unittest.TestCase):
    def test_one_line_says_what_is_wrong(self):
        for status, part, *words in [
                (2, "0: it must be at least 1", "--blocks", 0),
                (2, "--tokens", "--tokens", "many"),
                (2, "--batch", "--batch", 1 << 40),
                (2, "it must be at least 0 and below 1", "--dropout", 1),
                (2, "it must be at least 0 and below 1", "--dropout", "nan"),
                (2, "--bogus", "--bogus"),
                (2, "word", "word"),
                (1, "64 can't be divided", "--heads", 5),
                (1, "/nonexistent", "--folder", "/nonexistent"),
                (1, "out of memory on cpu", "--device", "cpu", "--batch", 2147483647),
                (1, "out of memory on sim", "--batch", 65536),
                (1, "no device", "--device", "abacus")]:
            for language, program in PROGRAMS.items():
                with self.subTest(language=language, words=words):
                    done = run(program, *words)
                    self.assertEqual((done.returncode, len(done.stderr.splitlines())), (status, 1), done.stderr)
                    self.assertTrue(done.stderr.startswith(os.path.basename(program[-1]) + ": "), done.stderr)
                    self.assertIn(part, done.stderr)

    def test_help_lists_every_option(self):
        for language, program in PROGRAMS.items():
            with self.subTest(language=language):
                done = run(program, "--help")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                for option in "blocks width heads batch tokens dropout device folder".split():
                    self.assertIn(f"--{option}", done.stdout)


if __name__ == "__main__":
    if not os.access(IN_C[0], os.X_OK):
        print(f"{IN_C[0]} is not there")
        sys.exit(77)
    unittest.main(verbosity=2)
