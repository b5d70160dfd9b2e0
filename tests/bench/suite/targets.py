"""What must be reached, held against what was measured."""
import dataclasses
import statistics

ZEN_5 = 26  # AMD's family: some targets are figures of that machine


@dataclasses.dataclass
class Verdict:
    what: str
    value: float  # None: not measured
    bound: float
    at_most: bool
    unit: str = ""
    instead: str = ""  # another target that was reached in this one's place

    @property
    def reached(self):
        if self.value is None:
            return None
        return bool(self.instead) or (self.value <= self.bound if self.at_most else self.value >= self.bound)

    @property
    def word(self):
        return {None: "not measured", True: "reached", False: "missed"}[self.reached]


def ratio(row, name, base):
    """Of two runs' seconds; turn by turn where they ran side by side, so that a drift of the machine cancels."""
    run, other = row["runs"].get(name), row["runs"].get(base)
    if not run or not other:
        return None
    together = any(run["title"] in group and other["title"] in group for group in row["together"])
    if together and len(run["turns"]) == len(other["turns"]):
        return statistics.median(a / b for a, b in zip(run["turns"], other["turns"]))
    return run["seconds"] / other["seconds"]


def share_of_floor(row):
    run = row["runs"].get("ebb-none")
    return row["floor"]["floor_s"] / run["seconds"] if row["floor"] and run else None


def above_gb(row, name):
    run = row["runs"].get(name)
    return run["above_bytes"] / 1e9 if run else None


def either(first, second):
    """Two targets of which one is enough."""
    if first.reached is False and second.reached:
        first.instead = f"{second.what} {second.value:.2f}"
    elif second.reached is False and first.reached:
        second.instead = f"{first.what} {first.value:.3g}{first.unit}"
    return [first, second]


def of_models(rows):
    for name, row in rows.items():
        is_bert, is_bf16 = row["sizes"]["model"] == "bert", row["dtype"] == "bf16"
        if row["sizes"]["width"] < 512 or is_llama(row) or "ebb-none-lora" in row["runs"]:
            continue
        title = row["title"]
        yield Verdict(f"{title}: share of the floor", share_of_floor(row), 0.78 if is_bf16 else 0.88, False)
        yield Verdict(f"{title}: full to none", ratio(row, "ebb-full", "ebb-none"), 1.36 if is_bert else 1.22, True)
        yield Verdict(f"{title}: selective to none", ratio(row, "ebb-selective", "ebb-none"), 1.06, True)


def is_llama(row):
    return row["sizes"]["model"] == "llama"


def memory_ratio(row, name, base):
    run, other = above_gb(row, name), above_gb(row, base)
    return run / other if run and other else None


def of_llamas(rows):
    for name, most in (("llama-8x512-f32", 0.80), ("llama-8x512-bf16", 0.75)):
        if name in rows:
            row = rows[name]
            yield Verdict(f"{row['title']}: to eager", ratio(row, "ebb-none", "torch-none"), 0.65, True)
            yield Verdict(f"{row['title']}: to compiled", ratio(row, "ebb-none", "torch-compiled"), most, True)
            yield Verdict(f"{row['title']}: memory to eager's", memory_ratio(row, "ebb-none", "torch-none"), 0.6, True)


def of_tuning(rows):
    for name, ebb, torch in (("finetune-lora-f32", "ebb-full-lora", "torch-full-lora"),
                             ("finetune-lora-bf16", "ebb-full-lora-weights", "torch-full-lora-pure"),
                             ("finetune-lora-bf16", "ebb-full-lora-weights", "torch-full-lora-f32"),
                             ("finetune-all-bf16", "ebb-full-weights", "torch-full-pure")):
        row = rows.get(name)
        if row and torch in row["runs"]:
            value = ratio(row, ebb, torch)
            what = f"{row['title']}: times as fast as {row['runs'][torch]['title']}"
            yield Verdict(what, 1 / value if value else None, 1.5, False)


