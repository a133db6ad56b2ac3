"""Reductions of blocks at the speed of memory, where NumPy's loops are slower.

NumPy reduces the leading axes of a C-ordered block row by row: with rows of a few items the loop
costs several times the memory traffic. Folding sees many rows as one wide row, reduces those, and
then the few copies that are left. The last axes it adds up in one lane of 8 items: products with
ones by the BLAS use all of the processor's.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

import numpy as np

from distarray.comm import _backend
from distarray.typing import Buffer

ASSOCIATIVE = frozenset(
    (
        np.add,
        np.multiply,
        np.maximum,
        np.minimum,
        np.fmax,
        np.fmin,
        np.logical_and,
        np.logical_or,
        np.logical_xor,
        np.bitwise_and,
        np.bitwise_or,
        np.bitwise_xor,
        np.gcd,
        np.lcm,
        np.hypot,
        np.logaddexp,
        np.logaddexp2,
    )
)
"""The ufuncs by which results of blocks combine, in floating point but for rounding."""

_NARROW_ROW = 256
"""Items of a row from which NumPy's own loop is as fast: 2**21 float64 in rows of 4, 16, 64 and 256
take it 25, 1.9, 0.68 and 0.50 ms on one core of an AMD EPYC, and folded 0.40 to 0.50 ms."""
_FOLDED_ROW = 2048
"""Items of a folded row: 16 KiB of float64, so that two are in the first-level cache."""
_SMALL_BLOCK = 1 << 15
"""Items of a block below which folding gains at most 15 microseconds, or nothing."""
_LINE_ITEMS: Final = 512
"""Items of a line that one product with ones adds up, in 8 lanes at least: rounding grows as in 64
to 128 sums, as in NumPy's. Lines of 1,024 are a twentieth faster."""
_LONG_ROW: Final = 1 << 13
"""Items of a row from which products pay."""
_ONES: Final = {np.dtype(char): np.ones(_LINE_ITEMS, char) for char in "fd"}


def fold_block(block: Buffer, axes: tuple[int, ...]) -> tuple[Buffer, int, Buffer | None] | None:
    """Return (wide rows, copies of the kept items in each, rows left over), or None.

    Parameters
    ----------
    block : array
    axes : tuple of int
        Reduced axes, ascending.

    Returns
    -------
    tuple or None
        `wide` has shape (rows, copies * kept), with a power of two of copies; `rest` has shape
        (rows, kept). None where the block is not C-ordered, the axes do not lead, or it would not
        pay.
    """
    lead = len(axes)
    if block.size < _SMALL_BLOCK or lead in (0, block.ndim) or axes[-1] != lead - 1:
        return None
    kept = 1
    for size in block.shape[lead:]:
        kept *= size
    if not 0 < kept < _NARROW_ROW or not block.flags.c_contiguous:
        return None
    rows = block.reshape(-1, kept)
    copies = 1 << (_FOLDED_ROW // kept).bit_length() - 1
    whole = len(rows) // copies
    if whole < 2:
        return None
    wide = rows[: whole * copies].reshape(whole, copies * kept)
    rest = rows[whole * copies :]
    return wide, copies, rest if len(rest) else None


def sum_piece(piece: Buffer) -> Any:
    """Return the sum of one axis of items that stay in the cache."""
    ones = _ONES.get(piece.dtype)
    if (
        ones is None
        or piece.size % _LINE_ITEMS
        or not (piece.flags.c_contiguous and piece.flags.aligned)
    ):
        return np.add.reduce(piece)
    return np.add.reduce(np.matmul(piece.reshape(-1, _LINE_ITEMS), ones))


def _sum_lines(block: Buffer, axes: tuple[int, ...], keepdims: bool) -> Any:
    """Return the sum over the last axes, or all, by products with ones; None where it does not pay.

    Each row is given to the BLAS by itself, so that its sum is the same wherever it lies. What is
    not finite NumPy adds up again, and warns as it does.
    """
    ones, kept = _ONES.get(block.dtype), block.shape[: block.ndim - len(axes)]
    if ones is None or not axes or axes[0] != len(kept) or not block.flags.aligned:
        return None
    if block.flags.f_contiguous and not kept:
        block = block.T
    if not block.flags.c_contiguous or block.size < max(2 * _SMALL_BLOCK, _LONG_ROW * prod(kept)):
        return None
    rows = block.reshape(prod(kept), -1)
    lines = rows.shape[1] // _LINE_ITEMS
    whole = rows[:, : lines * _LINE_ITEMS].reshape(-1, lines, _LINE_ITEMS)
    with np.errstate(all="ignore"):
        total = np.add.reduce(np.matmul(whole, ones), 1)
        if lines * _LINE_ITEMS < rows.shape[1]:
            total += np.add.reduce(rows[:, lines * _LINE_ITEMS :], 1)
        if not np.isfinite(total).all():
            return None
    return total.reshape(kept + (1,) * len(axes) * keepdims)[()]


_ON_DEVICE = {
    np.add: "sum",
    np.multiply: "prod",
    np.minimum: "min",
    np.maximum: "max",
    np.logical_or: "any",
    np.logical_and: "all",
}
"""CuPy's reductions, whose ufuncs reduce one axis at most."""


def convert_to_unit(block: Buffer, dtype: Any) -> tuple[Buffer, Any]:
    """Return a block and the dtype to add it up in: a unit of time NumPy takes from items only."""
    if getattr(dtype, "kind", "") in ("m", "M"):
        return block.astype(dtype, casting="same_kind", copy=False), None
    return block, dtype


def reduce_block(
    ufunc: Any, block: Buffer, axes: tuple[int, ...], dtype: Any, keepdims: bool, **options: Any
) -> Any:
    """Return `ufunc.reduce` of a block, folded or by products with ones where that is faster.

    A block on a GPU goes through host memory where CuPy has no such reduction. The `options` are
    NumPy's, and none but `initial` on a GPU; where that is None the first item begins, and a sum of
    -0.0 stays so.
    """
    if dtype is not None:
        block, dtype = convert_to_unit(block, dtype)
    if block.__class__ is np.ndarray and block.size < _SMALL_BLOCK:
        return ufunc.reduce(block, axes, dtype, None, keepdims, **options)
    if not _backend.is_numpy(block):
        if ufunc not in _ON_DEVICE:  # CuPy lacks it
            host = _backend.to_host(block)
            on_host = ufunc.reduce(host, axes, dtype, None, keepdims, **options)
            return _backend.asarray(on_host, _backend.device_of(block))
        function = getattr(_backend.namespace_of(block), _ON_DEVICE[ufunc])
        types = {"dtype": dtype} if ufunc in (np.add, np.multiply) else {}
        return function(block, axis=axes, keepdims=keepdims, **types)
    if ufunc is np.add and not options and (dtype is None or dtype == block.dtype):
        total = _sum_lines(block, axes, keepdims)
        if total is not None:
            return total
    is_folded = ufunc in ASSOCIATIVE and "where" not in options
    fold = fold_block(block, axes) if is_folded else None
    if fold is None:
        return ufunc.reduce(block, axes, dtype, None, keepdims, **options)
    wide, copies, rest = fold
    result = ufunc.reduce(wide, 0, dtype, None, False, **options)
    result = ufunc.reduce(result.reshape(copies, -1), 0, dtype, None, False, **options)
    if rest is not None:
        result = ufunc(result, ufunc.reduce(rest, 0, dtype, None, False, **options))
    lead = len(axes)
    kept = block.shape[lead:]
    return result.reshape((1,) * lead + kept if keepdims else kept)
