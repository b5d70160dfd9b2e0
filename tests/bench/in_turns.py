#!/usr/bin/env python3
"""Compares two builds of the library by a program of this folder that knows --json: they take turns, in an order that
changes with each round, and the ratio of a figure, after to before, is the median of the rounds'.

  tests/bench/in_turns.py OLD/build/release build/release/tests/bench/rows [OPTION...]
"""
import argparse
import json
import os
import statistics
import subprocess


def measure(program, library):
    environment = dict(os.environ, LD_LIBRARY_PATH=library)
    done = subprocess.run([*program, "--json"], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="the folder of the library that the program's own is compared to")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="the program and its options")
    parser.add_argument("--rounds", type=int, default=5, help="how often both run (5)")
    options = parser.parse_args()
    after = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(options.program[0]))))
    rounds = []
    for i in range(options.rounds):
        order = [options.before, after] if i % 2 == 0 else [after, options.before]
        figures = {library: measure(options.program, library) for library in order}
        rounds.append((figures[options.before], figures[after]))
    for name in rounds[0][0]:
        ratios = [new[name] / old[name] for old, new in rounds]
        print(f"{name:<36} {statistics.median(old[name] for old, _ in rounds):>10.1f} "
              f"{statistics.median(new[name] for _, new in rounds):>10.1f}  {statistics.median(ratios):.3f} "
              f"({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
