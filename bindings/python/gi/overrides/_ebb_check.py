"""What a value must be to reach C: numbers, names and objects by their param specs, arguments by their types.

PyGObject's own messages name neither the function nor what would be right, and GLib replaces numbers out of range by
defaults after a warning.
"""
import difflib
import numbers
import operator
import re

from gi._gi import Direction, EnumInfo, TypeTag
from gi.module import get_introspection_module
from gi.overrides._ebb_infos import closure_of, enum_members, flag_members, length_of, type_of
from gi.repository import GObject

Ebb = get_introspection_module("Ebb")

_INTEGERS = (GObject.TYPE_INT, GObject.TYPE_UINT, GObject.TYPE_INT64, GObject.TYPE_UINT64)
_LARGEST = 1e300  # ranges that end beyond it have no end


def takes_text(function):
    """Whether a C function has an argument that is a string, or a list of strings."""
    kinds = [type_of(argument) for argument in function.get_arguments()] if hasattr(function, "get_arguments") else []
    kinds += [kind.get_param_type(0) for kind in kinds if kind.get_tag() == TypeTag.ARRAY]
    return any(kind.get_tag() in (TypeTag.UTF8, TypeTag.FILENAME) for kind in kinds)


def _check_zero(label, value):
    """Refuses a string, or a list of them, with U+0000: C's strings end there."""
    for text in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(text, str) and "\0" in text:
            raise ValueError(f"{label} {show(text)} has U+0000: leave it out, strings of C end there")


def check_texts(function, args, kwargs):
    """Refuses arguments with U+0000 for C's strings."""
    for value in (*args, *kwargs.values()):
        _check_zero(f"{function.__name__}():", value)


def show(value):
    """A value as a message names it: on one line, and not too long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def suggest(name, names):
    """Asks "did you mean …?" with the name that is nearest to one that does not exist; "" if none is near."""
    names = [other for other in names if not other.startswith("_")]
    near = difflib.get_close_matches(name, names, 3, 0.75)
    if not near:
        lowered = {other.lower(): other for other in names}
        near = [lowered[found] for found in difflib.get_close_matches(name.lower(), lowered, 1, 0.85)]
    return f"did you mean {min(near, key=lambda other: not other.startswith(name))!r}?" if near else ""


def suggest_attribute(name, names):
    """The same for an attribute that is read; "" for a private name, which Python or a library may look for."""
    return "" if name.startswith("_") else suggest(name, names)


def suggest_before(name, names, sentence):
    """Puts the suggestion, if there is one, before a sentence, which then begins with a capital."""
    near = suggest(name, names)
    return f"{near} {sentence[0].upper()}{sentence[1:]}" if near else sentence


def enum_default(spec):
    """The name of a property's default, which PyGObject gives as a number since version 3.50."""
    # The class that introspection makes: that of the property, asked for first, would be made without its names.
    kind = getattr(Ebb, spec.value_type.name.removeprefix("Ebb"))
    return kind(int(spec.default_value)).value_nick


def number_limits(spec):
    least, most = spec.minimum, spec.maximum
    if least < -_LARGEST and most > _LARGEST:
        return ""
    return f" of at least {least:g}" if most > _LARGEST else f" from {least:g} to {most:g}"


def _check_integer(label, spec, value):
    limits = f"must be an int from {spec.minimum} to {spec.maximum}"
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise TypeError(f"{label} is {show(value)}: {limits}")
    index = operator.index(value)
    if not spec.minimum <= index <= spec.maximum:
        raise ValueError(f"{label} is {show(value)}: {limits}")
    return index


def _check_double(label, spec, value):
    limits = f"must be a number{number_limits(spec)}"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{label} is {show(value)}: {limits}")
    if spec.minimum > -_LARGEST and not spec.minimum <= value <= spec.maximum:
        raise ValueError(f"{label} is {show(value)}: {limits}")
    return float(value)


def _check_object(label, spec, value):
    name = spec.value_type.name.removeprefix("Ebb")
    kind = getattr(Ebb, name, None)
    if kind is not None and value is not None and not isinstance(value, kind):
        raise TypeError(f"{label} is {show(value)}: must be an ebb.{name}")
    return value


def _check_enum(label, spec, value):
    # The class that introspection makes: that of the property, asked for first, would be made without its names.
    kind = getattr(Ebb, spec.value_type.name.removeprefix("Ebb"))
    nicks = {item.value_nick: item for item in enum_members(kind)}
    if isinstance(value, str) and value.replace("_", "-") in nicks:
        return nicks[value.replace("_", "-")]
    if isinstance(value, kind):
        return value
    raise (ValueError if isinstance(value, str) else TypeError)(
        f"{label} is {show(value)}: must be one of {', '.join(map(repr, nicks))}")


def _check_flags(label, spec, value):
    """Flags, or their names: one text with commas or a list of texts; "all" names each."""
    members = flag_members(getattr(Ebb, spec.value_type.name.removeprefix("Ebb")))
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{label} is {show(value)}: it must be a str or a list of str")
    flags = 0
    for name in names:
        nick = name.replace("_", "-").replace("8bit", "eight-bit")
        if nick != "all" and nick not in members:
            raise ValueError(f"{label} is {show(value)}: there is no {name!r}; it must be of "
                             f"{', '.join(map(repr, members))}, or 'all'")
        for member in members.values() if nick == "all" else [members[nick]]:
            flags |= member
    return flags


