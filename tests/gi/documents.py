"""What docs/checkpointing.md shows runs, and prints what the document says.

Blocks of Python are run one by one, each with a small GPT of its own; a block of text that follows is what it prints.
In the tables of "Coming from other systems" the code of the right column is run, row by row. Blocks of C are compiled
together and run. With --update it writes what is printed into the document instead.
"""
import contextlib
import io
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from support import Ebb, main
from gi.repository import GLib

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
_BUILD = os.environ.get("EBB_BUILD_DIR", os.path.join(_ROOT, "build", "release"))
_NAME = os.path.join("docs", "checkpointing.md")

_OUTDATED = f"{_NAME} shows another state of the library: run tests/gi/documents.py --update"

_C_FUNCTION = """
static void
run_%d (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new_preset ("tiny");
  g_autoptr (EbbModule) model = ebb_gpt_new (config, &error);
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  const gint64 shape[] = { 1, 8 }, numbers[] = { 1, 2, 3, 4, 5, 6, 7, 8 };
  g_autoptr (EbbTensor) tokens = ebb_tensor_new_from_ints (numbers, 8, shape, 2, &error);
  g_autoptr (EbbTensor) loss = NULL;

%s
  loss = ebb_gpt_loss (EBB_GPT (model), tokens, tokens, &error);
  if (!ebb_tensor_backward (loss, &error))
    g_error ("%%s", error->message);
}
"""


def read():
    with open(os.path.join(_ROOT, _NAME), encoding="utf-8") as file:
        return file.read()


def read_blocks(language):
    """The lines of each fenced block, in order, with those of a block of text that stands right below it."""
    blocks = re.findall(r"^```(\w+)\n(.*?)^```\n(?:(?=```text\n(.*?)^```$))?", read(), re.MULTILINE | re.DOTALL)
    return [(code, printed) for found, code, printed in blocks if found == language]


def read_rows():
    """The left column and the code of the right one, for each row of the tables at the end."""
    for line in read().split("## Coming from other systems", 1)[1].splitlines():
        if line.startswith("| ") and not line.startswith("| you wrote"):
            wrote, write = line.strip("| ").split(" | ")
            yield wrote, re.findall(r"`([^`]+)`", write)


def make_names():
    Ebb.manual_seed(1)
    config = Ebb.GptConfig.new()
    config.set_vocab(64)
    config.set_context(64)
    config.set_width(64)
    config.set_heads(4)
    config.set_layers(2)
    config.set_dropout(0.1)
    model = Ebb.Gpt(config)
    tokens = Ebb.randint(0, 64, 2, 64)

    def loss_of(model):
        return Ebb.cross_entropy(model(tokens).reshape(-1, 64), tokens.reshape(-1))

    block = model.h[0]
    return {"Ebb": Ebb, "GLib": GLib, "random": random, "model": model, "block": block, "loss_of": loss_of,
            "x": Ebb.randn(2, 64, 64), "sequence": Ebb.Sequential(Ebb.Linear(64, 64), Ebb.Tanh(), Ebb.Linear(64, 8)),
            "config": {"activation_checkpointing": {"cpu_checkpointing": True}},
            "oslo_config": {"activation_checkpointing": {"enable": True, "cpu_checkpointing": True}},
            "mesh": Ebb.Mesh.new(Ebb.ProcessGroup.get_default(), ["data", "tensor"], [-1, 1]),
            "function": lambda x: block(x).tanh(), "pack": lambda tensor: tensor, "unpack": lambda tensor: tensor}


def run(code, names):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, _NAME, "exec"), names)  # pylint: disable=exec-used
    return printed.getvalue()


def without_times(text):
    return re.sub(r"\b\d+\.\d{3}\b", "0.000", text)


def run_example():
    program = os.path.join(_BUILD, "examples", "nested_activations")
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout.split("\n\n")[1] + "\n"


def measure_kept(policy):
    """What each of eight blocks keeps, in inputs of a block; @policy is code, empty for no wrapper."""
    n_blocks = 8
    model = Ebb.Sequential(*(Ebb.TransformerBlock(128, 4, 0.1, True, True) for _ in range(n_blocks)))
    if policy:
        Ebb.checkpoint_wrap_each(model, Ebb.TransformerBlock,
                                 policy=eval(policy, {"Ebb": Ebb}))  # pylint: disable=eval-used
    before = Ebb.memory_stats("cpu")["activation"]["current"]
    loss = model(Ebb.randn(2, 128, 128)).sum()
    n_bytes = Ebb.memory_stats("cpu")["activation"]["current"] - before
    loss.backward()
    return n_bytes / n_blocks / (2 * 128 * 128 * 4)


