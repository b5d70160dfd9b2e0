#!/usr/bin/env python3
"""Options of the programs that train, combined at random: a training that is stopped and resumed, one that a budget of
memory plans, and one by another strategy compute what the straight training computes. Losses and weights are equal to
the bit, or to rounding where the order of a sum differs.

    option_matrix.py                         a fixed seed, for 40 seconds
    option_matrix.py --long --seed 7         an hour, with processes of MPI among the ranks
    option_matrix.py --seed 7 --count 200    so many sets that no program refuses

A program may refuse a set by one line and the status 1 or 2. A crash, an internal error, a warning or a difference is a
failure, whose options are left out one by one until none can be spared.
"""
import argparse
import collections
import filecmp
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

BUILD = os.path.abspath(os.environ.get("EBB_BUILD_DIR", "build/release"))
FIXTURES = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "fixtures")
FAMILIES = ["gpt2", "llama2", "llama3", "llama-dynamic", "llama-linear", "llama-yarn", "mistral", "qwen2", "qwen2-yarn",
            "qwen3", "gemma2", "gemma3", "phi3", "phi3-longrope", "smollm"]
BYTES = 5 * 64  # the fixtures' vocabulary of 64 tokens, made large enough for all bytes
MPIRUN = shutil.which("mpirun")
HAS_MPI = MPIRUN is not None and any("mpi" in name for _, _, names in os.walk(os.path.join(BUILD, "ebb-1.0"))
                                     for name in names)
STEPS = 4
TOLERANCE = 2e-5  # relative, of a loss
FLAG = object()  # an option without a value
# What a status of 1 may say before the first step.
REFUSALS = re.compile(r"needs at least|is too little|too small for|no plan|no room for|the limit of the store|"
                      r"can't be divided|to be quantised|with longrope|has no form there|must divide|divisible|"
                      r"not divide|leave the option out|--(shard|tensor-parallel|sequence-parallel|partition|wrap|"
                      r"flatten|pack|context|batch|lora|base|vocab|memory|allow|store|checkpoint|plan|residual|weights|"
                      r"moments|eval|model|step-in-backward)\b")

# Each option with its choices; most sets leave most options out.
TRAINING = {"--batch": [1, 2, 3, 4, 6], "--micro-batch": [1, 2, 3], "--accumulate": [2, 3], "--lr": [1e-4, 1e-3, 1e-2],
            "--schedule": ["cosine"], "--warmup": [1, 2], "--min-lr": [1e-5], "--weight-decay": [0, 0.1],
            "--decayed": ["all"], "--clip": [0.1, 1], "--seed": [1, 2, 99], "--dropout": [0, 0.1, 0.5],
            "--eval": [0.2], "--eval-every": [1, 2, 3], "--loss-chunk": ["1KiB", "16KiB"],
            "--moments": ["f32", "bf16", "8bit"], "--step-in-backward": [FLAG], "--dtype": ["bf16"],
            "--device": ["sim"], "--save-best": ["best/"], "--log": ["log"], "--sample": [5],
            "--profile": ["profile.json"], "--stream-trace": ["streams.json"], "--memory-timeline": ["timeline.html"]}
STRATEGY = {"--checkpoint": ["none", "selective", "full"],
            "--store": ["keep", "host", "disk", "contiguous", "contiguous+host", "contiguous+disk"],
            "--store-limit": ["4KiB", "1MiB"], "--store-fallback": ["keep", "host", "disk"], "--prefetch": [0, 2]}
BF16 = {"--weights": ["bf16"], "--rounding": ["random", "nearest", "master"]}
RANKS = {"--shard": ["full", "none", "hybrid"], "--shard-size": [1, 2], "--wrap": ["block", "model", 1, 64, 700, 2000],
         "--reshard": ["always", "never", "auto"], "--flatten": [FLAG], "--compute-dtype": ["f32", "bf16"],
         "--reduce-dtype": ["f32", "bf16"], "--offload-parameters": [FLAG],
         "--nesting": ["shard-outside", "checkpoint-outside"], "--reduce": ["step", "batch"]}
