#!/usr/bin/env python3
"""What waiting threads cost: the steps of a small training, alone and beside processes that want the cores too, with
libgomp's default, with the GOMP_SPINCOUNT that Ebb's programs set, with OMP_WAIT_POLICY=passive and with one thread.

The trainings take turns, in an order that changes with each round. A ratio is that of a turn to the default's in the
same round, and the figure the median of the rounds'. Options that are not named below go to `step`.

  tests/bench/busy.py --preset tiny --batch 12 --context 64
"""
import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys

from suite.process import Failure, ROOT, Training, progress

SETTINGS = {"default": [], "programs": ["GOMP_SPINCOUNT=1000"], "passive": ["OMP_WAIT_POLICY=passive"],
            "one thread": []}


@contextlib.contextmanager
def busy_loops(n):
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def start(name, words, threads, program):
    command = ["env", "-u", "OMP_WAIT_POLICY", "-u", "GOMP_SPINCOUNT", *SETTINGS[name], program, "--serve", *words]
    training = Training(name, command, 1 if name == "one thread" else threads)
    training.start()
    training.warm()
    return training


def measure(trainings, n_loops, rounds, steps):
    """The seconds of a step, by training, and their ratios to the first's. Means: what other processes take is seldom
    and long, and a turn's median would not see it."""
    turns = {training.name: [] for training in trainings}
    with busy_loops(n_loops):
        for turn in range(rounds):
            for i in range(len(trainings)):
                training = trainings[(i + turn) % len(trainings)]
                training.take_turn(steps)
                turns[training.name].append(statistics.mean(training.last["seconds"]))
    first = turns[trainings[0].name]
    return {training.name: {"seconds": statistics.median(turns[training.name]),
                            "ratio": statistics.median(mine / its for mine, its in zip(turns[training.name], first)),
                            "others": statistics.median(training.others[-rounds:])}
            for training in trainings}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="turns of each training (15)")
    parser.add_argument("--steps", type=int, default=20, help="steps of a turn, of which the mean counts (20)")
    parser.add_argument("--loops", type=int, default=2, help="busy loops beside (2)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of a training (the cores)")
    parser.add_argument("--program", default=os.path.join(ROOT, "build", "release", "tests", "bench", "step"),
                        help="the `step` to run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options, words = parser.parse_known_args()
    if min(options.rounds, options.steps, options.loops, options.threads) < 1:
        parser.error("--rounds, --steps, --loops and --threads are at least 1")
    trainings = []
    try:
        for name in SETTINGS:
            trainings.append(start(name, words, options.threads, options.program))
        figures = {}
        for n_loops in (0, options.loops):
            progress(f"beside {n_loops} busy loops")
            figures["busy" if n_loops else "alone"] = measure(trainings, n_loops, options.rounds, options.steps)
    except Failure as failure:
        sys.exit(f"busy.py: {failure}")
    finally:
        for training in trainings:
            training.kill()
    if options.json:
        print(json.dumps(figures))
        return
    print(f"{'':<12} {'alone':>20} {f'beside {options.loops} loops':>20}")
    for name in SETTINGS:
        cells = [f"{row[name]['seconds'] * 1e3:9.2f} ms  x {row[name]['ratio']:.2f}" for row in figures.values()]
        print(f"{name:<12} {cells[0]:>20} {cells[1]:>20}")
    others = figures["alone"]["default"]["others"]
    if others > 0.1:
        progress(f"alone is not alone: other processes took {others:.0%} of the machine")


if __name__ == "__main__":
    main()
