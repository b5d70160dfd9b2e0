"""Layers, losses, and containers by the names of torch.nn."""
from typing import Any, Callable

import ebb
from ebb import (BatchNorm1d as BatchNorm1d, Buffer as Buffer, Dropout as Dropout, Embedding as Embedding,
                 GELU as GELU, LayerNorm as LayerNorm, Linear as Linear, Module as Module, ModuleList as ModuleList,
                 Parameter as Parameter, RMSNorm as RMSNorm, ReLU as ReLU, Sequential as Sequential,
                 Sigmoid as Sigmoid, SiLU as SiLU, Tanh as Tanh, Tensor)
from ebb._advice import advise_in
from ebb.nn import functional as functional, init as init, parallel as parallel, utils as utils
from ebb.nn import functional as F

_IGNORED = ("inplace", "size_average", "reduce", "device", "dtype")  # arguments that change nothing here


def _layer(name: str, function: Callable[..., Tensor], buffers: Any = (), **options: Any) -> "type[Module]":
    """A module that calls a function with options, which its constructor takes in their order or by name, and which are
    its attributes; those among buffers may be tensors."""
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        Module.__init__(self)
        if len(args) > len(options):
            raise TypeError(f"{name}() takes {len(options)} arguments, not {len(args)}: {', '.join(options) or 'none'}")
        given = {**dict(zip(options, args)), **{key: value for key, value in kwargs.items() if key not in _IGNORED}}
        for key in given:
            if key not in options:
                raise TypeError(f"{name}() has no argument {key!r}: its arguments are {', '.join(options) or 'none'}")
        for key, value in {**options, **given}.items():
            if isinstance(value, Tensor):
                self.register_buffer(key, value)
            else:
                setattr(self, key, value)

    def forward(self: Any, *inputs: Tensor) -> Any:
        return function(*inputs, **{key: getattr(self, key) for key in options})

    def extra_repr(self: Any) -> str:
        return ", ".join(f"{key}={getattr(self, key)!r}" for key in options if key not in buffers)

    text = f"{function.__name__}() as a module" + (f", with {', '.join(options)}." if options else ".")
    kind: Any = type(Module)
    return kind(name, (Module,), {"__init__": __init__, "forward": forward, "extra_repr": extra_repr, "__doc__": text,
                                  "__module__": "ebb.nn", "__qualname__": name})




def _flatten(input: Tensor, start_dim: int, end_dim: int) -> Tensor:
    return input.flatten(start_dim, end_dim)


def _unflatten(input: Tensor, dim: int, unflattened_size: Any) -> Tensor:
    return input.unflatten(dim, tuple(unflattened_size))


# -- activations and shapes --------------------------------------------------------------------------------------------

Flatten = _layer("Flatten", _flatten, start_dim=1, end_dim=-1)
Unflatten = _layer("Unflatten", _unflatten, dim=1, unflattened_size=())
Softmax = _layer("Softmax", F.softmax, dim=None)
LogSoftmax = _layer("LogSoftmax", F.log_softmax, dim=None)
Softmin = _layer("Softmin", F.softmin, dim=-1)
ELU = _layer("ELU", F.elu, alpha=1.0)
CELU = _layer("CELU", F.celu, alpha=1.0)
SELU = _layer("SELU", F.selu)
LeakyReLU = _layer("LeakyReLU", F.leaky_relu, negative_slope=0.01)
ReLU6 = _layer("ReLU6", F.relu6)
Hardtanh = _layer("Hardtanh", F.hardtanh, min_val=-1.0, max_val=1.0)
Hardsigmoid = _layer("Hardsigmoid", F.hardsigmoid)
Hardswish = _layer("Hardswish", F.hardswish)
Softplus = _layer("Softplus", F.softplus, beta=1.0, threshold=20.0)
Softsign = _layer("Softsign", F.softsign)
Tanhshrink = _layer("Tanhshrink", F.tanhshrink)
Hardshrink = _layer("Hardshrink", F.hardshrink, lambd=0.5)
Softshrink = _layer("Softshrink", F.softshrink, lambd=0.5)
Threshold = _layer("Threshold", F.threshold, threshold=0.0, value=0.0)
LogSigmoid = _layer("LogSigmoid", F.logsigmoid)
Mish = _layer("Mish", F.mish)
GLU = _layer("GLU", F.glu, dim=-1)
ConstantPad1d = _layer("ConstantPad1d", F.pad, pad=(0, 0), value=0.0)
CosineSimilarity = _layer("CosineSimilarity", F.cosine_similarity, dim=1, eps=1e-8)
PairwiseDistance = _layer("PairwiseDistance", F.pairwise_distance, p=2.0, eps=1e-6, keepdim=False)

