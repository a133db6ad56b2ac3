"""Weighted means, covariances and coefficients of correlation."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from distarray.core import (
    BaseArray,
    check_flag,
    copied_row,
    describe,
    normalize_dtype,
    numeric,
    real,
    register,
    run_into,
    warn,
)
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    ShapeError,
    ZeroWeightError,
)
from distarray.layout import normalize_axes
from distarray.ops.creation._filled import empty_like
from distarray.ops.elementwise._arithmetic import divide, multiply, sqrt
from distarray.ops.elementwise._logic import equal
from distarray.ops.elementwise._rounding import astype, clip, conj, rint
from distarray.ops.linear_algebra._contraction import dot
from distarray.ops.linear_algebra._products import diagonal
from distarray.ops.manipulation._joining import concat
from distarray.ops.manipulation._shape import squeeze
from distarray.ops.statistical._moments import mean
from distarray.ops.statistical._reductions import any as any_of
from distarray.ops.statistical._reductions import sum as sum_of
from distarray.ops.statistical._reductions import without_partial


@register
def average(
    x: Any,
    /,
    axis: Any = None,
    weights: Any = None,
    returned: bool = False,
    *,
    keepdims: bool = False,
) -> Any:
    """Return the weighted mean over axes.

    Parameters
    ----------
    x : array
    axis : int or tuple of int, optional
        Axes to reduce; default: all.
    weights : array, optional
        Of the shape of `x`, or of the lengths of the axes in `axis`. Default: all are 1.
    returned : bool
        Also return the sum of the weights.
    keepdims : bool
        Keep reduced axes with size 1.

    Returns
    -------
    DistArray, or tuple of two
        Of the remaining axes; with `returned` also the sum of the weights, of that shape.

    Raises
    ------
    ArgumentTypeError
        If the weights are of another shape, and `axis` does not say along which axes they lie.
    ShapeError
        If the weights do not fit the axes.
    ZeroWeightError
        If weights add up to zero, or the result has no items, on every rank of the mesh alike.

    Notes
    -----
    Distribution: where a mesh axis cuts a reduced axis the sums of all blocks are reduced. With
    weights all ranks look at their sums at once, and a product of the size of `x` is made.

    Examples
    --------
    >>> x = da.asarray(np.array([1.0, 2.0, 4.0]))
    >>> float(da.average(x, weights=np.array([1.0, 1.0, 2.0])))
    2.75
    """
    returned = check_flag("average", "returned", returned)
    keepdims = check_flag("average", "keepdims", keepdims)
    is_plain = not isinstance(x, BaseArray) and not isinstance(weights, BaseArray)
    if is_plain:
        plain: Any = np.average
        return plain(without_partial("average", x), axis, weights, returned, keepdims=keepdims)
    if weights is None:
        result = mean(x, axis=axis, keepdims=keepdims)
        if not result.size:
            raise ZeroWeightError(
                f"average of shape {x.shape} over axis {axis}: no item is left to have one; mean "
                "gives an array without items"
            )
        dtype = result.dtype
        scale = np.asarray(x.size // max(result.size, 1), dtype)
    else:
        x = without_partial("average", x)
        weights = _align_weights(x, axis, without_partial("average", weights))
        exact = [np.float64] if x.dtype.kind in "biu" else []
        dtype = np.result_type(x.dtype, weights.dtype, *exact)
        of_dtype = {} if x.dtype == weights.dtype == dtype else {"dtype": dtype}
        scale = without_partial(
            "average", sum_of(weights, axis=axis, keepdims=keepdims, **of_dtype)
        )
        is_outside = isinstance(scale, BaseArray) and scale._layout.mesh.coordinate is None
        if not is_outside and any_of(equal(scale, 0)):
            raise ZeroWeightError("average: weights sum to zero, and cannot be normalized")
        total = sum_of(multiply(x, weights, **of_dtype), axis=axis, keepdims=keepdims)
        result = divide(total, scale)
    if not returned:
        return result
    scales = empty_like(result, dtype=dtype)
    return result, run_into(copied_row, (scales,), (scale,))


def _align_weights(x: Any, axis: Any, weights: Any) -> Any:
    """Return weights in a shape that broadcasts to that of `x`."""
    if weights.shape == x.shape:
        return weights
    if axis is None:
        raise ArgumentTypeError(
            f"average of shape {x.shape} with weights of shape {weights.shape} needs axis=, along "
            "which the weights lie"
        )
    axes = normalize_axes(axis, x.ndim)
    given = [one % x.ndim for one in (axis if isinstance(axis, tuple) else (axis,))]
    lengths = tuple(x.shape[one] for one in given)
    if weights.shape != lengths:
        raise ShapeError(
            f"average of shape {x.shape} along axes {tuple(given)} takes weights of shape "
            f"{lengths}, not {weights.shape}"
        )
    wide = tuple(size if i in axes else 1 for i, size in enumerate(x.shape))
    return weights.transpose(np.argsort(given).tolist()).reshape(wide)


@register
def cov(
    m: Any,
    /,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: Any = None,
    aweights: Any = None,
    *,
    dtype: Any = None,
) -> Any:
    """Return the covariances of variables.

    Parameters
    ----------
    m : array
        Of one or two axes: a variable in each row, an observation in each column.
    y : array, optional
        More variables with the same observations.
    rowvar : bool
        False: the variables are the columns.
    bias : bool
        Divide by the number of observations, else by one less.
    ddof : int, optional
        Divide by the number of observations less this, whatever `bias` is.
    fweights, aweights : array, optional
        How often each observation occurs, in integers; how much each counts.
    dtype : dtype, optional
        Of the result, at least float64 by default.

    Returns
    -------
    DistArray
        Of two axes, or of none for one variable.

    Raises
    ------
    ShapeError
        If there are more than two axes, or weights do not fit the observations.
    ArgumentError
        If `ddof` is no integer, or a weight is negative.
    DTypeError
        If `fweights` are no whole numbers.
    ZeroWeightError
        If weights add up to zero.

    Notes
    -----
    Distribution: that of a matrix product: of observations cut into blocks only sums are reduced, a
    number for each pair of variables. Each block takes memory for two or three copies of itself.

    Examples
    --------
    >>> x = da.asarray(np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]))
    >>> da.cov(x).tolist()
    [[1.0, 2.0], [2.0, 4.0]]
    """
    if ddof is not None and (not isinstance(ddof, Real) or ddof % 1):
        raise ArgumentError(f"cov(ddof={describe(ddof)}): must be an integer")
    rowvar, bias = check_flag("cov", "rowvar", rowvar), check_flag("cov", "bias", bias)
    is_plain = not any(isinstance(x, BaseArray) for x in (m, y, fweights, aweights))
    m, y = without_partial("cov", m), None if y is None else without_partial("cov", y)
    if is_plain:
        return np.cov(m, y, rowvar, bias, ddof, fweights, aweights, dtype=dtype)
    arrays = [m] if y is None else [m, y]
    for x in arrays:
        if x.ndim > 2:
            raise ShapeError(f"cov of an array of shape {x.shape}; it takes two axes at most")
        if x.dtype.kind not in numeric:
            raise DTypeError(f"cov of {x.dtype}; it takes numbers")
    wanted = normalize_dtype(dtype)
    if wanted.kind not in "fc":
        raise DTypeError(f"cov(dtype={wanted}): means are subtracted, so choose a floating dtype")
    if dtype is None:
        wanted = np.result_type(*(x.dtype for x in arrays), wanted)
    rows: list[Any] = []
    for x in arrays:
        row = x.astype(wanted, copy=False)
        row = row if x.ndim == 2 else row.reshape(1, -1)
        by_column = x.ndim == 2 if not rows else row.shape[0] != 1
        rows.append(row.T if by_column and not rowvar else row)
    x = concat(rows, axis=0) if len(rows) > 1 else rows[0]
    if not x.shape[0]:  # NumPy's matrix of no variables is real
        x, wanted = x.real, np.dtype(np.float64)
    count = x.shape[1]
    ddof = (0 if bias else 1) if ddof is None else ddof
    frequencies = _read_weights(fweights, "fweights", count)
    weights = importance = _read_weights(aweights, "aweights", count)
    if frequencies is not None:
        weights = frequencies if importance is None else frequencies * importance
    if weights is None:
        x = x - mean(x, axis=1, keepdims=True)
    else:
        x = x - average(x, axis=1, weights=weights, keepdims=True)
    divisor: float = count - ddof
    if weights is not None:
        divisor = total = float(sum_of(weights))
        if ddof and importance is None:
            divisor = total - ddof
        elif ddof and total:
            divisor = total - ddof * float(sum_of(weights * importance)) / total
    if divisor <= 0:
        warn("Degrees of freedom <= 0 for slice", RuntimeWarning)
        divisor = 0.0
    weighted = x if weights is None else x * weights
    product = dot(x, conj(weighted.T))
    return squeeze(astype(product * np.true_divide(1, divisor), wanted, copy=False))


def _read_weights(weights: Any, name: str, count: int) -> Any:
    """Return the weights of observations as floating-point numbers."""
    if weights is None:
        return None
    weights = without_partial("cov", weights)
    if weights.dtype.kind not in real:
        raise DTypeError(f"cov({name}=) of {weights.dtype}; it takes real numbers")
    weights = weights.astype(np.float64, copy=False)
    if weights.shape != (count,):
        raise ShapeError(f"cov({name}=) of shape {weights.shape}; there are {count} observations")
    if name == "fweights" and any_of(weights != rint(weights)):
        raise DTypeError("cov(fweights=) takes whole numbers; pass others as aweights=")
    if any_of(weights < 0):
        raise ArgumentError(f"cov({name}=) cannot be negative")
    return weights


@register
def corrcoef(x: Any, /, y: Any = None, rowvar: bool = True, *, dtype: Any = None) -> Any:
    """Return the coefficients of correlation of variables.

    Parameters
    ----------
    x : array
        Of one or two axes: a variable in each row, an observation in each column.
    y : array, optional
        More variables with the same observations.
    rowvar : bool
        False: the variables are the columns.
    dtype : dtype, optional
        Of the result, at least float64 by default.

    Returns
    -------
    DistArray
        Of two axes, or of none for one variable; NaN where a variable does not vary.

    Raises
    ------
    ShapeError
        If there are more than two axes.

    Notes
    -----
    Distribution: that of `cov`.

    Examples
    --------
    >>> x = da.asarray(np.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]))
    >>> da.corrcoef(x).round(3).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    covariances = cov(x, y, rowvar, dtype=dtype)
    if not isinstance(x, BaseArray) and not isinstance(y, BaseArray):
        return np.corrcoef(x, y, rowvar, dtype=dtype)
    if not covariances.ndim:
        return covariances / covariances
    deviation = sqrt(without_partial("corrcoef", diagonal(covariances)).real)
    result = covariances / deviation[:, None] / deviation[None, :]
    if result.dtype.kind == "c":
        return clip(result.real, -1, 1) + clip(result.imag, -1, 1) * 1j
    return clip(result, -1, 1)
