"""Copy, fill and pad boxes of device memory, any number of them by one launch of one kernel.

A copy is first reduced to the fewest axes that reach all its bytes (``joint_axes``), then to the
kind of box that suits it (see ``_kernels_cuda``). Tables of boxes stay in device memory: where a
redistribution is repeated on the same blocks, nothing is built or uploaded again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from distarray.comm.cuda._launch import address_of, launch, table, threads, usable
from distarray.comm.cuda._tables import WIDEST, Record, divisor, parts, tabled, widest_word
from distarray.comm.kernels._jit import load_kernels
from distarray.comm.kernels._loop_nest import Axis, joint_axes
from distarray.typing import Buffer, Shape

_KERNELS: Final = "distarray.comm.cuda._copy_kernel"

LEAST_BYTES: Final = 32 * 1024
"""Below this size CuPy copies a box that comes alone. Not measured yet: a guess that a launch by
Numba costs about ten microseconds more than one by CuPy."""

LEAST_BOXES: Final = 3
"""So many boxes are copied by one launch, however small. Not measured yet."""

_SHORTEST_SHIFTED: Final = 16  # words
_LONGEST_SHIFTED: Final = 1 << 32  # such a row is not cut
_TILE_BITS: Final = 10
"""Binary logarithm of the number of items of a tile of a transposed box."""

_LEAST_BITS: Final = 2


def copied(pairs: Sequence[tuple[Buffer, Buffer]]) -> bool:
    """Copy the second array of each pair into the first, by one launch; tell whether it was done.

    Parameters
    ----------
    pairs
        Views of blocks: the same shape and dtype in a pair, any strides, no shared memory.
    """
    pairs = [(dst, src) for dst, src in pairs if dst.size]
    if not pairs:
        return True
    if len(pairs) < LEAST_BOXES and sum(dst.nbytes for dst, _ in pairs) < LEAST_BYTES:
        return False
    if not all(_same_bytes(dst, src) for dst, src in pairs):
        return False
    if len(pairs) == 1 and _both_dense(*pairs[0]):
        return False  # one copy of memory, which CuPy leaves to the driver
    key = tuple(
        (address_of(dst), address_of(src), dst.strides, src.strides, dst.shape, dst.itemsize)
        for dst, src in pairs
    )

    def records() -> Iterator[Record]:
        for dst, src in pairs:
            (d, s), axes = joint_axes(dst, src)
            yield from _copy_records(d, s, axes, dst.itemsize)

    return _run(key, records)


def padded(out: Buffer, src: Buffer, window: tuple[slice, ...], value: Any) -> bool:
    """Set ``out`` to ``src`` in the window and to ``value`` around it; tell whether it was done.

    Every byte is written once, by one launch.
    """
    inner = out[(*window, ...)]
    if out.nbytes < LEAST_BYTES or not _same_bytes(inner, src):
        return False
    pattern = _pattern(value, out.dtype)
    if pattern is None or widest_word(address_of(out), *out.strides) < out.itemsize:
        return False
    inside = [(at.start, at.stop) for at in window]
    key = (
        *(address_of(out), address_of(src), out.strides, src.strides, out.shape),
        *(tuple(inside), pattern, out.itemsize),
    )

    def records() -> Iterator[Record]:
        for around in _around(out.shape, inside):
            part = out[around]
            if part.size:
                [d], axes = joint_axes(part)
                yield from _fill_records(d, axes, out.itemsize, pattern)
        if src.size:
            (d, s), axes = joint_axes(inner, src)
            yield from _copy_records(d, s, axes, out.itemsize)

    return _run(key, records)


def _run(key: Any, records: Any) -> bool:
    def build() -> tuple[np.ndarray, tuple[int, int]]:
        return tabled(list(records()))

    at, (boxes, tiles) = table(key, build)
    return launch(load_kernels(_KERNELS).copy_boxes, at, boxes, tiles)


def _same_bytes(dst: Buffer, src: Buffer) -> bool:
    return (
        dst.dtype == src.dtype
        and dst.shape == src.shape
        and isinstance(dst, np.ndarray) == isinstance(src, np.ndarray)
        and usable(dst)
        and usable(src)
        and not dst.dtype.hasobject
    )


def _both_dense(dst: Buffer, src: Buffer) -> bool:
    return bool(dst.flags.c_contiguous and src.flags.c_contiguous) or bool(
        dst.flags.f_contiguous and src.flags.f_contiguous
    )


def _around(shape: Shape, inside: Sequence[tuple[int, int]]) -> Iterator[tuple[slice, ...]]:
    """Yield boxes that cover what lies outside a box, each element once."""
    for axis, (n, (start, stop)) in enumerate(zip(shape, inside, strict=True)):
        before = tuple(slice(*bounds) for bounds in inside[:axis])
        yield (*before, slice(0, start))
        yield (*before, slice(stop, n))


def _pattern(value: Any, dtype: np.dtype[Any]) -> tuple[int, int] | None:
    """Return 16 bytes of one value again and again, as two int64."""
    if WIDEST % dtype.itemsize or not np.isscalar(value):
        return None
    item = np.empty(WIDEST // dtype.itemsize, dtype)
    item[...] = value
    low, high = item.view(np.int64).tolist()
    return low, high


# --- records -------------------------------------------------------------------------------------


def _copy_records(d: int, s: int, axes: Sequence[Axis], itemsize: int) -> Iterator[Record]:
    """Yield the number of tiles and the record of each box of a copy."""
    if axes and axes[-1][1] == axes[-1][2] == itemsize:
        run, outer = axes[-1][0] * itemsize, axes[:-1]
    else:
        run, outer = itemsize, axes
    word = widest_word(d, s, run, *(stride for axis in outer for stride in axis[1:]))
    across = _across(axes, itemsize, word) if run == itemsize else None
    if across is not None:
        rest = [axis for i, axis in enumerate(axes[:-1]) if i != across]
        yield from _each(d, s, [axes[-1], axes[across], *reversed(rest)], _transposed, word)
    elif word <= 4 and word * _SHORTEST_SHIFTED <= run < _LONGEST_SHIFTED:
        windows = (run + 14) // 8
        yield from _each(d, s, [(windows, 0, 0), *reversed(outer)], _shifted, run)
    else:
        yield from _each(d, s, _in_words(run, word, word, outer), _words, word)


def _fill_records(
    d: int, axes: Sequence[Axis], itemsize: int, pattern: tuple[int, int]
) -> Iterator[Record]:
    """Yield the number of tiles and the record of each box that is filled, of aligned items."""
    run, outer = itemsize, [(n, stride, 0) for n, stride in axes]
    if axes and axes[-1][1] == itemsize:
        run *= axes[-1][0]
        del outer[-1]
    word = widest_word(d, run, *(axis[1] for axis in outer))
    inner = _in_words(run, word, 0, outer)
    for record in _each(d, 0, inner, _words, word):
        where = 1 + load_kernels(_KERNELS).PATTERN
        record[where : where + 2] = pattern
        yield record


def _in_words(run: int, word: int, step: int, outer: Sequence[Axis]) -> list[Axis]:
    """Return the axes of rows of ``run`` bytes, innermost first."""
    rows = [] if run == word else [(run // word, word, step)]
    return [*rows, *reversed(outer)] or [(1, 0, 0)]


def _across(axes: Sequence[Axis], itemsize: int, word: int) -> int | None:
    """Return the axis along which the source is contiguous, where it is not the destination's."""
    if not axes or axes[-1][1] != itemsize or word != itemsize:
        return None
    return next((i for i, axis in enumerate(axes[:-1]) if axis[2] == itemsize), None)


