"""Training within a budget of bytes: `ebb.plan_memory(model, step, budget="1.5GiB").apply()`."""
import json
import traceback

from gi.module import get_introspection_module
from gi.overrides import override
from gi.overrides._ebb_check import show
from gi.overrides._ebb_errors import Error, guard
from gi.overrides._ebb_estimate import make_step, run_step, step_device
from gi.overrides._ebb_sizes import get_bytes

Ebb = get_introspection_module("Ebb")

_new = guard(Ebb.MemoryPlan.new)
_new_measured = guard(Ebb.MemoryPlan.new_measured)
_new_on_ranks = guard(Ebb.MemoryPlan.new_on_ranks)
_lower = guard(Ebb.MemoryPlan.lower)
_run_step = guard(Ebb.MemoryPlan.run_step)
_check_step = guard(Ebb.MemoryPlan.check_step)


def make_attempt(caller, step):
    """The function of C for a step that may run again."""

    def attempt():
        try:
            step()
        except Error as error:
            traceback.clear_frames(error.__traceback__)  # their tensors would be in memory while it runs again
            raise

    return make_step(caller, attempt if callable(step) else step)


def get_function(caller, training, step):
    """The same, where the state is checked that goes with it."""
    if not isinstance(training, Ebb.TrainingState):
        raise TypeError(f"{caller}(): training is {show(training)}: it must be an ebb.TrainingState")
    return make_attempt(caller, step)


@override
class MemoryPlan(Ebb.MemoryPlan):
    """What each block of a model keeps, recomputes and moves; see plan_memory()."""

    __module__ = "gi.overrides.Ebb"

    def table(self):
        """One row for blocks that are alike, the peak, what it is bound by, and the time that the plan takes."""
        return self.to_string()

    def as_dict(self):
        """The same as numbers: those of the plan's file."""
        return json.loads(self.to_json())

    def lower(self):
        """Makes it the next lower plan, which recomputes more; where none needs less it is an ebb.Error."""
        _lower(self)

    def run_step(self, training, step):
        """Runs step(); where memory runs out in it, with lower plans again, and the same bits.

        training: an ebb.TrainingState of all that the step changes: the model, the optimizer, the data. A step that has
        moved parameters already can't run again: then it is an ebb.Error that says so.
        """
        _run_step(self, training, get_function("run_step", training, step), None)

    def check_step(self, step):
        """Right after the second run_step(): an ebb.Error names where that step was not as it was planned."""
        _check_step(self, make_step("check_step", step), None)

    __str__ = table


def plan_memory(model, step, budget, device=None, group=None, measured=False, store=None):
    """The fastest plan that keeps a training step within a budget; plan.apply() makes the model follow it.

    step: one training step as the program does it, with the optimizer's step and zero_grad(); it runs dry, several
    times, and reads no values. budget: bytes of the device, or a text as "1.5GiB". device: where the step is to run;
    None stands for the accelerator that the model is on, otherwise for the default device. group: the ranks that run
    the step together, which all call this and get the same plan. measured: the step runs for real, so it may read
    values: some tens of steps, which train. The first steps need the memory of a step without a plan. No group is
    allowed. store: an ebb.DiskStore or ebb.HostStore to which blocks may move what they keep; without
    measured. A budget below the least that would do is an ebb.Error that names it.
    """
    function = run_step("plan_memory", model, step)
    device = step_device(model, device)
    n_bytes = get_bytes("plan_memory", budget)
    if measured and group is not None:
        raise ValueError("plan_memory: measured=True and a group: ranks plan by dry steps alone")
    if measured and store is not None:
        raise ValueError("plan_memory: measured=True and a store: what a real step waits for copies isn't known")
    if measured:
        return _new_measured(model, device, function, None, n_bytes)
    if group is None:
        return _new(model, device, store, function, None, n_bytes)
    return _new_on_ranks(model, device, store, group, function, None, n_bytes)
