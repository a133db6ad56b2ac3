"""Statistics: the mean, the variance, the range."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from numbers import Real
from typing import Any

import numpy as np

from distarray.comm import _backend, _memory
from distarray.core import (
    ABSENT,
    BaseArray,
    Call,
    Moments,
    Op,
    Spec,
    State,
    States,
    Step,
    as_block,
    axis_key,
    beside_mask,
    broadcast_shape,
    check_fits,
    check_flag,
    check_out,
    count_reduced,
    documented,
    fill_arguments,
    floating,
    join_arrays,
    loop_dtype,
    merge,
    merge_all,
    moments,
    moments_beside_nan,
    normalize_dtype,
    normalize_mask,
    normalize_operands,
    numeric,
    reduce,
    reduction,
    reduction_spec,
    register,
    result_dtype,
    run_one,
    squares_of,
    state_dtype,
    step_for,
    warn,
    write_out,
)
from distarray.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from distarray.layout import box as boxes
from distarray.layout import normalize_axes
from distarray.ops.elementwise import _arithmetic as arithmetic
from distarray.ops.elementwise import _logic as logic
from distarray.ops.elementwise._rounding import astype, imag, real, where
from distarray.ops.statistical import _reductions as reductions
from distarray.ops.statistical._reproducible import exact_row
from distarray.typing import Buffer

# --- the mean: the sum of all ranks' items, divided once -----------------------------------------


def _mean_dtypes(op: Op, call: Call) -> tuple[Any, Any]:
    """Return the dtypes of the sum, which is wider in half precision, and of the mean."""
    dtype, wanted = call.dtypes[0], call.static[1]
    if wanted is None:
        total = state_dtype(dtype)
        result_dtype(op, dtype, total)  # refuses what does not add up
        return total, dtype.newbyteorder("=") if dtype.char == "e" else total
    total = result_dtype(op, dtype, wanted)
    if total.kind != wanted.kind:
        raise DTypeError(
            f"{op.name}(dtype={str(wanted)!r}) of {dtype}: sums of it are {total}; leave dtype "
            "out, or convert with astype"
        )
    return wanted, wanted


def _quotient(step: Step) -> Callable[[Buffer], Any]:
    """Return the division as NumPy does it: in float64, then rounded to its dtype if it has axes.

    The total may be overwritten.
    """
    source = step.sources[0]
    count = count_reduced(source.shape, normalize_axes(step.call.static[0], source.ndim))
    divisor, result = np.intp(count), step.result

    def quotient(total: Buffer) -> Any:
        if count == 0:
            warn("Mean of empty slice.", RuntimeWarning)
        if total.ndim and _backend.is_numpy(total):
            np.true_divide(total, divisor, out=total, casting="unsafe")
            return total.astype(result, copy=False)
        return np.true_divide(total, divisor).astype(result)

    return quotient


_mean = reduction(
    "mean",
    "Return the mean over axes.",
    reductions.by(np.add),
    "sum",
    ("axis", "dtype", "out", "keepdims"),
    rules=(),
    dtypes=_mean_dtypes,
    finish=_quotient,
    dates=np.add,
)


_exact_mean = exact_row("mean", _mean_dtypes, _quotient)


@register
@fill_arguments
def mean(
    x: Any,
    /,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    *,
    where: Any = True,
    reproducible: bool = False,
) -> Any:
    """Return the mean over axes; integers give float64, float16 is summed in float32.

    Parameters
    ----------
    {arguments}

    Returns
    -------
    DistArray
        Of the remaining axes; NaN, with a warning, where there is no item.

    Raises
    ------
    AxisError
        If an axis is out of range or named twice.
    DTypeError
        If items are no numbers, or sums in `dtype` are of another kind.
    ShapeError
        If `out` has another shape than the result, or `where` does not broadcast to `x`.

    Notes
    -----
    Distribution: where a mesh axis cuts a reduced axis, the sums of all blocks are reduced at once
    and divided by the count, and the result is replicated there. Kept axes stay cut. With
    `reproducible` the sum is that of `sum`, so that the mean is rounded twice.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.mean(da.asarray([[1, 2], [3, 4]]), axis=0))
    [2. 3.]
    """
    exact = {"reproducible": check_flag("mean", "reproducible", reproducible)}
    row = _exact_mean if reproducible else _mean
    if out is None and where is True and isinstance(x, BaseArray):
        return reduce(row, x, axis, dtype, out, keepdims)
    keepdims = check_flag("mean", "keepdims", keepdims)
    x = beside_mask("mean", x, where)
    check_out("mean", x, out)
    x = join_arrays(x)
    if not isinstance(x, BaseArray):
        _refuse_plain("mean", reproducible)
        return np.mean(x, axis, dtype, None, keepdims, where=where)
    sums_into = dtype is not None and out is not None  # which is divided in the dtype of `out`
    if dtype is None and out is not None:
        dtype = loop_dtype("mean", np.add, state_dtype(x.dtype), out.dtype)
    if where is True and not sums_into:
        return reduce(row, x, axis, dtype, out, keepdims)
    wanted = None if dtype is None else normalize_dtype(dtype)
    step = step_for(_mean, (x,), (axis_key(axis, x.ndim), wanted, keepdims, False))
    result = step.result
    if out is not None:
        check_fits("mean", out, step.output.shape, result)
    dtype, _ = _mean_dtypes(_mean, step.call)
    total = reductions.sum(x, axis=axis, dtype=dtype, keepdims=keepdims, where=where, **exact)
    if sums_into:
        result = np.result_type(result, out.dtype)
        total = astype(total, result, copy=False)
    axes = normalize_axes(axis, x.ndim)
    if where is True:
        count: Any = np.intp(count_reduced(x.shape, axes))
    else:
        count = _count_selected(x, axis, keepdims, where)
    quotient = arithmetic.divide(total, count)
    if total.ndim and quotient.dtype != total.dtype:
        quotient = astype(quotient, total.dtype)
    if quotient.dtype != result:
        quotient = astype(quotient, result)
    return write_out("mean", out, quotient)


def _refuse_plain(name: str, reproducible: bool) -> None:
    if reproducible:
        raise ArgumentTypeError(
            f"{name}(reproducible=True) of a plain array; make a DistArray first: "
            "distarray.asarray(x)"
        )


# --- the mean of what is not NaN: sums and counts, exchanged together ----------------------------


def _state_spec(_: Op, call: Call) -> Spec:
    axis, _, keepdims, *_ = call.static
    ndim = call.layouts[0].ndim
    return reduction_spec(ndim, normalize_axes(axis, ndim), keepdims, exchanged=True)


def _nanmean_dtypes(op: Op, call: Call) -> tuple[Any, Any]:
    """Return the dtypes of sum and count, and of the result: that of `out`, or the mean's."""
    total, result = _mean_dtypes(op, call)
    return (total, np.dtype(np.intp)), call.static[3] or result


