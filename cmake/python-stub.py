#!/usr/bin/python3
"""Writes the types of `import ebb` for editors and type checkers: python-stub.py ebb/__init__.pyi.

What it writes comes from the module itself: functions of C have their types from the typelib, those of Python from
their annotations, their defaults, and the arguments of the function of C that has the same name.
"""
import enum
import inspect
import os
import re
import sys
import textwrap
import types

import ebb
from gi._gi import Repository
from gi.overrides import _ebb_docs, _ebb_infos
from gi.repository import GObject

HEADER = '''"""The types of Ebb for Python. Written by the build from the library's comments and types."""
# mypy: disable-error-code="override"
import builtins
from typing import Any, Callable, ClassVar

__version__: str

class _Object:
    """What objects of GObject have: properties and signals."""
    props: Any
    def get_property(self, property_name: str) -> Any: ...
    def set_property(self, property_name: str, value: Any) -> None: ...
    def connect(self, detailed_signal: str, handler: Callable[..., Any], *args: Any) -> int: ...
    def disconnect(self, handler_id: int) -> None: ...
    def notify(self, property_name: str) -> None: ...
    def __getattr__(self, name: str) -> Any: ...
    def __setattr__(self, name: str, value: Any) -> None: ...
'''
SPECIAL = ("__call__", "__len__", "__getitem__", "__setitem__", "__iter__", "__contains__", "__enter__", "__exit__",
           "__float__", "__int__", "__bool__", "__index__", "__format__", "__array__", "__array_interface__",
           "__dlpack__", "__dlpack_device__", "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__",
           "__truediv__", "__rtruediv__", "__pow__", "__rpow__", "__matmul__", "__neg__", "__abs__", "__invert__",
           "__and__", "__rand__", "__xor__", "__rxor__", "__lshift__", "__rshift__", "__mod__", "__rmod__",
           "__floordiv__", "__rfloordiv__",
           "__or__", "__ror__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__",
           "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__", "__imatmul__", "__iand__", "__ior__",
           "__delattr__")
RESULTS = {"__len__": "int", "__bool__": "bool", "__int__": "int", "__float__": "float", "__index__": "int",
           "__contains__": "bool", "__format__": "str", "__array__": "Any", "__setitem__": "None",
           "__delattr__": "None", "__call__": "Any", "__dlpack_device__": "tuple[int, int]", "__eq__": "Any",
           "__ne__": "Any"}
# Results of functions written in Python, which say it in words alone.
PYTHON_RESULTS = {
    "numpy": "Any", "item": "Any", "tolist": "Any", "state_dict": "dict[str, Any]", "memory_stats": "dict[str, Any]",
    "shape": "tuple[int, ...]", "strides": "tuple[int, ...]", "ndim": "int", "nbytes": "int", "numel": "int",
    "dim": "int", "dtype": "DType", "device": "Device", "requires_grad": "bool", "training": "bool",
    "forward_counter": "int", "activation_checkpointing": "bool", "grad": "Any", "data": "Tensor"}
KEYWORDS = {"in", "is", "from", "import", "lambda", "None", "True", "False"}


def indent(text, depth):
    return textwrap.indent(text, "    " * depth)


def docstring(value, depth):
    text = inspect.getdoc(value) if not isinstance(value, str) else value
    if not text:
        return ""
    text = text.replace("\\", "\\\\").replace('"""', "'''")
    return indent(f'"""{text}' + ('\n"""' if "\n" in text or text.endswith('"') else '"""'), depth) + "\n"


def c_arguments(name):
    """The types of the arguments and of the result of the function of C with a name."""
    info = Repository.get_default().find_by_name("Ebb", name)
    if info is None or not hasattr(info, "get_arguments"):
        return {}, None
    signature = _ebb_docs.signature_of(info)
    return {p.name: p.annotation for p in signature.parameters.values()}, signature.return_annotation


def default_text(value):
    if value is None or isinstance(value, (bool, int, str)) and not isinstance(value, enum.Enum) and type(value) in (
            bool, int, str):
        return repr(value)
    return "..."


