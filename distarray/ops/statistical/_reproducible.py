"""Sums whose bits depend on the items alone: exact, and rounded once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from distarray.comm import _backend
from distarray.core import (
    WORDS,
    Call,
    Op,
    State,
    States,
    Step,
    add_up,
    reduction,
    round_sums,
)
from distarray.errors import DTypeError
from distarray.layout import normalize_axes
from distarray.typing import Buffer, Shape

_KEPT = 2048
"""Kept items whose sums are found together: 1.5 MB of words, and as much to round them."""


def _check_dtype(dtype: Any, wanted: Any) -> Any:
    """Return the dtype of the sum of items of a dtype.

    Raises
    ------
    DTypeError
        If it is not float64 or complex128 at most, or complex items would become real.
    """
    result = (dtype if wanted is None else np.dtype(wanted)).newbyteorder("=")
    widest = any(np.empty(0, one).real.itemsize > 8 for one in (dtype, result))
    if widest or not np.can_cast(dtype, result, "same_kind"):
        raise DTypeError(
            f"sum(reproducible=True) of {dtype} into {result}: it adds up numbers of at most 64 "
            "bits, and complex ones into complex ones; convert with astype"
        )
    return result


def _add_parts(block: Buffer, axes: tuple[int, ...]) -> Buffer:
    """Return the words of the sums of real and, where there are such, imaginary parts.

    They have shape (parts, WORDS) behind the block's with reduced axes of length 1.
    """
    parts = [block.real, block.imag] if block.dtype.kind == "c" else [block]
    words = [_backend.to_host(add_up(part, axes)) for part in parts]
    return np.ascontiguousarray(np.moveaxis(np.stack(words), (0, 1), (-2, -1)))


def _round(words: Buffer, dtype: Any) -> Buffer:
    """Return sums of a dtype, given as words of their parts."""
    real = np.empty(0, dtype).real.dtype
    parts = np.moveaxis(words, (-1, -2), (0, 1))
    sums = np.empty(words.shape[:-2], dtype)
    sums.real = round_sums(parts[:, 0], real)
    if words.shape[-2] > 1:
        sums.imag = round_sums(parts[:, 1], real)
    elif dtype.kind == "c":
        sums.imag = 0
    return sums


def _slabs(shape: Shape, strides: Sequence[int], axes: tuple[int, ...]) -> Iterator[Any]:
    """Yield boxes of a block that span the reduced axes, of few kept items."""
    steps, budget = list(shape), _KEPT
    for axis in sorted(range(len(shape)), key=lambda i: abs(strides[i])):
        if axis not in axes:
            steps[axis] = max(1, min(shape[axis], budget))
            budget //= steps[axis]
    ranges = [range(0, size, step or 1) for size, step in zip(shape, steps, strict=True)]
    if any(shape[axis] == 0 for axis in axes):  # sums of nothing are sums, too
        ranges = [r if i not in axes else range(1) for i, r in enumerate(ranges)]
    for corner in itertools.product(*ranges):
        yield tuple(slice(at, at + step) for at, step in zip(corner, steps, strict=True))


def _sum_block(block: Buffer, axes: tuple[int, ...], dtype: Any) -> Buffer:
    """Return the sums of a block, with reduced axes of length 1."""
    sums = np.empty([1 if i in axes else n for i, n in enumerate(block.shape)], dtype)
    for box in _slabs(block.shape, block.strides, axes):
        kept = tuple(slice(None) if i in axes else piece for i, piece in enumerate(box))
        sums[kept] = _round(_add_parts(block[(*box, ...)], axes), dtype)
    return sums


def _local(block: Buffer, axes: tuple[int, ...], dtype: Any, keepdims: bool, **extra: Any) -> Any:
    """Return the sums of a plain array."""
    result = _check_dtype(block.dtype, dtype)
    sums = _sum_block(_leave_out(block, extra.get("where", True)), axes, result)
    if "initial" in extra:
        sums = np.add(sums, extra["initial"], dtype=result)
    sums = sums if keepdims else sums.squeeze(axes)
    return _backend.asarray(sums, _backend.device_of(block))[()]


def _leave_out(block: Buffer, mask: Any) -> Any:
    if mask is True:
        return block
    library = _backend.namespace_of(block)
    zero = _backend.scalar(block.dtype.type(0), block)
    return library.where(library.asarray(mask), block, zero)


# --- as a reduction of distributed arrays --------------------------------------------------------


def _dtypes(_: Op, call: Call) -> tuple[Any, Any]:
    """Return the dtype of a state, the words of a sum, and that of the result."""
    parts = 2 if call.dtypes[0].kind == "c" else 1
    words = np.dtype((np.void, 8 * WORDS * parts))
    return (words,), _check_dtype(call.dtypes[0], call.static[1])


def _is_cut(step: Step) -> bool:
    """Tell whether several blocks have items of one sum."""
    source = step.sources[0]
    axes = normalize_axes(step.call.static[0], source.ndim)
    return any(source.partition(axis).count > 1 for axis in axes)


def _bind(step: Step) -> Callable[..., State]:
    """Return the function that makes words of a block: no state where nobody else has any."""
    axes = normalize_axes(step.call.static[0], step.sources[0].ndim)
    (words,) = step.total
    if not _is_cut(step):
        return lambda *_: ()

    def state(block: Buffer, mask: Any = True) -> State:
        found = _add_parts(_leave_out(block, mask), axes)
        return (found.reshape(*found.shape[:-2], -1).view(words)[..., 0],)

    return state


def _finish(step: Step) -> Callable[..., Any]:
    axes = normalize_axes(step.call.static[0], step.sources[0].ndim)
    words, result = step.total[0], step.result
    parts = words.itemsize // (8 * WORDS)

    def sum_own(_: States, block: Buffer, mask: Any = True) -> Any:
        return _sum_block(_leave_out(block, mask), axes, result)

    def round_all(states: States, *_: Buffer) -> Any:
        (first,), _box = states[0]
        total = np.zeros((*first.shape, parts, WORDS), np.int64)
        for (state,), _box in states:
            total += state[..., None].view(np.int64).reshape(total.shape)
        flat = total.reshape(-1, parts, WORDS)
        sums = np.empty(len(flat), result)
        for start in range(0, len(flat), _KEPT):
            sums[start : start + _KEPT] = _round(flat[start : start + _KEPT], result)
        return sums.reshape(first.shape)

    return round_all if _is_cut(step) else sum_own


def _nothing(op: Op, dtype: Any) -> Any:
    del op
    return np.zeros((), dtype)[()]


reproducible_sum = replace(
    reduction(
        "sum",
        "Return the exact sums over axes, rounded once.",
        _local,
        np.add,
        ("axis", "dtype", "out", "keepdims", "initial"),
        ufunc=np.add,
        answers_name=False,
        answers_reduce=False,
        identity=_nothing,
    ),
    dtypes=_dtypes,
    bind=_bind,
    finish=_finish,
)
"""What `sum` does where it is to be reproducible."""
