#!/usr/bin/env python3
"""What train_gpt and fsdp_gpt are given to train on: held-out data changes no bit and finds the best weights; documents
of JSON lines are packed, resumed and divided among ranks.
"""
import bz2
import gzip
import json
import lzma
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "support"))
from gpt2_folder import write_gpt2_folder  # noqa: E402

BUILD = os.environ.get("EBB_BUILD_DIR", "build/release")
MODEL = ["--layers", "2", "--width", "32", "--heads", "2", "--context", "32", "--batch", "3", "--dropout", "0.1",
         "--lr", "1e-2", "--threads", "1"]
CHAT_MODEL = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "fixtures", "chat-model")
EVEN = ["--dropout", "0", "--batch", "4"]


class DataTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ebb-train-data-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.write("text.txt", "".join(f"Line {n} of {n * n}: the quick brown fox, naïvely.\n" for n in range(300)))
        self.write("held.txt", "".join(f"Line {n}: a slow brown fox.\n" for n in range(20)))
        self.write_lines("docs.jsonl", [{"text": f"Document {n}. " + "abc " * (n % 12)} for n in range(80)])
        self.write_lines("sums.jsonl", [{"prompt": f"{n} + {n} =", "completion": f" {2 * n}."} for n in range(90)])

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def write_lines(self, name, lines):
        self.write(name, "".join(json.dumps(line) + "\n" for line in lines))

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def run_program(self, *words, program="train_gpt"):
        return subprocess.run([os.path.join(BUILD, "examples", program), *map(str, words)], cwd=self.folder,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=200, check=False, text=True)

    def train(self, *words, program="train_gpt"):
        done = self.run_program(*MODEL, "--quiet", "--report", "report.json", *words, program=program)
        self.assertEqual((done.returncode, done.stderr, done.stdout), (0, "", ""))
        return json.loads(self.read("report.json"))

    def assert_alike(self, one, other):
        """Two trainings have the same losses, but for rounding."""
        for key in "losses", "evaluations":
            for mine, others in zip(one[key], other[key], strict=True):
                if key == "evaluations":
                    mine, others = mine["loss"], others["loss"]
                self.assertAlmostEqual(mine, others, delta=1e-5)

    def refuse(self, message, *words, status=2):
        done = self.run_program(*MODEL, *words)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1)
        self.assertIn(message, done.stderr)


