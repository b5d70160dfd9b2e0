"""Checkpoints of modules by the names of torch.distributed.algorithms._checkpoint.checkpoint_wrapper."""
import enum
from typing import Any

import ebb
from ebb._advice import advise_in


class CheckpointImpl(enum.Enum):
    """Both do the same here."""

    REENTRANT = 1
    NO_REENTRANT = 2


def checkpoint_wrapper(module: ebb.Module, checkpoint_impl: Any = None, checkpoint_fn: Any = None,
                       **options: Any) -> ebb.Module:
    """ebb.checkpoint_wrapper(), which returns the same module."""
    if checkpoint_fn is not None:
        raise TypeError("checkpoint_wrapper(): there is no checkpoint_fn: write ebb.checkpoint_with(**options)")
    return ebb.checkpoint_wrapper(module, **options)


def offload_wrapper(module: ebb.Module) -> ebb.Module:
    """Holds what backward needs of a module in host memory."""
    return ebb.offload_wrapper(module)


def apply_activation_checkpointing(model: ebb.Module, checkpoint_wrapper_fn: Any = checkpoint_wrapper,
                                   check_fn: Any = lambda _: True, auto_wrap_policy: Any = None) -> None:
    """Wraps every module below model for which check_fn is true."""
    for module in [module for name, module in model.named_modules() if name and check_fn(module)]:
        checkpoint_wrapper_fn(module)


__path__: "list[str]" = []  # so that a from … import asks for advice, as ebb's finder gives it


def __getattr__(name: str) -> Any:
    return advise_in("distributed.algorithms._checkpoint.checkpoint_wrapper", name)
