"""What functions and fields of C say of themselves, under the names of both generations of introspection.

PyGObject stands on girepository-2.0 since version 3.52, where some names are others.
"""
from operator import methodcaller

from gi._gi import ArgInfo, EnumInfo, Repository
from gi.module import get_introspection_module
from gi.repository import GObject

Ebb = get_introspection_module("Ebb")

_is_second = hasattr(ArgInfo, "get_type_info")

type_of = methodcaller("get_type_info" if _is_second else "get_type")  # of an argument or a field
closure_of = methodcaller("get_closure_index" if _is_second else "get_closure")  # of a callback: its data's place
length_of = methodcaller("get_array_length_index" if _is_second else "get_array_length")  # of an array's type


def enum_members(kind):
    """The members of an enumeration, which is one of Python's in the second generation."""
    return list(kind.__enum_values__.values()) if hasattr(kind, "__enum_values__") else list(kind)


def flag_members(kind):
    """The members of a set of flags by their names of C; the empty set has one, too."""
    members = list(kind.__flags_values__.values()) if hasattr(kind, "__flags_values__") else list(kind)
    return {next((nick for nick in member.value_nicks if nick != "none"), "none"): member for member in members}


def _name_members():
    """Gives the members of enumerations without a type in GObject the names that all others have."""
    for info in Repository.get_default().get_infos("Ebb"):
        kind = getattr(Ebb, info.get_name()) if isinstance(info, EnumInfo) else None
        if kind is None or issubclass(kind, GObject.GFlags):
            continue
        if not all(hasattr(member, "value_nick") for member in enum_members(kind)):
            kind.value_nick = property(lambda self: self.name.lower().replace("_", "-"))


_name_members()
