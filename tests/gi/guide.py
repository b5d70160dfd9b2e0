"""The tutorial and the pages of docs/porting/ run as they stand there, and print what they say.

The Python of a page is one program; a block of text is what the block above it prints. A block of a diff is a program
of another system, of which the lines that stay and those with a plus run. The rows of tables run, too: see Tables.
Blocks of C are for documents.py. With --update what is printed is written into the pages instead.
"""
import contextlib
import gc
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import ebb
from documents import make_names
from support import Ebb, TestCase, main

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path.insert(0, os.path.join(_ROOT, "tests", "support"))
from document_blocks import GUIDE, read, read_blocks  # noqa: E402

_BPE = os.path.join(_ROOT, "tests", "fixtures", "bpe")
_MODEL = os.path.join(_ROOT, "tests", "fixtures", "chat-model")
# Stands above a block whose output differs from one machine to another.
_VARIES = "<!-- varies -->"
_ADVICE = re.compile(r": .*(write|leave|keywords|there (is|are)|none|as (it|they)|no 64-bit|is a|names|broadcast)")


def find_page(name):
    return next(page for page in GUIDE if os.path.basename(page) == f"{name}.md")


def read_program(page):
    """The blocks of a page: where, code, what it prints, whether that varies."""
    lines = read(page).splitlines()
    for block in read_blocks("python"):
        if block.document == page:
            yield f"{page}:{block.line}", block.code, block.printed, lines[block.line - 2] == _VARIES


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
def in_folder():
    """A folder that has what the pages read of one's own."""
    before, store = os.getcwd(), Ebb.HostStore.get_default()
    in_flight = store.in_flight
    with tempfile.TemporaryDirectory(prefix="ebb-guide-") as folder:
        shutil.copy(os.path.join(_ROOT, "LICENSE"), os.path.join(folder, "text.txt"))
        os.symlink(_MODEL, os.path.join(folder, "my-chat-model"))
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)
            Ebb.checkpointing_configure()
            store.in_flight = in_flight


def run_block(where, code, names):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, where, "exec"), names)  # pylint: disable=exec-used
    return printed.getvalue()


def run(page):
    """Runs the Python of a page; its names, and (where, printed, expected, varies) for each block."""
    names, results = {"__name__": "program"}, []
    with in_folder() as folder:
        make_gpt2(folder)
        gc.collect()  # the tensors of other pages: the tutorial measures its memory
        Ebb.manual_seed(1)
        for where, code, expected, varies in read_program(page):
            results.append((where, run_block(where, code, names), expected, varies))
    return names, results


def take(diff, other):
    """The program of one side of a diff: all lines but those that begin with a sign."""
    return "".join(line[1:] or "\n" for line in diff.splitlines(keepends=True) if line[0] != other)


def update():
    def write(found):
        if found[2] == "diff":
            names = {"__name__": "program"}
            with in_folder():
                printed = run_block(page, take(found[3], "-"), names)
            names.clear()
        else:
            printed = blocks.pop(0)
        return found[1] + (f"```text\n{printed}```\n" if printed else "")

    for page in reversed(GUIDE):  # the tutorial first, where no class has its names yet
        names, results = run(page)
        names.clear()
        blocks = [printed for _, printed, _, _ in results]
        text = re.sub(r"(^```(python|diff)\n((?:(?!^```).)*)^```\n)(```text\n(?:(?!^```).)*^```\n)?", write, read(page),
                      flags=re.MULTILINE | re.DOTALL)
        with open(os.path.join(_ROOT, page), "w", encoding="utf-8") as file:
            file.write(text)


def is_same(printed, expected):
    """Whether texts are equal; fractions may differ by a tenth, since training enlarges what rounding changes."""
    number = r"\d+\.\d+"
    return re.sub(number, "0", printed) == re.sub(number, "0", expected) and all(
        abs(float(a) - float(b)) <= 0.1 * float(b)
        for a, b in zip(re.findall(number, printed), re.findall(number, expected)))


