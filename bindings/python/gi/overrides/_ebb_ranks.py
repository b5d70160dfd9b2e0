"""Groups of ranks, and ranks that are threads with a function of Python each."""
import re

from gi.module import get_introspection_module
from gi.overrides import override
from gi.overrides._ebb_construct import add_attributes
from gi.overrides._ebb_errors import Error, as_plain_failure, guard
from gi.overrides._ebb_functions import choice
from gi.repository import GLib

Ebb = get_introspection_module("Ebb")

__all__ = ["init_process_group", "run_ranks", "seed_rank"]

_all_reduce, _reduce_scatter = guard(Ebb.ProcessGroup.all_reduce), guard(Ebb.ProcessGroup.reduce_scatter)
_all_reduce_async = guard(Ebb.ProcessGroup.all_reduce_async)
_broadcast = guard(Ebb.ProcessGroup.broadcast)

_COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "send", "recv", "barrier")


@override
class ProcessGroup(Ebb.ProcessGroup):
    """Ranks that compute together; rank, size, backend, name and timeout are attributes."""
    __module__ = "gi.overrides.Ebb"

    def all_reduce(self, tensor, op="sum"):
        """All ranks get the "sum", "mean", "min" or "max" of their tensors, in place; returns the tensor."""
        _all_reduce(self, tensor, choice(Ebb.ReduceOp, op))
        return tensor

    def all_reduce_async(self, tensor, op="sum"):
        """The same, begun: wait() for what it returns before the tensor is read."""
        return _all_reduce_async(self, tensor, choice(Ebb.ReduceOp, op))

    def reduce_scatter(self, tensor, op="sum"):
        """This rank's piece, along the first dimension, of the reduction of all tensors."""
        return _reduce_scatter(self, tensor, choice(Ebb.ReduceOp, op))

    def broadcast(self, tensor, root=0):
        """All ranks get the tensor of one, in place; returns the tensor."""
        _broadcast(self, tensor, root)
        return tensor

    def counters(self):
        """Calls and bytes that this rank sent, by operation."""
        kinds = {name: getattr(Ebb.Collective, name.upper()) for name in _COLLECTIVES}
        return {name: {"calls": self.get_n_calls(kind), "bytes": self.get_n_bytes(kind)}
                for name, kind in kinds.items() if self.get_n_calls(kind)}


add_attributes(ProcessGroup)

_init_process_group = guard(Ebb.init_process_group)
_seed_rank = guard(Ebb.seed_rank)


def init_process_group(backend="auto"):
    """Joins the ranks that mpirun, Slurm or the like has started: "auto", "single", "mpi" or "nccl"."""
    return _init_process_group(backend)


def seed_rank(seed, group=None):
    """Gives the random numbers of this thread, dropout's, a seed of this rank's own; the first one keeps seed."""
    return _seed_rank(seed, group)


_run_ranks = Ebb.run_ranks


def run_ranks(n_ranks, function, *args, **kwargs):
    """Runs function(group, *args, **kwargs) on n_ranks threads, each a rank of one group, and waits for all.

    Returns what they returned, in the order of the ranks. An exception of a rank comes out of here; the other ranks get
    an ebb.Error that names it where they wait for that rank. What Python does itself runs on one thread at a time,
    and what Ebb does at once.
    """
    results, exceptions = [None] * n_ranks, {}

    def run(group, *_):
        try:
            results[group.get_rank()] = function(group, *args, **kwargs)
        except BaseException as exception:
            exceptions[group.get_rank()] = exception
            failure = as_plain_failure(exception)
        else:
            return True
        raise failure

    try:
        _run_ranks(n_ranks, run)
        return results
    except GLib.Error as error:
        failure = Error(error.message, error.domain, error.code)
    try:
        culprit = re.match(r"rank (\d+) of", failure.message)
        exception = exceptions.get(int(culprit.group(1))) if culprit else None
        if isinstance(exception, GLib.Error):
            exception.message = failure.message
        raise exception or failure
    finally:
        del exception, failure
        exceptions.clear()
