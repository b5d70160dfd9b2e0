#!/usr/bin/env python3
"""fsdp_gpt keeps its promises: the number of ranks, how the model is shared out and what goes around what change no
loss but by rounding; a run and its resumed twin are equal bit for bit; when one rank fails all end and leave nothing.
"""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

BUILD = os.environ.get("EBB_BUILD_DIR", "build/release")
PROGRAM = os.path.join(BUILD, "examples", "fsdp_gpt")
ALONE = os.path.join(BUILD, "examples", "train_gpt")
# Width and vocabulary that no number of ranks below divides, and a batch that only some divide.
MODEL = ["--layers", "2", "--width", "36", "--heads", "2", "--context", "24", "--batch", "6", "--dropout", "0",
         "--lr", "3e-4", "--threads", "1"]
MPIRUN = shutil.which("mpirun")
MPI_ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                   "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
HAS_MPI = MPIRUN is not None and any("mpi" in name for _, _, names in os.walk(os.path.join(BUILD, "ebb-1.0"))
                                     for name in names)
TOLERANCE = 1e-6
RANK_KEYS = {"rank", "parameter_bytes_held", "optimizer_bytes_held", "parameter_bytes", "gradient_bytes",
             "optimizer_bytes", "activation_bytes_peak", "cache_bytes", "workspace_bytes", "peak_bytes",
             "host_peak_bytes", "rss_peak_bytes", "communication"}


class FsdpGptTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ebb-fsdp-gpt-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with open(self.path("text.txt"), "w", encoding="utf-8") as text:
            text.writelines(f"Line {n} of {n * n}: the quick brown fox, naïvely.\n" for n in range(300))

    def path(self, name):
        return os.path.join(self.folder, name)

    def files(self):
        return sorted(os.listdir(self.folder))

    def wait_for_step(self, process):
        for line in iter(process.stdout.readline, b""):
            if line.startswith(b"step"):
                return
        self.fail("the program has ended before its first step")

    def run_program(self, *words, program=PROGRAM, fault=None, timeout=60, more=()):
        environment = {**os.environ, **MPI_ENVIRONMENT, "TMPDIR": "/tmp", **dict(more)}
        if fault is not None:
            environment["EBB_GPT_JOB_FAULT"] = fault
        return subprocess.run([*([program] if isinstance(program, str) else program), *map(str, words)],
                              cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=timeout, check=False, env=environment)

    def mpirun(self, n_ranks, *words, **keywords):
        return self.run_program(*words, program=[MPIRUN, "-n", str(n_ranks), "--oversubscribe", PROGRAM], **keywords)

    def read_report(self, name="report.json"):
        with open(self.path(name), encoding="utf-8") as file:
            return json.load(file)

    def train(self, n_ranks, *words, program=PROGRAM):
        """Runs ranks that are threads, or train_gpt with @n_ranks None, and returns the report."""
        ranks = [] if n_ranks is None else ["--ranks", n_ranks]
        done = self.run_program("--data", "text.txt", *MODEL, "--quiet", "--report", "report.json", *ranks, *words,
                                program=program if n_ranks is not None else ALONE)
        self.assertEqual((done.returncode, done.stderr, done.stdout), (0, b"", b""))
        return self.read_report()

    def assert_close(self, losses, expected, what):
        self.assertEqual(len(losses), len(expected))
        for step, (loss, other) in enumerate(zip(losses, expected)):
            self.assertLessEqual(abs(loss - other), TOLERANCE * abs(other), f"{what}, step {step + 1}")


