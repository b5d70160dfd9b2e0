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
import signal
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
OF_DATA = object()  # a file of the kind of --data
# Each option with its choices; most sets leave most options out.
TRAINING = {"--batch": [1, 2, 3, 4, 6], "--micro-batch": [1, 2, 3], "--accumulate": [2, 3], "--lr": [1e-4, 1e-3, 1e-2],
            "--schedule": ["cosine", "constant"], "--warmup": [1, 2], "--min-lr": [1e-5], "--weight-decay": [0, 0.1],
            "--decayed": ["all"], "--clip": [0.1, 1], "--seed": [1, 2, 99], "--dropout": [0, 0.1, 0.5],
            "--eval": [0.2, 0.2, OF_DATA], "--eval-every": [1, 2, 3], "--loss-chunk": ["1KiB", "16KiB"],
            "--moments": ["f32", "bf16", "8bit"], "--step-in-backward": [FLAG], "--dtype": ["bf16"],
            "--device": ["sim"], "--save-best": ["best/", "best"], "--log": ["log"], "--sample": [5],
            "--prompt": ["Line "], "--temperature": [0, 1.5], "--top-k": [0, 3], "--quiet": [FLAG],
            "--overwrite": [FLAG], "--profile": ["profile.json"], "--profile-steps": [1, 2],
            "--stream-trace": ["streams.json"], "--memory-timeline": ["timeline.html", "timeline.svg"]}
STRATEGY = {"--checkpoint": ["none", "selective", "full"],
            "--store": ["keep", "host", "disk", "contiguous", "contiguous+host", "contiguous+disk"],
            "--store-limit": ["4KiB", "1MiB"], "--store-fallback": ["keep", "host", "disk"], "--store-folder": ["."],
            "--prefetch": [0, 2]}
BF16 = {"--weights": ["bf16"], "--rounding": ["random", "nearest", "master"]}
RANKS = {"--shard": ["full", "none", "hybrid"], "--shard-size": [1, 2], "--wrap": ["block", "model", 1, 64, 700, 2000],
         "--reshard": ["always", "never", "auto"], "--flatten": [FLAG], "--compute-dtype": ["f32", "bf16"],
         "--reduce-dtype": ["f32", "bf16"], "--offload-parameters": [FLAG],
         "--nesting": ["shard-outside", "checkpoint-outside"], "--reduce": ["step", "batch"]}
TENSOR = {"--tensor-parallel": [2, 3], "--sequence-parallel": [FLAG], "--partition": [FLAG]}
SIZES = {"--layers": [1, 2, 3], "--width": [12, 24, 48], "--heads": [2, 3, 6], "--context": [8, 16, 24],
         "--vocab": [256, 300]}
SHAPE = {"--lora-targets": ["q_proj,v_proj", "*proj", "c_attn", "down_proj"], "--lora-alpha": [1, 16],
         "--lora-dropout": [0.1], "--rslora": [FLAG]}
ADAPTER = {**SHAPE, "--base": ["int8", "nf4"]}
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
RESULTS = {"--save-best", "--log", "--profile", "--profile-steps", "--stream-trace", "--memory-timeline"}
SAMPLING = {"--sample", "--prompt", "--temperature", "--top-k"}
# What --allow may take, as a report has it.
CONCEDED = {"loss_chunk": "--loss-chunk", "micro_batch": "--micro-batch", "moments": "--moments",
            "residual": "--residual", "step_in_backward": "--step-in-backward", "weights": "--weights"}
WAYS = ["repeat", "overwrite", "reload", "merge", "estimate", "generate"]  # besides, of each set two of these
# Options that draw () and the ways give to sets.
GIVEN = {"--adapter", "--allow", "--backend", "--config", "--data", "--epochs", "--estimate", "--load", "--lora",
         "--memory", "--merge", "--model", "--no-partition", "--no-sequence-parallel", "--plan", "--preset", "--ranks",
         "--report", "--resume", "--save", "--save-every", "--steps", "--threads", "--tokenizer"}
# --timeout changes no result. Nor are there the values that need a GPU: nccl of --backend and cuda of --device.
LEFT_OUT = {"--help", "--help-all", "--timeout", "--version"}
ALLOWED = ["loss-chunk", "micro-batches", "bf16-moments", "8bit-moments", "bf16-residual", "step-in-backward"]


def count_models(options):
    return options.get("--ranks", 1) // options.get("--tensor-parallel", 1)


