"""Statistics: the mean, the variance, the range."""

from __future__ import annotations

import warnings
from collections.abc import Callable
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
    broadcast_shape,
    check_fits,
    check_flag,
    check_out,
    floating,
    loop_dtype,
    merge,
    moments,
    normalize_dtype,
    normalize_operands,
    numeric,
    reduce,
    reduced_count,
    reduction,
    reduction_spec,
    register,
    result_dtype,
    run_one,
    state_dtype,
    step_for,
    write_out,
)
from distarray.errors import ArgumentTypeError, DTypeError, ShapeError
from distarray.layout import box as boxes
from distarray.layout import normalize_axes
from distarray.ops.elementwise import _arithmetic as arithmetic
from distarray.ops.elementwise import _logic as logic
from distarray.ops.elementwise._rounding import astype, where
from distarray.ops.statistical import _reductions as reductions
from distarray.typing import Buffer

# --- the mean: the sum of all ranks' items, divided once -----------------------------------------


def _mean_dtypes(op: Op, call: Call) -> tuple[Any, Any]:
    """Return the dtype of the sum, which is wider than the mean of half precision, and the mean's.

    Raises
    ------
    DTypeError
        If sums in the wanted dtype are of another kind.
    """
    dtype, wanted = call.dtypes[0], call.static[1]
    if wanted is None:
        total = state_dtype(dtype)
        result_dtype(op, dtype, total)  # refuses what does not add up
        return total, dtype.newbyteorder("=") if dtype.char == "e" else total
    total = result_dtype(op, dtype, wanted)
    if total.kind != wanted.kind:
        raise DTypeError(
            f"mean(dtype={str(wanted)!r}) of {dtype}: sums of it are {total}; leave dtype "
            "out, or convert with astype"
        )
    return wanted, wanted


def _quotient(step: Step) -> Callable[[Buffer], Any]:
    """Return the division as NumPy does it: in float64, then rounded to its dtype if it has axes.

    The total may be overwritten.
    """
    source = step.sources[0]
    count = reduced_count(source.shape, normalize_axes(step.call.static[0], source.ndim))
    divisor, result = np.intp(count), step.result

    def quotient(total: Buffer) -> Any:
        if count == 0:
            warnings.warn("Mean of empty slice.", RuntimeWarning, stacklevel=6)
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
)


@register
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
    if out is None and where is True and isinstance(x, BaseArray):
        return reduce(_mean, x, axis, dtype, out, keepdims)
    keepdims = check_flag("mean", "keepdims", keepdims)
    check_out("mean", x, out)
    if not isinstance(x, BaseArray):
        return np.mean(x, axis, dtype, None, keepdims, where=where)
    sums_into = dtype is not None and out is not None  # which is divided in the dtype of `out`
    if dtype is None and out is not None:
        dtype = loop_dtype("mean", np.add, state_dtype(x.dtype), out.dtype)
    if where is True and not sums_into:
        return reduce(_mean, x, axis, dtype, out, keepdims)
    wanted = None if dtype is None else normalize_dtype(dtype)
    step = step_for(_mean, (x,), (axis_key(axis, x.ndim), wanted, keepdims, False))
    result = step.result
    if out is not None:
        check_fits("mean", out, step.output.shape, result)
    total = reductions.sum(x, axis=axis, dtype=step.total, keepdims=keepdims, where=where)
    if sums_into:
        result = np.result_type(result, out.dtype)
        total = astype(total, result, copy=False)
    quotient = arithmetic.divide(total, _selected(x, axis, keepdims, where))
    if total.ndim:
        quotient = astype(quotient, total.dtype, copy=False)
    return write_out("mean", out, astype(quotient, result, copy=False))


def _selected(x: Any, axis: Any, keepdims: bool, mask: Any) -> Any:
    """Return how many items over `axis` the mask selects."""
    if x._layout.has_partial:
        x = arithmetic.abs(x)  # any function that is not linear gives an array without Partial
    block = x._local
    ones = _memory.full(block.shape, True, np.bool_, _backend.device_of(block))
    return reductions.sum(
        x._new(ones, x._layout), axis=axis, keepdims=keepdims, where=mask, dtype=np.int64
    )


# --- the variance: one pass over the data, states merged in rank order ---------------------------


def _varied_spec(_: Op, call: Call) -> Spec:
    axis, keepdims, _ = call.static
    layout = call.layouts[0]
    return reduction_spec(layout.ndim, normalize_axes(axis, layout.ndim), keepdims, exchanged=True)


def _variance_dtypes(_: Op, call: Call) -> tuple[Any, Any]:
    """Return the dtypes of mean and sum of squared deviations, and of the result."""
    (dtype,) = call.dtypes
    mean = state_dtype(dtype)
    squares = np.empty(0, mean).real.dtype
    return (mean, squares), squares if dtype.char != "e" else np.dtype(np.float16)


