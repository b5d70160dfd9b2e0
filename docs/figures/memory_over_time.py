#!/usr/bin/python3
"""Writes memory-over-time.svg: the activations that a training step holds, from its first forward to its last backward.

    GI_TYPELIB_PATH=build/release LD_LIBRARY_PATH=build/release PYTHONPATH=bindings/python \\
        python3 docs/figures/memory_over_time.py [FILE]

Each line is a real step. The script reads the memory whenever a tensor passes the saved-tensor hooks, in forward and in
backward, and whenever a block or a part of it begins or ends, also in a recompute. Time is counted in floating-point
operations, so that every machine draws the same figure.
"""
import math
import os
import sys

import gi

gi.require_version("Ebb", "1.0")
from gi.repository import Ebb  # noqa: E402

from svg import line, text  # noqa: E402

GROUPS, BLOCKS, WIDTH, HEADS, BATCH, TOKENS = 3, 4, 128, 4, 8, 64
MIB = 1 << 20
# Products of a block, by the shape of their weight: their share of its operations. Backward takes twice as many.
SHARES = {(3 * WIDTH, WIDTH): 3 / 12, (WIDTH, WIDTH): 1 / 12, (4 * WIDTH, WIDTH): 4 / 12, (WIDTH, 4 * WIDTH): 4 / 12}


def wrap_blocks(model, **options):
    Ebb.checkpoint_wrap_each(model, Ebb.TransformerBlock, **options)


def wrap_nested(model):
    wrap_blocks(model)
    for group in model.children():
        Ebb.checkpoint_wrapper(group)


# Name, how to wrap, what the legend says.
WAYS = [
    ("none", lambda model: None, "nothing wrapped"),
    ("selective", lambda model: wrap_blocks(model, policy="selective"), "each block; products that widen are saved"),
    ("full", wrap_blocks, "each block"),
    ("nested", wrap_nested, f"each block, and each {BLOCKS} blocks together"),
]


def make_model():
    Ebb.manual_seed(1)
    return Ebb.Sequential(*(Ebb.Sequential(*(Ebb.TransformerBlock(WIDTH, HEADS, 0.1, True, True)
                                             for _ in range(BLOCKS))) for _ in range(GROUPS)))


def count_recomputed(model):
    return Ebb.checkpoint_report(model, as_dict=True)["sum"]["recompute_flop"]


class Recorder:
    """Points of (forward passes' worth of operations, bytes)."""

    def __init__(self, model, flop_per_forward):
        self.model, self.flop_per_forward = model, flop_per_forward
        self.done = 0.0  # of forward and backward, in blocks
        self.points = []
        self.start = Ebb.memory_stats("cpu")["activation"]["current"]

    def sample(self):
        time = self.done / (GROUPS * BLOCKS) + count_recomputed(self.model) / self.flop_per_forward
        point = time, Ebb.memory_stats("cpu")["activation"]["current"] - self.start
        if not self.points or point != self.points[-1]:
            self.points.append(point)

    def at_door(self, factor):
        def see(tensor):
            self.sample()
            self.done += factor * SHARES.get(tuple(tensor.shape), 0)
            return tensor
        return see

    def watch_modules(self):
        def see(*_):
            self.sample()
        for module in self.model.modules():
            if isinstance(module, (Ebb.TransformerBlock, Ebb.MultiHeadAttention, Ebb.Mlp)):
                module.register_forward_pre_hook(see)
                module.register_forward_hook(see)


def run(wrap, flop_per_forward):
    model = make_model()
    wrap(model)
    recorder = Recorder(model, flop_per_forward)
    recorder.watch_modules()
    recorder.sample()
    with Ebb.saved_tensor_hooks(recorder.at_door(1), recorder.at_door(2)):
        loss = model(Ebb.randn(BATCH, TOKENS, WIDTH)).sum()
        recorder.sample()
        loss.backward()
    recorder.sample()
    return recorder.points


def count_forward():
    """Operations of one forward, which a recompute that does not stop early repeats."""
    model = make_model()
    wrap_blocks(model, early_stop=False)
    model(Ebb.randn(BATCH, TOKENS, WIDTH)).sum().backward()
    return count_recomputed(model)


# -- drawing ----------------------------------------------------------------------------------------------------------

LEFT, RIGHT, PLOT_WIDTH = 64, 24, 712
LEGEND_TOP, LEGEND_LINE = 52, 20
PANELS = [{"top": 148, "height": 230, "every": 10, "ways": ("none", "selective", "full", "nested")},
          {"top": 418, "height": 170, "every": 2, "ways": ("full", "nested")}]