def _sum_and_count(step: Step) -> Callable[[Buffer], State]:
    """Return the function that sums and counts the items of a block that are not NaN."""
    axes = normalize_axes(step.call.static[0], step.sources[0].ndim)
    local, total = step.op.local, step.total[0]

    def of_tile(tile: Buffer) -> State:
        count = reductions.nonzero(~np.isnan(tile), axes, None, True)
        return local(tile, axes, total, True), count

    def merge(a: State, b: State) -> State:
        return a[0] + b[0], a[1] + b[1]

    def state(block: Buffer) -> State:
        return tuple(reductions.by_tiles(block, axes, of_tile, merge, step.total))

    return state


def _quotient_of_all(step: Step) -> Callable[..., Any]:
    result = step.result

    def quotient(states: States, _: Buffer) -> Any:
        total, count = map(np.add.reduce, states)
        if not count.all():
            warn("Mean of empty slice", RuntimeWarning)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.true_divide(total, count).astype(result, copy=False)

    return quotient


_nanmean = Op(
    "nanmean",
    reductions.nansum.local,
    _state_spec,
    dtypes=_nanmean_dtypes,
    bind=_sum_and_count,
    finish=_quotient_of_all,
    kinds="fc",
)


@register
@fill_arguments
def nanmean(
    x: Any,
    /,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    *,
    where: Any = True,
) -> Any:
    """Return the mean over axes of the items that are not NaN.

    Parameters
    ----------
    {arguments}

    Returns
    -------
    DistArray
        Of the remaining axes; NaN, with a warning, where there is no item. Integers give float64,
        float16 is summed in float32.

    Raises
    ------
    AxisError
        If an axis is out of range or named twice.
    DTypeError
        If items are no numbers, or `dtype` or `out` is not floating point, which that of items is.
    ShapeError
        If `out` has another shape than the result, or `where` does not broadcast to `x`.

    Notes
    -----
    Distribution: where a mesh axis cuts a reduced axis, the sums and counts of all blocks are
    exchanged at once, and the result is replicated there. Kept axes stay cut. Partial inputs are
    reduced first.

    Examples
    --------
    >>> x = da.asarray(np.array([[1.0, np.nan], [3.0, 5.0]]))
    >>> da.nanmean(x, axis=0).tolist()
    [2.0, 5.0]
    """
    x = beside_mask("nanmean", x, where)
    x = join_arrays(x)
    if not isinstance(x, BaseArray):
        check_out("nanmean", x, out)
        rest = {} if where is True else {"where": where}
        return np.nanmean(x, axis, dtype, None, keepdims, **rest)
    if x.dtype.kind not in "fc":
        return mean(x, axis, dtype, out, keepdims, where=where)
    check_out("nanmean", x, out)
    wanted = None if dtype is None else normalize_dtype(dtype)
    for given in (wanted, None if out is None else out.dtype):
        if given is not None and given.kind not in "fc":
            raise DTypeError(
                f"nanmean of {x.dtype} into {given}: a mean of floating-point items is one, too"
            )
    if out is not None and wanted is None:
        wanted = loop_dtype("nanmean", np.add, x.dtype, out.dtype)
    result = None if out is None else np.result_type(wanted, out.dtype)
    if where is not True:
        x = _leave_out(x, normalize_mask("nanmean", x, where))
    static = (axis_key(axis, x.ndim), wanted, check_flag("nanmean", "keepdims", keepdims), result)
    if out is not None:
        step = step_for(_nanmean, (x,), static)
        check_fits("nanmean", out, step.output.shape, step.result)
    return write_out("nanmean", out, run_one(_nanmean, x, static))


