#!/usr/bin/python3
"""Prints the tables of docs/memory.md's worked cases and README's table of what fits, by --estimate alone: nothing of a
model's size is allocated.

    docs/figures/memory_cases.py [--only NAME] [--check]
    docs/figures/memory_cases.py --measure

The programs are those of build/release, or of EBB_BUILD_DIR. A table has the bytes of a step, in all and of activations,
and its time beside that of the first row. Kernels are timed once and kept, so times need a quiet machine and bytes
don't. Kernels are AVX2's on every processor, since their workspace is another with AVX-512. --check compares the bytes
with the tables in docs/memory.md. They may differ by one percent. The plan of a row with a budget depends on kernels'
times: a step may differ by a tenth, what it has beside activations by one percent, and neither the table's nor the estimate's step may pass the budget.

--measure trains a model of that shape in each of the ladder's ways, in turn, and prints the most bytes that were
resident and the tokens a second beside those of the first row. It takes 17 GiB of memory, a quarter of an hour, and a
Python that has numpy. The model, of 2.5 GB, stays in ~/.cache/ebb/bench.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("EBB_BUILD_DIR", os.path.join(ROOT, "build/release"))
DOCUMENT = os.path.join(ROOT, "docs/memory.md")
README = os.path.join(ROOT, "README.md")
MAY_DIFFER = 0.01
# Kernels of one processor aren't as fast as another's, so other plans are fastest there.
PLANS_MAY_DIFFER = 0.1
N_TIMES = 4  # an estimate times kernels for some seconds, and the next one those that are left
# Kernels' workspace depends on these.
THREADS = ["--threads", "2"]
AVX2 = {"EBB_CPU_SIMD": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}

LLAMA = {  # the shape of Llama 3.2 1B
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
    "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True,
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "hidden_act": "silu", "bos_token_id": 128000, "eos_token_id": 128001}
LLAMA_BF16 = {**LLAMA, "dtype": "bfloat16"}

# Of a published recipe, one measure after the other: each row has those above it. Documents always share rows.
MEASURES = "--checkpoint full --step-in-backward --store disk"
LADDER = ["--moments f32 --loss-chunk 1GiB", "--moments f32", "--moments f32 --checkpoint full",
          "--moments f32 --checkpoint full --step-in-backward", f"--moments f32 {MEASURES}", MEASURES,
          f"--lora 16 {MEASURES}", f"--lora 16 --base nf4 {MEASURES}"]
N_ROUNDS, N_STEPS = 3, 2

CASES = {
    "gpt2": ("train_gpt --preset gpt2 --batch 8 --context 512",
             ["", "--memory 2.5GiB", "--memory 2.25GiB", "--memory 2.1GiB", "--moments 8bit --memory 1.75GiB",
              "--moments 8bit --step-in-backward --memory 1.5GiB"]),
    "llama": ("train_gpt --model llama --batch 1 --context 1024",
              ["", "--checkpoint full", "--moments 8bit", "--moments 8bit --step-in-backward",
               "--moments 8bit --step-in-backward --memory 9GiB"]),
    "ladder": ("finetune --model llama-bf16 --context 1024", LADDER),
    "bert-large": ("train_bert --preset bert-large --batch 32 --context 128",
                   ["", "--checkpoint full", "--memory 7GB", "--moments 8bit --memory 4GB"]),
    "oslo": ("train_gpt --preset gpt2 --batch 128 --context 128 --tensor-parallel 4 --device sim",
             ["", "--checkpoint full", "--checkpoint full --partition",
              "--checkpoint full --partition --store host"]),
    "gpt2-xl": ("train_gpt --preset gpt2-xl --batch 32 --context 1024",
                ["", "--checkpoint selective", "--checkpoint full", "--memory 48GiB"]),
}

# What fits: shapes of published models, from the smallest.
GPT2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_positions": 1024, "vocab_size": 50257,
        "dtype": "bfloat16"}


def describe(family, width, inner, layers, heads, head_width, vocab, tied):
    """A Llama or a Qwen3 with 8 heads of keys and values."""
    return {"architectures": [f"{family}ForCausalLM"], "model_type": family.lower(), "hidden_size": width,
            "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": 8, "head_dim": head_width, "vocab_size": vocab, "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-6, "rope_theta": 500000.0, "tie_word_embeddings": tied, "hidden_act": "silu",
            "dtype": "bfloat16"}


MODELS = {
    "GPT-2 124M": {**GPT2, "n_embd": 768, "n_layer": 12, "n_head": 12},
    "GPT-2 355M": {**GPT2, "n_embd": 1024, "n_layer": 24, "n_head": 16},
    "Qwen3-0.6B": describe("Qwen3", 1024, 3072, 28, 16, 128, 151936, True),
    "Llama-3.2-1B": describe("Llama", 2048, 8192, 16, 32, 64, 128256, True),
    "Qwen3-1.7B": describe("Qwen3", 2048, 6144, 28, 16, 128, 151936, True),
    "Llama-3.2-3B": describe("Llama", 3072, 8192, 28, 24, 128, 128256, True),
    "Qwen3-4B": describe("Qwen3", 2560, 9728, 36, 32, 128, 151936, True),
    "Llama-3.1-8B": describe("Llama", 4096, 14336, 32, 32, 128, 128256, False),
    "Qwen3-14B": describe("Qwen3", 5120, 17408, 40, 40, 128, 151936, False),
}
WAYS = {
    "every weight in f32": "--weights f32 --dtype f32 --moments f32 --step-in-backward",
    "every weight in bf16, 8-bit moments": "--step-in-backward",
    "LoRA over bf16": "--lora 16",
    "LoRA over nf4": "--lora 16 --base nf4",
}
FITS = "finetune --model MODEL --context 1024 --checkpoint full"
GIBS = (2, 4, 8, 16)
MIB = 1 << 20  # bytes are shown in it
OWN_BYTES = 64 * MIB  # the program itself takes about 50 MiB


def estimate(folder, command, options):
    report = os.path.join(folder, "report.json")
    program, *arguments = f"{command} {options}".split()
    if "--model" not in arguments and program != "finetune":
        arguments += ["--data", DOCUMENT]
    subprocess.run([os.path.join(BUILD, "examples", program), *arguments, *THREADS, "--estimate", "--quiet", "--report",
                    report],
                   cwd=folder, env={**os.environ, **AVX2}, check=True)
    with open(report, encoding="utf-8") as file:
        return json.load(file)


def list_bytes(report):
    """What the tables show: the bytes of a step, in all and of activations."""
    return [report["predicted_peak_bytes"], report["peak_bytes_by_purpose"]["activations"]]


def print_table(folder, command, rows):
    first = None
    print(f"\n    {command} --estimate OPTIONS\n\n| OPTIONS | a step | activations | time |\n|---|--:|--:|--:|")
    for options in rows:
        for _ in range(N_TIMES):
            report = estimate(folder, command, options)
        first = first or report["step_seconds"]
        shown = f"`{options}`" if options else ""
        step, activations = list_bytes(report)
        print(f"| {shown} | {step / MIB:.0f} MiB | {activations / MIB:.0f} MiB "
              f"| {report['step_seconds'] / first:.2f} |", flush=True)
        if report["seconds_are_disturbed"]:
            print("memory_cases: other programs ran while kernels were timed: the times are wrong", file=sys.stderr)


def print_bytes(folder, command, rows):
    print(f"\n    {command} --estimate OPTIONS\n\n| OPTIONS | a step | activations |\n|---|--:|--:|")
    for options in rows:
        step, activations = list_bytes(estimate(folder, command, options))
        print(f"| `{options}` | {step / MIB:.0f} MiB | {activations / MIB:.0f} MiB |", flush=True)


def measure_ladder(folder):
    sys.path.insert(0, os.path.join(ROOT, "tests/bench"))
    from make_model import make_model  # it needs numpy
    from suite.process import cache_folder
    model = os.path.join(cache_folder(), "llama-3.2-1b")
    if not os.path.exists(model):
        make_model("llama-3.2-1b", model)
    report, measured = os.path.join(folder, "report.json"), {options: [] for options in LADDER}
    for _ in range(N_ROUNDS):
        for options in LADDER:
            words = f"--context 1024 --steps {N_STEPS} {options}".split()
            subprocess.run([os.path.join(BUILD, "examples/finetune"), "--model", model, *words, "--data", DOCUMENT,
                            *THREADS, "--quiet", "--report", report], cwd=folder, check=True)
            with open(report, encoding="utf-8") as file:
                done = json.load(file)
            measured[options].append((done["rss_peak_bytes"], statistics.median(done["step_seconds"][1:])))
            print(f"{options}: {measured[options][-1]}", file=sys.stderr, flush=True)
    print("| OPTIONS | resident | tokens/s |\n|---|--:|--:|")
    for options, runs in measured.items():
        speed = statistics.median(first[1] / run[1] for first, run in zip(measured[LADDER[0]], runs))
        print(f"| `{options}` | {max(run[0] for run in runs) / MIB:.0f} MiB | {speed:.2f} |")


def list_fits(folder):
    """The lines of README's table: of each way the largest model that fits."""
    needed = {}
    for model, config in MODELS.items():
        write_config(os.path.join(folder, "model"), config)
        for way, options in WAYS.items():
            command = FITS.replace("MODEL", os.path.join(folder, "model"))
            needed[way, model] = estimate(folder, command, options)["heap_bytes"] + OWN_BYTES
            print(f"{model}, {way}: {needed[way, model] / 2**30:.2f} GiB", file=sys.stderr, flush=True)
    yield "| | " + " | ".join(f"{gib} GiB" for gib in GIBS) + " |"
    yield "|---|" + "---|" * len(GIBS)
    for way in WAYS:
        fitting = [[model for model in MODELS if needed[way, model] <= gib << 30] for gib in GIBS]
        yield f"| {way} | " + " | ".join(models[-1] if models else "" for models in fitting) + " |"