HEIGHT = 640
MOST_TIME = 4.5
STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328 }
  .title { font-size: 16px; font-weight: 600 }
  .small { font-size: 12px; fill: #59636e }
  .page { fill: #ffffff }
  .forward { fill: #59636e; fill-opacity: 0.08 }
  .grid { stroke: #d1d9e0; stroke-width: 1 }
  .axis { stroke: #59636e; stroke-width: 1 }
  .line { fill: none; stroke-width: 1.8; stroke-linejoin: round }
  .none { stroke: #59636e; stroke-dasharray: 6 3 }
  .selective { stroke: #b35900 }
  .full { stroke: #0969da }
  .nested { stroke: #bf3989 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .small { fill: #9198a1 }
    .page { fill: #0d1117 }
    .forward { fill: #9198a1 }
    .grid { stroke: #30363d }
    .axis { stroke: #9198a1 }
    .none { stroke: #9198a1 }
    .selective { stroke: #f0883e }
    .full { stroke: #58a6ff }
    .nested { stroke: #f778ba }
  }
"""


def x_of(time):
    return LEFT + time / MOST_TIME * PLOT_WIDTH


def y_of(panel, mib):
    return panel["top"] + panel["height"] * (1 - mib / panel["most"])


def draw_legend(lines):
    for i, (name, _, explanation) in enumerate(WAYS):
        y = LEGEND_TOP + i * LEGEND_LINE
        points = lines[name]
        yield line(LEFT, y - 4, LEFT + 32, y - 4, f"line {name}")
        yield text(LEFT + 42, y, f"{name}: {explanation}")
        yield text(LEFT + PLOT_WIDTH, y, f"at most {max(mib for _, mib in points):.1f} MiB, "
                   f"{points[-1][0]:.2f} forward passes of work", "end")


def draw_panel(panel, lines):
    bottom = panel["top"] + panel["height"]
    yield (f'<rect x="{LEFT}" y="{panel["top"]}" width="{x_of(1) - LEFT:.1f}" height="{panel["height"]}" '
           'class="forward"/>')
    for mib in range(0, panel["most"] + 1, panel["every"]):
        y = y_of(panel, mib)
        yield line(LEFT, y, LEFT + PLOT_WIDTH, y, "grid" if mib else "axis")
        yield text(LEFT - 8, y + 4, str(mib), "end", "small")
    for half in range(int(2 * MOST_TIME) + 1):
        yield line(x_of(half / 2), bottom, x_of(half / 2), bottom + 5, "axis")
    middle = panel["top"] + panel["height"] / 2
    yield f'<g transform="rotate(-90 22 {middle:.1f})">{text(22, middle, "activations, MiB", "middle")}</g>'
    for name in panel["ways"]:
        points = " ".join(f"{x_of(time):.1f},{y_of(panel, mib):.1f}" for time, mib in lines[name])
        yield f'<polyline points="{points}" class="line {name}"/>'


def draw(lines):
    first, last = PANELS[0], PANELS[-1]
    bottom = last["top"] + last["height"]
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + PLOT_WIDTH + RIGHT} {HEIGHT}" '
           'role="img" aria-labelledby="title description">')
    yield '<title id="title">Activations that one training step holds, for four ways to checkpoint</title>'
    yield ('<desc id="description">' + "; ".join(f"{name}: at most {max(mib for _, mib in points):.1f} MiB"
                                                 for name, points in lines.items()) + '</desc>')
    yield f"<style>{STYLE}</style>"
    yield '<rect width="100%" height="100%" class="page"/>'
    yield text(LEFT, 26, f"One training step of {GROUPS * BLOCKS} transformer blocks: width {WIDTH}, "
               f"{BATCH} x {TOKENS} tokens, f32", kind="title")
    yield from draw_legend(lines)
    for panel in PANELS:
        yield from draw_panel(panel, lines)
    yield text(x_of(0.5), first["top"] - 8, "forward", "middle", "small")
    yield text(x_of(1), first["top"] - 8, "backward, recomputes included", "start", "small")
    yield text(LEFT + PLOT_WIDTH, last["top"] - 8, "the two lowest, enlarged", "end", "small")
    for half in range(int(2 * MOST_TIME) + 1):
        yield text(x_of(half / 2), bottom + 19, f"{half / 2:g}", "middle", "small")
    yield text(LEFT + PLOT_WIDTH / 2, bottom + 40, "floating-point operations done, in those of one forward pass",
               "middle")
    yield "</svg>"


def main(path=os.path.join(os.path.dirname(os.path.abspath(__file__)), "memory-over-time.svg")):
    flop_per_forward = count_forward()
    lines = {name: [(time, n_bytes / MIB) for time, n_bytes in run(wrap, flop_per_forward)] for name, wrap, _ in WAYS}
    for panel in PANELS:
        most = max(mib for name in panel["ways"] for _, mib in lines[name])
        panel["most"] = math.ceil(most / panel["every"]) * panel["every"]
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(draw(lines)) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
