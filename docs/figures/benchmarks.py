#!/usr/bin/env python3
"""Draws benchmarks.svg and growth.svg from benchmarks.json, which scripts/bench measures; needs no library.

    docs/figures/benchmarks.py [JSON [FOLDER]]

`scripts/bench --write` does this too.
"""
import json
import math
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from svg import bar, document, line, text  # noqa: E402

# -- seconds and gigabytes --------------------------------------------------------------------------------------------

PROGRAMS = [("torch-none", "PyTorch", "torch"), ("torch-full", "PyTorch, checkpoint", "torch half"),
            ("ebb-none", "Ebb", "ebb"), ("ebb-selective", "Ebb, selective", "ebb most"),
            ("ebb-full", "Ebb, full", "ebb half")]
NAMES, BAR, BAR_STEP, GROUP_GAP, TOP = 168, 15, 18, 34, 84
BAR_PANELS = [{"left": NAMES, "width": 250, "key": "seconds", "scale": 1, "unit": "s", "title": "seconds a step"},
              {"left": 500, "width": 230, "key": "above_bytes", "scale": 1e-9, "unit": "GB",
               "title": "gigabytes above the loaded library"}]
BAR_RULES = {".torch": {"fill": "orange"}, ".ebb": {"fill": "blue"}, ".most": {"fill-opacity": "0.72"},
             ".half": {"fill-opacity": "0.5"}, ".floor": {"stroke": "ink", "stroke-width": "1.5"}}


def drawn_rows(data):
    """The large models; nobody waits for the small one."""
    return [row for row in data["rows"].values() if row["sizes"]["width"] >= 512]


def draw_group(row, y):
    runs = [(row["runs"][key], name, kind) for key, name, kind in PROGRAMS if key in row["runs"]]
    yield text(16, y - 8, row["title"], kind="group")
    for i, (_, name, _) in enumerate(runs):
        yield text(NAMES - 8, y + i * BAR_STEP + 12, name, "end", "small")
    for panel in BAR_PANELS:
        longest = max(run[panel["key"]] for run, _, _ in runs)
        for i, (run, _, kind) in enumerate(runs):
            length, top = run[panel["key"]] / longest * panel["width"], y + i * BAR_STEP
            yield bar(panel["left"], top, length, BAR, kind)
            words = f"{run[panel['key']] * panel['scale']:.2f} {panel['unit']}"
            yield text(panel["left"] + length + 6, top + 12, words, kind="small")
        if panel["key"] == "seconds" and row["floor"]:
            x = panel["left"] + row["floor"]["floor_s"] / longest * panel["width"]
            of_ebb = [i for i, (_, _, kind) in enumerate(runs) if kind.startswith("ebb")]
            yield line(x, y + of_ebb[0] * BAR_STEP - 2, x, y + of_ebb[-1] * BAR_STEP + BAR + 2, "floor")


def draw_bars(data):
    rows = drawn_rows(data)
    body = [text(16, 28, "One optimizer step, beside PyTorch in the same run", kind="title")]
    body += [text(panel["left"], 50, panel["title"]) for panel in BAR_PANELS]
    body += [text(784, 28, f"{data['machine']['threads']} threads", "end", "small")]
    y = TOP
    for row in rows:
        body += draw_group(row, y)
        y += sum(key in row["runs"] for key, _, _ in PROGRAMS) * BAR_STEP + GROUP_GAP
    if any(row["floor"] for row in rows):
        body += [line(22, y - 22, 22, y - 8, "floor"),
                 text(32, y - 11, "the products of Ebb's step alone, each at the rate of its shape", kind="small"),
                 text(784, y - 11, "each group of bars has a scale of its own", "end", "small")]
        y += 8
    description = "; ".join(f"{row['title']}: " + ", ".join(
        f"{name} {row['runs'][key]['seconds']:.2f} s {row['runs'][key]['above_bytes'] / 1e9:.2f} GB"
        for key, name, _ in PROGRAMS if key in row["runs"]) for row in rows)
    return document(800, y, "Seconds and gigabytes of a training step in Ebb and in PyTorch", description, BAR_RULES,
                    body)


# -- growth -----------------------------------------------------------------------------------------------------------

STRATEGIES = ("none", "selective", "full")
GROWTH_LEFT, GROWTH_TOP, PANEL_WIDTH, PANEL_HEIGHT, ACROSS, DOWN = 64, 104, 300, 200, 396, 268
GROWTH_RULES = {".line": {"fill": "none", "stroke-width": "1.8", "stroke-linejoin": "round"},
                ".none": {"stroke": "faint", "stroke-dasharray": "6 3"}, ".selective": {"stroke": "orange"},
                ".full": {"stroke": "blue"}, ".expected": {"stroke": "ink", "stroke-dasharray": "1 4",
                                                           "stroke-width": "2.4", "stroke-linecap": "round"},
                ".dot": {"stroke-width": "1.8", "fill": "page", "stroke-dasharray": "none"}}


