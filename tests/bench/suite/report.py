"""The tables: as text for a terminal and as Markdown for docs/benchmarks.md, from the same cells."""
from . import machine
from .rows import EBB, TORCH
from .targets import ratio, share_of_floor, verdicts

MODEL_HEADER = ["", "s/step", "least-most", "GB above library", "GB kept", "to PyTorch", "GB to PyTorch", "to none",
                "floor"]
ORDER = [*EBB, *TORCH]


def of(number, digits=2):
    return "" if number is None else f"{number:.{digits}f}"


def seconds_text(seconds, in_ms):
    return f"{seconds * 1e3:.1f} ms" if in_ms else f"{seconds:.2f}"


SUMMARY = ["", "PyTorch", "with checkpoint", "compiled", "pure bf16", "Ebb", "selective", "full", "floor"]
SUMMARY_RUNS = ["torch-none", "torch-full", "torch-compiled", "torch-pure", "ebb-none", "ebb-selective", "ebb-full"]


def summary_cells(data):
    """The one table that shows all: seconds and gigabytes of each step, microseconds of an op."""
    for row in data["rows"].values():
        in_ms = is_short(row)

        def cell(run):
            memory = "" if in_ms else f", {run['above_bytes'] / 1e9:.2f} GB"
            return seconds_text(run["seconds"], in_ms) + ("" if in_ms else " s") + memory
        floor = [seconds_text(row["floor"]["floor_s"], in_ms) + ("" if in_ms else " s")] if row["floor"] else [""]
        yield [row["title"], *(cell(row["runs"][key]) if key in row["runs"] else "" for key in SUMMARY_RUNS), *floor]
    tiny = data.get("tiny")
    if tiny:
        cells = {side: f"{us['no_grad_us']:.2f} us; {us['forward_backward_us']:.2f} us" for side, us in tiny.items()}
        yield ["one tiny op: no grad; forward + backward", cells.get("torch", ""), "", "", "", cells["ebb"], "", "", ""]


def is_short(row):
    """Told in milliseconds."""
    return bool(row["runs"]) and min(run["seconds"] for run in row["runs"].values()) < 0.5


def model_cells(row):
    """One line a program; ratios are to the first of PyTorch's, in most rows that without checkpointing, and to Ebb's
    own without."""
    in_ms = is_short(row)
    base = next((key for key in row["runs"] if key in TORCH), "torch-none")
    peer, share = row["runs"].get(base), share_of_floor(row)
    for key in sorted(row["runs"], key=ORDER.index):
        run = row["runs"][key]
        is_ebb = key in EBB
        kept = run["kept_bytes"]
        low, high = (seconds_text(run[name], in_ms).removesuffix(" ms") for name in ("low", "high"))
        yield [run["title"], seconds_text(run["seconds"], in_ms), f"{low}-{high}",
               of(run["above_bytes"] / 1e9, 3 if in_ms else 2), of(kept / 1e9, 3) if kept is not None else "",
               of(ratio(row, key, base)) if key != base else "",
               of(run["above_bytes"] / peer["above_bytes"]) if peer and key != base else "",
               of(ratio(row, key, "ebb-none")) if is_ebb and key != "ebb-none" else "",
               of(share) if key == "ebb-none" else ""]
    if row["floor"]:
        floor = row["floor"]["floor_s"]
        yield ["floor: its products alone", seconds_text(floor, in_ms), *[""] * (len(MODEL_HEADER) - 2)]


def small_cells(data):
    """Lines of (what, Ebb, PyTorch, ratio)."""
    tiny, start, load = data.get("tiny"), data.get("start"), data.get("load")

    def line(what, ebb, torch, unit, digits):
        return [what, f"{ebb:.{digits}f} {unit}", f"{torch:.{digits}f} {unit}" if torch else "",
                of(ebb / torch) if torch else ""]

    if tiny:
        peer = tiny.get("torch", {})
        for what, name in (("one tiny op (add, mul of 8 f32), no grad", "no_grad_us"),
                           ("the same, forward + backward", "forward_backward_us"),
                           ("of 1 f32, no grad", "no_grad_1_us"),
                           ("of 1 f32, forward + backward", "forward_backward_1_us")):
            yield line(what, tiny["ebb"][name], peer.get(name), "us", 2)
    if start:
        yield line("`train_gpt --help`; `import torch`", start["ebb"]["seconds"] * 1e3,
                   start.get("torch", {}).get("seconds", 0) * 1e3, "ms", 1)
    if load:
        peer = load.get("torch", {})
        name = "GPT-2 124M" if load["preset"] == "gpt2" else load["preset"]
        yield line(f"{name} from safetensors, warm: the file", load["ebb"]["file_s"], peer.get("file_s"), "s", 3)
        yield line("the same, with making the model", load["ebb"]["model_s"], None, "s", 3)


