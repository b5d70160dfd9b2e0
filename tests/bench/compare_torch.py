#!/usr/bin/env python3
"""Times one GPT-2 training step in Ebb and in PyTorch, in turn in one run, and prints the ratios (see README.md).

Needs only the standard library; PyTorch runs in the virtual environment of scripts/peer-venv, Ebb as the built
examples/train_gpt. Each measurement is a process of its own, with the same number of threads.
"""

import argparse
import glob
import json
import os
import statistics
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from suite.machine import processor  # noqa: E402
from suite.process import ROOT, Failure, peer_python, progress, run_process  # noqa: E402
from suite.report import as_markdown, as_text  # noqa: E402

PRESETS = {"gpt2": {"layers": 12, "width": 768, "heads": 12, "vocab": 50257}}
QUICK = {"layers": 2, "width": 128, "heads": 4, "vocab": 1024}
WARM_UP = 2
TORCH_OPTIMIZERS = ("default", "foreach", "fused")


def text_of_tree(path):
    """Writes the tree's own documents and sources to one file, the text that is trained on."""
    patterns = ("*.md", "docs/**/*.md", "*/*.[ch]", "tests/*/*.py")
    names = sorted({n for p in patterns for n in glob.glob(os.path.join(ROOT, p), recursive=True)})
    with open(path, "wb") as text:
        for name in (n for n in names if f"{os.sep}build{os.sep}" not in n):
            with open(name, "rb") as source:
                text.write(source.read() + b"\n")
    return os.path.getsize(path)


class Torch:
    name = "PyTorch"

    def __init__(self, options, data):
        self.options, self.data, self.python = options, data, peer_python()
        if not self.python:
            raise Failure("no PyTorch: run scripts/peer-venv first (about 2 GB, from PyPI)")
        self.optimizer = options.torch_optimizer
        self.version = run_process([self.python, "-c", "import torch; print(torch.__version__)"], 1, "PyTorch").strip()

    def choose_optimizer(self):
        """PyTorch has three AdamW loops; it is measured with the one that is fastest here."""
        if self.optimizer == "best":
            seconds = {kind: self.measure("none", kind, WARM_UP + 2)["seconds"] for kind in TORCH_OPTIMIZERS}
            self.optimizer = min(seconds, key=seconds.get)
            progress("PyTorch's AdamW: " + ", ".join(f"{kind} {s:.3f} s" for kind, s in seconds.items()))

    def measure(self, checkpoint, optimizer=None, steps=None):
        options, shape = self.options, self.options.shape
        command = [self.python, os.path.join(HERE, "torch_gpt.py"), "--data", self.data,
                   "--layers", shape["layers"], "--width", shape["width"], "--heads", shape["heads"],
                   "--vocab", shape["vocab"], "--context", options.context, "--batch", options.batch,
                   "--steps", steps or options.steps, "--dropout", options.dropout, "--dtype", options.dtype,
                   "--checkpoint", checkpoint, "--optimizer", optimizer or self.optimizer,
                   "--threads", options.threads, *([] if optimizer else ["--count-kept"])]
        report = json.loads(run_process([str(word) for word in command], options.threads, "PyTorch"))
        return summary(report, report["rss_after_import_bytes"], report["kept_peak_bytes"])


class Ebb:
    name = "Ebb"

    def __init__(self, options, data):
        self.options, self.data = options, data
        self.program = os.path.join(options.build, "examples", "train_gpt")
        if not os.access(self.program, os.X_OK):
            raise Failure(f"no program {self.program}: run cmake --preset release && cmake --build --preset release")
        self.version = "not run"
        self.baseline_bytes = self.measure_library()

    def measure_library(self):
        """Resident memory that loading the library and what it needs adds to a process, in bytes."""
        libraries = [os.path.realpath(path)
                     for path in glob.glob(os.path.join(self.options.build, "**", "libebb-1.0.so*"), recursive=True)]
        if not libraries:
            return 0
        code = ("import ctypes, sys\n"
                "def rss():\n"
                "    with open('/proc/self/status') as status:\n"
                "        return next(int(l.split()[1]) for l in status if l.startswith('VmRSS')) * 1024\n"
                "before = rss()\n"
                "ctypes.CDLL(sys.argv[1])\n"
                "print(rss() - before)\n")
        return int(run_process([sys.executable, "-c", code, libraries[0]], self.options.threads, "Ebb's library"))

    def measure(self, checkpoint):
        options, shape = self.options, self.options.shape
        with tempfile.TemporaryDirectory(prefix="ebb-compare-") as folder:
            report_name = os.path.join(folder, "report.json")
            command = [self.program, "--data", self.data, "--context", options.context, "--batch", options.batch,
                       "--steps", options.steps, "--dropout", options.dropout, "--dtype", options.dtype,
                       "--lr", "3e-4", "--checkpoint", checkpoint, "--threads", options.threads,
                       "--report", report_name, "--quiet"]
            if options.preset:
                command += ["--preset", options.preset]
            if not options.preset or options.layers:
                command += [word for key in ("layers", "width", "heads", "vocab")
                            for word in (f"--{key}", shape[key])]
            run_process([str(word) for word in command], options.threads, "Ebb")
            try:
                with open(report_name, encoding="utf-8") as file:
                    report = json.load(file)
            except (OSError, ValueError) as error:
                raise Failure(f"Ebb: no usable report: {error}") from error
        self.version = report.get("version", "unknown")
        return summary(report, self.baseline_bytes, report["activation_bytes_peak"])


