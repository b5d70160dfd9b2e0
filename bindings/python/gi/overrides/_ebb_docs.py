"""Docstrings, from the comments of C that the build writes to docs.json, and signatures."""
import inspect
import json
import os
import types

from gi import docstring
from gi._gi import Direction, FunctionInfo, InterfaceInfo, ObjectInfo, Repository, StructInfo, TypeTag
from gi.module import get_introspection_module
from gi.overrides._ebb_check import EXAMPLE_NAMES, enum_default, visible_arguments
from gi.overrides._ebb_infos import closure_of, length_of, type_of
from gi.repository import GObject

Ebb = get_introspection_module("Ebb")

_TYPES = {TypeTag.BOOLEAN: "bool", TypeTag.UTF8: "str", TypeTag.FILENAME: "str", TypeTag.DOUBLE: "float",
          TypeTag.FLOAT: "float", TypeTag.GTYPE: "type", TypeTag.GHASH: "dict[str, Any]", TypeTag.VOID: "Any",
          **dict.fromkeys((TypeTag.INT8, TypeTag.UINT8, TypeTag.INT16, TypeTag.UINT16, TypeTag.INT32, TypeTag.UINT32,
                           TypeTag.INT64, TypeTag.UINT64), "int")}


def _read_docs():
    """From the build folder, beside the typelib, or from the package ebb beside the overrides."""
    typelib = os.fsdecode(Repository.get_default().get_typelib_path("Ebb"))
    site = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    for folder in (os.path.join(os.path.dirname(typelib), "python"), site):
        try:
            with open(os.path.join(folder, "ebb", "docs.json"), encoding="utf-8") as file:
                return json.load(file)
        except FileNotFoundError:
            pass
    return {}


DOCS = _read_docs()


# -- signatures -------------------------------------------------------------------------------------------------------

def type_text(kind):
    """A type of C as Python writes it."""
    tag = kind.get_tag()
    if tag == TypeTag.ARRAY:
        item = kind.get_param_type(0)
        return "bytes" if item.get_tag() == TypeTag.UINT8 else f"list[{type_text(item)}]"
    if tag != TypeTag.INTERFACE:
        return _TYPES.get(tag, "Any")
    interface = kind.get_interface()
    if type(interface).__name__ == "CallbackInfo":
        return "Callable[..., Any]"
    if interface.get_namespace() != "Ebb" or interface.get_name() == "Args":
        return "Any"
    return interface.get_name()


def _argument_text(argument):
    text = type_text(type_of(argument))
    return (f"str | {text}" if text in EXAMPLE_NAMES else text) + " | None" * argument.may_be_null()


def _result_text(info):
    kind = info.get_return_type()
    hidden = {length_of(type_of(argument)) for argument in info.get_arguments()}
    results = [type_text(type_of(argument)) + " | None" * argument.may_be_null()
               for i, argument in enumerate(info.get_arguments())
               if argument.get_direction() != Direction.IN and i not in hidden and i != length_of(kind)]
    is_nothing = kind.get_tag() == TypeTag.VOID and not kind.is_pointer()
    is_success = info.can_throw_gerror() and kind.get_tag() == TypeTag.BOOLEAN
    if not is_nothing and not (is_success and results):
        # Of what may fail None or False is an error.
        results.insert(0, type_text(kind) + " | None" * (info.may_return_null() and not info.can_throw_gerror()))
    return "None" if not results else results[0] if len(results) == 1 else f"tuple[{', '.join(results)}]"


