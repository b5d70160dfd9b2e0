"""Gradients and parameters of many tensors at once, by the names of torch.nn.utils."""
import math
from typing import Any

import ebb
from ebb import Tensor
from ebb._advice import advise_in
from ebb.nn.utils import rnn as rnn


def _listed(parameters: Any) -> "list[Tensor]":
    return [parameters] if isinstance(parameters, Tensor) else list(parameters)


def clip_grad_norm_(parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False,
                    foreach: Any = None) -> Tensor:
    """Scales the gradients so that their norm is max_norm at most; returns the norm before."""
    listed = [parameter for parameter in _listed(parameters) if parameter.grad is not None]
    norm = ebb.clip_grad_norm(listed, max_norm, norm_type) if listed else ebb.tensor(0.0)
    if error_if_nonfinite and not math.isfinite(norm.item()):
        raise RuntimeError(f"clip_grad_norm_(): the norm is {norm.item()}: write error_if_nonfinite=False to go on")
    return norm


@ebb.no_grad()
def clip_grad_value_(parameters: Any, clip_value: float, foreach: Any = None) -> None:
    """Bounds each element of the gradients to -clip_value and clip_value."""
    for parameter in _listed(parameters):
        if parameter.grad is not None:
            parameter.grad.clamp_(-clip_value, clip_value)


def get_total_norm(tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False,
                   foreach: Any = None) -> Tensor:
    """The norm of all elements of several tensors."""
    return ebb.stack([tensor.norm(norm_type) for tensor in _listed(tensors)]).norm(norm_type)


def parameters_to_vector(parameters: Any) -> Tensor:
    """All elements in one vector."""
    return ebb.cat([parameter.reshape(-1) for parameter in parameters])


def vector_to_parameters(vec: Tensor, parameters: Any) -> None:
    """Copies the elements of a vector to the parameters in order."""
    first = 0
    for parameter in parameters:
        parameter.data = vec.narrow(0, first, parameter.numel()).reshape(parameter.shape)
        first += parameter.numel()


def __getattr__(name: str) -> Any:
    return advise_in("nn.utils", name)
