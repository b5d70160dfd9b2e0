"""GPT-2 in plain PyTorch: the peer that Ebb's speed, memory and loss curve are compared with.

Written as a careful PyTorch user writes it: fused attention, tied weights, eager mode. Run as a program it trains on
random crops of a text and prints one JSON object with the time of each step and the resident memory.
"""

import argparse
import dataclasses
import functools
import json
import os
import statistics
import sys
import time


def status_bytes(field):
    """A field of /proc/self/status given in kB, in bytes."""
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise KeyError(field)


import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import torch.utils.checkpoint  # noqa: E402
from torch import nn  # noqa: E402

RSS_AFTER_IMPORT = status_bytes("VmRSS")


@dataclasses.dataclass
class Config:
    layers: int = 12
    width: int = 768
    heads: int = 12
    context: int = 1024
    vocab: int = 50257
    dropout: float = 0.0
    gelu: str = "tanh"
    epsilon: float = 1e-5


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.c_attn = nn.Linear(config.width, 3 * config.width)
        self.c_proj = nn.Linear(config.width, config.width)
        self.residual_dropout = nn.Dropout(config.dropout)

    def forward(self, x):
        batch, time_steps, width = x.shape
        q, k, v = (part.view(batch, time_steps, self.heads, -1).transpose(1, 2)
                   for part in self.c_attn(x).split(width, dim=2))
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        y = y.transpose(1, 2).reshape(batch, time_steps, width)
        return self.residual_dropout(self.c_proj(y))


class Mlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gelu = config.gelu
        self.c_fc = nn.Linear(config.width, 4 * config.width)
        self.c_proj = nn.Linear(4 * config.width, config.width)
        self.residual_dropout = nn.Dropout(config.dropout)

    def forward(self, x):
        return self.residual_dropout(self.c_proj(F.gelu(self.c_fc(x), approximate=self.gelu)))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.width, eps=config.epsilon)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.width, eps=config.epsilon)
        self.mlp = Mlp(config)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class KeptBytes(torch.autograd.graph.saved_tensors_hooks):
    """Counts the bytes that are kept for backward: what passes the saved-tensor hooks, each storage once, parameters
    left out; besides these what a checkpoint keeps around the hooks: the inputs of the blocks, results that a selective
    one keeps, and, while a block is run again, what that run saves."""

    def __init__(self, parameters):
        self.parameters = {p.untyped_storage().data_ptr() for p in parameters}
        self.live = {}
        self.again = {}
        self.held = []
        self.selective = []
        self.peak = 0
        super().__init__(self.pack, self.unpack)

    class Holder:
        def __init__(self, counter, tensor, key):
            self.counter, self.tensor, self.key = counter, tensor, key

        def __del__(self):
            entry = self.counter.live.get(self.key)
            if entry:
                entry[0] -= 1
                if entry[0] == 0:
                    del self.counter.live[self.key]

    def pack(self, tensor):
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        if key not in self.parameters:
            self.live.setdefault(key, [0, storage.nbytes()])[0] += 1
            self.measure()
        return self.Holder(self, tensor, key)

    @staticmethod
    def unpack(holder):
        return holder.tensor

    def hold(self, tensor):
        """A block's input, until the step ends."""
        self.held.append(self.pack(tensor))

    def begin_again(self):
        self.again = {}

    def save_again(self, tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.parameters and storage.data_ptr() not in self.live:
            self.again[storage.data_ptr()] = storage.nbytes()
        self.measure()

    def measure(self):
        self.peak = max(self.peak, sum(entry[1] for entry in self.live.values()) + sum(self.again.values()))

    def watch_recompute(self):
        """PyTorch's checkpoint has hooks of its own while it runs a block again."""
        counter, hook = self, torch.utils.checkpoint._recomputation_hook

        class Counting(hook):
            def __init__(self, *args):
                super().__init__(*args)
                counter.begin_again()
                pack = self.pack_hook

                def pack_and_count(tensor):
                    counter.save_again(tensor)
                    return pack(tensor)

                self.pack_hook = pack_and_count

        torch.utils.checkpoint._recomputation_hook = Counting
        return lambda: setattr(torch.utils.checkpoint, "_recomputation_hook", hook)

    def hold_selected(self):
        """What selective checkpoints have stored, once the forward has ended."""
        def visit(value):
            if isinstance(value, torch.Tensor):
                self.hold(value)
            elif isinstance(value, dict):
                for item in value.values():
                    visit(item)
            elif isinstance(value, (list, tuple)):
                for item in value:
                    visit(item)
            elif hasattr(value, "val"):
                visit(value.val)
        for mode in self.selective:
            visit(mode.storage)


KEPT_OPS = ("mm", "addmm", "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention")


def selective_contexts(counter):
    """Keeps the results of matrix products and of attention."""
    kept = [getattr(torch.ops.aten, name).default for name in KEPT_OPS if hasattr(torch.ops.aten, name)]
    contexts = torch.utils.checkpoint.create_selective_checkpoint_contexts(kept)
    if counter is not None:
        counter.selective.append(contexts[0])
    return contexts


def run_blocks(model, blocks, x, *rest):
    """Each block of x and the rest, as model.checkpoint says."""
    for block in blocks:
        if model.checkpoint == "none":
            x = block(x, *rest)
            continue
        if model.counter is not None:
            model.counter.hold(x)
        options = {"context_fn": functools.partial(selective_contexts, model.counter)}
        x = torch.utils.checkpoint.checkpoint(block, x, *rest, use_reentrant=False,
                                              **(options if model.checkpoint == "selective" else {}))
    return x


class Gpt(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.checkpoint = "none"
        self.counter = None
        self.wte = nn.Embedding(config.vocab, config.width)
        self.wpe = nn.Embedding(config.context, config.width)
        self.drop = nn.Dropout(config.dropout)
        self.h = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.ln_f = nn.LayerNorm(config.width, eps=config.epsilon)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                residual = name.endswith("c_proj.weight")
                nn.init.normal_(parameter, std=0.02 / (2 * config.layers) ** 0.5 if residual else 0.02)

    def forward(self, tokens):
        x = self.drop(self.wte(tokens) + self.wpe.weight[:tokens.shape[1]])
        x = run_blocks(self, self.h, x)
        return F.linear(self.ln_f(x), self.wte.weight)


def is_transposed(name):
    """Whether the public GPT-2 file holds this weight as [in, out], as its Conv1D layers do."""
    return name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))


