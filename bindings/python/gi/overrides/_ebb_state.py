"""Copies of tensors and modules, `copy.deepcopy()`, and tensors in a pickle."""
import copy
import warnings

from gi.module import get_introspection_module
from gi.overrides._ebb_check import show
from gi.overrides._ebb_construct import construct
from gi.overrides._ebb_errors import guard
from gi.overrides._ebb_module import Module
from gi.overrides._ebb_tensor import Device, Tensor, to_device, to_dtype
from gi.repository import GLib, GObject

Ebb = get_introspection_module("Ebb")

_bytes, _copy = guard(Ebb.Tensor.get_bytes), guard(Ebb.copy)
_new_from_bytes = guard(Ebb.Tensor.new_from_bytes)
_register_parameter, _register_buffer, _register_child = (
    guard(Ebb.Module.register_parameter), guard(Ebb.Module.register_buffer), guard(Ebb.Module.register_child))


# -- tensors ----------------------------------------------------------------------------------------------------------

def _refuse_result(tensor, what):
    if not tensor.is_leaf:
        raise RuntimeError(f"{what}: the tensor was made by an op, whose graph is no part of a copy: write detach()")


def _copy_tensor(tensor, memo):
    key = "a tensor", hash(tensor)  # the same tensor has many objects in Python
    if key not in memo:
        _refuse_result(tensor, "deepcopy")
        result = memo[key] = tensor.detach().clone()
        if tensor.get_requires_grad():
            result.set_requires_grad(True)
        if tensor.get_grad() is not None:
            result.set_grad(tensor.get_grad().detach().clone())
    return memo[key]


def rebuild_tensor(dtype, shape, data, device, requires_grad):
    """The tensor of a pickle."""
    dtype, n_bytes = to_dtype(dtype), GLib.Bytes.new(data)
    tensor = _copy(_new_from_bytes(n_bytes, 0, list(shape), dtype)).to(to_device(device))
    return tensor.requires_grad_() if requires_grad else tensor


rebuild_tensor.__module__, rebuild_tensor.__qualname__ = "ebb", "_rebuild_tensor"  # where a pickle looks for it


def _reduce_tensor(tensor, _protocol):
    _refuse_result(tensor, "pickle")
    host = tensor.detach().cpu().contiguous()
    return rebuild_tensor, (tensor.get_dtype().value_nick, tensor.shape, bytes(_bytes(host).get_data()),
                            tensor.get_device().get_name(), tensor.get_requires_grad())


Tensor.__deepcopy__, Tensor.__reduce_ex__ = _copy_tensor, _reduce_tensor
Tensor.__copy__ = lambda self: self.detach().requires_grad_() if self.get_requires_grad() else self.detach()


# -- modules ----------------------------------------------------------------------------------------------------------

_REFUSED = ((Ebb.fully_shard_is_wrapped, "is sharded", "copy it before fully_shard()"),
            (Ebb.parallel_is_parallelized, "is divided over tensor ranks", "copy it before parallelize()"),
            (Ebb.lora_is_wrapped, "has an adapter", "copy it before lora(), or after lora_unwrap()"))
_WRAPPED = (Ebb.checkpoint_is_wrapped, Ebb.tile_is_wrapped, Ebb.offload_is_wrapped, Ebb.replicate_is_wrapped)


def _check(root):
    for name, module in root.named_modules():
        label = f"deepcopy: {name or 'the module'}, a {type(module).__name__},"
        for is_so, what, advice in _REFUSED:
            if is_so(module):
                raise TypeError(f"{label} {what}: {advice}")
        if isinstance(module, Ebb.Linear) and module.get_parameter("weight") is None:
            raise TypeError(f"{label} is quantised: open the folder once more, or dequantise it")
    if any(is_wrapped(module) for module in root.modules() for is_wrapped in _WRAPPED):
        warnings.warn("deepcopy: the copy computes the same, but it is not wrapped: checkpoints, stores and replicas "
                      "belong to the module that was wrapped", stacklevel=4)


def read_properties(module):
    return {spec.name.replace("-", "_"): module.get_property(spec.name) for spec in type(module).list_properties()
            if spec.owner_type.name not in ("EbbModule", "GObject")
            and spec.flags & GObject.ParamFlags.WRITABLE and spec.flags & GObject.ParamFlags.READABLE}


