"""Copies and reductions of boxes of device memory, any number of them by one launch.

Boxes are first reduced to the fewest axes that reach all their items (`joint_axes`). Tables of them
(see `_kernels`) stay in device memory: where a redistribution is repeated on the same blocks,
nothing is built or uploaded again. What CuPy does in one call is left to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice
from math import prod
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from distarray.comm.cuda._launch import is_usable, launch, memory, table, threads
from distarray.comm.kernels._jit import load_kernels
from distarray.comm.kernels._loop_nest import Axis, address_of, joint_axes, offsets
from distarray.typing import Buffer

_KERNELS: Final = "distarray.comm.cuda._kernels"

_WIDEST: Final = 8
"""Bytes of the widest word that a thread moves, the widest integer."""

_LONG_ROW: Final = 64
"""Bytes of rows from which a single box is not left to CuPy.

Measured on an H100: such go at 82 to 93 % of a device copy, by CuPy at 14 to 55 %; not below.
"""

_WORD_COST: Final = 1.5
"""So many times as long as an item takes a word of a row, of which most have both; not measured."""

_MOST_ITEMS: Final = 1 << 30
"""Items of a box; larger ones become several, so that indices fit in 32 bits."""

_MOST_BOXES: Final = 4096
"""So many boxes a call may become: one has three axes, and arrays more that cannot be joined.

