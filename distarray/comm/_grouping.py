"""Rows put in order on one rank: chosen by a mask, grouped by owner, merged from sorted runs."""

from __future__ import annotations

from math import prod
from typing import Any, Final, NamedTuple

import numpy as np

from distarray.comm import _backend, _memory
from distarray.comm._packing import copy_box
from distarray.comm.cuda import _device
from distarray.comm.kernels._choice import run_faster
from distarray.comm.kernels._jit import load_kernels
from distarray.comm.kernels._loop_nest import address_of
from distarray.errors import ArgumentError
from distarray.typing import Buffer

_KERNEL_BYTES: Final = 256 * 1024
"""Below this size NumPy does everything: the kernels are not worth the import of Numba."""


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

    def part(self, rank: int) -> Any:
        """Return what indexes a rank's rows."""
        stretch = slice(int(self.offsets[rank]), int(self.offsets[rank + 1]))
        return stretch if self.order is None else self.order[stretch]


def group_rows(owner: np.ndarray, size: int) -> Parcels:
    """Return the rows grouped by their owners, ranks below ``size``, in order within a group."""
    owner = np.ascontiguousarray(owner)
    kernels = _kernels(owner.nbytes * 8)
    offsets = np.zeros(size + 1, np.int64)
    order: np.ndarray = _memory.empty(owner.shape, np.intp)

    def by_kernel() -> None:
        offsets[1:] = 0
        addresses = address_of(owner), owner.size, address_of(order), address_of(offsets[1:])
        if not kernels.GROUP[owner.itemsize](*addresses, size):
            raise _no_owner(size)

    def by_numpy() -> None:
        if owner.size and not 0 <= owner.min() <= owner.max() < size:
            raise _no_owner(size)
        counts = np.bincount(owner.astype(np.intp, copy=False), minlength=size)
        np.cumsum(counts, out=offsets[1:])
        narrow = owner.astype(np.uint16, copy=False) if size <= 1 << 16 else owner  # a radix sort
        order[...] = np.argsort(narrow, kind="stable")

    if kernels is None or owner.dtype.kind not in "iu" or not owner.dtype.isnative:
        by_numpy()
    else:
        run_faster(("group", owner.itemsize), order.nbytes, by_kernel, by_numpy)
    return Parcels(offsets, order)


def _no_owner(size: int) -> ArgumentError:
    return ArgumentError(f"owners of rows are ranks from 0 to {size - 1}; others are given")


def compress(block: Buffer, mask: Buffer, out: Buffer) -> Buffer:
    """Copy the rows of a block where the mask, one truth value a row, is true into ``out``.

    ``out`` is C-contiguous, has as many rows as the mask has true values, and is returned.
    """
    if not _backend.is_numpy(block):
        take_rows(block, _backend.namespace_of(block).flatnonzero(mask), out)
        return out
    kernels = _kernels(block.nbytes)
    nbytes = block.itemsize * prod(block.shape[1:])

    def by_kernel() -> None:
        addresses = address_of(out), address_of(block), address_of(mask), len(block), len(out)
        kernels.COMPRESS[nbytes](*addresses)

    def by_numpy() -> None:
        take_rows(block, np.flatnonzero(mask), out)

    usual = block.flags.c_contiguous and mask.flags.c_contiguous and mask.dtype == bool
    if kernels is None or not usual or nbytes not in kernels.COMPRESS or not out.size:
        by_numpy()
    else:
        run_faster(("compress", nbytes), block.nbytes, by_kernel, by_numpy)
    return out


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
    kernels = _kernels(out.nbytes)
    dtype = out.dtype
    kind = "u1" if dtype.kind == "b" else f"{dtype.kind}{dtype.itemsize}"
    all_words = words or ()

    def by_kernel() -> None:
        runs = address_of(a), a.size, address_of(b), b.size
        of_a, of_b, into = map(address_of, all_words) if all_words else (0, 0, 0)
        kernels.MERGE[kind, bool(all_words)](address_of(out), *runs, into, of_a, of_b)

    def by_numpy() -> None:
        np.concatenate((a, b), out=out)
        if words is None:
            out.sort(kind="stable")
        else:
            order = np.argsort(out, kind="stable")
            out[...] = out[order]
            words[2][...] = np.concatenate(words[:2])[order]

    arrays = (a, b, out, *all_words)
    usual = dtype.isnative and all(one.flags.c_contiguous for one in arrays)
    if kernels is None or not usual or (kind, False) not in kernels.MERGE:
        by_numpy()
    else:
        run_faster(("merge", kind, bool(all_words)), out.nbytes, by_kernel, by_numpy)
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
    if not _backend.is_numpy(block):
        block, out = _indexable(block), _indexable(out)
        device = _backend.device_of(out)
        rows = block if which is None else block[_backend.asarray(which, device)]
        out[... if place is None else _backend.asarray(place, device)] = rows
        return
    run = block.itemsize * prod(block.shape[1:])
    kernels = _kernels(n * run)

    def by_kernel() -> None:
        width = next(width for width in kernels.WIDTHS if width <= run)
        numbers = [0 if one is None else address_of(one) for one in (place, which)]
        kernels.MOVE_ROWS[width, width == run](
            address_of(out), numbers[0], len(out),
            address_of(block), numbers[1], len(block), block.strides[0],
            n, run,
        )  # fmt: skip

    def by_numpy() -> None:
        if place is not None:
            out[place] = block if which is None else block[which]
        elif block.flags.c_contiguous:
            np.take(block, which, axis=0, out=out, mode="clip")
        else:  # which np.take would copy as a whole
            out[...] = block[which]

    if kernels is None or not block[0].flags.c_contiguous or not _are_words(place, which):
        by_numpy()
    else:
        work = "take rows", run, which is None, place is None
        run_faster(work, n * run, by_kernel, by_numpy)


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


def _kernels(nbytes: int) -> Any:
    """Return the kernels, where work on so many bytes is worth them."""
    return load_kernels("distarray.comm.kernels._rows") if nbytes >= _KERNEL_BYTES else None
