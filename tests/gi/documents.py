"""The code in README.md and below docs/ runs, and prints what the documents say.

Python blocks run one by one, each with a small GPT of its own; a text block below is the output. guide.py runs those of
the tutorial and of docs/porting/. C blocks are compiled together and run; programs in C, JavaScript and Vala run one by
one. tests/scripts/documents_commands.py runs the commands.
With --update the script writes the output into the documents instead.
"""
import contextlib
import functools
import glob
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import ebb
from support import Ebb, main
from gi.repository import GLib

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path.insert(0, os.path.join(_ROOT, "tests", "support"))
from document_blocks import BUILD as _BUILD, GUIDE, LANGUAGES, NAMES, is_command, read, read_blocks  # noqa: E402

_MODEL = os.path.join(_ROOT, "tests", "fixtures", "chat-model")

_NAME = os.path.join("docs", "checkpointing.md")

_PRINTED_ELSEWHERE = os.path.join("docs", "parallel.md")     # tests/gi/parallel_document.py runs what prints there

_OUTDATED = "a document shows another state of the library: run tests/gi/documents.py --update"

# Each block becomes a function that runs on four ranks that are threads, with the names that the documents use.
_C_FUNCTION = """
static gboolean
run_%d (EbbProcessGroup *group, gpointer user_data, GError **error_out)
{
  GError *error = NULL;
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new_preset ("tiny");
  g_autoptr (EbbModule) model = ebb_gpt_new (config, &error);
  EbbGpt *gpt = EBB_GPT (model);
  g_autoptr (EbbModule) tree = new_tree (&error);
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (model, 3e-4, &error);
  g_autoptr (EbbSavedTensorHooks) store = ebb_host_store_new ();
  const gint64 shape[] = { 1, 8 }, numbers[] = { 1, 2, 3, 4, 5, 6, 7, 8 };
  g_autoptr (EbbTensor) tokens = ebb_tensor_new_from_ints (numbers, 8, shape, 2, &error);
  EbbTensor *targets = tokens;
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbMesh) mesh = NULL;
  EbbProcessGroup *tensor = group, *data = NULL;
  const guint n_layers = 4;
  double norm = 0;

  a_model = model;
  some_tokens = tokens;
  {
%s
  }
  g_clear_pointer (&loss, ebb_tensor_unref);
  if (EBB_IS_GPT (model))
    {
      loss = ebb_gpt_loss (EBB_GPT (model), tokens, tokens, &error);
      ebb_tensor_backward (loss, &error);
    }
  if (error == NULL)
    return TRUE;
  g_propagate_error (error_out, error);
  return FALSE;
}
"""

_C_PROGRAM = """
#include <ebb/ebb.h>
#include <math.h>

static _Thread_local EbbModule *a_model;
static _Thread_local EbbTensor *some_tokens;

static void
train_a_step (void)
{
  g_autoptr (EbbTensor) loss = ebb_gpt_loss (EBB_GPT (a_model), some_tokens, some_tokens, NULL);

  ebb_tensor_backward (loss, NULL);
}

/* The modules that the plan of docs/parallel.md names: layers.0.up, layers.0.down. */
static EbbModule *
new_tree (GError **error)
{
  EbbModule *tree = ebb_sequential_new ();
  g_autoptr (EbbModule) layers = ebb_sequential_new (), layer = ebb_sequential_new ();
  g_autoptr (EbbModule) up = ebb_linear_new (8, 32, TRUE, error), down = ebb_linear_new (32, 8, TRUE, error);

  ebb_module_register_child (layer, "up", up, error);
  ebb_module_register_child (layer, "down", down, error);
  ebb_sequential_append (EBB_SEQUENTIAL (layers), layer, error);
  ebb_module_register_child (tree, "layers", layers, error);
  return tree;
}

%s

int
main (void)
{
  const struct { const char *name; EbbRankFunc run; gboolean joins; } blocks[] = { %s };

  for (guint i = 0; i < G_N_ELEMENTS (blocks); i++)
    {
      g_autoptr (GError) error = NULL;

      if (!(blocks[i].joins ? blocks[i].run (NULL, NULL, &error) : ebb_run_ranks (4, blocks[i].run, NULL, &error)))
        g_error ("%%s: %%s", blocks[i].name, error->message);
    }
  return 0;
}
"""


# Linked with each program, which must free its tensors: LeakSanitizer sees neither their memory nor their structures.
_C_TENSORS = """
#include <ebb/ebb.h>

static void __attribute__ ((destructor))
check_tensors (void)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (ebb_device_get_cpu ());

  if (ebb_memory_stats_get_total (stats) > 0)
    g_printerr ("%" G_GUINT64_FORMAT " bytes of tensors are left\\n", ebb_memory_stats_get_total (stats));
}
"""


def without_own_names(code):
    """A block after statements that free the objects of _C_FUNCTION for which the block makes others."""
    names = re.findall(r"^(model|optimizer) = ", code, re.MULTILINE)
    return "\n".join([*(f"g_clear_object (&{name});" for name in reversed(names)), code])


