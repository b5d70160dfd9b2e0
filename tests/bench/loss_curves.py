#!/usr/bin/env python3
"""Shows what reduced precision does to the loss: trains one small GPT in each way, with the same seeds and text.

Prints a table for docs/optimizers.md: the mean loss of the last steps for each seed, and how far that is from f32
throughout, with the mean over the seeds and their standard deviation. Needs only the standard library and the built
examples/train_gpt. The text is made of the files named below; it changes when they do, so the table tells its length
and checksum.
"""

import argparse
import hashlib
import json
import os
import statistics
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from suite.process import ROOT, Failure, progress, run_process  # noqa: E402
from suite.report import as_markdown, as_text  # noqa: E402

TEXTS = [
    "docs/architecture.md", "docs/bindings.md", "docs/checkpointing.md", "docs/offload.md", "CONTRIBUTING.md",
    "nn/optim/adam.c", "nn/args.c", "nn/models/bert.c", "nn/models/gpt.c", "nn/module.c", "nn/module-call.c",
    "nn/module-tree.c", "nn/layers/multi-head-attention.c", "nn/optim/optimizer.c",
    "nn/optim/optimizer-state.c", "nn/files/safetensors.c", "nn/files/state-tree.c", "nn/data/text-dataset.c",
    "nn/state/training-state.c", "tensor/autograd/autograd.c", "tensor/autograd/op.c",
    "tensor/autograd/saved-tensor.c", "tensor/tensor.c", "tensor/tensor-data.c", "wrap/checkpoint/wrapper.c",
    "wrap/checkpoint/options.c", "wrap/checkpoint/frame.c",
]
MODEL = ["--width", "128", "--heads", "4", "--context", "64", "--dropout", "0",
         "--lr", "1e-3", "--schedule", "cosine", "--decayed", "all"]
# What --only calls it, and what train_gpt is told; the others are held against one of them.
WAYS = {
    "f32": [],
    "f32-one-thread": ["--threads", "1"],
    "moments-bf16": ["--moments", "bf16"],
    "moments-8bit": ["--moments", "8bit"],
    "bf16": ["--dtype", "bf16"],
    "bf16-residual": ["--dtype", "bf16", "--residual", "bf16"],
    "weights-bf16": ["--dtype", "bf16", "--weights", "bf16"],
    "weights-bf16-8bit": ["--dtype", "bf16", "--weights", "bf16", "--moments", "8bit"],
    "weights-bf16-nearest": ["--dtype", "bf16", "--weights", "bf16", "--rounding", "nearest"],
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0],
                                     epilog="Takes two or three minutes on two cores.")
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "release"), metavar="DIR",
                        help="the build folder (build/release)")
    parser.add_argument("--steps", type=int, default=400, metavar="N", help="steps of each training (400)")
    parser.add_argument("--layers", default="3", metavar="N", help="blocks of the model (3)")
    parser.add_argument("--batch", default="8", metavar="N", help="rows of a step (8)")
    parser.add_argument("--against", default="f32", metavar="WAY", help="what the others are held against (f32)")
    parser.add_argument("--last", type=int, default=50, metavar="N", help="how many of the last count (50)")
    parser.add_argument("--seeds", default="1,2,3", metavar="N,...", help="one training of each way for each (1,2,3)")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="CPU threads (2)")
    parser.add_argument("--only", default=",".join(WAYS), metavar="WAY,...",
                        help=f"these ways, and that of --against: {', '.join(WAYS)}")
    parser.add_argument("--markdown", action="store_true", help="print the table as docs/optimizers.md has it")
    options = parser.parse_args()
    options.ways = [options.against, *(way for way in options.only.split(",") if way != options.against)]
    for way in options.ways:
        if way not in WAYS:
            parser.error(f"no way is called {way}; there are {', '.join(WAYS)}")
    if not 1 <= options.last <= options.steps:
        parser.error(f"--last must be from 1 to the number of steps, {options.steps}")
    try:
        options.seeds = [int(seed) for seed in options.seeds.split(",")]
    except ValueError:
        parser.error("--seeds takes numbers with commas between them")
    return options


def write_text(path):
    """Gives the length and the beginning of the SHA-256 of the text."""
    text = b""
    for name in TEXTS:
        with open(os.path.join(ROOT, name), "rb") as source:
            text += source.read()
    with open(path, "wb") as file:
        file.write(text)
    return len(text), hashlib.sha256(text).hexdigest()[:12]


def train(options, way, seed, text, report):
    """The mean of the last losses."""
    command = [os.path.join(options.build, "examples", "train_gpt"), "--data", text, "--quiet", "--report", report,
               "--steps", str(options.steps), "--seed", str(seed), "--threads", str(options.threads),
               "--layers", options.layers, "--batch", options.batch, *MODEL, *WAYS[way]]
    run_process(command, options.threads, f"{way}, seed {seed}")
    with open(report, encoding="utf-8") as file:
        losses = json.load(file)["losses"]
    return sum(losses[-options.last:]) / options.last


def lines(options, losses):
    for way in options.ways:
        differences = ", ".join(f"{a - b:+.4f}" for a, b in zip(losses[way], losses[options.against]))
        if way == options.against:
            differences = ""
        name = " ".join(WAYS[way]) or "f32 throughout"
        yield [f"`{name}`" if options.markdown and WAYS[way] else name, *(f"{loss:.4f}" for loss in losses[way]),
               differences, f"{statistics.mean(losses[way]):.4f}" +
               (f" ± {statistics.stdev(losses[way]):.4f}" if len(losses[way]) > 1 else "")]


def main():
    options = parse_arguments()
    losses = {way: [] for way in options.ways}
    try:
        with tempfile.TemporaryDirectory() as folder:
            text = os.path.join(folder, "text")
            length, checksum = write_text(text)
            for seed in options.seeds:
                for way in options.ways:
                    losses[way].append(train(options, way, seed, text, os.path.join(folder, "report.json")))
                    progress(f"seed {seed}, {way}: {losses[way][-1]:.4f}")
    except (Failure, OSError) as failure:
        sys.exit(f"loss_curves.py: {failure}")
    header = ["", *(f"seed {seed}" for seed in options.seeds), f"against {' '.join(WAYS[options.against]) or 'f32'}",
              "mean"]
    print(f"{length} bytes of text, SHA-256 {checksum}; {options.steps} steps, mean loss of the last {options.last}\n")
    print((as_markdown if options.markdown else as_text)(header, list(lines(options, losses))))


if __name__ == "__main__":
    main()
