"""The dtype in which tensors and Python's numbers meet, against a table of PyTorch's results."""
import json
import math
import os
import re
import sys

from support import Ebb, TestCase, main

import ebb

_FIXTURES = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "fixtures")
sys.path.insert(0, _FIXTURES)
from make_promotion import list_cases  # noqa: E402

_TOLERANCES = {"f32": 2e-6, "bf16": 0.01, "f16": 0.001}


def is_near(found, expected, tolerance):
    if isinstance(expected, list):
        return len(found) == len(expected) and all(is_near(a, b, tolerance) for a, b in zip(found, expected))
    if isinstance(expected, float) and math.isnan(expected):
        return math.isnan(found)
    return type(found) is type(expected) and math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance)


# What Ebb refuses and PyTorch does not.
_REFUSALS = re.compile(
    "f16 holds data only|not f16|bool holds no numbers|is no number of (u8|i32)|needs a floating-point tensor"
    "|add_scaled: needs a tensor of f32|source is .* must be a tensor|a bound is tensor|full.*value is tensor"
    "|from 0 to -1 is no range|alpha is 2 for a result of bool|sort.* 0 dimensions")


def gives_more(op, a, b):
    """Whether Ebb has a result where PyTorch has none: bool is subtracted from numbers, masks select from tensors, a
    bound beyond a dtype is no bound, and f16 overflows."""
    return (op in ("-", "-=") and "bool" in a + b or op in ("-", "-=") and "True" in a + b
            or op in ("masked_fill", "argmax") or op.startswith("clamp") and a[:2] in ("u8", "i3")
            or a.startswith("f16") and b == "2**53+1")


def differs(op, a, b):
    """Whether Ebb's result is another: PyTorch converts a number to u8 and i32 before it compares."""
    return (op in ("==", "!=", "<", "<=", ">", ">=") and ("u8" in a + b or "i32" in a + b)
            and any(number in (a, b) for number in ("-1", "300", "2**53+1"))
            or op in ("any", "all") and a.startswith("u8"))  # PyTorch gives u8


class Promotion(TestCase):
    def test_results_are_those_of_pytorch_or_refused(self):
        with open(os.path.join(_FIXTURES, "promotion.json"), encoding="utf-8") as file:
            table = json.load(file)
        n_equal = 0
        for (op, a, b), run in list_cases(ebb):
            expected, label = table[op if b else op + " of one"][a][b], f"{a} {op} {b}"
            try:
                y = run()
            except (Ebb.Error, TypeError, ValueError, OverflowError, IndexError, AttributeError) as error:
                if expected is not None:
                    self.assertRegex(str(error), _REFUSALS, f"{label} is {expected} in PyTorch")
                continue
            if expected is None:
                self.assertTrue(gives_more(op, a, b), f"{label} gives {y}, which PyTorch refuses")
                continue
            dtype = y.dtype.value_nick
            if not differs(op, a, b):
                self.assertEqual(dtype, expected[0], label)
                self.assertTrue(is_near(y.tolist(), expected[1], _TOLERANCES.get(dtype, 0)),
                                f"{label} gives {y}, not {expected[1]}")
                n_equal += 1
        self.assertGreater(n_equal, 2500)

    def test_bits_are_joined(self):
        x = ebb.tensor([12, -1, 5]).to("i32")
        self.assertEqual([(x & 10).tolist(), (10 | x).tolist(), (~x).tolist()],
                         [[8, 10, 0], [14, -1, 15], [-13, 0, -6]])
        with self.assertRaisesRegex(Ebb.Error, "bitwise_and: needs integers or bool, not f32; compare first"):
            x & ebb.ones(3)
        with self.assertRaisesRegex(OverflowError, "add: 256 is no number of u8, which holds 0 to 255: cast"):
            ebb.zeros(2, dtype="u8") + 256


if __name__ == "__main__":
    main()
