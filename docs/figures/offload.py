#!/usr/bin/env python3
"""Draws offload-step.svg and offload-bandwidth.svg from offload.json, which tests/bench/offload measures.

    docs/figures/offload.py                     # draws
    docs/figures/offload.py --measure FOLDER    # measures with the programs of a build folder first; about 5 minutes
"""
import json
import math
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "offload.json")
sys.path.insert(0, HERE)
from svg import bar, document, line, text  # noqa: E402

# -- measuring --------------------------------------------------------------------------------------------------------

STEPS = 2, 0.25  # the bandwidths whose steps are drawn, in multiples of what the rule asks for
QUEUES = {"compute": "compute", "to_host": "to host memory", "from_host": "from host memory"}
GAP = 0.3  # milliseconds: kernels that are closer are drawn as one


def run(folder, *words):
    program = os.path.join(folder, "tests", "bench", "offload")
    done = subprocess.run([program, "--json", *map(str, words)], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def merge(spans):
    merged = []
    for start, end in sorted(spans):
        if merged and start - merged[-1][1] < GAP:
            merged[-1][1] = max(end, merged[-1][1])
        else:
            merged.append([start, end])
    return [[round(start, 2), round(end, 2)] for start, end in merged]


def read_trace(path):
    """Milliseconds in which each queue worked, and in which compute waited for a copy."""
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    spans = {name: [] for name in [*QUEUES, "waits"]}
    for event in events:
        queue = names.get(event["tid"])
        span = event.get("ts", 0) / 1e3, (event.get("ts", 0) + event.get("dur", 0)) / 1e3
        if event["ph"] != "X" or span[1] - span[0] == 0:
            continue
        if event["cat"] != "wait" and (queue == "compute" or event["cat"] == "copy"):
            spans[queue].append(span)
        elif event["cat"] == "wait" and queue == "compute":
            spans["waits"].append(span)
    return {"compute": merge(spans["compute"]), "waits": merge(spans["waits"]),
            **{name: [[round(x, 2) for x in span] for span in spans[name]] for name in ("to_host", "from_host")}}


def measure(folder):
    data = {"bench": run(folder), "steps": []}
    for factor in STEPS:
        with tempfile.NamedTemporaryFile(suffix=".json") as trace:
            traced = run(folder, "--only", "sim", "--rounds", 1, "--steps", 1, "--factors", factor, "--trace",
                         trace.name)
            data["steps"].append({"factor": factor, "bandwidth": traced["runs"][-1]["bandwidth"],
                                  **read_trace(trace.name)})
    with open(DATA, "w", encoding="utf-8") as file:
        json.dump(data, file, indent=1)
        file.write("\n")


# -- one step ---------------------------------------------------------------------------------------------------------

LEFT, PLOT_WIDTH, LANE, BAR = 130, 640, 30, 20
STEP_TOP, STEP_HEIGHT = 92, 168
STEP_RULES = {".compute": {"fill": "blue"}, ".copy": {"fill": "orange"},
              ".wait": {"fill": "none", "stroke": "faint", "stroke-width": "1", "stroke-dasharray": "3 2"},
              ".number": {"font-size": "11px", "fill": "page"}}


def get_end(step):
    return max(end for name in QUEUES for _, end in step[name])


def draw_lane(step, name, y, scale):
    yield text(LEFT - 10, y + 14, QUEUES[name], "end", "small")
    if name == "compute":
        for start, end in step["waits"]:
            yield bar(LEFT + start * scale, y + 2, (end - start) * scale, BAR - 4, "wait")
    for i, (start, end) in enumerate(step[name]):
        width = (end - start) * scale
        yield bar(LEFT + start * scale, y, max(width, 0.6), BAR, "compute" if name == "compute" else "copy")
        if name != "compute" and width > 12:
            number = i + 1 if name == "to_host" else len(step["to_host"]) - 1 - i
            yield text(LEFT + (start + end) / 2 * scale, y + 14, number, "middle", "number")


def draw_step(step, top, longest):
    scale = PLOT_WIDTH / longest
    backward = step["from_host"][0][0]
    moved = sum(end - start for name in ("to_host", "from_host") for start, end in step[name])
    waited = sum(end - start for start, end in step["waits"])
    bandwidth = step["bandwidth"] / 1e6
    yield text(16, top - 14, f"{step['factor']:g} x the rule's bandwidth ({bandwidth:.0f} MB/s each way): "
               f"{moved:.0f} ms of copies, of which compute waited {waited:.0f} ms", kind="group")
    for i, name in enumerate(QUEUES):
        yield from draw_lane(step, name, top + i * LANE, scale)
    bottom = top + len(QUEUES) * LANE
    yield line(LEFT + backward * scale, top - 4, LEFT + backward * scale, bottom, "grid")
    yield text(LEFT + backward * scale - 6, bottom + 12, "forward", "end", "small")
    yield text(LEFT + backward * scale + 6, bottom + 12, "backward, with recomputes, and AdamW", kind="small")


def draw_steps(data):
    bench = data["bench"]
    longest = max(get_end(step) for step in data["steps"])
    body = [text(16, 28, "One training step whose blocks keep their inputs in host memory", kind="title"),
            text(16, 50, f"GPT of {bench['layers']} layers, width {bench['width']}, {bench['batch']} x "
                 f"{bench['context']} tokens, f32, on sim with {bench['threads']} threads; {longest:.0f} ms from left "
                 "to right", kind="small")]
    for i, step in enumerate(data["steps"]):
        body += draw_step(step, STEP_TOP + i * STEP_HEIGHT, longest)
    return document(LEFT + PLOT_WIDTH + 30, STEP_TOP + len(data["steps"]) * STEP_HEIGHT - 40,
                    "The queues of the device in one step",
                    "Copies overlap with compute; with too little bandwidth compute waits for them, shown dashed",
                    STEP_RULES, body)


# -- bandwidths -------------------------------------------------------------------------------------------------------

X, Y, WIDTH, HEIGHT = 70, 70, 560, 240
BANDWIDTH_RULES = {".rule": {"stroke": "faint", "stroke-width": "1.5", "fill": "none", "stroke-dasharray": "6 3"},
                   ".point": {"fill": "blue"}}
LEAST_FACTOR, MOST_FACTOR = 0.1, 4


def predict(bench, bandwidth):
    """As offload_runs_predict () does."""
    layers, rate = bench["layers"], bench["flop_per_second"]
    step = bench["step_flop"] / rate
    copy = bench["input_bytes"] / bandwidth
    forward, backward = (bench["input_bytes"] / bench[key] for key in ("to_host_bandwidth", "from_host_bandwidth"))
    return 1 + (layers - 1) * (max(copy - forward, 0) + max(copy - backward, 0)) / step


def draw_bandwidths(data):
    bench = data["bench"]
    runs = [run for run in bench["runs"] if run["device"] == "sim" and run["store"] == "host"]
    most = math.ceil(max(run["ratio_to_keep"] for run in runs))

    def x_of(factor):
        return X + WIDTH * math.log(factor / LEAST_FACTOR) / math.log(MOST_FACTOR / LEAST_FACTOR)

    def y_of(ratio):
        return Y + HEIGHT * (1 - ratio / most)

    body = [text(16, 28, "A step's time with host, in multiples of that with keep", kind="title"),
            text(16, 50, "points: measured; line: what the rule predicts", kind="small")]
    for ratio in range(most + 1):
        body += [line(X, y_of(ratio), X + WIDTH, y_of(ratio), "grid" if ratio else "axis"),
                 text(X - 8, y_of(ratio) + 4, ratio, "end", "small")]
    factors = [LEAST_FACTOR * (MOST_FACTOR / LEAST_FACTOR) ** (i / 80) for i in range(81)]
    points = " ".join(f"{x_of(f):.1f},{y_of(predict(bench, f * bench['to_host_bandwidth'])):.1f}" for f in factors)
    body.append(f'<polyline points="{points}" class="rule"/>')
    for run_ in runs:
        factor = run_["bandwidth"] / bench["to_host_bandwidth"]
        body += [f'<circle cx="{x_of(factor):.1f}" cy="{y_of(run_["ratio_to_keep"]):.1f}" r="4" class="point"/>',
                 text(x_of(factor) + 6, y_of(run_["ratio_to_keep"]) - 8, f"{run_['ratio_to_keep']:.2f}", kind="small"),
                 text(x_of(factor), Y + HEIGHT + 18, f"{factor:g}", "middle", "small")]
    body.append(text(X + WIDTH / 2, Y + HEIGHT + 40, "bandwidth, in multiples of what the rule asks for", "middle"))
    return document(X + WIDTH + 30, Y + HEIGHT + 56, "Step time against bandwidth",
                    "; ".join(f"{run_['bandwidth'] / bench['to_host_bandwidth']:g}: {run_['ratio_to_keep']:.2f}"
                              for run_ in runs), BANDWIDTH_RULES, body)


def main(words):
    if words[:1] == ["--measure"] and len(words) == 2:
        measure(words[1])
    elif words:
        sys.exit(__doc__.strip())
    with open(DATA, encoding="utf-8") as file:
        data = json.load(file)
    for name, draw in ("offload-step.svg", draw_steps), ("offload-bandwidth.svg", draw_bandwidths):
        with open(os.path.join(HERE, name), "w", encoding="utf-8") as file:
            file.write(draw(data))


if __name__ == "__main__":
    main(sys.argv[1:])
