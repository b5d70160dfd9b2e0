"""The trainings of the table: which models, and which programs train them."""
import json
import os
import statistics

from .process import BENCH, Failure, Training, cache_folder, progress, run_process, run_together

GPT2 = {"model": "gpt", "preset": "gpt2", "layers": 12, "width": 768, "heads": 12, "vocab": 50257}
BERT_LARGE = {"model": "bert", "preset": "bert-large", "layers": 24, "width": 1024, "heads": 16, "vocab": 30522}
SMALL = {"model": "gpt", "preset": "tiny", "layers": 4, "width": 128, "heads": 4, "vocab": 256}
MOST_OF_OTHERS = 0.03  # of the machine; more is told

# Models of transformers, in folders that torch_models.py makes; both sides open the same folder.
LLAMA_100M = {"model": "llama", "folder": "llama-100m", "width": 768}
LLAMA_QUARTER = {"model": "llama", "folder": "llama-quarter", "width": 2048}
SMALL_LLAMA = {"model": "llama", "folder": "llama-tiny", "width": 64}
SMALL_BERT = {"model": "bert", "preset": "bert-base", "layers": 2, "width": 128, "heads": 4, "vocab": 256}

STRATEGIES = ("none", "selective", "full")

# What each program of a row is called in the table, and its options. Those of Ebb that the built `step` doesn't have
# are left out.
EBB = {
    "ebb-none": ("Ebb", {"checkpoint": "none"}),
    "ebb-selective": ("Ebb, selective", {"checkpoint": "selective"}),
    "ebb-full": ("Ebb, full", {"checkpoint": "full"}),
    "ebb-none-stream": ("Ebb, bf16 stream", {"checkpoint": "none", "residual": "bf16"}),
    "ebb-full-stream": ("Ebb, bf16 stream, full", {"checkpoint": "full", "residual": "bf16"}),
    "ebb-full-early": ("Ebb, full, moves in backward", {"checkpoint": "full", "step-in-backward": True}),
    "ebb-none-lora": ("Ebb, LoRA 16", {"checkpoint": "none", "lora": 16}),
    "ebb-full-lora": ("Ebb, LoRA 16, full", {"checkpoint": "full", "lora": 16}),
    "ebb-full-lora-weights": ("Ebb, LoRA 16, bf16 weights, full",
                              {"checkpoint": "full", "lora": 16, "bf16-weights": True}),
    "ebb-full-weights": ("Ebb, bf16 weights, 8-bit moments, full",
                         {"checkpoint": "full", "bf16-weights": True, "moments": "8bit"}),
    "ebb-none-moments": ("Ebb, 8-bit moments", {"checkpoint": "none", "moments": "8bit"}),
}
TORCH = {
    "torch-none": ("PyTorch", {"checkpoint": "none"}),
    "torch-full": ("PyTorch, checkpoint", {"checkpoint": "full"}),
    "torch-compiled": ("PyTorch, compiled", {"checkpoint": "none", "compile": True}),
    "torch-full-lora": ("PyTorch, LoRA 16, checkpoint", {"checkpoint": "full", "lora": 16}),
    "torch-full-lora-f32": ("PyTorch, LoRA 16, f32, checkpoint", {"checkpoint": "full", "lora": 16, "dtype": "f32"}),
    "torch-full-lora-pure": ("PyTorch, LoRA 16, pure bf16, checkpoint",
                             {"checkpoint": "full", "lora": 16, "dtype": "pure-bf16"}),
    "torch-full-pure": ("PyTorch, pure bf16, checkpoint", {"checkpoint": "full", "dtype": "pure-bf16"}),
    "torch-pure": ("PyTorch, pure bf16", {"checkpoint": "none", "dtype": "pure-bf16"}),
}
OURS, THEIRS = ("ebb-none", "ebb-selective", "ebb-full"), ("torch-none", "torch-full")
PLAIN = (*OURS, *THEIRS)


class Row:
    """A model, a batch and a dtype, trained by several programs in turn."""

    def __init__(self, name, title, sizes, batch, context, dtype, programs, *, warm_up=1, rounds=2, kept=False,
                 floor=True):
        self.name, self.title, self.sizes, self.programs = name, title, sizes, programs
        self.batch, self.context, self.dtype = batch, context, dtype
        self.warm_up, self.rounds = warm_up, rounds
        self.kept, self.floor = kept, floor


