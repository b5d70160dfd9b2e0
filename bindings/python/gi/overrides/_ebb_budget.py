"""Budgets of bytes: `ebb.MemoryBudget("2GiB")`, for a trainer or a loop of one's own."""
import inspect
import json

from gi.module import get_introspection_module
from gi.overrides import override
from gi.overrides._ebb_check import show
from gi.overrides._ebb_construct import add_attributes, construct
from gi.overrides._ebb_docs import describe_constructor
from gi.overrides._ebb_errors import guard
from gi.overrides._ebb_plan import get_function, make_attempt
from gi.repository import GObject

Ebb = get_introspection_module("Ebb")

_parse, _plan, _run_step = map(guard, (Ebb.MemoryBudget.new_parse, Ebb.MemoryBudget.plan, Ebb.MemoryBudget.run_step))


@override
class MemoryBudget(Ebb.MemoryBudget):
    """Bytes that a training keeps within: a number, a text as "1.5GiB", or "auto" for all that is free.

    A trainer takes it as memory. A loop of your own plans, and runs each step within it:

        budget = ebb.MemoryBudget("2GiB")
        budget.plan(ebb.TrainingState(model, optimizer), step)
        budget.run_step(step)
    """

    __module__ = "gi.overrides.Ebb"

    def __init__(self, bytes=0, **settings):  # pylint: disable=redefined-builtin
        if isinstance(bytes, str):
            bytes = _parse(bytes).get_property("bytes")
        elif isinstance(bytes, bool) or not isinstance(bytes, int) or bytes < 0:
            raise TypeError(f"MemoryBudget(): bytes is {show(bytes)}: it must be a number, a text as \"1.5GiB\", or "
                            "\"auto\" for all that is free, which 0 stands for as well")
        construct(self, lambda **properties: GObject.Object.__init__(self, **properties), (),
                  {"bytes": bytes, **settings})

    def plan(self, training, step):
        """Plans what the model keeps, recomputes and moves, and limits the memory from now on.

        training: an ebb.TrainingState of all that a step changes. step: a function of one training step, with the
        optimizer's step() and zero_grad(); it runs dry, several times, and reads no values. A budget that is too small
        is an ebb.Error that names the least one, and the concessions that would do.
        """
        _plan(self, training, get_function("plan", training, step), None)

    def run_step(self, step):
        """Runs step() within the budget; where memory runs out in it, with lower plans again, and the same bits.

        Returns what step() returned. After the first steps the plan may be made anew: then step() runs dry, too.
        """
        results = []

        def run():
            result = step()
            if not Ebb.is_dry_run():
                results[:] = [result]

        _run_step(self, make_attempt("run_step", run if callable(step) else step), None)
        return results[0]

    def as_dict(self):
        """What was planned and measured, as numbers: a part of a training's report."""
        return json.loads(self.to_json())


describe_constructor(MemoryBudget, ("bytes", ), {"bytes": inspect.Parameter(
    "bytes", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=0, annotation="int | str")})
add_attributes(MemoryBudget)
