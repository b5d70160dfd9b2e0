"""Ranks in a grid by the names of torch.distributed.device_mesh."""
import math
from typing import Any

import ebb
from ebb._advice import advise_in


class DeviceMesh:
    """A row of ranks: the default group. For grids there is ebb.Mesh."""

    def __init__(self, group: Any, names: Any) -> None:
        self._group, self.mesh_dim_names, self.ndim, self.shape = group, names, 1, (group.size,)

    def size(self, mesh_dim: Any = None) -> int:
        return self._group.size

    def get_group(self, mesh_dim: Any = None) -> Any:
        return self._group

    def get_rank(self) -> int:
        return self._group.rank

    get_local_rank = get_rank


def init_device_mesh(device_type: str, mesh_shape: Any, *, mesh_dim_names: Any = None) -> DeviceMesh:
    """The ranks of the default group in a row."""
    from ebb.distributed import _group, init_process_group, is_initialized
    if not is_initialized():
        init_process_group()
    if len(mesh_shape) != 1:
        raise ValueError(f"init_device_mesh(): a shape of {tuple(mesh_shape)}: write ebb.Mesh for ranks in a grid")
    if math.prod(mesh_shape) != _group().size:
        raise RuntimeError(f"init_device_mesh(): a shape of {tuple(mesh_shape)} for {_group().size} ranks: write "
                           f"({_group().size},)")
    return DeviceMesh(_group(), mesh_dim_names)


__path__: "list[str]" = []  # so that a from … import asks for advice, as ebb's finder gives it


def __getattr__(name: str) -> Any:
    return advise_in("distributed.device_mesh", name)