class SameLosses(FsdpGptTest):
    def test_ranks_shards_and_nestings_change_no_loss(self):
        expected = self.train(None, "--steps", 12)["losses"]
        self.assertLess(expected[-1], expected[0])
        for shard in ["none"], ["full"], ["full", "--flatten"]:
            for nesting in "shard-outside", "checkpoint-outside":
                for n_ranks in 1, 2, 3, 4:
                    words = ["--shard", *shard, "--checkpoint", "full", "--nesting", nesting]
                    with self.subTest(n_ranks=n_ranks, words=words):
                        losses = self.train(n_ranks, "--steps", 12, *words)["losses"]
                        self.assert_close(losses, expected, words)
                        if n_ranks == 1:
                            self.assertEqual(losses, expected)

    def test_the_rest_changes_none_either(self):
        for more in (["--accumulate", 2, "--micro-batch", 1], ["--clip", 0.3],
                     ["--accumulate", 2, "--clip", 0.3, "--batch", 2]):
            expected = self.train(None, "--steps", 8, *more)["losses"]
            for n_ranks, words in ((3, ["--shard", "none"]), (3, ["--shard", "none", "--reduce", "batch"]), (3, []),
                                   (4, ["--reduce", "step", "--checkpoint", "selective"]), (2, ["--flatten"]),
                                   (4, ["--shard", "hybrid", "--shard-size", 2])):
                with self.subTest(more=more, words=words):
                    self.assert_close(self.train(n_ranks, "--steps", 8, *more, *words)["losses"], expected, words)

    def test_what_is_gathered_when_changes_no_bit(self):
        expected = self.train(3, "--steps", 5)["losses"]
        for words in (["--reshard", "always"], ["--reshard", "never"], ["--offload-parameters"],
                      ["--checkpoint", "full", "--store", "host"], ["--checkpoint", "full", "--store", "disk"]):
            with self.subTest(words=words):
                self.assertEqual(self.train(3, "--steps", 5, *words)["losses"], expected)
        for words in ["--wrap", "model"], ["--wrap", 5000]:
            self.assert_close(self.train(3, "--steps", 5, *words)["losses"], expected, words)

    def test_a_seed_names_the_run(self):
        words = ["--steps", 5, "--dropout", 0.2]
        first, again, other = (self.train(2, *words, "--seed", seed)["losses"] for seed in (5, 5, 6))
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)
        self.assertEqual(self.train(1, *words)["losses"], self.train(None, *words)["losses"])

    def test_saving_the_best_weights_changes_no_draw(self):
        """The first rank alone makes a full model for them."""
        words = ["--steps", 4, "--dropout", 0.2, "--eval", 0.2, "--eval-every", 1]
        for more in [], ["--tensor-parallel", 2]:
            with self.subTest(more=more):
                self.assertEqual(self.train(2, *words, *more, "--save-best", "best")["losses"],
                                 self.train(2, *words, *more)["losses"])

    def test_a_dry_run_compares_no_master(self):
        """A flat unit's parameters have another storage in each step, by which an optimizer compares their masters."""
        words = ["--steps", 3, "--device", "sim", "--dtype", "bf16", "--weights", "bf16", "--rounding", "master",
                 "--offload-parameters", "--flatten"]
        self.assertEqual(self.train(1, *words, "--memory", "100MiB")["losses"], self.train(1, *words)["losses"])

    def test_more_ranks_than_rows(self):
        expected = self.train(None, "--steps", 5, "--batch", 2)["losses"]
        for shard in "none", "full":
            self.assert_close(self.train(4, "--steps", 5, "--batch", 2, "--shard", shard)["losses"], expected, shard)

    @unittest.skipUnless(HAS_MPI, "there is no MPI")
    def test_processes_compute_what_threads_compute(self):
        for n_ranks in 2, 4:
            words = ["--data", "text.txt", *MODEL, "--steps", 10, "--checkpoint", "full", "--report", "report.json"]
            done = self.mpirun(n_ranks, *words)
            self.assertEqual((done.returncode, done.stderr), (0, b""))
            report = self.read_report()
            self.assertEqual(done.stdout.count(b"step 10/10"), 1)
            self.assertEqual(report["losses"], self.train(n_ranks, "--steps", 10, "--checkpoint", "full")["losses"])
            self.assertEqual(len(report["ranks"]), n_ranks)


