"""Checkpoints, hooks on saved tensors, and the modes of a thread as context managers."""
import contextlib
import inspect
import json
import threading

from gi.module import get_introspection_module
from gi.overrides import override
from gi.overrides._ebb_args import PythonObject, pack_call, pack_result, unpack_call, unpack_result
from gi.overrides._ebb_check import show
from gi.overrides._ebb_construct import c_class
from gi.overrides._ebb_errors import call_back, guard, guard_virtual_functions
from gi.overrides._ebb_options import make_options, takes_options
from gi.overrides._ebb_tensor import DType, Tensor, to_device, to_dtype

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


_DEVICES = ("cpu", "cuda", "cudaemu", "meta", "sim")  # also those that this machine doesn't have


def _is_device(value):
    return (value is None or isinstance(value, Ebb.Device)
            or (isinstance(value, str) and value.partition(":")[0] in _DEVICES))


def autocast(device_type=None, dtype=None, enabled=True):
    """Products are computed in a lower precision inside; parameters stay as they are.

    device_type: a device, as PyTorch's programs name one: every device is meant. The dtype may stand in its place, as
    autocast("bf16").
    """
    if not _is_device(device_type):
        first = to_dtype(device_type)  # raises where it is no dtype either
        dtype = first if dtype is None else dtype
    dtype = DType.BF16 if dtype is None else to_dtype(dtype)
    if enabled and dtype != DType.BF16:
        raise ValueError(f"autocast: {dtype.value_nick} is no lower precision to compute in: there is bf16")
    return _autocast_mode(enabled, dtype)


_set_default_device = Ebb.set_default_device


def set_default_device(device):
    """Where this thread makes tensors and layers from now on: an ebb.Device, a name like "sim", or None for the CPU."""
    _set_default_device(to_device(device))


@contextlib.contextmanager
def default_device(device):
    """Tensors and layers are made on a device inside; also a decorator."""
    before = Ebb.get_default_device()
    set_default_device(device)
    try:
        yield
    finally:
        _set_default_device(before)


def disable_checkpointing():
    """Wrapped modules behave as if they were not wrapped inside, on this thread."""
    return _disabled_mode()


_disabled_mode = _mode(Ebb.push_checkpointing_disabled, Ebb.pop_checkpointing_disabled)


def skip_initialization():
    """Layers made inside do not draw their weights, for programs that load them right after."""
    return _skip_mode()


def parameter_dtype(dtype):
    """Layers made inside have their parameters in f32 or bf16."""
    dtype = to_dtype(dtype)
    if dtype not in (DType.F32, DType.BF16):
        raise ValueError(f"parameter_dtype(): dtype is {dtype.value_nick}: parameters are made in f32 or bf16")
    return _dtype_mode(dtype)


_dtype_mode = _mode(Ebb.push_parameter_dtype, Ebb.pop_parameter_dtype)
_skip_mode = _mode(Ebb.push_initialization_skipped, Ebb.pop_initialization_skipped)


# -- checkpoints ------------------------------------------------------------------------------------------------------

_wrapper = guard(Ebb.checkpoint_wrapper)
_unwrap = Ebb.checkpoint_unwrap
_wrap_each = guard(Ebb.checkpoint_wrap_each)
_wrap_if = guard(Ebb.checkpoint_wrap_if)
_wrap_uniform = guard(Ebb.checkpoint_wrap_uniform)
_wrap_block = guard(Ebb.checkpoint_wrap_block)
_checkpoint = guard(Ebb.checkpoint)
_checkpoint_sequential = guard(Ebb.checkpoint_sequential_full)
_report = Ebb.checkpoint_report
_tile = guard(Ebb.tile_wrapper)
_tile_each = guard(Ebb.tile_wrap_each)


def _check_module(function, name, module):
    if isinstance(module, (list, tuple)):
        raise TypeError(f"{function}(): {name} is a {type(module).__name__}: write ebb.Sequential(*modules)")
    if not isinstance(module, Ebb.Module):
        raise TypeError(f"{function}(): {name} is {show(module)}: it must be an ebb.Module")


