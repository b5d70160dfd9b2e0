#!/usr/bin/env python3
"""No training is lost: whatever kills train_gpt and fsdp_gpt, and whichever call on a file fails, the next start finds
the newest state that was whole, goes on to the same losses bit for bit, and leaves nothing behind.

    save_faults.py              some calls of each kind, from a fixed seed
    save_faults.py --long       every call, and kills at any time; takes half an hour of a core
    save_faults.py --long --kills 500 --seed 7 --only fsdp --minutes 10
"""
import argparse
import collections
import json
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
PRELOAD = os.path.join(BUILD, "tests", "fuzz", "libio-fault.so")
MODEL = ["--layers", "1", "--width", "16", "--heads", "2", "--context", "16", "--batch", "2", "--threads", "1"]
STEPS = 6
RUN = ["--data", "text.txt", *MODEL, "--save-every", "2", "--resume", "state", "--save", "weights", "--report",
       "report.json", "--quiet"]
FAILURES = "EIO", "ENOSPC", "EMFILE"
# The program, what else it is given, and the steps that are taken already.
SCENARIOS = {
    "train-first": ("train_gpt", [], 0),
    "train-resumed": ("train_gpt", [], 2),
    "fsdp-first": ("fsdp_gpt", ["--ranks", "2"], 0),
    "fsdp-resumed": ("fsdp_gpt", ["--ranks", "2"], 2),
}


class Lost(Exception):
    """A promise that was not kept."""


def expect(condition, *what):
    if not condition:
        raise Lost(" ".join(map(str, what)))


def read(*names):
    with open(os.path.join(*names), "rb") as file:
        return file.read()


def read_step(path):
    """The step of a state, which is in the header of its file."""
    data = read(path)
    header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
    return int(re.search(r'"step"[^0-9]*([0-9]+)', header["__metadata__"]["ebb.state"]).group(1))