ROWS = [
    Row("gpt2-4x256-f32", "GPT-2 124M, 4 x 256, f32", GPT2, 4, 256, "f32",
        (*OURS, "ebb-none-moments", *THEIRS, "torch-compiled"), rounds=3, kept=True),
    Row("gpt2-4x256-bf16", "GPT-2 124M, 4 x 256, bf16", GPT2, 4, 256, "bf16",
        (*OURS, "ebb-none-stream", "ebb-full-stream", *THEIRS, "torch-pure", "torch-compiled"), rounds=3),
    Row("gpt2-8x512-f32", "GPT-2 124M, 8 x 512, f32", GPT2, 8, 512, "f32",
        (*OURS, "ebb-full-early", *THEIRS)),
    Row("gpt2-8x512-bf16", "GPT-2 124M, 8 x 512, bf16", GPT2, 8, 512, "bf16",
        (*OURS, "ebb-none-stream", "ebb-full-stream", *THEIRS)),
    Row("bert-large-8x128-f32", "BERT-large, 8 x 128, f32", BERT_LARGE, 8, 128, "f32", PLAIN),
    Row("small-12x64-f32", "GPT 4 layers x 128, 12 x 64, f32", SMALL, 12, 64, "f32",
        ("ebb-none", "ebb-full", "torch-none", "torch-full"), warm_up=30, rounds=15, floor=False),
]
# Measured when they are asked for by --only.
LONG_ROWS = [
    Row("llama-8x512-f32", "Llama 100M, 8 x 512, f32", LLAMA_100M, 8, 512, "f32",
        ("ebb-none", "ebb-full", "torch-none", "torch-full", "torch-compiled"), rounds=3, floor=False),
    Row("llama-8x512-bf16", "Llama 100M, 8 x 512, bf16", LLAMA_100M, 8, 512, "bf16",
        ("ebb-none", "ebb-none-stream", "torch-none", "torch-pure", "torch-compiled"), rounds=3, floor=False),
    Row("llama-quick-f32", "Llama 2 layers x 64, 2 x 64, f32", SMALL_LLAMA, 2, 64, "f32",
        ("ebb-none", "torch-none", "torch-compiled"), rounds=2, floor=False),
    Row("llama-quick-bf16", "Llama 2 layers x 64, 2 x 64, bf16", SMALL_LLAMA, 2, 64, "bf16",
        ("ebb-none", "torch-none"), rounds=2, floor=False),
    # Fine-tuning as transformers' and peft's users do it.
    Row("finetune-lora-f32", "A quarter of Llama-3.2-1B, 1 x 512, LoRA 16, f32", LLAMA_QUARTER, 1, 512, "f32",
        ("ebb-full-lora", "torch-full-lora"), rounds=3, floor=False),
    Row("finetune-lora-bf16", "A quarter of Llama-3.2-1B, 1 x 512, LoRA 16, bf16", LLAMA_QUARTER, 1, 512, "bf16",
        ("ebb-full-lora-weights", "torch-full-lora-pure", "torch-full-lora-f32"), rounds=3, floor=False),
    Row("finetune-all-bf16", "A quarter of Llama-3.2-1B, 1 x 512, every weight, bf16", LLAMA_QUARTER, 1, 512, "bf16",
        ("ebb-full-weights", "torch-full-pure"), rounds=3, floor=False),
    Row("finetune-quick-f32", "Llama 2 layers x 64, 1 x 64, LoRA 16, f32", SMALL_LLAMA, 1, 64, "f32",
        ("ebb-full-lora", "torch-full-lora"), rounds=3, floor=False),
    Row("finetune-quick-bf16", "Llama 2 layers x 64, 1 x 64, bf16", SMALL_LLAMA, 1, 64, "bf16",
        ("ebb-full-lora-weights", "torch-full-lora-pure", "ebb-full-weights", "torch-full-pure"), rounds=3,
        floor=False),
    Row("lora-4x256-f32", "GPT-2 124M, 4 x 256, f32, all of it and branches", GPT2, 4, 256, "f32",
        ("ebb-none", "ebb-none-lora", "ebb-full", "ebb-full-lora"), rounds=3, floor=False),
    # As large a share of activations as in OneFlow's measurement of BERT-large (docs/benchmarks.md).
    Row("bert-large-32x128-f32", "BERT-large, 32 x 128, f32", BERT_LARGE, 32, 128, "f32",
        ("ebb-none", "ebb-full", "torch-none", "torch-full"), rounds=3, floor=False),
]
QUICK_ROWS = [
    Row("quick-gpt-f32", "GPT 4 layers x 128, 2 x 64, f32", SMALL, 2, 64, "f32", PLAIN, warm_up=2, rounds=3, kept=True),
    Row("quick-gpt-bf16", "GPT 4 layers x 128, 2 x 64, bf16", SMALL, 2, 64, "bf16",
        (*OURS, "ebb-none-stream", "ebb-full-stream", "ebb-none-moments", "ebb-full-early",
         "ebb-none-lora", "ebb-full-lora", *THEIRS, "torch-pure"), warm_up=2, rounds=3, floor=False),
    Row("quick-bert-f32", "BERT 2 layers x 128, 2 x 64, f32", SMALL_BERT, 2, 64, "f32", PLAIN, warm_up=2, rounds=3,
        floor=False),
]


