"""Replicated modules by the names of torch.nn.parallel."""
import contextlib
from typing import Any, Iterator

import ebb
from ebb._advice import advise_in


class DistributedDataParallel(ebb.Module):
    """A module that the ranks of a group train together: ebb.replicate(), with the module as its child "module"."""

    def __init__(self, module: ebb.Module, device_ids: Any = None, output_device: Any = None, process_group: Any = None,
                 find_unused_parameters: bool = False, gradient_as_bucket_view: bool = False,
                 static_graph: bool = False, broadcast_buffers: bool = True) -> None:
        super().__init__()
        group = process_group if process_group is not None else ebb.ProcessGroup.get_default()
        if group.size > 1:  # one rank has nothing to reduce
            ebb.replicate(module, group, unused_parameters="zero" if find_unused_parameters else "error")
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside add up this rank's gradients alone."""
        with ebb.no_sync():
            yield


__path__: "list[str]" = []  # so that a from … import asks for advice, as ebb's finder gives it


def __getattr__(name: str) -> Any:
    return advise_in("nn.parallel", name)