def _check_count(function, name, n, stack):
    """What C can't be told; it says itself what it thinks of numbers that it can."""
    is_int = isinstance(n, int) and not isinstance(n, bool)
    if not is_int or not 0 <= n < 2**32:
        n_children = len(stack.get_children())
        limits = f"from 1 to {n_children}" if n_children else "of at least 1"
        raise (ValueError if is_int else TypeError)(f"{function}(): {name} is {n!r}: it must be an int {limits}")


@takes_options
def checkpoint_wrapper(module, offload_to_cpu=False, maintain_forward_counter=False, **options):
    """Makes a module keep only its inputs in forward and recompute the rest in backward, bit for bit.

    offload_to_cpu: inputs on another device are held in host memory.
    maintain_forward_counter: FairScale's switch for module.forward_counter, which is counted here in either case.
    preserve_rng_state: random numbers are drawn again as they were.
    determinism_check: "default", "none" or "values": how a recompute is compared with its forward.
    early_stop: a recompute ends once backward has what it needs.
    policy: what is kept inside: "selective" (products that widen or narrow), "attention" (all but the attention core),
        a list of names from ebb.op_list_names(), ebb.save_nth_product(n), or a function of (op, ordinal, n_bytes) that
        returns an ebb.CheckpointPolicy.
    store: ebb.SavedTensorHooks that keep the inputs.
    retain_recomputed: where backward goes through a graph several times, the first recompute's result is kept.
    on_recompute: called as on_recompute(module, "begin") before each recompute and with "end" after it.
    synchronize: devices are waited for where each forward and backward begins and ends.
    profile: their times are logged as well.
    options: an ebb.CheckpointOptions in place of all others, as ebb.checkpointing_get_options().

    Returns: the same module, whose type, parameters and state dict stay what they were. A module that is
        wrapped already gets a second wrapper: forward runs as often as with one. ebb.checkpoint_unwrap() takes one
        off, ebb.checkpoint_unwrap_each() all, and ebb.checkpoint_is_wrapped() says whether there is one.

    Raises: TypeError for an option that is unknown or of the wrong type, ValueError for one that can't be, ebb.Error
        for names of ops that don't exist. A recompute that differs from its forward is an ebb.Error out of backward().
    """
    _check_module("checkpoint_wrapper", "module", module)
    for name, value in (("offload_to_cpu", offload_to_cpu), ("maintain_forward_counter", maintain_forward_counter)):
        if not isinstance(value, bool):
            raise TypeError(f"checkpoint_wrapper(): {name} is {value!r}: must be True or False")
    if offload_to_cpu:
        options["offload_to_cpu"] = True
    _wrapper(module, make_options("checkpoint_wrapper", options))
    return module


def checkpoint_unwrap_each(root):
    """Takes all wrappers off root and every module below; returns how many there were."""
    _check_module("checkpoint_unwrap_each", "root", root)
    n = 0
    for module in root.get_modules():
        while _unwrap(module):
            n += 1
    return n


def checkpoint_report(root, as_dict=False):
    """What every checkpoint wrapper on root and below has done: a table, or a dict of its numbers."""
    _check_module("checkpoint_report", "root", root)
    return json.loads(Ebb.checkpoint_report_json(root)) if as_dict else _report(root)


def _is_module_type(value):
    return isinstance(value, type) and issubclass(value, (Ebb.Module, Ebb.Block))


def picker(function, which):
    """What says of a module whether it is meant; None where which is one type, which C can look for."""
    if _is_module_type(which):
        return None
    if isinstance(which, tuple) and which and all(map(_is_module_type, which)):
        return lambda module: isinstance(module, which)
    if callable(which) and not isinstance(which, (type, Ebb.Module)):
        return which
    raise TypeError(f"{function}(): {which!r}: must be a type of modules, a tuple of such types, or a function of the "
                    "module")


@takes_options
def checkpoint_wrap_each(root, type_or_callable, **options):
    """Wraps every module below root that is of a type, of one in a tuple, or for which a function of it is true.

    Returns root. options: as of checkpoint_wrapper().
    """
    _check_module("checkpoint_wrap_each", "root", root)
    made = make_options("checkpoint_wrap_each", options)
    pick = picker("checkpoint_wrap_each", type_or_callable)
    if pick is None:
        _wrap_each(root, type_or_callable.__gtype__, made)
        return root
    picked = {name for name, module in root.named_modules() if pick(module)}
    _wrap_if(root, lambda module, name, *_: name in picked, None, made)
    return root


