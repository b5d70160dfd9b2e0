#!/usr/bin/env python3
"""GGUF files that Ebb writes give the same greedy text in llama.cpp as in Ebb, as f16 and as q8_0.

ebb-finetune trains a tiny Llama and a tiny GPT-2 by heart, so that rounding moves no choice, and an adapter of the
Llama, which is merged, and saved for llama.cpp to put beside the model. Needs the Python binding, and PyPI's
llama-cpp-python, built from its source, in the interpreter of scripts/peer-venv or in the one that EBB_LLAMA_PYTHON
names.
"""
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile

SOURCE = os.environ.get("EBB_SOURCE_DIR", os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
BUILD = os.environ.get("EBB_BUILD_DIR", os.path.join(SOURCE, "build", "release"))
FIXTURES = os.path.join(SOURCE, "tests", "fixtures")
DTYPES = "f16", "q8_0"
TOKENS = 16
# Sizes of the fixtures' models, and those here: rows of whole blocks of q8_0.
SIZES = {"llama3": {24: 64, 12: 32, 36: 128}, "gpt2": {24: 64, 72: 192, 96: 256}}
CONFIG = {"llama3": {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}, "gpt2": {"n_embd": 64}}
TEXT = "The ebb carries the boats out of the harbour, and the flood brings them home again before the night falls. "
OTHER = "A stone that lies in the river for a hundred years is round, and nobody knows how it came to be there. "


def get_prompts(text):
    """Whole words, since a space belongs to the word behind it."""
    return [" ".join(text.split()[:n]) for n in (3, 6)]


def run(program, *words):
    done = subprocess.run([os.path.join(BUILD, "examples", program), *map(str, words)], stdin=subprocess.DEVNULL,
                          capture_output=True, check=False, text=True)
    if done.returncode != 0:
        sys.exit(f"long_gguf: {program} {' '.join(map(str, words))}: {done.stderr}")


def write_config(row, folder, vocab, ends):
    with open(os.path.join(FIXTURES, "models", row, "config.json"), encoding="utf-8") as file:
        config = {**json.load(file), **CONFIG[row], "vocab_size": vocab}
    config["bos_token_id"] = ends.get("<|begin_of_text|>", ends.get("<|endoftext|>"))
    config["eos_token_id"] = ends.get("<|end_of_text|>", ends.get("<|endoftext|>"))
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)


def write_model(row, folder):
    """The fixture's model with other sizes, the vocabulary of a tokenizer, and random weights."""
    random.seed(3)
    shutil.copytree(os.path.join(FIXTURES, "tokenizers", row), folder)
    os.remove(os.path.join(folder, "expected.json"))
    with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as file:
        tokenizer = json.load(file)
    ends = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    vocab = 1 + max([*tokenizer["model"]["vocab"].values(), *ends.values()])
    write_config(row, folder, vocab, ends)
    with open(os.path.join(FIXTURES, "models", row, "model.safetensors"), "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    header.pop("__metadata__", None)
    tensors, data = {}, b""
    for name, tensor in header.items():
        shape = [vocab if n == 64 else SIZES[row].get(n, n) for n in tensor["shape"]]
        n, is_norm = 1, len(shape) == 1 and name.endswith("weight")
        for size in shape:
            n *= size
        values = [1.0 if is_norm else random.gauss(0, 0.08) for _ in range(n)]
        tensors[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * n]}
        data += struct.pack(f"<{n}f", *values)
    text = json.dumps(tensors).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def train(folder, model, name, text, *words):
    with open(os.path.join(folder, "text.txt"), "w", encoding="utf-8") as file:
        file.write(text * 12)
    run("ebb-finetune", "--model", os.path.join(folder, model), "--data", os.path.join(folder, "text.txt"), "--context",
        48, "--batch", 4, "--lr", 1e-2, "--moments", "f32", "--quiet", "--save", os.path.join(folder, name), *words)


# -- Ebb's side, in the interpreter that has GObject introspection -----------------------------------------------------