class Report(FsdpGptTest):
    def test_it_tells_of_every_rank(self):
        words = ["--steps", 4, "--layers", 4, "--checkpoint", "full"]
        alone = self.train(1, *words)["ranks"][0]
        report = self.train(4, *words)
        self.assertEqual([rank["rank"] for rank in report["ranks"]], [0, 1, 2, 3])
        for rank in report["ranks"]:
            self.assertEqual(set(rank), RANK_KEYS)
            for key in "parameter_bytes_held", "optimizer_bytes_held":
                self.assertLess(rank[key], 0.3 * alone[key])
        # 4 blocks and the root; reshard after forward except for the root
        counts = {name: operation["calls"] for name, operation in report["communication"].items()}
        self.assertEqual((counts["all_gather"], counts["reduce_scatter"]), (2 * 5 - 1, 5))
        n_bytes = 4 * report["parameters"] * 3 / 4
        self.assertAlmostEqual(report["communication"]["reduce_scatter"]["bytes"] / n_bytes, 1, delta=0.01)
        self.assertEqual((report["config"]["backend"], report["config"]["shard"]), ("thread", "full"))

    def test_the_first_rank_shows_a_table(self):
        done = self.run_program("--data", "text.txt", *MODEL, "--steps", 3, "--ranks", 3)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        lines = done.stdout.decode().splitlines()
        self.assertEqual(sum(line.startswith("step") for line in lines), 3)
        first = next(i for i, line in enumerate(lines) if line.startswith("rank "))
        self.assertEqual([line.split()[0] for line in lines[first + 1:first + 4]], ["0", "1", "2"])
        self.assertTrue(lines[first + 4].startswith("Rank 0 sends a step: "))
        self.assertIn("3 ranks (thread), shard full", lines)

    def test_samples_are_printed_once(self):
        words = ["--data", "text.txt", *MODEL, "--steps", 3, "--quiet", "--sample", 20]
        alone, shared = (self.run_program(*words, "--ranks", n).stdout for n in (1, 3))
        self.assertEqual(len(alone.splitlines()), len(shared.splitlines()))
        self.assertGreater(len(shared), 10)


