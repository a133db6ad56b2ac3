"""Scans along an axis: cumulative sums and products, and `accumulate`.

A scan reads its block twice. First each block is reduced to one item a line; the ranks exchange
these, and each begins with what the blocks before its own have come to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from distarray.comm import _backend, _memory
from distarray.core import (
    ASSOCIATIVE,
    BaseArray,
    Call,
    Op,
    Spec,
    State,
    Step,
    check_fits,
    check_flag,
    check_out,
    check_whole,
    convert_to_unit,
    documented,
    elementwise,
    example,
    join_arrays,
    local_dtype,
    loop_dtype,
    methods,
    normalize_dtype,
    reduce_block,
    register,
    run_one,
    run_row,
    step_for,
    write_out,
)
from distarray.errors import AxisError
from distarray.layout import Layout, normalize_axis
from distarray.ops.families._relabel import resize_axis
from distarray.ops.manipulation._reshape import reshape
from distarray.ops.statistical._reductions import replace_nan
from distarray.typing import Buffer

_DOCUMENTATION = """Return {what} up to each item along an axis.

Parameters
----------
x : array
axis : int, optional
    {axis}
dtype : optional
    Of the result; by default integers are {verb} at least in int64, as in NumPy.
out : DistArray, optional
    Where the result goes, of its shape; a wider dtype of it is {verb} in.
include_initial : bool
    Begin with {identity}, which makes the axis one item longer.

Returns
-------
DistArray
    Cut as `x` is; with `include_initial` the first block of the axis has one item more.

Raises
------
AxisError
    If there is no such axis.
DTypeError
    If NumPy has no such function for the dtype.

Notes
-----
Distribution: along a cut axis each block sends one item a line, to all at once, and nothing else
is sent. Partial inputs are reduced first.

{example}"""


def scan(name: str, what: str, ufunc: np.ufunc, function: Callable[..., Any]) -> Op:
    """Return a scan along an axis; `cumsum` and `cumprod` may also take all items in flat order.

    Parameters
    ----------
    name, what : str
        The public name, and what is returned.
    ufunc : ufunc
        Whose `accumulate` it is.
    function : callable
        NumPy's function of this name, or the one that does the same on blocks.
    """
    flat = not name.startswith("cumulative")
    axis = "Default: all items in flat order." if flat else "Default, of arrays of one axis: 0."
    verb = "added up" if ufunc is np.add else "multiplied"
    op = _row(name, ufunc, function, flat)
    text = _DOCUMENTATION.format(
        what=what, axis=axis, verb=verb, identity=ufunc.identity, example=example(op)
    )
    op.describe(__doc__=text)
    register(op)
    if not flat:
        methods[ufunc, "accumulate"] = op
    return op


def accumulation(ufunc: np.ufunc) -> Op:
    """Return the row of `ufunc.accumulate`; one that is not associative takes uncut axes only."""
    return _row(f"{ufunc.__name__}.accumulate", ufunc, ufunc.accumulate, False)


def _row(name: str, ufunc: np.ufunc, function: Callable[..., Any], flat: bool) -> Op:
    is_public = name in vars(np)  # and so among CuPy's functions

    def local(block: Buffer, axis: int, dtype: Any, out: Buffer | None = None) -> Buffer:
        block, dtype = convert_to_unit(block, dtype)
        if _backend.is_numpy(block):
            return ufunc.accumulate(block, axis, dtype, out)
        if is_public:
            return function(block, axis, dtype, out)
        on_host = function(_backend.to_host(block), axis, dtype)
        result = _backend.asarray(on_host, _backend.device_of(block))
        if out is None:
            return result
        out[...] = result
        return out

    hooks: dict[str, Any] = {"spec": whole_spec, "bind": _bind_whole}
    if ufunc in ASSOCIATIVE:
        hooks = {"spec": _spec, "bind": _bind_reduction, "finish": _bind_scan}
    call = functools.partial(_call, flat=flat)
    return Op(name, local, call=call, dtypes=_dtypes, made=_lengthen, ufunc=ufunc, **hooks)


def _call(
    op: Op,
    x: Any,
    /,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    include_initial: bool = False,
    *,
    flat: bool,
) -> Any:
    check_out(op.name, x, out)
    include_initial = check_flag(op.name, "include_initial", include_initial)
    x = join_arrays(x)
    if not isinstance(x, BaseArray):
        extra = {"include_initial": True} if include_initial else {}
        return getattr(np, op.name)(x, axis=axis, dtype=dtype, **extra)
    if axis is None and flat:
        x = reshape(x, (-1,))
    elif axis is None and x.ndim != 1:
        raise AxisError(
            f"{op.name} of an array of shape {x.shape} needs axis=, which it adds along"
        )
    axis = 0 if axis is None else normalize_axis(axis, x.ndim)
    wanted = None if dtype is None else normalize_dtype(dtype)
    if wanted is None and out is not None:
        assert op.ufunc is not None  # as of all scans
        wanted = loop_dtype(op.name, op.ufunc, x.dtype, out.dtype)
    static = (axis, wanted, include_initial)
    if out is not None:
        step = step_for(op, (x,), static)
        assert step.made is not None  # as of all scans
        check_fits(op.name, out, step.made(None).shape, step.result)
    return write_out(op.name, out, run_one(op, x, static))


# --- hooks of the engine: static is (axis, dtype, include_initial) -------------------------------


def _spec(op: Op, call: Call) -> Spec:
    ndim = call.layouts[0].ndim
    if not ndim:
        raise AxisError(f"{op.name} of a 0-d array: there is no axis; reshape it to (1,)")
    letters = tuple(range(ndim))
    return Spec((letters,), letters, exchanged=(call.static[0],), prefix=op.ufunc)


def whole_spec(op: Op, call: Call) -> Spec:
    """Return the spec of an operation along an axis, the first static argument, that is not cut."""
    letters = _spec(op, call).inputs[0]
    check_whole(op, call.layouts[0], call.static[:1])
    return Spec((letters,), letters)


def _bind_whole(step: Step) -> Callable[[Buffer], Buffer]:
    local, axis, result = step.op.local, step.call.static[0], step.result
    return lambda block: local(block, axis, result)


def _dtypes(op: Op, call: Call) -> tuple[Any, Any]:
    """Return the dtype of a block's total, wider than half precision, and of the result."""
    dtype = local_dtype(op, call.dtypes[0], 0, call.static[1])
    if op.ufunc not in ASSOCIATIVE:
        return dtype, dtype
    return (np.dtype(np.float32) if dtype.char == "e" else dtype,), dtype