def write_files(folder):
    """cases.json: [[model, adapter or None, prompt]]"""
    cases = []
    for row in SIZES:
        write_model(row, os.path.join(folder, f"{row}-random"))
        train(folder, f"{row}-random", row, TEXT, "--steps", 120)
    train(folder, "llama3", "adapter", OTHER, "--steps", 120, "--lora", 16)
    run("ebb-finetune", "--model", os.path.join(folder, "llama3"), "--merge", os.path.join(folder, "adapter"), "--save",
        os.path.join(folder, "merged"))
    for name, text in ("llama3", TEXT), ("gpt2", TEXT), ("merged", OTHER):
        model = Ebb.open_model(os.path.join(folder, name))
        for dtype in DTYPES:
            path = os.path.join(folder, f"{name}-{dtype}.gguf")
            Ebb.save_model(model, path, dtype=dtype)
            cases += [[path, None, prompt] for prompt in get_prompts(text)]
    path = os.path.join(folder, "adapter.gguf")
    model = Ebb.lora_load(Ebb.open_model(os.path.join(folder, "llama3")), os.path.join(folder, "adapter"))
    Ebb.lora_save(model, path)
    cases += [[os.path.join(folder, "llama3-f16.gguf"), path, prompt] for prompt in get_prompts(OTHER)]
    with open(os.path.join(folder, "cases.json"), "w", encoding="utf-8") as file:
        json.dump(cases, file)


# -- llama.cpp's side --------------------------------------------------------------------------------------------------

def generate(path):
    with open(path, encoding="utf-8") as file:
        cases = json.load(file)
    texts = []
    for model, adapter, prompt in cases:
        llm = llama_cpp.Llama(model_path=model, lora_path=adapter, n_ctx=48, n_threads=1, seed=1, verbose=False)
        done = llm(prompt, max_tokens=TOKENS, temperature=0.0, top_k=1, repeat_penalty=1.0)
        texts.append(done["choices"][0]["text"])
    with open(path + ".llama", "w", encoding="utf-8") as file:
        json.dump(texts, file)


# -- both sides --------------------------------------------------------------------------------------------------------

def compare(folder):
    with open(os.path.join(folder, "cases.json"), encoding="utf-8") as file:
        cases = json.load(file)
    with open(os.path.join(folder, "cases.json.llama"), encoding="utf-8") as file:
        texts = json.load(file)
    failures, report = [], os.path.join(folder, "report.json")
    for (model, adapter, prompt), text in zip(cases, texts, strict=True):
        run("ebb-generate", "--model", model, "--prompt", prompt, "--temperature", 0, "--repetition-penalty", 1,
            "--tokens", TOKENS, "--report", report, *(["--adapter", adapter] if adapter else []))
        with open(report, encoding="utf-8") as file:
            own = json.load(file)["rows"][0]["text"]
        name = os.path.basename(model) + (" with an adapter" if adapter else "")
        print(f"{name}: {prompt!r} -> {own!r}", flush=True)
        if not own or own != text:
            failures.append(f"{name}: after {prompt!r} llama.cpp writes {text!r}, Ebb {own!r}")
    if len(set(texts)) < 4:
        failures.append(f"the texts are too much alike to be compared: {texts}")
    sys.exit("\n".join(failures) if failures else 0)


def find_llama():
    done = subprocess.run([os.path.join(SOURCE, "scripts", "peer-venv"), "--path"], capture_output=True, text=True,
                          check=False)
    for python in os.environ.get("EBB_LLAMA_PYTHON"), done.stdout.strip():
        if python and os.path.exists(python) and subprocess.run([python, "-c", "import llama_cpp"], check=False,
                                                                capture_output=True).returncode == 0:
            return python
    return None


def main():
    llama = find_llama()
    missing = (None if os.environ.get("EBB_LONG") else "EBB_LONG is not set") \
        or (None if llama else "there is no llama-cpp-python: install it into peer-venv, or set EBB_LLAMA_PYTHON") \
        or (None if os.path.exists(os.path.join(BUILD, "Ebb-1.0.typelib")) else "there is no binding in the build")
    if missing:
        print(f"skipped: {missing}")
        sys.exit(77)
    folder, script = tempfile.mkdtemp(prefix="ebb-gguf-"), os.path.realpath(__file__)
    try:
        subprocess.run(["/usr/bin/python3", script, "--ebb", folder], check=True)
        subprocess.run([llama, script, "--llama", os.path.join(folder, "cases.json")], check=True)
        compare(folder)
    except subprocess.CalledProcessError as error:
        sys.exit(f"long_gguf: exit status {error.returncode}: {' '.join(error.cmd)}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ebb"]:
        import gi
        gi.require_version("Ebb", "1.0")
        from gi.repository import Ebb
        write_files(sys.argv[2])
    elif sys.argv[1:2] == ["--llama"]:
        import llama_cpp
        generate(sys.argv[2])
    else:
        main()
