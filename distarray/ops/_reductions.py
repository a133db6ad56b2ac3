"""Reductions: sums, products, means, extremes and their places, truth, variance."""

from __future__ import annotations

import warnings
from numbers import Real
from typing import Any

import numpy as np

from distarray.comm import _backend, _memory
from distarray.core import _docstrings
from distarray.core._base import BaseArray
from distarray.core._dispatch import as_block
from distarray.core._dtypes import checked_dtype, floating, numeric
from distarray.core._extremes import Extreme
from distarray.core._folding import reduce_block
from distarray.core._reduce import (
    ABSENT,
    Reduction,
    check_out,
    partial_rules,
)
from distarray.core._registry import register_function, register_reduction
from distarray.core._variance import Variance
from distarray.errors import ArgumentTypeError, DTypeError
from distarray.ops import _elementwise_arithmetic as arithmetic
from distarray.ops import _elementwise_logic as logic
from distarray.ops._elementwise_rounding import astype, where
from distarray.typing import Buffer

_SUMS = ("axis", "dtype", "out", "keepdims", "initial")
_EXTREMES = ("axis", "out", "keepdims", "initial")
_TRUTHS = ("axis", "out", "keepdims")


def _by(ufunc: Any, always: Any = None) -> Any:
    """Return the local call of a ufunc's reduction; `always` is a fixed dtype."""

    def local(
        block: Buffer, axes: tuple[int, ...], dtype: Any, keepdims: bool, **extra: Any
    ) -> Buffer:
        dtype = always if dtype is None else dtype
        if extra:  # never on a GPU, whose reductions take no mask
            return ufunc.reduce(block, axes, dtype, None, keepdims, **extra)
        return reduce_block(ufunc, block, axes, dtype, keepdims)

    return local


def _nonzero(
    block: Buffer, axes: tuple[int, ...], dtype: Any, keepdims: bool, **extra: Any
) -> Buffer:
    del dtype
    if extra:
        block = np.logical_and(block, extra["where"])
    if not _backend.is_numpy(block):
        return (block != 0).sum(axis=axes, dtype=np.intp, keepdims=keepdims)
    return np.asarray(np.count_nonzero(block, axis=axes, keepdims=keepdims), np.intp)


class _Mean(Reduction):
    """The mean: the sum of all ranks' items, divided once."""

    def result_dtype(self, dtype: Any, wanted: Any) -> Any:
        """Return the dtype of the mean."""
        if wanted is not None:
            wanted = checked_dtype(wanted)
            total = super().result_dtype(dtype, wanted)  # refuses what does not add up
            if total.kind != wanted.kind:
                raise DTypeError(
                    f"mean(dtype={str(wanted)!r}) of {dtype}: sums of it are {total}; leave dtype "
                    "out, or convert with astype"
                )
            return wanted
        super().result_dtype(dtype, _mean_dtype(dtype))
        return dtype.newbyteorder("=") if dtype.char == "e" else _mean_dtype(dtype)

    def accumulator(self, dtype: Any, out: Any) -> Any:
        """Return the dtype of `out` where it is wider than that of the sum."""
        return out.newbyteorder("=") if np.can_cast(_mean_dtype(dtype), out) else None

    def total_dtype(self, before: Any, result: Any, wanted: Any) -> Any:
        """Return the dtype of the sum: wider than the mean of half precision."""
        return result if wanted is not None else _mean_dtype(before)


def _quotient(total: Buffer, count: int, result: Any) -> Buffer:
    """Return a sum divided as NumPy does: in float64, then rounded to its dtype if it has axes.

    Parameters
    ----------
    total : array
        May be overwritten.
    count : int
    result : dtype
    """
    if count == 0:
        warnings.warn("Mean of empty slice.", RuntimeWarning, stacklevel=6)
    if total.ndim and _backend.is_numpy(total):
        np.true_divide(total, np.intp(count), out=total, casting="unsafe")
        return total.astype(result, copy=False)
    return np.true_divide(total, np.intp(count)).astype(result)


sum = Reduction("sum", _by(np.add), "sum", _SUMS, np.add, partial_rules("sum"), arithmetic.add)
prod = Reduction(
    "prod", _by(np.multiply), "prod", _SUMS, np.multiply, partial_rules("prod"), arithmetic.multiply
)
min = Reduction(
    "min", _by(np.minimum), "min", _EXTREMES, np.minimum, partial_rules("min"), arithmetic.minimum
)
max = Reduction(
    "max", _by(np.maximum), "max", _EXTREMES, np.maximum, partial_rules("max"), arithmetic.maximum
)
any = Reduction("any", _by(np.logical_or, np.bool_), "any", _TRUTHS, None, partial_rules("any"))
all = Reduction("all", _by(np.logical_and, np.bool_), "all", _TRUTHS, None, partial_rules("all"))
count_nonzero = Reduction("count_nonzero", _nonzero, "sum", ("axis", "keepdims"))
_mean = _Mean("mean", _by(np.add), "sum", _SUMS[:4], finish=_quotient)
_variance = Variance("var")
_first_smallest = Extreme("argmin", np.argmin, np.min)
_first_largest = Extreme("argmax", np.argmax, np.max)