def _leave_out(x: Any, mask: Any) -> Any:
    return where(mask, x, x.dtype.type(np.nan))


def _count_selected(x: Any, axis: Any, keepdims: bool, mask: Any) -> Any:
    """Return how many items over `axis` the mask selects."""
    if x._layout.has_partial:
        x = arithmetic.abs(x)  # any function that is not linear gives an array without Partial
    block = x._local
    ones = _memory.full(block.shape, True, np.bool_, _backend.device_of(block))
    return reductions.sum(
        x._new(ones, x._layout), axis=axis, keepdims=keepdims, where=mask, dtype=np.int64
    )


# --- the variance: one pass over the data, states merged in rank order ---------------------------


def _variance_dtypes(_: Op, call: Call) -> tuple[Any, Any]:
    """Return the dtypes of mean, squared deviations and their sum, and of the result."""
    (dtype,) = call.dtypes
    mean = state_dtype(dtype)
    squares = np.empty(0, mean).real.dtype
    return (mean, squares, mean), squares if dtype.char != "e" else np.dtype(np.float16)


def _deviations(step: Step) -> Callable[[Buffer], State]:
    """Return the function that gives the moments of a block."""
    axes = normalize_axes(step.call.static[0], step.sources[0].ndim)

    def state(block: Buffer) -> State:
        if not axes:
            mean = block.astype(state_dtype(block.dtype))
            nothing = mean - mean  # not 0 where an item is not finite
            return mean, np.abs(nothing), nothing
        found = moments(block, axes)
        return found.mean, found.m2, found.rest

    return state