def make_folder(name, python):
    """The folder of a random model, made by transformers once and kept in the cache."""
    folder = os.path.join(cache_folder(), name)
    if not os.path.exists(os.path.join(folder, "config.json")):
        if not python:
            raise Failure(f"{name}: transformers makes this model: run scripts/peer-venv first")
        progress(f"  making {folder} (once)")
        run_process([python, os.path.join(BENCH, "torch_models.py"), "--make", name, folder], os.cpu_count(),
                    "torch_models")
    return folder


class Programs:
    """Makes the trainings of the rows."""

    def __init__(self, build, python, threads):
        self.step = os.path.join(build, "tests", "bench", "step")
        self.python, self.threads = python, threads
        self.step_help = run_process([self.step, "--help"], threads, "step")
        self.optimizer = "default"

    def has(self, option):
        return f"--{option}" in self.step_help

    def choose_optimizer(self):
        """PyTorch has three AdamW loops; it is measured with the one that is fastest here. Gives their seconds."""
        seconds = json.loads(run_process([self.python, os.path.join(BENCH, "torch_step.py"), "--choose-optimizer",
                                          "--threads", str(self.threads)], self.threads, "PyTorch"))
        self.optimizer = min(seconds, key=seconds.get)
        return seconds

    def model_words(self, row, names):
        """The options that name a row's model."""
        if "folder" in row.sizes:
            return ["--folder", make_folder(row.sizes["folder"], self.python)]
        return [word for name in names for word in (f"--{name}", row.sizes[name])]

    def ebb_command(self, row, options):
        """None if this build can't."""
        words = [self.step, "--batch", row.batch, "--context", row.context, "--threads", self.threads,
                 *self.model_words(row, ("preset", "layers", "width", "heads", "vocab"))]
        if row.dtype == "bf16":
            words.append("--bf16")
        for name, value in options.items():
            if not self.has(name):
                return None
            words += [f"--{name}"] if value is True else [f"--{name}", value]
        return words

    def torch_command(self, row, options):
        words = [self.python, os.path.join(BENCH, "torch_step.py"), "--batch", row.batch, "--context", row.context,
                 "--threads", self.threads, "--optimizer", self.optimizer,
                 *self.model_words(row, ("model", "layers", "width", "heads", "vocab"))]
        for name, value in {"dtype": row.dtype, **options}.items():
            words += [f"--{name}"] if value is True else [f"--{name}", value]
        return words

    def make_trainings(self, row):
        """By the key that the results have."""
        trainings = {}
        for key in row.programs:
            if key in EBB:
                title, options = EBB[key]
                command = self.ebb_command(row, options)
                if command:
                    trainings[key] = Training(title, [*command, "--serve"], self.threads, row.warm_up,
                                              optional=key.count("-") > 1,
                                              questions=("floor",) if row.floor and key == "ebb-none" else ())
            elif self.python:
                title, options = TORCH[key]
                trainings[key] = Training(title, self.torch_command(row, options), self.threads,
                                          row.warm_up,
                                          optional=key in ("torch-compiled", "torch-pure"),
                                          alone=key == "torch-compiled",  # its compilers are processes that stay
                                          questions=("kept",) if row.kept and key in ("torch-none", "torch-full")
                                          else ())
        return trainings


def measure_row(row, programs):
    """The figures of one row as the JSON object has them."""
    trainings = programs.make_trainings(row)
    groups = run_together(list(trainings.values()), row.rounds,
                          say=lambda text: progress(f"  {text}"))
    runs = {key: {"title": training.name, **training.result()} for key, training in trainings.items() if training.turns}
    floors = [training.answers["floor"] for training in trainings.values() if "floor" in training.answers]
    return {
        "title": row.title,
        "batch": row.batch,
        "context": row.context,
        "dtype": row.dtype,
        "sizes": row.sizes,
        "floor": floors[0] if floors else None,  # see README.md: of the products, and of those within attention
        "runs": runs,
        "together": groups,
        "rounds": row.rounds,
    }


def warnings(name, row):
    """What makes a row's figures doubtful."""
    # Branches are parameters beside the model's own.
    sizes = {run["title"]: run["parameters"] for key, run in row["runs"].items() if "-lora" not in key}
    if len(set(sizes.values())) > 1:
        yield f"{name}: the models differ in size: {sizes}"
    for run in row["runs"].values():
        if not run["last_loss"] < run["first_loss"] < float("inf"):
            yield f"{name}: {run['title']}: the loss does not fall: {run['first_loss']} to {run['last_loss']}"
        busy = statistics.median(run["others"])
        if busy > MOST_OF_OTHERS and sum(run["turns"]) > 1:
            yield f"{name}: {run['title']}: other programs had {busy:.0%} of the machine in half of the turns"
