"""The command: measures, prints the tables, and writes what was asked for."""
import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import time

from . import machine, parts, report, rows, sweeps, targets
from .process import ROOT, Failure, peer_python, progress

PARTS = ("tiny", "start", "load", "sweeps")
LONG_PARTS = ("generate", "open")  # measured when they are asked for by --only
DOCUMENT = os.path.join(ROOT, "docs", "benchmarks.md")
FIGURES = os.path.join(ROOT, "docs", "figures")
DATA = os.path.join(FIGURES, "benchmarks.json")
BEGIN, END = "<!-- begin: scripts/bench --write -->", "<!-- end: scripts/bench --write -->"


def parse(words):
    names = [row.name for row in rows.ROWS]
    long_names = [row.name for row in rows.LONG_ROWS]
    parser = argparse.ArgumentParser(
        prog="scripts/bench", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Compares Ebb with PyTorch, in turn in one run, and prints the tables of docs/benchmarks.md.",
        epilog=f"Rows: {', '.join(names)}; {', '.join(PARTS)}. "
               f"With --only alone: {', '.join(long_names + list(LONG_PARTS))}.\n"
        "With --device cuda the rows are those of scripts/gpu bench, which --only names by a beginning, too.\n"
        "The beginning of a name selects all names that begin with it.\n"
        "scripts/peer-venv installs PyTorch; without it only Ebb is measured. Close other programs first.")
    parser.add_argument("--quick", action="store_true", help="small models and few steps, to see that both sides run")
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="ROW,...", help="measure only these rows")
    parser.add_argument("--programs", type=lambda text: text.split(","), metavar="NAME,...",
                        help=f"measure only these programs of each row: {', '.join([*rows.EBB, *rows.TORCH])}")
    parser.add_argument("--no-torch", action="store_true", help="measure only Ebb")
    parser.add_argument("--json", metavar="FILE",
                        help="write all raw figures as one JSON object; -: print it, not the tables")
    parser.add_argument("--write", action="store_true",
                        help="write docs/figures/benchmarks.json, the figures, and docs/benchmarks.md's generated part")
    parser.add_argument("--from", dest="source", metavar="FILE",
                        help="show (and --write) the figures of an earlier run's --json instead of measuring")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed or a row fails")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu (default); another: scripts/gpu bench")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), metavar="N",
                        help="threads of each program (all processors)")
    parser.add_argument("--build", metavar="FOLDER", help="use the programs in FOLDER and build nothing")
    options = parser.parse_args(words)
    options.words = words
    options.builds = options.build is None
    options.build = options.build or os.path.join(ROOT, "build", "release")
    if options.device != "cpu":
        for name in ("quick", "programs", "write", "source", "check"):
            if getattr(options, name):
                option = "from" if name == "source" else name
                parser.error(f"--{option} is for the CPU; leave it out on {options.device}")
        return options
    available = [row.name for row in offered_rows(options)] + list(PARTS + LONG_PARTS)
    for name in options.only or ():
        if not any(known.startswith(name) for known in available):
            parser.error(f"--only {name}: no such row; there is {', '.join(available)}")
    for name in options.programs or ():
        if name not in rows.EBB and name not in rows.TORCH:
            parser.error(f"--programs {name}: no such program; there is {', '.join([*rows.EBB, *rows.TORCH])}")
    if options.write and options.programs:
        parser.error("--write takes a whole run: leave --programs out")
    if options.threads < 1:
        parser.error("--threads must be at least 1")
    if options.write and options.quick:
        parser.error("--write takes a whole run: leave --quick out")
    return options


def offered_rows(options):
    return rows.QUICK_ROWS if options.quick else rows.ROWS + (rows.LONG_ROWS if options.only else [])


def wanted(options, name):
    return not options.only or any(name.startswith(only) for only in options.only)


# -- measuring --------------------------------------------------------------------------------------------------------

def build_programs(options):
    """Builds the release preset, which is quick if nothing changed; another folder is taken as it is."""
    if options.builds:
        for command in (["cmake", "--preset", "release", "--log-level=WARNING"],
                        ["cmake", "--build", "--preset", "release"]):
            try:
                subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                raise Failure(f"{' '.join(command)}: {error}") from error
    for program in ("tests/bench/step", "tests/bench/tiny-op", "tests/bench/load", "examples/train_gpt"):
        if not os.access(os.path.join(options.build, program), os.X_OK):
            raise Failure(f"no program {program} in {options.build}: cmake --preset release && "
                          "cmake --build --preset release")


