"""Modules that several ranks train together: replicated or sharded, and regions in which they are otherwise."""
import contextlib
import json

from gi.module import get_introspection_module
from gi.overrides._ebb_args import pack_result, unpack_result
from gi.overrides._ebb_errors import guard
from gi.overrides._ebb_module import find_differences
from gi.overrides._ebb_options import Options
from gi.overrides._ebb_tensor import to_dtype
from gi.overrides._ebb_wrap import _check_module, _mode, picker

Ebb = get_introspection_module("Ebb")

__all__ = ["fully_shard", "fully_shard_auto_wrap", "fully_shard_wrap_each", "get_full_optimizer_state",
           "get_full_state_dict", "load_full_state_dict", "no_sync", "replicate", "shard_report", "summon_full_params"]

_sync_mode = _mode(Ebb.push_gradient_sync, Ebb.pop_gradient_sync)
_replicate = guard(Ebb.replicate)


def no_sync():
    """Backward passes inside add up this rank's gradients; the next one outside, or a step, reduces their sum."""
    return _sync_mode(False)


def _check(function, module, group):
    _check_module(function, "module", module)
    if group is not None and not isinstance(group, Ebb.ProcessGroup):
        raise TypeError(f"{function}(): group is {group!r}: it must be an ebb.ProcessGroup, or None for the default "
                        "one")


_replicate_options = Options(Ebb.ReplicateOptions)


@_replicate_options.show
def replicate(module, group=None, **options):
    """Has the ranks of a group train a module together, each on its own data; returns the same module.

    group: None for ebb.ProcessGroup.get_default(). bucket_bytes: how many bytes of gradients are reduced at once.
    unused_parameters: "error", or "zero" where some ranks may leave some out. broadcast: all ranks begin with the
    weights of rank 0. options: an ebb.ReplicateOptions in place of all others.
    """
    _check("replicate", module, group)
    _replicate(module, group, _replicate_options.make("replicate", options))
    return module


# -- sharded -----------------------------------------------------------------------------------------------------------

_fully_shard, _wrap_each = guard(Ebb.fully_shard), guard(Ebb.fully_shard_wrap_each)
_wrap_if, _auto_wrap = guard(Ebb.fully_shard_wrap_if), guard(Ebb.fully_shard_auto_wrap_types)
_set_compute_dtype = guard(Ebb.FullyShardOptions.set_compute_dtype)
_set_reduce_dtype = guard(Ebb.FullyShardOptions.set_reduce_dtype)


def _to_reshard(value):
    if isinstance(value, bool):
        return Ebb.Reshard.ALWAYS if value else Ebb.Reshard.NEVER
    return value


_shard_options = Options(
    Ebb.FullyShardOptions,
    {"compute_dtype": lambda options, value: _set_compute_dtype(options, to_dtype(value)),
     "reduce_dtype": lambda options, value: _set_reduce_dtype(options, to_dtype(value))},
    {"reshard_after_forward": _to_reshard})


@_shard_options.show
def fully_shard(module, group=None, **options):
    """Each rank of the group keeps its part of the module's parameters; returns the same module.

    What is wrapped below it already keeps to itself. reshard_after_forward: "auto" (all but the root), True or False.
    flatten: all elements of the module are shared out in a row, not rows of each parameter. compute_dtype,
    reduce_dtype: what parameters are gathered and gradients sent in. predivide_factor: gradients are divided by it
    before they are summed. offload: the parts are in host memory. replicate_group: ranks that hold the same part.
    prefetch: the next parameters are gathered ahead. synchronize_weights: all begin with the weights of rank 0.
    options: an ebb.FullyShardOptions in place of all others.
    """
    _check("fully_shard", module, group)
    return _fully_shard(module, group, _shard_options.make("fully_shard", options))


@_shard_options.show
def fully_shard_wrap_each(root, type_or_callable, group=None, **options):
    """Shards every module below root of a type, of one in a tuple, or for which a function is true, then root.

    Returns root. options: as of fully_shard().
    """
    _check("fully_shard_wrap_each", root, group)
    made = _shard_options.make("fully_shard_wrap_each", options)
    pick = picker("fully_shard_wrap_each", type_or_callable)
    if pick is None:
        _wrap_each(root, type_or_callable.__gtype__, group, made)
        return root
    picked = {name for name, module in root.named_modules() if pick(module)}
    _wrap_if(root, lambda module, name, *_: name in picked, None, group, made)
    return root


@_shard_options.show
def fully_shard_auto_wrap(root, min_parameters, group=None, force_leaf_modules=None, exclude_wrap_modules=None,
                          **options):
    """Shards what has at least so many parameters by itself, without those in units below it; returns root.

    force_leaf_modules: types below which nothing becomes a unit, nor they themselves; None: ebb.MultiHeadAttention.
    exclude_wrap_modules: types that become none themselves; None: ebb.ModuleList and ebb.Embedding. If root is
    too small to be a unit, call ebb.fully_shard(root): without it the gradients outside of units are not averaged.
    options: as of fully_shard().
    """
    _check("fully_shard_auto_wrap", root, group)
    leaves = (Ebb.MultiHeadAttention,) if force_leaf_modules is None else force_leaf_modules
    excluded = (Ebb.ModuleList, Ebb.Embedding) if exclude_wrap_modules is None else exclude_wrap_modules
    _auto_wrap(root, min_parameters, [kind.__gtype__ for kind in leaves], [kind.__gtype__ for kind in excluded], group,
               _shard_options.make("fully_shard_auto_wrap", options))
    return root


_get_full_state_dict, _get_full_optimizer_state = map(guard, (Ebb.get_full_state_dict, Ebb.get_full_optimizer_state))


def get_full_state_dict(module, rank0_only=False):
    return unpack_result(_get_full_state_dict(module, rank0_only))


def get_full_optimizer_state(optimizer, rank0_only=False):
    return unpack_result(_get_full_optimizer_state(optimizer, rank0_only))


_load_full_state_dict = guard(Ebb.load_full_state_dict)


def load_full_state_dict(module, state, broadcast=False, strict=True):
    """Copies full tensors into a sharded module: each rank takes its shards. Returns the names that did not fit, as
    load_state_dict() does, or None on a rank without a state.

    broadcast: rank 0 has the state for all ranks.
    """
    _check_module("load_full_state_dict", "module", module)
    args = None if state is None else pack_result(dict(state))
    _load_full_state_dict(module, args, broadcast, strict)
    return None if args is None else find_differences(module, args, "load_full_state_dict")


_summon, _release = guard(Ebb.summon_full_params), guard(Ebb.release_full_params)


@contextlib.contextmanager
def summon_full_params(module, writeback=True):
    """The parameters of a sharded module are whole inside, on all ranks; writeback: what is changed in them stays."""
    _summon(module)
    try:
        yield module
    finally:
        _release(module, writeback)


def shard_report(module, as_dict=False):
    """What the units of a sharded module hold and have done: a table, or a list of their numbers."""
    _check_module("shard_report", "module", module)
    return json.loads(Ebb.shard_report_json(module)) if as_dict else _shard_report(module)


_shard_report = Ebb.shard_report