def of_lora(rows):
    row = rows.get("lora-4x256-f32")
    if row:
        for name, most in (("none", 0.75), ("full", 0.85)):
            yield Verdict(f"{row['title']}: LoRA 16 to all, {name}",
                          ratio(row, f"ebb-{name}-lora", f"ebb-{name}"), most, True)


def of_memory(rows):
    for name, run, most in (("gpt2-8x512-f32", "ebb-full", 2.6), ("gpt2-8x512-f32", "ebb-none", 4.0),
                            ("gpt2-8x512-bf16", "ebb-full-stream", 2.6), ("gpt2-8x512-bf16", "ebb-none-stream", 3.4)):
        if name in rows:
            row = rows[name]
            title = row["runs"][run]["title"] if run in row["runs"] else run
            yield Verdict(f"{row['title']}: {title}", above_gb(row, run), most, True, " GB")


def of_small(rows):
    row = rows.get("small-12x64-f32")
    if row:
        seconds = row["runs"]["ebb-none"]["seconds"]
        yield from either(Verdict(f"{row['title']}: a step", seconds * 1e3, 20, True, " ms"),
                          Verdict(f"{row['title']}: to PyTorch", ratio(row, "ebb-none", "torch-none"), 0.35, True))


def of_tiny(tiny):
    for what, name, most in (("no grad", "no_grad_us", 0.3), ("forward + backward", "forward_backward_us", 1.2)):
        ebb, torch = tiny["ebb"][name], tiny.get("torch", {}).get(name)
        yield from either(Verdict(f"tiny op, {what}", ebb, most, True, " us"),
                          Verdict(f"tiny op, {what}, to PyTorch C++", ebb / torch if torch else None, 0.3, True))


def of_folders(data):
    for dtype, sides in (data.get("generate") or {}).items():
        ebb, torch = sides["ebb"], sides["torch"]
        faster = ebb["tokens_per_s"] / torch["tokens_per_s"]
        yield Verdict(f"generation, {dtype}: times as fast as transformers", faster, 1.5, False)
        yield Verdict(f"generation, {dtype}: of what copying the weights allows", ebb["copy_s"] / ebb["token_s"], 0.7,
                      False)
    if data.get("open"):
        opened, read = data["open"]["open"], data["open"]["read"]
        yield Verdict("opening a folder: to read ()", opened["seconds"] / read["seconds"], 1.2, True)
        growth = opened["growth_bytes"] / opened["bytes"]
        yield Verdict("opening a folder: resident growth to the weights", growth, 1.02, True)


def on_zen_5(rows):
    for name, base, least in (("f32", "torch-none", 2.1), ("bf16", "torch-none", 2.4), ("bf16", "torch-compiled", 1.6)):
        for row in rows.values():
            if row["dtype"] == name and row["sizes"]["width"] >= 512 and base in row["runs"] and not is_llama(row):
                value = ratio(row, "ebb-none", base)
                yield Verdict(f"{row['title']}: times as fast as {row['runs'][base]['title']}",
                              1 / value if value else None, least, False, " (a Zen 5's)")


def verdicts(data):
    """What was asked for and could be measured in this run, in the table's order."""
    rows = data["rows"]
    result = [*of_models(rows), *of_llamas(rows), *of_tuning(rows), *of_lora(rows), *of_memory(rows), *of_small(rows)]
    if data.get("tiny"):
        result += of_tiny(data["tiny"])
    if data.get("start"):
        result.append(Verdict("train_gpt --help", data["start"]["ebb"]["seconds"] * 1e3, 20, True, " ms"))
    if data.get("load"):
        result.append(Verdict("GPT-2 124M from safetensors, warm", data["load"]["ebb"]["model_s"], 0.3, True, " s"))
    result += of_folders(data)
    if data["machine"]["family"] == ZEN_5:
        result += on_zen_5(rows)
    return result