# Texts by which programs refuse a set before its first step. Each text has a condition that the options @o must
# fulfill: a refusal without its reason is a failure. @m: the match of the text.
REFUSALS = [(re.compile(text), is_right) for text, is_right in [
    # Options that need others, or exclude them.
    (r"--nesting \S+: it needs --checkpoint selective or full",
     lambda o, m: "--nesting" in o and o.get("--checkpoint", "none") in ("none", "auto")),
    (r"--partition: it needs --checkpoint full", lambda o, m: "--partition" in o and o.get("--checkpoint") != "full"),
    (r"--partition and --sequence-parallel: what blocks keep is divided among the ranks by tokens already: leave "
     r"--partition out", lambda o, m: {"--partition", "--sequence-parallel"} <= o.keys()),
    (r"--shard hybrid: --shard-size is missing: say how many ranks share one model",
     lambda o, m: o.get("--shard") == "hybrid" and "--shard-size" not in o),
    (r"--shard-size \d+: it needs --shard hybrid, not \S+",
     lambda o, m: "--shard-size" in o and o.get("--shard") != "hybrid"),
    (r"--(flatten|offload-parameters|compute-dtype|reduce-dtype): it needs --shard full or hybrid, not none",
     lambda o, m: f"--{m[1]}" in o and o.get("--shard") == "none"),
    (r"--step-in-backward and --(clip|accumulate|micro-batch) \S+: .*",
     lambda o, m: {"--step-in-backward", f"--{m[1]}"} <= o.keys()),
    (r"--store-folder \S+: it needs --store disk, not \S+",
     lambda o, m: "--store-folder" in o and "disk" not in o.get("--store", "") + o.get("--store-fallback", "")),
    (r"--store-(limit|fallback) \S+: it needs --store host or disk, not \S+",
     lambda o, m: f"--store-{m[1]}" in o and o.get("--store") not in ("host", "disk")),
    (r"--store-fallback \S+: it must be another store than --store",
     lambda o, m: o.get("--store-fallback") == o.get("--store")),
    (r"--rounding \S+: the weights below an adapter don't move: leave it out",
     lambda o, m: "--rounding" in o and {"--lora", "--adapter"} & o.keys()),
    # Numbers that don't divide others.
    (r"--shard-size (\d+): it must divide (the \d+ models of --ranks \d+ and --tensor-parallel \d+|--ranks \d+|"
     r"the \d+ ranks|the \d+ models)", lambda o, m: count_models(o) % o.get("--shard-size", 1) != 0),
    (r"--tensor-parallel \d+: it must divide --ranks \d+",
     lambda o, m: o.get("--ranks", 1) % o.get("--tensor-parallel", 1) != 0),
    (r"--tensor-parallel (\d+): (\d+) heads can't be divided among \d+ ranks",
     lambda o, m: int(m[1]) == o.get("--tensor-parallel") and int(m[2]) % int(m[1]) != 0),
    (r"--sequence-parallel: --context (\d+) can't be divided among (\d+) ranks",
     lambda o, m: "--sequence-parallel" in o and int(m[1]) % o.get("--tensor-parallel") != 0),
    (r"layers\.\S+: its (nf4|int8) weight \S+ \S+ can't be divided among \d+ ranks along dimension \d: the ranks' "
     r"shards must be equal and whole blocks of 64 elements, which int8 does not have",
     lambda o, m: "--tensor-parallel" in o and "nf4" in (o.get("--base"), o["--model"].rsplit("/", maxsplit=1)[1])),
    (r"--eval 0.2: \S+: a share of 0.2 can't be held out of 1 document: none would be left",
     lambda o, m: o.get("--eval") == 0.2 and "--pack" in o and len(o["--data"]) == 1),
    (r"a vocabulary of 256: --tokenizer byte has 257 tokens, so --vocab must be at least that",
     lambda o, m: o.get("--vocab") == 256),
    # Memory.
    (r"--memory \S+: [0-9.]+ (MiB|bytes?) is too little: the training needs at least .*", lambda o, m: "--memory" in o),
    (r"--memory \S+?(, shared by \d+ ranks)?: a budget of [0-9.]+ (MiB|bytes?) is too small: the step needs .*",
     lambda o, m: "--memory" in o and o.get("--device") == "sim"),
    (r".*: (disk store in .*: no room for \d+ bytes: \d+ of the \d+ bytes that it may use are taken; raise "
     r"--store-limit|the host store is full: \d+ bytes asked for, \d+ of \d+ in use(, [^;]*)?; raise --store-limit, or "
     r"name a --store-fallback)(; no state was saved.*)?",
     lambda o, m: "--store-limit" in o and "--store-fallback" not in o),
    # Adapters.
    (r"--lora \d+: lora: the target \"\S+\" matches no linear layer of this Gpt; it has .*",
     lambda o, m: "--lora-targets" in o),
    (r"--save \S+: lora: a folder of phi3 has the weight of \S+ joined with others, so an adapter with it has no form "
     r"there: leave it out of the targets", lambda o, m: "--lora" in o and "phi3" in o["--model"]),
    (r"\S+: the weights are nf4 already, not to be quantised to int8",
     lambda o, m: o.get("--base") == "int8" and o["--model"].endswith("nf4")),
    (r"--merge \S+: lora: the weight of \S+ is nf4, and adding to it would round it again: save the adapter, and merge "
     r"it into the model with full weights", lambda o, m: o["--model"].endswith("nf4")),
    # Folders of others.
    (r"--save \S+: its (adapter_)?config.json is not this (model|adapter)'s: name a new or an empty folder, or replace "
     r"it by --overwrite", lambda o, m: "--overwrite" not in o),
    (r"--save \S+: it is a folder with files that are not (a model|an adapter)'s: name a new or an empty folder, or "
     r"write beside them by --overwrite", lambda o, m: "--overwrite" not in o),
]]