class Suite:
    def __init__(self, options):
        self.options = options
        self.python = None if options.no_torch else peer_python()
        self.start = time.monotonic()
        self.data = {"command": f"scripts/bench {' '.join(options.words)}".rstrip(),
                     "date": time.strftime("%Y-%m-%d"), "rows": {}, "warnings": []}

    def say(self, text):
        progress(f"[{time.monotonic() - self.start:5.0f} s] {text}")

    def guard(self, name, measure, *arguments, **named):
        """A part that fails is told of, and the others go on."""
        self.say(name)
        try:
            return measure(*arguments, **named)
        except (Failure, OSError, ValueError, KeyError) as failure:
            text = f"{name}: failed: {failure}"
            progress(text)
            self.data["warnings"].append(text.splitlines()[0])
            self.data["failed"] = True
            return None

    def measure_rows(self):
        options = self.options
        chosen = [row for row in offered_rows(options) if wanted(options, row.name)]
        for row in chosen:
            row.programs = tuple(name for name in row.programs if not options.programs or name in options.programs)
        programs = rows.Programs(options.build, self.python, options.threads) if chosen else None
        if chosen and self.python and not options.quick:
            seconds = self.guard("PyTorch's AdamW", programs.choose_optimizer)
            if seconds:
                progress("  " + ", ".join(f"{kind} {value:.3f} s" for kind, value in seconds.items()))
                self.data["optimizer"] = programs.optimizer
        for row in chosen:
            result = self.guard(row.title, rows.measure_row, row, programs)
            if result and result["runs"]:
                self.data["rows"][row.name] = result
                self.data["warnings"] += rows.warnings(row.name, result)

    def measure_parts(self):
        options, data, quick = self.options, self.data, self.options.quick
        if wanted(options, "tiny"):
            data["tiny"] = self.guard("one tiny op", parts.measure_tiny, options.build, self.python, 1 if quick else 3)
        if wanted(options, "start"):
            data["start"] = self.guard("start-up", parts.measure_start, options.build, self.python, options.threads,
                                       3 if quick else 31)
        if wanted(options, "load"):
            data["load"] = self.guard("loading", parts.measure_load, options.build, self.python, options.threads,
                                      "tiny" if quick else "gpt2")
        for name in LONG_PARTS if options.only and self.python else ():
            if wanted(options, name):
                data[name] = self.guard(name, getattr(parts, f"measure_{name}"), options.build, self.python,
                                        options.threads, quick)
        if wanted(options, "sweeps"):
            data["sweeps"] = self.guard("context length and layers", sweeps.measure_sweeps, options.build,
                                        options.threads, quick)

    def run(self):
        build_programs(self.options)
        if not self.python:
            self.say("PyTorch is left out" if self.options.no_torch else
                     "PyTorch is left out: scripts/peer-venv has not installed it")
        self.data["machine"] = machine.describe(self.options.threads, self.options.build, self.python)
        self.measure_rows()
        self.measure_parts()
        self.data["seconds"] = round(time.monotonic() - self.start)
        self.say("done")
        return rounded(self.data)


def rounded(value):
    """Seven digits are enough, and make the file readable."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return value


def measure_on_gpu(options):
    """scripts/gpu bench has the rows of a GPU, and prints them; exit status."""
    if options.builds:
        build_programs(options)
    out = os.path.join(options.build, "gpu")
    python = "" if options.no_torch else peer_python() or ""
    words = [os.path.join(ROOT, "scripts", "gpu"), "bench", "--device", options.device, "--build", options.build,
             "--out", out, "--again", "--python", python]
    if options.only:
        words += ["--only", f"^({'|'.join(re.escape(name) for name in options.only)})"]
    status = subprocess.run(words, check=False, stdout=subprocess.DEVNULL if options.json == "-" else None).returncode
    report_path = os.path.join(out, "bench.json")
    if options.json and os.path.exists(report_path):
        with open(report_path, encoding="utf-8") as file:
            text = file.read()
        if options.json == "-":
            print(text)
        else:
            with open(options.json, "w", encoding="utf-8") as file:
                file.write(text + "\n")
    return status


# -- writing ----------------------------------------------------------------------------------------------------------

def load_drawer():
    """docs/figures/benchmarks.py, which is a program of its own."""
    spec = importlib.util.spec_from_file_location("benchmark_figures", os.path.join(FIGURES, "benchmarks.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def document_with(data, document):
    """docs/benchmarks.md with its generated part made anew."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise Failure(f"{DOCUMENT}: has no lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{report.markdown(data)}\n{END}{after}"


def generated(data):
    """What --write writes: (path, text)."""
    with open(DOCUMENT, encoding="utf-8") as file:
        document = file.read()
    yield DATA, json.dumps(data, indent=1) + "\n"
    yield DOCUMENT, document_with(data, document)
    for name, text in load_drawer().draw_all(data):
        yield os.path.join(FIGURES, name), text


def write_all(data):
    for path, text in list(generated(data)):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        progress(f"wrote {os.path.relpath(path, ROOT)}")


def show(options, data):
    if options.json == "-":
        print(json.dumps(data, indent=1))
    else:
        print(report.text(data))
    if options.json and options.json != "-":
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=1)
            file.write("\n")
    if options.write:
        write_all(data)


def main(words):
    options = parse(words)
    try:
        if options.device != "cpu":
            sys.exit(measure_on_gpu(options))
        if options.source:
            with open(options.source, encoding="utf-8") as file:
                data = json.load(file)
        else:
            data = Suite(options).run()
        show(options, data)
    except (Failure, OSError, ValueError) as error:
        sys.exit(f"bench: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    missed = [verdict for verdict in targets.verdicts(data) if verdict.reached is False]
    sys.exit(1 if data.get("failed") or (options.check and missed) else 0)