def check_fits(folder):
    with open(README, encoding="utf-8") as file:
        lines = file.read().splitlines()
    missing = [line for line in list_fits(folder) if line not in lines]
    for line in missing:
        print(f"README.md does not have {line}")
    return len(missing)


def write_config(folder, config):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)


def read_tables():
    """Bytes of the rows of docs/memory.md by command and options."""
    tables, command = {}, None
    with open(DOCUMENT, encoding="utf-8") as file:
        for line in file:
            if found := re.match(r"    (.*/)?((?:train_|finetune).*) --estimate OPTIONS$", line):
                command = found[2]
            elif found := re.match(r"\| (?:`(.*?)`)? ?\| ([0-9]+) MiB \| ([0-9]+) MiB \|", line):
                tables[command, found[1] or ""] = [int(found[k]) * MIB for k in (2, 3)]
    return tables


def agree(shown, report):
    figures = list_bytes(report)
    if "budget_bytes" not in report:
        return all(abs(a - b) <= MAY_DIFFER * b + MIB for a, b in zip(shown, figures))
    others = [step - activations for step, activations in (shown, figures)]
    return (max(shown[0] - MIB, figures[0]) <= report["budget_bytes"]
            and abs(shown[0] - figures[0]) <= PLANS_MAY_DIFFER * figures[0]
            and abs(others[0] - others[1]) <= MAY_DIFFER * others[1] + MIB)