# -- losses ------------------------------------------------------------------------------------------------------------

CrossEntropyLoss = _layer("CrossEntropyLoss", F.cross_entropy, ("weight",), weight=None, ignore_index=-100,
                          reduction="mean", label_smoothing=0.0)
NLLLoss = _layer("NLLLoss", F.nll_loss, ("weight",), weight=None, ignore_index=-100, reduction="mean")
MSELoss = _layer("MSELoss", F.mse_loss, reduction="mean")
L1Loss = _layer("L1Loss", F.l1_loss, reduction="mean")
SmoothL1Loss = _layer("SmoothL1Loss", F.smooth_l1_loss, reduction="mean", beta=1.0)
HuberLoss = _layer("HuberLoss", F.huber_loss, reduction="mean", delta=1.0)
BCELoss = _layer("BCELoss", F.binary_cross_entropy, ("weight",), weight=None, reduction="mean")
BCEWithLogitsLoss = _layer("BCEWithLogitsLoss", F.binary_cross_entropy_with_logits, ("weight", "pos_weight"),
                           weight=None, reduction="mean", pos_weight=None)
KLDivLoss = _layer("KLDivLoss", F.kl_div, reduction="mean", log_target=False)
CosineEmbeddingLoss = _layer("CosineEmbeddingLoss", F.cosine_embedding_loss, margin=0.0, reduction="mean")
MarginRankingLoss = _layer("MarginRankingLoss", F.margin_ranking_loss, margin=0.0, reduction="mean")
HingeEmbeddingLoss = _layer("HingeEmbeddingLoss", F.hinge_embedding_loss, margin=1.0, reduction="mean")
SoftMarginLoss = _layer("SoftMarginLoss", F.soft_margin_loss, reduction="mean")
TripletMarginLoss = _layer("TripletMarginLoss", F.triplet_margin_loss, margin=1.0, p=2.0, eps=1e-6, swap=False,
                           reduction="mean")
GaussianNLLLoss = _layer("GaussianNLLLoss", F.gaussian_nll_loss, full=False, eps=1e-6, reduction="mean")


# -- layers ------------------------------------------------------------------------------------------------------------

class Identity(Module):
    """Returns its first argument, whatever its constructor is given."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Any, *_: Any) -> Any:
        return input


class PReLU(Module):
    """max(x, 0) + weight * min(x, 0), with one weight or one for each channel."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        super().__init__()
        self.weight = Parameter(ebb.full((num_parameters,), init))

    def forward(self, input: Tensor) -> Tensor:
        return F.prelu(input, self.weight)


class GroupNorm(Module):
    """Normalizes groups of channels, which are dimension 1."""

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True) -> None:
        super().__init__()
        if num_channels % num_groups:
            raise ValueError(f"GroupNorm(): {num_channels} channels for {num_groups} groups: write num_channels as a "
                             "multiple of num_groups")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self.weight = Parameter(ebb.ones(num_channels)) if affine else None
        self.bias = Parameter(ebb.zeros(num_channels)) if affine else None

    def forward(self, input: Tensor) -> Tensor:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


