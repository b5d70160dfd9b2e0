#!/usr/bin/python3
"""Measures what ranks hold and send, and writes it into the tables and printed blocks of docs/parallel.md.

    docs/figures/parallel.py [--check]

Ranks are threads of one process, each with a memory account of its own, so any machine will do, and every run gives the
same. With --check nothing is written: it fails if the document says something else. What products use besides their
operands differs from one processor to another, so numbers with a fraction may differ by 2 %; whole ones, of calls and of
bytes that are sent and kept, are as they stand.
From a build folder that is not installed:

    export GI_TYPELIB_PATH=build/release LD_LIBRARY_PATH=build/release PYTHONPATH=bindings/python
"""
import contextlib
import difflib
import io
import json
import os
import re
import subprocess
import sys
import tempfile

import gi

gi.require_version("Ebb", "1.0")
from gi.repository import Ebb  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("EBB_BUILD_DIR", os.path.join(ROOT, "build", "release"))
PROGRAM = os.path.join(BUILD, "examples", "fsdp_gpt")
DOCUMENT = os.path.join(ROOT, "docs", "parallel.md")
TEXT = os.path.join(ROOT, "docs", "benchmarks.md")
MODEL = ["--layers", "6", "--width", "256", "--heads", "8", "--context", "64", "--batch", "8", "--steps", "2",
         "--dropout", "0", "--threads", "1", "--checkpoint", "full"]
LAYERS, WIDTH, CONTEXT, VOCAB = 6, 256, 64, 256
BLOCK = WIDTH * (12 * WIDTH + 13)
ROOT_UNIT = WIDTH * (VOCAB + CONTEXT + 2)
MIB = 1 << 20


# -- fsdp_gpt ---------------------------------------------------------------------------------------------------------

def train(*words):
    with tempfile.TemporaryDirectory(prefix="ebb-parallel-") as folder:
        path = os.path.join(folder, "report.json")
        subprocess.run([PROGRAM, "--data", TEXT, *MODEL, "--quiet", "--report", path, *map(str, words)], check=True)
        with open(path, encoding="utf-8") as file:
            return json.load(file)


def mib(n_bytes):
    return f"{n_bytes / MIB:.2f}"


def table(titles, rows):
    yield "| " + " | ".join(titles) + " |"
    yield "|" + "---|" * len(titles)
    for row in rows:
        yield "| " + " | ".join(map(str, row)) + " |"


def show_memory():
    """Of the rank that has most of each."""
    keys = ("parameter_bytes_held", "parameter_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes_peak",
            "peak_bytes")
    rows = []
    for n_ranks, shard in [(1, "none"), *((n, shard) for n in (2, 4, 8) for shard in ("none", "full"))]:
        ranks = train("--ranks", n_ranks, "--shard", shard)["ranks"]
        rows.append([n_ranks, "" if n_ranks == 1 else f"`{shard}`",
                     *(mib(max(rank[key] for rank in ranks)) for key in keys)])
    return table(["ranks", "`--shard`", "parameters held", "at most", "gradients", "optimizer", "activations",
                  "peak of all"], rows)


def show_communication():
    n_ranks, all_bytes = 4, 4 * (LAYERS * BLOCK + ROOT_UNIT)
    root = 4 * ROOT_UNIT
    rows = []
    for words, formula in (("--shard none", 2 * all_bytes), ("--shard full", 3 * all_bytes - root),
                           ("--shard full --reshard always", 3 * all_bytes),
                           ("--shard full --reshard never", 2 * all_bytes),
                           ("--shard full --wrap model", 2 * all_bytes),
                           ("--shard hybrid --shard-size 2", None),
                           ("--shard full --compute-dtype bf16 --reduce-dtype bf16", (3 * all_bytes - root) / 2)):
        report = train("--ranks", n_ranks, *words.split())
        sent = report["communication"]
        calls = [f"{sent.get(name, {'calls': 0})['calls']:g}" for name in ("all_gather", "reduce_scatter",
                                                                          "all_reduce")]
        n_bytes = sum(operation["bytes"] for operation in sent.values())
        expected = mib(formula * (n_ranks - 1) / n_ranks) if formula is not None else \
            mib((3 * all_bytes - root) / 2 + all_bytes / 2)
        peak = max(rank["parameter_bytes"] for rank in report["ranks"])
        rows.append([f"`{words}`", *calls, mib(n_bytes), expected, mib(peak)])
    return table(["", "all-gathers", "reduce-scatters", "all-reduces", "MiB sent", "by the formula",
                  "parameters at most, MiB"], rows)