def update():
    def write_printed(match):
        return f"{match[1]}{run(match[2], make_names())}```\n"

    text = re.sub(r"(^```python\n((?:(?!^```).)*)^```\n```text\n)(?:(?!^```).)*^```\n", write_printed, read(),
                  flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"(?<=```text\n)wrapped .*?(?=^```$)", lambda _: run_example(), text, flags=re.MULTILINE | re.DOTALL)
    with open(os.path.join(_ROOT, _NAME), "w", encoding="utf-8") as file:
        file.write(text)


class Documents(unittest.TestCase):
    def test_blocks_of_python_print_what_stands_below(self):
        blocks = read_blocks("python")
        self.assertGreaterEqual(len([expected for _, expected in blocks if expected]), 3)
        for code, expected in blocks:
            with self.subTest(code=code):
                printed = run(code, make_names())
                if expected:
                    self.assertEqual(without_times(printed), without_times(expected), _OUTDATED)

    def test_what_other_systems_do_has_code_that_runs(self):
        n_run = 0
        for wrote, codes in read_rows():
            with self.subTest(wrote=wrote):
                names = make_names()
                plain = names["loss_of"](names["model"]).item()
                names = make_names()
                for code in codes:
                    self.assertIn("Ebb.", code + "Ebb." * code.startswith(("block.", "model.")))
                    run(code, names)
                loss = names["loss_of"](names["model"])
                loss.backward()
                if not any("(block" in code or "x)" in code for code in codes):  # they may draw random numbers
                    self.assertEqual(loss.item(), plain)
                n_run += len(codes)
        self.assertGreater(n_run, 25)

    def test_the_table_of_nestings_is_what_the_example_prints(self):
        shown = next(text for text, _ in read_blocks("text") if text.startswith("wrapped"))
        self.assertEqual(run_example(), shown, _OUTDATED)

    def test_policies_keep_what_their_table_says(self):
        rows = re.findall(r"^\| (.+?) \|.*\| (`[^|]+`)? ?\| ([\d.]+) \|[^|]*\|$", read(), re.MULTILINE)
        self.assertGreaterEqual(len(rows), 6)
        for name, code, kept in rows:
            with self.subTest(name=name):
                self.assertAlmostEqual(measure_kept(code and code.strip("`")), float(kept), delta=0.2)

    @unittest.skipUnless(shutil.which("cc"), "there is no compiler")
    def test_blocks_of_c_compile_and_run(self):
        codes = [code for code, _ in read_blocks("c")]
        functions = [code for code in codes if code.startswith("static")]
        statements = [code for code in codes if not code.startswith("static")]
        self.assertGreaterEqual(len(statements), 3)
        functions += [_C_FUNCTION % (number, code) for number, code in enumerate(statements)]
        calls = " ".join(f"run_{number} ();" for number in range(len(statements)))
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "gio-2.0"], capture_output=True, text=True,
                               check=True).stdout.split()
        with tempfile.TemporaryDirectory(prefix="ebb-documents-") as folder:
            source, program = os.path.join(folder, "blocks.c"), os.path.join(folder, "blocks")
            with open(source, "w", encoding="utf-8") as file:
                file.write("\n".join(["#include <ebb/ebb.h>", *functions, f"int main (void) {{ {calls} return 0; }}"]))
            paths = [f"-I{_BUILD}/include", f"-I{_BUILD}/generated", f"-I{_ROOT}", f"-L{_BUILD}"]
            done = subprocess.run(["cc", "-Wall", "-Werror", source, "-o", program, *paths, "-lebb-1.0", *flags],
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            done = subprocess.run([program], capture_output=True, text=True, check=False,
                                  env={**os.environ, "LD_LIBRARY_PATH": _BUILD})
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("TransformerBlock is run again", done.stdout)


if __name__ == "__main__":
    if sys.argv[1:] == ["--update"]:
        update()
    else:
        main()