def to_public(name, tensor):
    """A weight or its gradient in the format of the public GPT-2 file."""
    return (tensor.t() if is_transposed(name) else tensor).detach().clone().contiguous()


def loss_of(model, tokens, targets):
    logits = model(tokens)
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def new_optimizer(model, kind, **options):
    """PyTorch's AdamW: "default" loops over the parameters on a CPU; "foreach" and "fused" are the alternatives."""
    flags = {"default": {}, "foreach": {"foreach": True}, "fused": {"fused": True}}[kind]
    return torch.optim.AdamW(model.parameters(), **flags, **options)


def batches(path, batch, context, seed):
    """Random crops of the text's bytes, with the byte that follows each as its target."""
    with open(path, "rb") as file:
        text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
    if len(text) <= context:
        raise SystemExit(f"torch_gpt: {path}: {len(text)} bytes, needs more than the context of {context}")
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(text) - context, (batch,), generator=generator)
        crops = torch.stack([text[s:s + context + 1] for s in starts])
        yield crops[:, :-1].contiguous(), crops[:, 1:].contiguous()


def count_kept_bytes(model, tokens, targets, autocast):
    """The most bytes that one forward and backward keep, without their time being taken."""
    counter = KeptBytes(model.parameters())
    undo = counter.watch_recompute()
    model.counter = counter
    with counter, autocast():
        loss = loss_of(model, tokens, targets)
    counter.hold_selected()
    loss.backward()
    model.counter = None
    model.zero_grad()
    undo()
    return counter.peak


def train(options):
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    config = Config(options.layers, options.width, options.heads, options.context, options.vocab, options.dropout)
    model = Gpt(config).train()
    model.checkpoint = options.checkpoint
    optimizer = new_optimizer(model, options.optimizer, lr=options.lr)
    data = batches(options.data, options.batch, options.length or options.context, options.seed)
    losses, seconds, kept = [], [], None
    autocast = functools.partial(torch.autocast, "cpu", dtype=torch.bfloat16, enabled=options.dtype == "bf16")
    for step in range(options.steps):
        tokens, targets = next(data)
        start = time.perf_counter()
        with autocast():
            loss = loss_of(model, tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
        del loss
        rss_peak = status_bytes("VmHWM")  # counting holds more
        if options.count_kept and step == options.steps - 1:
            kept = count_kept_bytes(model, tokens, targets, autocast)
        if options.verbose:
            print(f"step {len(losses)}: loss {losses[-1]:.6f}, {seconds[-1]:.3f} s", file=sys.stderr, flush=True)
    return {
        "losses": losses,
        "step_seconds": seconds,
        "median_seconds": statistics.median(seconds[1:] or seconds),
        "rss_after_import_bytes": RSS_AFTER_IMPORT,
        "rss_peak_bytes": rss_peak,
        "kept_peak_bytes": kept,
        "parameters": sum(p.numel() for p in model.parameters()),
        "version": torch.__version__,
        "config": vars(options),
    }


def main():
    parser = argparse.ArgumentParser(description="train GPT-2 with PyTorch on the CPU; prints one JSON object")
    parser.add_argument("--data", required=True, help="text file, read as bytes")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--context", type=int, default=1024, help="positions the model has")
    parser.add_argument("--length", type=int, default=0, help="tokens per sequence (default: the context)")
    parser.add_argument("--vocab", type=int, default=50257)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32", help="bf16: autocast, f32 weights")
    parser.add_argument("--checkpoint", choices=["none", "selective", "full"], default="none")
    parser.add_argument("--count-kept", action="store_true",
                        help="after the last step, count the bytes that a forward and backward keep")
    parser.add_argument("--optimizer", choices=["default", "foreach", "fused"], default="default")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--verbose", action="store_true")
    json.dump(train(parser.parse_args()), sys.stdout)
    print()


if __name__ == "__main__":
    main()
