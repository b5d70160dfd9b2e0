"""Ebb for Python: `import gi; gi.require_version("Ebb", "1.0"); from gi.repository import Ebb`.

The parts are in gi.overrides._ebb_*. Every function and method of C that may fail is guarded here, since any of them
can come to Python code (a forward, a hook), whose exceptions have to come back; see _ebb_errors.
"""
import os
import types

from gi.overrides import _ebb_threads  # before anything that loads the library
from gi._gi import Direction, EnumInfo, FunctionInfo, ObjectInfo, Repository, StructInfo, TypeTag
from gi.module import get_introspection_module
from gi.overrides import _ebb_tensor, _ebb_module  # Module before what derives from it
from gi.overrides import (_ebb_budget, _ebb_checkpointing, _ebb_compose, _ebb_dlpack, _ebb_estimate, _ebb_functions,
                          _ebb_generation, _ebb_layers, _ebb_lora, _ebb_models, _ebb_options, _ebb_parallel,
                          _ebb_plan, _ebb_profile, _ebb_ranks, _ebb_show, _ebb_state, _ebb_stores,
                          _ebb_tensor_ranks, _ebb_timeline, _ebb_tokenizers, _ebb_torch, _ebb_trainer, _ebb_wrap)
from gi.overrides._ebb_args import pack_result, unpack_result
from gi.overrides._ebb_check import show, visible_arguments
from gi.overrides._ebb_construct import add_fields, add_init
from gi.overrides._ebb_docs import describe, describe_constructor, describe_members
from gi.overrides._ebb_errors import Error, check, guard
from gi.overrides._ebb_infos import enum_members, type_of
from gi.overrides._ebb_optimizer import adapt_base, adapt_optimizer

_Ebb = get_introspection_module("Ebb")
__all__ = []


def _export(name, value):
    globals()[name] = value
    __all__.append(name)


def _mentions_args(info, arguments):
    """Whether a function takes or returns an EbbArgs: Python sees the dict, list or value that it stands for."""
    kinds = [info.get_return_type(), *(type_of(argument) for argument in arguments)]
    return any(kind.get_tag() == TypeTag.INTERFACE and kind.get_interface().get_name() == "Args" for kind in kinds)


def _show(value):
    return unpack_result(value) if isinstance(value, _Ebb.Args) else value


def _gives_more_than_success(info, arguments):
    """Whether a function that may fail returns TRUE and, beside it, what Python wants."""
    return (info.can_throw_gerror() and info.get_return_type().get_tag() == TypeTag.BOOLEAN
            and any(argument.get_direction() == Direction.OUT for argument in arguments))


def _without_success(function):
    def call(*args, **kwargs):
        result = function(*args, **kwargs)[1:]
        return result if len(result) > 1 else result[0]

    call.__name__ = call.__qualname__ = function.__name__
    call.__wrapped__ = function
    return call


def _with_values(function):
    def call(*args, **kwargs):
        args = [pack_result(value) if type(value) is dict else value for value in args]
        result = function(*args, **kwargs)
        return tuple(map(_show, result)) if isinstance(result, tuple) else _show(result)

    call.__name__ = call.__qualname__ = function.__name__
    call.__wrapped__ = function
    return call


def _converter(argument):
    """The function that turns a path, or a name of a device or dtype, into C's value; None for other arguments."""
    if argument.get_name() in ("path", "folder"):
        return lambda value: os.fspath(value) if isinstance(value, os.PathLike) else value
    kind = type_of(argument)
    name = kind.get_interface().get_name() if kind.get_tag() == TypeTag.INTERFACE else None
    find = {"Device": _ebb_tensor.to_device, "DType": _ebb_tensor.to_dtype}.get(name)
    return find and (lambda value: find(value) if isinstance(value, str) else value)


def _with_names(info, function):
    """A function whose files and folders may be paths of any kind, and whose devices and dtypes may be names."""
    converters = {}
    for i, argument in enumerate(visible_arguments(info)):
        converter = _converter(argument)
        if converter is not None:
            converters[i + info.is_method()] = converters[argument.get_name()] = converter
    if not converters:
        return function

    def call(*args, **kwargs):
        args = [converters[i](value) if i in converters else value for i, value in enumerate(args)]
        kwargs = {name: converters[name](value) if name in converters else value for name, value in kwargs.items()}
        return function(*args, **kwargs)

    call.__name__ = call.__qualname__ = function.__name__
    call.__wrapped__ = function
    return call