def expected_bytes(sweep, point):
    """What full should save at most: each block's input, and one block while it is recomputed."""
    layers = point.get("layers", sweep.get("layers"))
    return point["input_bytes"] + point["runs"]["none"]["kept_bytes"] / layers


class Panel:
    """Logarithmic both ways, so that what grows in proportion is a line of slope one."""

    def __init__(self, left, top, xs, most, least):
        self.left, self.top, self.xs = left, top, xs
        self.low, self.high = math.floor(math.log10(least) * 2) / 2, math.ceil(math.log10(most) * 2) / 2

    def x(self, value):
        first, last = math.log(self.xs[0]), math.log(self.xs[-1])
        return self.left + (math.log(value) - first) / (last - first) * PANEL_WIDTH

    def y(self, value):
        return self.top + PANEL_HEIGHT * (1 - (math.log10(value) - self.low) / (self.high - self.low))

    def draw_frame(self, title):
        for decade in range(math.ceil(self.low), math.floor(self.high) + 1):
            y = self.y(10 ** decade)
            yield line(self.left, y, self.left + PANEL_WIDTH, y, "grid")
            yield text(self.left - 8, y + 4, f"{10 ** decade:g}", "end", "small")
        bottom = self.top + PANEL_HEIGHT
        yield line(self.left, bottom, self.left + PANEL_WIDTH, bottom, "axis")
        for value in self.xs:
            yield line(self.x(value), bottom, self.x(value), bottom + 5, "axis")
            yield text(self.x(value), bottom + 19, str(value), "middle", "small")
        yield text(self.left, self.top - 10, title)

    def draw_line(self, values, kind, dots=True):
        points = [(self.x(x), self.y(value)) for x, value in zip(self.xs, values)]
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        yield f'<polyline points="{joined}" class="line {kind}"/>'
        for x, y in points if dots else ():
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" class="dot {kind}"/>'


def draw_panel(sweep, name, key, scale, title, left, top):
    points = sweep["points"]
    lines = {s: [point["runs"][s][key] * scale for point in points] for s in STRATEGIES}
    expected = [expected_bytes(sweep, point) * scale for point in points] if key == "kept_bytes" else []
    every = [value for values in lines.values() for value in values] + expected
    panel = Panel(left, top, [point[name] for point in points], max(every), min(every))
    yield from panel.draw_frame(title)
    for strategy, values in lines.items():
        yield from panel.draw_line(values, strategy)
    if expected:
        yield from panel.draw_line(expected, "expected", dots=False)


def draw_growth(data):
    sweeps = data["sweeps"]
    body = [text(16, 28, f"What a step costs as it grows: width {sweeps['width']}, f32", kind="title")]
    legend = [("none", "none", 64), ("selective", "selective", 144), ("full", "full", 250),
              ("expected", "what full should save: each block's input, and one whole block", 318)]
    for kind, words, x in legend:
        body += [line(x, 52, x + 28, 52, f"line {kind}"), text(x + 36, 56, words)]
    for column, name in enumerate(("context", "layers")):
        sweep, left = sweeps[name], GROWTH_LEFT + column * ACROSS
        body += draw_panel(sweep, name, "seconds", 1, "seconds a step", left, GROWTH_TOP)
        body += draw_panel(sweep, name, "kept_bytes", 1e-6, "MB kept for backward at most", left, GROWTH_TOP + DOWN)
        fixed = {"context": f"tokens of context ({sweep.get('layers')} layers, batch {sweep['batch']})",
                 "layers": f"layers (batch {sweep['batch']} x {sweep.get('context')} tokens)"}[name]
        body.append(text(left + PANEL_WIDTH / 2, GROWTH_TOP + DOWN + PANEL_HEIGHT + 42, fixed, "middle"))
    description = "; ".join(
        f"{name} {point[name]}: " + ", ".join(f"{s} {run['seconds']:.3g} s {run['kept_bytes'] / 1e6:.3g} MB"
                                              for s, run in point["runs"].items())
        for name in ("context", "layers") for point in sweeps[name]["points"])
    return document(800, GROWTH_TOP + DOWN + PANEL_HEIGHT + 62,
                    "Seconds and bytes kept for backward, against context length and against layers", description,
                    GROWTH_RULES, body)


def draw_all(data):
    """(Name, SVG) of each figure that the data has figures for."""
    if drawn_rows(data):
        yield "benchmarks.svg", draw_bars(data)
    if data.get("sweeps"):
        yield "growth.svg", draw_growth(data)


def main(source=os.path.join(HERE, "benchmarks.json"), folder=HERE):
    with open(source, encoding="utf-8") as file:
        data = json.load(file)
    for name, svg in draw_all(data):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(svg)


if __name__ == "__main__":
    main(*sys.argv[1:])
