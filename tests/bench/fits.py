#!/usr/bin/python3
"""Fine-tunes models of published shapes within a budget, and shows the most bytes that their processes had resident.

    fits.py [--only ROW,...] [--steps 3] [--limit] [--check] [--folder FOLDER]

Each row runs finetune of build/release, or of EBB_BUILD_DIR, on a folder of make_model.py, with --memory. The bytes are
those of the system: the peak of the process, its program and libraries included. --limit: the system refuses more
address space (ulimit -v) than those bytes and what an idle process maps. --check: exit status 1 where a row fails or
takes more than it may. The folders, of up to 2.5 GB each, stay in --folder (~/.cache/ebb/bench).
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile

from make_model import make_model
from suite.machine import processor
from suite.process import ROOT, cache_folder

sys.path.insert(0, os.path.join(ROOT, "tests", "support"))
from address_limit import limit_to, map_idle  # noqa: E402

EXAMPLES = os.path.join(os.environ.get("EBB_BUILD_DIR", os.path.join(ROOT, "build", "release")), "examples")
PROGRAM = os.path.join(EXAMPLES, "finetune")
GIB = 1 << 30
CONTEXT = 1024
THREADS = 2

ROWS = {  # a model of make_model.py, options, GiB
    "llama": ("llama-3.2-1b", [], 7.0),
    "llama-lora": ("llama-3.2-1b", ["--lora", "16"], 3.5),
    "llama-nf4": ("llama-3.2-1b", ["--lora", "16", "--base", "nf4"], 2.2),
    "qwen3": ("qwen3-0.6b", [], 4.5),
    "gpt2": ("gpt2", [], 1.0),
}


def run(words, folder, limit):
    """(what finetune reports, the most bytes that were resident); in place of the report its error where it failed."""
    report, messages = (os.path.join(folder, name) for name in ("report.json", "messages.txt"))
    with open(messages, "w+", encoding="utf-8") as file:
        process = subprocess.Popen(
            [PROGRAM, *map(str, words), "--quiet", "--threads", str(THREADS), "--report", report], cwd=folder,
            stdin=subprocess.DEVNULL, stderr=file, preexec_fn=limit_to(limit))
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        file.seek(0)
        if process.returncode != 0:
            return f"exit status {process.returncode}: {file.read().strip()}", usage.ru_maxrss * 1024
    with open(report, encoding="utf-8") as file:
        return json.load(file), usage.ru_maxrss * 1024


def run_row(name, folder, models, data, steps, idle):
    """Prints the row's line of the table; whether it fits. idle: what a limit allows beside the budget; 0: no limit."""
    model, options, gib = ROWS[name]
    path = os.path.join(models, model)
    if not os.path.exists(path):
        print(f"fits: making {path} (once)", file=sys.stderr)
        make_model(model, path)
    budget = int(gib * GIB)
    report, resident = run(["--model", path, "--data", data, "--steps", steps, "--context", CONTEXT, "--memory", budget,
                            *options], folder, idle and budget + idle)
    words = " ".join(options) or "every weight"
    if isinstance(report, str):
        print(f"| {model}, {words} | {gib:g} GiB | failed: {report} | |", flush=True)
        return False
    fits = resident <= budget and all(map(math.isfinite, report["losses"]))
    print(f"| {model}, {words} | {gib:g} GiB | {resident / GIB:.2f} GiB{'' if fits else ', too many'} "
          f"| {report['tokens_per_second']:.0f} |", flush=True)
    return fits


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(ROWS), metavar="ROW,...",
                        help=f"some of {', '.join(ROWS)}")
    parser.add_argument("--steps", type=int, default=3, help="optimizer steps of each (3)")
    parser.add_argument("--folder", help="where the models are made (~/.cache/ebb/bench)")
    parser.add_argument("--limit", action="store_true", help="under a limit of address space")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a row does not fit")
    options = parser.parse_args()
    if unknown := set(options.only) - set(ROWS):
        parser.error(f"--only {', '.join(sorted(unknown))}: there is {', '.join(ROWS)}")
    with tempfile.TemporaryDirectory(prefix="ebb-fits-") as folder:
        data = os.path.join(folder, "text.txt")
        with open(data, "w", encoding="utf-8") as text:
            text.writelines(f"Line {n} of {n * n}: the quick brown fox, naïvely.\n" for n in range(3000))
        idle = 0
        if options.limit:
            idle = map_idle(os.path.join(EXAMPLES, "train_gpt"), data, "--threads", str(THREADS))
        limit = f"; ulimit -v: {idle >> 20} MiB more than the bytes that it may take" if idle else ""
        print(f"{processor()}; {THREADS} threads; 1 x {CONTEXT} tokens{limit}\n", flush=True)
        print("| model | at most | resident | tokens/s |\n|---|--:|--:|--:|", flush=True)
        fit = [run_row(name, folder, options.folder or cache_folder(), data, options.steps, idle)
               for name in options.only]
    sys.exit(1 if options.check and not all(fit) else 0)


if __name__ == "__main__":
    main()
