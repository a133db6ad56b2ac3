"""Rows put in order on one rank: chosen by a mask, grouped by owner, merged from sorted runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np

from distarray.comm import _backend, _memory
from distarray.comm._packing import copy_box
from distarray.comm.cuda import _device
from distarray.comm.kernels._choice import run_faster
from distarray.comm.kernels._jit import Kernel, kernel
from distarray.comm.kernels._loop_nest import STREAMING_BYTES, address_of
from distarray.errors import ArgumentError
from distarray.typing import Buffer

_KERNEL_BYTES: Final = 256 * 1024
"""Below this size NumPy does everything: the kernels are not worth loading."""

_COST: Final = 6
"""So many times as long as for a plain copy of the result NumPy takes; not measured further."""

_LINE: Final = 64
_WIDTHS: Final = (64, 32, 16, 8, 4, 2, 1)
_COMPRESSED: Final = (1, 2, 4, 8, 16)
_MERGED: Final = frozenset(("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8"))
"""Bytes of a cache line; of the moves, and of the items, that kernels know; kinds of items."""

_PIECE: Final = 1 << 15
_PIECE_BYTES: Final = 1 << 20
"""So many rows NumPy groups or merges at once: a MiB with what is computed of them. And bytes of
rows, which are on their way twice: the second cache of a core holds them."""

_DIVIDED: Final = 512
"""So many rows a kernel divides among blocks at once: their words stay in the first cache."""

_FEW_OWNERS: Final = 4
"""NumPy looks for the rows of each of so many, one after another, instead of sorting owners.

Measured on Xeon (Emerald Rapids): 4 million rows of 2 blocks take half of the time, of 4 three
quarters, of 6 no less."""

_LONG_ROW: Final = 16 * 1024
"""Rows of so many bytes NumPy copies one by one: each takes longer than to find it.

Measured on Xeon: rows of 64 KiB take 23 ms instead of 31 in groups, of 4 KiB 44 instead of 41."""

_FEW_ROWS: Final = 32
"""So many are copied one by one: each takes 0.25 us on Zen 5, and to group them by block 16."""

_DENSE: Final = 4
_JOINED_BYTES: Final = 1 << 20
"""Blocks of so many bytes together, and so many times the rows wanted, are joined first: to group
8,192 rows of 8 bytes by block took 60 us on Zen 5, and to join two blocks of so many takes 5.
Blocks of no more rows than are wanted are, in no more memory than these: half a million of
100 thousand take 1.1 ms, and 2.7 by the kernel."""

_PREFETCH_ROWS: Final = 32
_PREFETCH_BYTES: Final = 64 * 1024
"""So many rows ahead the kernels ask for the next ones, but no more bytes than the second cache
holds beside other things.

Measured on Zen 5, on two ranks: rows of 64 B take 34 ms without it, 36 with 8, 28 with 16, 23 with
32 and no less with 256; of 4 KiB 12.4 ms without, 9.4 with 8 to 32.
"""


class Parcels(NamedTuple):
    """Which rows of a block go to, or are those of, each rank."""

    offsets: np.ndarray
    """int64, one more than there are ranks: part ``i`` of the order is that of rank ``i``."""
    order: np.ndarray | None
    """intp: row numbers, rank by rank, in the order in which they travel; None: they lie so."""

    @property
    def size(self) -> int:
        """How many rows they are."""
        return int(self.offsets[-1])

    def bounds(self, rank: int) -> tuple[int, int]:
        """Return where a rank's rows begin and end in the order."""
        return int(self.offsets[rank]), int(self.offsets[rank + 1])

    def part(self, rank: int) -> Any:
        """Return what indexes a rank's rows."""
        stretch = slice(*self.bounds(rank))
        return stretch if self.order is None else self.order[stretch]


