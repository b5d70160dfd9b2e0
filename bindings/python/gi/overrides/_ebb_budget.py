"""Budgets of bytes: `ebb.MemoryBudget("2GiB")`, for a trainer or a loop of one's own."""
import inspect

from gi.module import get_introspection_module
from gi.overrides import override
from gi.overrides._ebb_check import show
from gi.overrides._ebb_construct import add_attributes, construct
from gi.overrides._ebb_docs import describe_constructor
from gi.overrides._ebb_errors import guard
from gi.repository import GObject

Ebb = get_introspection_module("Ebb")

_parse = guard(Ebb.MemoryBudget.new_parse)


@override
class MemoryBudget(Ebb.MemoryBudget):
    """Bytes that a training keeps within: a number, a text as "1.5GiB", or "auto" for all that is free."""

    __module__ = "gi.overrides.Ebb"

    def __init__(self, bytes=0, **settings):  # pylint: disable=redefined-builtin
        if isinstance(bytes, str):
            bytes = _parse(bytes).get_property("bytes")
        elif isinstance(bytes, bool) or not isinstance(bytes, int) or bytes < 0:
            raise TypeError(f"MemoryBudget(): bytes is {show(bytes)}: it must be a number, a text as \"1.5GiB\", or "
                            "\"auto\" for all that is free, which 0 stands for as well")
        construct(self, lambda **properties: GObject.Object.__init__(self, **properties), (),
                  {"bytes": bytes, **settings})


describe_constructor(MemoryBudget, ("bytes", ), {"bytes": inspect.Parameter(
    "bytes", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=0, annotation="int | str")})
add_attributes(MemoryBudget)
