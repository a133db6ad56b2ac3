"""Items taken and put by their numbers, along an axis or in flat order, and chosen among arrays.

All but `choose` and what `take_along_axis` finds in a block are indexing by arrays: see `getitem`
for who sends what.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from distarray.comm import _backend
from distarray.core import (
    BaseArray,
    Call,
    Op,
    Spec,
    Step,
    broadcast_shape,
    check_choice,
    check_distributed,
    check_flag,
    check_out,
    check_writable,
    describe,
    method_makers,
    normalize_arrays,
    plain_buffer,
    pointwise,
    pointwise_spec,
    register,
    run,
    write_out,
)
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    IndexingError,
    ShapeError,
)
from distarray.layout import Replicate, normalize_axis
from distarray.ops.creation._asarray import asarray
from distarray.ops.creation._filled import empty_like
from distarray.ops.creation._ranges import arange
from distarray.ops.elementwise._arithmetic import floor_divide, maximum, minimum, remainder
from distarray.ops.elementwise._rounding import astype
from distarray.ops.families._relabel import carry_cuts
from distarray.ops.families._selection import WHOLE_AXIS
from distarray.ops.families._values import ErrorsOfNumPy
from distarray.ops.indexing._arrays import (
    apply_by_arrays,
    get_by_arrays,
    set_by_arrays,
)
from distarray.ops.indexing._gather import select_along
from distarray.ops.indexing._items import getitem, setitem
from distarray.ops.indexing._keys import Advanced, AdvancedKey, Index, parse, wrap_index
from distarray.ops.manipulation._joining import unstack
from distarray.ops.manipulation._reshape import change_shape
from distarray.ops.manipulation._shape import squeeze
from distarray.typing import Buffer

_MODES = ("raise", "wrap", "clip")

# --- take and put --------------------------------------------------------------------------------


@register
def take(
    x: Any, indices: Any, /, axis: int | None = None, out: Any = None, mode: str = "raise"
) -> Any:
    """Return the items at some places along an axis.

    Parameters
    ----------
    x : DistArray or array
        A plain array must be the same on every process.
    indices : DistArray, array_like or int
        Of integers, of any shape and layout; negative ones count from the end.
    axis : int or None
        None takes items in flat order.
    out : DistArray, optional
        Where the result goes; of its shape.
    mode : {"raise", "wrap", "clip"}
        What becomes of indices out of range: an error, the rest of the division by the length, or
        the nearest index in range (0 for negative ones).

    Returns
    -------
    DistArray
        With the axes of `indices` in place of `axis`. Where `axis` is cut they are cut by the same
        mesh axes, as those of `indices` are or else along the longest; the other axes are cut as
        those of `x`.

    Raises
    ------
    IndexingError
        If an index is out of range.
    DTypeError
        If the indices are no integers.
    AxisError
        If there is no such axis.

    Notes
    -----
    Distribution: where `axis` is cut every process takes the rows that it lacks from their owners,
    in a node from where they lie, between nodes each once; all learn of an index out of range. Else
    nothing is sent but indices that are
    cut along mesh axes that cut other axes of `x`: all of these get them, 8 bytes each. Memory
    besides the result: 24 bytes for each index of the process.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.arange(12).reshape(4, 3)
    >>> da.take(x, [2, 0], axis=0).full_array()
    array([[6, 7, 8],
           [0, 1, 2]])
    """
    check_choice("take", "mode", mode, _MODES)
    index = _read_indices("take", indices)
    if not isinstance(x, BaseArray):
        there = check_distributed("take", index)._layout.mesh
        x = asarray(plain_buffer(x, "take"), mesh=there, placements=[Replicate()] * there.ndim)
    if out is not None:
        check_out("take", x, out)
    several = index if index.ndim else index[None]
    axis = 0 if axis is None and x.ndim == 1 and x.size else axis
    if axis is None:
        x = _countable(x)
        x, key = _in_flat_order(x, _in_range(several, x.size, mode))
        result = getitem(x, key) if len(key) > 1 else select_along(x, 0, *key)
        along = 0
    else:
        along = normalize_axis(axis, x.ndim)
        shape = x._layout.shape
        before, after = shape[:along], shape[along + 1 :]
        if 0 in before:  # NumPy looks at no index
            result = empty_like(x, shape=(*before, *several.shape, *after))
        else:
            several = _in_range(several, shape[along], mode)
            result = select_along(x, along, several)
    if not index.ndim:
        result = squeeze(result, along)
    if out is None:
        return result
    if out.shape != result.shape:
        raise ShapeError(f"take(out=) has shape {out.shape}, and the result {result.shape}")
    return write_out("take", out, result)


@register
def put(x: Any, /, ind: Any, v: Any, mode: str = "raise") -> None:
    """Write values into the items at some places, in flat order.

    Parameters
    ----------
    x : DistArray
        Changed in place.
    ind : DistArray, array_like or int
        Of integers, taken in flat order; where one is repeated the last value counts.
    v : DistArray, array_like or number
        One for each index; repeated where they are fewer, and cut off where they are more.
    mode : {"raise", "wrap", "clip"}
        As for `take`.

    Raises
    ------
    IndexingError
        If an index is out of range; nothing is written then.
    DTypeError
        If the indices are no integers, or the values do not become those of `x`.
    ReadOnlyError
        If the array is read-only.

    Notes
    -----
    Distribution: values go to the owners of the items, with 8 bytes for each; nothing is sent where
    every process has all indices and values. Memory: 32 bytes for each index of the process, and
    the values sent and received.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.zeros(5)
    >>> da.put(x, [0, 3], [7, 8])
    >>> x.full_array()
    array([7., 0., 0., 8., 0.])
    """
    check_distributed("put", x)
    check_choice("put", "mode", mode, _MODES)
    index = _read_indices("put", ind)
    values: Any = v
    if not isinstance(v, BaseArray):
        values = plain_buffer(v, "put", dtype=x.dtype, objects=True)
    if index.size and not x.size:
        raise IndexingError(f"put got {index.size} indices for an array of shape {x.shape}")
    if not values.size or not index.size:
        return
    target = x if x.ndim else x[None]
    index = index if index.ndim else index[None]
    values = _repeated(values, index)
    _put_flat("put", target, _in_range(index, target.size, mode), values)


def _put_flat(name: str, x: Any, index: Any, values: Any) -> None:
    """Write values into the items at places in flat order."""
    check_writable(name, x)
    target, key = _in_flat_order(x, index)
    setitem(target, key, values)
    if not _backend.may_share_memory(target._local, x._local):
        x._local[...] = target._local.reshape(x._local.shape)


def _repeated(values: Any, index: Any) -> Any:
    """Return as many values as there are indices, in the shape of these; one stays one."""
    n = index.size
    if values.size == 1:
        return change_shape(values, (1,)) if isinstance(values, BaseArray) else values.reshape(1)
    if not isinstance(values, BaseArray) and not isinstance(index, BaseArray):
        return _backend.namespace_of(values).resize(values, index.shape)
    if values.size < n:
        some: Any = index if isinstance(index, BaseArray) else values
        values = take(values, remainder(arange(n, mesh=some._layout.mesh), values.size))
    elif not isinstance(values, BaseArray):
        values = values.reshape(-1)[:n]
    else:
        values = getitem(change_shape(values, (-1,)), slice(n))
    if isinstance(values, BaseArray):
        return change_shape(values, index.shape)
    return values.reshape(index.shape)


@register
def take_along_axis(x: Any, indices: Any, /, axis: int | None = -1) -> Any:
    """Return the items at places along an axis that differ from line to line.

    Parameters
    ----------
    x : DistArray
    indices : DistArray or array_like
        Of integers, with as many axes as `x`; the others than `axis` broadcast with those of `x`.
    axis : int or None
        None takes items in flat order, by indices of one axis.

    Returns
    -------
    DistArray
        Of the shape of `indices`, broadcast. Where `axis` is not cut, lines stay where they are;
        else it is cut as `indices`, or along its longest axis.

    Raises
    ------
    IndexingError
        If an index is out of range, or the indices are no integers.
    ShapeError
        If `indices` has another number of axes, or the shapes do not broadcast.
    AxisError
        If there is no such axis.

    Notes
    -----
    Distribution: where `axis` is cut items are taken from their owners, as in `take`. Else the
    indices come to the lines of `x`, which stay where they are.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.asarray([[3, 1, 2], [4, 6, 5]])
    >>> da.take_along_axis(x, [[1], [0]], axis=1).full_array()
    array([[1],
           [4]])
    """
    check_distributed("take_along_axis", x)
    index = _read_lines("take_along_axis", x, indices, axis)
    if axis is None:
        return take(x, index)
    along = normalize_axis(axis, x.ndim)
    if x._layout.sharding_axes(along):
        return get_by_arrays(x, _lines_key(x, index, along))
    others = x.shape[:along] + x.shape[along + 1 :]
    if not isinstance(index, BaseArray) and 0 not in others:  # each rank reads its own lines only
        wrap_index(_backend.to_host(index), x.shape[along], along)
    return run(_take_along, (x, index), along)


@register
def put_along_axis(x: Any, /, indices: Any, values: Any, axis: int | None) -> None:
    """Write values into the items at places along an axis that differ from line to line.

    Parameters
    ----------
    x : DistArray
        Changed in place.
    indices, axis
        As for `take_along_axis`.
    values : DistArray, array_like or number
        Broadcast to the shape of `indices`.

    Raises
    ------
    IndexingError
        If an index is out of range, or the indices are no integers; nothing is written then.
    ShapeError
        If the shapes do not fit.
    AxisError
        If there is no such axis.
    ReadOnlyError
        If the array is read-only.

    Notes
    -----
    Distribution: as `put`.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.zeros((2, 3), dtype=int)
    >>> da.put_along_axis(x, [[1], [2]], 9, axis=1)
    >>> x.full_array()
    array([[0, 9, 0],
           [0, 0, 9]])
    """
    check_distributed("put_along_axis", x)
    index = _read_lines("put_along_axis", x, indices, axis)
    if axis is None:
        target = x if x.ndim else x[None]
        numbers = _read_indices("put_along_axis", index)
        _put_flat("put_along_axis", target, numbers, values)
    else:
        set_by_arrays(x, _lines_key(x, index, normalize_axis(axis, x.ndim)), values)


def _read_lines(name: str, x: Any, indices: Any, axis: int | None) -> Any:
    """Return indices as an array of integers with as many axes as `x`, or one in flat order."""
    index = indices if isinstance(indices, BaseArray) else plain_buffer(indices, name, objects=True)
    if index.dtype.kind not in "iu":
        raise IndexingError(f"{name} got indices of {index.dtype}; they must be integers")
    wanted = 1 if axis is None else x.ndim
    if index.ndim != wanted:
        raise ShapeError(
            f"{name} got indices of shape {tuple(index.shape)} and axis={axis} for an array of "
            f"shape {x.shape}; they must have {wanted} axes"
        )
    return index


def _lines_key(x: Any, index: Any, along: int) -> Advanced:
    """Return a key of index arrays: `index` along one axis, and all places of the others."""
    indices, arrays = [], []
    for axis, size in enumerate(x.shape):
        shape = [size if a == axis else 1 for a in range(x.ndim)]
        arrays.append(index if axis == along else np.broadcast_to(np.int64(0), shape))
        indices.append(Index(axis, 1, axis, False, is_place=axis != along))
    return Advanced(AdvancedKey((WHOLE_AXIS,) * x.ndim, x.shape, tuple(indices), 0), tuple(arrays))


def _lines_spec(_: Op, call: Call) -> Spec:
    along = call.static
    others = tuple([(*shape[:along], 1, *shape[along + 1 :]) for shape in call.shapes])
    spec = pointwise(others, broadcast_shape("take_along_axis", others))
    source, index = spec.inputs  # along the axis they have letters of their own
    source = (*source[:along], len(source), *source[along + 1 :])
    return spec._replace(inputs=(source, index))


def _lines_bind(step: Step) -> Callable[[Buffer, Buffer], Buffer]:
    along = step.call.static
    size = step.sources[0].shape[along]
    is_empty = 0 in step.output.shape  # then NumPy does not tell what is out of range

    def along_lines(block: Buffer, index: Buffer) -> Buffer:
        number = _backend.to_host(index)
        number = number if is_empty else wrap_index(number, size, along)
        number = _backend.asarray(number, _backend.device_of(block))
        return _backend.namespace_of(block).take_along_axis(block, number, along)

    return along_lines


_take_along = Op(
    "take_along_axis",
    np.take_along_axis,
    _lines_spec,
    bind=_lines_bind,
    check=lambda operands, _: isinstance(operands[1], BaseArray),
)


# --- methods of ufuncs ---------------------------------------------------------------------------


def _apply_at(ufunc: np.ufunc, x: Any, indices: Any, *operands: Any) -> None:
    """Apply a ufunc in place to the items that a key selects, as NumPy's `ufunc.at`.

    Items that index arrays name several times change as often, in C order of the index: the result
    has NumPy's bits for every layout.

    Raises
    ------
    ArgumentTypeError
        If the ufunc takes another number of operands, or has several results.
    IndexingError
        If an index is out of range; nothing has changed then.
    DTypeError
        If the ufunc's results cannot be written into `x`.
    ReadOnlyError
        If the array is read-only.

    Notes
    -----
    Distribution: operands go to the owners of the items with 8 bytes for each, 8 more where the
    index is cut along another axis than its first; on GPUs the blocks are copied to the host.
    """
    name = f"{ufunc.__name__}.at"
    check_distributed(name, x)
    if ufunc.nin != 1 + len(operands) or ufunc.nout != 1 or ufunc.signature is not None:
        raise ArgumentTypeError(
            f"{name} got {len(operands)} operands besides the array and the index; it takes ufuncs "
            f"item by item of one result, with {ufunc.nin - 1} more operands for this one"
        )
    values = [
        one if isinstance(one, BaseArray) else np.asarray(plain_buffer(one, name))
        for one in operands
    ]
    check_writable(name, x)
    wrong = _refused_at(ufunc, x.dtype, *[one.dtype for one in values])
    if wrong:
        raise DTypeError(f"{name}: {wrong}; convert the operands with astype")
    found = parse(indices, x.shape)
    if found.key.has_arrays:
        apply_by_arrays(x, found, ufunc, values[0] if values else None)
    else:  # which names no item twice
        setitem(x, indices, ufunc(getitem(x, indices), *values))


@functools.lru_cache(maxsize=256)  # any number of this size does
def _refused_at(ufunc: np.ufunc, *dtypes: np.dtype[Any]) -> str:
    """Return why NumPy applies no ufunc in place to items of some dtypes; nothing if it does."""
    target, *values = [np.ones(1, dtype) for dtype in dtypes]
    try:
        with np.errstate(all="ignore"):
            ufunc.at(target, [0], *values)
    except TypeError as error:
        return str(error)
    return ""


method_makers["at"] = lambda ufunc: functools.partial(_apply_at, ufunc)


# --- choose --------------------------------------------------------------------------------------


@register
def choose(x: Any, /, choices: Any, out: Any = None, mode: str = "raise") -> Any:
    """Return, item by item, the one of several arrays that the integers in `x` name.

    Parameters
    ----------
    x : DistArray
        Of integers; shapes broadcast.
    choices : sequence of DistArray, array_like or number, or DistArray
        An array stands for the arrays along its first axis.
    out : DistArray, optional
        Where the result goes; of its shape.
    mode : {"raise", "wrap", "clip"}
        As for `take`.

    Returns
    -------
    DistArray
        Placed as the result of other functions item by item.

    Raises
    ------
    ArgumentError
        If an integer names none of the arrays.
    DTypeError
        If `x` has no integers.
    ShapeError
        If the shapes do not broadcast.

    Notes
    -----
    Distribution: what does not fit together is brought together first, as for other functions item
    by item; then all processes tell each other whether an integer names none of the arrays.

    Examples
    --------
    >>> import distarray as da
    >>> da.choose(da.asarray([1, 0, 1]), [[1, 2, 3], -5]).full_array()
    array([-5,  2, -5])
    """
    check_choice("choose", "mode", mode, _MODES)
    several: Any = choices
    if isinstance(choices, BaseArray) or (_backend.is_buffer(choices) and choices.ndim):
        several = unstack(choices) if isinstance(choices, BaseArray) else list(choices)
    elif not isinstance(choices, Sequence) or isinstance(choices, (str, bytes)) or not len(choices):
        raise ArgumentTypeError(
            f"choose got choices={describe(choices)}; pass a sequence of at least one array"
        )
    x = x if isinstance(x, BaseArray) else plain_buffer(x, "choose", objects=True)
    if not np.can_cast(x.dtype, np.int64):
        raise DTypeError(
            f"choose got an array of {x.dtype}; integers name one of the choices, and int64 holds "
            "them"
        )
    arrays = normalize_arrays("choose", several)
    check_out("choose", x, out)
    return write_out("choose", out, run(_choose, (x, *arrays), mode))


def _choose_dtypes(_: Op, call: Call) -> tuple[Any, Any]:
    with ErrorsOfNumPy("choose"):
        dtype = np.result_type(*call.dtypes[1:])
    return dtype, dtype


def _choose_bind(step: Step) -> Callable[..., Buffer]:
    mode = step.call.static

    def chosen(which: Buffer, *blocks: Buffer) -> Buffer:
        try:
            if _backend.is_cupy(which):  # which takes no list
                library = _backend.namespace_of(which)
                return which.choose(library.stack(library.broadcast_arrays(*blocks)), mode=mode)
            return np.choose(which, list(blocks), mode=mode)
        except ValueError:
            raise ArgumentError(
                f"choose got integers that name none of the {len(blocks)} choices; mode='clip' or "
                "'wrap' takes others"
            ) from None

    return chosen


_choose = Op(
    "choose",
    np.choose,
    pointwise_spec,
    dtypes=_choose_dtypes,
    bind=_choose_bind,
    check=lambda *_: True,
)


# --- diagonals -----------------------------------------------------------------------------------


@register
def fill_diagonal(x: Any, /, val: Any, wrap: bool = False) -> None:
    """Write values into the main diagonal.

    Parameters
    ----------
    x : DistArray
        Changed in place. With more than two axes, all of one length.
    val : DistArray, array_like or number
        Repeated along the diagonal, in flat order.
    wrap : bool
        Go on with further diagonals below, in matrices with more rows than columns: one row is left
        out between them.

    Raises
    ------
    ShapeError
        If there are fewer than two axes, or more of different lengths.
    ReadOnlyError
        If the array is read-only.

    Notes
    -----
    Distribution: nothing is sent, unless `val` is distributed, or with `wrap`: then as `put`.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.zeros((2, 2))
    >>> da.fill_diagonal(x, [1, 2])
    >>> x.full_array()
    array([[1., 0.],
           [0., 2.]])
    """
    shape = check_distributed("fill_diagonal", x).shape
    wrap = check_flag("fill_diagonal", "wrap", wrap)
    if len(shape) < 2 or (len(shape) > 2 and len(set(shape)) > 1):
        raise ShapeError(
            f"fill_diagonal got an array of shape {shape}; it takes two axes, or more of one length"
        )
    if wrap and len(shape) == 2 and shape[1]:
        put(x, arange(0, x.size, shape[1] + 1, mesh=x._layout.mesh), val)
        return
    values = val
    if not isinstance(val, BaseArray):
        values = plain_buffer(val, "fill_diagonal", dtype=x.dtype, objects=True)
    places = np.arange(min(shape))
    if values.size and places.size:
        setitem(x, (places,) * len(shape), _repeated(values, places))


# --- indices -------------------------------------------------------------------------------------


def _read_indices(name: str, indices: Any) -> Any:
    """Return indices as an array of int64, distributed or plain."""
    known = indices.__class__ is np.ndarray or isinstance(indices, BaseArray)
    if known and indices.dtype == np.int64:
        return indices
    if indices.__class__ is list and indices and indices[0].__class__ is int:
        try:
            listed = np.array(indices)
        except ValueError:  # which is told below
            listed = np.empty(0)
        if listed.dtype == np.int64:
            return listed
    if not isinstance(indices, BaseArray):
        empty = isinstance(indices, (list, tuple)) and not indices
        indices = plain_buffer(indices, name, dtype=np.int64 if empty else None, objects=True)
    if indices.dtype.kind not in "iub":
        raise DTypeError(
            f"{name} got indices of {indices.dtype}; pass integers, and a mask as x[mask]"
        )
    if isinstance(indices, BaseArray):
        return astype(indices, np.int64, copy=False)
    return indices.astype(np.int64, copy=False)


def _in_range(index: Any, size: int, mode: str) -> Any:
    """Return indices as a mode other than "raise" changes them."""
    if mode == "raise" or not size:
        return index
    if mode == "wrap":
        return remainder(index, size)
    return minimum(maximum(index, 0), size - 1)


def _in_flat_order(x: Any, index: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return an array and a key for it that select the items of `x` at places in flat order.

    The array has one axis, and the memory of `x` where its blocks can be seen so; but where other
    axes than the first are cut it is `x`, and the key has an index array for each axis, of which
    those of negative places stay negative.
    """
    layout = x._layout
    if x.ndim == 1:
        return x, (index,)
    if not any(layout.sharding_axes(axis) for axis in range(1, x.ndim)):
        row = prod(x.shape[1:])
        offsets = {0: tuple(n * row for n in layout.partition(0).offsets)}
        cut = offsets if layout.sharding_axes(0) else None
        flat = carry_cuts(layout, (layout.size,), {0: 0}, cut)
        return x._new(x._local.reshape(-1), flat), (index,)
    key: list[Any] = []
    for size in x.shape[:0:-1]:
        key.append(remainder(index, size))
        index = floor_divide(index, size)
    return x, (index, *key[::-1])


def _countable(x: Any) -> Any:
    """Return an array whose items places in flat order name: with an axis, and none of length 0."""
    return change_shape(x, (-1,)) if x.ndim == 0 or not x.size else x
