"""Reduce boxes of several ranks' blocks in device memory, by one launch of one kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from distarray.comm._device_launch import address_of, launch, table, threads, usable
from distarray.comm._device_tables import Record, divisor, parts, tabled, widest_word
from distarray.comm._jit import kernels
from distarray.comm._strided import Axis, joint_axes
from distarray.typing import Buffer

_KERNELS: Final = "distarray.comm._kernels_cuda_reduce"

LEAST_BYTES: Final = 16 * 1024
"""Below this size CuPy reduces two blocks, by one function each time; three and more are always
reduced by the kernel. Not measured yet."""

_MOST_BOXES: Final = 4096
"""So many boxes a reduction may become, which has more than three axes that cannot be joined."""


def reduced(dst: Buffer, sources: Sequence[Buffer], kind: str, op: str, number: int) -> bool:
    """Set ``dst`` to the sources, combined in their order; tell whether it was done.

    Parameters
    ----------
    dst
        float64 for "avg" of integers, else of the sources' dtype; it may be the first source.
    sources
        Of ``dst``'s shape.
    kind, op
        Of the kernel (see ``reducing``); ``op`` among bytes for truth values.
    number
        Items of the kind in an element.
    """
    if not dst.size:
        return True
    if len(sources) < 3 and dst.nbytes < LEAST_BYTES:
        return False
    arrays = (dst, *sources)
    dtype = sources[0].dtype
    averaged = np.dtype(np.float64) if op == "avg" and kind[0] in "iu" else dtype
    if dst.dtype != averaged or not all(map(usable, arrays)):
        return False
    if any(source.dtype != dtype or source.shape != dst.shape for source in sources):
        return False
    key = (
        *(kind, op, number, dst.shape),
        *((address_of(array), array.strides) for array in arrays),
    )

    def build() -> tuple[np.ndarray, Any]:
        addresses, axes = joint_axes(*arrays)
        sizes = [array.itemsize // number for array in arrays]
        found, lanes, axes = _suited(kind, op, addresses, _with_parts(axes, sizes, number), sizes)
        records = list(_records(addresses, axes))
        length = 8 * (len(records[0]) - 1)
        if len(records) > _MOST_BOXES:
            return np.zeros(0, np.int64), None
        made, counts = tabled(records)
        return made, (found, lanes, *counts, length)

    at, facts = table(key, build)
    if facts is None:
        return False
    found, lanes, boxes, tiles, length = facts
    kernel = kernels(_KERNELS).reducing(found, op, lanes)
    return launch(kernel, at, boxes, tiles, length)


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
    if kind in ("f2", "bf16") and dense and word >= 4:
        return kind, 2, _in_words(outer, run, 4, len(sizes))
    return kind, 1, axes


def _in_words(outer: Sequence[Axis], run: int, word: int, arrays: int) -> list[Axis]:
    return [*outer, (run // word, *[word] * arrays)]


def _records(addresses: Sequence[int], axes: Sequence[Axis]) -> Iterator[Record]:
    """Yield the number of tiles and the record of each box."""
    module = kernels(_KERNELS)
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
