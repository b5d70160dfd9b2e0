"""Where time goes: `with ebb.profile() as p:`, then `print(p.table())`."""
import contextlib
import json

from gi.module import get_introspection_module
from gi.overrides import override
from gi.overrides._ebb_errors import guard

Ebb = get_introspection_module("Ebb")

_start = guard(Ebb.Profiler.start)
_measure_floor = guard(Ebb.Profiler.measure_floor)


@override
class Profiler(Ebb.Profiler):
    """Records what a thread computes between start() and stop(); see profile()."""

    __module__ = "gi.overrides.Ebb"

    def table(self, floor=False):
        """What was recorded, by phase and op. floor: also measures, once, what the products would take alone."""
        if floor:
            _measure_floor(self)
        return self.get_table()

    def as_dict(self):
        """The same as numbers: those of ebb.Profiler.get_json()."""
        return json.loads(self.get_json())

    __str__ = table


@contextlib.contextmanager
def profile(trace=None):
    """Records what this thread computes inside; gives the ebb.Profiler, whose table() shows it.

    trace: a file that is written at the end, for chrome://tracing or ui.perfetto.dev.
    """
    profiler = Profiler()
    _start(profiler)
    try:
        yield profiler
    finally:
        profiler.stop()
    if trace is not None:
        profiler.save_trace(trace)
