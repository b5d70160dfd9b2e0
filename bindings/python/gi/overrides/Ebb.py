"""Ebb for Python: `import gi; gi.require_version("Ebb", "1.0"); from gi.repository import Ebb`.

The parts are in gi.overrides._ebb_*. Every function and method of C that may fail is guarded here, since any of them
can come to Python code (a forward, a hook), whose exceptions have to come back; see _ebb_errors.
"""
from gi._gi import FunctionInfo, ObjectInfo, Repository, StructInfo, TypeTag
from gi.module import get_introspection_module
from gi.overrides import _ebb_tensor, _ebb_module  # Module before what derives from it
from gi.overrides import (_ebb_checkpointing, _ebb_functions, _ebb_options, _ebb_parallel, _ebb_profile, _ebb_ranks,
                          _ebb_stores, _ebb_tensor_ranks, _ebb_wrap)
from gi.overrides._ebb_args import pack_result, unpack_result
from gi.overrides._ebb_construct import add_init
from gi.overrides._ebb_errors import guard

_Ebb = get_introspection_module("Ebb")
__all__ = []


def _export(name, value):
    globals()[name] = value
    __all__.append(name)


def _mentions_args(info):
    """Whether a function takes or returns an EbbArgs: Python sees the dict, list or value that it stands for."""
    kinds = [info.get_return_type(), *(argument.get_type() for argument in info.get_arguments())]
    return any(kind.get_tag() == TypeTag.INTERFACE and kind.get_interface().get_name() == "Args" for kind in kinds)


def _show(value):
    return unpack_result(value) if isinstance(value, _Ebb.Args) else value


def _with_values(function):
    def call(*args, **kwargs):
        args = [pack_result(value) if type(value) is dict else value for value in args]
        result = function(*args, **kwargs)
        return tuple(map(_show, result)) if isinstance(result, tuple) else _show(result)

    call.__name__ = call.__qualname__ = function.__name__
    call.__wrapped__ = function
    return call


def _adapt(info, function):
    """The function for Python, or None if it is good as it is."""
    if not info.can_throw_gerror() and not _mentions_args(info):
        return None
    if info.can_throw_gerror():
        function = guard(function)
    return _with_values(function) if _mentions_args(info) else function


def _adapt_class(info):
    """Adapts the methods and constructors of a class, but those that its Python class has itself."""
    raw = getattr(_Ebb, info.get_name())
    shown = _overridden.get(info.get_name(), raw)
    for method in info.get_methods():
        name = method.get_name()
        adapted = None if shown is not raw and name in shown.__dict__ else _adapt(method, getattr(raw, name))
        if adapted is not None:
            setattr(shown, name, adapted if method.is_method() else staticmethod(adapted))
    if isinstance(info, ObjectInfo) and shown is raw and not issubclass(raw, _ebb_module.Module):
        add_init(raw)


_overridden = {cls.__name__: cls for cls in (_ebb_tensor.Tensor, _ebb_tensor.Device, _ebb_module.Module,
                                             _ebb_module.Sequential, _ebb_module.ModuleList,
                                             _ebb_wrap.SavedTensorHooks, _ebb_stores.ActivationStore,
                                             _ebb_profile.Profiler, _ebb_ranks.ProcessGroup,
                                             _ebb_tensor_ranks.GeneratorTracker)}

for _info in Repository.get_default().get_infos("Ebb"):
    if isinstance(_info, FunctionInfo):
        _adapted = _adapt(_info, getattr(_Ebb, _info.get_name()))
        if _adapted is not None:
            _export(_info.get_name(), _adapted)
    elif isinstance(_info, ObjectInfo) or (isinstance(_info, StructInfo) and not _info.is_gtype_struct()):
        if _info.get_name() != "Args":
            _adapt_class(_info)


def _give_norm(function):
    def clip_grad_norm(self, max_norm, norm_type=2):
        """Scales the gradients so that their norm is max_norm at most; returns the norm before. norm_type is 2, 1,
        math.inf (or "inf") or any other number above 0."""
        return function(self, max_norm, float(norm_type))[1]

    return clip_grad_norm


_Ebb.Optimizer.clip_grad_norm = _give_norm(_Ebb.Optimizer.clip_grad_p_norm)

for _name, _class in _overridden.items():
    _export(_name, _class)
for _name in _ebb_functions.__all__:
    _export(_name, getattr(_ebb_functions, _name))
for _name in ("from_numpy", "from_dlpack"):
    _export(_name, getattr(_ebb_tensor, _name))
for _name in ("Parameter", "Buffer"):
    _export(_name, getattr(_ebb_module, _name))
for _name in ("no_grad", "enable_grad", "autocast", "default_device", "set_default_device",
              "disable_checkpointing", "skip_initialization", "checkpoint_wrapper", "checkpoint_wrap_each",
              "checkpoint_wrap_uniform", "checkpoint_wrap_block", "checkpoint_unwrap_each", "checkpoint",
              "checkpoint_with", "checkpoint_sequential", "checkpoint_report", "saved_tensor_hooks"):
    _export(_name, getattr(_ebb_wrap, _name))
for _name in _ebb_checkpointing.__all__:
    _export(_name, getattr(_ebb_checkpointing, _name))
for _name in _ebb_tensor_ranks.__all__:
    _export(_name, getattr(_ebb_tensor_ranks, _name))
for _name in _ebb_ranks.__all__:
    _export(_name, getattr(_ebb_ranks, _name))
for _name in ("offload_wrapper", "offload_wrap_each", "save_on_host"):
    _export(_name, getattr(_ebb_stores, _name))
for _name in _ebb_parallel.__all__:
    _export(_name, getattr(_ebb_parallel, _name))
_export("save_nth_product", _ebb_options.save_nth_product)
_export("profile", _ebb_profile.profile)
for _name, _dtype in (("float32", "F32"), ("bfloat16", "BF16"), ("float16", "F16"), ("int32", "I32"), ("int64", "I64"),
                      ("uint8", "U8")):
    _export(_name, getattr(_Ebb.DType, _dtype))