def annotate(parameter, known):
    """The type of a parameter of a function of Python."""
    if isinstance(parameter.annotation, str):
        return parameter.annotation
    default = parameter.default
    if type(default) in (bool, float, int):
        return type(default).__name__ if default is not True and default is not False else "bool"
    if type(default) is str:
        return "Any" if parameter.name in ("dtype", "determinism_check") else "str"
    found = known.get(parameter.name)
    if found in ("Tensor", "Module", "Tensor | None", "int", "float", "bool"):
        return found if default is not None or "None" in found else f"{found} | None"
    return "Any"


def show_signature(signature, known, result, is_method):
    parts, had_star = [], False
    for index, parameter in enumerate(signature.parameters.values()):
        if is_method and index == 0:
            parts.append(parameter.name)
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not had_star:
            parts.append("*")
            had_star = True
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        had_star = had_star or star == "*"
        name = f"{parameter.name}_" if parameter.name in KEYWORDS else parameter.name
        text = f"{star}{name}: {annotate(parameter, known)}"
        if parameter.default is not parameter.empty:
            text += f" = {default_text(parameter.default)}"
        parts.append(text)
        if parameter.kind is parameter.POSITIONAL_ONLY:
            following = list(signature.parameters.values())[index + 1:]
            if not following or following[0].kind is not parameter.POSITIONAL_ONLY:
                parts.append("/")
    return f"({', '.join(parts)}) -> {result}"


def guess_result(name, signature, c_result, owner):
    if isinstance(signature.return_annotation, str):
        return signature.return_annotation
    if name in RESULTS:
        return RESULTS[name]
    if name in PYTHON_RESULTS:
        return PYTHON_RESULTS[name]
    if owner == "Tensor" and (name.startswith("__") or name.endswith("_")):
        return "Tensor"
    return c_result if c_result in ("Tensor", "Module", "bool", "int", "float", "str") else "Any"


def qualify(head):
    """A tensor has methods of these names, which are not meant."""
    return re.sub(r"(: |-> |\[|\| )(int|float|bool)\b", r"\1builtins.\2", head)


def show_function(name, value, depth, owner=None):
    is_static = isinstance(value, (staticmethod, classmethod))
    function = value.__func__ if is_static else value
    info_like = type(function).__name__ in ("FunctionInfo", "VFuncInfo")
    try:
        signature = _ebb_docs.signature_of(function) if info_like else inspect.signature(function)
    except ValueError:
        signature = inspect.Signature([inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL),
                                       inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)])
    known, c_result = c_arguments(name) if owner in (None, "Tensor") else ({}, None)
    result = guess_result(name, signature, c_result, owner)
    is_method = owner is not None and not is_static and not (info_like and not function.is_method())
    lines = "" if is_method or owner is None else indent("@staticmethod\n", depth)
    head = indent(f"def {name}{show_signature(signature, known, result, is_method)}:", depth)
    doc = docstring(function, depth + 1) if not name.startswith("__") else ""
    head = head if owner is None else qualify(head)
    return f"{lines}{head}\n{doc}" + indent("...", depth + 1) + "\n" if doc else f"{lines}{head} ...\n"


def show_property(name, value, owner):
    result = PYTHON_RESULTS.get(name, "Any")
    head = qualify(f"def {name}(self) -> {result}:")
    text = f"    @property\n    {head}\n{docstring(value, 2)}        ...\n"
    if value.fset is not None:
        text += f"    @{name}.setter\n    def {name}(self, value: Any) -> None: ...\n"
    return text


def list_fields(cls):
    """The types of a structure's fields; an enumeration takes the names of its members as well."""
    fields = {}
    if hasattr(cls, "__info__") and hasattr(cls.__info__, "get_fields") and not issubclass(cls, GObject.Object):
        for field in cls.__info__.get_fields():
            text = qualify(f": {_ebb_docs.type_text(_ebb_infos.type_of(field))}")[2:]
            fields[field.get_name()] = "Any" if text[:1].isupper() else text
    return fields


