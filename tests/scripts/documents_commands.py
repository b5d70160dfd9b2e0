#!/usr/bin/env python3
"""Every command in README.md and docs/*.md runs as it stands there.

Commands run in a folder that has the documents' text and programs, and the build folder and the source tree where they
expect them. The tables below list commands that take minutes (long_documents.py runs them), that stand for others, or
that can't run here. A command that is in no table runs; an entry that is in no document is an error.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "support"))
from document_blocks import BUILD, NAMES, read, read_blocks, read_inline_commands, split_commands  # noqa: E402
from gpt2_folder import write_adapter_folder, write_gpt2_folder  # noqa: E402

LONG = {
    "build/release/examples/train_gpt --data my-book.txt --preset gpt2-xl --batch 32 --checkpoint full --estimate",
    "scripts/quickstart",
    "scripts/quickstart --compare",
    "ebb-fsdp-gpt --ranks 4 --data book.txt --checkpoint full",
    "mpirun -n 4 ebb-fsdp-gpt --data book.txt --shard full --checkpoint full --store host --resume state",
    "mpirun -n 4 build/release/examples/fsdp_gpt --data my-book.txt --checkpoint full",
    "build/release/examples/train_gpt --data my-book.txt --layers 6 --width 256 --heads 8 --context 256 --batch 8 "
    "--steps 200 --checkpoint selective --save my-gpt.safetensors --sample 500",
    "build/release/examples/train_gpt --resume my-state --data my-book.txt --steps 300",
    "build/release/examples/train_gpt --data my-book.txt --preset gpt2 --context 256 --batch 4 --dropout 0 "
    "--dtype bf16 --checkpoint full --steps 5 --profile trace.json",
    "build/release/examples/train_gpt --data my-book.txt --preset gpt2 --batch 8 --context 512 --checkpoint full "
    "--memory 2.5GiB --estimate --memory-timeline step.html --report step.json",
    "build/release/tests/bench/step --batch 1 --context 64 --steps 7 --moments FORMAT",
    "build/release/tests/bench/step --floor",
    "step --bf16 --floor",
    "step --batch 1 --context 512 --checkpoint full",
    "step --preset tiny --batch 12 --context 64 --floor",
    "tests/bench/busy.py --preset tiny --layers 2 --width 64 --heads 2 --vocab 96 --batch 4 --context 32",
    "attention --only gpt2-8x512",
    "build/release/tests/bench/tiny-op",
}

# Commands that take an hour, or several machines, run with a text that does not exist, which shows that their options
# are right.
UP_TO_ITS_TEXT = {
    "mpirun -n 16 --hostfile hosts --map-by ppr:4:node --bind-to none ebb-fsdp-gpt --data book.txt --shard hybrid "
    "--shard-size 4",
    "srun --mpi=pmix ebb-fsdp-gpt --data /shared/text/*.txt --preset gpt2-large --batch 256 --steps 100000 "
    "--shard hybrid --shard-size 8 --checkpoint full --resume /shared/state --report /shared/report.json",
    "ebb-train-gpt --tensor-parallel 4 --data book.txt --preset gpt2 --checkpoint full --partition",
    "mpirun -n 4 ebb-train-gpt --tensor-parallel 4 --data book.txt --preset gpt2 --checkpoint full --partition",
    *(f"build/release/examples/train_bert --preset bert-large --data book.txt --batch 32 --context 128 --steps 3 "
      f"--checkpoint {way}" for way in ("none", "full")),
    "mpirun -n 16 ebb-fsdp-gpt --tensor-parallel 4 --data book.txt --shard full --checkpoint full",
}

# Commands that stand for several, or that only name a program, run as these.
INSTEAD = {
    "build/release/tests/bench/step --batch 1 --context 64 --steps 7 --moments FORMAT":
        [f"build/release/tests/bench/step --batch 1 --context 64 --steps 7 --moments {name}"
         for name in ("f32", "bf16", "8bit")],
    "attention --only context-2048 --window 256":
        ["build/release/tests/bench/attention --only small --window 16 --rounds 1 --f32",
         "build/release/tests/bench/attention --only small --documents 4 --rounds 1 --f32"],
    "train_gpt --moments f32|bf16|8bit":
        [f"train_gpt --moments {name} --data my-book.txt --steps 2" for name in ("f32", "bf16", "8bit")],
    "build/release/examples/train_gpt --device cuda --data my-book.txt --preset gpt2 --batch 32 --context 1024 "
    "--dtype bf16": ["build/release/examples/train_gpt --device cudaemu --data my-book.txt --preset tiny --batch 1 "
                     "--context 16 --dtype bf16 --steps 1"],
    "scripts/gpu pack FOLDER": ["scripts/gpu check --list"],
    "scripts/gpu": ["scripts/gpu --help"],
    "train_gpt --profile": ["train_gpt --profile trace.json --data my-book.txt --steps 2"],
    "train_gpt --sample": ["train_gpt --sample 20 --data my-book.txt --steps 2"],
    "step --lora 16": ["step --preset tiny --batch 1 --context 16 --steps 1 --lora 16"],
    "train_gpt --step-in-backward": ["train_gpt --step-in-backward --data my-book.txt --steps 2"],
    "train_gpt --dtype bf16 --weights bf16": ["train_gpt --dtype bf16 --weights bf16 --data my-book.txt --steps 2"],
    "train_gpt --dtype bf16 --residual bf16": ["train_gpt --dtype bf16 --residual bf16 --data my-book.txt --steps 2"],
    "examples/python/fsdp_gpt.py": ["examples/python/fsdp_gpt.py --ranks 4 --data my-book.txt --steps 2"],
    "mpirun -n 2 …": ["mpirun -n 2 ebb-fsdp-gpt --data my-book.txt --steps 2"],
    "scripts/test": ["scripts/test --help"],
    "scripts/bench": ["scripts/bench --help"],
    # The names of rows are checked; the figures are the committed ones.
    **{f"scripts/bench --only {rows}": [f"scripts/bench --only {rows} --from docs/figures/benchmarks.json"]
       for rows in ("bert-large-32x128", "gpt2-4x256-bf16,gpt2-8x512-bf16", "gpt2-8x512-bf16",
                    "bert-large-8x128-f32", "tiny")},
}

NOT_RUN = {
    "cmake --preset release && cmake --build --preset release": "this build was made so",
    "cmake --preset release -DCMAKE_INSTALL_PREFIX=/usr/local && cmake --build --preset release":
        "this build was made so",
    "sudo cmake --install build/release && sudo ldconfig": "needs root: Installed runs it with a prefix",
    **dict.fromkeys(("scripts/install-packages", "scripts/install-packages --test", "scripts/install-packages --site"),
                    "needs root and the network"),
    "scripts/peer-venv": "needs the network",
    "scripts/test-aarch64": "long_aarch64.py runs it",
    "tests/bench/instructions.py": "needs a build for ARM",
    "cmake --preset aarch64 -DEBB_SYSROOT=FOLDER": "needs a folder of libraries for ARM",
    "sudo apt build-dep . && scripts/package deb && sudo apt install ./build/packages/*.deb":
        "long_packages.py does it",
    "scripts/package site": "needs Sphinx: long_site.py builds it",
    "scripts/package wheel": "long_wheel.py runs it",
    **dict.fromkeys(("scripts/release", "scripts/release --check"), "takes minutes: release.py runs its parts"),
    **dict.fromkeys(("scripts/gpu check", "scripts/gpu sanitize", "scripts/gpu bench", "scripts/bench --device cuda"),
                    "needs a GPU"),
    "scripts/bench --quick": "benchmarks.py runs it",
    "tests/bench/fits.py --limit --steps 2": "takes minutes, and makes models of 2.5 GB",
    **dict.fromkeys((f"scripts/bench --only {name} --check" for name in ("llama-8x512", "generate", "open")),
                    "takes minutes and needs PyTorch"),
    **dict.fromkeys((f"scripts/bench --only {rows}" for rows in (
        "finetune-lora-f32,finetune-lora-bf16,finetune-all-bf16", "lora-4x256-f32",
        "llama-8x512-f32 --programs ebb-none,torch-none")), "takes minutes and needs PyTorch"),
    "scripts/quickstart my-book.txt": "quickstart.sh runs it, and long_documents.py with the text of its own",
    "build/release/examples/oslo_gpt2": "long_oslo_gpt2.py runs it",
    "examples/python/oslo_gpt2.py":
        "oslo_gpt2.py runs it with a small model: that of long_oslo_gpt2.py takes minutes more",
    "build/release/tests/bench/offload": "takes minutes: offload_bench.py runs it with a small model",
    "build/release/tests/bench/checkpoint --rounds 3 --check":
        "its bounds are those of an idle machine: benchmarks.py runs it with a small model",
    **dict.fromkeys(("tests/bench/loss_curves.py", "tests/bench/loss_curves.py --layers 4 --batch 4 --steps 2000 "
                     "--last 200 --against bf16 --only weights-bf16 --threads 1"),
                    "takes minutes: benchmarks.py runs it for fewer steps"),
    **dict.fromkeys(("tests/scripts/train_gpt_sim.py", "tests/scripts/check_layout.py",
                     "tests/scripts/long_aarch64.py", "tests/scripts/long_resident.py"), "is a test"),
    **dict.fromkeys(("scripts/", "build/release/site", "build/release/tests/bench"), "is a folder"),
    "step --floor": "runs with its path, build/release/tests/bench/step --floor",
    "gcc program.c -o program $(pkg-config --cflags --libs ebb-1.0)": "Installed runs it",
    "valac --pkg ebb-1.0 program.vala": "Installed runs it",
    "cmake --build --preset release --target docs": "needs gi-docgen",
    "export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK": "Slurm sets it",
}

ENVIRONMENT = {
    # Open MPI needs these as root, and on a machine of fewer cores than ranks. Only the loopback device is used.
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none", "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_btl_tcp_if_include": "lo", "OMPI_MCA_oob_tcp_if_include": "lo",
}

CHATS = "".join(json.dumps({"messages": [{"role": "user", "content": f"What is {n} + {n}?"},
                                         {"role": "assistant", "content": f"{2 * n}."}]}) + "\n" for n in range(20))
SUMS = "".join(json.dumps({"prompt": f"{n} + {n} =", "completion": f" {2 * n}."}) + "\n" for n in range(100))


def read_program(name, language):
    return next(block.code for block in read_blocks(language) if block.document == name)


def read_commands():
    """Each command once, with the exports of its block before it."""
    commands = {}
    for block in read_blocks("sh"):
        exports = []
        for command in split_commands(block):
            commands.setdefault(command, list(exports))
            if command.startswith("export "):
                exports.append(command)
    for name in NAMES:
        for command in read_inline_commands(name):
            commands.setdefault(command, [])
    return commands


class Folder(tempfile.TemporaryDirectory):
    """The folder in which commands run."""

    def __init__(self):
        super().__init__(prefix="ebb-documents-")
        for name in ("README.md", "docs", "examples", "scripts", "tests", "bindings"):
            os.symlink(os.path.join(ROOT, name), os.path.join(self.name, name))
        os.mkdir(os.path.join(self.name, "build"))
        os.symlink(BUILD, os.path.join(self.name, "build", "release"))
        text = "".join(map(read, NAMES))
        write_gpt2_folder(os.path.join(self.name, "my-model"))
        write_adapter_folder(os.path.join(self.name, "my-adapter"), 32)
        for name in ("my-chat-model", "ebb-quickstart"):
            os.symlink(os.path.join(ROOT, "tests", "fixtures", "chat-model"), os.path.join(self.name, name))
        for name, content in (("my-book.txt", text), ("book.txt", text), ("story.txt", "Once upon a time"),
                              ("prompts.txt", "Once\nupon a time\n"), ("hosts", "localhost slots=16\n"),
                              ("sums.jsonl", SUMS), ("chats.jsonl", CHATS),
                              ("program.py", read_program("README.md", "python")),
                              ("program.c", read_program("README.md", "c")),
                              ("program.js", read_program("docs/bindings.md", "js").replace(
                                  "=1.0';\n", "=1.0';\nEbb.init_process_group ('auto');\n", 1)),
                              ("program.vala", read_program("docs/bindings.md", "vala"))):
            with open(os.path.join(self.name, name), "w", encoding="utf-8") as file:
                file.write(content)

    def __enter__(self):
        return self

    def run(self, *commands, **variables):
        """Runs commands in one shell, which ends at the first failure."""
        folders = [os.path.join(BUILD, "examples"), os.path.join(BUILD, "tests", "bench"), os.environ["PATH"]]
        environment = {**os.environ, **ENVIRONMENT, "PATH": ":".join(folders), **variables}
        return subprocess.run(["bash", "-euc", "\n".join(commands)], cwd=self.name, env=environment,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def is_here(command):
    if command.startswith("scripts/quickstart"):    # it builds there
        return os.path.realpath(BUILD) == os.path.join(ROOT, "build", "release")
    if command.startswith("mpirun"):
        if not shutil.which("mpirun") or not os.path.exists(os.path.join(BUILD, "ebb-1.0", "backends",
                                                                         "ebb-process-group-mpi.so")):
            return False
    if "gjs" in command and not shutil.which("gjs"):
        return False
    if command.split()[0].endswith(("python3", ".py")) or "gjs" in command:
        return os.path.exists(os.path.join(BUILD, "Ebb-1.0.typelib"))
    return True


def run_up_to_its_text(folder, command):
    command = re.sub(r"--data \S+", "--data no-such-text", command).replace("/shared/", f"{folder.name}/")
    command = command.replace(" --map-by ppr:4:node", "")
    command = command.replace("srun --mpi=pmix ebb-fsdp-gpt", "ebb-fsdp-gpt --ranks 32")
    done = folder.run(command)
    return done.returncode != 0 and "no-such-text: No such file" in done.stderr, done


def run_all(test, is_long):
    """Runs either the commands that take minutes, or the others."""
    with Folder() as folder:
        for command, exports in read_commands().items():
            if command in NOT_RUN or (command in LONG) != is_long:
                continue
            with test.subTest(command=command):
                if not is_here(command):
                    continue
                if command in UP_TO_ITS_TEXT:
                    runs = [run_up_to_its_text(folder, command)]
                else:
                    dones = [folder.run(*exports, words, prefix="/usr") for words in INSTEAD.get(command, [command])]
                    runs = [(done.returncode == 0, done) for done in dones]
                for is_right, done in runs:
                    test.assertTrue(is_right, f"{done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")


class Commands(unittest.TestCase):
    def test_commands_run(self):
        run_all(self, False)

    def test_the_tables_have_commands_of_the_documents_alone(self):
        self.assertEqual({*LONG, *UP_TO_ITS_TEXT, *INSTEAD, *NOT_RUN} - set(read_commands()), set())


class Installed(unittest.TestCase):
    """The programs in README.md and docs/ build and run with an installed copy, by the commands in the documents."""

    @classmethod
    def setUpClass(cls):
        cls.folder = Folder()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.prefix = os.path.join(cls.folder.name, "prefix")
        install = next(line for line in read_commands() if line.startswith("sudo cmake --install"))
        done = cls.folder.run(install.removeprefix("sudo ").split(" && ")[0] + f" --prefix {cls.prefix}")
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        cls.exports = [line for line in read_commands() if line.startswith("export ") and "$prefix" in line]

    def run_lines(self, *commands):
        unset = "unset LD_LIBRARY_PATH GI_TYPELIB_PATH PYTHONPATH GJS_PATH EBB_BACKEND_PATH"
        done = self.folder.run(unset, *self.exports, *commands, prefix=self.prefix)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return done.stdout

    def check_training(self, *commands):
        """The program prints ten losses, the last one lower than the first."""
        losses = re.findall(r"^loss (\S+)$", self.run_lines(*commands), re.MULTILINE)
        self.assertEqual(len(losses), 10)
        self.assertLess(float(losses[-1]), float(losses[0]))
        return losses

    def test_the_programs_in_c_and_in_python_train_alike(self):
        compile_it = next(line for line in read_commands() if line.startswith("gcc program.c"))
        in_c = self.check_training(compile_it, "./program")
        if is_here("python3"):
            self.assertEqual(self.check_training("/usr/bin/python3 program.py"), in_c)

    @unittest.skipUnless(shutil.which("gjs"), "gjs was not found")
    def test_the_program_in_javascript_runs(self):
        if is_here("gjs"):
            self.assertRegex(self.run_lines("gjs -m program.js"), "^loss ")

    @unittest.skipUnless(shutil.which("valac"), "valac was not found")
    def test_the_program_in_vala_runs(self):
        if os.path.exists(os.path.join(self.prefix, "share", "vala")):
            compile_it = next(line for line in read_commands() if line.startswith("valac "))
            self.assertRegex(self.run_lines(f"{compile_it} 2>/dev/null", "./program"), "^loss ")


if __name__ == "__main__":
    unittest.main(verbosity=2)
