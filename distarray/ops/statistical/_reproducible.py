"""Sums whose bits depend on the items alone: exact, and rounded once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from distarray.comm import _backend
from distarray.core import (
    WORDS,
    Call,
    Finder,
    Items,
    Op,
    State,
    States,
    Step,
    items_of,
    reduction,
    round_short,
    round_sums,
    sum_exactly,
)
from distarray.errors import DTypeError
from distarray.layout import normalize_axes
from distarray.typing import Buffer

ItemsOf = Callable[..., tuple[Items, ...]]

_STATES_AT_ONCE = 512
"""Sums whose states are added up together: 400 KB of words, a part of a second-level cache."""


def _check_dtype(dtype: Any, wanted: Any) -> Any:
    """Return the dtype of the sum of items of a dtype."""
    result = (dtype if wanted is None else np.dtype(wanted)).newbyteorder("=")
    widest = any(_part(one).itemsize > 8 for one in (dtype, result))
    if widest or not np.can_cast(dtype, result, "same_kind"):
        raise DTypeError(
            f"sum(reproducible=True) of {dtype} into {result}: it adds up numbers of at most 64 "
            "bits, and complex ones into complex ones; convert with astype"
        )
    return result


def _part(dtype: Any) -> Any:
    """Return the dtype of a part of a complex number; a real one is its own part."""
    return np.empty(0, dtype).real.dtype


def _join(sums: Buffer, parts: int, dtype: Any) -> Buffer:
    """Return sums of a dtype; of complex items there are two parts of each, the last axis."""
    if parts > 1:
        return np.ascontiguousarray(sums).view(dtype)[..., 0]
    return sums if sums.dtype is dtype else sums.astype(dtype, copy=False)


def _local(block: Buffer, axes: tuple[int, ...], dtype: Any, keepdims: bool, **extra: Any) -> Any:
    """Return the sums of a plain array."""
    result = _check_dtype(block.dtype, dtype)
    items = items_of(block, extra.get("where", True))
    sums = _join(sum_exactly(items, axes, _part(result)), 1 + (block.dtype.kind == "c"), result)
    if "initial" in extra:
        sums = np.add(sums, extra["initial"], dtype=result)
    sums = sums if keepdims else sums.squeeze(axes)
    return _backend.asarray(sums, _backend.device_of(block))[()]


# --- as a reduction of distributed arrays --------------------------------------------------------


def sum_state(step: Step, axes: tuple[int, ...], items: ItemsOf) -> Callable[..., Any]:
    """Return the first local step of sums of `items(*blocks)` over axes of the first block.

    It gives short states, or words where these do not hold all sums, but no state where nobody else
    has any of the items.
    """
    (words,) = step.total
    if not _is_cut(step, axes):
        return lambda *_: ()
    find = Finder(items, axes, is_short=step.op.otherwise is not None)

    def state(*blocks: Any) -> State:
        found = np.ascontiguousarray(find(*blocks))
        return (found.reshape(*found.shape[: blocks[0].ndim], -1).view(words)[..., 0],)

    return state


def round_states(
    step: Step,
    axes: tuple[int, ...],
    items: ItemsOf,
    dtype: Any = None,
    then: Callable[[Buffer], Buffer] | None = None,
) -> Callable[..., Any]:
    """Return the second local step of such sums, of the result's dtype or another.

    What it gives is what `then` makes of them; None where short states do not hold all sums.
    """
    result = step.result if dtype is None else dtype
    part = _part(result)
    parts = 1 + (result.kind == "c")
    find = Finder(items, axes, part)

    def sum_own(_: States, *blocks: Any) -> Any:
        return _join(find(*blocks), parts, result)

    def round_all(states: States, *_: Buffer) -> Any:
        blocks, *shape = states[0].shape
        integers = states[0].reshape(blocks, -1).view(np.int64)
        if step.op.otherwise is not None:
            sums = round_short(integers, part)
            if sums is None:
                return None
        else:
            total = integers.reshape(blocks, -1, WORDS)[0]  # which nobody else has
            for start in range(0, len(total), _STATES_AT_ONCE):
                some = slice(start * WORDS, (start + _STATES_AT_ONCE) * WORDS)
                for other in integers[1:]:
                    total[start : start + _STATES_AT_ONCE] += other[some].reshape(-1, WORDS)
            sums = round_sums(total, part)
        return _join(
            sums.reshape(*shape, parts) if parts > 1 else sums.reshape(shape), parts, result
        )

    found: Callable[..., Any] = round_all if _is_cut(step, axes) else sum_own
    if then is None:
        return found

    def finish(*given: Any) -> Any:
        sums = found(*given)
        return None if sums is None else then(sums)

    return finish


def _is_cut(step: Step, axes: tuple[int, ...]) -> bool:
    """Tell whether several blocks have items of one sum."""
    return any(step.sources[0].partition(axis).count > 1 for axis in axes)


def state_dtype(op: Op, is_complex: bool) -> Any:
    """Return the dtype of a state of a sum, or of both its parts."""
    return np.dtype((np.void, 8 * (WORDS if op.otherwise is None else 2) * (1 + is_complex)))


def shortly(row: Op) -> Op:
    """Return a row of sums by words as one of short states, which falls back on it."""
    return replace(row, otherwise=row)


def _dtypes(op: Op, call: Call) -> tuple[Any, Any]:
    """Return the dtype of a state, and that of the result."""
    return (state_dtype(op, call.dtypes[0].kind == "c"),), _check_dtype(
        call.dtypes[0], call.static[1]
    )


def _axes(step: Step) -> tuple[int, ...]:
    return normalize_axes(step.call.static[0], step.sources[0].ndim)


def _items(*blocks: Any) -> tuple[Items, ...]:
    return (items_of(*blocks),)


def exact_row(
    name: str,
    dtypes: Callable[[Op, Call], tuple[Any, Any]],
    finish: Callable[[Step], Callable[[Buffer], Any]],
    items: ItemsOf = _items,
) -> Op:
    """Return a reduction made of exact sums.

    Its static arguments are those of `sum`, of which the second may be anything.

    Parameters
    ----------
    name : str
    dtypes : callable
        `dtypes(op, call)` gives the dtype of the sums, and that of the result.
    finish : callable
        `finish(step)` gives what makes the result of the sums.
    items : callable
        `items(*blocks)` gives what is added up: of complex items both parts along one more axis.
    """

    def all_dtypes(op: Op, call: Call) -> tuple[Any, Any]:
        total, result = dtypes(op, call)
        _check_dtype(_part(call.dtypes[0]), _part(total))
        return (state_dtype(op, total.kind == "c"),), result

    def finish_all(step: Step) -> Callable[..., Any]:
        total, _ = dtypes(step.op, step.call)
        return round_states(step, _axes(step), items, total, finish(step))

    row = replace(
        reproducible_sum,
        name=name,
        dtypes=all_dtypes,
        bind=lambda step: sum_state(step, _axes(step), items),
        finish=finish_all,
        otherwise=None,
    )
    return shortly(row)


def _nothing(op: Op, dtype: Any) -> Any:
    del op
    return np.zeros((), dtype)[()]


_by_words = replace(
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
    bind=lambda step: sum_state(step, _axes(step), _items),
    finish=lambda step: round_states(step, _axes(step), _items),
)
reproducible_sum = shortly(_by_words)
"""What `sum` does where it is to be reproducible."""