def _make_like(module):
    """A module of the same class and properties, whose __init__ in Python is not called."""
    result = type(module).__new__(type(module))
    parameters = module.get_parameters(True)
    device = parameters[0].get_device() if parameters else Ebb.get_default_device()
    before = Ebb.get_default_device()
    Ebb.set_default_device(device)
    Ebb.push_initialization_skipped()
    try:
        construct(result, lambda **properties: GObject.Object.__init__(result, **properties), (),
                  read_properties(module))
    finally:
        Ebb.pop_initialization_skipped()
        Ebb.set_default_device(before)
    return result


def _copy_attribute(module, path, name, value, memo):
    label = f"deepcopy: {path.rstrip('.') or 'the module'}, a {type(module).__name__},"
    try:
        return copy.deepcopy(value, memo)
    except RuntimeError as error:
        if isinstance(error, GLib.Error):
            raise
        raise RuntimeError(f"{label} can't be copied with {name!r}: {str(error).removeprefix('deepcopy: ')}") from error
    except TypeError as error:
        if str(error).startswith("deepcopy: "):
            raise
        raise TypeError(f"{label} has {show(value)} as {name!r}, of which there are no copies: delete the attribute, "
                        "and assign it to the copy") from error


def _fill(source, target, memo, persistent, path):
    """Gives target copies of what source has: parameters, buffers, children, and attributes of Python."""
    memo[id(source)] = target
    memo.setdefault(id(memo), []).append(source)  # another object must not get its id
    for name, parameter in source.named_parameters(False):
        twin = _copy_tensor(parameter, memo)
        twin.set_grad(None)
        _register_parameter(target, name, twin)
        twin.set_requires_grad(parameter.get_requires_grad())
    for name, buffer in source.named_buffers(False):
        _register_buffer(target, name, _copy_tensor(buffer, memo), path + name in persistent)
    made = dict(target.named_children())
    for name, child in source.named_children():
        if id(child) in memo:
            _register_child(target, name, memo[id(child)])
            continue
        twin = made.pop(name, None)
        is_new = type(twin) is not type(child)
        if is_new:
            twin = _make_like(child)
        _fill(child, twin, memo, persistent, f"{path}{name}.")
        if is_new and isinstance(target, (Ebb.Sequential, Ebb.ModuleList)) and name == str(len(target)):
            target.append(twin)
        elif is_new:
            _register_child(target, name, twin)
    for name in made.keys() - dict(source.named_children()).keys():
        _register_child(target, name, None)
    for name, value in source.__dict__.items():
        if name not in ("_hooks", "_pre_hooks"):  # hooks belong to the module that they were added to
            target.__dict__[name] = _copy_attribute(source, path, name, value, memo)
    target.set_training(source.get_training())


def _copy_module(module, memo):
    _check(module)
    result = _make_like(module)
    _fill(module, result, memo, set(module.state_dict()), "")
    return result


def _refuse_pickle(module, _protocol):
    raise TypeError(f"a {type(module).__name__} can't be pickled: pickle module.state_dict(), or write "
                    "ebb.save_safetensors(module.state_dict(), path); ebb.save_model() is for a Gpt or a Bert")


def _refuse_copy(module):
    raise TypeError(f"copy: a {type(module).__name__} shares no parameters with another module: write "
                    "copy.deepcopy(module)")


Module.__deepcopy__, Module.__copy__, Module.__reduce_ex__ = _copy_module, _refuse_copy, _refuse_pickle


# -- other objects, which modules may have as attributes ---------------------------------------------------------------

def _refuse_optimizer(optimizer, *_):
    name = type(optimizer).__name__
    raise TypeError(f"deepcopy: the optimizer, {name}, moves the parameters that it was made with: write "
                    f"{name}(copied_module, ...) and load_state_dict(optimizer.state_dict())")


for _class in (Ebb.GptConfig, Ebb.BertConfig, Ebb.GenerationOptions):
    _class.__copy__, _class.__deepcopy__ = _class.copy, lambda self, _memo: self.copy()
Device.__copy__, Device.__deepcopy__ = lambda self: self, lambda self, _memo: self
Ebb.Optimizer.__copy__ = Ebb.Optimizer.__deepcopy__ = _refuse_optimizer
