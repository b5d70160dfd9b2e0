#!/usr/bin/env python3
"""generate: texts and answers that transformers gives, its sources of prompts, a conversation, reports, bad input."""
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
PROGRAM = os.path.join(os.environ.get("EBB_BUILD_DIR", "build/release"), "examples", "generate")
MODEL = os.path.join(ROOT, "tests", "fixtures", "chat-model")
with open(os.path.join(MODEL, "expected.json"), encoding="utf-8") as _file:
    EXPECTED = json.load(_file)
TEXT = EXPECTED["texts"][0]


def run(*words, text=None):
    return subprocess.run([PROGRAM, *map(str, words)], input=text, capture_output=True, text=True, encoding="utf-8",
                          errors="surrogateescape", timeout=60, check=False)


class Generate(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ebb-generate-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name, text=None):
        path = os.path.join(self.folder, name)
        if text is not None:
            with open(path, "wb") as file:
                file.write(text if isinstance(text, bytes) else text.encode())
        return path

    def generate(self, *words, text=None):
        """Runs it with a report; what it printed and the report."""
        report = self.path("report.json")
        done = run("--model", MODEL, "--tokens", 24, "--threads", 1, "--report", report, *words, text=text)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        with open(report, encoding="utf-8") as file:
            return done.stdout, json.load(file)

    def test_texts_are_those_of_transformers(self):
        for expected in EXPECTED["texts"]:
            for more in ([], ["--no-cache"]):
                printed, report = self.generate("--prompt", expected["text_before"], *more)
                self.assertEqual(report["rows"][0]["tokens"], expected["tokens"])
                self.assertEqual(report["rows"][0]["text"], expected["text"])
                self.assertEqual(report["prompt_tokens"], len(expected["prompt"]))
                self.assertEqual(report["cache_bytes"] == 0, bool(more))
                self.assertTrue(printed.startswith(expected["text_before"]))
        _, report = self.generate("--prompt", TEXT["text_before"], "--repetition-penalty", 1.3)
        self.assertEqual(report["rows"][0]["tokens"], EXPECTED["penalized"]["tokens"])

    def test_a_gguf_file_gives_the_same_texts(self):
        """Its weights are F16, which moves logits by less than the likeliest tokens are apart."""
        path = os.path.join(ROOT, "tests", "fixtures", "gguf", "chat-model.gguf")
        for words, expected in ((("--prompt", TEXT["text_before"]), TEXT), (("--chat", EXPECTED["question"]), None)):
            done = run("--model", path, "--tokens", 24, "--threads", 1, *words)
            folder = run("--model", MODEL, "--tokens", 24, "--threads", 1, *words)
            self.assertEqual((done.returncode, done.stdout), (0, folder.stdout))
            self.assertIn("weights are F16", done.stderr)
            self.assertTrue(expected is None or expected["text"] in done.stdout)

    def test_prompts_come_from_many_places(self):
        prompt = TEXT["text_before"]
        wanted, _ = self.generate("--prompt", prompt)
        for words, text in (([prompt], None), (["--file", self.path("p.txt", prompt)], None), ([], prompt)):
            self.assertEqual(self.generate(*words, text=text)[0], wanted)

    def test_prompts_come_through_pipes_that_end(self):
        prompt = TEXT["text_before"]
        wanted, _ = self.generate("--prompt", prompt)
        words = [PROGRAM, prompt, "--model", MODEL, "--tokens", "24", "--threads", "1"]
        for script in '"$0" --file <(printf %s "$1") "${@:2}"', '"$0" --batch <(printf "%s\\n" "$1") "${@:2}"':
            done = subprocess.run(["bash", "-c", script, *words], capture_output=True, text=True, timeout=60,
                                  check=False)
            self.assertEqual((done.returncode, done.stdout.rstrip("\n"), done.stderr), (0, wanted.rstrip("\n"), ""))
        for words, text, said in ((["--file", "/dev/zero"], None, "--file: /dev/zero: more than 268435456 bytes: it "),
                                  (["--file", self.path("none")], None, f"--file: can't read {self.path('none')}: "),
                                  (["--batch", self.path("0.txt", "a\0b")], None, "0.txt: it is not text, it has a "),
                                  ([], "a\0b", "generate: standard input: it is not text, it has a byte 0\n"),
                                  (["--chat"], "\0", "generate: standard input: it is not text, it has a byte 0\n"),
                                  (["--chat"], "a\0b\n", "generate: standard input: it is not text, it has a ")):
            done = run("--model", MODEL, *words, text=text)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1), done.stderr)
            self.assertIn(said, done.stderr)

    def test_lines_of_a_conversation_end(self):
        """A device has no end of a line."""
        with open("/dev/zero", "rb") as file:
            done = subprocess.run([PROGRAM, "--model", MODEL, "--chat"], stdin=file, capture_output=True, text=True,
                                  timeout=30, check=False)
        self.assertEqual((done.returncode, done.stderr),
                         (1, "generate: standard input: it is not text, it has a byte 0\n"))

    def test_a_batch_gives_the_texts_of_each(self):
        prompts = [expected["text_before"] for expected in EXPECTED["texts"] if "\n" not in expected["text_before"]]
        printed, report = self.generate("--batch", self.path("lines.txt", "\n".join(prompts) + "\n"))
        wanted = [expected["tokens"] for expected in EXPECTED["texts"] if "\n" not in expected["text_before"]]
        self.assertEqual([row["tokens"] for row in report["rows"]], wanted)
        self.assertEqual([row["prompt"] for row in report["rows"]], prompts)
        self.assertEqual(printed.count(prompts[0]), 1)

    def test_batches_may_have_any_line_ends(self):
        prompts = [expected["text_before"] for expected in EXPECTED["texts"] if "\n" not in expected["text_before"]]
        _, report = self.generate("--batch", self.path("lines.txt", "\r\n".join(prompts) + "\r\n\r\n"))
        self.assertEqual([row["prompt"] for row in report["rows"]], prompts)

    def test_the_end_of_positions_is_said(self):
        done = run("--model", MODEL, "--tokens", 400, "--prompt", TEXT["text_before"], "--threads", 1)
        self.assertEqual((done.returncode, done.stderr),
                         (0, "generate: the text ends here: the model has 192 positions\n"))
        done = run("--model", MODEL, "--prompt", "a" * 400)
        self.assertEqual(done.stdout, "")

    def test_an_unknown_command_is_named(self):
        done = run("--model", MODEL, "--chat", text="/rest\n/quit\n")
        self.assertEqual((done.stdout, done.stderr), ("", "generate: there is no /rest: there are /reset and /quit\n"))

    def test_an_answer_is_that_of_transformers(self):
        words = ["--chat", "--system", EXPECTED["system"], EXPECTED["question"]]
        printed, report = self.generate(*words)
        self.assertEqual(report["rows"][0]["tokens"], EXPECTED["answer"]["tokens"])
        self.assertEqual(report["prompt_tokens"], len(EXPECTED["answer"]["prompt"]))
        self.assertNotIn(EXPECTED["question"], printed)

    def test_a_conversation_has_a_history(self):
        lines = [EXPECTED["question"], "And then?", "/reset", EXPECTED["question"], "/quit", "not read"]
        _, report = self.generate("--chat", "--system", EXPECTED["system"], text="\n".join(lines) + "\n")
        first, second, again = (row["tokens"] for row in report["rows"])
        self.assertEqual(first, EXPECTED["answer"]["tokens"])
        self.assertEqual(again, first)
        self.assertNotEqual(second, first)
        _, longest = self.generate("--chat", "--system", EXPECTED["system"], text="\n".join(lines[:2]) + "\n")
        self.assertEqual(report["cache_bytes"], longest["cache_bytes"])

    def test_ctrl_c_stops_an_answer_and_not_the_program(self):
        pid, terminal = pty.fork()
        if pid == 0:
            os.execv(PROGRAM, [PROGRAM, "--model", MODEL, "--chat", "--tokens", "100000", "--threads", "1"])
        self.addCleanup(os.close, terminal)

        seen = bytearray()

        def read_until(text, seconds=30):
            end = time.monotonic() + seconds
            while text not in seen:
                self.assertTrue(select.select([terminal], [], [], max(0, end - time.monotonic()))[0], seen)
                seen.extend(os.read(terminal, 4096))
            del seen[:seen.index(text) + len(text)]

        read_until(b"/reset begins a new conversation, /quit ends it, Ctrl-C stops an answer\r\n> ")
        os.kill(pid, signal.SIGINT)
        read_until(b"/quit ends the conversation")
        read_until(b"> ")
        os.write(terminal, b"Hello\n")
        read_until(b"\n> ")
        os.write(terminal, b"/quit\n")
        status = os.waitpid(pid, 0)[1]
        self.assertEqual(os.waitstatus_to_exitcode(status), 0)

    def test_a_switch_that_the_template_lacks_is_named(self):
        done = run("--model", MODEL, "--threads", 1, "--tokens", 400, "--no-thinking", "--chat", EXPECTED["question"])
        self.assertEqual((done.returncode, done.stderr),
                         (0, "generate: --no-thinking changes nothing: the chat template ChatML has no such switch\n"
                             "generate: the text ends here: the model has 192 positions\n"))

    def test_a_report_has_control_characters(self):
        prompt = f"a{''.join(map(chr, [*range(1, 32), 127]))}b"
        self.assertEqual(self.generate("--prompt", prompt)[1]["rows"][0]["prompt"], prompt)

    def test_stop_texts_end_the_text(self):
        stop = TEXT["text"][-3:]
        printed, report = self.generate("--prompt", TEXT["text_before"], "--stop", "never", "--stop", stop)
        self.assertEqual(report["rows"][0]["end"], "string")
        self.assertEqual(report["rows"][0]["text"], TEXT["text"].split(stop)[0])
        self.assertEqual(printed, TEXT["text_before"] + report["rows"][0]["text"] + "\n")

    def test_a_text_has_the_least_tokens_that_are_asked_for(self):
        folder = self.path("model")
        shutil.copytree(MODEL, folder)
        with open(os.path.join(folder, "generation_config.json"), "w", encoding="utf-8") as file:
            json.dump({"eos_token_id": TEXT["tokens"][2]}, file)
        for more, least in ([], 3), (["--min-tokens", 9], 9):
            report = self.path("report.json")
            done = run("--model", folder, "--tokens", 24, "--threads", 1, "--report", report, "--prompt",
                       TEXT["text_before"], *more)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            with open(report, encoding="utf-8") as file:
                tokens = json.load(file)["rows"][0]["tokens"]
            self.assertGreaterEqual(len(tokens), least)
            self.assertEqual(tokens == TEXT["tokens"][:3], not more)

    def test_the_speed_is_that_of_the_tokens_after_the_first_ones(self):
        _, report = self.generate("--batch", self.path("lines.txt", "a\nb c\n"))
        self.assertEqual(report["tokens"], sum(len(row["tokens"]) for row in report["rows"]))
        self.assertAlmostEqual(report["tokens_per_second"] * report["token_seconds"], report["tokens"] - 2, delta=1e-6)

    def test_each_choice_of_tokens_has_an_effect(self):
        words = ["--prompt", TEXT["text_before"], "--temperature", 2]
        for more in ["--top-k", 1], ["--top-p", 1e-9], ["--min-p", 1], ["--temperature", 0]:
            self.assertEqual(self.generate(*words, *more)[1]["rows"][0]["tokens"], TEXT["tokens"], more)
        drawn = self.generate(*words)[1]["rows"][0]["tokens"]
        self.assertNotEqual(drawn, TEXT["tokens"])
        self.assertLess(len(set(TEXT["tokens"])), len(TEXT["tokens"]))
        different = self.generate(*words[:2], "--no-repeat-ngram", 1)[1]["rows"][0]["tokens"]
        self.assertEqual(len(set(different)), len(different))

    def test_the_seed_makes_the_text(self):
        def text(seed):
            return self.generate("--prompt", "x", "--temperature", 1, "--top-k", 50, "--top-p", 0.95, "--seed", seed)[0]

        self.assertEqual(text(1), text(1))
        self.assertNotEqual(text(1), text(2))

    def test_help_and_version(self):
        done = run("--help-all")
        self.assertEqual(done.returncode, 0)
        self.assertLessEqual(max(map(len, done.stdout.splitlines())), 80)
        for option in ("model prompt file batch chat tokens temperature top-k top-p repetition-penalty stop "
                       "seed").split():
            self.assertIn(f"--{option}", done.stdout)
        self.assertIn("generate (Ebb)", run("--version").stdout)

    def test_bad_input_is_one_line(self):
        damaged = self.path("damaged")
        shutil.copytree(MODEL, damaged)
        with open(os.path.join(damaged, "tokenizer_config.json"), "w", encoding="utf-8") as file:
            file.write('{"chat_template": "### {{ messages }}"}')
        pointer = self.path("pointer")
        shutil.copytree(MODEL, pointer)
        with open(os.path.join(pointer, "model.safetensors"), "w", encoding="utf-8") as file:
            file.write("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 8\n")
        adapter = os.path.join(ROOT, "tests", "fixtures", "lora", "gpt2")
        bare = self.path("bare")
        shutil.copy(os.path.join(MODEL, "model.safetensors"), bare)
        os.mkdir(self.path("tuned"))
        self.path("tuned/adapter_config.json", '{"peft_type": "LORA", "base_model_name_or_path": null}')
        prompt = ("--prompt", "x")
        cases = [(2, (), "--model is missing"),
                 (2, ("--model", MODEL, *prompt, "--file", "f"), "--prompt and --file: give one of them"),
                 (2, ("--model", MODEL, *prompt, "--top-p", "2"), "--top-p 2: it must be from 0 to 1"),
                 (2, ("--model", MODEL, *prompt, "--temperature", "-1"), "--temperature -1: it must be 0 or more"),
                 (2, ("--model", MODEL, *prompt, "--repetition-penalty", "0"), "--repetition-penalty 0: it"),
                 (2, ("--model", MODEL, *prompt, "--tokens", "0"), "--tokens 0: it must be at least 1"),
                 (2, ("--model", MODEL, *prompt, "--stop", ""), "--stop"),
                 (2, ("--model", MODEL, *prompt, "--device", "abacus"), "--device abacus"),
                 (2, ("--model", MODEL, *prompt, "--system", "x"), "--system: it needs --chat"),
                 (2, ("--model", MODEL, "--batch", "f", "--chat"), "--batch and --chat"),
                 (1, ("--model", self.path("none"), *prompt), "generate: there is no folder "),
                 (1, ("--model", os.path.join(MODEL, "model.safetensors"), *prompt), "model.safetensors --sample 200 "),
                 (1, ("--model", bare, *prompt), f"train_gpt --load {bare} --steps 0 --save DIR/ makes one"),
                 (1, ("--model", adapter, *prompt), f"this is an adapter: --model models/gpt2 --adapter {adapter}\n"),
                 (1, ("--model", self.path("tuned"), *prompt),
                  f"this is an adapter: --model BASE --adapter {self.path('tuned')}\n"),
                 (1, ("--model", pointer, *prompt), "model.safetensors: it is a pointer of Git LFS"),
                 (1, ("--model", MODEL, "--prompt", ""), "the prompt is empty"),
                 (1, ("--model", MODEL, "--prompt", "a" * 400),
                  "generate: the prompt has 400 tokens, more than the model's 192 positions"),
                 (1, ("--model", MODEL, "--prompt", b"\xff"), "the prompt is not UTF-8"),
                 (1, ("--model", MODEL, "--file", self.path("missing")), "missing"),
                 (1, ("--model", MODEL, "--file", self.path("zero", b"a\0b")), "it is not text"),
                 (1, ("--model", MODEL, "--batch", self.path("empty", "")), "the file is empty"),
                 (1, ("--model", MODEL, "--batch", self.path("gap", "a\n\nb\n")), "gap, line 2 is empty"),
                 (1, ("--model", MODEL, *prompt, "--report", self.path("no/where")), "can't write in the folder"),
                 (1, ("--model", MODEL, *prompt, "--report", self.folder), "it is a folder"),
                 (1, ("--model", damaged, "--chat", "x"), 'it writes "### {messages}"'),
                 (1, ("--model", os.path.join(ROOT, "tests/fixtures/models/bert"), *prompt), "bert")]
        for status, words, says in cases:
            with self.subTest(words=words):
                done = subprocess.run([PROGRAM, *words], capture_output=True, timeout=60, check=False,
                                      stdin=subprocess.DEVNULL)
                message = done.stderr.decode(errors="replace")
                self.assertEqual(done.returncode, status, message)
                self.assertIn(says, message)
                self.assertEqual(message.count("\n"), 1, message)


if __name__ == "__main__":
    unittest.main()
