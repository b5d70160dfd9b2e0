"""The small things of the table: one tiny op, how long a program takes to start, how long a file takes to load."""
import hashlib
import json
import os
import statistics
import subprocess
import tempfile
import time

from .process import BENCH, Failure, cache_folder, environment, progress, run_process
from .rows import make_folder

TINY = ("no_grad_us", "no_grad_1_us", "forward_backward_us", "forward_backward_1_us")
LOAD_IN_TORCH = """
import json, statistics, sys, time
import safetensors.torch
times = []
for i in range(8):
    start = time.perf_counter()
    state = {name: tensor.clone() for name, tensor in safetensors.torch.load_file(sys.argv[1]).items()}
    times.append(time.perf_counter() - start)
print(json.dumps({"file_s": statistics.median(times[1:])}))
"""


def time_process(command, threads, times):
    """Seconds from a program's start to its end: the median, least and most."""
    seconds = []
    for i in range(times + 1):
        start = time.perf_counter()
        done = subprocess.run(command, env=environment(threads), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            raise Failure(f"{command[0]}: exit status {done.returncode}\n  command: {' '.join(command)}")
        seconds.append(time.perf_counter() - start)
    seconds = sorted(seconds[1:])
    return {"seconds": statistics.median(seconds), "low": seconds[0], "high": seconds[-1]}


# -- one tiny op ------------------------------------------------------------------------------------------------------

def build_tiny_op(python):
    """PyTorch's side, in C++: built once for each version of it and of the source. None if there is no compiler."""
    source = os.path.join(BENCH, "tiny_op.cpp")
    code = "import os, torch; print(torch.__version__); print(os.path.dirname(torch.__file__)); " \
           "print(int(torch._C._GLIBCXX_USE_CXX11_ABI))"
    version, torch, abi = run_process([python, "-c", code], 1, "PyTorch").split()
    with open(source, "rb") as file:
        digest = hashlib.sha256(file.read() + version.encode()).hexdigest()[:16]
    program = os.path.join(cache_folder(), f"tiny_op-{digest}")
    if os.access(program, os.X_OK):
        return program
    progress("  building tiny_op.cpp against PyTorch (once)")
    libraries = os.path.join(torch, "lib")
    command = [os.environ.get("CXX", "c++"), "-std=c++20", "-O2", f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
               f"-I{os.path.join(torch, 'include')}", source, "-o", program + ".new", f"-L{libraries}",
               f"-Wl,-rpath,{libraries}", "-Wl,--no-as-needed", "-ltorch_cpu", "-lc10"]
    try:
        run_process(command, 1, "tiny_op.cpp")
    except Failure as failure:
        progress(f"  left out: {failure}")
        return None
    os.replace(program + ".new", program)
    return program


def measure_tiny(build, python, rounds=3):
    """Microseconds an op on one thread; the two programs take turns."""
    programs = {"ebb": [os.path.join(build, "tests", "bench", "tiny-op"), "--json"]}
    peer = build_tiny_op(python) if python else None
    if peer:
        programs["torch"] = [peer]
    figures = {side: [] for side in programs}
    for _ in range(rounds):
        for side, command in programs.items():
            figures[side].append(json.loads(run_process(command, 1, "tiny op")))
    result = {side: {name: statistics.median(figure[name] for figure in of_side) for name in TINY}
              for side, of_side in figures.items()}
    for side, names in result.items():
        progress(f"  {side:6s} " + ", ".join(f"{name} {us:.3f}" for name, us in names.items()))
    return result


# -- start and load ---------------------------------------------------------------------------------------------------

def measure_start(build, python, threads, times=31):
    """`train_gpt --help` beside an interpreter that imports PyTorch."""
    result = {"ebb": time_process([os.path.join(build, "examples", "train_gpt"), "--help"], threads, times)}
    if python:
        result["torch"] = time_process([python, "-c", "import torch"], threads, min(times, 3))
    for side, run in result.items():
        progress(f"  {side:6s} {run['seconds'] * 1e3:.1f} ms")
    return result


def measure_load(build, python, threads, preset="gpt2", rounds=7):
    """Seconds until a model has the weights of a file with GPT-2's public names, each in a process of its own: memory
    that was in use before costs less. The file is read from the system's cache."""
    program = [os.path.join(build, "tests", "bench", "load"), "--preset", preset, "--threads", str(threads)]
    with tempfile.TemporaryDirectory(prefix="ebb-bench-") as folder:
        path = os.path.join(folder, "gpt2.safetensors")
        run_process([*program, "--part", "save", "--file", folder], threads, "load")
        times = []
        for _ in range(rounds + 1):
            words = run_process([*program, "--part", "gpt2", "--file", path], threads, "load").split()
            _, opened, copied, whole = (float(word) / 1e3 for word in words)
            times.append({"model_s": whole, "file_s": opened + copied})
        result = {"bytes": os.path.getsize(path), "preset": preset,
                  "ebb": {name: statistics.median(time[name] for time in times[1:]) for name in times[0]}}
        if python:
            result["torch"] = json.loads(run_process([python, "-c", LOAD_IN_TORCH, path], threads, "safetensors"))
    progress("  " + "; ".join(f"{side} " + ", ".join(f"{name} {value:.3f}" for name, value in result[side].items())
                              for side in ("ebb", "torch") if side in result))
    return result


# -- models in folders ------------------------------------------------------------------------------------------------

def measure_generate(build, python, threads, quick=False):
    """Greedy text of 128 tokens after 512, by turns; and the copying of the weights' bytes by the same threads."""
    name, prompt, tokens, rounds = ("llama-tiny", 32, 16, 1) if quick else ("llama-100m", 512, 128, 3)
    folder, result = make_folder(name, python), {}
    for dtype in ("f32", "bf16"):
        words = ["--prompt", str(prompt), "--tokens", str(tokens), "--rounds", "1", "--dtype", dtype, "--threads",
                 str(threads)]
        programs = {"ebb": [os.path.join(build, "tests", "bench", "generate"), "--folder", folder, *words],
                    "torch": [python, os.path.join(BENCH, "torch_models.py"), "--generate", folder, *words]}
        done = {side: [] for side in programs}
        for turn in range(rounds):
            for side in sorted(programs, reverse=turn % 2 == 1):
                done[side].append(json.loads(run_process(programs[side], threads, side)))
        result[dtype] = {side: generation_figures(reports, tokens) for side, reports in done.items()}
        ebb, torch = result[dtype]["ebb"], result[dtype]["torch"]
        speedup = ebb['tokens_per_s'] / torch['tokens_per_s']
        progress(f"  {dtype}: Ebb {ebb['tokens_per_s']:.1f} tokens/s, {speedup:.2f} x "
                 f"transformers, {ebb['copy_s'] / ebb['token_s']:.2f} of copying the weights; the prompt "
                 f"{ebb['prompt_s']:.3f} s, {torch['prompt_s'] / ebb['prompt_s']:.2f} x as fast")
    return result


def generation_figures(reports, tokens):
    rounds = [each for report in reports for each in report["rounds"]]
    figures = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
    figures["token_s"] = (figures["whole_s"] - figures["prompt_s"]) / (tokens - 1)
    figures["tokens_per_s"] = tokens / figures["whole_s"]
    figures["resident_bytes"] = max(report["resident_bytes"] for report in reports)
    return figures


def measure_open(build, python, threads, quick=False):
    """Seconds until a folder of 2.4 GB is open, beside read () of its bytes into fresh memory by as many threads; each
    in a process of its own, by turns, from the system's cache."""
    folder = make_folder("llama-tiny" if quick else "llama-1b", python)
    program = [os.path.join(build, "tests", "bench", "open"), "--folder", folder, "--threads", str(threads), "--part"]
    done = {"open": [], "read": []}
    for turn in range(2 if quick else 7):
        for part in sorted(done, reverse=turn % 2 == 1):
            done[part].append(json.loads(run_process([*program, part], threads, part)))
    result = {part: {key: statistics.median(report[key] for report in reports[1:]) for key in reports[0]}
              for part, reports in done.items()}
    peer = json.loads(run_process([python, os.path.join(BENCH, "torch_models.py"), "--open", folder, "--threads",
                                   str(threads)], threads, "transformers"))
    result["torch"] = peer
    ebb, read = result["open"], result["read"]
    progress(f"  {ebb['bytes'] / 1e9:.2f} GB open in {ebb['seconds']:.3f} s, {ebb['seconds'] / read['seconds']:.2f} of "
             f"read () and {ebb['seconds'] / peer['seconds']:.2f} of transformers; resident growth "
             f"{ebb['growth_bytes'] / ebb['bytes']:.3f} of the weights, at most {ebb['peak_bytes'] / ebb['bytes']:.3f}")
    return result