def summary(report, baseline_bytes, kept_bytes):
    """What is compared; kept_bytes: the most that was kept for backward at any moment. The first two steps, which make
    the optimizer's state and fill caches, are left out."""
    seconds = report["step_seconds"][WARM_UP:]
    return {
        "all_seconds": seconds,
        "seconds": statistics.median(seconds),
        "above_bytes": report["rss_peak_bytes"] - baseline_bytes,
        "peak_bytes": report["rss_peak_bytes"],
        "kept_bytes": kept_bytes,
        "parameters": report["parameters"],
        "first_loss": report["losses"][0],
        "last_loss": report["losses"][-1],
    }


def measure_all(options, sides):
    results = {}
    for round_index in range(options.rounds):
        for checkpoint in options.checkpoint:
            for side in sides if round_index % 2 == 0 else reversed(sides):
                start = time.monotonic()
                result = side.measure(checkpoint)
                results.setdefault((side.name, checkpoint), []).append(result)
                progress(f"round {round_index + 1}/{options.rounds}  {side.name:8s} {checkpoint:10s} "
                         f"{result['seconds']:8.3f} s/step  {result['above_bytes'] / 1e9:6.2f} GB  "
                         f"(took {time.monotonic() - start:.0f} s)")
    return {key: combine(rounds) for key, rounds in results.items()}