_LAZY = (
    "Distribution: where a mesh axis cuts a reduced axis the result is Partial({op!r}): nothing is "
    "sent until its value is needed{half}. Kept axes stay cut. {inputs} reduced first."
)


def _document(row: Reduction, sentence: str) -> None:
    options = (
        "dtype : optional\n    Of the result and its sums." if "dtype" in row.positional else ""
    )
    row.__doc__ = _docstrings.REDUCTION.format(
        sentence=sentence,
        options=options,
        distribution=_docstrings.paragraph(
            _LAZY.format(
                op=row.combine,
                half=", but for half precision, which adds up in float32" if row is sum else "",
                inputs="Partial inputs of this kind stay so"
                + (" where they are integers" if row in (sum, prod) else "")
                + ", others are",
            )
        ),
    )


_document(sum, "Sum items over axes; integers are summed at least in int64, as in NumPy.")
_document(prod, "Multiply items over axes; integers are multiplied at least in int64.")
_document(min, "Return the smallest item over axes; NaN wins.")
_document(max, "Return the largest item over axes; NaN wins.")
_document(any, "Tell whether any item over axes is true.")
_document(all, "Tell whether all items over axes are true.")
_document(count_nonzero, "Count items that are not zero.")

for _ufunc, _row in (
    (np.add, sum),
    (np.multiply, prod),
    (np.minimum, min),
    (np.maximum, max),
    (np.logical_or, any),
    (np.logical_and, all),
):
    register_reduction(_ufunc, _row)

register_function(np.sum)(sum)
register_function(np.prod)(prod)
register_function(np.min, np.amin)(min)
register_function(np.max, np.amax)(max)
register_function(np.any)(any)
register_function(np.all)(all)
register_function(np.count_nonzero)(count_nonzero)

amin, amax = min, max


@register_function(np.mean)
def mean(
    x: Any,
    /,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    *,
    where: Any = True,
) -> Any:
    """Return the mean over axes; integers give float64, float16 is summed in float32.

    Distribution: where a mesh axis cuts a reduced axis, the sums of all blocks are reduced at once
    and divided by the count, and the result is replicated there. Kept axes stay cut.
    """
    check_out("mean", x, out)
    if not isinstance(x, BaseArray):
        return np.mean(x, axis, dtype, None, keepdims, where=where)
    if dtype is None and out is not None:
        dtype = _mean.accumulator(x.dtype, out.dtype)
    if where is True:
        return _mean.reduce(x, axis, dtype, out, keepdims)
    wanted = _mean.result_dtype(x.dtype, dtype)
    wide = wanted if dtype is not None else _mean_dtype(x.dtype)
    total = sum(x, axis=axis, dtype=wide, keepdims=keepdims, where=where)
    quotient = arithmetic.divide(total, _selected(x, axis, keepdims, where))
    if total.ndim:
        quotient = astype(quotient, total.dtype, copy=False)
    result = astype(quotient, wanted, copy=False)
    return result if out is None else _put(out, result)


def _mean_dtype(dtype: Any) -> Any:
    """Return the dtype in which items of a dtype add up to a mean."""
    if dtype.kind in "biu":
        return np.dtype(np.float64)
    return np.dtype(np.float32) if dtype.char == "e" else dtype.newbyteorder("=")


def _selected(x: Any, axis: Any, keepdims: bool, mask: Any) -> Any:
    """Return how many items over `axis` the mask selects."""
    ones = logic.equal(x, x) if not isinstance(x, BaseArray) else _ones_like(x)
    return sum(ones, axis=axis, keepdims=keepdims, where=mask, dtype=np.int64)


def _ones_like(x: BaseArray) -> BaseArray:
    layout = x._layout
    if layout.has_partial:
        x = arithmetic.abs(x)  # any function that is not linear gives an array without Partial
    block = x._local
    return x._new(_memory.full(block.shape, True, np.bool_, _backend.device_of(block)), x._layout)


def _put(out: Any, result: Any) -> Any:
    return arithmetic.positive.into((out,), (result,))


@register_function(np.var)
def var(
    x: Any,
    /,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    where: Any = True,
    mean: Any = ABSENT,
    correction: Any = ABSENT,
) -> Any:
    """Return the variance over axes, in one pass over the data.

    Parameters
    ----------
    x : array
    axis : int or tuple of int, optional
        Default: all axes.
    dtype : dtype, optional
        Of the result, floating point or complex; integers give float64. What is computed is never
        narrower than the items.
    out : DistArray, optional
        Where the result goes; a wider dtype of it is computed in.
    ddof, correction : float
        The divisor is the count less this; the two names mean the same.
    keepdims : bool
    where : array of bool, optional
        Items that count.
    mean : optional
        Accepted for NumPy's sake and not needed: the mean is found in the same pass.

    Notes
    -----
    Distribution: the states of all blocks along a cut reduced axis are exchanged at once and merged
    in rank order (Chan, Golub, LeVeque 1979); the result is replicated there.
    """
    del mean
    check_out("var", x, out)
    result = _varied(x, axis, dtype, out, ddof, keepdims, where, correction)
    return result if out is None else _put(out, result)