# -- tiles ------------------------------------------------------------------------------------------------------------

def _check_rows(function, rows):
    if not isinstance(rows, int) or isinstance(rows, bool):
        raise TypeError(f"{function}(): rows is {rows!r}: it must be an int, 0 for ebb.tile_get_least_rows()")
    if not 0 <= rows < 2**63:
        raise ValueError(f"{function}(): rows is {rows}: it must be 1 or more, or 0 for ebb.tile_get_least_rows()")


def tile_wrapper(module, rows=0):
    """Calls a module that works row by row, as an ebb.Mlp, on tiles of its rows; returns the same module.

    Its inner activations exist for one tile at a time, forward and backward. rows: of a tile; 0 for
    ebb.tile_get_least_rows(), with which nothing changes by a bit on the CPU.
    """
    _check_module("tile_wrapper", "module", module)
    _check_rows("tile_wrapper", rows)
    _tile(module, rows)
    return module


def tile_wrap_each(root, type_or_callable, rows=0):
    """Wraps every module below root that is of a type, of one in a tuple, or for which a function of it is true.

    Returns root. rows: as of tile_wrapper().
    """
    _check_module("tile_wrap_each", "root", root)
    _check_rows("tile_wrap_each", rows)
    pick = picker("tile_wrap_each", type_or_callable)
    if pick is None:
        _tile_each(root, type_or_callable.__gtype__, rows)
        return root
    for module in [module for module in root.get_modules() if pick(module)]:
        _tile(module, rows)
    return root


def call_checkpointed(function, options, func, args, kwargs):
    if not callable(func):
        raise TypeError(f"{function}(): {func!r}: must be a function")

    def run(packed):
        positional, keywords = unpack_call(packed)
        return pack_result(func(*positional, **keywords))

    return unpack_result(_checkpoint(lambda packed, *_: call_back(run, packed), None, pack_call(args, kwargs), options))


def checkpoint(func, /, *args, use_reentrant=None, **kwargs):
    """Calls func(*args, **kwargs) so that what it computes is recomputed in backward; see checkpoint_with().
    use_reentrant: taken, and all checkpoints do what PyTorch's do with use_reentrant=False."""
    return call_checkpointed("checkpoint", None, func, args, kwargs)


@takes_options
def checkpoint_with(**options):
    """A checkpoint() with options, those of checkpoint_wrapper(): checkpoint_with(early_stop=False)(func, x)."""
    made = make_options("checkpoint_with", options)

    def checkpoint(func, /, *args, **kwargs):
        return call_checkpointed("checkpoint", made, func, args, kwargs)

    return checkpoint


@takes_options
def checkpoint_sequential(sequential, n_segments, *args, **options):
    """Calls a Sequential in so many checkpointed segments; the last one is not checkpointed.

    args: the first module's arguments. options: as of checkpoint_wrapper().
    """
    _check_module("checkpoint_sequential", "sequential", sequential)
    _check_count("checkpoint_sequential", "n_segments", n_segments, sequential)
    made = make_options("checkpoint_sequential", options)
    return unpack_result(_checkpoint_sequential(sequential, n_segments, pack_call(args, {}), made))


@takes_options
def checkpoint_wrap_uniform(stack, n_layers_per_chunk, **options):
    """Makes each chunk of so many layers of a Sequential or ModuleList (a Gpt's h) one checkpoint; returns the stack.

    A ModuleList must be called by its call_in_turn(). ebb.checkpoint_unwrap(stack) takes it off.
    """
    _check_module("checkpoint_wrap_uniform", "stack", stack)
    _check_count("checkpoint_wrap_uniform", "n_layers_per_chunk", n_layers_per_chunk, stack)
    _wrap_uniform(stack, n_layers_per_chunk, make_options("checkpoint_wrap_uniform", options))
    return stack


@takes_options
def checkpoint_wrap_block(stack, n_layers, **options):
    """Wraps each of the first layers of a Sequential or ModuleList (a Gpt's h); returns the stack."""
    _check_module("checkpoint_wrap_block", "stack", stack)
    _check_count("checkpoint_wrap_block", "n_layers", n_layers, stack)
    _wrap_block(stack, n_layers, make_options("checkpoint_wrap_block", options))
    return stack


