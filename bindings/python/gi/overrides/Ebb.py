"""Ebb for Python: `import gi; gi.require_version("Ebb", "1.0"); from gi.repository import Ebb`.

The parts are in gi.overrides._ebb_*. Every function and method of C that may fail is guarded here, since any of them
can come to Python code (a forward, a hook), whose exceptions have to come back; see _ebb_errors.
"""
from gi._gi import FunctionInfo, ObjectInfo, Repository, StructInfo
from gi.module import get_introspection_module
from gi.overrides import _ebb_tensor, _ebb_module, _ebb_functions, _ebb_wrap  # Module before what derives from it
from gi.overrides._ebb_errors import guard

_Ebb = get_introspection_module("Ebb")
__all__ = []


def _export(name, value):
    globals()[name] = value
    __all__.append(name)


def _guard_class(info):
    """Guards the methods and constructors of a class, but those that its Python class has itself."""
    raw = getattr(_Ebb, info.get_name())
    shown = _overridden.get(info.get_name(), raw)
    for method in info.get_methods():
        name = method.get_name()
        if not method.can_throw_gerror() or (shown is not raw and name in shown.__dict__):
            continue
        guarded = guard(getattr(raw, name))
        setattr(shown, name, guarded if method.is_method() else staticmethod(guarded))


_overridden = {cls.__name__: cls for cls in (_ebb_tensor.Tensor, _ebb_tensor.Device, _ebb_module.Module,
                                             _ebb_module.Sequential, _ebb_module.ModuleList,
                                             _ebb_wrap.SavedTensorHooks)}

for _info in Repository.get_default().get_infos("Ebb"):
    if isinstance(_info, FunctionInfo):
        if _info.can_throw_gerror():
            _export(_info.get_name(), guard(getattr(_Ebb, _info.get_name())))
    elif isinstance(_info, ObjectInfo) or (isinstance(_info, StructInfo) and not _info.is_gtype_struct()):
        _guard_class(_info)

for _name, _class in _overridden.items():
    _export(_name, _class)
for _name in _ebb_functions.__all__:
    _export(_name, getattr(_ebb_functions, _name))
for _name in ("from_numpy", "from_dlpack"):
    _export(_name, getattr(_ebb_tensor, _name))
for _name in ("Parameter", "Buffer"):
    _export(_name, getattr(_ebb_module, _name))
for _name in ("no_grad", "enable_grad", "autocast", "disable_checkpointing", "checkpoint_wrapper",
              "checkpoint_wrap_each", "checkpoint", "checkpoint_sequential", "saved_tensor_hooks"):
    _export(_name, getattr(_ebb_wrap, _name))
for _name, _dtype in (("float32", "F32"), ("bfloat16", "BF16"), ("float16", "F16"), ("int32", "I32"), ("int64", "I64"),
                      ("uint8", "U8")):
    _export(_name, getattr(_Ebb.DType, _dtype))
