"""Collectives of the default group by the names of torch.distributed: results are written to the tensors given."""
import enum
from typing import Any

import ebb
from ebb import ProcessGroup as ProcessGroup
from ebb._advice import advise_in

_state: "dict[str, Any]" = {}


class ReduceOp(enum.Enum):
    """How the tensors of all ranks become one."""

    SUM = "sum"
    AVG = "mean"
    MIN = "min"
    MAX = "max"


class _Done:
    """The handle of a collective that is over."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


_BACKENDS = {"gloo": "auto", "nccl": "nccl", "mpi": "mpi", None: "auto"}


def init_process_group(backend: Any = None, init_method: Any = None, timeout: Any = None, world_size: int = -1,
                       rank: int = -1, store: Any = None, group_name: str = "", pg_options: Any = None,
                       device_id: Any = None) -> None:
    """Joins the ranks that mpirun, torchrun, or Slurm has started; a program that was started alone is one rank.
    "gloo" is what fits: MPI, or one rank."""
    name = backend.partition(",")[0].rpartition(":")[2] if isinstance(backend, str) else backend
    _state["group"] = ebb.init_process_group(_BACKENDS.get(name, name))
    _state["backend"] = backend
    if world_size not in (-1, _state["group"].size):
        group = _state.pop("group")
        raise RuntimeError(f"init_process_group(): world_size is {world_size}, and {group.size} ranks are there: write "
                           f"mpirun -n {world_size} before the program")


def _group(group: Any = None) -> Any:
    if group is not None:
        return group
    if "group" not in _state:
        raise ValueError("there is no default group yet: write ebb.distributed.init_process_group() first")
    return _state["group"]


def destroy_process_group(group: Any = None) -> None:
    """Leaves the default group."""
    if group is None or group is _state.get("group"):
        _state.clear()
        ebb.destroy_process_group()


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return "group" in _state


def is_nccl_available() -> bool:
    return ebb.cuda.is_available()


def is_gloo_available() -> bool:
    return False


def is_mpi_available() -> bool:
    return True


def get_rank(group: Any = None) -> int:
    return _group(group).rank


def get_world_size(group: Any = None) -> int:
    return _group(group).size


def get_backend(group: Any = None) -> str:
    """The name that init_process_group() was given, or that of a group of one's own."""
    return _group(group).backend if group is not None else _state.get("backend") or _group().backend


def _finish(async_op: bool) -> Any:
    return _Done() if async_op else None


def all_reduce(tensor: Any, op: ReduceOp = ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
    with ebb.no_grad():
        _group(group).all_reduce(tensor, op.value if isinstance(op, ReduceOp) else op)
    return _finish(async_op)


def broadcast(tensor: Any, src: int = 0, group: Any = None, async_op: bool = False) -> Any:
    with ebb.no_grad():
        _group(group).broadcast(tensor, src)
    return _finish(async_op)


def reduce(tensor: Any, dst: int, op: ReduceOp = ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
    """All ranks get the result, that of dst among them."""
    return all_reduce(tensor, op, group, async_op)


def all_gather_into_tensor(output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False) -> Any:
    with ebb.no_grad():
        output_tensor.copy_(_group(group).all_gather(input_tensor.contiguous()).reshape(output_tensor.shape))
    return _finish(async_op)


def all_gather(tensor_list: Any, tensor: Any, group: Any = None, async_op: bool = False) -> Any:
    with ebb.no_grad():
        gathered = _group(group).all_gather(tensor.contiguous().reshape(1, *tensor.shape))
        for target, part in zip(tensor_list, gathered):
            target.copy_(part)
    return _finish(async_op)


def reduce_scatter_tensor(output: Any, input: Any, op: ReduceOp = ReduceOp.SUM, group: Any = None,
                          async_op: bool = False) -> Any:
    with ebb.no_grad():
        output.copy_(_group(group).reduce_scatter(input, op.value).reshape(output.shape))
    return _finish(async_op)


def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
    _group(group).barrier()
    return _finish(async_op)


def __getattr__(name: str) -> Any:
    import importlib
    if name in ("fsdp", "device_mesh", "algorithms"):
        return importlib.import_module(f"ebb.distributed.{name}")
    return advise_in("distributed", name)
