"""The programs of docs/porting.md run as they stand there, and print what the document says.

The blocks of Python of a section are one program; a block of text is what the block above it prints. Blocks of C are
for documents.py. With --update what is printed is written into the document instead.
"""
import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from support import Ebb, TestCase, main

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path.insert(0, os.path.join(_ROOT, "tests", "support"))
from document_blocks import read  # noqa: E402

_NAME = os.path.join("docs", "porting.md")
_BPE = os.path.join(_ROOT, "tests", "fixtures", "bpe")


def read_sections():
    """Each section's title and its blocks: language, code, and what it prints, None if nothing is said about that."""
    for section in re.split(r"^## ", read(_NAME), flags=re.MULTILINE)[1:]:
        title, body = section.split("\n", 1)
        yield title, re.findall(r"^```(\w+)\n(.*?)^```\n(?:(?=```text\n(.*?)^```$))?", body, re.MULTILINE | re.DOTALL)


def make_gpt2(folder):
    """A small GPT-2 in the files that are published of one, and texts."""
    config = Ebb.GptConfig.new()
    for name, value in {"vocab": 477, "context": 128, "width": 64, "heads": 4, "layers": 4, "dropout": 0}.items():
        setattr(config, name, value)
    Ebb.manual_seed(1)
    os.mkdir(os.path.join(folder, "gpt2"))
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(os.path.join(_BPE, name), os.path.join(folder, "gpt2"))
    Ebb.save_safetensors(os.path.join(folder, "gpt2", "model.safetensors"), Ebb.Gpt(config).to_gpt2_state(),
                         config.to_gpt2_metadata())
    with open(os.path.join(_ROOT, "docs", "benchmarks.md"), encoding="utf-8") as file:
        words = file.read().split()
    with open(os.path.join(folder, "contexts.txt"), "w", encoding="utf-8") as file:
        file.writelines(" ".join(words[i % 100 + i:][:40 + i % 20]) + "\n" for i in range(100))


@contextlib.contextmanager
def entered():
    """A folder that has what the programs read."""
    before, store = os.getcwd(), Ebb.HostStore.get_default()
    in_flight = store.in_flight
    with tempfile.TemporaryDirectory(prefix="ebb-porting-") as folder:
        make_gpt2(folder)
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)
            Ebb.checkpointing_configure()
            store.in_flight = in_flight


def run_block(code, names):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, _NAME, "exec"), names)  # pylint: disable=exec-used
    return printed.getvalue()


def run(title):
    """Runs the Python of a section; its names, and (printed, expected) for each block."""
    names, results = {"Ebb": Ebb, "__name__": "program"}, []
    with entered():
        Ebb.manual_seed(1)
        for language, code, expected in dict(read_sections())[title]:
            if language == "python":
                results.append((run_block(code, names), expected))
    return names, results


def update():
    text = read(_NAME)
    for title, _ in list(read_sections()):
        for printed, expected in run(title)[1]:
            if printed:
                start = text.index(f"```\n```text\n{expected}```\n", text.index(f"## {title}\n"))
                end = start + len(f"```\n```text\n{expected}")
                text = f"{text[:start]}```\n```text\n{printed}{text[end:]}"
    with open(os.path.join(_ROOT, _NAME), "w", encoding="utf-8") as file:
        file.write(text)


class Porting(TestCase):
    def run_section(self, title):
        names, results = run(title)
        for printed, expected in results:
            self.assertEqual(printed, expected or "", f"{_NAME}: run tests/gi/porting.py --update")
        return names

    def test_pytorchs_run(self):
        names = self.run_section("PyTorch")
        net, x = names["net"], Ebb.randn(8, 64)
        n_bytes = []
        for net.use_checkpoint in (False, True):
            before = Ebb.memory_stats()["activation"]["current"]
            loss = net(x).sum()
            n_bytes.append(Ebb.memory_stats()["activation"]["current"] - before)
            del loss
        self.assertLess(n_bytes[1], n_bytes[0])

    def test_fairscales_run(self):
        names = self.run_section("FairScale")
        self.assertTrue(Ebb.checkpoint_is_wrapped(names["checkpointed_module"]))

    def test_oneflows_run(self):
        names = self.run_section("OneFlow")
        self.assertEqual(names["y"].shape, (128, 1))
        self.assertEqual(names["y_pred"].shape, (128, 10))
        self.assertLess(names["loss"].item(), 2.25)    # ln 10 at first
        done = Ebb.checkpoint_report(names["graph_model"], as_dict=True)
        self.assertEqual([wrapper["recomputes"] for wrapper in done["modules"]], [100, 100])

    def test_deepspeeds_run(self):
        self.run_section("DeepSpeed")

    def test_oslos_run(self):
        self.run_section("OSLO")

    @unittest.skipUnless(shutil.which("mpirun"), "there is no mpirun")
    def test_oslos_run_in_processes(self):
        """The ranks are those of mpirun, joined as the comment beside run_ranks() says."""
        codes = [read(_NAME).split("```python\n", 1)[1].split("```", 1)[0],
                 *(code for language, code, _ in dict(read_sections())["OSLO"] if language == "python")]
        program = "\n".join(codes).replace("losses = Ebb.run_ranks(TENSOR_PARALLEL_SIZE, first)",
                                           "losses = first(Ebb.init_process_group())")
        program = program.replace("Ebb.run_ranks(TENSOR_PARALLEL_SIZE, second)", "second(None)")
        self.assertNotIn("run_ranks", program.replace("run_ranks()", ""))
        # Each rank has a file of its own: mpirun may put one rank's line into another's.
        own = "import os, sys\nsys.stdout = open('rank' + os.environ['OMPI_COMM_WORLD_RANK'], 'w')\n"
        with entered():
            with open("program.py", "w", encoding="utf-8") as file:
                file.write(own + program)
            done = subprocess.run([os.path.join(_ROOT, "tests", "mpi", "launch"), "2", sys.executable, "program.py"],
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            for rank in "rank0", "rank1":
                with open(rank, encoding="utf-8") as file:
                    self.assertIn("losses equal: True\n", file.read())


if __name__ == "__main__":
    if sys.argv[1:] == ["--update"]:
        update()
    else:
        main()
