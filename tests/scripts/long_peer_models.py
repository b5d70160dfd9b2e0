#!/usr/bin/env python3
"""Random configurations of every architecture beside transformers: logits, gradients, twenty steps, folders both ways.

transformers writes folders and what it computes of them (tests/fixtures/make_models.py --random). Ebb opens each,
compares, and saves the model again, in one file, in several, and after the steps; transformers opens these. Takes
minutes, and needs scripts/peer-venv and the Python binding. `long_peer_models.py [N [SEED]]`: N configurations of each.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

SOURCE = os.environ.get("EBB_SOURCE_DIR", os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
BUILD = os.environ.get("EBB_BUILD_DIR", os.path.join(SOURCE, "build", "release"))
WRITER = os.path.join(SOURCE, "tests", "fixtures", "make_models.py")
BOUND, LOSS_BOUND, STEPS, BATCHES = 1e-5, 2e-6, 20, 4
# Rows whose gradients may be farther, since the backward pass enlarges rounding in both programs. The farthest from
# float64 is 1.3e-5 in transformers for the first, which has a width of 4; for the second 7e-6 there and 2e-5 in Ebb.
GRADIENT_BOUNDS = {"mistral-10401": 3e-5, "gemma3-10801": 3e-5}

BERT_NAMES = {
    "embeddings.word_embeddings": "word_embeddings", "embeddings.position_embeddings": "position_embeddings",
    "embeddings.token_type_embeddings": "segment_embeddings", "embeddings.LayerNorm": "embeddings_norm",
    "cls.predictions.transform.dense": "transform", "cls.predictions.transform.LayerNorm": "transform_norm",
    "cls.predictions.bias": "output_bias", "encoder.layer": "layer", "attention.output.dense": "attn.c_proj",
    "attention.output.LayerNorm": "ln_1", "intermediate.dense": "mlp.c_fc", "output.dense": "mlp.c_proj",
    "output.LayerNorm": "ln_2",
}


# -- Ebb's side, in the interpreter that has GObject introspection -----------------------------------------------------

def own_gradient(model, published):
    """The gradient of what a folder calls by this name."""
    parameters = dict(model.named_parameters())

    def gradient(name):
        return parameters[name].grad

    name = published.removeprefix("transformer.").removeprefix("bert.").removeprefix("model.")
    for joined, parts in (("qkv_proj", ("q_proj", "k_proj", "v_proj")), ("gate_up_proj", ("gate_proj", "up_proj"))):
        if joined in name:
            return Ebb.cat([gradient(name.replace(joined, part)) for part in parts], 0)
    for i, third in enumerate(("query", "key", "value")):
        if f"attention.self.{third}." in name:
            whole = gradient(name.replace(f"attention.self.{third}", "attn.c_attn").replace("encoder.", ""))
            rows = whole.shape[0] // 3
            return whole[i * rows:(i + 1) * rows]
    if published.startswith(("bert.", "cls.")):
        for theirs, ours in BERT_NAMES.items():
            name = name.replace(theirs, ours)
    if published.startswith("transformer.h.") and len(gradient(name).shape) == 2:
        return gradient(name).transpose(0, 1)
    return gradient(name)


def norm(tensor):
    return (tensor.float() ** 2).sum().item() ** 0.5


def largest(tensor):
    return max(tensor.max().item(), -tensor.min().item())


class Row:
    def __init__(self, folder):
        self.folder, self.model = folder, Ebb.open_model(folder).to("f32")
        self.expected, metadata = Ebb.load_safetensors_full(os.path.join(folder, "expected.safetensors"))
        self.apart = json.loads(metadata["notes"])["float64"]  # of transformers in f32 from itself in f64

    def batch(self, name, number):
        return self.expected[name][number] if name in self.expected else None

    def logits(self, number=0):
        others = {name: self.batch(name, number) for name in ("segments", "mask") if name in self.expected}
        with Ebb.no_grad():
            return self.model(self.batch("tokens", number), **others)

    def loss(self, number):
        tokens, targets = self.batch("tokens", number), self.batch("targets", number)
        if "mask" in self.expected:
            return self.model.loss(tokens, self.batch("segments", number), self.batch("mask", number), targets)
        return self.model.loss(tokens, targets)

    def gradients(self):
        self.loss(0).backward()
        theirs = {key.removeprefix("grad."): value for key, value in self.expected.items() if key.startswith("grad.")}
        whole = sum(norm(value) ** 2 for value in theirs.values()) ** 0.5
        worst, name = max((norm(own_gradient(self.model, name) - value) / max(norm(value), 1e-3 * whole), name)
                          for name, value in theirs.items())
        self.model.zero_grad() if hasattr(self.model, "zero_grad") else None
        return worst, name

    def train(self):
        optimizer, losses = Ebb.AdamW(self.model, 1e-3), []
        optimizer.zero_grad()
        for step in range(STEPS):
            loss = self.loss(step % BATCHES)
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        theirs = self.expected["losses"].tolist()
        return max(abs(a - b) / b for a, b in zip(losses, theirs))

    def save(self, name, **options):
        folder = os.path.join(self.folder, name)
        os.makedirs(folder)
        Ebb.save_model(self.model, folder, **options)
        Ebb.save_safetensors({"logits": self.logits()}, os.path.join(folder, "logits.bin"))
        return sum(file.endswith(".safetensors") for file in os.listdir(folder))

    def check(self):
        logits = largest(self.logits() - self.expected["logits"])
        n_files = self.save("saved"), self.save("saved-in-files", max_file_size=2048)
        if n_files[0] != 1 or n_files[1] < 2:
            return f"{self.folder}: saved in {n_files[0]} and in {n_files[1]} files"
        gradients, name = self.gradients()
        losses = self.train()
        self.save("saved-after-steps")
        row = os.path.basename(self.folder)
        # Twenty steps enlarge the rounding of the first.
        bounds = BOUND, GRADIENT_BOUNDS.get(row, BOUND), max(LOSS_BOUND, 2 * self.apart[2])
        figures = ("logits", logits), (f"gradients (most {name})", gradients), ("losses", losses)
        print(f"{row}: " + ", ".join(f"{what} {value:.1e}" for what, value in figures), flush=True)
        failures = [f"{what} differ by {value:.2e}, transformers itself by {apart:.2e}"
                    for (what, value), bound, apart in zip(figures, bounds, self.apart) if not value <= bound]
        return f"{self.folder}: {'; '.join(failures)}" if failures else None


def check_rows(parent):
    failures = [Row(os.path.join(parent, name)).check() for name in sorted(os.listdir(parent))]
    failures = [failure for failure in failures if failure]
    sys.exit("\n".join(failures) if failures else 0)


# -- both sides --------------------------------------------------------------------------------------------------------

def find_peer():
    done = subprocess.run([os.path.join(SOURCE, "scripts", "peer-venv"), "--path"], capture_output=True, text=True,
                          check=False)
    python = done.stdout.strip()
    has_all = os.path.exists(python) and subprocess.run([python, "-c", "import transformers"], capture_output=True,
                                                        check=False).returncode == 0
    return python if has_all else None


def main():
    peer = find_peer()
    missing = (None if os.environ.get("EBB_LONG") else "EBB_LONG is not set") \
        or (None if peer else "there is no transformers: run scripts/peer-venv") \
        or (None if os.path.exists(os.path.join(BUILD, "Ebb-1.0.typelib")) else "there is no binding in the build")
    if missing:
        print(f"skipped: {missing}")
        sys.exit(77)
    n, seed = (sys.argv[1:] + ["3", "1"][len(sys.argv) - 1:])[:2]
    folder = tempfile.mkdtemp(prefix="ebb-models-")
    try:
        subprocess.run([peer, WRITER, "--random", n, "--seed", seed, "--out", folder], check=True)
        subprocess.run(["/usr/bin/python3", os.path.realpath(__file__), "--ebb", folder], check=True)
        subprocess.run([peer, WRITER, "--verify", folder], check=True)
    except subprocess.CalledProcessError as error:
        sys.exit(f"long_peer_models: exit status {error.returncode}: {' '.join(error.cmd)}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ebb"]:
        import gi
        gi.require_version("Ebb", "1.0")
        from gi.repository import Ebb
        check_rows(sys.argv[2])
    else:
        main()
