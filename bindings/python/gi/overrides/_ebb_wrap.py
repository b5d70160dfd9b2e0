"""Checkpoints, hooks on saved tensors, and the modes of a thread as context managers."""
import contextlib
import json

from gi.module import get_introspection_module
from gi.overrides import override
from gi.overrides._ebb_args import PythonObject, pack_call, pack_result, unpack_call, unpack_result
from gi.overrides._ebb_errors import call_back, guard, guard_virtual_functions
from gi.overrides._ebb_functions import choice
from gi.overrides._ebb_tensor import DType, Tensor, to_dtype

Ebb = get_introspection_module("Ebb")


def _mode(push, pop):
    @contextlib.contextmanager
    def mode(*args):
        push(*args)
        try:
            yield
        finally:
            pop()

    return mode


_grad_mode = _mode(Ebb.push_grad_enabled, Ebb.pop_grad_enabled)
_autocast_mode = _mode(Ebb.push_autocast, Ebb.pop_autocast)


def no_grad():
    """Nothing is recorded for the backward pass inside; also a decorator."""
    return _grad_mode(False)


def enable_grad():
    """Undoes no_grad() inside; also a decorator."""
    return _grad_mode(True)


def autocast(dtype=DType.BF16, enabled=True):
    """Products are computed in a lower precision inside; parameters stay as they are."""
    return _autocast_mode(enabled, to_dtype(dtype))


def disable_checkpointing():
    """Wrapped modules behave as if they were not wrapped inside, on this thread."""
    return _disabled_mode()


_disabled_mode = _mode(Ebb.push_checkpointing_disabled, Ebb.pop_checkpointing_disabled)


# -- checkpoints ------------------------------------------------------------------------------------------------------

def _options(offload_to_cpu=False, preserve_rng_state=True, determinism_check="default", early_stop=True, policy=None,
             store=None, retain_recomputed=False, on_recompute=None):
    options = Ebb.CheckpointOptions.new()
    if policy is not None:
        _set_policy(options, policy)
    options.set_preserve_rng_state(preserve_rng_state)
    options.set_determinism_check(choice(Ebb.DeterminismCheck, determinism_check or "none"))
    options.set_early_stop(early_stop)
    options.set_offload_to_cpu(offload_to_cpu)
    options.set_retain_recomputed(retain_recomputed)
    if store is not None:
        options.set_store(store)
    if on_recompute is not None:
        _set_recompute_func(options, on_recompute)
    return options


def _set_recompute_func(options, on_recompute):
    if not callable(on_recompute):
        raise TypeError(f"on_recompute: a function of (module, phase), not {on_recompute!r}")
    phases = {Ebb.RecomputePhase.BEGIN: "begin", Ebb.RecomputePhase.END: "end"}

    def announce(module, phase):
        on_recompute(module, phases[phase])
        return True

    options.set_recompute_func(lambda module, phase, *_: call_back(announce, module, phase))


_named_policies = {
    "selective": Ebb.CheckpointOptions.set_policy_selective,
    "attention": Ebb.CheckpointOptions.set_policy_core_attention,
    "core_attn": Ebb.CheckpointOptions.set_policy_core_attention,  # as Megatron-LM has it
}
_policy_choices = ("\"selective\", \"attention\", a list of op names, save_nth_product(n), or a function of "
                   "(op, ordinal, n_bytes) that returns a CheckpointPolicy")


class _NthProduct:
    def __init__(self, n):
        self.n = n

    def __repr__(self):
        return f"save_nth_product({self.n})"


def save_nth_product(n):
    """A checkpoint policy: keeps the result of every n-th matrix product and recomputes all else."""
    if not isinstance(n, int) or isinstance(n, bool):
        raise TypeError(f"save_nth_product: n must be a number of products, not {n!r}")
    if not 1 <= n < 2**32:
        raise ValueError(f"save_nth_product: n is {n}: it must be at least 1")
    return _NthProduct(n)


def _set_policy(options, policy):
    if isinstance(policy, str):
        if policy not in _named_policies:
            raise ValueError(f"policy: {policy!r}: must be {_policy_choices}")
        _named_policies[policy](options)
    elif isinstance(policy, _NthProduct):
        _set_policy_save_nth_product(options, policy.n)
    elif isinstance(policy, (list, tuple, set, frozenset)):
        for name in policy:
            if not isinstance(name, str):
                raise TypeError(f"policy: {name!r} among the op names: must be a string")
        _set_policy_save_ops(options, sorted(policy))
    elif callable(policy):
        _set_policy_function(options, policy)
    else:
        raise TypeError(f"policy: {policy!r}: must be {_policy_choices}")


def _set_policy_function(options, policy):
    def decide(op, ordinal, n_bytes):
        verdict = policy(op, ordinal, n_bytes)
        if not isinstance(verdict, Ebb.CheckpointPolicy):
            raise TypeError(f"policy: {verdict!r} for {op!r}: must be an Ebb.CheckpointPolicy")
        return verdict

    options.set_policy(lambda *args: call_back(decide, *args[:3]))