def _each(d: int, s: int, axes: Sequence[Axis], make: Any, size: int) -> Iterator[Record]:
    """Yield the boxes that axes, innermost first, become: few axes, not too many words."""
    most = load_kernels(_KERNELS).AXES
    for (e, t), part in parts(axes, most, fixed=int(make is not _words)):
        yield make(d + e, s + t, part, size)


def _record(
    kind: int, size: int, volume: int, d: int, s: int, axes: Iterable[tuple[int, ...]]
) -> Record:
    module = load_kernels(_KERNELS)
    entries = [0] * module.RECORD
    axes = list(axes)
    for name, value in (
        (module.KIND, kind),
        (module.SIZE, size),
        (module.VOLUME, volume),
        (module.RANK, len(axes)),
        (module.DST, d),
        (module.SRC, s),
    ):
        entries[name] = value
    at = module.FIRST_AXIS
    for axis in axes:
        entries[at : at + module.AXIS] = axis
        at += module.AXIS
    return entries


def _divided(axes: Iterable[Axis]) -> Iterator[tuple[int, ...]]:
    return ((axis[0], *divisor(axis[0]), axis[1], axis[2]) for axis in axes)


def _words(d: int, s: int, axes: Sequence[Axis], word: int) -> Record:
    volume = prod(axis[0] for axis in axes)
    kind = load_kernels(_KERNELS).WORDS
    tiles = -(-volume // (4 * threads()))
    return [tiles, *_record(kind, word, volume, d, s, _divided(axes))]


def _shifted(d: int, s: int, axes: Sequence[Axis], run: int) -> Record:
    volume = prod(axis[0] for axis in axes)
    kind = load_kernels(_KERNELS).SHIFTED
    tiles = -(-volume // (4 * threads()))
    return [tiles, *_record(kind, run, volume, d, s, _divided(axes))]


def _transposed(d: int, s: int, axes: Sequence[Axis], word: int) -> Record:
    (columns, *_), (rows, *_) = axes[:2]
    half = _TILE_BITS // 2
    wide, high = half, _TILE_BITS - half
    if rows <= 1 << (high - 1):
        high = max(_LEAST_BITS, (rows - 1).bit_length())
        wide = _TILE_BITS - high
    elif columns <= 1 << (wide - 1):
        wide = max(_LEAST_BITS, (columns - 1).bit_length())
        high = _TILE_BITS - wide
    across, down = ((columns - 1) >> wide) + 1, ((rows - 1) >> high) + 1
    tiles = across * down * prod(axis[0] for axis in axes[2:])
    divided = [
        (n, *divisor(count), e, t)
        for (n, e, t), count in zip(axes[:2], (across, down), strict=True)
    ]
    module = load_kernels(_KERNELS)
    record = _record(module.TRANSPOSED, word, tiles, d, s, [*divided, *_divided(axes[2:])])
    record[module.PATTERN : module.PATTERN + 2] = wide, high
    return [tiles, *record]
