"""What the tests in Python share: Ebb with the overrides of this source tree, and no others."""
import gc
import os
import unittest

import gi

gi.require_version("Ebb", "1.0")
from gi.repository import Ebb  # noqa: E402

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
_OURS = os.path.join(_ROOT, "bindings", "python", "gi", "overrides", "Ebb.py")
assert os.path.realpath(gi.overrides.Ebb.__file__) == _OURS, f"{gi.overrides.Ebb.__file__} is not the one to be tested"


class Residual(Ebb.Module):
    def __init__(self, inner, scale=1.0):
        super().__init__()
        self.inner = inner            # becomes a child named "inner"
        self.scale = scale
        self.gain = Ebb.Parameter(Ebb.ones(1))     # Ebb.Buffer for a buffer; a plain tensor is not registered

    def forward(self, x, *, mask=None):           # any arguments, any nesting of results
        y = self.inner(x)
        return x + y * self.gain * self.scale, {"shape": list(x.shape), "aux": [y]}


def tensor_bytes():
    """Bytes of all tensors on the CPU, once what is dead is gone."""
    gc.collect()
    return Ebb.memory_stats("cpu")["total"]["current"]


class TestCase(unittest.TestCase):
    def assert_same(self, a, b):
        """Equal to the last bit."""
        self.assertTrue(Ebb.Tensor.equal(a, b), f"{a} is not {b}")


def main():
    unittest.main(module="__main__")
