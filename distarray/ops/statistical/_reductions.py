"""Reductions over axes: sums, products, extremes, truth, counts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from distarray.comm import _backend
from distarray.core import (
    BaseArray,
    Op,
    Step,
    check_travels,
    join_arrays,
    normalize_operand,
    reduce_block,
    reduce_partial,
    reduce_tiles,
    reduction,
    tile_shape,
    warn,
)
from distarray.layout import REDUCTIONS
from distarray.ops.statistical._reproducible import reproducible_sum
from distarray.typing import Buffer

_SUMS = ("axis", "dtype", "out", "keepdims", "initial")
_EXTREMES = ("axis", "out", "keepdims", "initial")
_TRUTHS = ("axis", "out", "keepdims")
_BESIDE_NAN = {np.fmax: np.maximum, np.fmin: np.minimum}

TILE_BYTES: Final = 512 * 1024
"""Of a tile that is copied without NaN, and stays in the second-level cache beside its copy."""
_DEPTH: Final = 16
"""Least reduced items per kept item in a tile, where there are so many, as of `core`'s moments."""


def by(ufunc: Any, always: Any = None) -> Any:
    """Return the local call of a ufunc's reduction; `always` is a fixed dtype."""
    if always is None:
        return functools.partial(reduce_block, ufunc)

    def local(
        block: Buffer, axes: tuple[int, ...], dtype: Any, keepdims: bool, **extra: Any
    ) -> Buffer:
        dtype = always if dtype is None else dtype
        result: Buffer = reduce_block(ufunc, block, axes, dtype, keepdims, **extra)
        return result

    return local


def nonzero(
    block: Buffer, axes: tuple[int, ...], dtype: Any, keepdims: bool, **extra: Any
) -> Buffer:
    del dtype
    if extra:
        block = np.logical_and(block, extra["where"])
    if not _backend.is_numpy(block):
        return (block != 0).sum(axis=axes, dtype=np.intp, keepdims=keepdims)
    return np.asarray(np.count_nonzero(block, axis=axes, keepdims=keepdims), np.intp)


def _beside_nan(ufunc: Any) -> Any:
    """Return the local call of `fmax.reduce` or `fmin.reduce`, which CuPy lacks."""
    on_host, on_device = by(ufunc), by(_BESIDE_NAN[ufunc])

    def local(block: Buffer, axes: tuple[int, ...], dtype: Any, keepdims: bool) -> Any:
        if _backend.is_numpy(block):
            return on_host(block, axes, dtype, keepdims)
        if block.dtype.kind in "fc":
            library, missing = _backend.namespace_of(block), np.isnan(block)
            nan, bound = block.dtype.type(np.nan), _bound(ufunc, block.dtype)
            found = on_device(library.where(missing, bound, block), axes, dtype, keepdims)
            return library.where(missing.all(axis=axes, keepdims=keepdims), nan, found)
        return on_device(block, axes, dtype, keepdims)

    return local


def _bound(ufunc: Any, dtype: Any) -> Any:
    """Return the item that is least of all to `fmax`, or greatest of all to `fmin`, but NaN."""
    identity = REDUCTIONS["max" if ufunc is np.fmax else "min"].identity
    return dtype.type(identity(dtype.kind, dtype.itemsize))


def _missing(op: Op, dtype: Any) -> Any:
    """Return the item that `fmax` and `fmin` leave out; of integers and truths the extreme one."""
    if dtype.kind in "mM":
        return np.array("NaT", dtype)[()]
    return dtype.type(np.nan) if dtype.kind in "fc" else _bound(op.ufunc, dtype)


def _warn_of_nan(step: Step) -> Any:
    """Return the check of a result for NaN, of which NumPy warns unless there is an `initial`."""
    warns = step.call.static[3] and step.result.kind in "fcmM"

    def check(result: Buffer) -> Buffer:
        if warns and np.isnan(result).any():
            warn("All-NaN slice encountered", RuntimeWarning)
        return result

    return check


def without_partial(name: str, x: Any) -> Any:
    """Return an operand as an array that is not Partial, so that several uses reduce it once."""
    x = join_arrays(x)
    if not isinstance(x, BaseArray):
        array = np.asarray(normalize_operand(name, x))
        check_travels(array.dtype)
        return array
    return reduce_partial(name, x) if x._layout.has_partial else x


def replace_nan(block: Buffer, item: Any) -> Any:
    """Return a floating-point block with `item` in the places of NaN."""
    item = _backend.scalar(block.dtype.type(item), block)
    return _backend.namespace_of(block).where(np.isnan(block), item, block)