# -- nestings ---------------------------------------------------------------------------------------------------------

def step(group, frame, outside):
    """A step of 6 blocks with frames over so many each; what it gathers, holds and keeps, in numbers of blocks."""
    Ebb.manual_seed(1)
    blocks = [Ebb.TransformerBlock(WIDTH, 8, 0.0, True, True) for _ in range(LAYERS)]
    parts = [Ebb.Sequential(*blocks[i:i + frame]) for i in range(0, LAYERS, frame)]
    model = Ebb.Sequential(*parts)
    units, others = (blocks, parts) if outside == "checkpoint" else (parts, blocks)
    if outside == "checkpoint":
        for unit in units:
            Ebb.fully_shard(unit, group)
        Ebb.fully_shard(model, group)
        for part in others:
            Ebb.checkpoint_wrapper(part)
    else:
        for block in others:
            Ebb.checkpoint_wrapper(block)
        for unit in units:
            Ebb.fully_shard(unit, group)
        Ebb.fully_shard(model, group)
    group.reset_counters()
    x = Ebb.randn(2, CONTEXT, WIDTH)
    held, inputs = Ebb.memory_stats()["parameter"]["current"], 4 * 2 * CONTEXT * WIDTH
    Ebb.memory_reset_peaks(None)
    model(x).square().mean().backward()
    stats, counters = Ebb.memory_stats(), group.counters()
    return (len(units), counters["all_gather"]["calls"], counters["reduce_scatter"]["calls"],
            (stats["parameter"]["peak"] - held) / (4 * BLOCK), stats["activation"]["peak"] / inputs)


def show_nestings():
    rows = []
    for frame in (1, 2, 3):
        for outside in ("shard", "checkpoint"):
            n_units, gathers, reductions, whole, kept = Ebb.run_ranks(4, step, frame, outside)[0]
            if outside == "shard":
                name = "sharded (checkpointed (block))" if frame == 1 else \
                    f"sharded ({frame} x checkpointed (block))"
            else:
                name = "checkpointed (sharded (block))" if frame == 1 else \
                    f"checkpointed ({frame} x sharded (block))"
            rows.append([name, n_units, gathers, reductions, f"{whole:.2f}", f"{kept:.1f}"])
    return table(["nesting", "units", "all-gathers", "reduce-scatters", "unsharded at one time, blocks",
                  "activations at most, inputs"], rows)


# -- activations ------------------------------------------------------------------------------------------------------

SEQUENCE, BATCH, HEADS = 256, 2, 4
UNIT = SEQUENCE * BATCH * WIDTH
SCORES = 5 * HEADS * SEQUENCE / WIDTH

# Of t ranks, in units of s b h, without and with the scores: Korthikanti et al., arXiv 2205.05198, equations 2 to 4,
# section 5, table 2.
STRATEGIES = {
    "none": ("34 + 5as/h", lambda t: 34 + SCORES),
    "tensor": ("10 + 24/t + 5as/ht", lambda t: 10 + 24 / t + SCORES / t),
    "tensor, sequence": ("(34 + 5as/h)/t", lambda t: (34 + SCORES) / t),
    "tensor, sequence, selective": ("34/t", lambda t: 34 / t),
    "tensor, full": ("2", lambda t: 2),
    "tensor, full, partitioned": ("2/t", lambda t: 2 / t),
    "tensor, sequence, full": ("2/t", lambda t: 2 / t),
}