def find_newest(folder):
    """The step of the newest whole state, found by other means than the program's; 0 if there is none."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    if "index.json" not in names:
        return 0
    index = json.loads(read(folder, "index.json"))
    return read_step(os.path.join(folder, f"state-{index['save']:08}-00001-of-{index['ranks']:05}.safetensors"))


class Scenario:
    def __init__(self, name, folder):
        program, more, self.begun = SCENARIOS[name]
        self.name, self.folder, self.n_ranks = name, folder, 2 if program == "fsdp_gpt" else 1
        self.words = [os.path.join(BUILD, "examples", program), *RUN, *more]
        self.template = os.path.join(folder, name)
        self.place = os.path.join(folder, "run")
        os.mkdir(self.template)
        with open(os.path.join(self.template, "text.txt"), "w", encoding="utf-8") as text:
            text.writelines(f"Line {n} of {n * n}: the quick brown fox.\n" for n in range(300))
        self.reset()
        self.run()
        whole = self.take_report()
        self.losses, self.weights = whole["losses"], read(self.place, "weights")
        expect(len(self.losses) == STEPS, self.losses)
        if self.begun:
            self.reset()
            self.run(steps=self.begun)
            shutil.copytree(os.path.join(self.place, "state"), os.path.join(self.template, "state"))
        self.reset()
        calls = os.path.join(folder, "calls")
        self.run(fault="0:", calls=calls)
        self.calls = read(calls).decode()

    def reset(self):
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self.template, self.place)

    def run(self, steps=STEPS, fault=None, calls=None, timeout=100):
        environment = dict(os.environ)
        if fault is not None:
            environment.update(LD_PRELOAD=PRELOAD, EBB_IO_FAULT=f"{self.place}:{fault}")
        if calls is not None:
            environment["EBB_IO_FAULT_COUNT"] = calls
        done = subprocess.run([*self.words, "--steps", str(steps)], cwd=self.place, env=environment, timeout=timeout,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        if fault is None or calls is not None:
            expect((done.returncode, done.stderr) == (0, b""), "fails without a fault:", done.returncode, done.stderr)
        return done

    def take_report(self):
        return json.loads(read(self.place, "report.json"))

    def check_results(self, first_step):
        report = self.take_report()
        expect(report["first_step"] == first_step, "goes on from", report["first_step"], "not", first_step)
        expect(report["losses"] == self.losses[first_step:], "other losses:", report["losses"], self.losses)
        expect(read(self.place, "weights") == self.weights, "other weights")

    def check_files(self):
        names = sorted(os.listdir(self.place))
        expect(names == ["report.json", "state", "text.txt", "weights"], "left behind:", names)
        names = sorted(os.listdir(os.path.join(self.place, "state")))
        copies = [name for name in names if re.fullmatch(r"index-\d{8}\.json", name)]
        expect(len(copies) <= (self.n_ranks == 1), "more states than stay:", names)
        expected = ["index.json", *copies]
        for index in expected[:]:
            save = json.loads(read(self.place, "state", index))["save"]
            expected += [f"{kind}-{save:08}-{rank:05}-of-{self.n_ranks:05}.safetensors"
                         for rank in range(1, self.n_ranks + 1) for kind in ("model", "optimizer", "state")]
        expect(names == sorted(expected), "left behind:", names)

    def go_on(self):
        """What the next start makes of it."""
        newest = find_newest(os.path.join(self.place, "state"))
        expect(newest >= self.begun, "step", newest, "is the newest that is whole, after", self.begun)
        self.run()
        self.check_results(newest)
        if newest == STEPS:  # nothing was saved, which is when leftovers go
            self.run(steps=STEPS + 2)
        self.check_files()

    def kill_at(self, number):
        self.reset()
        done = self.run(fault=f"{number}:kill")
        # With threads the number of calls is not quite the same each time.
        expect(done.returncode == -signal.SIGKILL or (self.n_ranks > 1 and done.returncode == 0), "ends with",
               done.returncode, done.stderr)
        self.go_on()

    def kill_after(self, seconds):
        self.reset()
        try:
            self.run(fault="0:", timeout=seconds)
        except subprocess.TimeoutExpired:
            pass
        self.go_on()

    def fail_at(self, number, what):
        self.reset()
        done = self.run(fault=f"{number}:{what}")
        expect(done.returncode in (0, 1) and len(done.stderr.splitlines()) == done.returncode, "ends with",
               done.returncode, done.stderr)
        if done.returncode == 0:
            self.check_results(self.begun)
        self.go_on()


def sweep(scenario, arguments, chance, end, counts):
    """Tries the faults; returns how many promises were not kept."""
    numbers = range(1, len(scenario.calls) + 1)
    tries = [("kill", number) for number in numbers] + [(what, number) for what in FAILURES for number in numbers]
    if not arguments.long:
        # Each kind of call a few times; writes are most of them, and alike.
        rare = [number for number in numbers if scenario.calls[number - 1] not in "wesr"]
        tries = [("kill", number) for number in chance.sample(rare, 8) + chance.sample(numbers, 3)]
        tries += [(what, number) for what in FAILURES for number in chance.sample(rare, 3) + chance.sample(numbers, 1)]
    tries += [("time", chance.uniform(0, 0.2)) for _ in range(arguments.kills if arguments.long else 0)]
    chance.shuffle(tries)  # so that a part of them is like all of them
    lost = 0
    for what, where in tries:
        if time.monotonic() > end:
            break
        counts[what] += 1
        try:
            if what == "kill":
                scenario.kill_at(where)
            elif what == "time":
                scenario.kill_after(where)
            else:
                scenario.fail_at(where, what)
        except (Lost, OSError, ValueError, KeyError) as error:
            lost += 1
            call = "" if what == "time" else f" ({scenario.calls[where - 1]})"
            print(f"{scenario.name}: {what} at {where}{call}: {type(error).__name__}: {error}", flush=True)
    return lost


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--kills", type=int, default=200, help="at any time, for each scenario of --long (200)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which a scenario ends (never)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="scenarios whose name has this")
    arguments = parser.parse_args()
    if not os.path.exists(PRELOAD):
        print(f"{PRELOAD} is not there")
        return 77
    chance, lost, counts = random.Random(arguments.seed), 0, collections.Counter()
    for name in SCENARIOS:
        if arguments.only in name:
            with tempfile.TemporaryDirectory(prefix="ebb-save-faults-") as folder:
                scenario, end = Scenario(name, os.path.realpath(folder)), time.monotonic() + 60 * arguments.minutes
                lost += sweep(scenario, arguments, chance, end, counts)
    kills = counts["kill"] + counts["time"]
    print(f"{kills} kills, {counts['time']} of them at any time; {sum(counts.values()) - kills} failed calls: "
          f"{lost} lost")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
