"""Functions with the names, arguments, and order of dimensions of torch.nn.functional."""
import math
from typing import Any

import ebb
from ebb import (Tensor, binary_cross_entropy_with_logits as _bce_with_logits, cross_entropy as _cross_entropy,
                 gelu as gelu, linear as linear, mse_loss as mse_loss, one_hot as one_hot)
from ebb import dropout as _dropout, embedding as _embedding, layer_norm as _layer_norm, rms_norm as _rms_norm
from ebb import scaled_dot_product_attention as _attention
from ebb._advice import advise_in


def _reduce(losses: Tensor, reduction: str) -> Tensor:
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"reduction is {reduction!r}: it must be 'none', 'mean' or 'sum'")
    return losses if reduction == "none" else losses.mean() if reduction == "mean" else losses.sum()


# -- activations -------------------------------------------------------------------------------------------------------

def relu(input: Tensor, inplace: bool = False) -> Tensor:
    return input.relu()


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    return input.silu()


def sigmoid(input: Tensor) -> Tensor:
    return input.sigmoid()


def tanh(input: Tensor) -> Tensor:
    return input.tanh()


def softmax(input: Tensor, dim: Any = -1, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    return (input if dtype is None else input.to(dtype)).softmax(-1 if dim is None else dim)


def log_softmax(input: Tensor, dim: Any = -1, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    return (input if dtype is None else input.to(dtype)).log_softmax(-1 if dim is None else dim)


def softmin(input: Tensor, dim: int = -1) -> Tensor:
    return (-input).softmax(dim)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    return ebb.where(input > 0, input, input.clamp(max=0.0).expm1() * alpha)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    return ebb.where(input > 0, input, (input.clamp(max=0.0) / alpha).expm1() * alpha)


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    return elu(input, 1.6732632423543772) * 1.0507009873554805


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    return ebb.where(input > 0, input, input * negative_slope)


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    if weight.numel() > 1 and input.ndim > 1:
        weight = weight.reshape(-1, *[1] * (input.ndim - 2))
    return ebb.where(input > 0, input, input * weight)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    return input.clamp(0.0, 6.0)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    return input.clamp(min_val, max_val)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    return (input + 3).clamp(0.0, 6.0) / 6


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    return input * hardsigmoid(input)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    x = input * beta
    return ebb.where(x > threshold, input, x.clamp(max=threshold).softplus() / beta)


def softsign(input: Tensor) -> Tensor:
    return input / (abs(input) + 1)


def tanhshrink(input: Tensor) -> Tensor:
    return input - input.tanh()


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    return ebb.where(abs(input) > lambd, input, 0.0)


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    return ebb.where(input > lambd, input - lambd, ebb.where(input < -lambd, input + lambd, 0.0))


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    return ebb.where(input > threshold, input, value)


def logsigmoid(input: Tensor) -> Tensor:
    return -(-input).softplus()


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    return input * input.softplus().tanh()


def glu(input: Tensor, dim: int = -1) -> Tensor:
    value, gate = input.chunk(2, dim)
    return value * gate.sigmoid()


def gumbel_softmax(logits: Tensor, tau: float = 1.0, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    noise = -(-ebb.rand_like(logits).clamp(min=1e-20).log()).log()
    soft = ((logits + noise) / tau).softmax(dim)
    if not hard:
        return soft
    chosen = (soft == soft.amax(dim, True)).float()
    return chosen + (soft - soft.detach())


# -- layers ------------------------------------------------------------------------------------------------------------

def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return _dropout(input, p, training)


def embedding(input: Tensor, weight: Tensor, padding_idx: Any = None, max_norm: Any = None, norm_type: float = 2.0,
              scale_grad_by_freq: bool = False, sparse: bool = False) -> Tensor:
    """The rows of weight; that of padding_idx gets no gradient."""
    if max_norm is not None or scale_grad_by_freq:
        raise TypeError("embedding(): there are neither max_norm nor scale_grad_by_freq: leave them out, or write "
                        "weight.renorm(2, 0, max_norm)")
    rows = _embedding(weight, input)
    return rows if padding_idx is None else stop_gradient_at(rows, input, padding_idx % weight.shape[0])


def stop_gradient_at(rows: Tensor, indices: Tensor, index: int) -> Tensor:
    """Rows through which no gradient flows where indices are index."""
    if not rows.requires_grad:
        return rows
    return ebb.where((indices == index).unsqueeze(-1).expand(rows.shape), rows.detach(), rows)


def _normalized(function: str, input: Tensor, shape: Any, values: Any) -> Any:
    """The input, and the values, with all normalized dimensions in one."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if not shape or input.shape[-len(shape):] != shape:
        raise RuntimeError(f"{function}(): normalized_shape is {shape} for a tensor of shape {input.shape}: write "
                           "x.shape[-1:]")
    return input.flatten(-len(shape)), *(value if value is None else value.flatten() for value in values)


def layer_norm(input: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    x, weight, bias = _normalized("layer_norm", input, normalized_shape, (weight, bias))
    return _layer_norm(x, weight, bias, eps).reshape(input.shape)


def rms_norm(input: Tensor, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Tensor:
    x, weight = _normalized("rms_norm", input, normalized_shape, (weight,))
    return _rms_norm(x, weight, 2.0**-23 if eps is None else eps).reshape(input.shape)


def group_norm(input: Tensor, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    n, channels = input.shape[:2]
    x = _layer_norm(input.reshape(n, num_groups, -1), None, None, eps).reshape(input.shape)
    sizes = [channels] + [1] * (input.ndim - 2)
    x = x if weight is None else x * weight.reshape(sizes)
    return x if bias is None else x + bias.reshape(sizes)


def instance_norm(input: Tensor, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    return group_norm(input, input.shape[1], weight, bias, eps)


def batch_norm(input: Tensor, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
               training: bool = False, momentum: float = 0.1, eps: float = 1e-5) -> Tensor:
    sizes, others = [1, -1] + [1] * (input.ndim - 2), [d for d in range(input.ndim) if d != 1]
    mean, var = running_mean, running_var
    if training or mean is None:
        mean, var = input.mean(others), input.var(others, 0)
        if running_mean is not None:
            n = input.numel() / input.shape[1]
            with ebb.no_grad():
                running_mean.copy_(running_mean * (1 - momentum) + mean.detach() * momentum)
                running_var.copy_(running_var * (1 - momentum) + var.detach() * (momentum * n / max(n - 1, 1)))
    x = (input - mean.reshape(sizes)) * (var.reshape(sizes) + eps).rsqrt()
    x = x if weight is None else x * weight.reshape(sizes)
    return x if bias is None else x + bias.reshape(sizes)


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Any = None) -> Tensor:
    result = ebb.einsum("...i,oij,...j->...o", input1, weight, input2)
    return result if bias is None else result + bias


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, scale: Any = None,
                                 enable_gqa: bool = False) -> Tensor:
    """enable_gqa: keys and values may have fewer heads, which queries share in groups."""
    if query.ndim < 4:
        q, k, v = (x.reshape(*[1] * (4 - x.ndim), *x.shape) for x in (query, key, value))
        return scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa).reshape(
            *query.shape[:-1], value.shape[-1])
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        n = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(n, -3), value.repeat_interleave(n, -3)
    return _attention(query, key, value, attn_mask, is_causal, scale or 0.0, dropout_p)


# -- losses ------------------------------------------------------------------------------------------------------------

def _classes_last(input: Tensor) -> Tensor:
    return input.movedim(1, -1) if input.ndim > 2 else input


def cross_entropy(input: Tensor, target: Tensor, weight: Any = None, size_average: Any = None,
                  ignore_index: int = -100, reduce: Any = None, reduction: str = "mean",
                  label_smoothing: float = 0.0) -> Tensor:
    """input: [classes], [n, classes] or [n, classes, d …]; target: the classes, or their probabilities."""
    if isinstance(target, Tensor) and target.is_floating_point():
        return _soft_cross_entropy(input, target, weight, reduction, label_smoothing)
    if input.ndim == 1:
        input, target = input.unsqueeze(0), target.reshape(1)
    wanted = (input.shape[0], *input.shape[2:])
    if target.shape != wanted:
        raise RuntimeError(f"cross_entropy(): input of shape {input.shape} has its classes in dimension 1 and needs a "
                           f"target of shape {wanted}, not {target.shape}: write input.flatten(0, -2) and "
                           "target.flatten(), or ebb.cross_entropy(), where classes are last")
    logits = _classes_last(input)
    if weight is None:
        return _cross_entropy(logits, target, ignore_index, label_smoothing, reduction, dim=-1)
    logs = logits.log_softmax(-1)
    return _weighted_nll(logs, target, weight, ignore_index, reduction, label_smoothing)


def _weighted_nll(logs: Tensor, target: Tensor, weight: Tensor, ignore_index: int, reduction: str,
                  label_smoothing: float = 0.0) -> Tensor:
    kept = target != ignore_index
    classes = ebb.where(kept, target, 0)
    weights = weight.index_select(0, classes.reshape(-1)).reshape(classes.shape) * kept.float()
    losses = -logs.gather(-1, classes.unsqueeze(-1)).squeeze(-1) * weights
    if label_smoothing:
        smooth = -(logs * weight).sum(-1) * kept.float() / logs.shape[-1]
        losses = losses * (1 - label_smoothing) + smooth * label_smoothing
    return losses.sum() / weights.sum() if reduction == "mean" else _reduce(losses, reduction)


def _soft_cross_entropy(input: Tensor, target: Tensor, weight: Any, reduction: str, label_smoothing: float) -> Tensor:
    n = input.shape[0] if input.ndim == 1 else input.shape[1]
    target = target * (1 - label_smoothing) + label_smoothing / n
    if weight is not None:
        target = target * (weight if input.ndim < 3 else weight.reshape(-1, *[1] * (input.ndim - 2)))
    losses = -(input.log_softmax(0 if input.ndim == 1 else 1) * target).sum(0 if input.ndim == 1 else 1)
    return _reduce(losses, reduction)


def nll_loss(input: Tensor, target: Tensor, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
             reduce: Any = None, reduction: str = "mean") -> Tensor:
    """input: logarithms of probabilities, [n, classes] or [n, classes, d …]."""
    logs = _classes_last(input if input.ndim > 1 else input.unsqueeze(0))
    target = target if input.ndim > 1 else target.reshape(1)
    ones = ebb.ones(logs.shape[-1], device=logs.device) if weight is None else weight
    return _weighted_nll(logs, target, ones, ignore_index, reduction)


def l1_loss(input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None,
            reduction: str = "mean") -> Tensor:
    return _reduce(abs(input - target), reduction)


def huber_loss(input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    far = abs(input - target)
    return _reduce(ebb.where(far <= delta, far.square() * 0.5, (far - 0.5 * delta) * delta), reduction)


def smooth_l1_loss(input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None,
                   reduction: str = "mean", beta: float = 1.0) -> Tensor:
    return l1_loss(input, target, reduction=reduction) if beta == 0 else \
        huber_loss(input, target, reduction, beta) / beta


def binary_cross_entropy_with_logits(input: Tensor, target: Tensor, weight: Any = None, size_average: Any = None,
                                     reduce: Any = None, reduction: str = "mean", pos_weight: Any = None) -> Tensor:
    if pos_weight is None:
        losses = _bce_with_logits(input, target, "none")
    else:
        losses = -(target * pos_weight * logsigmoid(input) + (1 - target) * logsigmoid(-input))
    return _reduce(losses if weight is None else losses * weight, reduction)


def binary_cross_entropy(input: Tensor, target: Tensor, weight: Any = None, size_average: Any = None,
                         reduce: Any = None, reduction: str = "mean") -> Tensor:
    losses = -(target * input.log().clamp(min=-100.0) + (1 - target) * (-input).log1p().clamp(min=-100.0))
    return _reduce(losses if weight is None else losses * weight, reduction)


def kl_div(input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
           log_target: bool = False) -> Tensor:
    if log_target:
        losses = target.exp() * (target - input)
    else:
        losses = ebb.where(target > 0, target * (ebb.where(target > 0, target, 1.0).log() - input), 0.0)
    return losses.sum() / input.shape[0] if reduction == "batchmean" else _reduce(losses, reduction)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    return (x1 * x2).sum(dim) / (x1.norm(dim=dim).clamp(min=eps) * x2.norm(dim=dim).clamp(min=eps))


def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    return (x1 - x2 + eps).norm(p, -1, keepdim)


def cosine_embedding_loss(input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0,
                          size_average: Any = None, reduce: Any = None, reduction: str = "mean") -> Tensor:
    near = cosine_similarity(input1, input2, -1)
    return _reduce(ebb.where(target > 0, 1 - near, (near - margin).clamp(min=0.0)), reduction)


def margin_ranking_loss(input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0,
                        size_average: Any = None, reduce: Any = None, reduction: str = "mean") -> Tensor:
    return _reduce((-target * (input1 - input2) + margin).clamp(min=0.0), reduction)


def hinge_embedding_loss(input: Tensor, target: Tensor, margin: float = 1.0, size_average: Any = None,
                         reduce: Any = None, reduction: str = "mean") -> Tensor:
    return _reduce(ebb.where(target > 0, input, (margin - input).clamp(min=0.0)), reduction)


def soft_margin_loss(input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None,
                     reduction: str = "mean") -> Tensor:
    return _reduce((-target * input).softplus(), reduction)


def triplet_margin_loss(anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2.0,
                        eps: float = 1e-6, swap: bool = False, size_average: Any = None, reduce: Any = None,
                        reduction: str = "mean") -> Tensor:
    far = pairwise_distance(anchor, negative, p, eps)
    far = far.minimum(pairwise_distance(positive, negative, p, eps)) if swap else far
    return _reduce((pairwise_distance(anchor, positive, p, eps) - far + margin).clamp(min=0.0), reduction)


def gaussian_nll_loss(input: Tensor, target: Tensor, var: Tensor, full: bool = False, eps: float = 1e-6,
                      reduction: str = "mean") -> Tensor:
    var = var.clamp(min=eps)
    losses = (var.log() + (input - target).square() / var) * 0.5
    return _reduce(losses + 0.5 * math.log(2 * math.pi) if full else losses, reduction)


def poisson_nll_loss(input: Tensor, target: Tensor, log_input: bool = True, full: bool = False,
                     size_average: Any = None, eps: float = 1e-8, reduce: Any = None,
                     reduction: str = "mean") -> Tensor:
    if full:
        raise TypeError("poisson_nll_loss(): there is no Stirling term: leave full out")
    return _reduce(input.exp() - target * input if log_input else input - target * (input + eps).log(), reduction)


# -- shapes ------------------------------------------------------------------------------------------------------------

def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    return input / input.norm(p, dim, True).clamp(min=eps)


def _filler(x: Tensor, dim: int, n: int, value: Any) -> Tensor:
    shape = [n if at == dim else size for at, size in enumerate(x.shape)]
    return ebb.full(shape, value or 0, dtype=x.dtype, device=x.device)


def pad(input: Tensor, pad: Any, mode: str = "constant", value: Any = None) -> Tensor:
    """pad: how many elements before and after, from the last dimension on; negative numbers cut."""
    if mode != "constant":
        raise ValueError(f"pad(): mode is {mode!r}: there is 'constant' alone: write x.index_select(dim, places)")
    x = input
    for i in range(0, len(pad), 2):
        dim = input.ndim - 1 - i // 2
        before, after = pad[i], pad[i + 1]
        x = x.narrow(dim, max(-before, 0), x.shape[dim] - max(-before, 0) - max(-after, 0))
        parts = [x]
        if before > 0:
            parts.insert(0, _filler(x, dim, before, value))
        if after > 0:
            parts.append(_filler(x, dim, after, value))
        x = ebb.cat(parts, dim) if len(parts) > 1 else x
    return x.clone() if x is input else x


def unfold(*_: Any, **__: Any) -> Tensor:
    raise TypeError("there are no convolutions and their windows: write x.unfold(dim, size, step)")


__path__: "list[str]" = []  # so that a from … import asks for advice, as ebb's finder gives it


def __getattr__(name: str) -> Any:
    return advise_in("nn.functional", name)
