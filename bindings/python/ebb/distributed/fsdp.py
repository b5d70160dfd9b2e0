"""Sharded modules by the names of torch.distributed.fsdp."""
from typing import Any

import ebb
from ebb._advice import advise_in


class MixedPrecisionPolicy:
    """In which dtypes parameters are gathered and gradients are reduced."""

    def __init__(self, param_dtype: Any = None, reduce_dtype: Any = None, output_dtype: Any = None,
                 cast_forward_inputs: bool = True) -> None:
        self.param_dtype, self.reduce_dtype = param_dtype, reduce_dtype


class CPUOffloadPolicy:
    """Has the parts of parameters in host memory."""

    def __init__(self, pin_memory: bool = True) -> None:
        pass


def fully_shard(module: ebb.Module, *, mesh: Any = None, reshard_after_forward: Any = None, mp_policy: Any = None,
                offload_policy: Any = None, shard_placement_fn: Any = None, ignored_params: Any = None) -> ebb.Module:
    """ebb.fully_shard() with PyTorch's arguments; returns the module."""
    if shard_placement_fn is not None or ignored_params is not None:
        raise TypeError("fully_shard(): there are neither shard_placement_fn nor ignored_params: leave them out, or "
                        "write ebb.fully_shard() of the modules inside")
    options: "dict[str, Any]" = {}
    if reshard_after_forward is not None:
        options["reshard_after_forward"] = bool(reshard_after_forward)
    if mp_policy is not None:
        options.update({name: value for name, value in (("compute_dtype", mp_policy.param_dtype),
                                                        ("reduce_dtype", mp_policy.reduce_dtype)) if value is not None})
    if isinstance(offload_policy, CPUOffloadPolicy):
        options["offload"] = True
    group = mesh.get_group() if hasattr(mesh, "get_group") else mesh
    return ebb.fully_shard(module, group, **options)


__path__: "list[str]" = []  # so that a from … import asks for advice, as ebb's finder gives it


def __getattr__(name: str) -> Any:
    return advise_in("distributed.fsdp", name)