def make_names():
    Ebb.manual_seed(1)
    config = Ebb.GptConfig.new()
    config.vocab = 64
    config.context = 64
    config.width = 64
    config.heads = 4
    config.layers = 2
    config.dropout = 0.1
    model = Ebb.Gpt(config)
    tokens = Ebb.randint(0, 64, 2, 64)

    def loss_of(model):
        return Ebb.cross_entropy(model(tokens).reshape(-1, 64), tokens.reshape(-1))

    block = model.h[0]
    return {"Ebb": Ebb, "ebb": ebb, "GLib": GLib, "random": random, "model": model, "block": block, "loss_of": loss_of,
            "x": Ebb.randn(2, 64, 64), "sequence": Ebb.Sequential(Ebb.Linear(64, 64), Ebb.Tanh(), Ebb.Linear(64, 8)),
            "config": {"activation_checkpointing": {"cpu_checkpointing": True}},
            "oslo_config": {"activation_checkpointing": {"enable": True, "cpu_checkpointing": True}},
            "mesh": Ebb.Mesh.new(Ebb.ProcessGroup.get_default(), ["data", "tensor"], [-1, 1]),
            "group": Ebb.ProcessGroup.get_default(), "optimizer": Ebb.AdamW(model, 1e-3),
            "tokens": tokens, "targets": tokens, "train_a_step": lambda: loss_of(model).backward(),
            "function": lambda x: block(x).tanh(), "pack": lambda tensor: tensor, "unpack": lambda tensor: tensor}


def add_files(folder):
    """The model and the texts that the documents name."""
    os.symlink(_MODEL, os.path.join(folder, "my-chat-model"))
    with open(os.path.join(folder, "chats.jsonl"), "w", encoding="utf-8") as file:
        for n in range(20):
            file.write(json.dumps({"prompt": f"What is {n}?", "completion": f" It is {n}."}) + "\n")


def run(code, names):
    printed = io.StringIO()
    back = os.getcwd()
    with contextlib.redirect_stdout(printed), tempfile.TemporaryDirectory(prefix="ebb-documents-") as folder:
        os.chdir(folder)
        add_files(folder)
        try:
            exec(compile(code.replace("/mnt/nvme", folder), _NAME, "exec"), names)  # pylint: disable=exec-used
        finally:
            os.chdir(back)
    return printed.getvalue()


def run_program(*command, **options):
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                          env={**os.environ, "LD_LIBRARY_PATH": _BUILD, "G_SLICE": "always-malloc",
                               "LSAN_OPTIONS": "fast_unwind_on_malloc=0"}, **options)


def without_times(text):
    return re.sub(r"\b\d+\.\d{3}\b", "0.000", text)


def run_example():
    program = os.path.join(_BUILD, "examples", "nested_activations")
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}  # the workspace of products depends on it
    return subprocess.run([program], capture_output=True, text=True, check=True,
                          env=environment).stdout.split("\n\n")[1] + "\n"


def measure_kept(policy):
    """The bytes that each of eight blocks saves, in inputs of a block; @policy is code, empty for no wrapper."""
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

    for name in NAMES:
        if name in (_PRINTED_ELSEWHERE, *GUIDE):
            continue
        old = read(name)
        new = re.sub(r"(^```python\n((?:(?!^```).)*)^```\n```text\n)(?:(?!^```).)*^```\n", write_printed, old,
                     flags=re.MULTILINE | re.DOTALL)
        new = re.sub(r"(?<=```text\n)wrapped .*?(?=^```$)", lambda _: run_example(), new,
                     flags=re.MULTILINE | re.DOTALL)
        if new != old:
            with open(os.path.join(_ROOT, name), "w", encoding="utf-8") as file:
                file.write(new)