Not measured: more of them are left to CuPy's own strides.
"""

Record: TypeAlias = list[int]
"""The number of tiles of a box, then what the kernel reads of it."""


def launch_copies(pairs: Sequence[tuple[Buffer, Buffer]]) -> bool:
    """Copy the second array of each pair into the first, by one launch; tell whether it was done.

    The arrays are views of blocks: the same shape and dtype in a pair, any strides, no shared
    memory. A box that comes alone is left to CuPy where that is as quick (`_is_faster_by_kernel`).
    """
    pairs = [(dst, src) for dst, src in pairs if dst.size]
    if not pairs:
        return True
    if not all(_same_bytes(dst, src) for dst, src in pairs):
        return False
    if len(pairs) == 1 and not _is_faster_by_kernel(*pairs[0]):
        return False
    key = tuple(
        (address_of(dst), address_of(src), dst.strides, src.strides, dst.shape, dst.itemsize)
        for dst, src in pairs
    )

    def build() -> tuple[np.ndarray, Any]:
        boxes = [_runs(dst, src) for dst, src in pairs]
        word = widest_word(*chain.from_iterable(map(_lengths, boxes)))
        nbytes = sum(dst.nbytes for dst, _ in pairs)
        by_rows = _WORD_COST * sum(map(_words_of, boxes)) <= nbytes / word
        start = memory(f"u{word}")[1]
        records = (
            _row_records(box) if by_rows else _copy_records(box, word, start) for box in boxes
        )
        host, counts = make_table(chain.from_iterable(records))
        return host, counts and (0 if by_rows else word, *counts)

    at, facts = table(key, build)
    if facts is None:
        return False
    word, boxes, tiles = facts
    kernels = load_kernels(_KERNELS)
    if word:
        return launch(kernels.copy_boxes, tiles, memory(f"u{word}")[0], at, boxes, tiles)
    return launch(kernels.copy_rows, tiles, at, boxes, tiles)


def launch_reductions(
    boxes: Sequence[tuple[Buffer, Sequence[Buffer]]], kind: str, op: str, number: int
) -> bool:
    """Set the first array of each pair to the sources, combined in their order; tell if done.

    It is float64 for "avg" of integers, else of the sources' dtype, and shares no memory with
    sources, but that of a single box may be its first source. ``kind`` and ``op`` are the kernel's
    (see ``reducing``; ``op`` among bytes for truth values), ``number`` the items of the kind in an
    element. A box of two sources that comes alone is left to CuPy where that needs one call.
    """
    arrays = [(dst, *sources) for dst, sources in boxes if dst.size]
    if not arrays:
        return True
    if len(arrays) == 1 and len(arrays[0]) <= 3 and op != "avg" and kind not in ("f2", "bf16"):
        return False
    dtype = arrays[0][1].dtype
    averaged = op == "avg" and kind[0] in "iu"
    if not all(_is_reducible(box, dtype, np.dtype("f8") if averaged else dtype) for box in arrays):
        return False
    source = np.dtype("u2" if kind == "bf16" else kind)
    result = np.dtype("f8") if averaged else source
    key = (
        *(kind, op, number),
        *((box[0].shape, *((address_of(array), array.strides) for array in box)) for box in arrays),
    )
    kernels = load_kernels(_KERNELS)
    length = kernels.SRC + kernels.ARRAY * (max(map(len, arrays)) - 1)

    def build() -> tuple[np.ndarray, Any]:
        start = memory(source)[1]
        found = []
        for box in arrays:
            addresses, axes = joint_axes(*box)
            sizes = [result.itemsize] + [source.itemsize] * (len(box) - 1)
            found.append((addresses, _with_parts(axes, sizes, number), sizes))
        flat = all(len(axes) == 1 and [*axes[0][1:]] == sizes for _, axes, sizes in found)
        each = kernels.EACH_FLAT if flat else kernels.EACH
        records = (_reduce_records(*box, length, start, each) for box in found)
        host, counts = make_table(chain.from_iterable(records))
        return host, counts and (flat, *counts)

    at, facts = table(key, build)
    if facts is None:
        return False
    flat, count, tiles = facts
    kernel = kernels.reducing(kind, op, flat)
    return launch(kernel, tiles, memory(result)[0], memory(source)[0], at, count, tiles, length)


def _same_bytes(dst: Buffer, src: Buffer) -> bool:
    return (
        dst.dtype == src.dtype
        and dst.shape == src.shape
        and isinstance(dst, np.ndarray) == isinstance(src, np.ndarray)
        and is_usable(dst)
        and is_usable(src)
        and not dst.dtype.hasobject
    )


def _is_faster_by_kernel(dst: Buffer, src: Buffer) -> bool:
    """Tell whether kernels are quicker than CuPy at a box: one transposed, or rows of small items.

    Measured on an H100, as shares of a device copy: CuPy moves rows of float64 and complex128 at 90
    to 100 %, as it does what has no gaps, of float32 at 56 %, of smaller items at 28 and 14 %.
    """
    if _transposed_axis(joint_axes(dst, src)[1], dst.itemsize) is not None:
        return True
    runs = _runs(dst, src)
    return dst.itemsize < _WIDEST and bool(runs.axes) and runs.nbytes >= _LONG_ROW


def _is_reducible(box: Sequence[Buffer], dtype: np.dtype[Any], result: np.dtype[Any]) -> bool:
    dst, *sources = box
    return (
        dst.dtype == result
        and all(source.dtype == dtype and source.shape == dst.shape for source in sources)
        and all(map(is_usable, box))
        and all(
            length % array.dtype.alignment == 0
            for array in box
            for length in (address_of(array), *array.strides)
        )
    )


# --- tables --------------------------------------------------------------------------------------


def make_table(records: Iterable[Record]) -> tuple[np.ndarray, tuple[int, int] | None]:
    """Return a table of boxes, and the numbers of boxes and tiles, None of too many."""
    kept = list(islice(records, _MOST_BOXES + 1))
    if len(kept) > _MOST_BOXES:
        return np.zeros(0, np.int64), None
    first = [0, *accumulate(record[0] for record in kept)]
    entries = chain(first, *(record[1:] for record in kept))
    return np.fromiter(entries, np.int64), (len(kept), first[-1])


def widest_word(*lengths: int) -> int:
    """Return the largest word, in bytes, that addresses, strides and lengths are multiples of."""
    joint = _WIDEST
    for length in lengths:
        joint |= length
    return joint & -joint


class _Runs(NamedTuple):
    """A destination and a source: bytes without a gap in both, along some axes."""

    addresses: list[int]
    axes: list[Axis]
    nbytes: int


def _runs(dst: Buffer, src: Buffer) -> _Runs:
    addresses, axes = joint_axes(dst, src)
    item = dst.itemsize
    if axes and axes[-1][1] == axes[-1][2] == item:
        return _Runs(addresses, axes[:-1], item * axes[-1][0])
    return _Runs(addresses, axes, item)


def _lengths(box: _Runs) -> Iterator[int]:
    """Yield all that must be multiples of a word."""
    yield from box.addresses
    yield box.nbytes
    for axis in box.axes:
        yield from axis[1:]


def _words_of(box: _Runs) -> int:
    """Return how many words the rows of a box touch in its destination."""
    return _words_of_row(box) * prod(axis[0] for axis in box.axes)


def _words_of_row(box: _Runs) -> int:
    word = load_kernels(_KERNELS).WORD
    if all(length % word == 0 for length in (box.addresses[0], *(axis[1] for axis in box.axes))):
        return -(-box.nbytes // word)
    return (box.nbytes + 2 * word - 2) // word  # of one that begins with the last byte of a word


def _transposed_axis(axes: Sequence[Axis], item: int) -> int | None:
    """Return the axis without gaps in the source where another one has none in the destination."""
    if not axes or axes[-1][1] != item or axes[-1][2] == item:
        return None
    return next((i for i, axis in enumerate(axes) if axis[2] == item), None)


def _copy_records(runs: _Runs, word: int, start: int) -> Iterator[Record]:
    addresses, axes, nbytes = runs
    if nbytes > word or not axes:
        axes = [*axes, (nbytes // word, word, word)]
    across = _transposed_axis(axes, word)
    inner = [tuple(axis) for axis in reversed(axes)]
    if across is not None:
        inner.insert(1, inner.pop(len(axes) - 1 - across))
    for starts, box in _boxes_of(addresses, inner, [word, word], start):
        side = load_kernels(_KERNELS).SIDE
        tiles = _tiles(box, load_kernels(_KERNELS).EACH)
        if across is not None:
            tiles = -(-box[0][0] // side) * -(-box[1][0] // side) * box[2][0]
        yield _record(tiles, int(across is not None), starts, box)


def _row_records(runs: _Runs) -> Iterator[Record]:
    addresses, axes, nbytes = runs
    kernels = load_kernels(_KERNELS)
    inner = [(nbytes, 1, 1), *reversed(axes)]
    for starts, (row, *outer) in _boxes_of(addresses, inner, [1, 1], 0):
        words = _words_of_row(_Runs(starts, outer, row[0]))
        box = [(words, 0, 0), *outer]
        yield _record(_tiles(box, kernels.WORDS), row[0], starts, box)


def _reduce_records(
    addresses: Sequence[int],
    axes: Sequence[Axis],
    sizes: Sequence[int],
    length: int,
    start: int,
    each: int,
) -> Iterator[Record]:
    for starts, box in _boxes_of(addresses, [*reversed(axes)], sizes, start):
        record = _record(_tiles(box, each), len(addresses) - 1, starts, box)
        yield record + [0] * (1 + length - len(record))


def _with_parts(axes: list[Axis], sizes: Sequence[int], number: int) -> list[Axis]:
    """Return axes that reach every part of an element."""
    if number == 1:
        return axes or [(1, *sizes)]
    if axes and list(axes[-1][1:]) == [number * size for size in sizes]:
        return [*axes[:-1], (number * axes[-1][0], *sizes)]
    return [*axes, (number, *sizes)]


def _tiles(box: Sequence[Axis], each: int) -> int:
    return -(-prod(axis[0] for axis in box) // (each * threads()))


def _record(tiles: int, kind: int, starts: Sequence[int], box: Sequence[Axis]) -> Record:
    divisor = load_kernels(_KERNELS).divisor
    record = [tiles, prod(axis[0] for axis in box), kind]
    for n, *_ in box[:-1]:
        record += [n, *divisor(n)]
    for i, start in enumerate(starts):
        record += [start, *(axis[1 + i] for axis in box)]
    return record


def _boxes_of(
    addresses: Sequence[int], inner: Sequence[Axis], sizes: Sequence[int], start: int
) -> Iterator[tuple[list[int], list[Axis]]]:
    """Yield boxes that make up one of any size, in items counted from an address on.

    ``inner`` are its axes, the innermost first; ``sizes`` the bytes of an item of each array.
    """
    most = load_kernels(_KERNELS).AXES
    nothing = (1, *[0] * len(sizes))
    starts = [(a - start) // size for a, size in zip(addresses, sizes, strict=True)]
    axes = [
        (n, *(stride // size for stride, size in zip(strides, sizes, strict=True)))
        for n, *strides in inner
    ]
    for offset, box in parts([*axes, *[nothing] * (most - len(axes))], most):
        yield [a + e for a, e in zip(starts, offset, strict=True)], [*box]


def parts(axes: Sequence[Axis], most: int) -> Iterator[tuple[tuple[int, ...], Sequence[Axis]]]:
    """Yield the offset in each array, and the axes (``most`` at most), of boxes that make up one.

    ``axes`` are those of the whole, innermost first; at least one.
    """
    for offset in offsets(axes[most:], len(axes[0]) - 1):
        for more, part in _cut(axes[:most]):
            yield tuple(map(sum, zip(offset, more, strict=True))), part


def _cut(axes: Sequence[Axis]) -> Iterator[tuple[tuple[int, ...], Sequence[Axis]]]:
    """Halve the longest axis until no part has too many items."""
    if prod(axis[0] for axis in axes) <= _MOST_ITEMS:
        yield (0,) * (len(axes[0]) - 1), axes
        return
    longest = max(range(len(axes)), key=lambda i: axes[i][0])
    n, *strides = axes[longest]
    half = n // 2
    for start, count in ((0, half), (half, n - half)):
        part = [*axes[:longest], (count, *strides), *axes[longest + 1 :]]
        for offset, found in _cut(part):
            moved = zip(strides, offset, strict=True)
            yield tuple(start * stride + more for stride, more in moved), found
