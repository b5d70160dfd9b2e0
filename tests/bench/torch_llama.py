"""A Llama in plain PyTorch: the peer of `step --preset llama-1b`.

Written as a careful PyTorch user writes it: fused attention that knows of shared heads, RMSNorm, rotary positions, a
gated MLP, tied weights. Four heads share keys and values, and the MLP is four times as wide as the model, as in
Llama 3.2 1B.
"""
import dataclasses

import torch_gpt  # the first of ours: it reads what is resident once PyTorch is imported
from torch_gpt import F, nn, torch


@dataclasses.dataclass
class Config:
    layers: int = 16
    width: int = 2048
    heads: int = 32
    context: int = 4096
    vocab: int = 128256
    theta: float = 5e5
    epsilon: float = 1e-5


def rotate(x, cosines, sines):
    first, second = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-second, first), dim=-1) * sines


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads, self.kv_heads = config.heads, max(config.heads // 4, 1)
        self.head_width = config.width // config.heads
        self.q_proj = nn.Linear(config.width, config.width, bias=False)
        self.k_proj = nn.Linear(config.width, self.kv_heads * self.head_width, bias=False)
        self.v_proj = nn.Linear(config.width, self.kv_heads * self.head_width, bias=False)
        self.o_proj = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x, cosines, sines):
        batch, time_steps, width = x.shape
        q, k, v = (project(x).view(batch, time_steps, -1, self.head_width).transpose(1, 2)
                   for project in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(q, cosines, sines).to(v.dtype), rotate(k, cosines, sines).to(v.dtype)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, time_steps, width))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.input_norm = nn.RMSNorm(config.width, eps=config.epsilon)
        self.attention = Attention(config)
        self.mlp_norm = nn.RMSNorm(config.width, eps=config.epsilon)
        self.gate_proj = nn.Linear(config.width, 4 * config.width, bias=False)
        self.up_proj = nn.Linear(config.width, 4 * config.width, bias=False)
        self.down_proj = nn.Linear(4 * config.width, config.width, bias=False)

    def forward(self, x, cosines, sines):
        x = x + self.attention(self.input_norm(x), cosines, sines)
        h = self.mlp_norm(x)
        return x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


class Llama(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.checkpoint, self.counter = "none", None
        self.embed_tokens = nn.Embedding(config.vocab, config.width)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=config.epsilon)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
        head_width = config.width // config.heads
        frequencies = config.theta ** (-torch.arange(0, head_width, 2) / head_width)
        angles = torch.outer(torch.arange(config.context), frequencies).repeat(1, 2)
        self.register_buffer("cosines", angles.cos(), persistent=False)
        self.register_buffer("sines", angles.sin(), persistent=False)

    def forward(self, tokens):
        positions = self.cosines[:tokens.shape[1]], self.sines[:tokens.shape[1]]
        x = torch_gpt.run_blocks(self, self.layers, self.embed_tokens(tokens), *positions)
        return F.linear(self.norm(x), self.embed_tokens.weight)
