"""Numbers of bytes, as numbers or with units."""
from gi.module import get_introspection_module
from gi.overrides._ebb_check import show
from gi.overrides._ebb_errors import guard

Ebb = get_introspection_module("Ebb")

_parse_size = guard(Ebb.memory_parse_size)


def get_bytes(caller, budget):
    if isinstance(budget, str):
        return _parse_size(budget)[1]
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 0:
        raise TypeError(f"{caller}(): budget is {show(budget)}: it must be a number of bytes, or a text as \"1.5GiB\"")
    return budget