def target_cells(data):
    for verdict in verdicts(data):
        relation = "at most" if verdict.at_most else "at least"
        value = "" if verdict.value is None else f"{verdict.value:.3g}{verdict.unit}"
        word = verdict.word + (f" by {verdict.instead}" if verdict.instead else "")
        yield [verdict.what, value, f"{relation} {verdict.bound:g}{verdict.unit}", word]


def sweep_cells(sweep, name):
    for point in sweep["points"]:
        runs = point["runs"]
        yield [str(point[name]), *(seconds_text(runs[s]["seconds"], True) for s in runs),
               *(of(runs[s]["kept_bytes"] / 1e6, 1) for s in runs), of(point["input_bytes"] / 1e6, 1),
               *(of(runs[s]["peak_bytes"] / 1e6, 0) for s in runs)]


def sweep_header(sweep, name):
    strategies = list(sweep["points"][0]["runs"])
    return [name, *strategies, *(f"MB kept, {s}" for s in strategies), "inputs of blocks",
            *(f"MB peak, {s}" for s in strategies)]


def tables(data):
    """(Title, header, lines) of all that was measured."""
    summary = list(summary_cells(data))
    if summary:
        yield "Summary: a step's seconds, and gigabytes above the library", SUMMARY, summary
    for row in data["rows"].values():
        yield row["title"], MODEL_HEADER, list(model_cells(row))
    small = list(small_cells(data))
    if small:
        yield "Small things", ["", "Ebb", "PyTorch", "ratio"], small
    sweeps = data.get("sweeps")
    for name in ("context", "layers") if sweeps else ():
        sweep = sweeps[name]
        fixed = {"context": "layers", "layers": "context"}[name]
        title = (f"Cost against {'context length' if name == 'context' else name}: width {sweeps['width']}, "
                 f"{fixed} {sweep[fixed]}, batch {sweep['batch']}, f32")
        yield title, sweep_header(sweep, name), list(sweep_cells(sweep, name))
    targets = list(target_cells(data))
    if targets:
        yield "Asked for", ["", "measured", "target", ""], targets


def as_text(header, lines):
    cells = [header, *lines]
    widths = [max(len(line[i]) for line in cells) for i in range(len(header))]
    return "\n".join("  ".join(cell.rjust(w) if i else cell.ljust(w)
                               for i, (cell, w) in enumerate(zip(line, widths))).rstrip() for line in cells)


def as_markdown(header, lines):
    rule = "|---|" + "---:|" * (len(header) - 1)
    return "\n".join(["| " + " | ".join(header) + " |", rule, *("| " + " | ".join(line) + " |" for line in lines)])


def description(data):
    minutes = data["seconds"] / 60
    return [*machine.as_lines(data["machine"]),
            f"Run: {data['command']}, {data['date']}, {minutes:.0f} minutes" +
            (f"; PyTorch's AdamW: {data['optimizer']}" if data.get("optimizer") else "")]


def text(data):
    parts = ["\n".join(description(data))]
    parts += [f"{title}\n{as_text(header, lines)}" for title, header, lines in tables(data)]
    return "\n\n".join([*parts, *(f"WARNING: {warning}" for warning in data["warnings"])])


def markdown(data):
    parts = ["\n".join(f"- {line}" for line in description(data))]
    parts += [f"### {title}\n\n{as_markdown(header, lines)}" for title, header, lines in tables(data)]
    return "\n\n".join([*parts, *(f"Warning: {warning}" for warning in data["warnings"])]) + "\n"