def signature_of(info):
    """The signature of a function of C. Trailing arguments that may be None can be left out."""
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)] if info.is_method() else []
    arguments = visible_arguments(info)
    n_needed = max((i + 1 for i, argument in enumerate(arguments) if not argument.may_be_null()), default=0)
    for i, argument in enumerate(arguments):
        parameters.append(inspect.Parameter(
            argument.get_name(), inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=_argument_text(argument),
            default=None if i >= n_needed else inspect.Parameter.empty))
        if closure_of(argument) >= 0:  # what the callback is given as well
            is_last = i + 1 == len(arguments)
            kind = inspect.Parameter.VAR_POSITIONAL if is_last else inspect.Parameter.POSITIONAL_OR_KEYWORD
            default = inspect.Parameter.empty if is_last else parameters[-1].default
            parameters.append(inspect.Parameter("user_data", kind, default=default, annotation="Any"))
    return inspect.Signature(parameters, return_annotation=_result_text(info))


def new_signature(constructor):
    """The signature of a class that is made by its constructor in C."""
    cls = inspect.Parameter("cls", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Signature([cls, *(parameter.replace(default=inspect.Parameter.empty)
                                     for parameter in signature_of(constructor).parameters.values())])


_OPTIONAL = object()  # in the place of an argument that can be left out


def _property_parameter(spec, argument=None):
    """An argument of a constructor that is a property; argument: the one of C's constructor, for what goes by place."""
    kind = inspect.Parameter.KEYWORD_ONLY if argument is None else inspect.Parameter.POSITIONAL_OR_KEYWORD
    default = inspect.Parameter.empty
    if spec.value_type.is_a(GObject.TYPE_ENUM):
        default = enum_default(spec)
    elif hasattr(spec, "default_value") and (argument in (None, _OPTIONAL) or spec.default_value != 0
                                             or type(spec.default_value) is not int):
        default = spec.default_value
    elif argument in (None, _OPTIONAL) or argument.may_be_null():
        default = None
    text = property_text(spec)
    if default is inspect.Parameter.empty:
        text = text.removesuffix(" | None")
    return inspect.Parameter(spec.name.replace("-", "_"), kind, default=default, annotation=text)


def fields_signature(cls, names):
    """The constructor of a configuration: a preset, and its fields by name."""
    kinds = {field.get_name(): type_of(field) for field in cls.__info__.get_fields()}
    usual = cls.new()
    parameters = [inspect.Parameter("cls", inspect.Parameter.POSITIONAL_OR_KEYWORD),
                  inspect.Parameter("preset", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None,
                                    annotation="str | None")]
    for name in names:
        default = getattr(usual, name)
        text = type_text(kinds[name]) if name in kinds else "str | None"
        text = {"RotaryConfig": "dict[str, Any] | RotaryConfig | None", "str": "str | None"}.get(text, text)
        if hasattr(default, "value_nick"):
            default, text = default.value_nick, f"str | {text}"
        elif not isinstance(default, (bool, int, float, str)):
            default = None
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=text))
    return inspect.Signature(parameters)


_PROPERTY_TYPES = {"gint": "int", "guint": "int", "gint64": "int", "guint64": "int", "gdouble": "float",
                   "gboolean": "bool", "gchararray": "str | None", "GStrv": "list[str] | None"}


def property_text(spec):
    """The type of a property as Python writes it; an enumeration is given by name."""
    name = spec.value_type.name
    short = name.removeprefix("Ebb")
    if spec.value_type.is_a(GObject.TYPE_ENUM):
        return f"str | {short}"
    known = name.startswith("Ebb") and short != "Args" and isinstance(getattr(Ebb, short, None), type)
    return _PROPERTY_TYPES.get(name, f"{short} | None" if known else "Any")