class Resume(FsdpGptTest):
    def test_it_goes_on_bit_for_bit(self):
        for number, words in enumerate((["--shard", "none"], [], ["--flatten", "--checkpoint", "full"],
                                        ["--shard", "hybrid", "--shard-size", 2])):
            with self.subTest(words=words):
                words = [*words, "--dropout", 0.1, "--accumulate", 2, "--clip", 1]
                state, n_ranks = f"state-{number}", 4 if "hybrid" in words else 3
                whole = self.train(n_ranks, "--steps", 10, "--save", "whole", *words)
                begun = self.train(n_ranks, "--steps", 5, "--resume", state, *words)
                if "hybrid" not in words:
                    words = ["--dropout", 0.1]  # the rest is in the state
                rest = self.train(n_ranks, "--steps", 10, "--resume", state, "--save", "resumed", *words)
                self.assertEqual(rest["first_step"], 5)
                self.assertEqual(whole["losses"], begun["losses"] + rest["losses"])
                self.assertEqual(self.read_bytes("whole"), self.read_bytes("resumed"))

    def test_parts_on_both_sides_of_a_format_s_limit_are_saved(self):
        """The full parameter decides whether its moments have 8 bits, not the part that a rank holds."""
        for number, (n_ranks, *words) in enumerate(((3, "--width", 48), (2, "--width", 32, "--flatten"),
                                                    (3, "--width", 48, "--heads", 3, "--tensor-parallel", 3))):
            with self.subTest(words=words):
                words, state = ["--layers", 1, "--moments", "8bit", *words], f"limit-{number}"
                whole = self.train(n_ranks, "--steps", 4, *words)["losses"]
                losses = self.train(n_ranks, "--steps", 2, "--resume", state, *words)["losses"]
                losses += self.train(n_ranks, "--steps", 4, "--resume", state, *words)["losses"]
                self.assertEqual(losses, whole)

    def read_bytes(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def test_another_number_of_ranks_goes_on(self):
        whole = self.train(None, "--steps", 10)["losses"]
        losses = []
        for n_ranks, steps in (4, 4), (1, 6), (3, 10):
            losses += self.train(n_ranks, "--steps", steps, "--resume", "state")["losses"]
        self.assert_close(losses, whole, "4, 1 and 3 ranks")

    def test_one_rank_alone_goes_on_and_others_from_it(self):
        words = ["--weight-decay", 30]  # shards have other dimensions than what is decayed
        whole = self.train(None, "--steps", 10, *words)["losses"]
        losses = []
        # Ranks leave their own state alone; one rank keeps the state that it went on from.
        for n_ranks, steps, sizes in (None, 2, {1}), (3, 4, {3}), (None, 6, {1, 3}), (None, 8, {1}), (2, 10, {2}):
            losses += self.train(n_ranks, "--steps", steps, "--resume", "state", *words)["losses"]
            found = {int(name[-17:-12]) for name in os.listdir(self.path("state")) if name.startswith("state-")}
            self.assertEqual(found, sizes)
        self.assert_close(losses, whole, "1, 3, 1, 1 and 2 ranks")

    def test_parts_without_an_index_are_refused(self):
        self.train(2, "--steps", 1, "--resume", "lost")
        os.unlink(self.path("lost/index.json"))
        for program, ranks in (PROGRAM, ["--ranks", 2]), (ALONE, []):
            with self.subTest(program=program):
                before = sorted(os.listdir(self.path("lost")))
                done = self.run_program("--data", "text.txt", *MODEL, *ranks, "--steps", 2, "--resume", "lost",
                                        program=program)
                self.assertEqual((done.returncode, done.stdout, done.stderr.count(b"\n")), (1, b"", 1), done.stderr)
                self.assertIn(b"--resume lost: it holds parts of a state, but not its index.json", done.stderr)
                self.assertEqual(sorted(os.listdir(self.path("lost"))), before)

    def test_weights_are_those_that_train_gpt_reads(self):
        self.train(3, "--steps", 3, "--save", "weights")
        again = self.train(None, "--steps", 1, "--load", "weights")["losses"]
        self.assert_close(self.train(2, "--steps", 1, "--load", "weights")["losses"], again, "loaded")

    def test_an_untied_head_is_every_ranks(self):
        self.train(None, "--steps", 1, "--save", "weights")
        data = self.read_bytes("weights")
        size = 8 + int.from_bytes(data[:8], "little")
        header, values = json.loads(data[8:size]), data[size:]
        begin, end = header["wte.weight"]["data_offsets"]
        row = (end - begin) // 256
        header["lm_head.weight"] = {**header["wte.weight"], "data_offsets": [len(values), len(values) + end - begin]}
        text = json.dumps(header).encode()
        with open(self.path("untied"), "wb") as file:  # the embedding's rows, each one place on
            file.write(len(text).to_bytes(8, "little") + text + values + values[begin + row:end]
                       + values[begin:begin + row])
        words = ["--load", "untied", "--weight-decay", 1]
        whole = self.train(None, "--steps", 4, "--save", "whole", *words)["losses"]
        for more in [], ["--tensor-parallel", 2]:
            with self.subTest(more=more):
                state = "state" + "".join(map(str, more))
                begun = self.train(2, "--steps", 2, "--resume", state, *words, *more)["losses"]
                rest = self.train(2, "--steps", 4, "--resume", state, "--save", "resumed", *more)
                self.assert_close(begun + rest["losses"], whole, "untied")
                self.assertFalse(rest["config"]["tied"])
                self.assertEqual(len(self.read_bytes("resumed")), len(self.read_bytes("whole")))

    def test_sigterm_ends_all_after_the_step(self):
        with subprocess.Popen([PROGRAM, "--data", "text.txt", *MODEL, "--steps", "1000000", "--ranks", "2", "--resume",
                               "state"], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            self.wait_for_step(process)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
        self.assertEqual((process.returncode, errors), (143, b""))
        report = self.train(2, "--steps", 0, "--resume", "state")
        self.assertGreater(report["first_step"], 0)

    def test_sigterm_ends_an_evaluation(self):
        with open(self.path("text.txt"), "a", encoding="utf-8") as text:
            text.write("The quick brown fox. " * 50_000)
        with subprocess.Popen([PROGRAM, "--data", "text.txt", *MODEL, "--eval", "0.9", "--eval-every", "1", "--steps",
                               "2", "--ranks", "2", "--report", "r"], cwd=self.folder, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as process:
            self.wait_for_step(process)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
        self.assertEqual((process.returncode, errors), (143, b""))
        with open(self.path("r"), encoding="utf-8") as file:
            self.assertEqual(json.load(file)["evaluations"], [])

    @unittest.skipUnless(HAS_MPI, "there is no MPI")
    def test_sigterm_to_one_process_ends_all(self):
        with subprocess.Popen([MPIRUN, "-n", "2", "--oversubscribe", PROGRAM, "--data", "text.txt", *MODEL, "--steps",
                               "1000000", "--resume", "state"], cwd=self.folder, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env={**os.environ, **MPI_ENVIRONMENT}) as process:
            self.wait_for_step(process)
            os.kill(max(find_children(process.pid)), signal.SIGTERM)
            process.communicate(timeout=60)
        self.assertEqual(process.returncode, 143)
        done = self.mpirun(2, "--data", "text.txt", *MODEL, "--steps", 0, "--resume", "state", "--report", "r")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(self.read_report("r")["first_step"], 0)


def find_children(parent):
    """The processes that run the program below @parent."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8") as file:
                words = file.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(words[1]) == parent:
            found.append(int(name))
    return found


class Failures(FsdpGptTest):
    def test_bad_options_are_one_line(self):
        for words, said in ((["--ranks", 0], b"--ranks 0"), (["--backend", "thread"], b"--ranks is missing"),
                            (["--backend", "mpi", "--ranks", 2], b"--backend thread"), (["--shard", "x"], b"--shard x"),
                            (["--shard", "hybrid"], b"--shard-size is missing"), (["--wrap", "0"], b"--wrap 0"),
                            (["--shard-size", 2], b"--shard hybrid"), (["--shard", "none", "--flatten"], b"--flatten"),
                            (["--nesting", "x"], b"--nesting x"), (["--timeout", -1], b"--timeout -1"),
                            (["--ranks", 3, "--shard", "hybrid", "--shard-size", 2], b"--shard-size 2"),
                            (["--compute-dtype", "i8"], b"--compute-dtype i8"), (["--reduce", "x"], b"--reduce x")):
            with self.subTest(words=words):
                done = self.run_program("--data", "text.txt", *words)
                self.assertEqual((done.returncode, done.stdout, done.stderr.count(b"\n")), (2, b"", 1))
                self.assertIn(said, done.stderr)

    def test_launched_processes_are_the_ranks(self):
        for words in (["--ranks", 2], ["--backend", "single"]):
            done = self.run_program("--data", "text.txt", *words, more={"OMPI_COMM_WORLD_SIZE": "3"})
            self.assertEqual((done.returncode, done.stdout, done.stderr.count(b"\n")), (2, b"", 1))
            self.assertIn(b"3 processes were started together", done.stderr)

    def test_a_process_without_a_rank_0_speaks_for_itself(self):
        """What all would say is said by rank 0, if the launcher says that there is one."""
        several = {"OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE", "PMI_RANK": "PMI_SIZE",
                   "SLURM_PROCID": "SLURM_STEP_NUM_TASKS", "PMIX_RANK": "SLURM_STEP_NUM_TASKS", "RANK": "WORLD_SIZE"}
        for program in PROGRAM, ALONE:
            for name, size in several.items():
                is_rank = program != ALONE or name != "RANK"  # train_gpt's ranks are MPI's
                for more, n_lines in (({name: "1"}, 1), ({name: "1", size: "1"}, 1), ({name: "0", size: "2"}, 1),
                                      ({name: "1", size: "2"}, 0 if is_rank else 1)):
                    with self.subTest(program=program, more=more):
                        done = self.run_program("--no-such-option", program=program, more=more)
                        self.assertEqual((done.returncode, done.stdout, done.stderr.count(b"\n")), (2, b"", n_lines))

    def test_ranks_of_torchrun_without_a_gpu_are_told_what_to_start(self):
        done = self.run_program("--data", "text.txt", "--steps", 1, more={"RANK": "0", "WORLD_SIZE": "3"})
        self.assertEqual((done.returncode, done.stdout, done.stderr.count(b"\n")), (1, b"", 1))
        if b"this process was started for" not in done.stderr:  # no module, or no GPU
            self.assertIn(b"\"mpirun -n 3 ...\"", done.stderr)

    def test_help_is_train_gpts_and_more(self):
        alone = self.run_program("--help-all", program=ALONE).stdout.decode()
        ours = self.run_program("--help-all").stdout.decode()
        names = {line.split("=")[0].strip() for line in alone.splitlines() if line.startswith("  -")}
        self.assertGreater(len(names), 30)
        for name in names:
            self.assertIn(name.split(",")[-1].strip(), ours)
        self.assertIn("--shard-size", ours)

    def test_what_no_rank_can_do_is_one_line(self):
        for words, said in ((["--load", "missing"], b"missing"), (["--save", "no/such/folder"], b"no/such/folder"),
                            (["--memory", "1MiB"], b"--memory 1MiB: 1.0 MiB is too little"), (["--heads", 5], b"5")):
            with self.subTest(words=words):
                done = self.run_program("--data", "text.txt", *MODEL, "--ranks", 3, *words)
                self.assertEqual((done.returncode, done.stdout, done.stderr.count(b"\n")), (1, b"", 1), done.stderr)
                self.assertIn(said, done.stderr)
                self.assertIn(done.stderr.count(b"rank 0"), (0, 1), done.stderr)
                self.assertEqual(self.files(), ["text.txt"])

    def test_a_rank_that_fails_ends_all(self):
        words = ["--data", "text.txt", *MODEL, "--ranks", 3, "--quiet", "--steps", 4, "--timeout", 20, "--save",
                 "weights", "--resume", "state", "--report", "report"]
        for phase in "forward", "backward", "exchange", "update", "save":
            for rank in 0, 2:
                step = 4 if phase == "save" else 3
                with self.subTest(phase=phase, rank=rank):
                    began = time.monotonic()
                    done = self.run_program(*words, fault=f"{rank}:{phase}:{step}:error")
                    self.assertLess(time.monotonic() - began, 15)
                    self.assertEqual((done.returncode, done.stdout, done.stderr.count(b"\n")), (1, b"", 1), done.stderr)
                    self.assertIn(f"rank {rank}".encode(), done.stderr)
                    self.assertEqual([name for name in self.files() if name not in ("state", "text.txt")], [])
                    if "state" in self.files():
                        self.assertFalse(any(name.startswith("state-") for name in os.listdir(self.path("state"))))

    @unittest.skipUnless(HAS_MPI, "there is no MPI")
    def test_a_process_that_is_killed_ends_all(self):
        words = ["--data", "text.txt", *MODEL, "--quiet", "--steps", 4, "--timeout", 20, "--save", "weights",
                 "--resume", "state", "--report", "report"]
        for phase, rank in (("forward", 1), ("backward", 0), ("exchange", 2), ("update", 1), ("save", 1)):
            with self.subTest(phase=phase):
                began = time.monotonic()
                done = self.mpirun(3, *words, fault=f"{rank}:{phase}:{4 if phase == 'save' else 3}:kill")
                self.assertLess(time.monotonic() - began, 30)
                self.assertNotEqual(done.returncode, 0)
                self.assertEqual([name for name in self.files() if name not in ("state", "text.txt")], [])
                if "state" in self.files():
                    self.assertFalse(any(name.startswith("state-") for name in os.listdir(self.path("state"))))

    @unittest.skipUnless(HAS_MPI, "there is no MPI")
    def test_processes_say_it_once(self):
        for words, status, said in ((["--load", "missing"], 1, b"missing"), (["--shard", "x"], 2, b"--shard x")):
            done = self.mpirun(2, "--data", "text.txt", *MODEL, *words)
            ours = [line for line in done.stderr.splitlines() if line.startswith(b"fsdp_gpt: ")]
            self.assertEqual((done.returncode, len(ours)), (status, 1), done.stderr)
            self.assertIn(said, ours[0])


if __name__ == "__main__":
    unittest.main()
