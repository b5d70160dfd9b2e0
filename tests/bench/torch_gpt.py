"""GPT-2 in plain PyTorch: the peer that Ebb's speed, memory and loss curve are compared with.

Written as a careful PyTorch user writes it: fused attention, tied weights, eager mode. Run as a program it trains on
random crops of a text and prints one JSON object with the time of each step and the resident memory.
"""

import argparse
import dataclasses
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


class Gpt(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.checkpoint = False
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
        for block in self.h:
            if self.checkpoint:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


def is_transposed(name):
    """Whether the public GPT-2 file holds this weight as [in, out], as its Conv1D layers do."""
    return name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))


def to_public(name, tensor):
    """A weight or its gradient in the layout of the public GPT-2 file."""
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


def train(options):
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    config = Config(options.layers, options.width, options.heads, options.context, options.vocab, options.dropout)
    model = Gpt(config).train()
    model.checkpoint = options.checkpoint == "full"
    optimizer = new_optimizer(model, options.optimizer, lr=options.lr)
    data = batches(options.data, options.batch, options.length or options.context, options.seed)
    losses, seconds = [], []
    for _ in range(options.steps):
        tokens, targets = next(data)
        start = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.dtype == "bf16"):
            loss = loss_of(model, tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
        del loss
        if options.verbose:
            print(f"step {len(losses)}: loss {losses[-1]:.6f}, {seconds[-1]:.3f} s", file=sys.stderr, flush=True)
    return {
        "losses": losses,
        "step_seconds": seconds,
        "median_seconds": statistics.median(seconds[1:] or seconds),
        "rss_after_import_bytes": RSS_AFTER_IMPORT,
        "rss_peak_bytes": status_bytes("VmHWM"),
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
    parser.add_argument("--checkpoint", choices=["none", "full"], default="none")
    parser.add_argument("--optimizer", choices=["default", "foreach", "fused"], default="default")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--verbose", action="store_true")
    json.dump(train(parser.parse_args()), sys.stdout)
    print()


if __name__ == "__main__":
    main()