def is_right_refusal(said, options):
    """Whether a program may say this of the options."""
    said = re.sub(r"^(--resume \S+: |rank \d+( of \d+)?: )+| \(\S+ --help(-all)? lists the options\)$", "", said)
    return any((match := text.fullmatch(said)) and is_right(options, match) for text, is_right in REFUSALS)


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
    with open(os.path.join(folder, "chats.jsonl"), "w", encoding="utf-8") as file:
        file.writelines(json.dumps(make_chat(n)) + "\n" for n in range(1, 40))


def make_chat(n):
    """A conversation of one or two turns; some answers aren't learned."""
    messages = [{"role": "system", "content": "Count."}] if n % 3 == 0 else []
    for turn in range(n % 2 + 1):
        answer = {"role": "assistant", "content": f"{n + turn} it is. " * (n % 4 + 1)}
        if n % 5 == 1:
            answer["weight"] = 1 - turn
        if n % 7 == 2:
            answer["train"] = turn == 0
        messages += [{"role": "user", "content": f"What is {n}?"}, answer]
    return {"messages": messages, "number": n}


def make_tokenizer(program, folder, families):
    """Gives the models the tokenizer of bytes that the program writes."""
    subprocess.run([os.path.join(BUILD, "examples", program), "--data", "texts/text.txt", "--steps", "1", "--save",
                    f"{program}/", "--quiet"], cwd=folder, check=True, timeout=60)
    for family in families:
        for name in "tokenizer.json", "tokenizer_config.json":
            shutil.copy(os.path.join(folder, program, name), os.path.join(folder, "models", family))


