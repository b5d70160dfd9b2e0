#!/usr/bin/env python3
"""What the programs write: files and folders with the longest names, other models, closed terminals and outputs."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import unittest

BUILD = os.path.abspath(os.environ.get("EBB_BUILD_DIR", "build/release"))
MODEL = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "fixtures", "chat-model")
BROKEN = "train_gpt: can't write to standard output: Broken pipe\n"
SIZES = ["--layers", "1", "--width", "16", "--heads", "2", "--context", "16", "--batch", "2", "--threads", "1"]


class OutputsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ebb-outputs-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.write("text.txt", "The day is wide and the sea is long.\n" * 100)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def files(self, *names):
        return sorted(os.listdir(self.path(*names)))

    def run_program(self, program, *words, **more):
        return subprocess.run([os.path.join(BUILD, "examples", program), *map(str, words)], cwd=self.folder, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=200, check=False, **more)

    def succeed(self, program, *words):
        done = self.run_program(program, *words)
        self.assertEqual((done.returncode, done.stderr), (0, ""), words)
        return done.stdout

    def refuse(self, status, part, program, *words):
        """One line says why, and nothing is left."""
        before = self.files()
        done = self.run_program(program, *words)
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (status, "", 1), done.stderr)
        self.assertIn(part, done.stderr)
        self.assertEqual(self.files(), before, words)


class LongNames(OutputsTest):
    def test_the_longest_names_are_written(self):
        """To a name of 255 bytes nothing can be added while the file is unfinished."""
        for n_bytes in 234, 244, 255:
            names = {option: letter * (2 - (n_bytes - len(end)) % 2) + "ü" * ((n_bytes - 1 - len(end)) // 2) + end
                     for option, letter, end in
                     (("--save", "a", ""), ("--save-best", "b", ""), ("--report", "c", ""), ("--profile", "d", ""),
                      ("--memory-timeline", "e", ".html"), ("--resume", "f", ""), ("--log", "g", ""))}
            self.succeed("train_gpt", "--data", "text.txt", "--eval", 0.2, *SIZES, "--steps", 2,
                         *(word for option, name in names.items()
                           for word in (option, name + "/" * (option == "--save"))))
            self.assertEqual(self.files(), sorted(["text.txt", *names.values()]))
            for name in names.values():
                shutil.rmtree(self.path(name), ignore_errors=True)
                if os.path.exists(self.path(name)):
                    os.remove(self.path(name))

    def test_other_programs_write_them_too(self):
        self.write("lines.jsonl", '{"text": "The sea is wide."}\n' * 9)
        adapter, report = "a" * 255, "r" * 255
        self.succeed("finetune", "--model", MODEL, "--data", "lines.jsonl", "--context", 16, "--lora", 2, "--steps", 1,
                     "--threads", 1, "--save", adapter)
        self.assertIn("adapter_config.json", self.files(adapter))
        self.succeed("generate", "--model", MODEL, "--adapter", adapter, "--prompt", "The sea", "--tokens", 2,
                     "--report", report)
        self.assertEqual(self.files(), sorted([adapter, report, "lines.jsonl", "text.txt"]))

    def test_names_that_are_too_long_are_refused_at_once(self):
        words = ["train_gpt", "--data", "text.txt", *SIZES, "--steps", 1]
        deep = "/".join(["d" * 200] * 20)
        for name in "n" * 256, "absent/" + "n" * 256:
            for option in ["--save", name + "/"], ["--log", name]:
                self.refuse(1, ": a name of 256 bytes: there a name has at most 255\n", *words, *option)
        for option in ["--save", "n" * 256], ["--report", "n" * 256]:
            self.refuse(1, ": a name of 256 bytes: there a name has at most 255\n", *words, *option)
        self.refuse(1, " bytes: it must have at most ", *words, "--save", deep + "/")
        self.refuse(1, " a name of 256 bytes", "generate", "--model", MODEL, "--prompt", "a", "--report", "n" * 256)


class Replacing(OutputsTest):
    """A model replaces none but itself, unless --overwrite is given."""

    def train(self, *words, program="train_gpt"):
        return self.run_program(program, "--data", "text.txt", *SIZES, "--steps", 1, "--quiet", *words)

    def check(self, option, folder, part, *words, program="train_gpt"):
        """Refused, and nothing of @folder changes; with --overwrite it is written."""
        def read():
            return {name: pathlib.Path(self.path(folder, name)).read_bytes() for name in self.files(folder)}
        before = read()
        run = self.train if program != "finetune" else lambda *words: self.run_program("finetune", *words)
        more = {"program": program} if program != "finetune" else {}
        done = run(*words, option, folder, **more)
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1), done.stderr)
        self.assertIn(part, done.stderr)
        self.assertEqual(read(), before)
        done = run(*words, option, folder, "--overwrite", **more)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertNotEqual(read(), before)

    def test_a_model_replaces_itself_alone(self):
        for _ in range(2):
            done = self.train("--save", "m/")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
        config = json.loads(pathlib.Path(self.path("m/config.json")).read_bytes())
        del config["layer_norm_epsilon"]  # as if an older version had written fewer keys
        self.write("m/config.json", json.dumps(config))
        self.assertEqual(self.train("--save", "m/").returncode, 0)
        other = "its config.json is not this model's: name a new or an empty folder, or replace it by --overwrite\n"
        self.check("--save", "m", other, "--width", 32)
        self.check("--save-best", "m", other, "--width", 48, "--eval", 0.2)
        self.check("--save", "m", other, "--layers", 2, "--ranks", 2, program="fsdp_gpt")
        self.check("--save", "m", other, program="train_bert")
        self.assertEqual(self.train("--save", "m", program="train_bert").returncode, 0)
        os.mkdir(self.path("notes"))
        self.write("notes/index.json", '{"mine": true}')
        self.check("--save", "notes", "it is a folder with files that are not a model's")
        shutil.rmtree(self.path("notes"))
        os.mkdir(self.path("notes"))
        self.write("notes/a.txt", "mine")
        self.check("--save", "notes", "it is a folder with files that are not a model's")
        self.assertIn("a.txt", self.files("notes"))
        self.refuse(2, "--overwrite: it needs --save, --save-best, or another option", "train_gpt",
                    "--data", "text.txt", "--overwrite")

    def test_tuned_models_and_adapters_replace_themselves_alone(self):
        self.write("lines.jsonl", '{"text": "The sea is wide."}\n' * 9)
        words = ["--model", MODEL, "--data", "lines.jsonl", "--context", 16, "--steps", 1, "--threads", 1, "--quiet"]
        for more in [], ["--lora", 2]:
            for _ in range(2):
                self.succeed("finetune", *words, *more, "--save", "tuned" + "".join(map(str, more)))
        path = pathlib.Path(self.path("tuned--lora2/adapter_config.json"))
        path.write_text(json.dumps({key: value for key, value in json.loads(path.read_bytes()).items()
                                    if key != "use_dora"}), encoding="utf-8")
        self.succeed("finetune", *words, "--lora", 2, "--save", "tuned--lora2")
        self.assertIn("use_dora", json.loads(path.read_bytes()))
        self.check("--save", "tuned--lora2", "its adapter_config.json is not this adapter's", *words, "--lora", 3,
                   program="finetune")
        self.check("--save", "tuned", "it is a folder with files that are not an adapter's", *words, "--lora", 3,
                   program="finetune")
        merging = ["--model", MODEL, "--merge", "tuned--lora2", "--quiet"]
        for _ in range(2):
            self.succeed("finetune", *merging, "--save", "merged")
        self.assertEqual(self.train("--save", "small/").returncode, 0)
        self.check("--save", "small", "its config.json is not this model's", *merging, program="finetune")
        self.check("--save", "tuned--lora2", "it is a folder with files that are not a model's", *merging,
                   program="finetune")

    def test_inputs_and_other_files_are_not_replaced(self):
        kinds = [("--save", "o"), ("--report", "o"), ("--profile", "o"), ("--stream-trace", "o"),
                 ("--memory-timeline", "o.svg")]
        words = ["--data", "text.txt", *SIZES, "--steps", 2, "--quiet"]
        text = pathlib.Path(self.path("text.txt"))
        os.link(text, self.path("o"))
        os.symlink("text.txt", self.path("o.svg"))
        before = text.read_bytes()
        for option, name in kinds:
            self.refuse(2, f"{option} {name}: it is the file of --data text.txt, which is only read: name another file",
                        "train_gpt", *words, option, name, "--overwrite")
        self.write("lines.jsonl", '{"text": "The sea is wide."}\n')
        self.write("c", '{"steps": 1}')
        for inputs, name in (["--eval", "lines.jsonl"], "lines.jsonl"), (["--config", "c"], "c"):
            self.refuse(2, f"--report {name}: it is the file of {' '.join(inputs)}", "train_gpt", *words, *inputs,
                        "--report", name)
        tuning = ["--model", MODEL, "--data", "lines.jsonl", "--context", 16, "--steps", 1, "--quiet"]
        self.refuse(2, "it is the file of --data lines.jsonl", "finetune", *tuning, "--report", "lines.jsonl")
        telling = ["--model", MODEL, "--tokens", 1, "--file", "c"]
        self.refuse(2, "it is the file of --file c", "generate", *telling, "--report", "c")
        self.assertEqual(text.read_bytes(), before)
        os.remove(self.path("o.svg"))
        for option, name in kinds:
            pathlib.Path(self.path("o")).unlink(missing_ok=True)
            self.write(name, '{"a": 1}\n' * 9)
            self.refuse(1, f"{option} {name}: the file there is not ", "train_gpt", *words, option, name)
            if option != "--stream-trace":  # the CPU has none
                self.succeed("train_gpt", *words, option, name, "--overwrite")
                self.succeed("train_gpt", *words, option, name)
        self.write("r", "mine")
        self.refuse(1, "--report r: the file there is not a report", "train_gpt", *words, "--estimate", "--report", "r")
        os.remove(self.path("r"))
        self.succeed("generate", *telling, "--report", "r")
        self.succeed("generate", *telling, "--report", "r")
        self.write("r", "mine")
        self.refuse(1, "--report r: the file there is not a report", "generate", *telling, "--report", "r")
        self.refuse(1, "--report r: the file there is not a report", "finetune", *tuning, "--report", "r", "--save",
                    "t")
        self.succeed("generate", *telling, "--report", "r", "--overwrite")

    def test_a_folder_of_a_model_is_no_state(self):
        words = ["--data", "text.txt", *SIZES, "--steps", 1]
        self.succeed("train_gpt", *words, "--save", "m/")
        before = self.files("m")
        self.refuse(1, "--resume m: the folder has config.json, but no state of a training", "train_gpt", *words,
                    "--resume", "m")
        self.assertEqual(self.files("m"), before)
        for _ in range(2):
            self.succeed("train_gpt", *words, "--save", "both/", "--resume", "both")

    def test_a_folder_that_is_no_model_is_named(self):
        os.mkdir(self.path("none"))
        for program, *words in ["generate", "--prompt", "a"], ["finetune", "--data", "text.txt"]:
            self.refuse(1, "--model none: the folder is no model: it has no config.json", program, *words, "--model",
                        "none")

    def test_a_training_that_keeps_nothing_is_said_before_its_first_step(self):
        said = "The trained weights will not be kept: --save FILE writes them\n"
        words = ["--data", "text.txt", *SIZES, "--steps", 1]
        for program, more in ("train_gpt", []), ("train_bert", []), ("fsdp_gpt", ["--ranks", 2]):
            output = self.succeed(program, *words, *more)
            self.assertEqual(output[:output.index("step ")].count(said), 1, program)
        for more in ["--save", "w"], ["--resume", "state"]:
            self.assertNotIn("kept", self.succeed("train_gpt", *words, *more))


class OneLog(OutputsTest):
    def test_two_trainings_do_not_share_a_log(self):
        words = ["--data", "text.txt", *SIZES, "--log", "log", "--steps"]
        program = os.path.join(BUILD, "examples", "train_gpt")
        with subprocess.Popen([program, *words, "10000000"], cwd=self.folder, stdout=subprocess.PIPE,
                              text=True) as first:
            while not first.stdout.readline().startswith("step"):
                self.assertIsNone(first.poll())
            seconds = [self.run_program("train_gpt", *words, 2, *more) for more in ([], ["--resume", "state"])]
            first.kill()
            first.stdout.read()
            for second in seconds:
                self.assertEqual((second.returncode, second.stdout, second.stderr.count("\n")), (1, "", 1))
                self.assertIn(f"--log: the folder log is in use by process {first.pid} on ", second.stderr)
        with open(self.path("log", "steps.jsonl"), encoding="utf-8") as file:
            steps = [json.loads(line)["step"] for line in file.read().rpartition("\n")[0].splitlines()]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))
        shutil.rmtree(self.path("log"))
        self.succeed("train_gpt", *words, 2, "--resume", "log")
        self.assertNotIn(".ebb-lock", self.files("log"))


class Endings(OutputsTest):
    """A training whose terminal or output closes saves what it has."""
    words = ["--data", "text.txt", *SIZES, "--steps", 2000, "--save", "w/", "--resume", "state", "--report", "r"]

    def check_saved(self):
        self.assertEqual(self.files(), ["r", "state", "text.txt", "w"])
        with open(self.path("r"), encoding="utf-8") as file:
            begun = json.load(file)
        n = begun["last_step"]
        self.succeed("train_gpt", "--data", "text.txt", "--steps", n + 2, "--resume", "state", "--report", "r",
                     "--quiet")
        with open(self.path("r"), encoding="utf-8") as file:
            rest = json.load(file)
        self.succeed("train_gpt", "--data", "text.txt", *SIZES, "--steps", n + 2, "--report", "r", "--quiet")
        with open(self.path("r"), encoding="utf-8") as file:
            self.assertEqual(json.load(file)["losses"], begun["losses"] + rest["losses"])
        for name in "w", "state":
            shutil.rmtree(self.path(name))
        os.remove(self.path("r"))

    def start(self, *words, before=None, program="train_gpt", base=None):
        words = [os.path.join(BUILD, "examples", program), *map(str, (base or self.words) + list(words))]
        return subprocess.Popen(words, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, preexec_fn=before)

    def wait_for_step(self, process):
        while not process.stdout.readline().startswith("step"):
            self.assertIsNone(process.poll())

    def test_a_terminal_that_closes(self):
        for program, words in ("train_gpt", []), ("fsdp_gpt", ["--ranks", 2]):
            with self.subTest(program=program), self.start(*words, "--steps", 10**7, program=program) as process:
                self.wait_for_step(process)
                for _ in range(3):    # from the kernel and from the shell
                    process.send_signal(signal.SIGHUP)
                self.assertEqual((process.communicate(timeout=60)[1], process.returncode), ("", 129))
            if program == "train_gpt":
                self.check_saved()

    def test_a_training_that_is_stopped_says_so(self):
        with self.start("--steps", 10**7) as process:
            self.wait_for_step(process)
            process.send_signal(signal.SIGTERM)
            output = process.communicate(timeout=60)[0]
        self.assertRegex(output, r"Stopped after step ([0-9]+) of 10000000\n(?s:.*)"
                                 r"State of step \1: state; the same command goes on from there\n")
        self.assertEqual(process.returncode, 143)
        n_steps = int(output.rpartition("State of step ")[2].partition(":")[0]) + 1
        done = self.succeed("train_gpt", *self.words, "--steps", n_steps)
        self.assertNotIn("Stopped", done)
        self.assertNotIn("the same command", done)

    def test_who_ignores_it_goes_on(self):
        with self.start("--steps", 1000, before=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) as process:
            self.wait_for_step(process)
            process.send_signal(signal.SIGHUP)
            output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 0)
        self.assertIn("step 1000/1000", output)

    def test_an_output_that_closes(self):
        """Before the first step, after some, and where the program ignores the signal."""
        with self.start() as process:
            process.stdout.close()
            errors = process.stderr.read()
        self.assertEqual((process.returncode, errors), (141, BROKEN))
        self.check_saved()
        with self.start() as process:
            self.wait_for_step(process)
            process.stdout.close()
            errors = process.stderr.read()
        self.assertEqual((process.returncode, errors), (141, BROKEN))
        self.check_saved()
        with self.start("--steps", 50, before=lambda: signal.signal(signal.SIGPIPE, signal.SIG_IGN)) as process:
            process.stdout.close()
            errors = process.stderr.read()
        self.assertEqual((process.returncode, errors), (1, BROKEN))
        self.check_saved()

    def test_an_output_that_closes_before_a_plan_and_an_evaluation(self):
        self.succeed("train_gpt", "--data", "text.txt", *SIZES, "--steps", 1, "--save", "model/", "--quiet")
        tuning = ["--data", "text.txt", "--model", "model", "--context", 16, "--batch", 2, "--steps", 2000, "--save",
                  "v", "--report", "r"]
        for program, base, words in ("train_gpt", self.words, ["--memory", "1GiB"]), ("finetune", tuning,
                                                                                    ["--eval", 0.1]):
            with self.subTest(words=words), self.start(*words, program=program, base=base) as process:
                process.stdout.close()
                errors = process.stderr.read()
            self.assertEqual((process.returncode, errors), (141, BROKEN.replace("train_gpt", program)))
            with open(self.path("r"), encoding="utf-8") as file:
                report = json.load(file)
            self.assertGreaterEqual(report["last_step"], 1)
            self.assertEqual([row["step"] for row in report["evaluations"]][:1], [0] if program == "finetune" else [])

    def test_an_output_that_is_closed_at_first_gets_into_no_file(self):
        whole = self.succeed("train_gpt", *self.words, "--steps", 20)
        self.assertIn("step 20/20", whole)
        self.check_saved()
        with self.start("--steps", 20, before=lambda: os.close(1)) as process:
            errors = process.communicate()[1]
        self.assertEqual((process.returncode, errors),
                         (1, "train_gpt: can't write to standard output: Bad file descriptor\n"))
        self.check_saved()


if __name__ == "__main__":
    unittest.main()