class Bilinear(Module):
    """x1^T A x2 + b for each output."""

    def __init__(self, in1_features: int, in2_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        bound = in1_features**-0.5
        self.weight = Parameter(ebb.empty(out_features, in1_features, in2_features).uniform_(-bound, bound))
        self.bias = Parameter(ebb.empty(out_features).uniform_(-bound, bound)) if bias else None

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        return F.bilinear(input1, input2, self.weight, self.bias)


class MultiheadAttention(Module):
    """Attention with PyTorch's arguments, parameters, and results: (output, weights or None)."""

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True,
                 batch_first: bool = False) -> None:
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError(f"MultiheadAttention(): embed_dim is {embed_dim} for {num_heads} heads: write a multiple")
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = embed_dim, num_heads, dropout, batch_first
        self.in_proj_weight = Parameter(init.xavier_uniform_(ebb.empty(3 * embed_dim, embed_dim)))
        self.in_proj_bias = Parameter(ebb.zeros(3 * embed_dim)) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias)
        if bias:
            init.zeros_(self.out_proj.get_parameter("bias"))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Any = None,
                need_weights: bool = True, attn_mask: Any = None, average_attn_weights: bool = True,
                is_causal: bool = False) -> Any:
        if query.ndim != 3:
            raise ValueError(f"MultiheadAttention(): a query of shape {query.shape}: write query.unsqueeze(0)")
        if not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        heads = [F.linear(x, weight, bias).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x, weight, bias in
                 zip((query, key, value), self.in_proj_weight.chunk(3), biases)]
        scores = heads[0] @ heads[1].mT / heads[0].shape[-1]**0.5
        if attn_mask is not None:
            mask = attn_mask if attn_mask.ndim < 3 else attn_mask.unflatten(0, (-1, self.num_heads))
            scores = scores.masked_fill(mask, float("-inf")) if mask.dtype == ebb.DType.BOOL else scores + mask
        if key_padding_mask is not None:
            mask = key_padding_mask[:, None, None, :]
            scores = scores.masked_fill(mask, float("-inf")) if mask.dtype == ebb.DType.BOOL else scores + mask
        weights = scores.softmax(-1)
        mixed = F.dropout(weights, self.dropout, self.training) @ heads[2]
        result = self.out_proj(mixed.transpose(1, 2).flatten(2))
        result = result if self.batch_first else result.transpose(0, 1)
        if not need_weights:
            return result, None
        return result, weights.mean(1) if average_attn_weights else weights


# -- containers --------------------------------------------------------------------------------------------------------

class ModuleDict(Module):
    """Modules by names."""

    def __init__(self, modules: Any = ()) -> None:
        super().__init__()
        self.update(modules)

    def update(self, modules: Any) -> None:
        for name, module in (modules.items() if hasattr(modules, "items") else modules):
            self[name] = module

    def __getitem__(self, name: str) -> Module:
        return dict(self.named_children())[name]

    def __setitem__(self, name: str, module: Module) -> None:
        self.register_child(name, module)

    def __delitem__(self, name: str) -> None:
        self.register_child(name, None)

    def __contains__(self, name: str) -> bool:
        return name in dict(self.named_children())

    def __len__(self) -> int:
        return len(self.named_children())

    def __iter__(self) -> Any:
        return iter(self.keys())

    def keys(self) -> Any:
        return dict(self.named_children()).keys()

    def values(self) -> Any:
        return dict(self.named_children()).values()

    def items(self) -> Any:
        return dict(self.named_children()).items()

    def pop(self, name: str) -> Module:
        module = self[name]
        del self[name]
        return module


class ParameterDict(Module):
    """Parameters by names."""

    def __init__(self, parameters: Any = ()) -> None:
        super().__init__()
        for name, parameter in (parameters.items() if hasattr(parameters, "items") else parameters):
            self[name] = parameter

    def __getitem__(self, name: Any) -> Tensor:
        return dict(self.named_parameters(recurse=False))[str(name)]

    def __setitem__(self, name: Any, parameter: Any) -> None:
        self.register_parameter(str(name), parameter)

    def __contains__(self, name: str) -> bool:
        return name in dict(self.named_parameters(recurse=False))

    def __len__(self) -> int:
        return len(self.parameters(recurse=False))

    def __iter__(self) -> Any:
        return iter(self.keys())

    def keys(self) -> Any:
        return dict(self.named_parameters(recurse=False)).keys()

    def values(self) -> Any:
        return dict(self.named_parameters(recurse=False)).values()

    def items(self) -> Any:
        return dict(self.named_parameters(recurse=False)).items()


class ParameterList(ParameterDict):
    """Parameters by numbers."""

    def __init__(self, parameters: Any = ()) -> None:
        super().__init__(enumerate(parameters))

    def __iter__(self) -> Any:
        return iter(self.values())

    def append(self, parameter: Any) -> "ParameterList":
        self[len(self)] = parameter
        return self

    def extend(self, parameters: Any) -> "ParameterList":
        for parameter in parameters:
            self.append(parameter)
        return self


def __getattr__(name: str) -> Any:
    return advise_in("nn", name)
