#!/usr/bin/env python3
"""Runs short habits of PyTorch's users and compares what they give with what PyTorch gave.

    habits.py [LIST] [--show STATUS…] [--group NAME…] [--least-equal SHARE]
    habits.py LIST --record torch     writes PyTorch's results into the list: for a Python that has torch

A line of the list is an object with "group", "code", and "result", the encoded value of the name r. Every snippet runs
in a process of its own. Its status is "equal" (the same value), "different" (another value), "answered" (an error that
says what to write), or "bare" (any other error). Differences, bare errors, and a share of equal results below
--least-equal make the program fail.
"""
import argparse
import contextlib
import importlib
import io
import json
import math
import os
import re
import select
import shutil
import signal
import sys
import tempfile
import time
import warnings

STATUSES = ("equal", "different", "answered", "bare")
LIST = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "fixtures", "habits.jsonl")
TIMEOUT = 60  # seconds that a snippet may take

SOURCES = {
    "np": "importlib.import_module('numpy')", "math": "math", "copy": "importlib.import_module('copy')",
    "functools": "importlib.import_module('functools')", "os": "os", "pickle": "importlib.import_module('pickle')",
    "itertools": "importlib.import_module('itertools')",
    "nn": "T.nn", "F": "T.nn.functional", "init": "T.nn.init", "optim": "T.optim", "sched": "T.optim.lr_scheduler",
    "data": "T.utils.data", "ckpt": "T.utils.checkpoint", "dist": "T.distributed", "fsdp": "T.distributed.fsdp",
    "clip": "T.nn.utils",
    "x": "T.tensor([[1., -2., 3.], [4., 5., -6.]])", "v": "T.tensor([1., 2., 3.])", "i": "T.tensor([1, 2, 3])",
    "b": "T.tensor([True, False, True])", "w": "T.tensor([1., 2., 3.], requires_grad=True)",
    "tok": "T.tensor([[1, 2, 3], [3, 2, 0]])",
    "net": "fill(T.nn.Sequential(T.nn.Linear(3, 4), T.nn.ReLU(), T.nn.Linear(4, 2)))",
    "opt": "T.optim.SGD(net.parameters(), lr=1.0)", "tmp": "tempfile.mkdtemp(prefix='habits.')",
    "save_file": "load_safetensors_module(T).save_file", "load_file": "load_safetensors_module(T).load_file",
}


class _Safetensors:
    def __init__(self, library):
        self.save_file, self.load_file = library.save_safetensors, library.load_safetensors


def load_safetensors_module(library):
    return importlib.import_module("safetensors.torch") if library.__name__ == "torch" else _Safetensors(library)


def make_fill(library):
    def fill(module):
        with library.no_grad():
            for k, parameter in enumerate(module.parameters()):
                values = [((7 * j + 3 * k) % 11 - 5) / 10 for j in range(parameter.numel())]
                parameter.copy_(library.tensor(values).reshape(parameter.shape))
        return module

    return fill


def make_names(library, code):
    """The names that a snippet uses, those that others are made of first."""
    names = {"__name__": "__main__", "T": library, "fill": make_fill(library)}
    scope = {**globals(), **names}
    wanted = [name for name in SOURCES if re.search(rf"(?<![\w.]){name}\b", code)]
    if "opt" in wanted and "net" not in wanted:
        wanted.insert(wanted.index("opt"), "net")
    for name in wanted:
        names[name] = scope[name] = eval(SOURCES[name], scope)
    return names


def encode_number(value):
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def encode(value, library):
    """A value as the list holds it."""
    if value is None:
        return None
    if isinstance(value, library.dtype):
        return ["dtype", str(value).partition(".")[2]]
    if isinstance(value, library.Tensor):
        flat = value.detach().reshape(-1)
        dtype = str(value.dtype).partition(".")[2]
        floating = dtype in ("bfloat16", "float16")
        values = (flat.float() if floating else flat).tolist()
        return ["tensor", dtype, list(value.shape), [encode_number(item) for item in values]]
    if isinstance(value, bool):
        return ["bool", value]
    if isinstance(value, (int, float)):
        kind = "int" if isinstance(value, int) else "float"
        return ["number", kind, encode_number(value)]
    if isinstance(value, str):
        return ["str", value]
    if isinstance(value, dict):
        return ["dict", {str(key): encode(value[key], library) for key in sorted(value, key=str)}]
    if isinstance(value, (list, tuple)):
        return ["list", [encode(item, library) for item in value]]
    if type(value).__module__ == "numpy" and hasattr(value, "dtype"):
        return ["array", str(value.dtype), list(value.shape), [encode_number(e) for e in value.reshape(-1).tolist()]]
    if type(value).__name__.lower() == "device":
        return ["device", str(value)]
    return ["object", type(value).__name__]