def by_tiles(
    block: Buffer,
    axes: Sequence[int],
    state: Callable[[Buffer], tuple[Any, ...]],
    merge: Callable[[Any, Any], Any],
    dtypes: Sequence[Any],
    depth: int = _DEPTH,
) -> Sequence[Any]:
    """Return `state(block)`; of more than two tiles in host memory theirs, merged in pairs.

    Parameters are those of `core.reduce_tiles`, and the least items of a line in a tile.
    """
    if block.nbytes <= 2 * TILE_BYTES or not axes or not _backend.is_numpy(block):
        return state(block)
    budget = TILE_BYTES // block.itemsize
    steps = tile_shape(block.shape, block.strides, axes, budget, depth)
    return reduce_tiles(block, axes, steps, state, merge, dtypes)


def _without_nan(ufunc: Any) -> Any:
    """Return the local call of a ufunc's reduction with its identity in the place of NaN."""
    reduced = by(ufunc)

    def local(
        block: Buffer, axes: tuple[int, ...], dtype: Any, keepdims: bool, **extra: Any
    ) -> Any:
        if block.dtype.kind not in "fc":
            return reduced(block, axes, dtype, keepdims, **extra)
        if extra or block.nbytes <= TILE_BYTES:
            return reduced(replace_nan(block, ufunc.identity), axes, dtype, keepdims, **extra)

        def state(tile: Buffer) -> tuple[Any]:
            return (reduced(replace_nan(tile, ufunc.identity), axes, dtype, True),)

        def merge(a: tuple[Any], b: tuple[Any]) -> tuple[Any]:
            return (ufunc(a[0], b[0]),)

        result = reduced(np.empty(0, block.dtype), (0,), dtype, False).dtype
        (total,) = by_tiles(block, axes, state, merge, [result])
        return total if keepdims else total.squeeze(axes)[()]

    return local


sum = reduction(
    "sum",
    "Sum items over axes; integers are summed at least in int64, as in NumPy.",
    by(np.add),
    "sum",
    _SUMS,
    ufunc=np.add,
    dates=np.add,
    reproducible=reproducible_sum,
)
prod = reduction(
    "prod",
    "Multiply items over axes; integers are multiplied at least in int64.",
    by(np.multiply),
    "prod",
    _SUMS,
    ufunc=np.multiply,
)
min = reduction(
    "min",
    "Return the smallest item over axes; NaN wins.",
    by(np.minimum),
    "min",
    _EXTREMES,
    ufunc=np.minimum,
    dates=np.minimum,
)
max = reduction(
    "max",
    "Return the largest item over axes; NaN wins.",
    by(np.maximum),
    "max",
    _EXTREMES,
    ufunc=np.maximum,
    dates=np.maximum,
)
nanmax = reduction(
    "nanmax",
    "Return the largest item over axes that is not NaN; NaN, with a warning, where none is.",
    _beside_nan(np.fmax),
    np.fmax,
    _EXTREMES,
    ufunc=np.fmax,
    answers_reduce=False,  # which does not warn
    identity=_missing,
    finish=_warn_of_nan,
)
nanmin = reduction(
    "nanmin",
    "Return the smallest item over axes that is not NaN; NaN, with a warning, where none is.",
    _beside_nan(np.fmin),
    np.fmin,
    _EXTREMES,
    ufunc=np.fmin,
    answers_reduce=False,
    identity=_missing,
    finish=_warn_of_nan,
)
for _ufunc, _which in ((np.fmax, "largest"), (np.fmin, "smallest")):
    reduction(
        f"{_ufunc.__name__}.reduce",
        f"Return the {_which} item over axes that is not NaN; NaN where none is.",
        _beside_nan(_ufunc),
        _ufunc,
        _EXTREMES,
        ufunc=_ufunc,
        answers_name=False,
        identity=_missing,
    )
nansum = reduction(
    "nansum",
    "Sum items over axes that are not NaN; integers are summed at least in int64.",
    _without_nan(np.add),
    "sum",
    _SUMS,
    ufunc=np.add,
    answers_reduce=False,
    rules=(),  # a part that is NaN would be left out
    dates=np.add,
)
nanprod = reduction(
    "nanprod",
    "Multiply items over axes that are not NaN; integers are multiplied at least in int64.",
    _without_nan(np.multiply),
    "prod",
    _SUMS,
    ufunc=np.multiply,
    answers_reduce=False,
    rules=(),
)
any = reduction(
    "any",
    "Tell whether any item over axes is true.",
    by(np.logical_or, np.bool_),
    "any",
    _TRUTHS,
    ufunc=np.logical_or,
)
all = reduction(
    "all",
    "Tell whether all items over axes are true.",
    by(np.logical_and, np.bool_),
    "all",
    _TRUTHS,
    ufunc=np.logical_and,
)
count_nonzero = reduction(
    "count_nonzero",
    "Count items that are not zero.",
    nonzero,
    "sum",
    ("axis", "keepdims"),
    rules=(),
)

amin, amax = min, max
