"""Aliases for shapes, boxes, indices and buffers, for annotations only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

Shape: TypeAlias = tuple[int, ...]
Coordinate: TypeAlias = tuple[int, ...]
Box: TypeAlias = tuple[tuple[int, int], ...]
"""Half-open interval per array axis, in global indices."""
AxisName: TypeAlias = str | int
Axes: TypeAlias = int | Sequence[int] | None
Buffer: TypeAlias = Any
"""A NumPy or CuPy array."""


def __dir__() -> list[str]:
    return ["Axes", "AxisName", "Box", "Buffer", "Coordinate", "Shape"]