class HeldOut(DataTest):
    def test_measuring_changes_no_bit(self):
        words = ["--data", "text.txt", "--steps", 12, "--checkpoint", "full"]
        plain = self.train(*words, "--save", "plain")
        held = self.train(*words, "--eval", "held.txt", "--eval-every", 5, "--save", "held")
        self.assertEqual(plain["losses"], held["losses"])
        self.assertEqual(self.read("plain"), self.read("held"))
        self.assertEqual([one["step"] for one in held["evaluations"]], [5, 10, 12])
        for one in held["evaluations"]:
            self.assertAlmostEqual(one["perplexity"], math.exp(one["loss"]))

    def test_the_best_weights_are_kept(self):
        """They are those of the reported step, also where the training was resumed in between."""
        words = ["--data", "text.txt", "--eval", 0.1, "--eval-every", 4, "--save-best", "best"]
        whole = self.train(*words, "--steps", 16)
        best = self.read("best")
        self.assertEqual(whole["best_loss"], min(one["loss"] for one in whole["evaluations"]))
        os.remove(self.path("best"))
        self.train(*words, "--steps", 8, "--resume", "state")
        rest = self.train("--data", "text.txt", "--save-best", "best", "--steps", 16, "--resume", "state")
        self.assertEqual(rest["evaluations"], whole["evaluations"][2:])
        self.assertEqual((rest["best_loss"], rest["best_step"]), (whole["best_loss"], whole["best_step"]))
        self.assertEqual(self.read("best"), best)

    def test_weights_are_measured_without_a_step(self):
        trained = self.train("--data", "text.txt", "--steps", 6, "--eval", "held.txt", "--save-best", "best")
        measured = self.train("--load", "best", "--steps", 0, "--eval", "held.txt")
        self.assertEqual(measured["evaluations"][0]["loss"], trained["evaluations"][-1]["loss"])
        for batch in 1, 5, 40:  # each row counts once, however many are left for the last batch
            again = self.train("--load", "best", "--steps", 0, "--eval", "held.txt", "--batch", batch)
            self.assertAlmostEqual(again["evaluations"][0]["loss"], measured["evaluations"][0]["loss"], delta=1e-5)

    def test_ranks_measure_the_same(self):
        words = ["--data", "text.txt", "--steps", 6, "--eval", "held.txt", "--eval-every", 3, *EVEN]
        one = self.train(*words)
        for more in ["--ranks", 2], ["--ranks", 3, "--shard", "none"], ["--ranks", 2, "--tensor-parallel", 2]:
            many = self.train(*words, *more, program="fsdp_gpt")
            for mine, other in zip(one["evaluations"], many["evaluations"], strict=True):
                self.assertAlmostEqual(mine["loss"], other["loss"], delta=2e-6)

    def test_a_loss_that_is_no_number_is_reported_and_never_the_best(self):
        done = self.run_program(*MODEL, "--data", "text.txt", "--eval", "held.txt", "--steps", 1, "--lr", 1e38,
                                "--save-best", "best", "--report", "report.json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("Held out, after step 1: loss nan, perplexity nan\n", done.stdout)
        self.assertNotIn("Best weights", done.stdout)
        self.assertEqual(json.loads(self.read("report.json"))["evaluations"],
                         [{"step": 1, "loss": None, "perplexity": None}])
        self.assertFalse(os.path.exists(self.path("best")))
        self.refuse("the loss of step 2 is nan: a smaller --lr", "--data", "text.txt", "--steps", 2, "--lr", 1e38,
                    status=1)

    def test_the_end_names_the_files(self):
        done = self.run_program(*MODEL, "--data", "text.txt", "--eval", "held.txt", "--steps", 1, "--save", "last",
                                "--save-best", "best")
        self.assertIn("Weights: last\nBest weights, of step 1: best\n", done.stdout)

    def test_what_does_not_fit_is_refused(self):
        text = ["--data", "text.txt"]
        self.refuse("--eval 1.5: a share of the text must be more than 0 and less than 1", *text, "--eval", 1.5)
        self.refuse("--eval: a file or a share of the text is missing", *text, "--eval", "")
        self.refuse("--eval-every 3: it needs --eval", *text, "--eval-every", 3)
        self.refuse("--save-best best: it needs --eval", *text, "--save-best", "best")
        self.refuse("--save and --save-best both name x", *text, "--eval", "held.txt", "--save", "x",
                    "--save-best", "x")
        self.refuse("--eval 0.1: without --data", "--steps", 0, "--eval", 0.1)
        self.refuse("--eval 0.001: text.txt: 15 tokens are too few", *text, "--eval", 0.001, status=1)
        self.refuse("absent.txt: No such file", *text, "--eval", "absent.txt", status=1)
        self.refuse("--eval docs.jsonl: it must be text, as --data text.txt is", *text, "--eval", "docs.jsonl")
        self.refuse("--data text.txt and docs.jsonl: one is text and one JSON lines", *text, "docs.jsonl")


class Documents(DataTest):
    def test_resumed_and_checkpointed_training_equals_straight_training(self):
        for data in "docs.jsonl", "sums.jsonl":
            words = ["--data", data, "--eval", 0.1, "--accumulate", 2]
            straight = self.train(*words, "--steps", 20, "--save", "straight")
            self.assertLess(straight["losses"][-1], straight["losses"][0])
            begun = self.train(*words, "--steps", 9, "--resume", "state-" + data)
            rest = self.train("--data", data, "--steps", 20, "--resume", "state-" + data, "--save", "rest",
                              "--checkpoint", "full")
            self.assertEqual(begun["losses"] + rest["losses"], straight["losses"])
            self.assertEqual(self.read("straight"), self.read("rest"))
            self.assertEqual(rest["evaluations"], straight["evaluations"])

    def test_ranks_share_the_rows(self):
        """Each rank's loss counts by the tokens that it predicts, of which rows have different numbers."""
        words = ["--data", "sums.jsonl", "--steps", 8, *EVEN]
        one = self.train(*words)
        for more in ["--ranks", 2], ["--ranks", 3, "--shard", "none"], ["--ranks", 2, "--tensor-parallel", 2]:
            many = self.train(*words, *more, program="fsdp_gpt")
            for mine, other in zip(one["losses"], many["losses"], strict=True):
                self.assertAlmostEqual(mine, other, delta=1e-5)

    def test_a_batch_in_parts_learns_the_same(self):
        """Each part's loss counts by the tokens that it predicts, whatever divides a step; so does held-out data."""
        self.write_lines("uneven.jsonl", [{"prompt": "a" * (31 - n % 30), "completion": "b" * (1 + n % 30)}
                                          for n in range(60)])
        words = ["--data", "uneven.jsonl", "--steps", 6, "--eval", 0.2, *EVEN]
        whole = self.train(*words)
        for program, more in (("train_gpt", ["--micro-batch", 1]), ("train_gpt", ["--batch", 1, "--accumulate", 4]),
                              ("fsdp_gpt", ["--ranks", 2, "--micro-batch", 1]),
                              ("fsdp_gpt", ["--ranks", 2, "--batch", 2, "--accumulate", 2]),
                              ("fsdp_gpt", ["--ranks", 2, "--shard", "none", "--reduce", "batch", "--batch", 1,
                                            "--accumulate", 4])):
            with self.subTest(more=more):
                self.assert_alike(whole, self.train(*words, *more, program=program))

    def test_files_are_packed_if_asked(self):
        """With --pack a text is a document, so a window doesn't reach from one file into the next."""
        words = ["--data", "text.txt", "held.txt", "--steps", 2]
        self.assertNotEqual(self.train(*words)["losses"], self.train(*words, "--pack")["losses"])
        self.train("--data", "docs.jsonl", "text.txt", "--pack", "--steps", 1)

    def test_bad_lines_are_named(self):
        for name, text, message in [("open.jsonl", '{"text": "a"}\n{"text": "b',
                                     "line 2: byte 11: a string without end"),
                                    ("mixed.jsonl", '{"text": "a"}\n{"prompt": "b", "completion": "c"}\n',
                                     "line 2: prompt and completion, but the lines before it have text"),
                                    ("chat.jsonl", '{"messages": [{"role": "user", "content": "a"}]}\n',
                                     "line 1: messages need a tokenizer with a chat template; name a "
                                     "folder with one by --tokenizer DIR, or write rows with prompt and completion"),
                                    ("none.jsonl", "\n", "none.jsonl is empty: there is nothing to train on")]:
            self.write(name, text)
            self.refuse(message, "--data", name, status=1)
        self.refuse("line 2", "--data", "docs.jsonl", "--eval", "mixed.jsonl", status=1)

    def test_names_of_json_lines_may_have_capitals(self):
        shutil.copy(self.path("docs.jsonl"), self.path("DOCS.JSONL"))
        words = ["--steps", 2, "--eval", 0.1]
        self.assertEqual(self.train("--data", "DOCS.JSONL", *words)["losses"],
                         self.train("--data", "docs.jsonl", *words)["losses"])

    def test_json_is_not_trained_on_as_text(self):
        lines = self.read("docs.jsonl").decode()
        self.write("array.json", "[\n" + ",\n".join(lines.splitlines()) + "]\n")
        self.write("object.JSON", json.dumps({"documents": lines}, indent=1))
        for name in "lines.json", "lines.txt":
            self.write(name, "\n" + lines)
            self.refuse(f"--data {name}: it has JSON lines: give it a name that ends in .jsonl", "--data", name)
        self.refuse("--data array.json: it is one JSON array, which is not trained on: write an object with text",
                    "--data", "text.txt", "array.json")
        self.refuse("--data object.JSON: it is one JSON object", "--data", "object.JSON", "--pack")
        self.refuse("--eval lines.txt: it has JSON lines", "--data", "text.txt", "--eval", "lines.txt")
        self.write("braces.txt", '{"name": 1}\n' + "{ a text with braces }\n" * 50)
        self.train("--data", "braces.txt", "--steps", 1)

    def test_other_formats_are_refused_by_their_content(self):
        lines = self.read("docs.jsonl")
        files = {"docs.jsonl.gz": (gzip.compress(lines), "it is compressed by gzip: unpack it first"),
                 "gz.jsonl": (gzip.compress(lines), "it is compressed by gzip: unpack it first"),
                 "docs.xz": (lzma.compress(lines), "it is compressed by xz: unpack it first"),
                 "docs.bz2": (bz2.compress(lines), "it is compressed by bzip2: unpack it first"),
                 "a.docx": (b"PK\3\4" + bytes(99), "it is a ZIP archive"),
                 "book.txt": (b"%PDF-1.7\n" + lines, "it is a PDF file: text and JSON lines are trained on"),
                 "sixteen.txt": ("Ebb".encode("utf-16") * 99, "it is text in UTF-16: convert it to UTF-8"),
                 "random": (random.Random(1).randbytes(5000), "it is binary data, or text in another encoding"),
                 "zeros": (bytes(5000), "it is binary data, or text in another encoding")}
        for name, (data, message) in files.items():
            with open(self.path(name), "wb") as file:
                file.write(data)
            self.refuse(f"--data {name}: {message}", "--data", name)
            if not name.endswith(".jsonl"):
                self.refuse(f"--eval {name}: {message}", "--data", "text.txt", "--eval", name)
        self.refuse("--data random: it is binary data", "--data", "text.txt", "random", "--pack")
        self.write("letters.txt", "BZh is no word, and PAR1 is none. " * 50)
        self.train("--data", "letters.txt", "--steps", 1)
        self.write("colors.txt", "\033[1mÜber\033[0m\tдень 海\r\n\f" * 90)
        self.train("--data", "colors.txt", "--steps", 1)

    def test_another_held_out_share_is_another_text(self):
        self.train("--data", "docs.jsonl", "--eval", 0.1, "--steps", 2, "--resume", "state")
        self.refuse("go on with the text it was saved with", "--data", "docs.jsonl", "--eval", 0.2, "--steps", 4,
                    "--resume", "state", status=1)


class Bert(DataTest):
    def train(self, *words, program="train_bert"):
        return super().train("--data", "text.txt", *words, program=program)

    def test_resumed_checkpointed_and_stored_training_equals_straight_training(self):
        words = ["--eval", 0.1, "--accumulate", 2]
        straight = self.train(*words, "--steps", 20, "--save", "straight")
        self.assertLess(straight["losses"][-1], straight["losses"][0])
        begun = self.train(*words, "--steps", 9, "--resume", "state")
        rest = self.train("--steps", 20, "--resume", "state", "--save", "rest", "--checkpoint", "full",
                          "--store", "disk")
        self.assertEqual(begun["losses"] + rest["losses"], straight["losses"])
        self.assertEqual(self.read("straight"), self.read("rest"))
        self.assertEqual(rest["evaluations"], straight["evaluations"])

    def test_a_batch_in_parts_learns_the_same(self):
        """Rows have different numbers of masked tokens: special tokens are never masked, some rows have no other."""
        self.write("special.txt", "<|im_end|>" * 90 + "the sea is wide " * 40 + "<|im_start|>a day" * 40)
        words = ["--data", "special.txt", "--tokenizer", CHAT_MODEL, "--steps", 3, *EVEN]
        whole = self.train(*words, "--batch", 8)
        for more in (["--batch", 8, "--micro-batch", 1], ["--batch", 1, "--accumulate", 8],
                     ["--batch", 2, "--accumulate", 4, "--tensor-parallel", 2]):
            with self.subTest(more=more):
                self.assert_alike(whole, self.train(*words, *more))
        for more in [], ["--tensor-parallel", 2]:
            done = self.run_program(*MODEL, *words, "--batch", 1, "--steps", 20, *more, program="train_bert")
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
            self.assertIn(" have no token to predict", done.stderr)

    def test_checkpointing_saves_activations(self):
        words = ["--steps", 3, "--layers", 4, "--width", 64, "--batch", 8]
        none, selective, full = (self.train(*words, "--checkpoint", way) for way in ("none", "selective", "full"))
        self.assertEqual(none["losses"], selective["losses"])
        self.assertEqual(none["losses"], full["losses"])
        self.assertLess(full["activation_bytes_peak"], selective["activation_bytes_peak"])
        self.assertLess(selective["activation_bytes_peak"], none["activation_bytes_peak"])

    def test_saved_weights_are_loaded(self):
        trained = self.train("--steps", 5, "--eval", 0.1, "--save", "weights")
        again = self.train("--steps", 0, "--eval", 0.1, "--load", "weights")
        self.assertEqual(again["evaluations"][0]["loss"], trained["evaluations"][-1]["loss"])

    def test_the_configuration_beside_the_weights_is_used(self):
        """Shapes of weights tell nothing of heads."""
        def run(*words):
            return self.run_program("--data", "text.txt", "--eval", 0.1, "--batch", 3, "--threads", 1, "--report",
                                    "report.json", "--quiet", *words, program="train_bert")

        def train(*words):
            done = run(*words)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            return json.loads(self.read("report.json"))
        trained = self.train("--steps", 2, "--eval", 0.1, "--heads", 4, "--save", "model/")
        load = ["--load", "model/model.safetensors", "--tokenizer", "model"]
        again = train(*load, "--steps", 0)
        self.assertEqual(again["evaluations"][0]["loss"], trained["evaluations"][-1]["loss"])
        config = json.loads(self.read("model/config.json"))
        config["layer_norm_eps"] = 0.1
        self.write("model/config.json", json.dumps(config))
        straight = train(*load, "--steps", 2)
        self.assertNotEqual(straight["evaluations"][0]["loss"], trained["evaluations"][-1]["loss"])
        begun = train(*load, "--steps", 1, "--resume", "state")
        rest = train(*load[2:], "--steps", 2, "--resume", "state")
        self.assertEqual(begun["losses"] + rest["losses"], straight["losses"])
        os.remove(self.path("model/config.json"))
        done = run(*load, "--steps", 0)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
        self.assertIn("nothing says how many heads there are", done.stderr)
        write_gpt2_folder(self.path("gpt2"))
        os.rename(self.path("gpt2/config.json"), self.path("model/config.json"))
        os.rename(self.path("model/model.safetensors"), self.path("model/bert"))
        self.assertIn("--load model/bert: model/config.json: it is of no masked language model",
                      run("--load", "model/bert", *load[2:], "--steps", 0).stderr)

    def test_the_default_preset_may_be_named(self):
        """Its vocabulary is the tokenizer's."""
        for program, words in ("train_bert", []), ("train_gpt", ["--tokenizer", CHAT_MODEL]):
            reports = [self.train("--steps", 1, *words, *preset, program=program)
                       for preset in ([], ["--preset", "tiny"])]
            self.assertEqual(*[(report["losses"], report["config"]["vocab"]) for report in reports])

    def test_tensor_ranks_share_the_model(self):
        one = self.train("--steps", 4, *EVEN)
        two = self.train("--steps", 4, *EVEN, "--tensor-parallel", 2)
        for mine, other in zip(one["losses"], two["losses"], strict=True):
            self.assertAlmostEqual(mine, other, delta=1e-5)

    def test_what_does_not_fit_is_refused(self):
        for message, words in [("--data docs.jsonl: masked tokens are found in text", ["--data", "docs.jsonl"]),
                               ("--preset gpt2: it must be one of bert-base, bert-large, tiny", ["--preset", "gpt2"]),
                               ("Unknown option --sample", ["--sample", 3])]:
            done = self.run_program("--data", "text.txt", *words, program="train_bert") if words[0] != "--data" \
                else self.run_program(*words, program="train_bert")
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1))
            self.assertIn(message, done.stderr)