def keep(group, strategy, layers):
    """The bytes that this rank keeps when the forward is done."""
    words = strategy.split(", ")
    config = Ebb.GptConfig.new_preset("tiny")
    for name, value in (("vocab", 64), ("context", SEQUENCE), ("width", WIDTH), ("heads", HEADS), ("layers", layers),
                        ("dropout", 0.1), ("residual_dtype", Ebb.DType.BF16)):
        setattr(config, name, value)
    Ebb.manual_seed(1)
    model = Ebb.Gpt.new(config)
    if "tensor" in words:
        Ebb.parallelize(model, group, sequence_parallel="sequence" in words)
    if "selective" in words:
        Ebb.checkpoint_wrap_each(model, Ebb.TransformerBlock, policy="selective")
    elif "full" in words:
        store = Ebb.PartitionedStore(group) if "partitioned" in words else None
        Ebb.checkpoint_wrap_each(model, Ebb.TransformerBlock, store=store)
    tokens = Ebb.randint(0, 64, BATCH, SEQUENCE)
    with Ebb.autocast():
        loss = model.loss(tokens, tokens)
    kept = Ebb.memory_stats()["activation"]["current"]
    loss.backward()
    return kept


def show_activations():
    rows = []
    for strategy, (text, formula) in STRATEGIES.items():
        cells = []
        for n_ranks in (1, 2, 4):
            if (n_ranks > 1 and strategy == "none") or (n_ranks == 1 and strategy.endswith("partitioned")):
                cells.append("")
                continue
            few, many = (Ebb.run_ranks(n_ranks, keep, strategy, layers)[0] for layers in (2, 4))
            cells.append(f"{(many - few) / 2 / UNIT:.2f} / {formula(n_ranks):g}")
        rows.append([strategy, text, *cells])
    return table(["", "Megatron-LM", "1 rank", "2 ranks", "4 ranks"], rows)


# -- the document -----------------------------------------------------------------------------------------------------

TABLES = {"memory": show_memory, "communication": show_communication, "nestings": show_nestings,
          "activations": show_activations}


def write_table(match):
    lines = "\n".join(TABLES[match[1]]())
    return f"<!-- {match[1]} -->\n{lines}\n<!-- /{match[1]} -->"


def write_printed(match):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(match[2], DOCUMENT, "exec"), {"Ebb": Ebb, "text": TEXT})  # pylint: disable=exec-used
    return f"{match[1]}{printed.getvalue()}```\n"


NUMBER = re.compile(r"\d+(?:\.\d+)?")


def is_same(old, new):
    pairs = list(zip(NUMBER.findall(old), NUMBER.findall(new)))
    return NUMBER.sub("0", old) == NUMBER.sub("0", new) and all(
        a == b or ("." in a + b and abs(float(a) - float(b)) <= 0.02 * float(a)) for a, b in pairs)


def main(check=None):
    with open(DOCUMENT, encoding="utf-8") as file:
        old = file.read()
    new = re.sub(r"<!-- (\w+) -->\n.*?<!-- /\1 -->", write_table, old, flags=re.DOTALL)
    new = re.sub(r"(^```python\n((?:(?!^```).)*)^```\n```text\n)(?:(?!^```).)*^```\n", write_printed, new,
                 flags=re.MULTILINE | re.DOTALL)
    if check is None:
        with open(DOCUMENT, "w", encoding="utf-8") as file:
            file.write(new)
    elif not is_same(old, new):
        sys.exit("".join(difflib.unified_diff(old.splitlines(True), new.splitlines(True), "docs/parallel.md",
                                              "what this library does", n=0)))


if __name__ == "__main__":
    main(*sys.argv[1:])