def _bind_reduction(step: Step) -> Callable[[Buffer], State]:
    (total,), result, axes = step.total, step.result, (step.call.static[0],)
    ufunc = step.op.ufunc

    def reduce_whole(block: Buffer) -> State:
        items = block if total is result else block.astype(result, copy=False)
        return (reduce_block(ufunc, items, axes, total, True, initial=None),)

    return reduce_whole


def _bind_scan(step: Step) -> Callable[..., Any]:
    """Return the function that scans a block, beginning with what the blocks before it come to."""
    axis, result, ufunc, local = step.call.static[0], step.result, step.op.ufunc, step.op.local
    source = step.sources[0]
    assert ufunc is not None
    mesh: Any = source.mesh
    leads = all(mesh.coordinate[m] == 0 for m in source.sharding_axes(axis))
    initial = int(step.call.static[2] and leads)  # items that come before the block's own
    before_axis = (slice(None),) * axis
    rest, first = (*before_axis, slice(1, None)), (*before_axis, slice(1))
    shape = list(source.local_shape())
    shape[axis] += initial

    def scan_block(start: np.ndarray | None, block: Buffer) -> Buffer:
        out = _memory.empty(tuple(shape), result, _backend.device_of(block))
        own = out
        if initial:
            out[first], own = ufunc.identity, out[rest]
        if not block.size:
            return out
        if start is None:
            local(block, axis, result, own)
            return out
        own[...] = block
        own[first] = ufunc(_backend.asarray(start, _backend.device_of(block)), own[first])
        local(own, axis, result, own)
        return out

    return scan_block


def _lengthen(step: Step, _: Buffer | None) -> Layout:
    """Return the layout of the result, whose first block has the initial item."""
    layout = step.output
    if not step.call.static[2]:
        return layout
    axis = step.call.static[0]
    _, *ends = layout.partition(axis).offsets
    offsets = (0, *(end + 1 for end in ends)) if layout.sharding_axes(axis) else None
    return resize_axis(layout, axis, layout.shape[axis] + 1, offsets)


cumulative_sum = scan("cumulative_sum", "the sum of all items", np.add, np.cumsum)
cumulative_prod = scan("cumulative_prod", "the product of all items", np.multiply, np.cumprod)
cumsum = scan("cumsum", "the sum of all items", np.add, np.cumsum)
cumprod = scan("cumprod", "the product of all items", np.multiply, np.cumprod)


_NAN_DOCUMENTATION = """Return the {what} of items up to each along an axis, NaN left out.

Parameters
----------
x : array
axis : int, optional
    Default: all items in flat order.
dtype : dtype, optional
    Of the result; as of `{scan}`.
out : DistArray, optional
    Where the result goes, of its shape; a wider dtype of it is computed in.

Returns
-------
DistArray
    Cut as `x` is. Where no item has come yet it is {identity}.

Raises
------
AxisError
    If there is no such axis.
DTypeError
    If NumPy has no such function for the dtype.

Notes
-----
Distribution: along a cut axis each block sends one item a line, to all at once, and nothing else
is sent. Partial inputs are reduced first. Of items that may be NaN a copy is made.

Examples
--------
>>> x = da.asarray(np.array([1.0, np.nan, 3.0]))
>>> da.{name}(x).tolist()
{example}
"""


def _beside_nan(name: str, what: str, scanned: Op, example: list[float]) -> Callable[..., Any]:
    assert scanned.ufunc is not None  # as of all scans
    identity = scanned.ufunc.identity

    @register
    @documented(
        _NAN_DOCUMENTATION,
        name,
        what=what,
        scan=scanned.name,
        identity=identity,
        example=example,
    )
    def function(x: Any, /, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        x = join_arrays(x)
        if not isinstance(x, BaseArray):
            check_out(name, x, out)
            return getattr(np, name)(x, axis, dtype)
        if x.dtype.kind in "fc":
            x = run_row(_replaced, (x,), item=identity)
        return scanned(x, axis, dtype, out)

    return function


_replaced = elementwise("replace_nan", replace_nan, 1, kinds="fc")
nancumsum = _beside_nan("nancumsum", "sum", cumsum, [1.0, 1.0, 4.0])
nancumprod = _beside_nan("nancumprod", "product", cumprod, [1.0, 1.0, 3.0])