def _variance_of_all(step: Step) -> Callable[..., Any]:
    axis, correction, _ = step.call.static
    axes = normalize_axes(axis, step.sources[0].ndim)
    count = count_reduced(step.sources[0].shape, axes)
    divisor = max(count - correction, 0)
    counts = [count_reduced(boxes.shape(box), axes) for box in step.boxes]
    result, squares = step.result, step.total[1]

    def variance(states: States, _: Buffer) -> Any:
        m2 = states[1][0]
        if len(counts) > 1:
            parts: Any = states
            if m2.size == 1:  # scalars take a quarter of the time of arrays
                parts = [part.reshape(-1) for part in states]
            m2 = functools.reduce(merge, map(Moments, counts, *parts)).m2.reshape(m2.shape)
        if divisor:
            return (m2 / squares.type(divisor)).astype(result, copy=False)
        warn("Degrees of freedom <= 0 for slice", RuntimeWarning)
        with np.errstate(divide="ignore", invalid="ignore"):
            varied = (m2 if count else m2 * np.nan) / m2.dtype.type(0)
        return varied.astype(result, copy=False)

    return variance


_variance = Op(
    "var",
    np.var,
    _state_spec,
    dtypes=_variance_dtypes,
    bind=_deviations,
    finish=_variance_of_all,
    kinds=numeric,
)


# --- the variance of what is not NaN: counts travel with the moments ------------------------------


def _counted_dtypes(op: Op, call: Call) -> tuple[Any, Any]:
    states, result = _variance_dtypes(op, call)
    return (np.dtype(np.intp), *states), result


def _counted_deviations(step: Step) -> Callable[[Buffer], State]:
    """Return the function that gives the moments of what is not NaN, counts first."""
    axes = normalize_axes(step.call.static[0], step.sources[0].ndim)
    _, dtype, squares, _ = step.total
    add = reductions.by(np.add)

    def of_tile(tile: Buffer) -> State:
        missing = np.isnan(tile)
        count = add(~missing, axes, step.total[0], True)
        filled = reductions.replace_nan(tile, 0)
        mean = add(filled, axes, dtype, True) / np.maximum(count, 1).astype(squares)
        library = _backend.namespace_of(tile)
        deviation = library.where(missing, 0, filled.astype(dtype, copy=False) - mean)
        square = deviation.real * deviation.real
        if dtype.kind == "c":
            square = square + deviation.imag * deviation.imag
        rest = add(as_block(deviation), axes, dtype, True)
        return count, mean, add(as_block(square), axes, squares, True), rest

    def merge(a: State, b: State) -> State:
        with np.errstate(invalid="ignore"):  # tiles have warned of what is infinite
            return _merge_counted(*map(np.array, zip(a, b, strict=True)))

    def state(block: Buffer) -> State:
        return tuple(reductions.by_tiles(block, axes, of_tile, merge, step.total))

    def state_of_all(block: Buffer) -> State:
        if not _backend.is_numpy(block):
            return state(block)
        total = _merge_counted(*map(np.array, zip(*moments_beside_nan(block, dtype), strict=True)))
        return tuple(np.full((1,) * block.ndim, part) for part in total)

    return state_of_all if len(axes) == step.sources[0].ndim else state


def _merge_counted(counts: Buffer, *state: Buffer) -> State:
    """Return the state of the union of sets, along the first axis; the mean of no items is 0."""
    if len(counts) == 1:
        return counts[0], *[part[0] for part in state]
    count = np.add.reduce(counts)
    return count, *merge_all(np.maximum(count, 1), Moments(counts, *state))[1:]


