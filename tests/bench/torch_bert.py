"""BERT in plain PyTorch: the peer that Ebb's BERT is compared with.

Written as a careful PyTorch user writes it: fused attention, tied weights, eager mode. Parameters have the names of the
published files, queries, keys and values apart.
"""

import dataclasses

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn


@dataclasses.dataclass
class Config:
    layers: int = 12
    width: int = 768
    heads: int = 12
    hidden: int = 3072
    context: int = 512
    segments: int = 2
    vocab: int = 30522
    dropout: float = 0.0
    epsilon: float = 1e-12


BASE = Config()
LARGE = Config(layers=24, width=1024, heads=16, hidden=4096)


def group(**children):
    """A module that only names its children."""
    module = nn.Module()
    for name, child in children.items():
        module.add_module(name, child)
    return module


class Embeddings(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab, config.width)
        self.position_embeddings = nn.Embedding(config.context, config.width)
        self.token_type_embeddings = nn.Embedding(config.segments, config.width)
        self.LayerNorm = nn.LayerNorm(config.width, eps=config.epsilon)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens, segments):
        if segments is None:
            segments = torch.zeros_like(tokens)
        x = self.word_embeddings(tokens) + self.token_type_embeddings(segments)
        x = x + self.position_embeddings.weight[:tokens.shape[1]]
        return self.dropout(self.LayerNorm(x))


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.heads
        self.rate = config.dropout
        width, hidden = config.width, config.hidden
        self.attention = group(
            self=group(query=nn.Linear(width, width), key=nn.Linear(width, width), value=nn.Linear(width, width)),
            output=group(dense=nn.Linear(width, width), LayerNorm=nn.LayerNorm(width, eps=config.epsilon)))
        self.intermediate = group(dense=nn.Linear(width, hidden))
        self.output = group(dense=nn.Linear(hidden, width), LayerNorm=nn.LayerNorm(width, eps=config.epsilon))
        self.dropout = nn.Dropout(config.dropout)

    def attend(self, x, mask):
        batch, time_steps, width = x.shape
        inner = getattr(self.attention, "self")
        q, k, v = (part(x).view(batch, time_steps, self.heads, -1).transpose(1, 2)
                   for part in (inner.query, inner.key, inner.value))
        dropout = self.rate if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        y = y.transpose(1, 2).reshape(batch, time_steps, width)
        return self.dropout(self.attention.output.dense(y))

    def forward(self, x, mask):
        x = self.attention.output.LayerNorm(x + self.attend(x, mask))
        y = self.output.dense(F.gelu(self.intermediate.dense(x)))
        return self.output.LayerNorm(x + self.dropout(y))


class Bert(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.checkpoint = "none"
        self.bert = group(embeddings=Embeddings(config),
                          encoder=group(layer=nn.ModuleList(Layer(config) for _ in range(config.layers))))
        self.cls = group(predictions=group(transform=group(
            dense=nn.Linear(config.width, config.width), LayerNorm=nn.LayerNorm(config.width, eps=config.epsilon))))
        self.cls.predictions.bias = nn.Parameter(torch.zeros(config.vocab))
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, segments=None, mask=None):
        """Logits [B, T, vocab]; mask [B, T] of bool: false where there is padding."""
        x = self.bert.embeddings(tokens, segments)
        keys = None if mask is None else mask[:, None, None, :]
        for layer in self.bert.encoder.layer:
            if self.checkpoint == "none":
                x = layer(x, keys)
            else:
                x = torch.utils.checkpoint.checkpoint(layer, x, keys, use_reentrant=False)
        head = self.cls.predictions
        x = head.transform.LayerNorm(F.gelu(head.transform.dense(x)))
        return F.linear(x, self.bert.embeddings.word_embeddings.weight, head.bias)


def loss_of(model, tokens, targets, segments=None, mask=None):
    logits = model(tokens, segments, mask)
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))
