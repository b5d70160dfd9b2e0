"""The functions of torch.nn.init: each fills a tensor in place, without a graph, and returns it."""
import math
from typing import Any, Optional

import ebb
from ebb import Tensor
from ebb._advice import advise_in


def calculate_gain(nonlinearity: str, param: Optional[float] = None) -> float:
    """The factor by which weights before an activation are larger."""
    gains = {"tanh": 5 / 3, "relu": math.sqrt(2), "selu": 3 / 4,
             "leaky_relu": math.sqrt(2 / (1 + (0.01 if param is None else param)**2)),
             **dict.fromkeys(("linear", "sigmoid", "conv1d", "conv2d", "conv3d"), 1.0)}
    if nonlinearity not in gains:
        raise ValueError(f"calculate_gain(): nonlinearity is {nonlinearity!r}: it must be one of {', '.join(gains)}")
    return float(gains[nonlinearity])


def _fans(function: str, tensor: Tensor) -> "tuple[int, int]":
    if tensor.ndim < 2:
        raise ValueError(f"{function}(): a tensor of shape {tensor.shape} has no fans: it must have two dimensions or "
                         "more: write uniform_() or normal_()")
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


@ebb.no_grad()
def constant_(tensor: Tensor, val: float) -> Tensor:
    return tensor.fill_(val)


def zeros_(tensor: Tensor) -> Tensor:
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    return constant_(tensor, 1.0)


@ebb.no_grad()
def eye_(tensor: Tensor) -> Tensor:
    return tensor.copy_(ebb.eye(*tensor.shape))


@ebb.no_grad()
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Any = None) -> Tensor:
    return tensor.uniform_(a, b, generator)


@ebb.no_grad()
def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Tensor:
    return tensor.normal_(mean, std, generator)


@ebb.no_grad()
def trunc_normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0,
                  generator: Any = None) -> Tensor:
    """Normal numbers from a to b; those outside are drawn again."""
    tensor.normal_(mean, std, generator)
    for _ in range(200):
        outside = (tensor < a) | (tensor > b)
        if not outside.any():
            break
        tensor.copy_(ebb.where(outside, ebb.randn_like(tensor) * std + mean, tensor))
    return tensor.clamp_(a, b)


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    bound = gain * math.sqrt(6 / sum(_fans("xavier_uniform_", tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    return normal_(tensor, 0.0, gain * math.sqrt(2 / sum(_fans("xavier_normal_", tensor))), generator)


def _kaiming_std(function: str, tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"{function}(): mode is {mode!r}: it must be 'fan_in' or 'fan_out'")
    return calculate_gain(nonlinearity, a) / math.sqrt(_fans(function, tensor)[mode == "fan_out"])


def kaiming_uniform_(tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
                     generator: Any = None) -> Tensor:
    bound = math.sqrt(3) * _kaiming_std("kaiming_uniform_", tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
                    generator: Any = None) -> Tensor:
    return normal_(tensor, 0.0, _kaiming_std("kaiming_normal_", tensor, a, mode, nonlinearity), generator)


@ebb.no_grad()
def orthogonal_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """Orthogonal rows, or columns where there are fewer of them."""
    import numpy
    _, columns = _fans("orthogonal_", tensor)[1], tensor.numel() // tensor.shape[0]
    values = ebb.randn(tensor.shape[0], columns, generator=generator).numpy().astype("f8")
    q, r = numpy.linalg.qr(values.T if values.shape[0] < columns else values)
    q = q * numpy.sign(numpy.diag(r))
    q = q.T if values.shape[0] < columns else q
    return tensor.copy_((ebb.tensor(q.astype("f4")) * gain).reshape(tensor.shape))


@ebb.no_grad()
def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Any = None) -> Tensor:
    """Normal numbers, with zeros in a part of each column."""
    rows = tensor.shape[0]
    order = ebb.rand(rows, tensor.shape[1], generator=generator).argsort(0).argsort(0)
    return tensor.copy_(ebb.where(order < math.ceil(sparsity * rows), 0.0, ebb.randn_like(tensor) * std))


__path__: "list[str]" = []  # so that a from … import asks for advice, as ebb's finder gives it


def __getattr__(name: str) -> Any:
    return advise_in("nn.init", name)