def _variance_beside_nan(step: Step) -> Callable[..., Any]:
    _, correction, _ = step.call.static
    result, squares = step.result, step.total[2]

    def variance(states: States, _: Buffer) -> Any:
        quiet = np.errstate(invalid="ignore") if len(states[0]) > 1 else nullcontext()
        with quiet:
            count, _, square, _ = _merge_counted(*states)
        divisor = count - float(correction)
        if not (divisor > 0).all():
            warn("Degrees of freedom <= 0 for slice.", RuntimeWarning)
            divisor = np.where(divisor > 0, divisor, np.nan)
        return (square / divisor.astype(squares)).astype(result, copy=False)

    return variance


_nan_variance = Op(
    "nanvar",
    np.nanvar,
    _state_spec,
    dtypes=_counted_dtypes,
    bind=_counted_deviations,
    finish=_variance_beside_nan,
    kinds="fc",
)


def _compute_variance(
    name: str,
    x: Any,
    axis: Any,
    dtype: Any,
    out: Any,
    ddof: float,
    keepdims: bool,
    where: Any,
    centre: Any,
    correction: Any,
    reproducible: bool,
) -> Any:
    """Return the variance as exact as `out` can hold it, which is not written."""
    keepdims = check_flag(name, "keepdims", keepdims)
    reproducible = check_flag(name, "reproducible", reproducible)
    if correction is not ABSENT:
        if ddof != 0:
            raise ArgumentError(f"ddof={ddof} and correction={correction} mean the same; pass one")
        ddof = correction
    if not isinstance(ddof, Real):
        raise ArgumentTypeError(f"correction={ddof!r}: must be a number, 1 for the sample variance")
    beside_nan = name.startswith("nan")
    x = beside_mask(name, beside_mask(name, x, where), centre)
    x = join_arrays(x)
    if not isinstance(x, BaseArray):
        _refuse_plain(name, reproducible)
        function: Any = np.nanvar if beside_nan else np.var
        if _backend.is_cupy(x) and where is True and centre is ABSENT:
            return function(x, axis, dtype, ddof=ddof, keepdims=keepdims)
        given = {} if centre is ABSENT else {"mean": centre}
        block = np.asarray(x)
        return function(block, axis, dtype, ddof=ddof, keepdims=keepdims, where=where, **given)
    axis = axis_key(axis, x.ndim)
    if centre is None:
        centre = ABSENT
    elif centre is not ABSENT:
        (centre,) = normalize_operands(f"{name}(mean=)", [centre])
        shape = getattr(centre, "shape", ())
        if broadcast_shape(name, (x.shape, shape)) != x.shape:
            raise ShapeError(f"{name}(mean=) of shape {shape} does not broadcast to {x.shape}")
    wanted = None if dtype is None else normalize_dtype(dtype)
    if wanted is not None and (
        x.dtype.kind not in numeric
        or wanted.kind not in floating
        or (x.dtype.kind == "c" and wanted.kind != "c")
    ):
        raise DTypeError(
            f"{name}(dtype={str(wanted)!r}) of {x.dtype}: numbers take a floating-point dtype, "
            "complex ones a complex dtype, and what is no number takes none; leave dtype out, or "
            "convert with astype"
        )
    least = wanted if wanted is not None or out is None else out.dtype
    if least is not None and least.kind in floating and x.dtype.kind in numeric:
        have = np.dtype(np.float64) if x.dtype.kind in "biu" else x.dtype
        work = np.result_type(have, np.empty(0, least).real.dtype)
        x = x if work == have else astype(x, work)
    beside_nan = beside_nan and x.dtype.kind in "fc"
    if beside_nan and where is not True:
        x, where = _leave_out(x, normalize_mask(name, x, where)), True
    around = centre is not ABSENT or reproducible
    if beside_nan and around:
        where = logic.logical_not(logic.isnan(x))
    row = _nan_variance if beside_nan and not around else _variance
    static = (axis, ddof, keepdims)
    if out is not None and out.dtype.kind == "c":
        wanted = out.dtype
    if out is not None:
        step = step_for(row, (x,), static)
        check_fits(name, out, step.output.shape, step.result if wanted is None else wanted)
    if where is True and not around:
        result = run_one(row, x, static)
    else:
        of_none = np.nan if beside_nan else 0
        result = _variance_around(
            centre, x, axis, ddof, keepdims, where, of_none, reproducible=reproducible
        )
    if wanted is None:
        return result
    result = astype(result, wanted, copy=False)
    return arithmetic.divide(result, 1) if wanted.kind == "c" else result  # nan is nan + nan j


