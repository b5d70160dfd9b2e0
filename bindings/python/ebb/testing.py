"""Comparisons by the names of torch.testing."""
from typing import Any

import ebb

_TOLERANCES = {ebb.float32: (1.3e-6, 1e-5), ebb.bfloat16: (1.6e-2, 1e-5), ebb.float16: (1e-3, 1e-5)}


def assert_close(actual: Any, expected: Any, *, rtol: Any = None, atol: Any = None, equal_nan: bool = False,
                 check_dtype: bool = True, msg: Any = None, **_: Any) -> None:
    """Raises an AssertionError unless two tensors, numbers, lists, or dicts are nearly equal."""
    if isinstance(expected, dict):
        if actual.keys() != expected.keys():
            raise AssertionError(msg or f"keys {list(actual)} are not {list(expected)}")
        actual, expected = list(actual.values()), [expected[key] for key in actual]
    if isinstance(expected, (list, tuple)):
        if len(actual) != len(expected):
            raise AssertionError(msg or f"{len(actual)} values are not {len(expected)}")
        for one, other in zip(actual, expected):
            assert_close(one, other, rtol=rtol, atol=atol, equal_nan=equal_nan, check_dtype=check_dtype, msg=msg)
        return
    a, b = ebb.as_tensor(actual), ebb.as_tensor(expected)
    if a.shape != b.shape or check_dtype and a.dtype != b.dtype:
        raise AssertionError(msg or f"a tensor of {a.dtype} and shape {a.shape} is not one of {b.dtype} and {b.shape}")
    wanted = _TOLERANCES.get(b.dtype, (0.0, 0.0))
    rtol, atol = (wanted[i] if given is None else given for i, given in enumerate((rtol, atol)))
    if not a.to(b.dtype).allclose(b, rtol, atol, equal_nan):
        worst = abs(a.float() - b.float()).max().item()
        raise AssertionError(msg or f"tensors differ by {worst:g}: rtol is {rtol:g} and atol {atol:g}")