WORDS = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
         "vocab": {"[UNK]": 0, "the": 1, "quick": 2, "brown": 3, "fox": 4, "line": 5, "of": 6, "##s": 7, ",": 8}}


class Folder(DataTest):
    """--model FOLDER: a small random Llama, whose tokenizer knows nine words."""
    def setUp(self):
        super().setUp()
        source = os.path.join(os.environ.get("EBB_SOURCE_DIR", "."), "tests", "fixtures", "models", "llama3")
        os.mkdir(self.path("model"))
        for name in "config.json", "model.safetensors":
            shutil.copy(os.path.join(source, name), self.path("model"))
        self.write("model/tokenizer.json", json.dumps({
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
            "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": None, "decoder": None, "model": WORDS}))

    def train(self, *words, program="train_gpt"):
        done = self.run_program("--data", "text.txt", "--quiet", "--report", "report.json", "--context", 16,
                                "--batch", 4, "--threads", 1, *words, program=program)
        self.assertEqual((done.returncode, done.stderr, done.stdout), (0, "", ""))
        return json.loads(self.read("report.json"))

    def test_a_folder_is_trained_and_saved_as_a_folder(self):
        words = ["--model", "model", "--lr", 1e-2, "--eval", 0.1]
        straight = self.train(*words, "--steps", 8, "--save", "straight", "--save-best", "best")
        self.assertLess(straight["losses"][-1], straight["losses"][0])
        self.assertEqual(sorted(os.listdir(self.path("straight"))),
                         ["config.json", "model.safetensors", "tokenizer.json"])
        self.train(*words, "--steps", 3, "--resume", "state")
        rest = self.train("--steps", 8, "--resume", "state", "--save", "rest", "--checkpoint", "full")
        self.assertEqual(rest["losses"], straight["losses"][3:])
        self.assertEqual(self.read("rest/model.safetensors"), self.read("straight/model.safetensors"))
        again = self.train("--model", "straight", "--steps", 0, "--eval", 0.1)
        self.assertEqual(again["evaluations"][0]["loss"], straight["evaluations"][-1]["loss"])
        for more in ["--ranks", 2], ["--ranks", 2, "--tensor-parallel", 2], ["--ranks", 2, "--shard", "none"]:
            many = self.train(*words, "--steps", 8, *more, "--save", "many", program="fsdp_gpt")
            for mine, other in zip(straight["losses"], many["losses"], strict=True):
                self.assertAlmostEqual(mine, other, delta=1e-4)
            again = self.train("--model", "many", "--steps", 0, "--eval", 0.1)
            self.assertAlmostEqual(again["evaluations"][0]["loss"], many["evaluations"][-1]["loss"], delta=1e-5)

    def write_tokenizer(self, folder, **others):
        """The same words under other numbers."""
        os.mkdir(self.path(folder))
        made = json.loads(self.read("model/tokenizer.json"))
        made["model"]["vocab"] = {word: len(WORDS["vocab"]) - 1 - i for word, i in WORDS["vocab"].items()}
        for name, text in {"tokenizer.json": made, **others}.items():
            self.write(f"{folder}/{name}", json.dumps(text))

    def test_the_tokenizer_that_was_trained_with_is_saved(self):
        self.write_tokenizer("words", **{"tokenizer_config.json": {"eos_token": ","}})
        self.write("model/special_tokens_map.json", json.dumps({"eos_token": "the"}))
        self.write("model/LICENSE", "free")
        shutil.copytree(self.path("model"), self.path("bare"), ignore=shutil.ignore_patterns("*token*"))
        for model, save, program, more in [("model", "saved", "train_gpt", []), ("bare", "bare-saved", "train_gpt", []),
                                           ("model", "ranks", "fsdp_gpt", ["--ranks", 2]),
                                           ("model", "model", "train_gpt", ["--overwrite"])]:
            done = self.run_program("--model", model, "--tokenizer", "words", "--data", "text.txt", "--quiet",
                                    "--steps", 2, "--batch", 2, "--context", 8, "--save", save, "--save-best", "best",
                                    "--eval", 0.1, *more, program=program)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            for folder in save, "best":
                self.assertEqual(sorted(os.listdir(self.path(folder))),
                                 ["LICENSE", "config.json", "model.safetensors", "tokenizer.json",
                                  "tokenizer_config.json"])
                self.assertEqual(self.read(f"{folder}/tokenizer.json"), self.read("words/tokenizer.json"))
                self.assertEqual(json.loads(self.read(f"{folder}/config.json"))["eos_token_id"], 0)

    def test_dropout_of_a_folder_is_changed(self):
        words = ["--model", "model", "--lr", 1e-2]
        plain = self.train(*words, "--steps", 6, "--save", "plain")
        self.assertEqual(self.train(*words, "--steps", 6, "--dropout", 0)["losses"], plain["losses"])
        straight = self.train(*words, "--steps", 6, "--dropout", 0.5, "--save", "straight")
        self.assertNotEqual(straight["losses"], plain["losses"])
        self.assertEqual(straight["config"]["dropout"], 0.5)
        self.train(*words, "--steps", 3, "--dropout", 0.5, "--resume", "state")
        rest = self.train("--steps", 6, "--resume", "state", "--save", "rest")
        self.assertEqual(self.read("rest/model.safetensors"), self.read("straight/model.safetensors"))
        self.assertEqual(rest["losses"], straight["losses"][3:])
        self.assertEqual(json.loads(self.read("rest/config.json"))["attention_dropout"], 0.5)
        again = self.train("--model", "rest", "--steps", 1, "--dropout", 0)
        self.assertEqual(again["config"]["dropout"], 0)

    def test_a_resumed_training_names_the_folder_that_it_remembers(self):
        def refuse(message, *words):
            done = self.run_program("--resume", "state", "--data", "text.txt", "--steps", 4, *words)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
            self.assertIn(message, done.stderr)
        self.write_tokenizer("words")
        self.train("--model", "model", "--tokenizer", "words", "--steps", 2, "--resume", "state")
        os.rename(self.path("model"), self.path("moved"))
        refuse("--resume state: the training was begun with --model model, and there is no such folder: say where it "
               "is by --model")
        os.rename(self.path("words"), self.path("moved-words"))
        refuse("begun with --tokenizer words, and there is no such folder", "--model", "moved")
        rest = self.train("--resume", "state", "--model", "moved", "--tokenizer", "moved-words", "--steps", 4)
        self.assertEqual(len(rest["losses"]), 2)
        write_gpt2_folder(self.path("other"))
        refuse("--model other: it is another model than that of the training in state (", "--model", "other",
               "--tokenizer", "other")
        refuse("--resume with --model moved: ", "--model", "moved", "--tokenizer", "moved")

    def test_the_kind_of_model_is_named(self):
        for program, model, says in [("train_gpt", [], "GPT of 1 layer, width 8, 1 head, "),
                                     ("train_gpt", ["--model", "model"], "Llama of 2 layers, width "),
                                     ("train_bert", [], "BERT of 1 layer, width 8, 1 head, ")]:
            sizes = ["--layers", 1, "--width", 8, "--heads", 1] if not model else []
            done = self.run_program("--data", "text.txt", "--steps", 1, "--context", 8, "--batch", 1, "--threads", 1,
                                    *model, *sizes, program=program)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertTrue(done.stdout.startswith(says), done.stdout)
            self.assertIn("1 thread on cpu", done.stdout)
            self.assertIn("\n1 step in ", done.stdout)

    def test_weights_beside_a_tokenizer_are_not_trained_on_bytes(self):
        self.train("--layers", 1, "--width", 8, "--heads", 1, "--steps", 1, "--save", "model/gpt.safetensors")
        os.remove(self.path("model/config.json"))
        done = self.run_program("--load", "model/gpt.safetensors", "--heads", 1, "--data", "text.txt")
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
        self.assertIn("--load model/gpt.safetensors: tokenizer.json beside it has the tokens of these weights: add "
                      "--tokenizer model, or --tokenizer byte to train on bytes", done.stderr)
        self.train("--load", "model/gpt.safetensors", "--heads", 1, "--tokenizer", "byte", "--steps", 1)

    def test_messages_have_the_form_of_the_folders_template(self):
        form = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
                "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
                "{% endif %}")
        write_gpt2_folder(self.path("chat"))
        config = json.loads(self.read("chat/tokenizer_config.json"))
        self.write("chat/tokenizer_config.json", json.dumps({**config, "chat_template": form}))
        self.write_lines("chats.jsonl", [{"messages": [
            {"role": "user", "content": f"the {n}"}, {"role": "assistant", "content": f"and {n}"}]} for n in range(20)])
        words = ["--model", "chat", "--data", "chats.jsonl", "--context", 48, "--batch", 2, "--threads", 1,
                 "--lr", 1e-2, "--steps", 8, "--quiet", "--report", "report.json"]
        done = self.run_program(*words)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        losses = json.loads(self.read("report.json"))["losses"]
        self.assertLess(losses[-1], losses[0] - 1)
        with open(self.path("chats.jsonl"), "a", encoding="utf-8") as file:
            file.write('{"messages": [{"role": "assistant", "content": "no", "train": false}]}\n')
        done = self.run_program(*[word for word in words if word != "--quiet"])
        self.assertRegex(done.stdout, "20 documents, packed into [0-9]+ rows.*; 1 conversation without an answer that "
                                      "is learned is left out\n")
        self.assertEqual(json.loads(self.read("report.json"))["losses"], losses)
        self.write("chat/tokenizer_config.json", json.dumps({**config, "chat_template": "{{ messages | tojson }}"}))
        done = self.run_program(*words)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1))
        self.assertIn("chats.jsonl: line 1: messages need a tokenizer with a chat template: ", done.stderr)

    def test_what_contradicts_the_folder_is_refused(self):
        def refuse(message, *words, status=2):
            done = self.run_program("--model", "model", "--data", "text.txt", *words)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (status, 1), done.stderr)
            self.assertIn(message, done.stderr)
        refuse("--model model and --width: the folder has the weights and says how", "--width", 32)
        refuse("--model model and --preset", "--preset", "gpt2")
        refuse("--model model and --load", "--load", "x")
        refuse("--context 9999: --model model has", "--context", 9999)
        refuse("train_gpt: there is no folder absent", "--model", "absent", status=1)
        os.remove(self.path("model/tokenizer.json"))
        refuse("model: there is no tokenizer.json; copy there the one that the model was trained with; or name another "
               "folder's tokenizer by --tokenizer DIR, or train on bytes by --tokenizer byte", status=1)
        os.rename(self.path("model/model.safetensors"), self.path("model/pytorch_model.bin"))
        refuse("model: there is no tokenizer.json, but pytorch_model.bin: it is of a model whose weights", status=1)
        with open(self.path("model/adapter_config.json"), "w", encoding="utf-8") as config:
            config.write("{}")
        refuse("model: there is no tokenizer.json, but adapter_config.json: the folder is an adapter", status=1)


if __name__ == "__main__":
    unittest.main()
