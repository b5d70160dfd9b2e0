#!/usr/bin/env python3
"""What the programs make of their tables of options: help, man pages, completions, files of --config; and what they
print on terminals of any width."""
import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import unittest

SOURCE = os.environ.get("EBB_SOURCE_DIR", os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
BUILD = os.environ.get("EBB_BUILD_DIR", os.path.join(SOURCE, "build", "release"))
NAMES = ["train_gpt", "fsdp_gpt", "train_bert", "finetune", "generate"]
MODEL = os.path.join(SOURCE, "tests", "fixtures", "chat-model")
SMALL = ["--data", "text.txt", "--width", "32", "--heads", "2", "--layers", "2", "--context", "32", "--batch", "2"]
ESCAPE = re.compile(r"\033\[[0-9;]*[A-Za-z]")
COLOUR = re.compile(r"\033\[[0-9;]*m")


def get_installed_name(name):
    return "ebb-" + name.replace("_", "-")


def read(*parts):
    with open(os.path.join(*parts), encoding="utf-8") as file:
        return file.read()


class ProgramsTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.write("text.txt", "Ebb and flow. " * 100)
        self.environment = {**os.environ, "EBB_COST_FILE": os.path.join(self.folder, "costs"), "TERM": "xterm"}
        for name in ("NO_COLOR", "COLUMNS"):
            self.environment.pop(name, None)

    def write(self, name, content):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.write(content if isinstance(content, str) else json.dumps(content))
        return name

    def run_program(self, name, *words, **more):
        return subprocess.run([os.path.join(BUILD, "examples", name), *map(str, words)], capture_output=True, text=True,
                              timeout=200, check=False, cwd=self.folder, env={**self.environment, **more},
                              stdin=subprocess.DEVNULL)

    def run_on_terminal(self, columns, name, *words, **more):
        """Standard output and errors of a program on a terminal of so many columns."""
        leader, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        with subprocess.Popen([os.path.join(BUILD, "examples", name), *map(str, words)], cwd=self.folder,
                              stdout=terminal, stderr=terminal, stdin=subprocess.DEVNULL,
                              env={**self.environment, **more}) as program:
            os.close(terminal)
            text = b""
            while True:
                try:
                    part = os.read(leader, 65536)
                except OSError:    # the program has ended
                    break
                text += part
            os.close(leader)
        return program.returncode, text.decode().replace("\r\n", "\n")


def list_options(text):
    return set(re.findall(r"^  (?:-\w, )?--([a-z0-9-]+)", text, re.MULTILINE))


class Tables(ProgramsTest):
    def test_the_short_help_is_short_and_the_other_has_all(self):
        for name in NAMES:
            with self.subTest(program=name):
                short, full = (self.run_program(name, option).stdout for option in ("--help", "--help-all"))
                self.assertLessEqual(list_options(short), list_options(full))
                self.assertLessEqual(len(list_options(short)), 40)
                self.assertLessEqual({"config", "help", "help-all", "version"}, list_options(short))
                self.assertIn("--help-all lists all options", " ".join(short.split()))
                self.assertIn("Exit status:   0 ", full)
                self.assertNotIn("PROGRAM", short + full)
        for name in ("train_gpt", "fsdp_gpt", "finetune"):
            with self.subTest(program=name):
                short, full = (self.run_program(name, option).stdout for option in ("--help", "--help-all"))
                self.assertLess(2 * len(short), len(full) + 1000)

    def test_man_pages_and_completions_have_every_option(self):
        for name in NAMES:
            options = list_options(self.run_program(name, "--help-all").stdout)
            installed = get_installed_name(name)
            self.assertGreater(len(options), 8)
            page = read(BUILD, "pages", "man", f"{installed}.1").replace("\\-", "-")
            with self.subTest(page=installed):
                self.assertEqual(set(re.findall(r"^(?:\\fB-\w\\fR, )?\\fB--([a-z0-9-]+)", page, re.MULTILINE)), options)
                for title in ("NAME", "SYNOPSIS", "OPTIONS", "CONFIGURATION", "ENVIRONMENT", "EXIT STATUS", "EXAMPLES"):
                    self.assertIn(f"\n.SH {title}\n", page)
                self.assertNotIn("PROGRAM", page)
            with self.subTest(shell="zsh", program=installed):
                text = read(BUILD, "pages", "zsh", f"_{installed}")
                self.assertEqual(set(re.findall(r"^  '\*?--([a-z0-9-]+)", text, re.MULTILINE)), options)
            with self.subTest(shell="fish", program=installed):
                text = read(BUILD, "pages", "fish", f"{installed}.fish")
                self.assertEqual(set(re.findall(r" -l ([a-z0-9-]+)", text)), options)
            with self.subTest(shell="bash", program=installed):
                self.assertEqual(set(self.complete(name, "--")), {f"--{option}" for option in options})

    def complete(self, name, *words):
        """What bash offers for the last word."""
        installed = get_installed_name(name)
        script = (f". {BUILD}/pages/bash/{installed}; COMP_WORDS=({installed} \"$@\"); COMP_CWORD=$#; "
                  f"_{installed.replace('-', '_')} {installed} \"${{@: -1}}\" \"${{@: -2:1}}\"; "
                  "printf '%s\\n' \"${COMPREPLY[@]}\"")
        done = subprocess.run(["bash", "-uc", script, "bash", *words], capture_output=True, text=True, check=True,
                              cwd=self.folder)
        self.assertEqual(done.stderr, "")
        return done.stdout.split()

    def test_completions_offer_values(self):
        self.write("run.json", {})
        os.mkdir(os.path.join(self.folder, "state"))
        for words, offered in ((("--checkpoint", "f"), ["full"]), (("--checkpoint", "=", "s"), ["selective"]),
                               (("--checkpoint", "="), ["none", "selective", "full", "auto"]),
                               (("--memory", ""), ["auto"]), (("--config", "ru"), ["run.json"]),
                               (("--resume", ""), ["state"]), (("--data", "te"), ["text.txt"]),
                               (("--save", "te"), ["text.txt"]), (("--batch", ""), []),
                               (("--check",), ["--checkpoint"]), (("te",), ["text.txt"])):
            with self.subTest(words=words):
                self.assertEqual(self.complete("train_gpt", *words), offered)

    def test_completions_offer_presets_and_models(self):
        for name, presets in (("train_gpt", ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"]),
                              ("train_bert", ["bert-base", "bert-large"])):
            with self.subTest(program=name):
                self.assertEqual(self.complete(name, "--preset", ""), [*presets, "tiny"])
                done = self.run_program(name, "--preset", "huge", *SMALL[:2])
                self.assertEqual(done.returncode, 2)
                self.assertIn(f"--preset huge: it must be one of {presets[0]}, ", done.stderr)
        os.mkdir(os.path.join(self.folder, "chat"))
        self.write("chat.gguf", "")
        for name, option in (("generate", "--model"), ("generate", "--adapter"), ("finetune", "--model"),
                             ("finetune", "--adapter"), ("finetune", "--merge")):
            with self.subTest(program=name, option=option):
                self.assertEqual(self.complete(name, option, ""), ["chat", "chat.gguf"])
                installed = get_installed_name(name)
                option = option.removeprefix("--")
                self.assertRegex(read(BUILD, "pages", "fish", f"{installed}.fish"),
                                 rf"-l {option} .*__fish_complete_suffix \.gguf")
                self.assertRegex(read(BUILD, "pages", "zsh", f"_{installed}"), rf"--{option}=.*_files -g \"\*\.gguf\"")

    def test_errors_point_to_the_help_that_has_the_option(self):
        for words, option in ((["--batch", "0"], "--help"), (["--lr", "-1"], "--help"), (["--nothing"], "--help"),
                              (["--heads", "-1"], "--help-all"), (["--clip", "x"], "--help-all"),
                              (["--accumulate", 0], "--help-all")):
            with self.subTest(words=words):
                done = self.run_program("train_gpt", "--data", "text.txt", *words)
                self.assertEqual(done.returncode, 2)
                self.assertIn(f" {option} lists the options)", done.stderr)

    def test_misspelt_options_are_suggested(self):
        for name, typed, meant in (("train_gpt", "--step", "--steps"), ("train_gpt", "--bacth=3", "--batch"),
                                   ("train_gpt", "--learning_rate", None), ("generate", "--Top_K", "--top-k"),
                                   ("train_gpt", "--save_every", "--save-every"), ("finetune", "--xyzzy", None),
                                   ("train_gpt", "--microbatch", "--micro-batch"),
                                   ("generate", "--max_tokens", "--tokens"), ("generate", "--temp", "--temperature"),
                                   ("finetune", "--lora-rank", "--lora")):
            with self.subTest(program=name, typed=typed):
                done = self.run_program(name, typed, "5")
                self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1))
                self.assertIn(f"Unknown option {typed}" + (f": did you mean {meant}? (" if meant else " ("),
                              done.stderr)

    def test_shells_and_man_read_what_is_written(self):
        checks = {"zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"], "bash": ["bash", "-n"],
                  "man": ["groff", "-man", "-Tutf8", "-Kutf8", "-wall", "-z"]}
        for shell, command in checks.items():
            if shutil.which(command[0]):
                folder = os.path.join(BUILD, "pages", shell)
                for file in sorted(os.listdir(folder)):
                    with self.subTest(shell=shell, file=file):
                        done = subprocess.run([*command, os.path.join(folder, file)], capture_output=True, text=True,
                                              check=False)
                        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))


