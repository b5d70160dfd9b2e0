#!/usr/bin/python3
"""Prints the tables of docs/memory.md's worked cases, by --estimate alone: nothing of a model's size is allocated.

    docs/figures/memory_cases.py [--only NAME] [--check]

The programs are those of build/release, or of EBB_BUILD_DIR. A table has the bytes of a step, in all and of activations,
and its time beside that of the first row. Kernels are timed once and kept, so times need a quiet machine and bytes
don't. --check compares the bytes with the tables in docs/memory.md: they may differ by one percent, since workspace
depends on the processor, and a plan on its kernels' times.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("EBB_BUILD_DIR", os.path.join(ROOT, "build/release"))
DOCUMENT = os.path.join(ROOT, "docs/memory.md")
MAY_DIFFER = 0.01
# Kernels of one processor aren't as fast as another's, so other plans are fastest there.
PLANS_MAY_DIFFER = 0.1
N_TIMES = 4  # an estimate times kernels for some seconds, and the next one those that are left
THREADS = ["--threads", "2"]  # kernels' workspace depends on it

LLAMA = {  # the shape of Llama 3.2 1B
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
    "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True,
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "hidden_act": "silu", "bos_token_id": 128000, "eos_token_id": 128001}

CASES = {
    "gpt2": ("train_gpt --preset gpt2 --batch 8 --context 512",
             ["", "--memory 2.5GiB", "--memory 2.25GiB", "--memory 2.1GiB", "--moments 8bit --memory 1.75GiB",
              "--moments 8bit --step-in-backward --memory 1.5GiB"]),
    "llama": ("train_gpt --model llama --batch 1 --context 1024",
              ["", "--checkpoint full", "--moments 8bit", "--moments 8bit --step-in-backward",
               "--moments 8bit --step-in-backward --memory 9GiB"]),
    "bert-large": ("train_bert --preset bert-large --batch 32 --context 128",
                   ["", "--checkpoint full", "--memory 7GB", "--moments 8bit --memory 4GB"]),
    "oslo": ("train_gpt --preset gpt2 --batch 128 --context 128 --tensor-parallel 4 --device sim",
             ["", "--checkpoint full", "--checkpoint full --partition",
              "--checkpoint full --partition --store host"]),
    "gpt2-xl": ("train_gpt --preset gpt2-xl --batch 32 --context 1024",
                ["", "--checkpoint selective", "--checkpoint full", "--memory 48GiB"]),
}


def estimate(folder, command, options):
    report = os.path.join(folder, "report.json")
    program, *arguments = f"{command} {options}".split()
    if "--model" not in arguments:
        arguments += ["--data", DOCUMENT]
    subprocess.run([os.path.join(BUILD, "examples", program), *arguments, *THREADS, "--estimate", "--quiet", "--report",
                    report],
                   cwd=folder, check=True)
    with open(report, encoding="utf-8") as file:
        return json.load(file)


def print_table(folder, command, rows):
    first = None
    print(f"\n    {command} --estimate OPTIONS\n\n| OPTIONS | a step | activations | time |\n|---|--:|--:|--:|")
    for options in rows:
        for _ in range(N_TIMES):
            report = estimate(folder, command, options)
        first = first or report["step_seconds"]
        shown = f"`{options}`" if options else ""
        print(f"| {shown} | {report['predicted_peak_bytes'] / 2**20:.0f} MiB "
              f"| {report['peak_bytes_by_purpose']['activations'] / 2**20:.0f} MiB "
              f"| {report['step_seconds'] / first:.2f} |", flush=True)
        if report["seconds_are_disturbed"]:
            print("memory_cases: other programs ran while kernels were timed: the times are wrong", file=sys.stderr)


def read_tables():
    """Bytes of the rows of docs/memory.md by command and options."""
    tables, command = {}, None
    with open(DOCUMENT, encoding="utf-8") as file:
        for line in file:
            if found := re.match(r"    (.*/)?(train_.*) --estimate OPTIONS$", line):
                command = found[2]
            elif found := re.match(r"\| (?:`(.*?)`)? ?\| ([0-9]+) MiB \| ([0-9]+) MiB \|", line):
                tables[command, found[1] or ""] = [int(found[k]) << 20 for k in (2, 3)]
    return tables


def check_table(folder, command, rows, tables):
    wrong = 0
    for options in rows:
        report = estimate(folder, command, options)
        share = PLANS_MAY_DIFFER if "--memory" in options else MAY_DIFFER
        figures = [report["predicted_peak_bytes"], report["peak_bytes_by_purpose"]["activations"]]
        shown = tables.get((command, options))
        if shown is None or any(abs(a - b) > share * b + (1 << 20) for a, b in zip(shown, figures)):
            print(f"{command} {options}: docs/memory.md has {shown}, --estimate {figures}")
            wrong += 1
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CASES, help="one case instead of all")
    parser.add_argument("--check", action="store_true", help="compare the bytes with docs/memory.md")
    options = parser.parse_args()
    cases = [case for name, case in CASES.items() if options.only in (None, name)]
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "llama"))
        with open(os.path.join(folder, "llama/config.json"), "w", encoding="utf-8") as file:
            json.dump(LLAMA, file)
        if options.check:
            tables = read_tables()
            sys.exit(1 if sum(check_table(folder, *case, tables) for case in cases) else 0)
        for case in cases:
            print_table(folder, *case)


if __name__ == "__main__":
    main()