def _squares_dtypes(_: Op, call: Call) -> tuple[Any, Any]:
    return np.dtype(np.float64), np.empty(0, call.dtypes[0]).real.dtype


def _divide_squares(step: Step) -> Callable[[Buffer], Any]:
    """Return the division by the count less `ddof`, or by another number where that is none."""
    axis, (ddof, of_none), *_ = step.call.static
    source, result = step.sources[0], step.result
    divisor = count_reduced(source.shape, normalize_axes(axis, source.ndim)) - ddof

    def divide(total: Buffer) -> Any:
        if not divisor > 0:
            warn("Degrees of freedom <= 0 for slice", RuntimeWarning)
        return (total / np.float64(divisor if divisor > 0 else of_none)).astype(result, copy=False)

    return divide


_exact_squares = exact_row("var", _squares_dtypes, _divide_squares, squares_of)


def _variance_around(
    centre: Any,
    x: Any,
    axis: Any,
    ddof: float,
    keepdims: bool,
    mask: Any,
    of_none: float,
    **reproducible: bool,
) -> Any:
    """Return the variance under a mask, around another centre than the mean, or reproducible.

    `of_none` is the divisor where that would not be positive.
    """
    if x._layout.has_partial:
        x = reductions.without_partial("var", x)
    is_exact = mask is True and reproducible["reproducible"]
    count = count_reduced(x.shape, normalize_axes(axis, x.ndim))
    if centre is ABSENT:
        if not count:
            centre = 0.0  # no item deviates, and what has no mean says so once
        elif is_exact:
            centre = run_one(_exact_mean, x, (axis, None, True, True))
        else:
            centre = mean(x, axis=axis, keepdims=True, where=mask, **reproducible)
    deviation = arithmetic.subtract(x, centre)
    if is_exact:
        return run_one(_exact_squares, deviation, (axis, (ddof, of_none), keepdims, True))
    if deviation.dtype.kind == "c":  # item by item, as magnitudes are rounded as the library likes
        parts = real(deviation), imag(deviation)
        square = arithmetic.add(*map(arithmetic.square, parts))
    else:
        square = arithmetic.square(deviation)
    total = reductions.sum(
        square,
        axis=axis,
        dtype=state_dtype(square.dtype),
        keepdims=keepdims,
        where=mask,
        **reproducible,
    )
    if mask is True:
        divisor: Any = np.int64(count) - ddof
        if not divisor > 0:
            warn("Degrees of freedom <= 0 for slice", RuntimeWarning)
            divisor = np.float64(of_none)
    else:
        divisor = arithmetic.subtract(_count_selected(x, axis, keepdims, mask), ddof)
        divisor = where(logic.greater(divisor, 0), divisor, of_none)
    result = arithmetic.divide(total, divisor)
    return astype(result, square.dtype if x.dtype.kind in "fc" else np.float64, copy=False)