WRITTEN = {"report", "save", "save_best", "resume", "log", "profile", "profile_steps", "stream_trace",
           "memory_timeline"}


class Config(ProgramsTest):
    def train(self, *words, name="train_gpt", status=0):
        done = self.run_program(name, *words, "--report", "report.json")
        self.assertEqual(done.returncode, status, done.stderr)
        return json.loads(read(self.folder, "report.json"))

    def check_same(self, name, words, *keys):
        """A run from the config of its own report is the same run, bit for bit."""
        first = self.train(*words, name=name)
        self.write("run.json", first["config"])
        os.rename(os.path.join(self.folder, "report.json"), os.path.join(self.folder, "first.json"))
        again = self.train("--config", "run.json", name=name)
        for key in ("losses", "evaluations", *keys):
            self.assertEqual(again[key], first[key], key)
        for key in set(first["config"]) - WRITTEN - {"given"}:
            self.assertEqual(again["config"][key], first["config"][key], key)
        self.assertEqual(*(set(report["config"]["given"]) - WRITTEN for report in (again, first)))
        done = self.run_program(name, "--config", "first.json", "--report", "whole.json")    # a report as a whole
        self.assertEqual((done.returncode, json.loads(read(self.folder, "whole.json"))["losses"]), (0, first["losses"]))
        return first

    def test_a_report_repeats_its_run(self):
        words = [*SMALL, "--steps", 4, "--lr", "1.7e-3", "--checkpoint", "full", "--store", "host", "--eval", "0.1",
                 "--clip", 1, "--accumulate", 2, "--store-limit", "10MB", "--prompt", "a\nb"]
        first = self.check_same("train_gpt", words)
        self.assertEqual(len(first["losses"]), 4)
        self.assertIn("eval", first["config"]["given"])

    def test_a_long_report_is_a_file_of_options(self):
        """Neither its length nor brackets in its texts count, only how deep it is; numbers must fit."""
        self.write("long.json", {"config": {"data": ["text.txt"], "steps": 1, "prompt": "[{" * 600},
                                 "evaluations": [{"step": [n]} for n in range(1100)]})
        done = self.run_program("train_gpt", "--config", "long.json", *SMALL[2:], "--quiet")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        with open(os.path.join(self.folder, "deep.json"), "w", encoding="utf-8") as file:
            file.write('{"data": ' + "[" * 200000 + "]" * 200000 + "}")
        self.write("large.json", {"batch": 99999999999})
        for name, said in (("deep.json", "there is no object in it"),
                           ("large.json", "batch: 99999999999: it must be at most 2147483647")):
            done = self.run_program("train_gpt", "--config", name, *SMALL[:-2])
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
            self.assertIn(said, done.stderr)

    def test_a_report_of_ranks_repeats_its_run(self):
        self.check_same("fsdp_gpt", [*SMALL, "--steps", 2, "--ranks", 2, "--flatten", "--wrap", 1000])

    def test_a_report_of_a_plan_repeats_its_run(self):
        self.check_same("train_gpt", [*SMALL, "--steps", 2, "--memory", "auto"])

    def test_a_report_of_a_tuned_folder_repeats_its_run(self):
        words = ["--model", MODEL, "--data", "text.txt", "--context", 32, "--steps", 2, "--lora", 4, "--eval", "0.2",
                 "--save", "tuned"]
        self.assertEqual(self.check_same("finetune", words)["config"]["save"], "tuned")

    def test_a_report_repeated_leaves_the_files_of_its_run(self):
        """Options that name files to write are taken from a file that the user wrote, and from no report."""
        files = {"report": "report.json", "save": "weights.safetensors", "log": "log", "memory_timeline": "memory.svg",
                 "profile": "trace.json", "profile_steps": 1, "resume": "state"}
        words = [f"--{name.replace('_', '-')}={value}" for name, value in files.items()]
        first = self.train(*SMALL, "--steps", 3, *words)
        os.rename(os.path.join(self.folder, "report.json"), os.path.join(self.folder, "first.json"))
        first_weights = os.stat(os.path.join(self.folder, "weights.safetensors"))
        self.write("run.json", first["config"])    # which is known by its member "given"
        for name in "first.json", "run.json":
            with self.subTest(file=name):
                done = self.run_program("train_gpt", "--config", name, "--log", f"again-{name}")
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("step 3/3", done.stdout)    # not resumed
                self.assertEqual(done.stderr, f"train_gpt: --config {name}: not taken from the report: --save, "
                                 "--resume, --report, --profile, --profile-steps, --memory-timeline: a run that is "
                                 "repeated writes the files that you name\n")
                self.assertFalse(os.path.exists(os.path.join(self.folder, "report.json")))
                self.assertEqual(os.stat(os.path.join(self.folder, "weights.safetensors")), first_weights)
                self.assertTrue(os.path.exists(os.path.join(self.folder, f"again-{name}", "steps.jsonl")))
        done = self.run_program("train_gpt", "--config", "first.json", "--quiet")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.write("own.json", {key: first["config"][key] for key in first["config"]["given"]})
        done = self.run_program("train_gpt", "--config", "own.json", "--resume", "other", "--report", "whole.json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertNotEqual(os.stat(os.path.join(self.folder, "weights.safetensors")).st_ino, first_weights.st_ino)
        self.assertEqual(json.loads(read(self.folder, "whole.json"))["losses"], first["losses"])

    def test_a_report_of_a_resumed_run_says_that_it_lacks_options(self):
        self.assertEqual(self.run_program("train_gpt", *SMALL, "--steps", 2, "--resume", "state").returncode, 0)
        self.train(*SMALL[:2], "--steps", 3, "--resume", "state")
        done = self.run_program("train_gpt", "--config", "report.json")
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stderr, "train_gpt: --config report.json: its run resumed a training at step 2: name the "
                         "report of the run that began it, or a state of that step by --resume (train_gpt --help lists "
                         "the options)\n")
        done = self.run_program("train_gpt", "--config", "report.json", "--resume", "state", "--steps", 4)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Resuming from step 3 in state", done.stdout)

    def test_a_report_repeats_its_run_from_any_folder(self):
        """Files of the same names are beside it."""
        os.mkdir(os.path.join(self.folder, "other"))
        self.write("other/text.txt", "Quite another text, which has other words. " * 50)
        self.write("held.txt", "Ebb. " * 100)
        first = self.train(*SMALL, "--steps", 2, "--eval", "./held.txt", "--memory", "auto", "--plan", "plan.json")
        self.assertEqual([first["config"][key] for key in ("data", "eval", "plan", "tokenizer")],
                         [[os.path.join(self.folder, "text.txt")], os.path.join(self.folder, "held.txt"),
                          os.path.join(self.folder, "plan.json"), "byte"])
        own, self.folder = self.folder, os.path.join(self.folder, "other")
        try:
            again = self.train("--config", os.path.join(own, "report.json"))
        finally:
            self.folder = own
        self.assertEqual(*((report["losses"], report["evaluations"]) for report in (again, first)))

    def test_a_report_makes_no_plan(self):
        """A plan that is there is taken from a report, and one that is not there is not written."""
        report = self.train(*SMALL, "--steps", 1, "--memory", "auto", "--plan", "plan.json")
        os.rename(os.path.join(self.folder, "plan.json"), os.path.join(self.folder, "old.json"))
        os.rename(os.path.join(self.folder, "report.json"), os.path.join(self.folder, "first.json"))
        done = self.run_program("train_gpt", "--config", "first.json", "--report", "report.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("not taken from the report: --plan: ", done.stderr)
        self.assertFalse(os.path.exists(os.path.join(self.folder, "plan.json")))
        self.assertEqual(json.loads(read(self.folder, "report.json"))["losses"], report["losses"])

    def test_a_report_with_other_types_is_refused(self):
        options = {"data": ["text.txt"], "steps": 1}
        for more, said in (({"program": []}, "program: []: in a report it must be a text"),
                           ({"first_step": {}}, "first_step: {}: in a report it must be an integer"),
                           ({"first_step": "1"}, 'first_step: "1": in a report it must be an integer')):
            with self.subTest(more=more):
                self.write("run.json", {"config": options, **more})
                done = self.run_program("train_gpt", "--config", "run.json", "--resume", "state")
                self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
                self.assertIn(f"--config run.json: {said} (", done.stderr)

    def test_options_may_come_through_a_pipe(self):
        program = os.path.join(BUILD, "examples", "train_gpt")
        text = json.dumps({"data": "text.txt", "steps": 0, "layers": 1, "width": 16, "heads": 1, "context": 16})
        for script, status, said in (('"$0" -q --config <(printf %s "$1")', 0, ""),
                                     ('"$0" -q --config /dev/zero', 2, "/dev/zero: more than 268435456 bytes: ")):
            done = subprocess.run(["bash", "-c", script, program, text], cwd=self.folder, capture_output=True,
                                  text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, status, done.stderr)
            self.assertIn(said, done.stderr)

    def test_a_report_of_another_program_says_so(self):
        self.train("--model", MODEL, "--data", "text.txt", "--context", 32, "--steps", 0, "--eval", "text.txt",
                   "--lora", 4, name="finetune")
        done = self.run_program("train_gpt", "--config", "report.json")
        self.assertEqual(done.returncode, 2)
        self.assertIn("train_gpt: --config report.json: lora: train_gpt has no such option: the report is of "
                      "ebb-finetune", done.stderr)

    def test_a_report_of_generated_text_repeats_it(self):
        words = ["--model", MODEL, "--prompt", "Once", "--tokens", 12, "--temperature", 1, "--stop", "zz", "--seed", 3]
        first = self.run_program("generate", *words, "--report", "first.json")
        self.assertEqual(first.returncode, 0, first.stderr)
        again = self.run_program("generate", "--config", "first.json", "--report", "again.json")
        self.assertEqual((again.returncode, again.stdout), (0, first.stdout))
        again = self.run_program("generate", "--config", "first.json")
        self.assertIn("generate: --config first.json: not taken from the report: --report: ", again.stderr)

    def test_the_command_line_overrides_the_file(self):
        self.write("more.txt", "Something else. " * 100)
        self.write("run.json", {"data": "text.txt", "width": 32, "heads": 2, "layers": 2, "context": 32, "batch": 2,
                                "steps": 3, "micro-batch": 1, "step_in_backward": False, "eval": 0.25, "quiet": True,
                                "store": "host", "store_limit": "1MiB"})
        config = self.train("--config", "run.json")["config"]
        self.assertEqual([config[key] for key in ("data", "steps", "micro_batch", "eval", "quiet", "store_limit")],
                         [[os.path.join(self.folder, "text.txt")], 3, 1, "0.25", True, 1 << 20])
        config = self.train("--config", "run.json", "--steps", 2, "--no-quiet", "more.txt")["config"]
        self.assertEqual([config[key] for key in ("data", "steps", "micro_batch", "quiet")],
                         [[os.path.join(self.folder, "more.txt")], 2, 1, False])
        done = self.run_program("train_gpt", "--config", "run.json", "--steps", 1, "--batch", 0)
        self.assertIn("train_gpt: --batch 0: it must be at least 1", done.stderr)    # not the file's

    def test_what_is_wrong_in_the_file_is_one_line(self):
        for content, said in (({"bach": 4}, "run.json: bach: train_gpt has no such option: did you mean batch? ("),
                              ({"lora": 4}, "run.json: lora: train_gpt has no such option"),
                              ({"config": "x"}, "run.json: config: train_gpt has no such option"),
                              ({"batch": "4"}, 'run.json: batch: "4": it must be a whole number'),
                              ({"batch": 1.5}, "run.json: batch: 1.5: it must be a whole number"),
                              ({"lr": "x"}, 'run.json: lr: "x": it must be a number'),
                              ({"pack": 1}, "run.json: pack: 1: it must be true or false"),
                              ({"eval": {}}, "it must be a text"),
                              ({"data": [1.5, {}]}, "it must be a text, or an array of texts"),
                              ({"memory": True}, 'run.json: memory: true: it must be a size like "1.5GiB"'),
                              ({"save": []}, "run.json: save: []: it must be a text"),
                              ({"batch": 0}, "--config run.json: --batch 0: it must be at least 1"),
                              ({"memory": "2X"}, '--config run.json: --memory 2X: "2X" is not a size'),
                              ({"preset": "huge"}, "--config run.json: --preset huge: it must be one of gpt2"),
                              ({"checkpoint": "most"}, "--config run.json: --checkpoint most: it must be one of none"),
                              ({"given": "batch"}, "run.json: given: it must be an array of names"),
                              ({"given": ["bach"]}, "run.json: bach: train_gpt has no such option"),
                              ("[1, 2]", "--config run.json: it must be a file with a JSON object of options: "),
                              ("{\"a\"", "--config run.json: it must be a file with a JSON object of options: "),
                              ("", "--config run.json: it must be a file with a JSON object of options: "),
                              ("[" * 5000, "--config run.json: it must be a file with a JSON object of options: ")):
            with self.subTest(content=str(content)[:80]):
                self.write("run.json", content)
                done = self.run_program("train_gpt", "--config", "run.json",
                                        *([] if "data" in content else ["--data", "text.txt"]))
                self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done.stderr)
                self.assertIn(said, done.stderr)
        done = self.run_program("train_gpt", "--config", "none.json")
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1))
        self.assertIn("--config none.json: ", done.stderr)