def check_table(folder, command, rows, tables):
    wrong = 0
    for options in rows:
        report = estimate(folder, command, options)
        figures = list_bytes(report)
        shown = tables.get((command, options))
        if shown is None or not agree(shown, report):
            print(f"{command} {options}: docs/memory.md has {shown}, --estimate {figures}")
            wrong += 1
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[*CASES, "fits"], help="one case instead of all")
    parser.add_argument("--measure", action="store_true", help="train the ladder's ways instead")
    parser.add_argument("--check", action="store_true", help="compare the bytes with docs/memory.md")
    options = parser.parse_args()
    cases = [case for name, case in CASES.items() if options.only in (None, name)]
    with tempfile.TemporaryDirectory() as folder:
        write_config(os.path.join(folder, "llama"), LLAMA)
        write_config(os.path.join(folder, "llama-bf16"), LLAMA_BF16)
        if options.measure:
            measure_ladder(folder)
            return
        if options.check:
            tables = read_tables()
            wrong = sum(check_table(folder, *case, tables) for case in cases)
            wrong += check_fits(folder) if options.only in (None, "fits") else 0
            sys.exit(1 if wrong else 0)
        for case in cases:
            (print_bytes if case == CASES["ladder"] else print_table)(folder, *case)
        if options.only in (None, "fits"):
            print("\n".join(list_fits(folder)))


if __name__ == "__main__":
    main()
