"""Reduce boxes of several ranks' blocks in device memory, any number of them by few launches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np

from distarray.comm.cuda._launch import address_of, launch, table, threads, usable
from distarray.comm.cuda._tables import WIDEST, Record, divisor, parts, tabled, widest_word
from distarray.comm.kernels._jit import load_kernels
from distarray.comm.kernels._loop_nest import Axis, joint_axes
from distarray.typing import Buffer

_KERNELS: Final = "distarray.comm.cuda._reduce_kernel"

LEAST_BYTES: Final = 16 * 1024
"""Below this size CuPy reduces two blocks, by one function; what would take it more than one is
always reduced by the kernel. Not measured yet."""

_MOST_BOXES: Final = 4096
"""So many boxes reductions may become that have more than three axes that cannot be joined."""

_Launch: TypeAlias = tuple[str, int, int, tuple[int, int], int]
"""Kind of item and how many are taken at once; where the table begins, its numbers of boxes and
tiles; bytes of a record."""


def reduced(
    boxes: Sequence[tuple[Buffer, Sequence[Buffer]]], kind: str, op: str, number: int
) -> bool:
    """Set the first array of each pair to the sources, combined in their order, if kernels serve.

    There is one launch for all boxes with the same number of sources, and the same width of words.

    Parameters
    ----------
    boxes
        The first is float64 for "avg" of integers, else of the sources' dtype, and of their shape.
        It shares no memory with sources, but that of a single box may be its first source.
    kind, op
        Of the kernel (see ``reducing``); ``op`` among bytes for truth values.
    number
        Items of the kind in an element.

    Returns
    -------
    Whether it was done. If not, some boxes may have been written.
    """
    arrays = [(dst, *sources) for dst, sources in boxes if dst.size]
    if not arrays:
        return True
    nbytes = calls = 0
    for dst, *sources in arrays:
        nbytes += dst.nbytes
        calls += max(1, len(sources) - 1)
    if calls < 2 and nbytes < LEAST_BYTES:
        return False
    dtype = arrays[0][1].dtype
    averaged = np.dtype(np.float64) if op == "avg" and kind[0] in "iu" else dtype
    if not all(_reducible(box, dtype, averaged) for box in arrays):
        return False
    key = (
        *(kind, op, number),
        *((box[0].shape, *((address_of(array), array.strides) for array in box)) for box in arrays),
    )
    at, launches = table(key, lambda: _tables(arrays, kind, op, number))
    module = load_kernels(_KERNELS)
    return launches is not None and all(
        launch(module.reducing(found, op, lanes), at[start:] if start else at, *counts, length)
        for found, lanes, start, counts, length in launches
    )


def _reducible(box: Sequence[Buffer], dtype: np.dtype[Any], result: np.dtype[Any]) -> bool:
    dst, *sources = box
    return (
        dst.dtype == result
        and all(source.dtype == dtype and source.shape == dst.shape for source in sources)
        and all(map(usable, box))
    )


def _tables(
    boxes: Sequence[Sequence[Buffer]], kind: str, op: str, number: int
) -> tuple[np.ndarray, list[_Launch] | None]:
    """Return the tables of all launches, one after another, and what each launch is given."""
    groups: dict[tuple[str, int, int], list[Record]] = {}
    for arrays in boxes:
        addresses, axes = joint_axes(*arrays)
        sizes = [array.itemsize // number for array in arrays]
        found, lanes, axes = _suited(kind, op, addresses, _with_parts(axes, sizes, number), sizes)
        groups.setdefault((found, lanes, len(arrays)), []).extend(_records(addresses, axes))
    if sum(map(len, groups.values())) > _MOST_BOXES:
        return np.zeros(0, np.int64), None
    made, launches, start = [], [], 0
    for (found, lanes, _), records in groups.items():
        one, counts = tabled(records)
        launches.append((found, lanes, start, counts, 8 * (len(records[0]) - 1)))
        made.append(one)
        start += one.size  # even: tables and records begin at multiples of 16 bytes
    return np.concatenate(made), launches


def _with_parts(axes: Sequence[Axis], sizes: Sequence[int], number: int) -> list[Axis]:
    """Return axes that reach every part of an element."""
    axes = list(axes)
    if number == 1:
        return axes
    if axes and list(axes[-1][1:]) == [number * size for size in sizes]:
        return [*axes[:-1], (axes[-1][0] * number, *sizes)]
    return [*axes, (number, *sizes)]


def _suited(
    kind: str, op: str, addresses: Sequence[int], axes: list[Axis], sizes: Sequence[int]
) -> tuple[str, int, list[Axis]]:
    """Return the kind of item, how many are taken at once, and the axes in such."""
    dense = bool(axes) and list(axes[-1][1:]) == list(sizes)
    outer = axes[:-1] if dense else axes
    run = axes[-1][0] * sizes[0] if dense else sizes[0]
    strides = [stride for axis in outer for stride in axis[1:]]
    word = widest_word(run, *addresses, *strides)
    if op in ("band", "bor", "bxor"):
        return f"u{word}", 1, _in_words(outer, run, word, len(sizes))
    if kind in ("f2", "bf16", "f4", "f8") and dense:
        width = WIDEST if word == WIDEST else 4  # few kernels: each is compiled when first used
        if sizes[0] < width <= word:
            return kind, width // sizes[0], _in_words(outer, run, width, len(sizes))
    return kind, 1, axes


def _in_words(outer: Sequence[Axis], run: int, word: int, arrays: int) -> list[Axis]:
    return [*outer, (run // word, *[word] * arrays)]


def _records(addresses: Sequence[int], axes: Sequence[Axis]) -> Iterator[Record]:
    """Yield the number of tiles and the record of each box."""
    module = load_kernels(_KERNELS)
    nothing = (1, *[0] * len(addresses))
    inner = [*reversed(axes)] or [nothing]
    for offset, box in parts(inner, module.AXES):
        padded = [*box, *[nothing] * (module.AXES - len(box))]
        volume = prod(axis[0] for axis in box)
        dst, *sources = (a + e for a, e in zip(addresses, offset, strict=True))
        record = [-(-volume // (4 * threads())), volume, len(sources), dst, 0]
        for axis in padded:
            record += [axis[0], *divisor(axis[0]), axis[1]]
        for i, source in enumerate(sources):
            record += [source, *(axis[2 + i] for axis in padded)]
        yield record