class Programs(TestCase):
    def run_page(self, name):
        names, results = run(find_page(name))
        self.addCleanup(names.clear)  # which classes that were defined there hold for ever
        self.assertNotEqual(results, [])
        for where, printed, expected, varies in results:
            if varies:
                self.assertEqual((bool(printed), bool(expected)), (True, True), where)
            else:
                self.assertTrue(is_same(printed, expected or ""), f"{where} printed:\n{printed}run guide.py --update")
        return names

    def test_every_page_is_run(self):
        tested = {name.removeprefix("test_").removesuffix("_runs") for name in dir(self) if name.endswith("_runs")}
        pages = {os.path.splitext(os.path.basename(page))[0] for page in GUIDE}
        self.assertEqual(pages - {"porting"}, tested)

    def test_tutorial_runs(self):
        names = self.run_page("tutorial")
        self.assertLess(names["held_out_loss"], 3)
        self.assertLess(names["planned_peak"], 56.5)

    def test_the_tutorial_takes_one_line_for_another_device(self):
        line = re.search(r"`(ebb\.set_default_device\(.*?\))`", read(find_page("tutorial")))[1].replace("cuda", "sim")
        program = "\n".join(code for _, code, _, _ in read_program(find_page("tutorial")))
        program = program.replace("\n", f"\n{line}\n", 1).replace("range(1, 201)", "[50, 50]")
        names = {"__name__": "program"}
        self.addCleanup(names.clear)
        self.addCleanup(Ebb.set_default_device, None)
        with in_folder():
            run_block("tutorial.md", program, names)
        self.assertEqual({p.device for p in names["model"].parameters()}, {"sim"})
        self.assertEqual(names["planned"], names["plain"])
        self.assertLess(names["planned_peak"], 56.5)

    def test_pytorch_runs(self):
        names = self.run_page("pytorch")
        net, x = names["net"], Ebb.randn(8, 64)
        n_bytes = []
        for net.use_checkpoint in (False, True):
            before = Ebb.memory_stats()["activation"]["current"]
            loss = net(x).sum()
            n_bytes.append(Ebb.memory_stats()["activation"]["current"] - before)
            del loss
        self.assertLess(n_bytes[1], n_bytes[0])

    def test_fairscale_runs(self):
        names = self.run_page("fairscale")
        self.assertTrue(Ebb.checkpoint_is_wrapped(names["checkpointed_module"]))

    def test_oneflow_runs(self):
        names = self.run_page("oneflow")
        self.assertEqual(names["y"].shape, (128, 1))
        self.assertEqual(names["y_pred"].shape, (128, 10))
        self.assertLess(names["loss"].item(), 2.25)    # ln 10 at first
        done = Ebb.checkpoint_report(names["graph_model"], as_dict=True)
        self.assertEqual([wrapper["recomputes"] for wrapper in done["modules"]], [100, 100])

    def test_deepspeed_runs(self):
        self.run_page("deepspeed")

    def test_megatron_runs(self):
        self.run_page("megatron")

    def test_peft_runs(self):
        self.run_page("peft")

    def test_oslo_runs(self):
        self.run_page("oslo")

    @unittest.skipUnless(shutil.which("mpirun"), "there is no mpirun")
    def test_oslos_tutorial_runs_in_processes(self):
        """The ranks are those of mpirun, joined as the comment beside run_ranks() says."""
        codes = [code for _, code, _, _ in read_program(find_page("oslo"))]
        last = next(i for i, code in enumerate(codes) if "second" in code)
        program = "\n".join(codes[:last + 1]).replace("losses = ebb.run_ranks(TENSOR_PARALLEL_SIZE, first)",
                                                      "losses = first(ebb.init_process_group())")
        program = program.replace("ebb.run_ranks(TENSOR_PARALLEL_SIZE, second)", "second(None)")
        self.assertNotIn("run_ranks", program.replace("run_ranks()", ""))
        # Each rank has a file of its own: mpirun may put one rank's line into another's.
        own = "import os, sys\nsys.stdout = open('rank' + os.environ['OMPI_COMM_WORLD_RANK'], 'w')\n"
        with in_folder() as folder:
            make_gpt2(folder)
            with open("program.py", "w", encoding="utf-8") as file:
                file.write(own + program)
            done = subprocess.run([os.path.join(_ROOT, "tests", "mpi", "launch"), "2", sys.executable, "program.py"],
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            for rank in "rank0", "rank1":
                with open(rank, encoding="utf-8") as file:
                    self.assertIn("losses equal: True\n", file.read())


class Diffs(TestCase):
    def test_what_stays_and_what_is_new_runs(self):
        blocks = [block for block in read_blocks("diff")]
        self.assertNotEqual(blocks, [])
        for block in blocks:
            with self.subTest(page=block.document, line=block.line), in_folder():
                names = {"__name__": "program"}
                self.addCleanup(names.clear)
                compile(take(block.code, "+"), block.document, "exec")
                printed = run_block(block.document, take(block.code, "-"), names)
                self.assertTrue(is_same(printed, block.printed), printed)


class Tables(TestCase):
    def read_rows(self, heading):
        """The codes of both cells of each row of the tables with such a heading, by page."""
        for page in GUIDE:
            is_wanted = False
            for line in read(page).splitlines():
                is_wanted = line == heading or (is_wanted and line.startswith("|"))
                if is_wanted and line.startswith("| ") and line != heading:
                    wrote, write = re.split(r" \| ", line.strip("| "), maxsplit=1)
                    yield page, re.findall(r"`([^`]+)`", wrote), re.findall(r"`([^`]+)`", write), write

    def test_what_is_written_here_runs(self):
        n_run = 0
        for page, wrote, codes, _ in self.read_rows("| you wrote | you write |"):
            with self.subTest(page=page, wrote=wrote), in_folder():
                names = make_names()
                plain = names["loss_of"](names["model"]).item()
                names = make_names()
                for code in codes:
                    run_block(page, code, names)
                loss = names["loss_of"](names["model"])
                loss.backward()
                if not any(re.search(r"\(block|x\)|\(tokens", code) for code in codes):  # they may draw random numbers
                    self.assertEqual(loss.item(), plain)
                n_run += len(codes)
        self.assertGreater(n_run, 25)

    def test_names_of_pytorch_work_or_say_what_to_write(self):
        """In the second cell is "the same", for what runs under the name of PyTorch, or what stands for it."""
        n_run = 0
        for page, wrote, codes, cell in self.read_rows("| PyTorch | Ebb |"):
            self.assertTrue(wrote and (codes or cell.startswith(("the same", "not there"))), (wrote, cell))
            for code in wrote:
                code = re.sub(r"\btorch\b", "ebb", code)
                with self.subTest(page=page, wrote=code), in_folder():
                    n_run += 1
                    if cell.startswith("the same"):
                        run_block(page, code, self.make_torch(code))
                        continue
                    with self.assertRaises((AttributeError, ImportError, TypeError, RuntimeError)) as caught:
                        run_block(page, code, self.make_torch(code))
                    self.assertRegex(str(caught.exception), _ADVICE)
            for code in codes:
                with self.subTest(page=page, write=code), in_folder():
                    run_block(page, code, self.make_torch(code))
        self.assertGreater(n_run, 60)

    def make_torch(self, code):
        """The names of PyTorch's programs, which stand for namespaces of ebb."""
        Ebb.manual_seed(1)
        model = ebb.Sequential(ebb.Linear(8, 16), ebb.Tanh(), ebb.Linear(16, 4))
        x, y, device = ebb.randn(4, 8), ebb.tensor([0, 1, 2, 3]), "cpu"
        optimizer = ebb.AdamW(model.parameters(), lr=1e-3)
        loss = ebb.cross_entropy(model(x), y) if "loss" in code else None
        return {"ebb": ebb, "nn": ebb.nn, "F": ebb.nn.functional, "optim": ebb.optim, "model": model, "x": x, "y": y,
                "device": device, "optimizer": optimizer, "loss": loss, "weight": ebb.randn(8, 8, requires_grad=True),
                "q": ebb.randn(1, 2, 4, 8), "mask": ebb.ones(4, 4).tril().bool(), "state": model.state_dict(),
                "loader": [(x.numpy(), y.numpy())]}


if __name__ == "__main__":
    if sys.argv[1:] == ["--update"]:
        update()
    else:
        main()