def combine(rounds):
    every = sorted(s for r in rounds for s in r["all_seconds"])
    return {
        **rounds[0],
        "seconds": statistics.median(every),
        "low": every[len(every) // 10],
        "high": every[-1 - len(every) // 10],
        "above_bytes": statistics.median(r["above_bytes"] for r in rounds),
        "peak_bytes": statistics.median(r["peak_bytes"] for r in rounds),
    }


def warnings(results):
    parameters = {name: r["parameters"] for (name, _), r in results.items()}
    if len(set(parameters.values())) > 1:
        yield f"the models differ in size: {parameters}"
    for (name, checkpoint), r in results.items():
        if not (r["last_loss"] < r["first_loss"] < float("inf")):
            yield f"{name} {checkpoint}: the loss does not fall: {r['first_loss']} to {r['last_loss']}"
    if results and os.getloadavg()[0] > 1.5 * os.cpu_count():
        yield f"the machine was busy: load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"


def table(options, results):
    """Rows of strings, the header first."""
    rows = [["checkpoint", "program", "s/step", "10-90 %", "GB kept", "GB above library", "GB resident",
             "time to PyTorch", "memory to PyTorch", "kept to PyTorch", "time to none"]]
    for checkpoint in options.checkpoint:
        for name in (s for s in ("PyTorch", "Ebb") if (s, checkpoint) in results):
            r = results[name, checkpoint]
            peer, base = results.get(("PyTorch", checkpoint)), results.get((name, "none"))
            same_peer = peer if name != "PyTorch" else None
            rows.append([checkpoint, name, f"{r['seconds']:.3f}", f"{r['low']:.3f}-{r['high']:.3f}",
                         f"{r['kept_bytes'] / 1e9:.3f}" if r["kept_bytes"] is not None else "",
                         f"{r['above_bytes'] / 1e9:.2f}", f"{r['peak_bytes'] / 1e9:.2f}",
                         f"{r['seconds'] / peer['seconds']:.2f}" if same_peer else "",
                         f"{r['above_bytes'] / peer['above_bytes']:.2f}" if same_peer else "",
                         f"{r['kept_bytes'] / peer['kept_bytes']:.2f}" if same_peer else "",
                         f"{r['seconds'] / base['seconds']:.2f}" if base and checkpoint != "none" else ""])
    return rows


def figures(options, results):
    """Ebb's figures under the names that --bound takes."""
    values = {}
    for checkpoint in options.checkpoint:
        r, peer = results.get(("Ebb", checkpoint)), results.get(("PyTorch", checkpoint))
        base = results.get(("Ebb", "none"))
        if r is None:
            continue
        values[f"{checkpoint}.kept_gb"] = r["kept_bytes"] / 1e9
        if base:
            values[f"{checkpoint}.time_to_none"] = r["seconds"] / base["seconds"]
        if peer:
            values[f"{checkpoint}.time_to_torch"] = r["seconds"] / peer["seconds"]
            values[f"{checkpoint}.memory_to_torch"] = r["above_bytes"] / peer["above_bytes"]
            values[f"{checkpoint}.kept_to_torch"] = r["kept_bytes"] / peer["kept_bytes"]
    return values


def missed_bounds(options, results):
    """A line for each bound that is not met."""
    values = figures(options, results)
    for name, bound in options.bound:
        if name not in values:
            yield f"{name}: not measured; there is {', '.join(values)}"
        elif not values[name] <= bound:
            yield f"{name} is {values[name]:.3f}, above {bound:g}"


def bound_of(text):
    name, _, number = text.partition("=")
    if not name or not number:
        raise argparse.ArgumentTypeError(f"{text}: must be NAME=NUMBER, as full.time_to_none=1.22")
    try:
        return name, float(number)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: {number} is no number") from None


def description(options, sides):
    shape, torch = options.shape, next((s for s in sides if s.name == "PyTorch"), None)
    return [
        f"Model: {options.preset or 'GPT'}, {shape['layers']} layers, width {shape['width']}, {shape['heads']} heads, "
        f"vocabulary {shape['vocab']}; batch {options.batch} x {options.context}, {options.dtype}, "
        f"dropout {options.dropout:g}; whole optimizer step",
        f"Machine: {processor()}; {options.threads} threads of {os.cpu_count()} processors",
        f"Method: {options.rounds} rounds, in turn, of {options.steps} steps each, "
        f"the first {WARM_UP} of each left out; median",
        "Versions: " + ", ".join(f"{s.name} {s.version}" for s in sides) +
        (f" (AdamW: {torch.optimizer})" if torch else ""),
        f"Command: tests/bench/compare_torch.py {' '.join(options.words)}".rstrip(),
    ]


def parse(words):
    parser = argparse.ArgumentParser(description="compare a GPT-2 training step in Ebb with PyTorch on the CPU")
    parser.add_argument("--preset", default="gpt2", choices=sorted(PRESETS))
    parser.add_argument("--layers", type=int, help="fewer or more layers than the preset")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--context", type=int, help="tokens per sequence (default: 256; 64 with --quick)")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32", help="bf16: PyTorch runs under autocast")
    parser.add_argument("--dropout", type=float, default=0.0, help="GPT-2's own is 0.1 (default: 0)")
    parser.add_argument("--checkpoint", default="none,full",
                        type=lambda text: text.split(","), help="any of none, selective, full (default: none,full)")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6,
                        help=f"steps of each process, of which {WARM_UP} only warm up (default: 6)")
    parser.add_argument("--bound", action="append", default=[], type=bound_of, metavar="NAME=N",
                        help="the most that a figure of Ebb's may be: none.kept_gb, full.time_to_none, "
                        "selective.time_to_torch, ...memory_to_torch, ...kept_to_torch; may be given more than once")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a bound is missed")
    parser.add_argument("--quick", action="store_true", help="a small model: shows that both sides run")
    parser.add_argument("--only", choices=["ebb", "torch"], help="measure one side")
    parser.add_argument("--torch-optimizer", choices=("best",) + TORCH_OPTIMIZERS, default="best")
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "release"), help="build folder")
    parser.add_argument("--data", help="text to train on (default: the tree's own)")
    parser.add_argument("--markdown", metavar="FILE", help="write the table to FILE as well, - for standard output")
    options = parser.parse_args(words)
    options.words = words
    if not set(options.checkpoint) <= {"none", "selective", "full"}:
        parser.error("--checkpoint takes none, selective and full, separated by commas")
    if options.check and not options.bound:
        parser.error("--check needs a --bound")
    for name, least in {"batch": 1, "threads": 1, "rounds": 1, "steps": WARM_UP + 1}.items():
        if getattr(options, name) < least:
            parser.error(f"--{name} must be at least {least}")
    if options.quick:
        options.preset = None
    options.context = options.context or (64 if options.quick else 256)
    options.shape = dict(QUICK if options.quick else PRESETS[options.preset])
    options.shape["layers"] = options.layers or options.shape["layers"]
    return options


def compare(options, folder):
    data = options.data
    if not data:
        data = os.path.join(folder, "text.txt")
        if text_of_tree(data) <= 2 * options.context:
            raise Failure("the tree holds too little text: give a file with --data")
    sides = [side(options, data) for side in (Torch, Ebb) if options.only in (None, side.__name__.lower())]
    for side in sides:
        if side.name == "PyTorch":
            side.choose_optimizer()
    results = measure_all(options, sides)
    rows, lines = table(options, results), description(options, sides)
    notes = [f"WARNING: {text}" for text in warnings(results)]
    print("\n".join([*lines, "", as_text(rows[0], rows[1:]), *notes]))
    if options.markdown:
        text = "\n".join([*(f"- {line}" for line in lines), "", as_markdown(rows[0], rows[1:]), *notes]) + "\n"
        if options.markdown == "-":
            print(text)
        else:
            with open(options.markdown, "w", encoding="utf-8") as file:
                file.write(text)
    missed = list(missed_bounds(options, results))
    for line in missed:
        progress(f"compare_torch: {line}")
    return 1 if missed and options.check else 0


def main():
    options = parse(sys.argv[1:])
    try:
        with tempfile.TemporaryDirectory(prefix="ebb-compare-") as folder:
            sys.exit(compare(options, folder))
    except (Failure, OSError) as error:
        sys.exit(f"compare_torch: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