def _adapt(info, function, name):
    """The function for Python, or None if it is good as it is; name is the one of its docstring."""
    arguments = info.get_arguments()
    mentions_args = _mentions_args(info, arguments)
    if info.can_throw_gerror():
        function = guard(function)
    elif arguments:
        function = check(function)
    elif not mentions_args:
        return None
    function = _with_names(info, function)
    if _gives_more_than_success(info, arguments):
        function = _without_success(function)
    return describe(_with_values(function) if mentions_args else function, name, info)


def _adapt_class(info):
    """Adapts the methods and constructors of a class, but those that its Python class has itself."""
    raw = getattr(_Ebb, info.get_name())
    shown = _overridden.get(info.get_name(), raw)
    for method in info.get_methods():
        name = method.get_name()
        adapted = (None if shown is not raw and name in shown.__dict__
                   else _adapt(method, getattr(raw, name), f"{info.get_name()}.{name}"))
        if adapted is not None:
            setattr(shown, name, adapted if method.is_method() else staticmethod(adapted))
    if info.get_name() in ("GptConfig", "BertConfig"):
        add_fields(raw, info)
    if not isinstance(info, ObjectInfo) or shown is not raw:
        return
    if issubclass(raw, _ebb_module.Module):
        describe_constructor(raw)
    else:
        (adapt_optimizer if issubclass(raw, _Ebb.Optimizer) else add_init)(raw)


_overridden = {cls.__name__: cls for cls in (_ebb_tensor.Tensor, _ebb_tensor.Device, _ebb_module.Module,
                                             _ebb_module.Sequential, _ebb_module.ModuleList,
                                             _ebb_wrap.SavedTensorHooks, _ebb_stores.ActivationStore,
                                             _ebb_profile.Profiler, _ebb_timeline.MemoryTimeline,
                                             _ebb_estimate.MemoryEstimate, _ebb_plan.MemoryPlan,
                                             _ebb_ranks.ProcessGroup, _ebb_budget.MemoryBudget,
                                             _ebb_trainer.Trainer,
                                             _ebb_tensor_ranks.GeneratorTracker)}

for _info in Repository.get_default().get_infos("Ebb"):
    if isinstance(_info, FunctionInfo):
        _adapted = _adapt(_info, getattr(_Ebb, _info.get_name()), _info.get_name())
        if _adapted is not None:
            _export(_info.get_name(), _adapted)
    elif isinstance(_info, ObjectInfo) or (isinstance(_info, StructInfo) and not _info.is_gtype_struct()):
        if _info.get_name() != "Args":
            _adapt_class(_info)


adapt_base(_Ebb.Optimizer)
_ebb_layers.adapt_layers()
_ebb_tokenizers.adapt_tokenizer(_Ebb.Tokenizer)

_save_safetensors = globals()["save_safetensors"]


def save_safetensors(tensors, path, metadata=None):
    """Writes a dict of tensors to a file, as safetensors.torch.save_file() does; path and tensors may change places."""
    if isinstance(tensors, (str, os.PathLike)):
        tensors, path = path, tensors
    if not isinstance(tensors, dict):
        raise TypeError(f"save_safetensors(): tensors is {show(tensors)}: it must be a dict of tensors, as "
                        "model.state_dict()")
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"save_safetensors(): path is {show(path)}: it must be the path of a file")
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, _Ebb.Tensor):
            raise TypeError(f"save_safetensors(): tensors[{name!r}] is {show(tensor)}: names must be str and values "
                            "tensors")
    return _save_safetensors(path, tensors, metadata)


_export("save_safetensors", save_safetensors)
for _name, _class in _overridden.items():
    _export(_name, _class)
for _name in _ebb_functions.__all__:
    _export(_name, getattr(_ebb_functions, _name))
