"""Norms and products by the names of torch.linalg; for decompositions there is numpy.linalg."""
from typing import Any

import ebb
from ebb import Tensor
from ebb._advice import find_space


def norm(A: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The root of the sum of squares; ord: of a vector's norm."""
    if ord not in (None, "fro") and (A.ndim != 1 and dim is None or isinstance(dim, (tuple, list)) and len(dim) > 1):
        raise ValueError(f"norm(): ord is {ord!r} for a matrix: write numpy.linalg.norm(t.numpy(), {ord!r})")
    return (A if dtype is None else A.to(dtype)).norm(ord, dim, keepdim)


def vector_norm(x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The norm of all elements or along dimensions."""
    return (x if dtype is None else x.to(dtype)).norm(ord, dim, keepdim)


def matrix_norm(A: Tensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False) -> Tensor:
    """The root of the sum of squares of each matrix."""
    return norm(A, ord, dim, keepdim)


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """The sums of products along a dimension."""
    return (x * y).sum(dim)


def matmul(input: Tensor, other: Tensor) -> Tensor:
    return input @ other


def multi_dot(tensors: Any) -> Tensor:
    """The product of several matrices, from left to right."""
    result, *rest = tensors
    for other in rest:
        result = result @ other
    return result


def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    return ebb.cross(input, other, dim)


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    return A.diagonal(offset, dim1, dim2)


__path__: "list[str]" = []  # so that a from … import asks for advice, as ebb's finder gives it


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(f"ebb.linalg has no {name!r}: write " + (
        find_space(name) or f"ebb.tensor(numpy.linalg.{name}(t.numpy()))"))
