"""Who holds which bytes when: `with ebb.memory_timeline() as t:`, then `print(t)` or `t.save("step.html")`."""
import contextlib
import json
import os

from gi.module import get_introspection_module
from gi.overrides import override
from gi.overrides._ebb_check import show
from gi.overrides._ebb_errors import guard
from gi.overrides._ebb_sizes import get_bytes
from gi.overrides._ebb_tensor import to_device

Ebb = get_introspection_module("Ebb")

_start = guard(Ebb.MemoryTimeline.start)
_stop = Ebb.MemoryTimeline.stop
_save = {".html": guard(Ebb.MemoryTimeline.save_html), ".svg": guard(Ebb.MemoryTimeline.save_svg)}


@override
class MemoryTimeline(Ebb.MemoryTimeline):
    """Records who holds which bytes between start() and stop(); see memory_timeline()."""

    __module__ = "gi.overrides.Ebb"

    def table(self, holders=10):
        """The peak, of all purposes and of each, and who holds most then."""
        return self.get_table(holders)

    def as_dict(self, holders=10):
        """The same as numbers: those of ebb.MemoryTimeline.get_json()."""
        return json.loads(self.get_json(holders))

    def save(self, path, *others, budget=None):
        """Writes a page (.html) or a picture for documents (.svg), with other timelines beside this one.

        budget: bytes, or a text as "1.5GiB", that are drawn as a line.
        """
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"save(): path is {show(path)}: it must be the path of a file")
        path = os.fspath(path)
        for other in others:
            if not isinstance(other, Ebb.MemoryTimeline):
                raise TypeError(f"save(): {show(other)} must be an ebb.MemoryTimeline")
        for ending, save in _save.items():
            if path.endswith(ending):
                save([self, *others], get_bytes("save", 0 if budget is None else budget), path)
                return
        raise ValueError(f"save(): path is {show(path)}: it must end in .html or in .svg")

    __str__ = table


@contextlib.contextmanager
def memory_timeline(name=None, device=None):
    """Records who holds which bytes inside, as this thread sees it; gives the ebb.MemoryTimeline.

    name: the title of its picture. device: whose memory; None stands for the default device.
    """
    timeline = MemoryTimeline.new(name)
    _start(timeline, Ebb.get_default_device() if device is None else to_device(device))
    try:
        yield timeline
    finally:
        _stop(timeline)
