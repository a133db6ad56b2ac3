"""Methods of ufuncs without a function of their own: `reduce`, `accumulate`, `outer`, `reduceat`.

They are made for a ufunc of two operands when it is first met.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from distarray.comm import _backend
from distarray.core import (
    ASSOCIATIVE,
    BaseArray,
    Call,
    Op,
    Spec,
    State,
    States,
    Step,
    check_fits,
    check_out,
    convert_to_unit,
    describe,
    local_dtype,
    loop_dtype,
    method_makers,
    normalize_arrays,
    normalize_dtype,
    plain_buffer,
    reduce_block,
    reduction,
    row_of,
    run_once,
    write_out,
)
from distarray.errors import ArgumentTypeError, AxisError, IndexingError
from distarray.layout import Layout, counted, normalize_axis
from distarray.ops.families._values import check_one_mesh, read_values
from distarray.ops.statistical._reductions import by
from distarray.ops.statistical._scans import accumulation, whole_spec
from distarray.typing import Buffer

# --- reduce --------------------------------------------------------------------------------------

_PARTIAL = {
    np.bitwise_and: "band",
    np.bitwise_or: "bor",
    np.bitwise_xor: "bxor",
    np.logical_xor: "bxor",
}
_ARGUMENTS = ("axis", "dtype", "out", "keepdims")


def _reduction(ufunc: np.ufunc) -> Op:
    row = functools.partial(
        reduction,
        f"{ufunc.__name__}.reduce",
        f"Reduce items over axes by `{ufunc.__name__}`.",
        ufunc=ufunc,
        answers_name=False,
    )
    if ufunc not in ASSOCIATIVE:
        return row(by(ufunc), None, _ARGUMENTS)
    arguments = (*_ARGUMENTS, "initial")
    if ufunc is np.logical_xor:  # Partial operands hold what has not been compared with 0 yet
        return row(by(ufunc, np.bool_), _PARTIAL[ufunc], arguments, rules=())
    if ufunc in _PARTIAL:
        return row(by(ufunc), _PARTIAL[ufunc], arguments)
    return row(by(ufunc), ufunc, arguments, identity=_identity)


def _identity(op: Op, dtype: Any) -> Any:
    assert op.ufunc is not None  # as of all these
    item = 1 if op.ufunc is np.lcm else op.ufunc.identity
    if isinstance(item, float) and dtype.kind not in "fc":
        return item
    return np.asarray(item).astype(dtype)[()]


# --- outer ---------------------------------------------------------------------------------------


def _outer(ufunc: np.ufunc) -> Callable[..., Any]:
    def outer(a: Any, b: Any, /, **options: Any) -> Any:
        a, b = normalize_arrays(f"{ufunc.__name__}.outer", [a, b])
        return row_of(ufunc)(a.reshape((*a.shape, *(1,) * b.ndim)), b, **options)

    return outer


# --- reduceat ------------------------------------------------------------------------------------


def _reduction_at(ufunc: np.ufunc) -> Callable[..., Any]:
    """Return `ufunc.reduceat` for arrays, with indices that every process gets.

    A block reduces the slices that begin in it, and what of the slice before lies in it: this the
    blocks exchange, one item a line. The result is cut as the places where its slices begin are.
    """
    name = f"{ufunc.__name__}.reduceat"
    local = functools.partial(_reduce_slices, ufunc)
    whole = Op(
        name,
        local,
        whole_spec,
        dtypes=_whole_dtypes,
        bind=_bind_whole,
        made=_layout_of_result,
        ufunc=ufunc,
    )
    if ufunc in ASSOCIATIVE:
        row = Op(
            name,
            local,
            _spec,
            dtypes=_dtypes,
            bind=_bind_piece,
            finish=_bind_slices,
            made=_layout_of_result,
            ufunc=ufunc,
        )
    else:
        row = whole

    def reduceat(x: Any, indices: Any, axis: Any = 0, dtype: Any = None, out: Any = None) -> Any:
        check_out(name, x, out)
        if not isinstance(x, BaseArray):
            raise ArgumentTypeError(
                f"{name} of a plain array got distributed indices; pass indices that every process "
                "has: indices.full_array()"
            )
        if not x.ndim:
            raise AxisError(f"{name} of a 0-d array: there is no axis; reshape it to (1,)")
        axis = normalize_axis(axis, x.ndim)
        check_one_mesh(name, x, indices)
        starts = _read_indices(name, indices, x.shape[axis])
        wanted = None if dtype is None else normalize_dtype(dtype)
        if wanted is None and out is not None:
            wanted = loop_dtype(name, ufunc, x.dtype, out.dtype)
        if out is not None:
            shape = (*x.shape[:axis], starts.size, *x.shape[axis + 1 :])
            check_fits(name, out, shape, local_dtype(whole, x.dtype, (0,), 0, wanted))
        is_cut = x._layout.partition(axis).count > 1
        if is_cut and row is not whole and (starts[1:] < starts[:-1]).any():
            raise ArgumentTypeError(
                f"{name} along axis {axis} of {x._layout} takes indices that do not decrease, "
                "where an axis is cut; sort them, or cut another axis first, as "
                "x.redistribute([Shard(other)])"
            )
        op = row if is_cut else whole
        return write_out(name, out, run_once(op, x, (axis, wanted, starts)))

    return reduceat


def _read_indices(name: str, indices: Any, length: int) -> np.ndarray:
    """Return indices, which every process gets, as an array of one axis."""
    given = indices if isinstance(indices, BaseArray) else plain_buffer(indices, name)
    if given.ndim != 1 or (given.dtype.kind not in "iu" and given.size):
        raise IndexingError(
            f"{name} takes indices as integers in one axis, not {describe(indices)}"
        )
    read = read_values(name, given) if isinstance(given, BaseArray) else np.asarray(given)
    found = read.astype(np.int64)
    wrong = found[(found < 0) | (found >= length)]
    if wrong.size:
        raise IndexingError(f"index {wrong[0]} is out of range in {name} of an axis of {length}")
    return found


# hooks of the engine: static is (axis, dtype, indices)


def _reduce_slices(ufunc: np.ufunc, block: Buffer, starts: Any, axis: int, dtype: Any) -> Any:
    block, dtype = convert_to_unit(block, dtype)
    if _backend.is_numpy(block):
        return ufunc.reduceat(block, starts, axis, dtype)
    on_host = ufunc.reduceat(_backend.to_host(block), starts, axis, dtype)  # CuPy has none
    return _backend.asarray(on_host, _backend.device_of(block))


def _whole_dtypes(op: Op, call: Call) -> tuple[Any, Any]:
    dtype = local_dtype(op, call.dtypes[0], (0,), 0, call.static[1])
    return dtype, dtype


def _bind_whole(step: Step) -> Callable[[Buffer], Buffer]:
    (axis, _, starts), local, result = step.call.static, step.op.local, step.result
    return lambda block: local(block, starts, axis, result)


def _spec(_: Op, call: Call) -> Spec:
    letters = tuple(range(call.layouts[0].ndim))
    return Spec((letters,), letters, exchanged=(call.static[0],))


def _dtypes(op: Op, call: Call) -> tuple[Any, Any]:
    dtype, _ = _whole_dtypes(op, call)
    return (dtype,), dtype


def _layout_of_result(step: Step, _: Buffer | None) -> Layout:
    """Return the layout of the result: each slice is where it begins."""
    axis, _, starts = step.call.static
    offsets = np.searchsorted(starts, step.output.partition(axis).offsets)
    offsets[-1] = starts.size  # also where the axis is not cut, and indices decrease
    return counted(step.output, axis, np.diff(offsets).tolist())


def _own_part(step: Step) -> tuple[int, int, int, int]:
    """Return where this block begins and ends, and which slices begin in it."""
    axis, _, starts = step.call.static
    low, high = step.sources[0].own_box[axis]
    first, last = np.searchsorted(starts, (low, high)).tolist()
    return low, high, first, last


def _bind_piece(step: Step) -> Callable[[Buffer], State]:
    """Return the function that reduces what a block has of the slice that begins before it."""
    axis, _, starts = step.call.static
    low, high, first, _ = _own_part(step)
    end = int(starts[first]) if first < starts.size else high
    piece = (*(slice(None),) * axis, slice(max(min(end, high) - low, 1)))
    (total,), ufunc = step.total, step.op.ufunc
    return lambda block: (reduce_block(ufunc, block[piece], (axis,), total, True, initial=None),)


def _bind_slices(step: Step) -> Callable[..., Any]:
    """Return the function that reduces the slices of a block, the last with pieces of others."""
    (axis, _, starts), result = step.call.static, step.result
    local, ufunc = step.op.local, step.op.ufunc
    assert ufunc is not None
    _, high, first, last = _own_part(step)
    own = starts[first:last] - step.sources[0].own_box[axis][0]
    end = int(starts[last]) if last < starts.size else step.sources[0].shape[axis]
    before_axis = (slice(None),) * axis
    shape = list(step.sources[0].local_shape())
    shape[axis] = own.size

    def reduce_slices(states: States, block: Buffer) -> Any:
        if not prod(shape):
            return np.empty(shape, result)
        reduced = local(block, own, axis, result)
        following = [
            (box[axis][0], piece)
            for piece, box in zip(states[0], step.boxes, strict=True)
            if high <= box[axis][0] < end
        ]
        where = (*before_axis, slice(-1, None))
        for _, piece in sorted(following, key=lambda one: one[0]):
            there = _backend.asarray(piece, _backend.device_of(reduced))
            reduced[where] = ufunc(reduced[where], there)
        return reduced

    return reduce_slices


method_makers["reduce"] = _reduction
method_makers["accumulate"] = accumulation
method_makers["outer"] = _outer
method_makers["reduceat"] = _reduction_at
