#!/usr/bin/env python3
"""The program finetune: a budget and a resumed run change no bit, adapters and merged models are what other programs
open, ranks train the same, and --log has each step once.
"""
import glob
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "support"))
from event_files import read_events  # noqa: E402
from option_matrix import make_model  # noqa: E402

BUILD = os.environ.get("EBB_BUILD_DIR", "build/release")
FIXTURES = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "fixtures")
MODEL = os.path.join(FIXTURES, "chat-model")
WORDS = ["--context", 64, "--threads", 1]
LORA = ["--lora", 4]


def read_tensors(path):
    """A safetensors file's tensors: {name: (dtype, shape, bytes)}."""
    with open(path, "rb") as file:
        data = file.read()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    return {name: (one["dtype"], one["shape"], data[8 + n + one["data_offsets"][0]:8 + n + one["data_offsets"][1]])
            for name, one in header.items()}


def write_tensors(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


class Finetune(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ebb-finetune-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with open(self.path("chats.jsonl"), "w", encoding="utf-8") as file:
            for n in range(24):
                file.write(json.dumps({"messages": [{"role": "user", "content": f"What is {n}?"},
                                                    {"role": "assistant", "content": f"{n} it is."}]}) + "\n")

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def read(self, *names):
        with open(self.path(*names), "rb") as file:
            return file.read()

    def run_program(self, *words, program="finetune", launcher=(), **more):
        return subprocess.run([*launcher, os.path.join(BUILD, "examples", program), *map(str, words)], cwd=self.folder,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=200, check=False, text=True,
                              env={**os.environ, **more})

    def train(self, *words, model=MODEL, data="chats.jsonl", launcher=()):
        more = ["--model", model] if model else []
        done = self.run_program(*more, "--data", data, *WORDS, "--quiet", "--report", "report.json", *words,
                                launcher=launcher)
        self.assertEqual((done.returncode, done.stderr, done.stdout), (0, "", ""))
        return json.loads(self.read("report.json"))

    def measure(self, *words, model=MODEL):
        """The loss without training."""
        return self.train("--steps", 0, "--eval", "chats.jsonl", *words, model=model)["evaluations"][0]["loss"]

    def write_bf16_model(self, name):
        shutil.copytree(MODEL, self.path(name))
        tensors = read_tensors(os.path.join(MODEL, "model.safetensors"))
        for key, (_, shape, data) in tensors.items():
            tensors[key] = ("BF16", shape, b"".join(data[i + 2:i + 4] for i in range(0, len(data), 4)))
        write_tensors(self.path(name, "model.safetensors"), tensors)
        config = json.loads(self.read(name, "config.json"))
        config.pop("torch_dtype", None)
        config["dtype"] = "bfloat16"
        with open(self.path(name, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)

    # -- what isn't a file -------------------------------------------------------------------------------------------

    def test_pipes_and_devices_in_folders_are_refused(self):
        shutil.copytree(MODEL, self.path("model"))
        os.mkdir(self.path("log"))
        os.mkdir(self.path("adapter"))
        for folder, name, words, said in (
                ("model", "config.json", [], "config.json: it is not a regular file"),
                ("adapter", "adapter_config.json", ["--model", "adapter"], "this is an adapter: --model BASE"),
                ("log", "steps.jsonl", ["--log", "log"], "steps.jsonl: it is not a regular file")):
            for make in os.mkfifo, lambda path: os.symlink("/dev/zero", path):
                path = self.path(folder, name)
                content = self.read(folder, name) if os.path.exists(path) else None
                if content is not None:
                    os.remove(path)
                make(path)
                with self.subTest(name=name, is_link=os.path.islink(path)):
                    done = self.run_program("--model", "model", "--data", "chats.jsonl", *WORDS, "--steps", 0,
                                            "--eval", "0.5", *words)
                    self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
                    self.assertIn(said, done.stderr)
                os.remove(path)
                if content is not None:
                    with open(path, "wb") as file:
                        file.write(content)

    def test_a_dtype_that_is_no_name_is_refused(self):
        shutil.copytree(MODEL, self.path("model"))
        config = json.loads(self.read("model", "config.json"))
        with open(self.path("model", "config.json"), "w", encoding="utf-8") as file:
            json.dump({**config, "torch_dtype": {}}, file)
        done = self.run_program("--model", "model", "--data", "chats.jsonl", *WORDS)
        self.assertEqual((done.returncode, done.stderr),
                         (1, "finetune: model/config.json: torch_dtype is {}: it must be the name of a type, such as "
                          '"float32"\n'))

    # -- bits --------------------------------------------------------------------------------------------------------

    def test_a_budget_changes_no_bit(self):
        for words in [], LORA:
            plain = self.train("--steps", 4, *words, "--save", "plain")
            planned = self.train("--steps", 4, *words, "--save", "planned", "--memory", "200MiB")
            self.assertEqual(plain["losses"], planned["losses"])
            self.assertIn("plan", planned)
            for name in os.listdir(self.path("plain")):
                self.assertEqual(self.read("plain", name), self.read("planned", name), name)
            shutil.rmtree(self.path("plain"))
            shutil.rmtree(self.path("planned"))

    def test_no_step_leaves_bytes_behind(self):
        """Of a step that packs chats, the plan counts all bytes, and they are the last step's, too."""
        for words in [], LORA:
            report = self.train("--steps", 24, *words, "--memory", "200MiB")
            self.assertEqual(report["peak_bytes"], report["predicted_peak_bytes"])

    def test_a_resumed_training_goes_on_bit_for_bit_and_logs_each_step_once(self):
        """The first run fails at its sixth step, two after the last state."""
        words = [*LORA, "--lora-dropout", 0.1, "--steps", 8, "--eval", 0.2, "--eval-every", 3]
        straight = self.train(*words, "--save", "straight", "--log", "straight-log")
        done = self.run_program("--model", MODEL, "--data", "chats.jsonl", *WORDS, *words, "--resume", "state",
                                "--save-every", 3, "--log", "log", EBB_GPT_JOB_FAULT="0:forward:6:error")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(self.read("log", "steps.jsonl").splitlines()), 6)
        with open(self.path("log", "steps.jsonl"), "a", encoding="utf-8") as file:
            file.write('{"step": 6, "lo')
        rest = self.train("--steps", 8, "--resume", "state", "--save", "rest", "--log", "log", model=None)
        self.assertEqual(rest["losses"], straight["losses"][3:])
        self.assertEqual(self.read("rest", "adapter_model.safetensors"),
                         self.read("straight", "adapter_model.safetensors"))
        kept = ["step", "loss", "lr", "eval_loss", "eval_perplexity"]
        lines = [[{key: line[key] for key in kept if key in line}
                  for line in map(json.loads, self.read(log, "steps.jsonl").splitlines())]
                 for log in ("straight-log", "log")]
        self.assertEqual(lines[0], lines[1])
        self.assertEqual([line["step"] for line in lines[0]], list(range(9)))
        self.assertEqual([line["loss"] for line in lines[0][1:]], straight["losses"])
        events = [self.read_log_events(log) for log in ("straight-log", "log")]
        kept = ["train/loss", "train/lr", "eval/loss", "eval/perplexity"]
        self.assertEqual(*[[(step, {tag: scalars[tag] for tag in kept if tag in scalars}) for step, scalars in one]
                           for one in events])

    def read_log_events(self, log):
        (path,) = glob.glob(self.path(log, "events.out.tfevents.*"))
        version, events = read_events(path)
        self.assertEqual(version, "brain.Event:2")
        return events

    def test_a_quantised_base_is_planned_and_resumed_bit_for_bit(self):
        plain = self.train("--steps", 4, *LORA, "--schedule", "constant")
        for base in "int8", "nf4":
            words = [*LORA, "--base", base, "--schedule", "constant"]
            whole = self.train("--steps", 4, *words, "--save", "whole", "--memory", "200MiB")
            self.assertNotEqual(whole["losses"], plain["losses"])
            self.assertAlmostEqual(whole["losses"][0], plain["losses"][0], delta=0.3)
            self.assertLess(whole["parameter_bytes"], plain["parameter_bytes"])
            begun = self.train("--steps", 2, *words, "--resume", "state")
            rest = self.train("--steps", 4, "--resume", "state", "--save", "rest", model=None)
            self.assertEqual(begun["losses"] + rest["losses"], whole["losses"])
            self.assertEqual(self.read("rest", "adapter_model.safetensors"),
                             self.read("whole", "adapter_model.safetensors"))
            shutil.rmtree(self.path("state"))

    def test_the_least_is_that_of_what_is_allowed(self):
        """All is, by default: a batch in parts needs less than the steps in backward that are tried last."""
        words = ["--model", MODEL, "--data", "chats.jsonl", "--context", 192, "--batch", 16, "--threads", 1]
        needs = {}
        for allow in [], ["--allow", "none"]:
            done = self.run_program(*words, *allow, "--memory", "20MiB")
            found = re.search(r"the training needs at least ([\d.]+) MiB", done.stderr)
            self.assertTrue(found, done.stderr)
            needs[len(allow)] = float(found[1])
            done = self.run_program(*words, *allow, "--estimate")
            self.assertEqual("with what --allow includes it may need less" in done.stdout, not allow, done.stdout)
        self.assertLess(needs[0], needs[2] - 6)

    def test_a_resumed_adapter_is_planned(self):
        """A dry run has no weights; the training that it plans checks them against those of the first run."""
        words = [*LORA, "--batch", 2, "--schedule", "constant", "--steps", 4]
        self.write_bf16_model("other")
        for ranks in [], ["--ranks", 2, "--moments", "f32"]:
            straight = self.train(*words, *ranks)
            losses = self.train(*words[:-1], 2, *ranks, "--resume", "state", "--memory", "400MiB")["losses"]
            rest = ["--data", "chats.jsonl", "--resume", "state", "--steps", 4, *ranks]
            done = self.run_program(*rest, "--estimate")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            done = self.run_program(*rest, "--memory", "400MiB", "--model", "other")
            self.assertEqual(done.returncode, 1)
            self.assertIn("of a training over another base", done.stderr)
            losses += self.train("--steps", 4, *ranks, "--resume", "state", "--memory", "400MiB", model=None)["losses"]
            self.assertEqual(losses, straight["losses"])
            shutil.rmtree(self.path("state"))

    def test_a_state_of_an_adapter_has_no_base(self):
        words = [*LORA, "--schedule", "constant", "--batch", 2, "--lr", 1e-3]
        for more in [], ["--base", "int8"]:
            whole = self.train("--steps", 6, *words, *more)
            losses = self.train("--steps", 2, *words, *more, "--resume", "state")["losses"]
            sizes = [os.path.getsize(path) for path in glob.glob(self.path("state", "*"))]
            self.assertLess(sum(sizes), os.path.getsize(os.path.join(MODEL, "model.safetensors")))
            # One rank's state on tensor ranks, and theirs on one.
            for steps, ranks in (4, 2), (6, 1):
                done = self.train("--steps", steps, "--ranks", ranks, "--tensor-parallel", ranks, "--resume", "state",
                                  model=None)
                losses += done["losses"]
            self.assertEqual(len(losses), 6)
            for mine, other in zip(losses, whole["losses"], strict=True):
                self.assertAlmostEqual(mine, other, delta=2e-5)
            shutil.rmtree(self.path("state"))
        self.train("--steps", 2, *words, "--resume", "state")
        self.write_bf16_model("other")
        self.refuse("--resume with --model other: the state saved in state is of a training over another base",
                    "--model", "other", "--data", "chats.jsonl", *WORDS, "--steps", 4, "--resume", "state", status=1)

    # -- adapters and models -----------------------------------------------------------------------------------------

    def test_a_merged_model_computes_what_its_adapter_did(self):
        self.write_bf16_model("lower")
        for model, dtype, delta in (MODEL, "F32", 1e-5), ("lower", "BF16", 2e-2):
            words = ["--dtype", "f32"]
            trained = self.train("--steps", 6, *LORA, "--lr", 1e-2, "--save", "adapter", *words, model=model)
            self.assertLess(trained["losses"][-1], trained["losses"][0])
            done = self.run_program("--model", model, "--merge", "adapter", "--save", "merged")
            self.assertEqual((done.returncode, done.stderr, done.stdout), (0, "", "Merged model: merged\n"))
            here = model if os.path.isabs(model) else self.path(model)
            before, after = (read_tensors(os.path.join(folder, "model.safetensors"))
                             for folder in (here, self.path("merged")))
            self.assertEqual({name: one[:2] for name, one in before.items()},
                             {name: one[:2] for name, one in after.items()})
            self.assertEqual({one[0] for one in after.values()}, {dtype})
            changed = {name for name in before if before[name] != after[name]}
            self.assertEqual(len(changed), 14)
            adapted = self.measure("--adapter", "adapter", *words, model=model)
            self.assertNotAlmostEqual(adapted, self.measure(*words, model=model), delta=0.1)
            self.assertAlmostEqual(adapted, self.measure(*words, model="merged"), delta=delta)
            for name in "merged", "adapter":
                shutil.rmtree(self.path(name))

    def test_the_shape_of_an_adapter_is_that_of_the_options(self):
        report = self.train("--steps", 1, *LORA, "--rslora", "--lora-alpha", 6, "--lora-dropout", 0.25,
                            "--lora-targets", "q_proj,v_proj", "--save", "adapter")
        self.assertEqual(report["config"]["rslora"], True)
        config = json.loads(self.read("adapter", "adapter_config.json"))
        self.assertEqual([config[key] for key in ("r", "lora_alpha", "lora_dropout", "use_rslora", "target_modules")],
                         [4, 6, 0.25, True, ["q_proj", "v_proj"]])

    def test_an_adapter_is_trained_further(self):
        self.train("--steps", 4, *LORA, "--lr", 1e-2, "--save", "adapter")
        further = self.train("--steps", 4, "--adapter", "adapter", "--lr", 1e-2, "--save", "further")
        self.assertEqual(json.loads(self.read("further", "adapter_config.json"))["r"], 4)
        self.assertLess(self.measure("--adapter", "further"), self.measure("--adapter", "adapter"))
        self.assertEqual(further["config"]["lr"], 1e-2)

    def test_the_best_weights_are_kept(self):
        words = ["--steps", 9, *LORA, "--lr", 0.2, "--eval", "chats.jsonl", "--eval-every", 1]
        done = self.train(*words, "--save", "best")
        losses = {one["step"]: one["loss"] for one in done["evaluations"]}
        self.assertEqual(list(losses), list(range(10)))
        self.assertEqual(done["best_loss"], min(loss for step, loss in losses.items() if step > 0))
        self.assertLess(done["best_step"], 9)
        self.assertEqual(self.measure("--adapter", "best"), done["best_loss"])

    def test_the_base_is_no_best_adapter(self):
        done = self.run_program("--model", MODEL, "--data", "chats.jsonl", *WORDS, *LORA, "--steps", 2, "--eval", 0.2,
                                "--save", "best", EBB_GPT_JOB_FAULT="0:forward:1:error")
        self.assertEqual(done.returncode, 1)
        self.assertIn("Held out: loss ", done.stdout)
        self.assertFalse(os.path.exists(self.path("best")))

    def test_a_resumed_training_writes_what_its_first_run_had_no_name_for(self):
        """The first run has the best loss, and no --save."""
        words = [*LORA, "--eval", "chats.jsonl", "--eval-every", 1, "--schedule", "constant"]
        for more in [], ["--ranks", 2, "--batch", 2]:
            self.train("--steps", 1, *words, *more, "--resume", "state")
            done = self.train("--steps", 2, "--lr", 50, *more, "--resume", "state", "--save", "out", model=None)
            self.assertEqual(done["best_step"], 1)
            self.measure("--adapter", "out")
            shutil.rmtree(self.path("out"))
            shutil.rmtree(self.path("state"))

    def test_a_training_of_steps_is_resumed_as_one(self):
        words = [*LORA, "--steps", 5, "--eval", "chats.jsonl", "--eval-every", 1]
        whole = self.train(*words)
        done = self.run_program("--model", MODEL, "--data", "chats.jsonl", *WORDS, *words, "--resume", "state",
                                "--save-every", 2, EBB_GPT_JOB_FAULT="0:forward:4:error")
        self.assertEqual(done.returncode, 1)
        rest = self.train("--resume", "state", "--log", "log", model=None)
        self.assertEqual(rest["losses"], whole["losses"][-len(rest["losses"]):])
        self.assertEqual(rest["config"]["steps"], 5)
        # Measuring again adds no second line.
        lines = self.read("log", "steps.jsonl")
        self.train("--steps", 0, "--resume", "state", "--log", "log", model=None)
        self.assertEqual(self.read("log", "steps.jsonl"), lines)
        self.train("--steps", 0, "--resume", "state", "--log", "new", model=None)
        self.assertEqual([json.loads(line)["step"] for line in self.read("new", "steps.jsonl").splitlines()], [5])

    def test_a_resumed_training_warms_up_once(self):
        """Of more steps the warm-up would be longer."""
        words = [*LORA, "--batch", 4]
        first = self.train(*words, "--steps", 1, "--resume", "state")["config"]
        rest = self.train("--steps", 34, "--resume", "state", model=None)["config"]
        self.assertEqual((first["warmup"], rest["warmup"]), (0, 0))
        self.assertEqual(self.train(*words, "--steps", 34)["config"]["warmup"], 1)

    def test_a_file_of_bf16_is_tuned_as_its_folder(self):
        """A GGUF file has no config.json that says its type; a file that is there is written again."""
        self.write_bf16_model("lower")
        self.train("--steps", 1, "--save", "lower.gguf", model="lower")
        shutil.copy(self.path("lower.gguf"), self.path("tuned.gguf"))
        done = self.train("--steps", 1, "--resume", "state", "--save", "tuned.gguf", model="lower.gguf")
        self.assertNotEqual(self.read("tuned.gguf"), self.read("lower.gguf"))
        self.assertEqual([done["config"][key] for key in ("dtype", "weights")], ["bf16", "bf16"])
        self.train("--steps", 2, "--resume", "state", model=None)
        self.train("--steps", 1, *LORA, "--save", "adapter.gguf", model="lower.gguf")
        self.train("--steps", 1, "--adapter", "adapter.gguf", "--save", "adapter.gguf", model="lower.gguf")

    def test_ranks_train_the_same(self):
        words = ["--steps", 4, "--batch", 2, "--lr", 1e-3, "--moments", "f32"]
        for kind in [], LORA:
            one = self.train(*words, *kind)
            for more in ["--ranks", 2], ["--ranks", 2, "--shard", "none"], ["--ranks", 2, "--tensor-parallel", 2]:
                many = self.train(*words, *kind, *more)
                for mine, other in zip(one["losses"], many["losses"], strict=True):
                    self.assertAlmostEqual(mine, other, delta=2e-5)
        for more in [], ["--shard", "none"], ["--tensor-parallel", 2], ["--memory", "400MiB"]:
            many = self.train(*words, *LORA, "--ranks", 2, *more, "--save", "adapter", "--log", "log")
            self.assertEqual("plan" in many, "--memory" in more)
            self.assertEqual(len(self.read("log", "steps.jsonl").splitlines()), 4)
            self.measure("--adapter", "adapter")
            shutil.rmtree(self.path("log"))

    # -- what it does by itself --------------------------------------------------------------------------------------

    def test_defaults_depend_on_what_is_trained(self):
        full = self.train("--epochs", 2)["config"]
        self.assertEqual((full["lr"], full["moments"], full["schedule"], full["steps"], full["warmup"]),
                         (1e-5, "8bit", "cosine", 48, 1))
        self.assertEqual(self.train("--epochs", 1, "--accumulate", 5)["config"]["steps"], 5)  # of 24 rows
        adapter = self.train(*LORA)["config"]
        self.assertEqual((adapter["lr"], adapter["moments"], adapter["batch"], adapter["steps"]), (2e-4, "f32", 1, 24))
        self.assertEqual(self.train("--allow", "none", "--steps", 1)["config"]["moments"], "f32")
        self.write_bf16_model("lower")
        upper, lower = (self.train("--steps", 1, "--allow", "none", model=model) for model in (MODEL, "lower"))
        self.assertEqual([lower["config"][key] for key in ("dtype", "weights", "moments")], ["bf16", "f32", "f32"])
        for kind in [], LORA:
            config = self.train("--steps", 1, *kind, model="lower")["config"]
            self.assertEqual([config[key] for key in ("dtype", "weights")], ["bf16", "bf16"])
        lower = self.train("--steps", 2, "--resume", "state", "--save", "saved", model="lower")
        self.assertLess(lower["parameter_bytes"], 0.6 * upper["parameter_bytes"])
        whole = self.train("--steps", 4, "--schedule", "constant", model="lower")
        shutil.rmtree(self.path("state"))
        begun = self.train("--steps", 2, "--schedule", "constant", "--resume", "state", model="lower")
        rest = self.train("--steps", 4, "--resume", "state", model=None)
        self.assertEqual(begun["losses"] + rest["losses"], whole["losses"])
        saved = read_tensors(self.path("saved", "model.safetensors"))
        self.assertEqual({one[0] for one in saved.values()}, {"BF16"})

    def test_it_says_what_it_does(self):
        words = ["--model", MODEL, "--data", "chats.jsonl", *WORDS, "--steps", 2, "--eval", 0.2]
        done = self.run_program(*words)
        self.assertIn("\nMoments of 8 bits: --allow none has them in f32\n", done.stdout)
        self.assertIn("\nHeld out: loss ", done.stdout)
        self.assertIn("\nHeld out, after step 2: loss ", done.stdout)
        done = self.run_program(*words, *LORA, "--memory", "200MiB")
        self.assertIn("A new adapter of rank 4: 3712 parameters are trained, 11 % of the model's\n", done.stdout)
        self.assertRegex(done.stdout, r"left  memory \d+ of 200 MiB  MiB: ")

    def test_other_programs_log_too(self):
        with open(self.path("text.txt"), "w", encoding="utf-8") as file:
            file.writelines(f"Line {n}: the quick brown fox.\n" for n in range(60))
        for program in "train_gpt", "train_bert":
            done = self.run_program("--data", "text.txt", "--steps", 2, "--layers", 1, "--width", 16, "--heads", 2,
                                    "--context", 16, "--batch", 2, "--threads", 1, "--log", program, program=program)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            lines = [json.loads(line) for line in self.read(program, "steps.jsonl").splitlines()]
            self.assertEqual([line["step"] for line in lines], [1, 2])
            events = self.read_log_events(program)
            for line, (step, scalars) in zip(lines, events, strict=True):
                self.assertEqual(line["step"], step)
                self.assertAlmostEqual(line["loss"], scalars["train/loss"], places=5)

    def test_steps_of_two_bytes_stay_in_a_resumed_log(self):
        with open(self.path("text.txt"), "w", encoding="utf-8") as file:
            file.write("Line: the quick brown fox.\n" * 9)
        for steps in 129, 130:
            done = self.run_program("--data", "text.txt", "--steps", steps, "--layers", 1, "--width", 8, "--heads", 1,
                                    "--context", 8, "--batch", 1, "--threads", 1, "--quiet", "--schedule", "constant",
                                    "--resume", "state", "--log", "log", program="train_gpt")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual([step for step, _ in self.read_log_events("log")], list(range(1, 131)))

    # -- bytes -------------------------------------------------------------------------------------------------------

    def make_folder(self, name):
        """The folder of a small GPT that train_gpt trained on bytes."""
        with open(self.path("text.txt"), "w", encoding="utf-8") as file:
            file.write("Ebb and flow, naïvely. " * 40)
        done = self.run_program("--data", "text.txt", "--layers", 1, "--width", 16, "--heads", 2, "--context", 32,
                                "--steps", 2, "--quiet", "--save", name, program="train_gpt")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_folder_that_train_gpt_made_is_tuned_and_continued(self):
        self.make_folder("base/")
        words = ["--data", "text.txt", "--context", 32, "--steps", 3, "--quiet"]
        for more in ["--save", "own"], ["--tokenizer", "byte", "--save", "bytes"]:
            done = self.run_program("--model", "base", *words, *more)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
        for name in os.listdir(self.path("base")):
            self.assertEqual(self.read("own", name), self.read("bytes", name), name)
        done = self.run_program("--model", "own", "--prompt", "naïve", "--tokens", 5, program="generate")
        self.assertEqual((done.returncode, done.stdout[:5]), (0, "naïve"), done.stderr)

    def test_a_folder_without_a_tokenizer_is_tuned_on_bytes(self):
        """A resumed training goes on with bytes, and the saved folder has their tokenizer."""
        self.make_folder("base/")
        tokenizer = self.read("base", "tokenizer.json")
        os.remove(self.path("base", "tokenizer.json"))
        words = ["--data", "text.txt", "--context", 32, "--quiet"]
        self.refuse("train on bytes by --tokenizer byte", "--model", "base", *words, status=1)
        for more in ["--model", "base", "--tokenizer", "byte", "--steps", 1], ["--steps", 2, "--save", "tuned"]:
            done = self.run_program(*words, *more, "--resume", "state")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(self.read("tuned", "tokenizer.json"), tokenizer)
        self.refuse("--tokenizer byte and --save x.gguf: a GGUF file has no tokenizer of bytes: save a folder",
                    "--model", "base", "--tokenizer", "byte", "--save", "x.gguf", *words)
        self.refuse("--tokenizer byte and --save x.gguf: ", *words, "--steps", 3, "--resume", "state",
                    "--save", "x.gguf")
        self.assertFalse(os.path.exists(self.path("x.gguf")))
        self.refuse("a vocabulary of 64: --tokenizer byte has 256 tokens, so the model's must be at least that",
                    "--model", os.path.join(FIXTURES, "models", "gpt2"), "--tokenizer", "byte", *words, status=1)

    def test_a_result_that_is_not_kept_is_said_before_the_first_step(self):
        words = ["--model", MODEL, "--data", "chats.jsonl", *WORDS, "--steps", 1]
        for more, said in (([], "The trained weights will not be kept: --save DIR writes them\n"),
                           (LORA, "The adapter will not be kept: --save DIR writes it\n"),
                           (["--save", "kept"], None), (["--resume", "state"], None),
                           (["--save", "best", "--eval", 0.2], None)):
            with self.subTest(more=more):
                done = self.run_program(*words, *more)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                if said:
                    self.assertIn(said, done.stdout[:done.stdout.index("step ")])
                else:
                    self.assertNotIn("not be kept", done.stdout)

    # -- errors ------------------------------------------------------------------------------------------------------

    def refuse(self, message, *words, status=2):
        done = self.run_program(*words)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1)
        self.assertIn(message, done.stderr)

    def test_the_folder_of_the_model_is_only_read(self):
        self.write_bf16_model("base")
        self.train("--steps", 1, *LORA, "--save", "adapter", model="base")
        self.train("--steps", 1, "--resume", "state", model="base")
        before = {name: self.read("base", name) for name in os.listdir(self.path("base"))}
        os.symlink("base", self.path("link"))
        message = "it is --model base, which is only read: name another folder"
        for words in ["--data", "chats.jsonl"], ["--data", "chats.jsonl", *LORA], ["--merge", "adapter"], \
                     ["--data", "chats.jsonl", "--eval", 0.2]:
            for name in "base", "base/", "./base", "link":
                self.refuse(f"--save {name}: {message}", "--model", "base", *words, "--save", name)
        self.refuse(f"--save base: {message}", "--data", "chats.jsonl", "--resume", "state", "--save", "base")
        self.assertEqual({name: self.read("base", name) for name in os.listdir(self.path("base"))}, before)

    def test_an_adapter_that_no_folder_can_have_is_refused_before_the_first_step(self):
        make_model("phi3", self.path("phi3"))
        with open(self.path("text.txt"), "w", encoding="utf-8") as file:
            file.write("The sea is wide. " * 20)
        words = ["--model", "phi3", "--tokenizer", "byte", "--data", "text.txt", "--context", 8, "--steps", 2, *LORA]
        for more in [], ["--eval", 0.2]:
            self.refuse("--save a: lora: a folder of phi3 has the weight of layers.0.self_attn.q_proj joined with",
                        *words, "--save", "a", *more, status=1)
        done = self.run_program(*words, "--save", "a", "--lora-targets", "o_proj,down_proj")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_what_does_not_fit_is_refused(self):
        words = ["--model", MODEL, "--data", "chats.jsonl", *WORDS]
        other = os.path.join(FIXTURES, "lora", "gpt2")
        self.refuse("--model is missing: name the folder of the model to tune", "--data", "chats.jsonl")
        self.refuse("there is no folder absent", "--model", "absent", "--data", "chats.jsonl", status=1)
        self.refuse("of weights that train_gpt saved, train_gpt --load ", "--model",
                    os.path.join(MODEL, "model.safetensors"), "--data", "chats.jsonl", status=1)
        self.refuse(f"this is an adapter: --model models/gpt2 --adapter {other}\n", "--model", other,
                    "--data", "chats.jsonl", status=1)
        self.refuse("--data is missing", "--model", MODEL)
        self.refuse("--lora 0: the rank must be at least 1", *words, "--lora", 0)
        self.refuse("--adapter x and --lora 4: the folder says the adapter's rank", *words, *LORA, "--adapter", "x")
        self.refuse('the target "wrong" matches no linear layer of this Gpt; it has down_proj,', *words, *LORA,
                    "--lora-targets", "wrong", status=1)
        self.refuse("the adapter is of another model", *words, "--adapter", other, status=1)
        self.refuse("the adapter is of another model", "--model", MODEL, "--merge", other, "--save", "x", status=1)
        self.refuse("--merge x: --save is missing", "--model", MODEL, "--merge", "x")
        self.refuse("--merge x and --data: merging trains nothing", *words, "--merge", "x", "--save", "y")
        for option in (["--dtype", "bf16"], ["--weights", "bf16"], ["--epochs", 2], ["--lr", 1], ["--allow", "none"],
                       ["--plan", "p"], ["--estimate"], ["--ranks", 2], ["--tokenizer", "t"]):
            self.refuse(f"--merge x and {option[0]}: merging trains nothing", "--model", MODEL, "--merge", "x",
                        "--save", "y", *option)
        self.refuse("--merge x: can't read x/adapter_config.json", "--model", MODEL, "--merge", "x", "--save", "y",
                    status=1)
        self.refuse("--base nf4: quantised weights have no gradient: it needs --lora", *words, "--base", "nf4")
        shutil.copytree(MODEL, self.path("nf4"))
        for name in "config.json", "model.safetensors":
            shutil.copy(os.path.join(FIXTURES, "quantized", "llama3-nf4", name), self.path("nf4", name))
        self.refuse("--model nf4: its weights are nf4 and have no gradient: it needs --lora RANK or --adapter DIR",
                    "--model", "nf4", "--data", "chats.jsonl", *WORDS, status=1)
        self.refuse("--lora-alpha: it needs --lora", *words, "--lora-alpha", 2)
        self.refuse("--epochs 2 and --steps 3: one of them", *words, "--epochs", 2, "--steps", 3)
        self.refuse("--memory 9MiB: 9.0 MiB is too little: the training needs at least", *words, "--memory", "9MiB",
                    status=1)
        self.refuse('--allow: there is no "magic"', *words, "--allow", "magic", status=2)
        self.refuse("--weights bf16: it needs --dtype bf16, not f32", *words, "--weights", "bf16")
        self.refuse("--rounding nearest: it needs --weights bf16, not f32", *words, "--rounding", "nearest")
        self.refuse("--rounding nearest: the weights below an adapter don't move", *words, *LORA, "--rounding",
                    "nearest")
        os.mkdir(self.path("log"))
        with open(self.path("log", "steps.jsonl"), "w", encoding="utf-8") as file:
            file.write('{"step": 7, "loss": 1}\n')
        self.refuse("--log log: it has the log of another training, up to step 7", *words, "--log", "log", status=1)


if __name__ == "__main__":
    unittest.main()