class Documents(unittest.TestCase):
    def test_all_blocks_are_in_a_language_that_is_run(self):
        for block in read_blocks():
            if block.language not in LANGUAGES:    # what is printed, and figures of text
                with self.subTest(document=block.document, line=block.line):
                    self.assertIn(block.language, ("", "text"))
                    self.assertEqual([line for line in block.code.splitlines() if is_command(line)], [])

    def test_names_of_functions_exist(self):
        headers = ""
        for path in glob.glob(os.path.join(_ROOT, "*", "**", "*.h"), recursive=True):
            with open(path, encoding="utf-8") as file:
                headers += file.read()
        for name in NAMES:
            text = read(name)
            in_python = re.sub(r"## JavaScript.*?## Rules", "", text, flags=re.DOTALL)
            with self.subTest(document=name):
                words = re.findall(r"\b(ebb_\w+) ?\(", text)
                self.assertEqual([word for word in words if f"{word} (" not in headers], [])
                for package, words in re.findall(r"(?<![/\w.-])(ebb|Ebb)((?:\.\w+)+)", in_python):
                    functools.reduce(getattr, words[1:].split("."), ebb if package == "ebb" else Ebb)

    def test_blocks_of_python_print_what_stands_below(self):
        blocks = [block for block in read_blocks("python") if block.document not in GUIDE
                  and not (block.printed and block.document == _PRINTED_ELSEWHERE)]
        self.assertGreaterEqual(len([block for block in blocks if block.printed]), 3)
        for block in blocks:
            with self.subTest(document=block.document, line=block.line):
                printed = run(block.code, make_names())
                if block.printed:
                    self.assertEqual(without_times(printed), without_times(block.printed), _OUTDATED)

    def test_the_table_of_nestings_is_what_the_example_prints(self):
        shown = next(block.code for block in read_blocks("text") if block.code.startswith("wrapped"))
        self.assertEqual(run_example(), shown, _OUTDATED)

    def test_policies_keep_what_their_table_says(self):
        rows = re.findall(r"^\| (.+?) \|.*\| (`[^|]+`)? ?\| ([\d.]+) \|[^|]*\|$", read(_NAME), re.MULTILINE)
        self.assertGreaterEqual(len(rows), 6)
        for name, code, kept in rows:
            with self.subTest(name=name):
                self.assertAlmostEqual(measure_kept(code and code.strip("`")), float(kept), delta=0.2)

    @unittest.skipUnless(shutil.which("cc"), "there is no compiler")
    def compile_and_run(self, code):
        paths = [f"-I{_BUILD}/include", f"-I{_BUILD}/generated", f"-I{_ROOT}", f"-L{_BUILD}"]
        flags = run_program("pkg-config", "--cflags", "--libs", "gio-2.0").stdout.split()
        with tempfile.TemporaryDirectory(prefix="ebb-documents-") as folder:
            source, tensors, program = (os.path.join(folder, name) for name in ("blocks.c", "tensors.c", "blocks"))
            with open(source, "w", encoding="utf-8") as file:
                file.write(code.replace("/mnt/nvme", folder))
            with open(tensors, "w", encoding="utf-8") as file:
                file.write(_C_TENSORS)
            done = run_program("cc", "-fsanitize=leak", "-Wall", "-Werror", "-Wno-unused", source, tensors, "-o",
                               program, *paths, "-lebb-1.0", *flags, "-lm")
            self.assertEqual(done.returncode, 0, done.stderr)
            add_files(folder)
            done = run_program(program, cwd=folder)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return done.stdout

    @unittest.skipUnless(shutil.which("cc"), "there is no compiler")
    def test_blocks_of_c_compile_and_run(self):
        blocks = [block for block in read_blocks("c") if not block.code.startswith("#include")]
        functions = [block.code for block in blocks if block.code.startswith("static")]
        statements = [block for block in blocks if not block.code.startswith("static")]
        self.assertGreaterEqual(len(statements), 10)
        functions += [_C_FUNCTION % (number, without_own_names(block.code)) for number, block in enumerate(statements)]
        calls = ", ".join(
            f'{{ "{block.document}:{block.line}", run_{number}, {int("ebb_init_process_group" in block.code)} }}'
            for number, block in enumerate(statements))
        output = self.compile_and_run(_C_PROGRAM % ("\n".join(functions), calls))
        self.assertIn("TransformerBlock is recomputed", output)

    @unittest.skipUnless(shutil.which("cc"), "there is no compiler")
    def test_programs_in_c_run(self):
        for block in read_blocks("c"):
            if block.code.startswith("#include"):
                with self.subTest(document=block.document, line=block.line):
                    self.assertNotEqual(self.compile_and_run(block.code), "")

    def check_program(self, language, *command):
        """@command has SOURCE in the place of the file, and makes a.out where it compiles."""
        for block in read_blocks(language):
            with self.subTest(document=block.document, line=block.line), \
                    tempfile.TemporaryDirectory(prefix="ebb-documents-") as folder:
                source, program = os.path.join(folder, f"block.{language}"), os.path.join(folder, "block")
                with open(source, "w", encoding="utf-8") as file:
                    file.write(block.code)
                os.symlink(_MODEL, os.path.join(folder, "my-chat-model"))
                done = run_program(*(source if word == "SOURCE" else word for word in command), cwd=folder)
                self.assertEqual(done.returncode, 0, done.stderr)
                if os.path.exists(program):
                    done = run_program(program, cwd=folder)
                self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
                self.assertNotEqual(done.stdout, "")

    @unittest.skipUnless(shutil.which("gjs"), "gjs was not found")
    def test_programs_in_javascript_run(self):
        self.check_program("js", "gjs", "-m", "SOURCE")

    @unittest.skipUnless(shutil.which("valac") and os.path.exists(os.path.join(_BUILD, "ebb-1.0.vapi")), "no Vala here")
    def test_programs_in_vala_run(self):
        options = (f"-I{_BUILD}/include", f"-I{_BUILD}/generated", f"-I{_ROOT}", f"-L{_BUILD}", "-lebb-1.0", "-w")
        paths = [f"--Xcc={path}" for path in options]
        self.check_program("vala", "valac", f"--vapidir={_BUILD}", "--pkg=ebb-1.0", *paths, "SOURCE")


if __name__ == "__main__":
    if sys.argv[1:] == ["--update"]:
        update()
    else:
        main()