_DOCUMENTATION = """Return the {what} over axes{of}{how}.

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
    The divisor is the count{of} less this; the two names mean the same.
keepdims : bool
where : array of bool, optional
    Items that count.
mean : array, optional
    What deviations are taken from, of a shape that broadcasts to `x`; default: the mean.
reproducible : bool
    Whether the bits of the result depend on the items alone: the sum for the mean and that of
    squares rounded to float64 are exact and rounded once, as in `sum`, in two passes over the data,
    with memory for a copy of each block.

Returns
-------
DistArray
    Of the remaining axes; {missing}, with a warning, where the divisor is not positive.

Raises
------
AxisError
    If an axis is out of range or named twice.
DTypeError
    If items are no numbers, or `dtype` is not floating point.
ShapeError
    If `out`, `where` or `mean` does not fit.

Notes
-----
Distribution: count, mean and squared deviations of all blocks along a cut reduced axis are
exchanged at once and merged in rank order (Chan, Golub, LeVeque 1979); the result is replicated
there. Of more than 512 KiB each rank merges a part, and then they gather the results. Where these
states are over a mebibyte, and a rank would get more than its block has, a kept axis is cut
instead. Partial inputs are reduced first.

Examples
--------
>>> import distarray as da
>>> float(da.{name}(da.asarray({items})))
{answer}
"""


def _spread(name: str) -> Callable[..., Any]:
    """Return `var` or `std`, or what leaves out NaN of them."""
    is_root, ignores = name.endswith("std"), name.startswith("nan")

    @register
    @documented(
        _DOCUMENTATION,
        name,
        what="standard deviation" if is_root else "variance",
        of=" of the items that are not NaN" if ignores else "",
        how="" if ignores else ", in one pass over the data",
        missing="NaN" if ignores else "NaN or infinity",
        items="[1.0, 5.0, np.nan]" if ignores else "[1.0, 5.0]",
        answer=2.0 if is_root else 4.0,
    )
    def function(
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
        reproducible: bool = False,
    ) -> Any:
        if (
            isinstance(x, BaseArray)
            and dtype is out is None
            and where is True
            and mean is correction is ABSENT
            and keepdims.__class__ is reproducible.__class__ is bool
            and not reproducible
            and isinstance(ddof, int)
        ):
            row = _nan_variance if ignores and x.dtype.kind in "fc" else _variance
            result = run_one(row, x, (axis_key(axis, x.ndim), ddof, keepdims))
            return _root(result) if is_root else result
        check_out(name, x, out)
        result = _compute_variance(
            name, x, axis, dtype, out, ddof, keepdims, where, mean, correction, reproducible
        )
        return write_out(name, out, _root(result) if is_root else result)

    return function


def _root(variance: Any) -> Any:
    if not isinstance(variance, BaseArray):
        return np.sqrt(variance)
    return variance._new(as_block(np.sqrt(variance._local)), variance._layout)


var = _spread("var")
std = _spread("std")
nanvar = _spread("nanvar")
nanstd = _spread("nanstd")


@register
@fill_arguments
def ptp(x: Any, /, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """Return the largest less the smallest item over axes.

    Parameters
    ----------
    {arguments}

    Raises
    ------
    AxisError
        If an axis is out of range or named twice.
    ArgumentError
        If there is no item.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.ptp(da.asarray([3, 1, 7])))
    6
    """
    check_out("ptp", x, out)
    wide: dict[str, Any] = {}
    if out is not None:
        loop = loop_dtype("ptp", np.maximum, x.dtype, out.dtype)
        holds = np.dtype("m8") if loop.kind == "M" else loop
        static = (axis_key(axis, x.ndim), None, check_flag("ptp", "keepdims", keepdims), True)
        check_fits("ptp", out, step_for(reductions.max, (x,), static).output.shape, holds)
        wide = {} if loop.kind in "mM" else {"dtype": loop}
    top = reductions.max(x, axis=axis, keepdims=keepdims)
    bottom = reductions.min(x, axis=axis, keepdims=keepdims)
    return write_out("ptp", out, arithmetic.subtract(top, bottom, **wide))