for _name, _value in (*_ebb_compose.exports.items(), *_ebb_torch.exports.items()):
    _export(_name, _value)
_export("_rebuild_tensor", _ebb_state.rebuild_tensor)
for _name in _ebb_tokenizers.__all__:
    _export(_name, getattr(_ebb_tokenizers, _name))
for _name in _ebb_models.__all__:
    _export(_name, getattr(_ebb_models, _name))
for _name in _ebb_lora.__all__:
    _export(_name, getattr(_ebb_lora, _name))
for _name in _ebb_generation.__all__:
    _export(_name, getattr(_ebb_generation, _name))
for _name in ("from_numpy", "from_dlpack"):
    _export(_name, getattr(_ebb_dlpack, _name))
for _name in ("Parameter", "Buffer"):
    _export(_name, getattr(_ebb_module, _name))
for _name in ("no_grad", "enable_grad", "autocast", "default_device", "set_default_device",
              "disable_checkpointing", "skip_initialization", "parameter_dtype", "checkpoint_wrapper",
              "checkpoint_wrap_each",
              "checkpoint_wrap_uniform", "checkpoint_wrap_block", "checkpoint_unwrap_each", "checkpoint",
              "checkpoint_with", "checkpoint_sequential", "checkpoint_report", "tile_wrapper", "tile_wrap_each",
              "saved_tensor_hooks"):
    _export(_name, getattr(_ebb_wrap, _name))
for _name in _ebb_checkpointing.__all__:
    _export(_name, getattr(_ebb_checkpointing, _name))
for _name in _ebb_tensor_ranks.__all__:
    _export(_name, getattr(_ebb_tensor_ranks, _name))
for _name in _ebb_ranks.__all__:
    _export(_name, getattr(_ebb_ranks, _name))
for _name in ("make_store", "offload_wrapper", "offload_wrap_each", "save_on_host"):
    _export(_name, getattr(_ebb_stores, _name))
for _name in _ebb_parallel.__all__:
    _export(_name, getattr(_ebb_parallel, _name))
_export("save_nth_product", _ebb_options.save_nth_product)
_export("profile", _ebb_profile.profile)
_export("memory_timeline", _ebb_timeline.memory_timeline)
_export("estimate_memory", _ebb_estimate.estimate_memory)
_export("dry_run", _ebb_estimate.dry_run)
_export("plan_memory", _ebb_plan.plan_memory)
_export("finetune", _ebb_trainer.finetune)
for _value in enum_members(_Ebb.Error):  # Ebb.Error is the exception; its codes stay where they were
    setattr(Error, _value.value_nick.upper().replace("-", "_"), _value)
_export("Error", Error)
for _name, _value in (("ReLU", _Ebb.Relu), ("GELU", _Ebb.Gelu), ("SiLU", _Ebb.Silu), ("SGD", _Ebb.Sgd),
                      ("RMSNorm", _Ebb.RmsNorm), ("clip_grad_norm_", clip_grad_norm)):
    _export(_name, _value)  # as PyTorch has them
    _value.__name__ = _value.__qualname__ = _name
_export("checkpointing", types.SimpleNamespace(**{
    _name.removeprefix("checkpointing_"): globals().get(_name) or getattr(_Ebb, _name)
    for _name in ("checkpointing_configure", "checkpointing_checkpoint", "checkpointing_is_configured",
                  "checkpointing_reset", "checkpointing_get_config", "checkpointing_get_options",
                  "checkpointing_get_profile")}))
for _name, _dtype in (("float32", "F32"), ("bfloat16", "BF16"), ("float16", "F16"), ("int32", "I32"), ("int64", "I64"),
                      ("uint8", "U8")):
    _export(_name, getattr(_Ebb.DType, _dtype))

for _name in __all__:
    if isinstance(globals()[_name], types.FunctionType):
        describe(globals()[_name], _name)
for _info in Repository.get_default().get_infos("Ebb"):
    if isinstance(_info, (ObjectInfo, EnumInfo)) or (isinstance(_info, StructInfo) and not _info.is_gtype_struct()):
        describe_members(globals().get(_info.get_name()) or getattr(_Ebb, _info.get_name()), _info.get_name())
