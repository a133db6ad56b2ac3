"""Nested sequences of ranks, as users write meshes: to a shape with flat ranks, and back."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from distarray.errors import ArgumentTypeError, MeshError
from distarray.typing import Shape

Nested = int | tuple["Nested", ...]


def grid(ranks: Any) -> tuple[Shape, list[int]]:
    """Return the shape of nested sequences of integers, and the integers."""
    if hasattr(ranks, "tolist"):
        ranks = ranks.tolist()
    shape: list[int] = []
    level: list[Any] = [ranks]
    while level and all(isinstance(item, Sequence) and not isinstance(item, str) for item in level):
        lengths = {len(item) for item in level}
        if len(lengths) > 1:
            raise MeshError(
                f"ranks {ranks!r} do not form a grid: rows of lengths {sorted(lengths)}; give "
                "every row of a mesh axis as many ranks"
            )
        shape.append(lengths.pop())
        level = [rank for item in level for rank in item]
    if not shape or any(isinstance(item, Sequence) for item in level):
        raise ArgumentTypeError(
            f"ranks {ranks!r} are not nested sequences of integers of one depth; pass for instance "
            "[[0, 1], [2, 3]], or a shape to init_device_mesh"
        )
    return tuple(shape), level


def nested(flat: Sequence[int], shape: Shape) -> Nested:
    """Return flat values in row-major order as nested tuples of a shape."""
    if not shape:
        return flat[0]
    step = prod(shape[1:])
    return tuple(nested(flat[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0]))