def _check_texts(label, value):
    texts = [value] if isinstance(value, str) else value
    if texts is not None and not (isinstance(texts, (list, tuple)) and all(isinstance(text, str) for text in texts)):
        raise TypeError(f"{label} is {show(value)}: it must be a str or a list of str")
    return texts


def check_property(label, spec, value):
    """The value that a property takes, or an error that names it."""
    kind = spec.value_type
    _check_zero(f"{label} is", value)
    if kind.name == "GStrv":
        return _check_texts(label, value)
    if kind in _INTEGERS:
        return _check_integer(label, spec, value)
    if kind == GObject.TYPE_DOUBLE:
        return _check_double(label, spec, value)
    if kind == GObject.TYPE_BOOLEAN and not isinstance(value, bool):
        raise TypeError(f"{label} is {show(value)}: must be True or False")
    if kind == GObject.TYPE_STRING and value is not None and not isinstance(value, str):
        raise TypeError(f"{label} is {show(value)}: must be a str")
    if not kind.name.startswith("Ebb"):
        return value
    if kind.is_a(GObject.TYPE_FLAGS):
        return _check_flags(label, spec, value)
    return _check_enum(label, spec, value) if kind.is_a(GObject.TYPE_ENUM) else _check_object(label, spec, value)


# -- arguments of functions, looked at when C has refused them ---------------------------------------------------------

_WANTED = {TypeTag.BOOLEAN: (bool, "True or False"), TypeTag.UTF8: (str, "a str"),
           TypeTag.FILENAME: ((str, bytes), "a path, as a str"), TypeTag.DOUBLE: (numbers.Real, "a number"),
           TypeTag.FLOAT: (numbers.Real, "a number"), TypeTag.ARRAY: ((list, tuple), "a list"),
           **dict.fromkeys((TypeTag.INT32, TypeTag.UINT32, TypeTag.INT64, TypeTag.UINT64),
                           (numbers.Integral, "an int"))}


EXAMPLE_NAMES = {"Device": "cpu", "DType": "bf16"}  # types for which a name may be given, and one


def _wanted(kind):
    """The class and the words for what an argument of a type must be; None where that is not known."""
    if kind.get_tag() != TypeTag.INTERFACE:
        return _WANTED.get(kind.get_tag())
    interface = kind.get_interface()
    found = getattr(Ebb, interface.get_name(), None) if interface.get_namespace() == "Ebb" else None
    if not isinstance(found, type):
        return None
    example = EXAMPLE_NAMES.get(interface.get_name())
    return found, f"an ebb.{interface.get_name()}" + (f", or a name as \"{example}\"" if example else "")


def check_enum_value(label, kind, value):
    """The value of an enumeration that a str names; any other value as it is."""
    interface = kind.get_interface() if kind.get_tag() == TypeTag.INTERFACE else None
    if not isinstance(interface, EnumInfo) or not isinstance(value, str):
        return value
    values = {item.value_nick: item for item in enum_members(getattr(Ebb, interface.get_name()))}
    if value.replace("_", "-") not in values:
        raise ValueError(f"{label} is {show(value)}: it must be one of {', '.join(map(repr, values))}")
    return values[value.replace("_", "-")]


def check_value(label, kind, value):
    """Raises an error that names it where a value is not of the type that C wants."""
    wanted = _wanted(kind)
    if wanted is not None and (not isinstance(value, wanted[0]) or (isinstance(value, bool) and wanted[0] is not bool)):
        raise TypeError(f"{label} is {show(value)}: it must be {wanted[1]}")
    if wanted is not None and wanted[0] is numbers.Integral and not -2**31 <= value < 2**31:
        raise ValueError(f"{label} is {show(value)}: it must be from {-2**31} to {2**31 - 1}")


def visible_arguments(function):
    """The arguments that Python passes: not what C gives back, the lengths of arrays, nor the data of callbacks."""
    arguments = list(function.get_arguments())
    hidden = {length_of(type_of(argument)) for argument in arguments
              if type_of(argument).get_tag() == TypeTag.ARRAY}
    hidden |= {closure_of(argument) for argument in arguments}
    return [argument for i, argument in enumerate(arguments)
            if i not in hidden and argument.get_direction() != Direction.OUT]


def _find_fault(function, values):
    """The first argument that is not what C wants: its name, its value, and the words for what it must be."""
    for argument, value in zip(visible_arguments(function), values[1:] if function.is_method() else values):
        wanted = _wanted(type_of(argument))
        if wanted is None or (value is None and argument.may_be_null()):
            continue
        if not isinstance(value, wanted[0]) or (isinstance(value, bool) and wanted[0] is not bool):
            return argument.get_name(), value, wanted[1]
    return None


def explain(function, values, error):
    """The error for Python where PyGObject has refused the arguments of a C function."""
    name = function.__name__.removesuffix("_full")
    text = re.sub(r"^Ebb\.", "ebb.", str(error))  # PyGObject's name of the package
    if "is not initialized" in text:
        kind = type(values[0]).__name__ if values else name
        return TypeError(f"{kind}.__init__() has not called super().__init__(), which must come first")
    try:
        fault = _find_fault(function, values)
    except Exception:  # a function whose types tell nothing keeps PyGObject's words
        fault = None
    if fault is not None:
        return TypeError(f"{name}(): {fault[0]} is {show(fault[1])}: it must be {fault[2]}")
    kind = TypeError if isinstance(error, TypeError) else ValueError  # an OverflowError is a value, too
    return kind(text if text.startswith((name, "ebb.")) else f"{name}(): {text}")