TENSOR = {"--tensor-parallel": [2, 3], "--sequence-parallel": [FLAG], "--partition": [FLAG]}
SIZES = {"--layers": [1, 2, 3], "--width": [12, 24, 48], "--heads": [2, 3, 6], "--context": [8, 16, 24],
         "--vocab": [256, 300]}
ADAPTER = {"--lora-targets": ["q_proj,v_proj", "*proj", "c_attn", "down_proj"], "--lora-alpha": [1, 16],
           "--lora-dropout": [0.1], "--rslora": [FLAG], "--base": ["int8", "nf4"]}
PROGRAMS = {
    "train_gpt": {**TRAINING, **STRATEGY, **BF16, **TENSOR, "--residual": ["bf16"], "--pack": [FLAG]},
    "fsdp_gpt": {**TRAINING, **STRATEGY, **BF16, **TENSOR, **RANKS, "--residual": ["bf16"], "--pack": [FLAG]},
    "finetune": {**TRAINING, **STRATEGY, **BF16, **TENSOR, **RANKS, "--pack": [FLAG]},
    "train_bert": {**TRAINING, **STRATEGY, **TENSOR},
}
# What may change the order of sums: then values are equal to rounding. All else changes no bit.
REORDERS = {"--micro-batch", "--accumulate", "--loss-chunk", "--ranks"}
REORDERS_ON_RANKS = {"--shard", "--shard-size", "--wrap", "--flatten", "--reduce"}
# With these, rounding makes a difference that grows, or each rank draws numbers.
INEXACT = {"--lora-dropout", "--dtype", "--weights", "--rounding", "--residual", "--compute-dtype", "--reduce-dtype",
           "--base"}
RESULTS = {"--save-best", "--log", "--profile", "--stream-trace", "--memory-timeline"}


class Failure(Exception):
    """A promise that was not kept."""


class Refused(Exception):
    """A program doesn't take a set."""


def repeat(rows, row, element):
    """Five copies, each turned by another number of elements: of two equal rows the choice of a token is a tie."""
    return b"".join(rows[at + turn % row:at + row] + rows[at:at + turn % row]
                    for turn in range(0, 5 * element, element) for at in range(0, len(rows), row))


