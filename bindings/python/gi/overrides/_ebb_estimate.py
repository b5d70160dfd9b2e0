"""What a training step needs, before it runs: `print(ebb.estimate_memory(model, step))`."""
import contextlib

from gi.module import get_introspection_module
from gi.overrides import override
from gi.overrides._ebb_check import show
from gi.overrides._ebb_errors import call_back, guard
from gi.overrides._ebb_tensor import to_device

Ebb = get_introspection_module("Ebb")

_new = guard(Ebb.MemoryEstimate.new)
_measure_seconds = guard(Ebb.MemoryEstimate.measure_seconds)


@override
class MemoryEstimate(Ebb.MemoryEstimate):
    """The memory that a step needs; see estimate_memory()."""

    __module__ = "gi.overrides.Ebb"

    @property
    def peak(self):
        """The most bytes that are in use at one time."""
        return self.get_peak_total()

    @property
    def timeline(self):
        """Who holds which bytes when: an ebb.MemoryTimeline."""
        return self.get_timeline()

    @property
    def leak(self):
        """Which tensors each step leaves behind, in a line; None for a training that doesn't grow."""
        return self.get_leak()

    def seconds(self, limit=5):
        """How long a step computes; kernels that this machine hasn't timed yet are timed for up to limit seconds."""
        return _measure_seconds(self, limit)

    def table(self):
        """The peak of all purposes and of each, and the ten largest holders."""
        return self.to_string()

    __str__ = table


def run_step(caller, model, step):
    """The function of C for a step of Python."""
    if not isinstance(model, Ebb.Module):
        raise TypeError(f"{caller}(): model is {show(model)}: it must be a module")
    return make_step(caller, step)


def step_device(model, device):
    """The device of a step: the one that is given, that of a model on an accelerator, or the default one."""
    if device is not None:
        return to_device(device)
    devices = [parameter.get_device() for parameter in model.get_parameters(True)]
    return next((own for own in devices if own.get_name() != "cpu"), Ebb.get_default_device())


def make_step(caller, step):
    """The same where the model is known."""
    if not callable(step):
        raise TypeError(f"{caller}(): step is {show(step)}: it must be a function of one training step")

    def run(*_):
        call_back(step)
        return True

    return run


def estimate_memory(model, step, device=None):
    """The memory of a training step, by a dry run: step() is called two or three times, and nothing is computed or
    allocated.

    step: one training step as the program does it, with the optimizer's step and zero_grad(); it reads no values.
    device: where the step is to run; None stands for the accelerator that the model is on, otherwise for the default
    device. A model that was made inside dry_run() is good as well. Returns an ebb.MemoryEstimate.
    """
    function = run_step("estimate_memory", model, step)
    return _new(model, step_device(model, device), function, None)


@contextlib.contextmanager
def dry_run():
    """Nothing is computed inside, and memory costs next to nothing: for models that are only to be estimated."""
    Ebb.push_dry_run()
    try:
        yield
    finally:
        Ebb.pop_dry_run()