class Blocks:
    """Blocks of rows that follow each other: where each begins, and which has a row.

    Attributes
    ----------
    offsets : ndarray
        int64: the number of each one's first row, and that of all rows.
    lengths : ndarray
    count, size, longest : int
        Of blocks, of rows, and of those of the longest block.
    """

    def __init__(self, offsets: Any) -> None:
        self.offsets: np.ndarray = np.asarray(offsets, np.int64)
        self.lengths = np.diff(self.offsets)
        self.count, self.size = len(self.lengths), int(self.offsets[-1])
        self.longest = int(self.lengths.max())
        step = int(self.offsets[1])
        even = np.minimum(np.arange(self.count + 1) * step, self.size)
        self._step = step if np.array_equal(even, self.offsets) else 0

    def divide(self, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the block of each row, and its number there."""
        number = number.astype(np.int64, copy=False)  # of what is unsigned NumPy subtracts no int64
        if self._step:  # in memory whose pages are warm: these are most of the time
            block: np.ndarray = _memory.empty(number.shape, np.int64)
            place: np.ndarray = _memory.empty(number.shape, np.int64)
            np.floor_divide(number, self._step, out=block)
            np.multiply(block, self._step, out=place)
            return block, np.subtract(number, place, out=place)
        block = np.searchsorted(self.offsets, number, "right") - 1
        return block, number - self.offsets[block]


def group_rows(owner: np.ndarray, size: int) -> Parcels:
    """Return the rows grouped by their owners, ranks below ``size``, in order within a group."""
    owner = np.ascontiguousarray(owner)
    offsets = np.zeros(size + 1, np.int64)
    order: np.ndarray = _memory.empty(owner.shape, np.intp)

    def by_kernel(run: Any) -> None:
        offsets[1:] = 0
        addresses = address_of(owner), owner.size, address_of(order), address_of(offsets[1:])
        if not run(*addresses, size):
            raise _no_owner(size)

    def by_numpy() -> None:
        if owner.size and not 0 <= owner.min() <= owner.max() < size:
            raise _no_owner(size)
        pieces = [owner[start : start + _PIECE] for start in range(0, owner.size, _PIECE)]
        counts = [np.bincount(piece.astype(np.intp), minlength=size) for piece in pieces]
        np.cumsum(sum(counts, np.zeros(size, np.intp)), out=offsets[1:])
        free = offsets[:-1].copy()  # where the next row of each goes
        for i, (piece, count) in enumerate(zip(pieces, counts, strict=True)):
            narrow = piece.astype(np.uint16) if size <= 1 << 16 else piece  # a radix sort
            found = np.argsort(narrow, kind="stable")
            if len(pieces) == 1:
                order[...] = found
                break
            place = np.repeat(free - (count.cumsum() - count), count)
            place += np.arange(len(place))
            found += i * _PIECE
            order[place] = found
            free += count

    usual = owner.dtype.kind in "iu" and owner.dtype.isnative
    is_long = usual and owner.nbytes * 8 >= _KERNEL_BYTES
    which = "group", owner.itemsize
    _run(is_long, f"group {owner.itemsize}", order.nbytes, which, by_kernel, by_numpy)
    return Parcels(offsets, order)


def _no_owner(size: int) -> ArgumentError:
    return ArgumentError(f"owners of rows are ranks from 0 to {size - 1}; others are given")


def count_numbers(block: np.ndarray, length: int) -> np.ndarray:
    """Return how often a block has each integer from 0 to ``length``; it has no others."""
    kind = f"{block.dtype.kind}{block.dtype.itemsize}"
    found: np.ndarray

    def by_kernel(run: Any) -> None:
        nonlocal found
        found = _memory.zeros((length,), np.int64)
        run(address_of(found), address_of(block), block.size, _PREFETCH_ROWS)

    def by_numpy() -> None:
        nonlocal found
        found = np.bincount(block.reshape(-1), minlength=length)

    usual = block.flags.c_contiguous and block.dtype.isnative and block.dtype.kind in "iu"
    is_long = usual and min(block.nbytes, 8 * length) >= _KERNEL_BYTES
    job = f"count {kind} {int(length).bit_length()}"
    _run(is_long, job, block.nbytes, ("count", kind), by_kernel, by_numpy)
    return found


def compress(block: Buffer, mask: Buffer, out: Buffer) -> Buffer:
    """Copy the rows of a block where the mask, one truth value a row, is true into ``out``.

    ``out`` is C-contiguous, has as many rows as the mask has true values, and is returned.
    """
    if not _backend.is_numpy(block):
        take_rows(block, _backend.namespace_of(block).flatnonzero(mask), out)
        return out
    nbytes = block.itemsize * prod(block.shape[1:])

    def by_kernel(run: Any) -> None:
        run(address_of(out), address_of(block), address_of(mask), len(block), len(out))

    def by_numpy() -> None:
        stop = 0
        for start in range(0, len(block), _PIECE):
            some = block[start : start + _PIECE]
            which = np.flatnonzero(mask[start : start + _PIECE])
            take_rows(some, which, out[stop : stop + len(which)])
            stop += len(which)

    usual = block.flags.c_contiguous and mask.flags.c_contiguous and mask.dtype == bool
    fits = nbytes in _COMPRESSED and out.size and block.nbytes >= _KERNEL_BYTES
    which = "compress", nbytes
    _run(usual and fits, f"compress {nbytes}", block.nbytes, which, by_kernel, by_numpy)
    return out


def expand(block: Buffer, mask: Buffer, out: Buffer) -> None:
    """Write the rows of a block, or its one item, into those of ``out`` where the mask is true.

    ``out`` shares no memory with the block, and has its dtype; the mask has a truth value a row.
    """
    single = block.ndim == 0
    nbytes = out.itemsize * prod(out.shape[1:])

    def by_kernel(run: Any) -> None:
        count = () if single else (len(block),)
        run(address_of(out), address_of(block), address_of(mask), len(out), *count)

    def by_numpy() -> None:
        stop = 0
        for start in range(0, len(out), _PIECE):
            some = out[start : start + _PIECE]
            # By numbers NumPy is several times quicker than with truth values.
            where = np.flatnonzero(mask[start : start + _PIECE])
            if single:
                some[where] = block
            else:
                take_rows(block[stop : stop + len(where)], slice(None), some, where)
                stop += len(where)

    arrays = (out, mask) if single else (out, mask, block)
    usual = all(one.flags.c_contiguous for one in arrays) and mask.dtype == bool
    fits = nbytes in _COMPRESSED and (not single or nbytes == out.itemsize)
    is_long = usual and fits and out.nbytes >= _KERNEL_BYTES
    which = "expand_one" if single else "expand", nbytes
    _run(is_long, f"expand {nbytes}{' one' * single}", out.nbytes, which, by_kernel, by_numpy)


def merge_runs(
    a: np.ndarray,
    b: np.ndarray,
    out: np.ndarray,
    words: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
) -> np.ndarray:
    """Merge two runs that `numpy.sort` has sorted into ``out``, which shares no memory with them.

    Equal items stay in order, those of ``a`` first. ``words`` are int64 that travel with the items:
    of ``a``, of ``b``, and where they go.
    """
    dtype = out.dtype
    kind = "u1" if dtype.kind == "b" else f"{dtype.kind}{dtype.itemsize}"
    all_words = words or ()

    def by_kernel(run: Any) -> None:
        runs = address_of(a), a.size, address_of(b), b.size
        of_a, of_b, into = map(address_of, all_words) if all_words else (0, 0, 0)
        run(address_of(out), *runs, into, of_a, of_b)

    def by_numpy() -> None:
        if words is None:
            np.concatenate((a, b), out=out)
            out.sort(kind="stable")
            return
        start = 0  # of b
        for first in range(0, max(a.size, 1), _PIECE):
            of_a = slice(first, min(first + _PIECE, a.size))
            last = of_a.stop == a.size
            of_b = slice(start, b.size if last else int(np.searchsorted(b, a[of_a.stop])))
            into = slice(first + start, of_a.stop + of_b.stop)
            start = of_b.stop
            items = np.concatenate((a[of_a], b[of_b]))
            order = np.argsort(items, kind="stable")
            out[into] = items[order]
            words[2][into] = np.concatenate((words[0][of_a], words[1][of_b]))[order]

    arrays = (a, b, out, *all_words)
    usual = dtype.isnative and all(one.flags.c_contiguous for one in arrays)
    is_long = usual and kind in _MERGED and out.nbytes >= _KERNEL_BYTES
    job = f"merge {kind}{' with words' if all_words else ''}"
    _run(is_long, job, out.nbytes, ("merge", kind, bool(all_words)), by_kernel, by_numpy)
    return out


def take_rows(block: Buffer, which: Any, out: Buffer, place: np.ndarray | None = None) -> None:
    """Copy rows, given by a slice or their numbers, into ``out``, which is C-contiguous.

    They go one after another, or where ``place`` says: as many numbers.
    """
    if isinstance(which, slice) and place is None:
        if len(out):
            copy_box(_indexable(out), _indexable(block[which]))
        return
    if isinstance(which, slice):
        block, which = block[which], None
    n = len(out) if place is None else len(place)
    if not n or not out.size:
        return
    row = block.itemsize * prod(block.shape[1:])
    by_numpy = partial(_take_plainly, block, which, out, place)

    def by_kernel(run: Any) -> None:
        _move_rows(run, [block], np.array([0, len(block)]), which, out, place, n)

    usual = _backend.is_numpy(block) and block[0].flags.c_contiguous and _are_words(place, which)
    if not usual or n * row < _KERNEL_BYTES:
        by_numpy()
    else:
        job = f"take {row}{' all' * (which is None)}{' in order' * (place is None)}"
        run_faster(job, n * row, _mover(out, place), by_kernel, by_numpy, _COST)


def _take_plainly(
    block: Buffer, which: np.ndarray | None, out: Buffer, place: np.ndarray | None
) -> None:
    """Copy rows without a kernel: all, or those of some numbers, one after another or to places."""
    if not _backend.is_numpy(block):
        block, out = _indexable(block), _indexable(out)
        device = _backend.device_of(out)
        rows = block if which is None else block[_backend.asarray(which, device)]
        out[... if place is None else _backend.asarray(place, device)] = rows
        return
    to = out if place is None else None
    if which is None:
        rows = block
    elif block.flags.c_contiguous:
        rows = np.take(block, which, axis=0, out=to, mode="clip")
    else:  # which np.take would copy as a whole
        rows = block[which]
    if place is not None:
        if rows.flags.c_contiguous:
            rows, out = _as_items(rows), _as_items(out)
        out[place] = rows
    elif rows is not out:
        out[...] = rows


def _as_items(rows: np.ndarray) -> np.ndarray:
    """Return rows that lie one after another as items: NumPy assigns those sooner.

    Measured on Xeon: rows of 16 B take a third of the time, of 64 B three quarters.
    """
    row = rows.itemsize * prod(rows.shape[1:])
    return rows if rows.ndim == 1 or not row else rows.reshape(-1).view(f"V{row}")


def take_rows_of_all(
    views: Sequence[Buffer], blocks: Blocks, number: np.ndarray, out: Buffer, own: int
) -> int:
    """Copy rows of several blocks, given by their numbers in all, into ``out``, one after another.

    Returns how many of them are of the block ``own``.
    """
    n = len(number)
    if not n or not out.size:
        return 0
    found, row, on_host = 0, out.nbytes // n, _backend.is_numpy(out)

    def by_kernel(run: Any) -> None:
        nonlocal found
        found = _move_rows(run, views, blocks.offsets, number, out, None, n, own)

    def one_by_one() -> None:
        nonlocal found
        owner, place = (words.tolist() for words in blocks.divide(number))
        for i, (rank, row) in enumerate(zip(owner, place, strict=True)):
            out[i] = views[rank][row]
        found = owner.count(own)

    def in_groups() -> None:
        nonlocal found
        found = 0
        # On GPUs all at once: each piece would take launches.
        most = max(1, min(_PIECE, _PIECE_BYTES // max(row, 1))) if on_host else n
        for start in range(0, n, most):
            parcels, place = group_numbers(blocks, number[start : start + most])
            for rank, view in enumerate(views):
                stretch = slice(*parcels.bounds(rank))
                if stretch.start < stretch.stop:
                    some = parcels.part(rank), out[start : start + most], place[stretch]
                    _take_plainly(view, *some)
                if rank == own:
                    found += stretch.stop - stretch.start

    def joined() -> None:
        nonlocal found
        everything = np.concatenate(views, dtype=out.dtype)
        np.take(everything, number, axis=0, out=out, mode="clip")
        start, stop = blocks.offsets[own : own + 2]
        found = int(np.count_nonzero((number >= start) & (number < stop)))

    usual = _are_words(number) and all(view[:1].flags.c_contiguous for view in views)
    is_small = blocks.size <= _DENSE * n and blocks.size * out.nbytes <= _JOINED_BYTES * n
    is_dense = (is_small or blocks.size <= n) and on_host
    are_long = on_host and (row >= _LONG_ROW or (n <= _FEW_ROWS and out.nbytes < _KERNEL_BYTES))
    plain = one_by_one if are_long else joined if is_dense else in_groups
    if not on_host or not usual or out.nbytes < _KERNEL_BYTES:
        plain()
    else:
        job = f"take {row} of several{' joined' * is_dense}"
        run_faster(job, out.nbytes, _mover(out, None), by_kernel, plain, _COST)
    return found


def group_numbers(blocks: Blocks, number: np.ndarray) -> tuple[Parcels, np.ndarray]:
    """Return rows, given by their numbers in all blocks, as parcels of their numbers in each.

    And the place in ``number`` of each row of the parcels.
    """
    parcels: Parcels
    place: np.ndarray

    def by_kernel(run: Any) -> None:
        nonlocal parcels, place
        ends = np.zeros(blocks.count + 1, np.int64)
        place, own = (_memory.empty(number.shape, np.int64) for _ in range(2))
        table = np.empty(_DIVIDED, np.int64)
        given = address_of(number), number.size, address_of(blocks.offsets), blocks.count
        run(*given, *map(address_of, (place, own, ends[1:], table)), table.size)
        parcels = Parcels(ends, own)

    def by_numpy() -> None:
        nonlocal parcels, place
        if blocks.count <= _FEW_OWNERS:
            parcels, place = _divide_among_few(blocks, number)
            return
        owner, own = blocks.divide(number)
        offsets, order = group_rows(owner, blocks.count)
        assert order is not None
        grouped: np.ndarray = _memory.empty(own.shape, np.int64)
        np.take(own, order, out=grouped, mode="clip")
        parcels, place = Parcels(offsets, grouped), order

    is_long = _are_words(number) and number.nbytes * 8 >= _KERNEL_BYTES
    job = f"group numbers {(blocks.count - 1).bit_length()}"
    _run(is_long, job, number.nbytes, ("divide",), by_kernel, by_numpy)
    return parcels, place


def _divide_among_few(blocks: Blocks, number: np.ndarray) -> tuple[Parcels, np.ndarray]:
    """Return what `group_numbers` does, by looking for the rows of one block after another."""
    starts = blocks.offsets.tolist()
    offsets = np.array([np.count_nonzero(number < start) for start in starts], np.int64)
    place: np.ndarray = _memory.empty(number.shape, np.intp)
    own: np.ndarray = _memory.empty(number.shape, np.int64)
    free = offsets.tolist()  # where the next row of each goes
    for first in range(0, number.size, _PIECE):
        some = number[first : first + _PIECE]
        before: np.ndarray = np.zeros(some.shape, bool)  # of the blocks so far
        for i, (start, stop) in enumerate(pairwise(starts)):
            with_these = some < stop
            which = np.flatnonzero(with_these ^ before)
            before = with_these
            to = slice(free[i], free[i] + len(which))
            np.add(which, first, out=place[to])
            np.subtract(some.take(which), start, out=own[to])
            free[i] = to.stop
    return Parcels(offsets, own), place


def _mover(out: np.ndarray, place: np.ndarray | None) -> Kernel:
    """Return the kernel that moves rows to their places, or one after another."""
    row = out.itemsize * prod(out.shape[1:])
    width = next(width for width in _WIDTHS if width <= row)
    whole_lines = place is None and not row % _LINE and not address_of(out) % _LINE
    streams = whole_lines and out.nbytes >= STREAMING_BYTES
    return _kernel("move_rows", width, width == row, int(streams))


def _move_rows(
    run: Any,
    views: Sequence[np.ndarray],
    offsets: np.ndarray,
    number: np.ndarray | None,
    out: np.ndarray,
    place: np.ndarray | None,
    n: int,
    own: int = 0,
) -> int:
    """Move rows by a kernel; return how many of them are of the block ``own``."""
    row = out.itemsize * prod(out.shape[1:])
    blocks = np.empty((len(views), 2), np.int64)
    for block, view, start in zip(blocks, views, offsets.tolist(), strict=False):
        stride = view.strides[0]
        block[:] = address_of(view) - start * stride, stride
    numbers, places = (0 if one is None else address_of(one) for one in (number, place))
    ahead = min(_PREFETCH_ROWS, _PREFETCH_BYTES // row)
    tables = np.empty((4, max(ahead, 1)), np.int64)
    return run(  # type: ignore[no-any-return]
        address_of(out), places, len(out),
        numbers, address_of(offsets), address_of(blocks), len(views), own,
        n, row, ahead, address_of(tables),
    )  # fmt: skip


def _are_words(*numbers: np.ndarray | None) -> bool:
    """Tell whether the kernels read row numbers as they lie."""
    return all(one is None or (one.dtype == np.int64 and one.flags.c_contiguous) for one in numbers)


def _indexable(block: Buffer) -> Buffer:
    """Return rows; those of structures on a GPU, which CuPy does not index, as other words."""
    if block.dtype.kind != "V" or _backend.is_numpy(block):
        return block
    words = _device.bits(block)
    if words.dtype.kind != "V" or not words.size:
        return words
    return _memory.make_contiguous(words).reshape(-1).view("u1").reshape(len(words), -1)


_kernel = partial(kernel, "distarray.comm.kernels._rows")


def _run(
    serves: Any,
    job: str,
    nbytes: int,
    which: tuple[Any, ...],
    by_kernel: Callable[[Any], None],
    by_numpy: Callable[[], None],
) -> None:
    """Do some work by NumPy, or where a kernel ``serves`` by the faster of the two."""
    if serves:
        run_faster(job, nbytes, _kernel(*which), by_kernel, by_numpy, _COST)
    else:
        by_numpy()