class Terminals(ProgramsTest):
    def test_the_progress_line_fits_and_rewrites_itself(self):
        for columns in (40, 80, 200):
            with self.subTest(columns=columns):
                status, text = self.run_on_terminal(columns, "train_gpt", *SMALL, "--steps", 30)
                self.assertEqual(status, 0)
                lines = [ESCAPE.sub("", line).rstrip("\n") for line in re.findall(r"\r([^\r\n]*)", text)]
                self.assertGreaterEqual(len(lines), 2, text)
                for line in lines:
                    self.assertLess(len(line), columns)
                    self.assertRegex(line, r"^(step )? *\d+/30 +loss \d+\.\d{4}")
                self.assertRegex(lines[-1], r"30/30")
                self.assertEqual("optimizer" in lines[-1], columns == 200)
                self.assertEqual("MiB" in lines[-1], columns > 40)
                self.assertEqual(text.count("\033[K"), len(lines))

    def test_colours_are_for_terminals_that_want_them(self):
        words = ["train_gpt", *SMALL, "--steps", 2]
        self.assertRegex(self.run_on_terminal(80, *words)[1], COLOUR)
        for more in {"NO_COLOR": "1"}, {"TERM": "dumb"}:
            with self.subTest(environment=more):
                text = self.run_on_terminal(80, *words, **more)[1]
                self.assertIsNone(COLOUR.search(text))
                self.assertEqual("\033" in text, "NO_COLOR" in more)    # that line still rewrites itself
                self.assertNotIn("\033", self.run_on_terminal(80, "train_gpt", "--help", **more)[1])
                self.assertNotIn("\033", self.run_on_terminal(80, "train_gpt", "--none", **more)[1])
        self.assertRegex(self.run_on_terminal(80, *words, NO_COLOR="")[1], COLOUR)
        self.assertRegex(self.run_on_terminal(80, "train_gpt", "--help")[1], COLOUR)
        self.assertRegex(self.run_on_terminal(80, "train_gpt", "--none")[1], r"^\033\[1;31mtrain_gpt:\033\[0m ")
        self.assertNotIn("\033", self.run_on_terminal(0, "train_gpt", "--help")[1])    # as mpirun gives its ranks

    def test_a_log_has_plain_lines(self):
        done = self.run_program("train_gpt", *SMALL, "--steps", 20)
        self.assertNotRegex(done.stdout + done.stderr, r"[\r\033]")
        self.assertEqual(len(re.findall(r"^step +\d+/20  loss \d+\.\d{4}  \d+ tokens/s  \d+:\d\d left  MiB: parameters "
                                        r"[\d.]+ gradients .* peak [\d.]+$", done.stdout, re.MULTILINE)), 11)

    def test_a_terminal_shows_that_kernels_are_timed(self):
        """Not again where their times are known. Other programs don't disturb the times of sim."""
        words = ["train_gpt", *SMALL, "--layers", "1", "--device", "sim", "--estimate"]
        first, again = (self.run_on_terminal(60, *words)[1] for _ in range(2))
        counts = re.findall(r"\rTiming kernels, once on this machine: (\d+) of (\d+)\033\[K", first)
        self.assertGreater(len(counts), 10, first)
        self.assertEqual((counts[0][0], counts[1][0]), ("0", "1"))
        self.assertIn("\r\033[KA step needs", first)
        self.assertTrue(again.startswith("A step needs"), again)
        self.assertIn("\rTiming kernels, once \033[K", self.run_on_terminal(22, *words, EBB_COST_FILE="")[1])
        self.assertEqual(self.run_on_terminal(60, *words, "--quiet", EBB_COST_FILE="")[1], "")

    def test_help_fits_any_terminal(self):
        for columns, most in ((40, 40), (60, 60), (80, 80), (200, 100)):
            for option in "--help", "--help-all":
                with self.subTest(columns=columns, option=option):
                    lines = ESCAPE.sub("", self.run_on_terminal(columns, "finetune", option)[1]).splitlines()
                    wide = [line for line in lines if len(line) > most and " " in line.strip()]
                    self.assertEqual(wide, [])
                    self.assertGreater(max(map(len, lines)), most - 20)


if __name__ == "__main__":
    if not os.access(os.path.join(BUILD, "examples", "train_gpt"), os.X_OK):
        print(f"{BUILD}/examples/train_gpt is not there")
        sys.exit(77)
    unittest.main(verbosity=2)
