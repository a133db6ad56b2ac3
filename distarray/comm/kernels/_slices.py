"""Numba kernels that cut matrices into slices, and find the first bits of their items.

They are passes over rows in the first-level cache, in loops that the processor's vectors take. The
items of a row lie side by side. What is found is as in `ops/linear_algebra/_reproducible`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from distarray.comm.kernels._exact_digits import MAGNITUDE, loop
from distarray.comm.kernels._intrinsics import bits_of, double_of
from distarray.comm.kernels._jit import Source

_RUN: Final = 1024
"""Items of a row that are cut at a time: with what they become they fit a first-level cache."""
_FAR: Final = 100
"""Powers of two up to these, and their products with items, are float32."""

_ITEM: Final = {"f4": "CPointer(float32)", "f8": "CPointer(float64)"}


# --- first bits ----------------------------------------------------------------------------------


@loop
def _largest_of(x: Any, at: int, count: int) -> Any:
    largest = np.int64(0)
    for j in range(at, at + count):
        largest = max(largest, bits_of(float(x[j])) & MAGNITUDE)
    return largest


@loop
def _join_largest(x: Any, at: int, count: int, largest: Any) -> None:
    for j in range(count):
        largest[j] = max(largest[j], bits_of(float(x[at + j])) & MAGNITUDE)


@loop
def _head_row(x: Any, at: int, count: int, power: float, heads: Any, to: int) -> Any:
    total = np.int64(0)
    scale = np.float32(power)
    for j in range(count):
        head = np.int32(abs(np.float32(x[at + j])) * scale)
        heads[to + j] = np.float32(head)
        total += head
    return np.float32(total)


@loop
def _head_columns(x: Any, at: int, count: int, powers: Any, heads: Any, to: int, sums: Any) -> None:
    for j in range(count):
        scale = np.float32(double_of(powers[j]))
        head = np.float32(np.int32(abs(np.float32(x[at + j])) * scale))
        heads[to + j] = head
        sums[j] += head


def _find(
    x: Any, n0: int, s0: int, n1: int, by_rows: int, bits: int, largest: Any, powers: Any,
    heads: Any, sums: Any,
) -> int:  # fmt: skip
    lines, depth = (n0, n1) if by_rows else (n1, n0)
    for i in range(lines):
        largest[i] = 0
    for i in range(n0):
        if by_rows:
            largest[i] = _largest_of(x, i * s0, n1)
        else:
            _join_largest(x, i * s0, n1, largest)
    for i in range(lines):
        sums[i] = np.float32(0.0)
        by = bits - ((largest[i] >> 52) - 1022)
        if largest[i] and not -_FAR < by < _FAR:  # what is not finite is as if it were huge
            return 1
        powers[i] = by + 1023 << 52 if largest[i] else 0
    for i in range(n0):
        if by_rows:
            sums[i] = _head_row(x, i * s0, n1, double_of(powers[i]), heads, i * n1)
        else:
            _head_columns(x, i * s0, n1, powers, heads, i * n1, sums)
    half = np.float32(1 << (bits - 1))
    for i in range(lines):
        if not largest[i]:
            first, step = (i * n1, 1) if by_rows else (i, n1)
            for j in range(depth):
                heads[first + j * step] = half
            sums[i] = half * np.float32(depth)
    return 0


def find_heads(kind: str) -> Source:
    """Return the kernel that finds the first bits of magnitudes of items of a kind, "f4" or "f8".

    The arguments: the items; how many rows, the stride between them, in items, and how many
    columns; whether each row has a scale, or each column; how many bits; where the bits of their
    largest magnitudes go; memory for as many numbers; where the heads go, and their sums. It
    returns 1, and has found nothing, where float32 does not hold a scale.
    """
    numbers = ", ".join(["int64"] * 5)
    where = "CPointer(int64), CPointer(int64), CPointer(float32), CPointer(float32)"
    return Source(_find, f"int64({_ITEM[kind]}, {numbers}, {where})")


# --- slices --------------------------------------------------------------------------------------


@loop
def _fetch(x: Any, at: int, count: int, power: float, out: Any, to: int) -> None:
    for j in range(count):
        out[to + j] = float(x[at + j]) * power


@loop
def _fetch_each(x: Any, at: int, count: int, powers: Any, first: int, out: Any, to: int) -> None:
    for j in range(count):
        out[to + j] = float(x[at + j]) * powers[first + j]


@loop
def _cut_run(larger: float, count: int, out: Any, to: int, left: int) -> None:
    for j in range(count):
        item = out[left + j]
        part = (item + larger) - larger
        out[to + j] = part
        out[left + j] = item - part


@loop
def _round_run(larger: float, count: int, out: Any, to: int) -> None:
    for j in range(to, to + count):
        out[j] = (out[j] + larger) - larger


def _cut(
    x: Any, n0: int, s0: int, n1: int, by_rows: int, powers: Any, larger: Any, ends: Any,
    slices: int, out: Any,
) -> None:  # fmt: skip
    for i in range(n0):
        for at in range(0, n1, _RUN):
            count, to = min(_RUN, n1 - at), i * n1 + at
            begins = True
            for k in range(slices):
                left = ends[k] * n0 * n1 + to
                if begins and by_rows:
                    _fetch(x, i * s0 + at, count, powers[i], out, left)
                elif begins:
                    _fetch_each(x, i * s0 + at, count, powers, at, out, left)
                begins = k == ends[k]
                if begins:
                    _round_run(larger[k], count, out, left)
                else:
                    _cut_run(larger[k], count, out, k * n0 * n1 + to, left)


def cut_slices(kind: str) -> Source:
    """Return the kernel that cuts items of a kind, "f4" or "f8", into slices.

    The arguments: the items; how many rows, the stride between them, in items, and how many
    columns; whether each row is scaled, or each column; by which powers of two; for each slice what
    is added to items so that they are rounded to its last bit, and which slice is the last one of
    its chain; how many slices; where these go, one after another.
    """
    numbers = ", ".join(["int64"] * 4)
    where = "CPointer(float64), CPointer(float64), CPointer(int64), int64, CPointer(float64)"
    return Source(_cut, f"void({_ITEM[kind]}, {numbers}, {where})")