def show_class(name, cls):
    if issubclass(cls, int):
        members = [member for member in dir(cls) if member.isupper()]
        body = "".join(f"    {member}: ClassVar[{name}]\n" for member in members)
        body += "".join(show_property(member, value, name) for member, value in sorted(cls.__dict__.items())
                        if isinstance(value, property) and not member.startswith("_"))
        return f"class {name}(int):\n{docstring(cls, 1)}{body}    value_nick: str\n    value_name: str\n"
    bases = [base for base in cls.__mro__[1:] if getattr(ebb, base.__name__, None) is base]
    is_object = issubclass(cls, GObject.Object)
    base = bases[0].__name__ if bases else "_Object" if is_object else None
    base = "Tensor" if name in ("Parameter", "Buffer") else base  # whose constructors make tensors
    text = f"class {name}({base}):\n" if base else f"class {name}:\n"
    if issubclass(cls, Exception):
        text = f"class {name}(Exception):\n"
    text += docstring(cls, 1)
    body, seen = "", set()
    # The class of C below that of Python, and what has no types of its own, as the base of containers.
    raws = [cls] + [raw for raw in cls.__mro__[1:] if raw.__name__ == name or raw.__name__.startswith("_")]
    if issubclass(cls, Exception):
        body += "    message: str\n    code: int\n    domain: str\n"
    for member in ("__init__", *SPECIAL):
        value = next((raw.__dict__[member] for raw in raws if member in raw.__dict__ and (
            raw is cls or raw.__name__.startswith("_"))), None)
        if member == "__init__" and not issubclass(cls, Exception):
            body += show_constructor(name, cls)
        elif callable(value) and member in SPECIAL:
            body += show_function(member, value, 1, name)
        elif isinstance(value, property) and member in SPECIAL:
            body += show_property(member, value, name)
    fields = list_fields(cls)
    body += "".join(f"    {member}: Any\n" for member in cls.__dict__.get("__slots__", ()) if member[0] != "_")
    for raw in raws:
        for member, value in sorted(raw.__dict__.items()):
            if member.startswith("_") or member in seen or member.startswith("do_"):
                continue
            seen.add(member)
            if isinstance(value, property):
                body += show_property(member, value, name) if value.__doc__ or isinstance(
                    value.fget, types.FunctionType) else f"    {member}: {fields.get(member, 'Any')}\n"
            elif callable(value) or isinstance(value, (staticmethod, classmethod)):
                body += show_function(member, value, 1, name)
            elif value is None:  # what a program may set
                body += f"    {member}: Any\n"
    if is_object:
        for spec in cls.list_properties():
            member = spec.name.replace("-", "_")
            if spec.owner_type.name == f"Ebb{cls.__gtype__.name.removeprefix('Ebb')}" and member not in seen:
                body += f"    {member}: {_ebb_docs.property_text(spec).removeprefix('str | ')}\n"
    if issubclass(cls, Exception):
        body += "".join(f"    {member}: ClassVar[Any]\n" for member in dir(cls) if member.isupper())
    return text + (body or "    ...\n")


def show_constructor(name, cls):
    new = cls.__dict__.get("__new__")
    if isinstance(new, staticmethod) and isinstance(new.__func__, types.FunctionType):
        return indent(f"def __new__{show_signature(inspect.signature(new.__func__), {}, name, True)}: ...\n", 1)
    init = next((base.__dict__["__init__"] for base in cls.__mro__ if "__init__" in base.__dict__), None)
    if not isinstance(init, types.FunctionType):
        return ""
    return indent(f"def __init__{show_signature(inspect.signature(init), {}, 'None', True)}: ...\n", 1)


def main(path):
    names = ebb.__all__
    classes = {name: getattr(ebb, name) for name in names if isinstance(getattr(ebb, name), type)}
    own = {name: cls for name, cls in classes.items() if cls.__name__ == name}
    text = HEADER + f"\n__all__ = {names!r}\n"
    for name, cls in sorted(own.items(), key=lambda item: (len(item[1].__mro__), item[0])):
        text += "\n" + show_class(name, cls)
    text += "\n" + "".join(f"{name} = {cls.__name__}\n" for name, cls in classes.items() if name not in own)
    for name in names:
        value = getattr(ebb, name)
        if name in classes:
            continue
        if callable(value):
            text += "\n" + show_function(name, value, 0)
        else:
            kind = type(value).__name__
            text += f"{name}: {kind if kind in ('int', 'str', 'float', 'DType') else 'Any'}\n"
    compile(text, path, "exec")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".new", path)


if __name__ == "__main__":
    main(*sys.argv[1:])
