"""Operands of the engine: normalized, brought to one mesh, and results written into arrays."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from distarray.comm import _backend, _memory
from distarray.core._arguments import (
    SPARSE_REMEDY,
    check_travels,
    is_sparse,
    join_arrays,
    plain_buffer,
)
from distarray.core._base import BaseArray, open_traces
from distarray.core._dtypes import PLAIN_SCALARS
from distarray.core._op import Call, Op
from distarray.core._read_only import check_writable
from distarray.core._spec import Spec, pointwise
from distarray.core.engine._blocks import move, move_all
from distarray.core.engine._float_errors import convert_on_all
from distarray.core.engine._fusion import defer_cast
from distarray.core.engine._meshes import common_mesh, lift, replicated_layout
from distarray.core.engine._resolution import align
from distarray.errors import ArgumentTypeError, DeviceError, ShapeError
from distarray.layout import Layout, Replicate
from distarray.redistribute import redistribute_local
from distarray.typing import Buffer, Shape

LARGE = _memory.POOLED_BYTES
"""Results of at least this many bytes are written into a reused buffer."""

_SCALARS = (*PLAIN_SCALARS, np.generic)
_AS_THEY_ARE = (BaseArray, *PLAIN_SCALARS)
_R = Replicate()


def check_distributed(name: str, x: Any) -> Any:
    """Return `x` if it is distributed.

    Raises
    ------
    ArgumentTypeError
        If it is not.
    """
    if not isinstance(x, BaseArray):
        raise ArgumentTypeError(
            f"{name} got {type(x).__name__}; it takes a DistArray, which distarray.asarray(x) "
            "makes of an array that every process has"
        )
    return x


def normalize_operand(name: str, value: Any, objects: bool = False) -> Any:
    """Return `value` as an operand that every rank has: a number, or a NumPy or CuPy array.

    `objects` lets arrays of Python objects pass, as operands of functions that make none.

    Raises
    ------
    ArgumentTypeError
        If it is neither, nor converts to one; or an array that means more than its values.
    ArgumentError
        If it is no regular array, as nested sequences of different lengths.
    DTypeError
        If it is an array of Python objects.
    """
    if isinstance(value, _SCALARS):
        return value
    array = plain_buffer(value, name, objects=True)
    if array.dtype.hasobject and not objects:
        if array is value:
            check_travels(array.dtype)
        remedy = "operands are DistArrays, arrays that every rank has alike, and numbers"
        raise ArgumentTypeError(
            f"{name} does not take {type(value).__name__}; "
            f"{SPARSE_REMEDY if is_sparse(value) else remedy}"
        )
    return array


def normalize_arrays(name: str, operands: Sequence[Any]) -> list[Any]:
    """Return operands as `normalize_operands` does, numbers as arrays without axes."""
    return [x if hasattr(x, "ndim") else np.asarray(x) for x in normalize_operands(name, operands)]


def normalize_operands(name: str, operands: Sequence[Any], objects: bool = False) -> list[Any]:
    """Return operands, lists of distributed ones as one, plain ones as `normalize_operand` does."""
    return [
        x
        if isinstance(x, _AS_THEY_ARE)
        else joined
        if isinstance(joined := join_arrays(x), BaseArray)
        else normalize_operand(name, joined, objects)
        for x in operands
    ]


def lift_layouts(name: str, parts: Sequence[Any]) -> list[Layout]:
    """Return layouts on one mesh for layouts and shapes of plain arrays."""
    if len(parts) == 1:
        return [*parts]
    mesh = common_mesh(name, [part.mesh for part in parts if not isinstance(part, tuple)])
    return [
        replicated_layout(mesh, part) if isinstance(part, tuple) else lift(part, mesh)
        for part in parts
    ]


def broadcast_shape(name: str, shapes: Sequence[Shape]) -> Shape:
    """Return the shape that `shapes` broadcast to.

    Raises
    ------
    ShapeError
        If they do not fit together.
    """
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        shown = " and ".join(str(shape) for shape in shapes)
        raise ShapeError(
            f"{name} of shapes {shown}: they do not broadcast; sizes must be equal or 1, counted "
            "from the last axis (reshape, or add axes with x[None]). Shapes are those of whole "
            "arrays; DistArray.from_local(block, x.mesh, x.placements) makes one of blocks"
        ) from None


def pointwise_spec(op: Op, call: Call) -> Spec:
    """Return the spec of an operation item by item that has no rules for Partial operands."""
    return pointwise(call.shapes, broadcast_shape(op.name, call.shapes))


def local_blocks(name: str, first: BaseArray, operands: Sequence[Any]) -> list[Any]:
    """Return the blocks of distributed operands, and plain values on the device of `first`.

    Raises
    ------
    DeviceError
        If a plain array is on another device.
    """
    like = first._local
    return [
        x._local
        if isinstance(x, BaseArray)
        else (match_device(name, x, like) if _backend.is_buffer(x) else x)
        for x in operands
    ]


def match_device(name: str, value: Buffer, like: Buffer) -> Any:
    """Return a plain array that is on the device of a block; one without axes as a number.

    Raises
    ------
    DeviceError
        If it is on another device: nothing moves between devices unless it is asked for.
    """
    have, want = _backend.device_of(value), _backend.device_of(like)
    if have == want:
        return value
    if have == "cpu" and value.ndim == 0:
        return value[()]
    raise DeviceError(
        f"{name} got a plain array on {have!r} and a DistArray on {want!r}; make a DistArray of it "
        f"there with da.asarray(value, mesh=x.mesh), or use x.to_device({_backend.kind_of(have)!r})"
    )


def check_target(name: str, out: Any) -> None:
    """Refuse an `out` that cannot be written to.

    Raises
    ------
    ArgumentTypeError
        If it is not distributed.
    ReadOnlyError
        If it is read-only.
    """
    if not isinstance(out, BaseArray):
        raise ArgumentTypeError(
            f"{name}(out=) with a distributed operand takes a DistArray, got "
            f"{type(out).__name__}; to fill a plain array, gather first: x.full_array()"
        )
    check_writable(name, out)


def allocate(shape: Shape, dtype: Any, device: str, blocks: Sequence[Any]) -> Buffer:
    """Return an empty buffer, transposed in memory where all large operands are."""
    flags = [b.flags for b in blocks if getattr(b, "nbytes", 0) >= LARGE]
    if len(shape) > 1 and all(f.f_contiguous and not f.c_contiguous for f in flags):
        return _memory.empty(shape[::-1], dtype, device).T
    return _memory.empty(shape, dtype, device)


def reduce_partial(name: str, array: Any) -> Any:
    """Return `array` with its Partial mesh axes replicated, to be read."""
    layout = array._layout
    whole = layout.without_partial()
    (block,) = move_all(name, (array,), (array._local,), ((layout, whole),))
    return array._new(block, whole)


def cast(name: str, array: Any, dtype: Any, casting: Any = "unsafe") -> Any:
    """Return `array` with items of another dtype, its Partial mesh axes reduced first."""
    if array.dtype == dtype:
        return array
    if array._layout.has_partial:
        array = reduce_partial(name, array)
    if open_traces:
        deferred = defer_cast(array, dtype)
        if deferred is not None:
            return deferred
    block = array._local
    out = _memory.empty(block.shape, dtype, _backend.device_of(block))
    copy = functools.partial(np.copyto, out, block, casting)
    convert_on_all(array._layout.mesh, name, block.dtype, dtype, copy)
    return array._new(out, array._layout)


def assign(name: str, out: Any, result: Any, casting: Any = "same_kind") -> None:
    """Copy `result` into `out`, broadcast and redistributed to its layout."""
    if not isinstance(result, BaseArray):
        whole = replicated_layout(out._layout.mesh, result.shape)
        result = out._new(_backend.asarray(result, _backend.device_of(out._local)), whole)
    if out._layout.has_partial and result.dtype != out.dtype:
        # What the other ranks hold then is nothing to a reduction in the dtype of `out`.
        result = cast(name, result, out.dtype, casting)
    dst, src = out._layout, result._layout
    if dst.mesh is not src.mesh:
        dst, src = lift_layouts(name, [dst, src])
    if src.shape == dst.shape:
        moved = result._local if src == dst else move(name, result._local, src, dst)
    else:
        target = dst.without_partial()
        step = align(pointwise((dst.shape, src.shape), dst.shape), [target, src])[1]
        moved = result._local if step is None else move(name, result._local, *step)
        if dst.mesh.coordinate is not None:
            library = _backend.namespace_of(moved)
            moved = library.ascontiguousarray(library.broadcast_to(moved, target.local_shape()))
            moved = redistribute_local(moved, target, dst)  # splits it: nothing is sent
    if dst.mesh.coordinate is not None:
        target, dtype = out._local, out._local.dtype
        copy = functools.partial(np.copyto, target, _backend.unaliased(moved, target), casting)
        convert_on_all(dst.mesh, name, moved.dtype, dtype, copy)
    if getattr(out, "_reduced", None) is False:
        out._reduced = None
