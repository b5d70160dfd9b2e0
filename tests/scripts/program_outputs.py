#!/usr/bin/env python3
"""What the programs write: files and folders with the longest names."""
import os
import shutil
import subprocess
import tempfile
import unittest

BUILD = os.path.abspath(os.environ.get("EBB_BUILD_DIR", "build/release"))
MODEL = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "fixtures", "chat-model")
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


if __name__ == "__main__":
    unittest.main()