def _deviations(step: Step) -> Callable[[Buffer], State]:
    """Return the function that gives mean and sum of squared deviations of a block."""
    axes = normalize_axes(step.call.static[0], step.sources[0].ndim)

    def state(block: Buffer) -> State:
        if not axes:
            mean = block.astype(state_dtype(block.dtype))
            return mean, np.abs(mean - mean)  # not 0 where an item is not finite
        found = moments(block, axes)
        return found.mean, found.m2

    return state


def _variance_of_all(step: Step) -> Callable[..., Any]:
    axis, _, correction = step.call.static
    axes = normalize_axes(axis, step.sources[0].ndim)
    count = reduced_count(step.sources[0].shape, axes)
    divisor = max(count - correction, 0)
    shape, result = step.output.local_shape(), step.result

    def variance(states: States, _: Buffer) -> Any:
        total = Moments(0, None, None)
        for (mean, m2), box in states:
            size = reduced_count(boxes.shape(box), axes)
            total = merge(total, Moments(size, mean, m2))
        if not divisor:
            warnings.warn("Degrees of freedom <= 0 for slice", RuntimeWarning, stacklevel=6)
        m2 = total.m2.reshape(shape)
        with np.errstate(divide="ignore", invalid="ignore"):
            varied = (m2 if count else m2 * np.nan) / m2.dtype.type(divisor)
        return varied.astype(result, copy=False)

    return variance


_variance = Op(
    "var",
    np.var,
    _varied_spec,
    dtypes=_variance_dtypes,
    bind=_deviations,
    finish=_variance_of_all,
    kinds=numeric,
)


@register
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
    mean : array, optional
        What deviations are taken from, of a shape that broadcasts to `x`; default: the mean, found
        in the same pass.

    Notes
    -----
    Distribution: the states of all blocks along a cut reduced axis are exchanged at once and merged
    in rank order (Chan, Golub, LeVeque 1979); the result is replicated there.
    """
    check_out("var", x, out)
    result = _varied("var", x, axis, dtype, out, ddof, keepdims, where, mean, correction)
    return write_out("var", out, result)


def _varied(
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
) -> Any:
    """Return the variance as exact as `out` can hold it, which is not written."""
    keepdims = check_flag(name, "keepdims", keepdims)
    if correction is not ABSENT:
        if ddof != 0:
            raise ArgumentTypeError(
                f"ddof={ddof} and correction={correction} mean the same; pass one"
            )
        ddof = correction
    if not isinstance(ddof, Real):
        raise ArgumentTypeError(f"correction={ddof!r}: must be a number, 1 for the sample variance")
    if not isinstance(x, BaseArray):
        if _backend.is_cupy(x) and where is True and centre is ABSENT:
            return np.var(x, axis, dtype, ddof=ddof, keepdims=keepdims)
        given = {} if centre is ABSENT else {"mean": centre}
        block = np.asarray(x)
        return np.var(block, axis, dtype, ddof=ddof, keepdims=keepdims, where=where, **given)
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
    static = (axis, keepdims, ddof)
    if out is not None and out.dtype.kind == "c":
        wanted = out.dtype
    if out is not None:
        step = step_for(_variance, (x,), static)
        check_fits(name, out, step.output.shape, step.result if wanted is None else wanted)
    if where is True and centre is ABSENT:
        result = run_one(_variance, x, static)
    else:
        result = _variance_around(centre, x, axis, ddof, keepdims, where)
    if wanted is None:
        return result
    result = astype(result, wanted, copy=False)
    return arithmetic.divide(result, 1) if wanted.kind == "c" else result  # nan is nan + nan j


def _variance_around(centre: Any, x: Any, axis: Any, ddof: float, keepdims: bool, mask: Any) -> Any:
    """Return the variance under a mask, or around another centre than the mean."""
    count = _selected(x, axis, keepdims, mask)
    if centre is ABSENT:
        centre = mean(x, axis=axis, keepdims=True, where=mask)
    deviation = arithmetic.abs(arithmetic.subtract(x, centre))
    total = reductions.sum(
        arithmetic.square(deviation),
        axis=axis,
        dtype=state_dtype(deviation.dtype),
        keepdims=keepdims,
        where=mask,
    )
    divisor = arithmetic.subtract(count, ddof)
    result = arithmetic.divide(total, where(logic.greater(divisor, 0), divisor, 0))
    return astype(result, deviation.dtype if x.dtype.kind in "fc" else np.float64, copy=False)


@register
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
    check_out("std", x, out)
    result = _varied("std", x, axis, dtype, out, ddof, keepdims, where, mean, correction)
    if not isinstance(result, BaseArray):
        return np.sqrt(result)
    root = result._new(as_block(np.sqrt(result._local)), result._layout)
    return write_out("std", out, root)


@register
def ptp(x: Any, /, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """Return the largest less the smallest item over axes."""
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
