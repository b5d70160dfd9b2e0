#!/usr/bin/env python3
"""Adapters, merged models and quantised folders that Ebb saves, opened by peft, transformers and bitsandbytes.

Ebb loads the fixtures' adapters, saves each again, merges it and saves the model; and it saves the fixture's Llama in
nf4 and in int8. peft opens the adapters (tests/fixtures/make_lora.py --verify), transformers the merged models and the
quantised ones (make_quantized.py --verify), with equal logits. Takes a minute, and needs scripts/peer-venv, into which
`pip install --no-deps peft accelerate psutil pyyaml bitsandbytes` puts what it needs, and the Python binding.
"""
import os
import shutil
import subprocess
import sys
import tempfile

SOURCE = os.environ.get("EBB_SOURCE_DIR", os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
BUILD = os.environ.get("EBB_BUILD_DIR", os.path.join(SOURCE, "build", "release"))
FIXTURES = os.path.join(SOURCE, "tests", "fixtures")
QUANTIZED = {"llama3-nf4": "nf4", "llama3-int8": "int8"}


# -- Ebb's side, in the interpreter that has GObject introspection -----------------------------------------------------

def save_logits(model, tokens, path):
    model.eval()
    with Ebb.no_grad():
        Ebb.save_safetensors({"logits": model(tokens)}, path)


def save_adapter(row, folder):
    model = Ebb.open_model(os.path.join(FIXTURES, "models", row)).to("f32")
    Ebb.lora_load(model, os.path.join(FIXTURES, "lora", row))
    Ebb.lora_save(model, os.path.join(folder, "adapters", row))
    Ebb.lora_merge(model)
    Ebb.lora_unwrap(model)
    Ebb.save_model(model, os.path.join(folder, "adapters", row, "merged"))


def save_quantized(base, folder):
    model = Ebb.open_model(os.path.join(FIXTURES, "models", "llama3"), base=base)
    expected = Ebb.load_safetensors(os.path.join(FIXTURES, "models", "llama3", "expected.safetensors"))
    Ebb.save_model(model, folder)
    save_logits(model, expected["tokens"][0], folder + ".safetensors")


def save_all(folder):
    for row in sorted(os.listdir(os.path.join(FIXTURES, "lora"))):
        save_adapter(row, folder)
    for name, base in QUANTIZED.items():
        save_quantized(base, os.path.join(folder, name))


# -- both sides --------------------------------------------------------------------------------------------------------

def find_peer():
    done = subprocess.run([os.path.join(SOURCE, "scripts", "peer-venv"), "--path"], capture_output=True, text=True,
                          check=False)
    python = done.stdout.strip()
    has_all = os.path.exists(python) and subprocess.run([python, "-c", "import bitsandbytes, peft, transformers"],
                                                        capture_output=True, check=False).returncode == 0
    return python if has_all else None


def main():
    peer = find_peer()
    missing = (None if os.environ.get("EBB_LONG") else "EBB_LONG is not set") \
        or (None if peer else "there is no peft or bitsandbytes beside transformers: see tests/fixtures/make_lora.py") \
        or (None if os.path.exists(os.path.join(BUILD, "Ebb-1.0.typelib")) else "there is no binding in the build")
    if missing:
        print(f"skipped: {missing}")
        sys.exit(77)
    folder = tempfile.mkdtemp(prefix="ebb-adapters-")
    try:
        subprocess.run(["/usr/bin/python3", os.path.realpath(__file__), "--ebb", folder], check=True)
        subprocess.run([peer, os.path.join(FIXTURES, "make_lora.py"), "--verify", os.path.join(folder, "adapters")],
                       check=True)
        for name in QUANTIZED:
            path = os.path.join(folder, name)
            subprocess.run([peer, os.path.join(FIXTURES, "make_quantized.py"), "--verify", path,
                            path + ".safetensors"], check=True)
    except subprocess.CalledProcessError as error:
        sys.exit(f"long_peer_adapters: exit status {error.returncode}: {' '.join(error.cmd)}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ebb"]:
        import gi
        gi.require_version("Ebb", "1.0")
        from gi.repository import Ebb
        save_all(sys.argv[2])
    else:
        main()
