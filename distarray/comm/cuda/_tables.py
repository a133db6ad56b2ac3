"""Lay out what kernels on a GPU read: tables of boxes, and numbers that replace divisions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Final, TypeAlias

import numpy as np

from distarray.comm.kernels._loop_nest import Axis, offsets

Record: TypeAlias = list[int]
"""The number of tiles of a box, then what the kernel reads of it."""

WIDEST: Final = 16
"""Bytes of the widest word that a thread moves."""

_MOST_ITEMS: Final = 1 << 30
"""Items of a box; larger ones become several, so that indices fit in 31 bits."""


def tabled(records: Sequence[Record]) -> tuple[np.ndarray, tuple[int, int]]:
    """Return a table of boxes (see ``_kernels_cuda``), and the numbers of boxes and tiles.

    The largest come first: blocks of threads that still work at the end do little things.
    """
    ordered = sorted(records, key=lambda record: -record[0])
    first = [0]
    for record in ordered:
        first.append(first[-1] + record[0])
    boxes = len(ordered)
    head = (boxes + 2) // 2 * 2
    length = len(ordered[0]) - 1 if ordered else 0
    made = np.zeros(head + boxes * length, np.int64)
    made[: boxes + 1] = first
    if boxes:
        made[head:].reshape(boxes, length)[...] = [record[1:] for record in ordered]
    return made, (boxes, first[-1])


def divisor(n: int) -> tuple[int, int]:
    """Return a multiplier and a shift: ``i * multiplier >> shift == i // n`` for i below 2**31.

    By T. Granlund and P. L. Montgomery, "Division by invariant integers using multiplication",
    PLDI'94. The multiplier has 32 bits.
    """
    shift = 31 + (n - 1).bit_length()
    return (1 << shift) // n + 1, shift


def widest_word(*lengths: int) -> int:
    """Return the largest word, in bytes, that addresses, strides and lengths are multiples of."""
    joint = WIDEST
    for length in lengths:
        joint |= length
    return joint & -joint


def parts(
    axes: Sequence[Axis], most: int, *, fixed: int = 0
) -> Iterator[tuple[tuple[int, ...], Sequence[Axis]]]:
    """Yield the offset in each array, and the axes, of boxes that make up one of any size.

    Parameters
    ----------
    axes
        Of the whole, innermost first; at least one.
    most
        Most axes of a box.
    fixed
        So many of the innermost axes stay uncut.
    """
    beyond = axes[most:]
    for offset in offsets(beyond, len(axes[0]) - 1):
        for more, part in _cut(axes[:most], fixed):
            yield tuple(map(sum, zip(offset, more, strict=True))), part


def _cut(axes: Sequence[Axis], fixed: int) -> Iterator[tuple[tuple[int, ...], Sequence[Axis]]]:
    free = range(min(fixed, len(axes)), len(axes))
    longest = max(free, key=lambda i: axes[i][0], default=None)
    if longest is None or axes[longest][0] == 1 or prod(axis[0] for axis in axes) <= _MOST_ITEMS:
        yield (0,) * (len(axes[0]) - 1), axes
        return
    n, *strides = axes[longest]
    half = n // 2
    for start, count in ((0, half), (half, n - half)):
        part = [*axes[:longest], (count, *strides), *axes[longest + 1 :]]
        for offset, found in _cut(part, fixed):
            moved = zip(strides, offset, strict=True)
            yield tuple(start * stride + more for stride, more in moved), found
