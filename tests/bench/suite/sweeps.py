"""Cost against context length and against layers, at a fixed width: Ebb alone, for each strategy."""
import os

from .process import Training, progress, run_together
from .rows import STRATEGIES

# One sequence, so that what a block's input takes grows with the context; and few different tokens, so that the loss
# is next to nothing beside the blocks.
WIDTH, HEADS, VOCAB = 256, 4, 256
CONTEXT = {"name": "context", "points": (128, 256, 512, 1024, 2048, 4096), "layers": 6, "batch": 1}
LAYERS = {"name": "layers", "points": (2, 4, 8, 16, 32, 48), "context": 256, "batch": 4}
QUICK = {"context": (32, 64), "layers": (1, 2)}


def measure_sweep(sweep, build, threads, points, rounds=3):
    """A list of points, each with the figures of every strategy; the strategies take turns."""
    program = os.path.join(build, "tests", "bench", "step")
    result = []
    for point in points:
        sizes = {"layers": sweep.get("layers"), "context": sweep.get("context"), sweep["name"]: point}
        command = [program, "--serve", "--preset", "tiny", "--width", WIDTH, "--heads", HEADS, "--vocab", VOCAB,
                   "--batch", sweep["batch"], "--layers", sizes["layers"], "--context", sizes["context"],
                   "--threads", threads]
        warm_up = 2 if sizes["context"] * sizes["layers"] > 4096 else 3
        trainings = {name: Training(name, [*command, "--checkpoint", name], threads, warm_up) for name in STRATEGIES}
        run_together(trainings.values(), rounds)
        runs = {name: training.result() for name, training in trainings.items()}
        result.append({sweep["name"]: point,
                       "input_bytes": sizes["layers"] * sweep["batch"] * sizes["context"] * WIDTH * 4,
                       "runs": {name: {key: run[key] for key in ("seconds", "low", "high", "kept_bytes", "peak_bytes",
                                                                 "resident_bytes")} for name, run in runs.items()}})
        progress(f"  {sweep['name']} {point}: " + ", ".join(
            f"{name} {run['seconds']:.4f} s {run['kept_bytes'] / 1e6:.1f} MB" for name, run in runs.items()))
    return result


def measure_sweeps(build, threads, quick):
    result = {"width": WIDTH, "heads": HEADS, "vocab": VOCAB}
    for sweep in (CONTEXT, LAYERS):
        fixed = {key: value for key, value in sweep.items() if key not in ("name", "points")}
        points = QUICK[sweep["name"]] if quick else sweep["points"]
        result[sweep["name"]] = {**fixed, "points": measure_sweep(sweep, build, threads, points)}
    return result
