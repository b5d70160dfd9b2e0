"""Gradients by the names of torch.autograd."""
import contextlib
from types import SimpleNamespace
from typing import Any, Iterator

import ebb
from ebb import (backward as _backward, enable_grad as enable_grad, grad as _grad, inference_mode as inference_mode,
                 no_grad as no_grad, set_grad_enabled as set_grad_enabled)
from ebb._advice import advise_in


def _refuse_create_graph(function: str, create_graph: bool) -> None:
    if create_graph:
        raise RuntimeError(f"{function}(): there are no gradients of gradients: leave create_graph out, or write the "
                           "first gradient with ops")


def grad(outputs: Any, inputs: Any, grad_outputs: Any = None, retain_graph: Any = None, create_graph: bool = False,
         allow_unused: Any = None, is_grads_batched: bool = False, materialize_grads: bool = False) -> Any:
    """The gradients of outputs with respect to inputs, as a tuple."""
    _refuse_create_graph("grad", create_graph)
    return _grad(outputs, inputs, grad_outputs, bool(retain_graph))


def backward(tensors: Any, grad_tensors: Any = None, retain_graph: Any = None, create_graph: bool = False,
             inputs: Any = None) -> None:
    """Adds the gradients of tensors to those of the leaves."""
    _refuse_create_graph("backward", create_graph)
    _backward(tensors, grad_tensors, inputs, bool(retain_graph))


class Function:
    """There are no functions with a backward of their own."""

    def __init_subclass__(cls, **_: Any) -> None:
        raise TypeError(f"class {cls.__name__}: there is no backward of your own: compose ops instead")


@contextlib.contextmanager
def set_detect_anomaly(mode: bool = True, check_nan: bool = True) -> Iterator[None]:
    """Taken: errors of a backward name their op as it is."""
    yield


detect_anomaly = set_detect_anomaly
# The context managers that keep saved tensors elsewhere between forward and backward.
graph = SimpleNamespace(saved_tensors_hooks=ebb.saved_tensor_hooks,
                        save_on_cpu=lambda pin_memory=False: ebb.save_on_host())


def Variable(data: Any, requires_grad: bool = False) -> Any:
    """The tensor itself."""
    return data.requires_grad_(requires_grad)


__path__: "list[str]" = []  # so that a from … import asks for advice, as ebb's finder gives it


def __getattr__(name: str) -> Any:
    return advise_in("autograd", name)