def _varied(
    x: Any,
    axis: Any,
    dtype: Any,
    out: Any,
    ddof: float,
    keepdims: bool,
    where: Any,
    correction: Any,
) -> Any:
    """Return the variance as exact as `out` can hold it, which is not written."""
    if correction is not ABSENT:
        if ddof != 0:
            raise ArgumentTypeError(
                f"ddof={ddof} and correction={correction} mean the same; pass one"
            )
        ddof = correction
    if not isinstance(ddof, Real):
        raise ArgumentTypeError(f"correction={ddof!r}: must be a number, 1 for the sample variance")
    if not isinstance(x, BaseArray):
        if _backend.is_cupy(x) and where is True:
            return np.var(x, axis, dtype, ddof=ddof, keepdims=keepdims)
        block = np.asarray(x)
        return np.var(block, axis, dtype, ddof=ddof, keepdims=keepdims, where=where)
    wanted = None if dtype is None else checked_dtype(dtype)
    if wanted is not None and (
        x.dtype.kind not in numeric
        or wanted.kind not in floating
        or (x.dtype.kind == "c" and wanted.kind != "c")
    ):
        raise DTypeError(
            f"var(dtype={str(wanted)!r}) of {x.dtype}: numbers take a floating-point dtype, "
            "complex ones a complex dtype, and what is no number takes none; leave dtype out, or "
            "convert with astype"
        )
    least = wanted if wanted is not None or out is None else out.dtype
    if least is not None and least.kind in floating and x.dtype.kind in numeric:
        have = np.dtype(np.float64) if x.dtype.kind in "biu" else x.dtype
        work = np.result_type(have, np.empty(0, least).real.dtype)
        x = x if work == have else astype(x, work)
    if where is not True:
        result = _masked_variance(x, axis, ddof, keepdims, where)
    else:
        result = _variance.variance(x, axis, keepdims, ddof)
    return result if wanted is None else astype(result, wanted, copy=False)


def _masked_variance(x: Any, axis: Any, ddof: float, keepdims: bool, mask: Any) -> Any:
    count = _selected(x, axis, keepdims, mask)
    centre = mean(x, axis=axis, keepdims=True, where=mask)
    deviation = arithmetic.abs(arithmetic.subtract(x, centre))
    total = sum(
        arithmetic.square(deviation),
        axis=axis,
        dtype=_mean_dtype(deviation.dtype),
        keepdims=keepdims,
        where=mask,
    )
    divisor = arithmetic.subtract(count, ddof)
    result = arithmetic.divide(total, where(logic.greater(divisor, 0), divisor, 0))
    return astype(result, deviation.dtype if x.dtype.kind in "fc" else np.float64, copy=False)


@register_function(np.std)
def std(
    x: Any,
    /,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    where: Any = True,
    mean: Any = ABSENT,
    correction: Any = ABSENT,
) -> Any:
    """Return the standard deviation over axes; arguments and distribution are those of `var`."""
    del mean
    check_out("std", x, out)
    result = _varied(x, axis, dtype, out, ddof, keepdims, where, correction)
    if not isinstance(result, BaseArray):
        return np.sqrt(result)
    root = result._new(as_block(np.sqrt(result._local)), result._layout)
    return root if out is None else _put(out, root)


@register_function(np.argmin)
def argmin(x: Any, /, axis: Any = None, out: Any = None, *, keepdims: bool = False) -> Any:
    """Return the global index of the smallest item; see `argmax`."""
    return _place(_first_smallest, x, axis, out, keepdims)


@register_function(np.argmax)
def argmax(x: Any, /, axis: Any = None, out: Any = None, *, keepdims: bool = False) -> Any:
    """Return the global index of the largest item.

    Parameters
    ----------
    x : array
    axis : int, optional
        Default: the index into the flattened array (in C order).
    out : DistArray, optional
    keepdims : bool

    Returns
    -------
    DistArray
        int64. Of equal items the first in global C order, whatever the layout; NaN comes first.

    Notes
    -----
    Distribution: one value and one index per block are exchanged at once.
    """
    return _place(_first_largest, x, axis, out, keepdims)


def _place(row: Extreme, x: Any, axis: Any, out: Any, keepdims: bool) -> Any:
    check_out(row.name, x, out)
    if not isinstance(x, BaseArray):
        block = x if _backend.is_buffer(x) else np.asarray(x)
        return row.place(block, axis=axis, keepdims=keepdims)
    result = row.find(x, axis, keepdims)
    return result if out is None else _put(out, result)