# -- hooks on what backward needs -------------------------------------------------------------------------------------

class _Thread(threading.local):
    failure = None  # what a do_moves has raised, on this thread


_thread = _Thread()


def _own(cls, name):
    """The function of that name that is written in Python, of a class or above it; None if only C has one."""
    return next((vars(base)[name] for base in cls.__mro__ if inspect.isfunction(vars(base).get(name))), None)


def _let_moves_fail(cls):
    """Has the pack that asks do_moves raise its exception, since C's moves has no way to report an error."""
    if "do_moves" in cls.__dict__:
        cls.do_moves = _keeping_failure(cls.__dict__["do_moves"])
    if _own(cls, "do_moves") and ("do_moves" in cls.__dict__ or "do_pack" in cls.__dict__):
        cls.do_pack = _raising_kept_failure(_own(cls, "do_pack") or guard(c_class(cls).do_pack))


def _keeping_failure(moves):
    def do_moves(self, device):
        try:
            return bool(moves(self, device))
        except BaseException as error:
            _thread.failure = error
            return False

    return do_moves


def _raising_kept_failure(pack):
    def do_pack(self, tensor):
        _thread.failure = None
        handle = pack(self, tensor)
        failure, _thread.failure = _thread.failure, None
        if failure is None:
            return handle
        try:
            raise failure
        finally:
            del failure

    return do_pack


def _let_prefetch_fail(cls):
    """Has the get that comes next raise what a do_prefetch has raised, since C's has no way to report an error."""
    if "do_prefetch" not in cls.__dict__:
        return
    prefetch, get = cls.__dict__["do_prefetch"], _own(cls, "do_get") or guard(c_class(cls).do_get)

    def do_prefetch(self, handle):
        try:
            prefetch(self, handle)
        except BaseException as error:
            self.__dict__.setdefault("_prefetch_failure", error)

    def do_get(self, handle):
        failure = self.__dict__.pop("_prefetch_failure", None)
        if failure is None:
            return get(self, handle)
        try:
            raise failure
        finally:
            del failure

    cls.do_prefetch, cls.do_get = do_prefetch, do_get


def _returning(kind, name, function):
    """A virtual function that must return an object of a class: PyGObject would print what is wrong, and go on."""

    def call(self, *arguments):
        result = function(self, *arguments)
        if not isinstance(result, getattr(Ebb, kind)):
            raise TypeError(f"{name} of {type(self).__name__} returned {result!r}: it must return an ebb.{kind}")
        return result

    return call


_results = {"do_pack": "Handle", "do_put": "Handle", "do_reserve": "Handle", "do_put_at": "Handle",
            "do_unpack": "Tensor", "do_get": "Tensor"}


@override
class SavedTensorHooks(Ebb.SavedTensorHooks):
    """What happens to the tensors that backward needs. A class of your own derives from it, with do_pack(tensor), which
    returns what is kept, and do_unpack(handle), which returns the tensor; `with hooks:` switches them on."""

    __module__ = "gi.overrides.Ebb"

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        _let_moves_fail(cls)
        _let_prefetch_fail(cls)
        for name, kind in _results.items():
            if name in cls.__dict__:
                setattr(cls, name, _returning(kind, name, cls.__dict__[name]))
        guard_virtual_functions(cls, *_results, "do_synchronize")

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


def saved_tensor_hooks(pack, unpack=None):
    """Calls pack(tensor) for every tensor that backward needs; unpack gets what it returned, and returns the tensor.

    One argument alone is a store, as ebb.DiskStore("/tmp"): `with ebb.saved_tensor_hooks(store): loss = model(x)`.
    """
    if unpack is None and isinstance(pack, Ebb.SavedTensorHooks):
        return pack
    for name, function in (("pack", pack), ("unpack", unpack)):
        if not callable(function):
            raise TypeError(f"saved_tensor_hooks(): {name} is {function!r}: it must be a function"
                            + (", or a store alone" if unpack is None else ""))
    return _FunctionHooks(pack, unpack)