def check_options(program):
    """A new option has to be among those above."""
    said = subprocess.run([os.path.join(BUILD, "examples", program), "--help-all"], capture_output=True, check=True,
                          text=True, timeout=60).stdout
    others = set(re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", said, re.M)) \
        - {*PROGRAMS[program], *SIZES, *ADAPTER, *GIVEN, *LEFT_OUT}
    if others:
        sys.exit(f"{program} has options that no set has: {' '.join(sorted(others))}")


def list_words(options):
    return [word for name, value in options.items()
            for word in ([name] if value is FLAG else [name, *(value if isinstance(value, list) else [value])])]


def show(program, options):
    return " ".join([program, *map(str, list_words(options))])


class Run:
    """One program with its options, in a folder of its own, or in @folder. @begun_with: options of a state there."""

    def __init__(self, matrix, program, options, fault=None, may_be_refused=False, folder=None, begun_with=None):
        self.folder, self.begun_with = folder or tempfile.mkdtemp(dir=matrix.folder), begun_with or {}
        self.program, self.options = program, dict(options)
        self.report, self.printed = None, None
        self.start(matrix, fault, may_be_refused)

    def start(self, matrix, fault, may_be_refused):
        more = {} if "--merge" in self.options else {"--report": "report.json"}
        options, launcher = {"--threads": 1, **self.options, **more}, []
        if options.get("--backend") == "mpi":
            launcher = [MPIRUN, "-n", str(options.pop("--ranks", 1)), "--oversubscribe"]
        environment = {**os.environ, "TMPDIR": self.folder, "XDG_CACHE_HOME": matrix.cache, "NO_COLOR": "1",
                       "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                       "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
        if fault is not None:
            environment["EBB_GPT_JOB_FAULT"] = fault
        words = [*launcher, os.path.join(BUILD, "examples", self.program), *map(str, list_words(options))]
        matrix.n_runs += 1
        self.shown = show(self.program, {**self.options, **more})
        try:
            done = subprocess.run(words, cwd=self.folder, env=environment, timeout=60, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        except subprocess.TimeoutExpired as error:
            raise Failure(f"hangs: {self.shown}") from error
        said, self.printed = done.stderr.decode(errors="replace"), done.stdout
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
           or not is_right_refusal(said[len(f"{self.program}: "):], {**self.begun_with, **self.options}):
            raise Failure(f"status {status}, says {said!r}: {self.shown}")
        raise Refused(said)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def read_log(self):
        """Each step's numbers that don't depend on the machine; None without --log."""
        path = self.path("log", "steps.jsonl")
        if not os.path.exists(path):
            return None
        with open(path, encoding="utf-8") as file:
            return [[line.get(key) for key in ("step", "loss", "lr", "eval_loss")] for line in map(json.loads, file)]


def get_kind(failure):
    """What failures have in common that are the same: what is said, but for numbers, paths, and names of options."""
    return re.sub(r"/\S+|rank \d+( of \d+)?: |\d+|with other \[.*?\]", "", failure)[:160]


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
    if not exact:
        return
    for option in "--save", "--save-best":
        if straight.options.get(option) == run.options.get(option):
            check_same_files(straight, run, straight.options.get(option), what)
    logs = straight.read_log(), run.read_log()
    if None not in logs and logs[0] != logs[1]:
        raise Failure(f"{what}: another log, {logs}:\n  {straight.shown}\n  {run.shown}")
    if {"--quiet", "--sample"} <= straight.options.keys() & run.options.keys() and straight.printed != run.printed:
        raise Failure(f"{what}: {run.printed!r} is sampled, not {straight.printed!r}:\n  {straight.shown}\n  "
                      f"{run.shown}")


def check_same_files(straight, run, name, what):
    """Compares a file, or all of a folder."""
    if name is None or not os.path.exists(straight.path(name)):  # a loss that is no number is never the best
        return
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
        shutil.copytree(os.path.join(FIXTURES, "chat-model"), os.path.join(folder, "models", "chat"))
        shutil.copy(os.path.join(FIXTURES, "gguf", "chat-model.gguf"), os.path.join(folder, "models", "chat.gguf"))
        os.mkdir(os.path.join(folder, "texts"))
        make_texts(os.path.join(folder, "texts"))
        for program, families in ("train_gpt", [*FAMILIES, "nf4"]), ("train_bert", ["bert"]):
            make_tokenizer(program, folder, families)
        for program in PROGRAMS:
            check_options(program)
        self.outer, self.n_runs, self.n_sets = folder, 0, 0
        self.refusals, self.ways, self.by_program = (collections.Counter() for _ in range(3))
        self.failures = []

    # -- sets --------------------------------------------------------------------------------------------------------

    def draw(self, rng):
        program = rng.choices(list(PROGRAMS), [2, 4, 3, 2])[0]
        choices = PROGRAMS[program]
        options = {"--data": None, "--steps": STEPS}
        if program == "finetune" or rng.random() < 0.4:
            family = "bert" if program == "train_bert" else rng.choice([*FAMILIES, "chat", "chat", "chat.gguf"])
            options["--model"] = f"../../models/{family}"
            if program == "finetune" and rng.random() < 0.5:
                choices = {**choices, **self.draw_adapter(rng, options)}
            options["--context"] = rng.choice([8, 16])
        else:
            options.update(self.draw_sizes(rng, program))
        options["--data"], of_data = self.draw_data(rng, program, "chat" in str(list(options.values())))
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
        if options.get("--eval") is OF_DATA:
            options["--eval"] = of_data
        if program == "finetune" and rng.random() < 0.1:
            del options["--steps"]
            options["--epochs"] = rng.choice([0.01, 0.02, 0.2])
        options = self.repair(rng, program, options)
        if rng.random() < (0.3 if options.get("--store", "keep") == "keep" else 0.8):
            options["--batch"] = rng.choice([32, 64])  # stores keep tensors of less than 64 KiB in place
            if options.get("--micro-batch", 32) < 32:
                options["--micro-batch"] = rng.choice([24, 32])
        if rng.random() < 0.4:  # a set that other ranks and units may compute, to rounding
            for name in INEXACT:
                options.pop(name, None)
            options.update({"--dropout": 0, "--moments": "f32", "--lr": 1e-3})
        return program, options

    def draw_adapter(self, rng, options):
        """A new adapter, or one to train further; maybe of another base. Returns the choices that it adds."""
        family = options["--model"].rsplit("/", maxsplit=1)[1]
        if rng.random() < 0.3:
            options["--adapter"] = "../../" + self.make_adapter(family, rng.random() < 0.2)
            return {name: values for name, values in ADAPTER.items() if name not in SHAPE}
        options["--model"] = f"../../models/{rng.choice([family, family, 'nf4'])}"
        options["--lora"] = rng.choice([1, 2, 4])
        return ADAPTER

    def draw_sizes(self, rng, program):
        """Sizes of a new model, or weights that have them."""
        options = {name: rng.choice(values) for name, values in SIZES.items() if name != "--vocab"}
        if options["--width"] % options["--heads"] != 0:
            options["--heads"] = 2
        if rng.random() < 0.2:
            options["--preset"] = "tiny"  # the sizes replace its own
        if rng.random() < 0.2:
            folder = self.make_weights(program, options)
            options["--load"] = f"../../{folder}/" + ("model.safetensors" if rng.random() < 0.5 else "file")
            if options["--load"].endswith("model.safetensors"):  # whose config.json has the sizes
                options = {name: value for name, value in options.items()
                           if name != "--preset" and (name not in SIZES or rng.random() < 0.3)}
            options["--tokenizer"] = "byte" if program != "train_bert" and rng.random() < 0.5 else f"../../{folder}"
        elif program != "train_bert" and rng.random() < 0.2:
            options["--tokenizer"] = "../../models/chat"
        elif rng.random() < 0.2:
            options["--vocab"] = rng.choice(SIZES["--vocab"])
        return options

    def draw_data(self, rng, program, has_template):
        """Files to train on, and one of their kind."""
        texts = [["text.txt"], ["text.txt", "other.txt"]]
        lines = [["rows.jsonl"], ["pairs.jsonl"], *([["chats.jsonl"]] * 4 if has_template else [])]
        names = rng.choice(texts if program == "train_bert" else texts + lines)
        return ([f"../../texts/{name}" for name in names],
                f"../../texts/{rng.choice(lines)[0] if names in lines else 'other.txt'}")

    # -- what sets begin with ----------------------------------------------------------------------------------------

    def make(self, name, program, options):
        """Trains for a step, the first time that a set needs that; returns the name below the outer folder."""
        if not os.path.exists(os.path.join(self.outer, name)):
            subprocess.run([os.path.join(BUILD, "examples", program), "--data", "texts/text.txt", "--steps", "1",
                            "--lr", "1e-2", *map(str, list_words(options)), "--save", name, "--quiet"], cwd=self.outer,
                           check=True, timeout=60, stdin=subprocess.DEVNULL)
        return name

    def make_adapter(self, family, is_gguf):
        options = {"--model": f"models/{family}", "--context": 8, "--lora": 2}
        if family.startswith("phi3"):  # whose folder joins the other layers
            options["--lora-targets"] = "o_proj,down_proj"
        return self.make(f"adapter-{family}" + (".gguf" if is_gguf else ""), "finetune", options)

    def make_weights(self, program, sizes):
        name = f"{program}-" + "-".join(str(sizes[name]) for name in SIZES if name in sizes)
        sizes = {one: value for one, value in sizes.items() if one in SIZES}
        self.make(name + "/", program, sizes)
        self.make(name + "/file", program, sizes)
        return name

    def repair(self, rng, program, options):
        """Adds what an option needs, so that fewer sets are refused."""
        if "--lora" not in options and "--adapter" not in options:
            for name in ADAPTER:
                options.pop(name, None)
        if "--rounding" in options:
            options["--weights"] = "bf16"
        if "--weights" in options or "--residual" in options:
            options["--dtype"] = "bf16"
        if "--save-best" in options or "--eval-every" in options:
            options.setdefault("--eval", 0.2)
        if "--eval" in options and "--pack" in options and isinstance(options["--eval"], str):
            options["--eval"] = "../../texts/other.txt"
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
        if "--store-fallback" in options:
            options.setdefault("--store-limit", "4KiB")
        if "--store-limit" in options and options.get("--store", "keep") == "keep":
            options["--store"] = "host"
        if "--step-in-backward" in options and rng.random() < 0.9:
            for name in "--clip", "--accumulate", "--micro-batch":
                options.pop(name, None)
        if program == "train_bert":
            for name in SAMPLING:
                options.pop(name, None)
        if "--profile" not in options:
            options.pop("--profile-steps", None)
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
        if "disk" not in options.get("--store", "") + options.get("--store-fallback", ""):
            options.pop("--store-folder", None)
        if options.get("--store-limit") == "4KiB" and "--store-fallback" not in options and rng.random() < 0.8:
            options["--store-limit"] = "1MiB"
        names = ["weights/"] if program == "finetune" else ["weights", "weights/"]
        if "chat" in options.get("--model", "") or "--adapter" in options or "--lora" in options:
            names.append("weights.gguf")
        options["--save"] = rng.choice(names)
        return options

    # -- ways --------------------------------------------------------------------------------------------------------

    def resume(self, rng, straight):
        program, options, n_steps = straight.program, straight.options, straight.report["last_step"]
        if n_steps < 2:
            return
        stop, again = rng.randrange(1, n_steps), rng.random() < 0.6
        state = {"--resume": "state"}
        grows = rng.random() < 0.3 and not {"--eval", "--epochs", *RESULTS} & options.keys() \
            and options.get("--schedule", "cosine" if program == "finetune" else "constant") == "constant"
        if grows:  # the first part ends by itself, and saves
            begun = Run(self, program, {**options, **state, "--steps": stop})
        else:
            begun = Run(self, program, {**options, **state, "--save-every": stop}, fault=f"0:forward:{stop + 1}:error")
        if not again:  # the state has the rest
            keeps = {"--data", "--model", "--adapter", "--tokenizer", "--ranks", "--backend", "--shard-size",
                     "--tensor-parallel", "--device", "--steps", "--save", "--quiet", *RESULTS, *SAMPLING}
            options = {name: value for name, value in options.items() if name in keeps}
        exact = True
        if rng.random() < 0.3 and not {"--checkpoint", "--store"} & straight.options.keys():
            state["--memory"] = "1GiB"
            if rng.random() < 0.5:
                state["--plan"] = "plan.json"
        elif rng.random() < 0.3 and "--partition" in straight.options:
            options, exact = {name: value for name, value in options.items() if name != "--partition"}, True
            state["--no-partition"] = FLAG
        elif rng.random() < 0.3 and "--sequence-parallel" in straight.options and self.may_reorder(straight.options):
            options = {name: value for name, value in options.items() if name != "--sequence-parallel"}
            state["--no-sequence-parallel"], exact = FLAG, False
        elif rng.random() < 0.2 and "--ranks" in options and self.may_reorder(straight.options) \
                and (self.has_batch(program, options) or not again):
            options, exact = {**options, "--ranks": rng.choice([1, 2, 3])}, False
        rest = Run(self, program, {**options, **state}, may_be_refused=not exact, folder=begun.folder,
                   begun_with=straight.options)
        if rest.report["first_step"] != stop:
            raise Failure(f"goes on from step {rest.report['first_step']}, not {stop}: {rest.shown}")
        check_same(straight, rest, f"resumed at {stop}", exact, stop)

    def plan(self, rng, straight):
        """By a budget, on the emulated device by the least that a refusal names or a little more. What --allow takes is
        compared with a training that has the options for that. The plan's file does the same."""
        program, keeps = straight.program, rng.random() < 0.3
        options = {name: value for name, value in straight.options.items() if keeps or name not in STRATEGY}
        options["--memory"] = rng.choice(["1GiB", "1GiB", "auto"])
        if "--checkpoint" not in options:
            for name in "--nesting", "--partition":
                options.pop(name, None)
        if rng.random() < 0.3:
            options["--plan"] = "plan.json"
        if rng.random() < 0.3:
            options["--allow"] = ",".join(rng.sample(ALLOWED, rng.choice([1, 2, 6])))
        if "--device" in options:
            try:
                Run(self, program, {**options, "--memory": "1KiB"}, may_be_refused=True)
            except Refused as refused:
                least = re.search(r"together need --memory ([0-9.]+)MiB", str(refused)) \
                    or re.search(r"needs at least ([0-9.]+) MiB", str(refused))
                if least is None:  # the store is full
                    raise
                options["--memory"] = f"{float(least[1]) * rng.choice([1, 1, 1.1, 1.5]):.3f}MiB"
        elif options["--memory"] == "auto" and not {"--allow", "--checkpoint"} & options.keys():
            del options["--memory"]
            options["--checkpoint"] = "auto"
        # Steps that planning tries may keep more in a store than the training does.
        may_be_full = "--store-limit" in options and "--store-fallback" not in options
        planned = Run(self, program, options, may_be_refused=may_be_full)
        if "plan" not in planned.report:
            raise Failure(f"has no plan: {planned.shown}")
        configs = [run.report["config"] for run in (straight, planned)]
        taken = {name: configs[1][key] for key, name in CONCEDED.items() if configs[0].get(key) != configs[1].get(key)}
        if taken:
            if "--allow" not in options and program != "finetune":
                raise Failure(f"takes {taken}, which nobody allowed: {planned.shown}")
            for name in taken.keys() & {"--step-in-backward"}:
                taken[name] = FLAG
            straight = Run(self, program, {**straight.options, **taken}, may_be_refused=True)
        check_same(straight, planned, "planned", True)
        if "--plan" in options:
            options["--plan"] = planned.path("plan.json")
            if rng.random() < 0.5:
                options.pop("--memory", None)
                options.pop("--allow", None)
                options.update(taken)
            check_same(straight, Run(self, program, options), "planned by a file", True)

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
            may_change = "--ranks" in options and self.has_batch(program, options)
            name = rng.choice(["--micro-batch", "--loss-chunk", *(["--ranks"] if may_change else [])])
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
        """By the options of its report, or into its own folder, which needs no --overwrite."""
        if rng.random() < 0.3:
            folder = tempfile.mkdtemp(dir=self.folder)
            for name in "weights", "weights.gguf", "best":
                if os.path.isdir(straight.path(name)):
                    shutil.copytree(straight.path(name), os.path.join(folder, name))
            check_same(straight, Run(self, straight.program, straight.options, folder=folder), "repeated there", True)
        elif "--backend" not in straight.options:
            again = Run(self, straight.program, {"--config": straight.path("report.json"),
                                                 "--save": straight.options["--save"]})
            check_same(straight, again, "repeated", True)

    def overwrite(self, rng, straight):
        """A folder of another model is replaced by --overwrite alone, and its other files stay."""
        if straight.options["--save"] != "weights/":
            return
        folder = tempfile.mkdtemp(dir=self.folder)
        shutil.copytree(os.path.join(self.outer, "models", "gemma3"), os.path.join(folder, "weights"))
        for name in "tokenizer.json", "tokenizer_config.json":  # which stay, and a message says so
            os.remove(os.path.join(folder, "weights", name))
        if rng.random() < 0.5:  # other files than a model's
            os.rename(os.path.join(folder, "weights", "config.json"), os.path.join(folder, "weights", "notes.txt"))
        else:
            shutil.copy(os.path.join(folder, "weights", "config.json"), os.path.join(folder, "weights", "notes.txt"))
        if "gemma3" not in straight.options.get("--model", "") or "--lora" in straight.options:
            options = {name: value for name, value in straight.options.items() if name != "--overwrite"}
            try:
                Run(self, straight.program, options, may_be_refused=True, folder=folder)
            except Refused as refused:
                if "overwrite" not in str(refused):
                    raise
            else:
                raise Failure(f"replaces a folder of others: {show(straight.program, options)}")
        options = {**straight.options, "--overwrite": FLAG}
        check_same(straight, Run(self, straight.program, options, folder=folder), "over another folder", True)
        if not os.path.exists(os.path.join(folder, "weights", "notes.txt")):
            raise Failure(f"removes other files: {show(straight.program, options)}")

    def reload(self, rng, straight):
        """The saved weights have the held-out loss that was measured last, or with finetune the least loss."""
        options, saved = dict(straight.options), straight.path(straight.options["--save"])
        has_adapter, has_folder = bool({"--lora", "--adapter"} & options.keys()), not saved.endswith("weights")
        is_lower = {"--weights", "--dtype"} & options.keys() or "smollm" in options.get("--model", "")
        if "--eval" not in options or is_lower or ("--model" in options and not has_folder):
            return  # weights are saved in another type than they were measured in, or a folder's in a file
        for name in {*RESULTS, *SAMPLING, *SHAPE, "--save", "--lora", "--load", "--overwrite", "--preset", "--epochs",
                     "--step-in-backward"}:
            options.pop(name, None)
        options["--steps"] = 0
        if has_adapter:
            options["--adapter"] = saved
        elif not has_folder:
            options.update({name: straight.report["config"][name[2:]] for name in SIZES}, **{"--load": saved})
        else:
            options = {name: value for name, value in options.items() if name not in {*SIZES, "--residual"}}
            options.update({"--model": saved.rstrip("/"), "--context": straight.report["config"]["context"]})
        again = Run(self, straight.program, options).report["evaluations"][0]["loss"]
        trained = straight.report["best_loss"] if straight.program == "finetune" \
            else straight.report["evaluations"][-1]["loss"]
        if again != trained:
            raise Failure(f"the saved weights' held-out loss is {again}, not {trained}:\n  {straight.shown}\n  "
                          f"{show(straight.program, options)}")

    def merge(self, rng, straight):
        """A merged model computes what its adapter did."""
        if not {"--lora", "--adapter"} & straight.options.keys():
            return
        model, adapter = straight.options["--model"], straight.path(straight.options["--save"])
        options = {"--model": model, "--merge": adapter, "--save": "merged"}
        merged = Run(self, "finetune", options, may_be_refused=True)
        Run(self, "finetune", {**options, "--quiet": FLAG}, folder=merged.folder)  # over its own result
        options = {"--steps": 0, "--eval": "../../texts/other.txt", "--context": 16, "--dtype": "f32"}
        losses = [Run(self, "finetune", {**options, **more}).report["evaluations"][0]["loss"]
                  for more in ({"--model": model, "--adapter": adapter}, {"--model": merged.path("merged")})]
        if abs(losses[0] - losses[1]) > (3e-2 if "smollm" in model else 1e-4) * max(1, losses[0]):
            raise Failure(f"the merged model's loss is {losses[1]}, the adapter's {losses[0]}: {merged.shown}\n  "
                          f"{straight.shown}")

    def estimate(self, rng, straight):
        """To the byte, and without files but the report and the timeline."""
        run = Run(self, straight.program, {**straight.options, "--estimate": FLAG})
        written = set(os.listdir(run.folder)) - {"report.json", run.options.get("--memory-timeline")}
        if written:
            raise Failure(f"writes {written}: {run.shown}")
        others = {"--eval", *RESULTS, *SAMPLING} & run.options.keys()  # they take memory, too
        ranks = straight.report.get("ranks", [straight.report])
        bytes_of = [run.report["predicted_peak_bytes"], max(rank["peak_bytes"] for rank in ranks)]
        if straight.report["last_step"] > 1 and not others and bytes_of[0] != bytes_of[1]:
            raise Failure(f"{bytes_of[0]} bytes are estimated, not {bytes_of[1]}: {run.shown}")

    @staticmethod
    def has_batch(program, options):
        """FALSE where the batch depends on the number of ranks."""
        return program != "finetune" or "--batch" in options

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
        if {"--lora", "--adapter"} & straight.options.keys():  # the folder of the adapter has the tokenizer of its base
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
        for way in "resume", "plan", "vary", *random.Random(f"{self.seed}:{number}:ways").sample(WAYS, 2):
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
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            while time.monotonic() - began < seconds and (arguments.count is None or matrix.n_sets < arguments.count):
                matrix.try_set(number)
                number += 1
        except KeyboardInterrupt:  # what was done is told, and the folder removed
            pass
    for text, n in matrix.refusals.most_common():
        print(f"{n:5} refused, {text}")
    print(f"seed {arguments.seed}: {number - arguments.first} sets from {arguments.first} on, {matrix.n_sets} not "
          f"refused ({dict(matrix.by_program)}), ways {dict(matrix.ways)}, {matrix.n_runs} runs, "
          f"{len(matrix.failures)} failures in {time.monotonic() - began:.0f} s")
    if matrix.failures or matrix.n_sets == 0:
        sys.exit(1)


if __name__ == "__main__":
    main()