_set_policy_save_ops = guard(Ebb.CheckpointOptions.set_policy_save_ops)
_set_policy_save_nth_product = guard(Ebb.CheckpointOptions.set_policy_save_nth_product)
_wrapper = guard(Ebb.checkpoint_wrapper)
_wrap_each = guard(Ebb.checkpoint_wrap_each)
_wrap_if = guard(Ebb.checkpoint_wrap_if)
_checkpoint = guard(Ebb.checkpoint)


def checkpoint_wrapper(module, offload_to_cpu=False, preserve_rng_state=True, determinism_check="default",
                       early_stop=True, policy=None, store=None, retain_recomputed=False, on_recompute=None):
    """Makes a module keep only its inputs in forward and recompute the rest in backward; returns the same module.

    offload_to_cpu: inputs on another device are held in host memory. determinism_check: "default", "none" or "values".
    policy: what is kept inside; "selective" (products that widen), "attention" (all but the attention core), a list
    of names from Ebb.op_list_names(), Ebb.save_nth_product(n), or a function of (op, ordinal, n_bytes) that returns an
    Ebb.CheckpointPolicy. store: Ebb.SavedTensorHooks that keep the inputs. retain_recomputed: where backward goes
    through a graph several times, the first recompute's result is kept. on_recompute: called as
    on_recompute(module, "begin") before each recompute and with "end" after it.
    """
    _wrapper(module, _options(offload_to_cpu, preserve_rng_state, determinism_check, early_stop, policy, store,
                              retain_recomputed, on_recompute))
    return module


def checkpoint_report(root, as_dict=False):
    """What every checkpoint wrapper on root and below has done: a table, or a dict of its numbers."""
    return json.loads(Ebb.checkpoint_report_json(root)) if as_dict else _report(root)


_report = Ebb.checkpoint_report


def checkpoint_wrap_each(root, type_or_callable, **options):
    """Wraps every module below root that is of a type, or for which a function of the module is true."""
    made = _options(**options)
    if isinstance(type_or_callable, type):
        _wrap_each(root, type_or_callable.__gtype__, made)
    else:
        picked = {name for name, module in root.named_modules() if type_or_callable(module)}
        _wrap_if(root, lambda module, name, *_: name in picked, None, made)


def checkpoint(func, *args, **kwargs):
    """Calls func(*args, **kwargs) so that what it computes is recomputed in backward."""

    def run(packed):
        positional, keywords = unpack_call(packed)
        return pack_result(func(*positional, **keywords))

    return unpack_result(_checkpoint(lambda packed, *_: call_back(run, packed), None, pack_call(args, kwargs), None))


def checkpoint_sequential(sequential, n_segments, *args, **options):
    """Calls a Sequential in so many checkpointed segments; the last one is not checkpointed.

    args: the first module's arguments. options: as of checkpoint_wrapper().
    """
    return unpack_result(_checkpoint_sequential(sequential, n_segments, pack_call(args, {}), _options(**options)))


def checkpoint_wrap_uniform(stack, n_layers_per_chunk, **options):
    """Makes each chunk of so many layers of a Sequential or ModuleList (a Gpt's h) one checkpoint; returns the stack.

    A ModuleList must be called by its call_in_turn(). Ebb.checkpoint_unwrap(stack) takes it off.
    """
    _wrap_uniform(stack, n_layers_per_chunk, _options(**options))
    return stack


def checkpoint_wrap_block(stack, n_layers, **options):
    """Wraps each of the first layers of a Sequential or ModuleList (a Gpt's h); returns the stack."""
    _wrap_block(stack, n_layers, _options(**options))
    return stack


_checkpoint_sequential = guard(Ebb.checkpoint_sequential_full)
_wrap_uniform = guard(Ebb.checkpoint_wrap_uniform)
_wrap_block = guard(Ebb.checkpoint_wrap_block)


# -- hooks on what backward needs -------------------------------------------------------------------------------------

@override
class SavedTensorHooks(Ebb.SavedTensorHooks):
    __module__ = "gi.overrides.Ebb"

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        guard_virtual_functions(cls, "do_pack", "do_unpack")

    def __enter__(self):
        Ebb.push_saved_tensor_hooks(self)
        return self

    def __exit__(self, *_):
        Ebb.pop_saved_tensor_hooks()


class _FunctionHooks(SavedTensorHooks):
    __module__ = "ebb"  # a class of gi.overrides would get no GType of its own
    __gtype_name__ = "EbbPythonHooks"

    def __init__(self, pack, unpack):
        super().__init__()
        self.pack_function, self.unpack_function = pack, unpack

    def do_pack(self, tensor):
        kept = self.pack_function(tensor)
        return Ebb.Handle.new(kept) if isinstance(kept, Tensor) else Ebb.Handle.new_for_object(PythonObject(kept))

    def do_unpack(self, handle):
        kept = handle.get_tensor()
        tensor = self.unpack_function(kept if kept is not None else handle.get_object().value)
        if not isinstance(tensor, Tensor):
            raise TypeError(f"unpack returned a {type(tensor).__name__}: must be the tensor")
        return tensor


def saved_tensor_hooks(pack, unpack):
    """Calls pack(tensor) for every tensor that backward needs; unpack gets what it returned, and returns the tensor."""
    return _FunctionHooks(pack, unpack)