def is_equal(wanted, given):
    if isinstance(wanted, list) and isinstance(given, list):
        return len(wanted) == len(given) and all(map(is_equal, wanted, given))
    if isinstance(wanted, dict) and isinstance(given, dict):
        return wanted.keys() == given.keys() and all(is_equal(wanted[key], given[key]) for key in wanted)
    if isinstance(wanted, str) and isinstance(given, str):
        return " ".join(wanted.split()) == " ".join(given.replace("ebb.", "torch.").split())
    if isinstance(wanted, bool) or isinstance(given, bool) or not isinstance(wanted, (int, float)):
        return type(wanted) is type(given) and wanted == given
    if not isinstance(given, (int, float)):
        return False
    return abs(wanted - given) <= 1e-5 * max(1.0, abs(wanted))


def is_answer(text, code):
    """Whether an error says what to write: it has a verb, or names something of ebb that was not typed."""
    if re.search(r"\b(use|write|instead)\b", text):
        return True
    typed = set(re.findall(r"[\w.]+", code))
    names = re.findall(r"\bebb((?:\.\w+)+)", text)
    return any(f"T{name}" not in typed and name.rpartition(".")[2] not in code for name in names)


def run_snippet(library, code):
    """[True, the encoded result], or [False, the error]."""
    names = {}
    try:
        names = make_names(library, code)
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(code.replace("LIB", library.__name__), names)
        return [True, encode(names["r"], library)]
    except BaseException as error:
        return [False, f"{type(error).__name__}: {error}"]
    finally:
        if "tmp" in names:
            shutil.rmtree(names["tmp"], ignore_errors=True)


def run_apart(library, code):
    """run_snippet() in a child, which a crash or a hang cannot take this process along with."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            with os.fdopen(writer, "w", encoding="utf-8") as stream:
                json.dump(run_snippet(library, code), stream)
        finally:
            os._exit(0)
    os.close(writer)
    end, parts = time.monotonic() + TIMEOUT, []
    with os.fdopen(reader, "rb") as stream:
        while select.select([stream], [], [], max(0, end - time.monotonic()))[0]:
            part = os.read(stream.fileno(), 1 << 16)
            if not part:
                break
            parts.append(part)
        else:
            os.kill(child, signal.SIGKILL)
    _, state = os.waitpid(child, 0)
    try:
        return json.loads(b"".join(parts))
    except ValueError:
        return [False, f"the process ended without a result, by status {state}"]


def judge(habit, outcome):
    ended, value = outcome
    if ended:
        return "equal" if is_equal(habit["result"], value) else "different"
    return "answered" if is_answer(value, habit["code"]) else "bare"


def read_list(path):
    with open(path, encoding="utf-8") as stream:
        return [json.loads(line) for line in stream if line.strip()]


def record(path, library):
    habits = read_list(path)
    with open(path, "w", encoding="utf-8") as stream:
        for habit in habits:
            ended, value = run_apart(library, habit["code"])
            if not ended:
                print(f"PyTorch refuses: {habit['code']!r}: {value}")
                continue
            json.dump({"group": habit["group"], "code": habit["code"], "result": value}, stream, ensure_ascii=False)
            stream.write("\n")


def print_table(counts):
    print(f"{'group':<18}" + "".join(f"{status:>11}" for status in STATUSES))
    total = dict.fromkeys(STATUSES, 0)
    for group, numbers in counts.items():
        print(f"{group:<18}" + "".join(f"{numbers[status]:>11}" for status in STATUSES))
        for status in STATUSES:
            total[status] += numbers[status]
    print(f"{'all':<18}" + "".join(f"{total[status]:>11}" for status in STATUSES))
    return total


def main():
    parser = argparse.ArgumentParser(description="Compares habits of PyTorch's users with what Ebb gives.")
    parser.add_argument("list", nargs="?", default=LIST, help="a file of JSON lines")
    parser.add_argument("--record", choices=("torch",), help="write this library's results into the list")
    parser.add_argument("--show", nargs="+", choices=STATUSES, default=("different", "bare"))
    parser.add_argument("--group", nargs="+", help="only these groups")
    parser.add_argument("--least-equal", type=float, default=0.9, help="the least share of equal results")
    options = parser.parse_args()
    if options.record:
        record(options.list, importlib.import_module(options.record))
        return 0
    library, counts = importlib.import_module("ebb"), {}
    for habit in read_list(options.list):
        if options.group and habit["group"] not in options.group:
            continue
        outcome = run_apart(library, habit["code"])
        status = judge(habit, outcome)
        counts.setdefault(habit["group"], dict.fromkeys(STATUSES, 0))[status] += 1
        if status in options.show:
            print(f"{status}: {habit['group']}: {habit['code']!r}\n    {str(outcome[1])[:400]}"
                  + (f"\n    PyTorch gives {str(habit['result'])[:300]}" if status == "different" else ""))
    total = print_table(counts)
    share = total["equal"] / max(1, sum(total.values()))
    print(f"{share:.1%} are equal")
    return 1 if total["different"] or total["bare"] or share < options.least_equal else 0


if __name__ == "__main__":
    sys.exit(main())