def make_model(family, folder):
    """Copies a fixture whose embeddings are repeated, for it has fewer tokens than there are bytes."""
    source = os.path.join(FIXTURES, "models", family)
    if family == "nf4":
        source = os.path.join(FIXTURES, "quantized", "llama3-nf4")
    os.makedirs(folder)
    with open(os.path.join(source, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    config["vocab_size"] = BYTES
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    for name in sorted(os.listdir(source)):
        if name.endswith(".index.json"):
            shutil.copy(os.path.join(source, name), folder)
        if not name.startswith("model") or not name.endswith(".safetensors"):
            continue
        with open(os.path.join(source, name), "rb") as file:
            data = file.read()
        begin = 8 + int.from_bytes(data[:8], "little")
        header, parts, at = json.loads(data[8:begin]), [], 0
        for key, entry in header.items():
            if key == "__metadata__":
                continue
            part = data[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]]
            if entry["shape"][:1] == [64] and re.search(r"embed_tokens|wte|word_embeddings|lm_head|predictions", key):
                part, entry["shape"][0] = repeat(part, len(part) // 64, len(part) // math.prod(entry["shape"])), BYTES
            entry["data_offsets"] = [at, at + len(part)]
            at += len(part)
            parts.append(part)
        text = json.dumps(header).encode()
        with open(os.path.join(folder, name), "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text + b"".join(parts))
    index = os.path.join(folder, "model.safetensors.index.json")
    if os.path.exists(index):  # the sizes of the parts are others now
        with open(index, encoding="utf-8") as file:
            shards = json.load(file)
        shards.get("metadata", {}).pop("total_size", None)
        with open(index, "w", encoding="utf-8") as file:
            json.dump(shards, file)


def make_texts(folder):
    with open(os.path.join(folder, "text.txt"), "w", encoding="utf-8") as file:
        file.writelines(f"Line {n} of {n * n}: the quick brown fox, naïvely.\n" for n in range(60))
    with open(os.path.join(folder, "other.txt"), "w", encoding="utf-8") as file:
        file.writelines(f"{n} bottles.\n" for n in range(40))
    with open(os.path.join(folder, "rows.jsonl"), "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": f"{n} and " * (n % 7 + 1)}) + "\n" for n in range(40))
    with open(os.path.join(folder, "pairs.jsonl"), "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"prompt": f"{n}: ", "completion": f"it is {n * n} " * (n % 4 + 1)}) + "\n"
                        for n in range(1, 40))


def make_tokenizer(program, folder, families):
    """Gives the models the tokenizer of bytes that the program writes."""
    subprocess.run([os.path.join(BUILD, "examples", program), "--data", "texts/text.txt", "--steps", "1", "--save",
                    f"{program}/", "--quiet"], cwd=folder, check=True, timeout=60)
    for family in families:
        for name in "tokenizer.json", "tokenizer_config.json":
            shutil.copy(os.path.join(folder, program, name), os.path.join(folder, "models", family))


def list_words(options):
    return [word for name, value in options.items()
            for word in ([name] if value is FLAG else [name, *(value if isinstance(value, list) else [value])])]


def show(program, options):
    return " ".join([program, *map(str, list_words(options))])


class Run:
    """One program with its options, in a folder of its own."""

    def __init__(self, matrix, program, options, fault=None, may_be_refused=False):
        self.folder = tempfile.mkdtemp(dir=matrix.folder)
        self.program, self.options = program, dict(options)
        self.report = None
        self.start(matrix, fault, may_be_refused)

    def start(self, matrix, fault, may_be_refused):
        options, launcher = {"--threads": 1, **self.options, "--report": "report.json"}, []
        if options.get("--backend") == "mpi":
            launcher = [MPIRUN, "-n", str(options.pop("--ranks", 1)), "--oversubscribe"]
        environment = {**os.environ, "TMPDIR": self.folder, "XDG_CACHE_HOME": matrix.cache, "NO_COLOR": "1",
                       "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                       "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
        if fault is not None:
            environment["EBB_GPT_JOB_FAULT"] = fault
        words = [*launcher, os.path.join(BUILD, "examples", self.program), *map(str, list_words(options))]
        matrix.n_runs += 1
        self.shown = show(self.program, {**self.options, "--report": "report.json"})
        try:
            done = subprocess.run(words, cwd=self.folder, env=environment, timeout=60, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        except subprocess.TimeoutExpired as error:
            raise Failure(f"hangs: {self.shown}") from error
        said = done.stderr.decode(errors="replace")
        self.check(done.returncode, (said.split("-----")[0] if launcher else said).strip(), fault,
                   may_be_refused and (b"\nstep 1/" not in done.stdout or "store" in said))
        path = os.path.join(self.folder, "report.json")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                self.report = json.load(file)

    def check(self, status, said, fault, may_be_refused):
        if status < 0 or status > 2 or re.search(r"CRITICAL|WARNING \*\*|\binternal|assert|a dry run has none", said):
            raise Failure(f"status {status}, says {said!r}: {self.shown}")
        if fault is not None and status == 1 and "a failure was asked for" in said:
            return
        if status == 0:
            if fault is not None:
                raise Failure(f"the step that fails is not reached: {self.shown}")
            return
        if "\n" in said or not said.startswith(f"{self.program}: ") or not may_be_refused \
           or (status == 1 and not REFUSALS.search(said)):
            raise Failure(f"status {status}, says {said!r}: {self.shown}")
        raise Refused(said)

    def path(self, *names):
        return os.path.join(self.folder, *names)


def get_kind(failure):
    """What failures have in common that are the same: what is said, but for numbers and names of options."""
    return re.sub(r"rank \d+( of \d+)?: |\d+|with other \[.*?\]", "", failure)[:60]


def differ(one, other, exact):
    if exact:
        return one != other
    return abs(one - other) > TOLERANCE * max(1, abs(one))


def check_same(straight, run, what, exact, first=0):
    """Compares losses, held-out losses and weights."""
    pairs = list(zip(straight.report["losses"][first:], run.report["losses"], strict=True))
    if any(differ(*pair, exact) for pair in pairs):
        raise Failure(f"{what}: other losses, {pairs}:\n  {straight.shown}\n  {run.shown}")
    loss_of = [{one["step"]: one["loss"] for one in each.report.get("evaluations", []) if one["step"] > first}
               for each in (straight, run)]
    if loss_of[0].keys() != loss_of[1].keys() or any(differ(loss_of[0][step], loss_of[1][step], exact)
                                                     for step in loss_of[0]):
        raise Failure(f"{what}: other held-out losses, {loss_of}:\n  {straight.shown}\n  {run.shown}")
    if not exact or "--save" not in straight.options:
        return
    name = straight.options["--save"]
    names = [name] if not os.path.isdir(straight.path(name)) else [os.path.join(name, one)
                                                   for one in sorted(os.listdir(straight.path(name)))]
    for one in names:
        if not os.path.exists(run.path(one)) or not filecmp.cmp(straight.path(one), run.path(one), shallow=False):
            raise Failure(f"{what}: another {one}:\n  {straight.shown}\n  {run.shown}")


class Matrix:
    def __init__(self, folder, seed, is_long):
        self.folder, self.seed, self.is_long = folder, seed, is_long
        self.cache = os.path.join(folder, "cache")
        for family in *FAMILIES, "bert", "nf4":
            make_model(family, os.path.join(folder, "models", family))
        os.mkdir(os.path.join(folder, "texts"))
        make_texts(os.path.join(folder, "texts"))
        for program, families in ("train_gpt", [*FAMILIES, "nf4"]), ("train_bert", ["bert"]):
            make_tokenizer(program, folder, families)
        self.n_runs, self.n_sets = 0, 0
        self.refusals, self.ways, self.by_program = (collections.Counter() for _ in range(3))
        self.failures = []

    # -- sets --------------------------------------------------------------------------------------------------------

    def draw(self, rng):
        program = rng.choices(list(PROGRAMS), [2, 4, 3, 2])[0]
        choices = PROGRAMS[program]
        options = {"--data": [f"../../texts/{name}" for name in self.draw_data(rng, program)],
                   "--steps": STEPS}
        if program == "finetune" or rng.random() < 0.4:
            family = "bert" if program == "train_bert" else rng.choice(FAMILIES)
            if program == "finetune" and rng.random() < 0.5:
                family = rng.choice([family, family, "nf4"])
                options.update({"--lora": rng.choice([1, 2, 4])})
                choices = {**choices, **ADAPTER}
            options["--model"] = f"../../models/{family}"
            options["--context"] = rng.choice([8, 16])
        else:
            options.update({name: rng.choice(values) for name, values in SIZES.items() if name != "--vocab"})
            if rng.random() < 0.2:
                options["--vocab"] = rng.choice(SIZES["--vocab"])
        if program in ("fsdp_gpt", "finetune"):
            options["--ranks"] = rng.choice([1, 2, 2, 3] if program == "fsdp_gpt" else [1, 2, 3])
            if self.is_long and HAS_MPI and options["--ranks"] > 1 and rng.random() < 0.1:
                options["--backend"] = "mpi"
            if options["--ranks"] == 1 and rng.random() < 0.7:
                del options["--ranks"]
        density = rng.choice([0.1, 0.2, 0.35])
        dense = rng.choice([{}, STRATEGY, {**STRATEGY, **RANKS}, {**STRATEGY, **RANKS, **BF16},
                            {**STRATEGY, **TENSOR}])
        options.update({name: rng.choice(values) for name, values in choices.items()
                        if rng.random() < (0.6 if name in dense else density)})
        options = self.repair(rng, program, options)
        if rng.random() < 0.4:  # a set that other ranks and units may compute, to rounding
            for name in INEXACT:
                options.pop(name, None)
            options.update({"--dropout": 0, "--moments": "f32", "--lr": 1e-3})
        return program, options

    def draw_data(self, rng, program):
        texts = [["text.txt"], ["text.txt", "other.txt"]]
        return rng.choice(texts if program == "train_bert" else [*texts, ["rows.jsonl"], ["pairs.jsonl"]])

    def repair(self, rng, program, options):
        """Adds what an option needs, so that fewer sets are refused."""
        if "--lora" not in options:
            for name in ADAPTER:
                options.pop(name, None)
        if "--rounding" in options:
            options["--weights"] = "bf16"
        if "--weights" in options or "--residual" in options:
            options["--dtype"] = "bf16"
        if "--save-best" in options or "--eval-every" in options:
            options["--eval"] = 0.2
        if options.get("--shard") == "hybrid" or "--shard-size" in options:
            options["--shard"] = "hybrid"
            options["--shard-size"] = rng.choice([1, options.get("--ranks", 1), options.get("--ranks", 1)])
        if options.get("--shard") == "none" and (RANKS.keys() - {"--shard", "--reduce", "--nesting"}) & options.keys():
            del options["--shard"]
        if "--reduce" in options and rng.random() < 0.8:
            options.setdefault("--accumulate", 2)
        n_tensor = options.get("--tensor-parallel", 1)
        if n_tensor > 1 and program in ("fsdp_gpt", "finetune"):
            options["--ranks"] = n_tensor
        if n_tensor == 1:
            options.pop("--sequence-parallel", None)
            options.pop("--partition", None)
        if "--partition" in options:
            options["--checkpoint"] = "full"
        if options.get("--ranks", 1) == 1 and rng.random() < 0.9:
            for name in RANKS:
                options.pop(name, None)
        if "--width" in options and options["--width"] % options["--heads"] != 0:
            options["--heads"] = 2
        if "--store-fallback" in options:
            options.setdefault("--store-limit", "4KiB")
        if "--store-limit" in options and options.get("--store", "keep") == "keep":
            options["--store"] = "host"
        if "--step-in-backward" in options and rng.random() < 0.9:
            for name in "--clip", "--accumulate", "--micro-batch":
                options.pop(name, None)
        if program == "train_bert":
            options.pop("--sample", None)
        if "--device" not in options:  # a CPU has no queues
            options.pop("--stream-trace", None)
        if "--checkpoint" not in options or options["--checkpoint"] == "none":
            options.pop("--nesting", None)
        if "--model" in options:
            options.pop("--residual", None)
        if program == "finetune":
            options.pop("--save-best", None)
        if options.get("--store-fallback", "") in options.get("--store", ""):
            options.pop("--store-fallback", None)
        if "contiguous" in options.get("--store", ""):
            options.pop("--store-fallback", None)
            if options["--store"] == "contiguous" or rng.random() < 0.8:
                options.pop("--store-limit", None)
        if options.get("--store-limit") == "4KiB" and "--store-fallback" not in options and rng.random() < 0.8:
            options["--store-limit"] = "1MiB"
        options["--save"] = rng.choice(["weights/"] if program == "finetune" else ["weights", "weights/"])
        return options

    # -- ways --------------------------------------------------------------------------------------------------------

    def resume(self, rng, straight):
        program, options = straight.program, straight.options
        stop, again = rng.randrange(1, STEPS), rng.random() < 0.6
        state = {"--resume": "state"}
        begun = Run(self, program, {**options, **state, "--save-every": stop}, fault=f"0:forward:{stop + 1}:error")
        if not again:  # the state has the rest
            keeps = {"--data", "--model", "--ranks", "--backend", "--shard-size", "--tensor-parallel",
                     "--device", "--steps", "--save", *RESULTS}
            options = {name: value for name, value in options.items() if name in keeps}
        exact = True
        if rng.random() < 0.3 and not {"--checkpoint", "--store"} & straight.options.keys():
            state["--memory"] = "1GiB"
        elif rng.random() < 0.2 and "--ranks" in options and self.may_reorder(straight.options):
            options, exact = {**options, "--ranks": rng.choice([1, 2, 3])}, False
        rest = Run.__new__(Run)
        rest.folder, rest.program, rest.options, rest.report = begun.folder, program, {**options, **state}, None
        rest.start(self, None, not exact)
        if rest.report["first_step"] != stop:
            raise Failure(f"goes on from step {rest.report['first_step']}, not {stop}: {rest.shown}")
        check_same(straight, rest, f"resumed at {stop}", exact, stop)

    def plan(self, rng, straight):
        """By a budget; on the emulated device sometimes the least one, and then with what --allow names."""
        program = straight.program
        options = {name: value for name, value in straight.options.items() if name not in STRATEGY}
        exact = True
        options["--memory"] = "1GiB"
        if "--device" in options:
            try:
                Run(self, program, {**options, "--memory": "1KiB"}, may_be_refused=True)
            except Refused as refused:
                least = re.search(r"at least ([0-9.]+) ([KMG]i?B)", str(refused))
                if least is not None:
                    options["--memory"] = f"{float(least[1]) + rng.choice([0.05, 0.1, 0.3]):.2f}{least[2]}"
        if rng.random() < 0.2 and program != "finetune":  # whose defaults depend on it
            options["--allow"] = rng.choice(["loss-chunk", "micro-batches", "loss-chunk,micro-batches"])
            exact = False
        planned = Run(self, program, options, may_be_refused=True)
        if "plan" not in planned.report:
            raise Failure(f"has no plan: {planned.shown}")
        check_same(straight, planned, "planned", exact)

    def vary(self, rng, straight):
        program, options = straight.program, dict(straight.options)
        names = [name for name in PROGRAMS[program] if name in {**STRATEGY, **RANKS, "--step-in-backward": 0}]
        if options.get("--ranks", 1) == 1:
            names = [name for name in names if name not in RANKS]
        names = [name for name in names if name not in ("--compute-dtype", "--reduce-dtype")]
        is_plain = rng.random() < 0.3  # no strategy at all; else some of them are others
        if is_plain:
            options = {name: value for name, value in options.items() if name not in names or name in REORDERS_ON_RANKS}
        for name in [] if is_plain else rng.sample(names, rng.choice([1, 2, 3, 4])):
            if name in options and rng.random() < 0.5:
                del options[name]
            else:
                options[name] = rng.choice(PROGRAMS[program][name])
        if self.may_reorder(options) and rng.random() < 0.3:
            name = rng.choice(["--micro-batch", "--loss-chunk", *(["--ranks"] if "--ranks" in options else [])])
            options[name] = rng.choice(TRAINING.get(name, [1, 2, 3]))
        repaired = self.repair(rng, program, {**options})
        options = {name: repaired.get(name, value) for name, value in options.items()
                   if name in repaired or name in straight.options}
        options["--save"] = straight.options["--save"]
        changed = {name for name in {*options, *straight.options} if options.get(name) != straight.options.get(name)}
        reorders = changed & (REORDERS | (REORDERS_ON_RANKS if options.get("--ranks", 1) > 1 else set()))
        if not changed or (reorders and not self.may_reorder(straight.options)):
            return
        check_same(straight, Run(self, program, options, may_be_refused=True), f"with other {sorted(changed)}",
                   not reorders)

    def repeat(self, rng, straight):
        """By the options of its report."""
        if "--backend" in straight.options:
            return
        again = Run(self, straight.program, {"--config": straight.path("report.json"),
                                             "--save": straight.options["--save"]})
        check_same(straight, again, "repeated", True)

    @staticmethod
    def may_reorder(options):
        """FALSE where rounding, or a draw of each rank, makes a difference that grows."""
        return options.get("--dropout") == 0 and not INEXACT & options.keys() and options.get("--moments") == "f32" \
            and options.get("--lr", 1) < 1e-2 and "smollm" not in options.get("--model", "")  # which is of bf16

    def generate(self, rng, straight):
        """What the saved model continues is the same without a cache, and in a batch."""
        if straight.program == "train_bert" or straight.options["--save"] != "weights/":
            return
        model = ["--model", straight.path("weights")]
        if "--lora" in straight.options:  # the folder of the adapter has the tokenizer of its base
            model = ["--model", straight.path(straight.options["--model"]), "--adapter", straight.path("weights")]
        words = [os.path.join(BUILD, "examples", "generate"), *model, "--threads", "1", "--tokens", "6", "--seed",
                 str(rng.randrange(9)), "--temperature", rng.choice(["0", "0.8"]),
                 "--prompt", rng.choice(["The ", "Line 7", "x"])]
        texts = []
        for more in [], ["--no-cache"]:
            done = subprocess.run([*words, *more], cwd=straight.folder, capture_output=True, timeout=60, check=False)
            if done.returncode != 0 or b"CRITICAL" in done.stderr:
                raise Failure(f"status {done.returncode}, says {done.stderr!r}: {' '.join([*words, *more])}, of "
                              f"{straight.shown}")
            texts.append(done.stdout)
        if texts[0] != texts[1] and "llama-dynamic" not in str(straight.options.get("--model")):
            raise Failure(f"{texts[0]!r} with a cache, {texts[1]!r} without: {' '.join(words)}, of {straight.shown}")

    # -- trying ------------------------------------------------------------------------------------------------------

    def try_way(self, way, seed, program, options):
        """Raises what a way of the set raises, which @seed repeats."""
        straight = Run(self, program, options, may_be_refused=True)
        if way is not None:
            getattr(self, way)(random.Random(seed), straight)
        return straight

    def fails(self, way, seed, program, options):
        try:
            self.try_way(way, seed, program, options)
        except Refused:
            return None
        except Failure as failure:
            return str(failure)
        return None

    def shrink(self, way, seed, program, options, failure):
        """Leaves out options as long as the set fails in the same way."""
        smaller = True
        while smaller:
            smaller = False
            for name in sorted(options.keys() - {"--data", "--steps", "--model", "--save"}):
                fewer = {key: value for key, value in options.items() if key != name}
                again = self.fails(way, seed, program, fewer)
                if again is not None and get_kind(again) == get_kind(failure):
                    options, failure, smaller = fewer, again, True
        return failure

    def try_set(self, number):
        rng = random.Random(f"{self.seed}:{number}")
        program, options = self.draw(rng)
        outer, self.folder = self.folder, tempfile.mkdtemp(dir=self.folder)
        try:
            self.try_ways(number, program, options)
        finally:
            shutil.rmtree(self.folder)
            self.folder = outer

    def try_ways(self, number, program, options):
        try:
            straight = Run(self, program, options, may_be_refused=True)
        except Refused as refused:
            self.count_refusal("straight", refused)
            return
        except Failure as failure:
            self.note(number, None, program, options, str(failure))
            return
        self.n_sets += 1
        self.by_program[program] += 1
        for way in "resume", "plan", "vary", "repeat", "generate":
            seed = f"{self.seed}:{number}:{way}"
            try:
                getattr(self, way)(random.Random(seed), straight)
                self.ways[way] += 1
            except Refused as refused:
                self.count_refusal(way, refused)
            except Failure as failure:
                self.note(number, way, program, options, str(failure))

    def count_refusal(self, way, refused):
        self.refusals[way + ": " + re.sub(r"/\S+", "PATH", re.sub(r"\d[\d.]*", "N", str(refused)))] += 1

    def note(self, number, way, program, options, failure):
        print(f"FAIL seed {self.seed}, set {number}, {way or 'straight'}: {show(program, options)}\n  {failure}",
              flush=True)
        self.failures.append((number, way))
        smallest = self.shrink(way, f"{self.seed}:{number}:{way}", program, options, failure)
        print(f"  smallest: {smallest}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true", help="an hour, with MPI")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, help="sets that no program refuses")
    parser.add_argument("--first", type=int, default=0, help="number of the first set")
    parser.add_argument("--seconds", type=float)
    arguments = parser.parse_args()
    seconds = arguments.seconds or (3600 if arguments.long else 38 if arguments.count is None else 1e9)
    began, number = time.monotonic(), arguments.first
    with tempfile.TemporaryDirectory(prefix="ebb-option-matrix-") as folder:
        matrix = Matrix(folder, arguments.seed, arguments.long)
        while time.monotonic() - began < seconds and (arguments.count is None or matrix.n_sets < arguments.count):
            matrix.try_set(number)
            number += 1
    for text, n in matrix.refusals.most_common():
        print(f"{n:5} refused, {text}")
    print(f"seed {arguments.seed}: {number - arguments.first} sets from {arguments.first} on, {matrix.n_sets} not "
          f"refused ({dict(matrix.by_program)}), ways {dict(matrix.ways)}, {matrix.n_runs} runs, "
          f"{len(matrix.failures)} failures in {time.monotonic() - began:.0f} s")
    if matrix.failures or matrix.n_sets == 0:
        sys.exit(1)


if __name__ == "__main__":
    main()