class Constructor:
    """Stands for a constructor of properties, as Described does for a function: some go by place, all by name.

    others: the parameters that stand for several properties, by name.
    """

    def __init__(self, cls, names=None, others=()):
        self.__name__, self.cls, self.names, self.others = "__init__", cls, names, dict(others)

    def __call__(self, *args, **kwargs):
        return self.cls(*args, **kwargs)

    @property
    def __signature__(self):
        new = next((method for method in self.cls.__info__.get_methods() if method.get_name() == "new"), None)
        arguments = {argument.get_name(): argument for argument in (visible_arguments(new) if new is not None else ())}
        specs = {spec.name.replace("-", "_"): spec for spec in self.cls.list_properties()
                 if spec.flags & GObject.ParamFlags.WRITABLE and spec.owner_type.name != "EbbModule"}
        parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
        names = arguments if self.names is None else self.names
        for name in names:
            if name in self.others:
                parameters.append(self.others[name])
                specs.pop(name, None)
            elif name in specs:
                # An argument without a default follows none that has one.
                is_free = parameters[-1].default is not inspect.Parameter.empty or name not in arguments
                argument = _OPTIONAL if is_free else arguments[name]
                parameters.append(_property_parameter(specs.pop(name), argument))
            else:
                parameters.append(inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD,
                                                    annotation=type_text(type_of(arguments[name]))))
        parameters += [_property_parameter(spec) for spec in specs.values() if spec.owner_type.name.startswith("Ebb")]
        return inspect.Signature(parameters)


class Described:
    """Stands for a function of C behind the one of Python that calls it: its signature is made when somebody asks."""

    def __init__(self, function, info):
        self.__name__ = self.__qualname__ = info.get_name()
        self.function, self.info = function, info

    def __call__(self, *args, **kwargs):
        return self.function(*args, **kwargs)

    @property
    def __signature__(self):
        return signature_of(self.info)


def describe_constructor(cls, names=None, others=()):
    """Has a class's constructor, which takes any properties, show them."""
    init = cls.__dict__.get("__init__")
    if init is None:
        above = cls.__init__

        def init(self, *args, **kwargs):
            above(self, *args, **kwargs)

        init.__name__ = init.__qualname__ = "__init__"
        cls.__init__ = init
    init.__wrapped__ = Constructor(cls, names, others)


# -- docstrings -------------------------------------------------------------------------------------------------------

def describe(function, name, info=None):
    """Gives a function of Python the docstring that its function of C has, unless it has one of its own."""
    if function.__doc__ is None and name in DOCS:
        function.__doc__ = DOCS[name]
    if info is not None:
        function.__wrapped__ = Described(function, info)
    return function


def _list_arguments(cls):
    """The properties that a class's constructor takes, those of the classes above too."""
    for spec in cls.list_properties():
        owner = spec.owner_type.name
        if owner.startswith("Ebb") and owner != "EbbModule" and spec.flags & GObject.ParamFlags.WRITABLE:
            text = DOCS.get(f"{owner.removeprefix('Ebb')}:{spec.name}", "")
            yield f"{spec.name.replace('-', '_')}: {' '.join(text.split())}"


def describe_members(cls, name):
    """The same for an enumeration, and for the methods and properties that a class has in Python; a tensor's are
    functions of C as well."""
    if issubclass(cls, int):
        cls.__doc__ = DOCS.get(name)
    for member, value in cls.__dict__.items():
        if member.startswith("_") or not isinstance(value, (types.FunctionType, property)) or value.__doc__:
            continue
        for key in (f"{name}.{member}", f"{name}.get_{member}", *((member, ) if name == "Tensor" else ())):
            if key in DOCS:
                value.__doc__ = DOCS[key]
                break


_others = docstring.get_doc_string_generator()


def _generate(info):
    """What PyGObject asks for where somebody reads the docstring of a class, or of a function that is C's own."""
    if info.get_namespace() != "Ebb":
        return _others(info)
    name = info.get_name()
    if isinstance(info, (InterfaceInfo, ObjectInfo, StructInfo)):
        cls = getattr(Ebb, name)
        arguments = _list_arguments(cls) if issubclass(cls, GObject.Object) else ()
        return "\n\n".join(filter(None, (DOCS.get(name), "\n".join(arguments))))
    container = info.get_container()
    key = name if container is None else f"{container.get_name()}.{name}"
    return f"{name}{signature_of(info)}\n\n{DOCS.get(key, '')}".rstrip() if isinstance(info, FunctionInfo) else ""


docstring.set_doc_string_generator(_generate)
