"""Making arrays: each process builds its own block, never the whole array."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from distarray.comm import _backend, _memory, default_placements, fill
from distarray.core import (
    REFUSALS,
    BaseArray,
    check_device_name,
    choose_mesh,
    device_of,
    documented,
    empty_block,
    new_array,
    normalize_dtype,
    normalize_shape,
    plain_buffer,
    refusal,
    register,
)
from distarray.errors import (
    ArgumentError,
    DeviceError,
    OutOfMemoryError,
)
from distarray.layout import Layout, Placement
from distarray.ops.families._values import read_values
from distarray.redistribute import redistribute_local
from distarray.typing import Box, Buffer, Shape


def target_layout(
    shape: Shape, mesh: Any, placements: Sequence[Placement] | None, device: Any
) -> Layout:
    """Return the layout that creation arguments ask for, with the defaults filled in."""
    given = choose_mesh(mesh)
    if placements is None:
        placements = default_placements(given, len(shape), prod(shape))
    if device is not None and check_device_name(device) != given.device:
        if mesh is not None:
            raise DeviceError(
                f"device={device!r} is not the mesh's, {given.device!r}; leave device out, or pass "
                f"mesh=init_device_mesh(..., device={device!r})"
            )
        given = given.on(device)
    return Layout(given, placements, shape)


def build(layout: Layout, dtype: np.dtype[Any], make: Callable[[Box], Buffer]) -> Any:
    """Return the array of `layout` whose block is `make(local_box)` on every process.

    Under `Partial` placements the values lie as after `redistribute` from `Replicate`: the blocks
    reduce to them. Nothing is sent.
    """
    check_bytes(layout, dtype)
    whole = layout.without_partial() if layout.has_partial else layout
    box = whole.local_box()
    if box is None:
        block = empty_block(whole, dtype)
    else:
        block = _backend.asarray(make(box), device_of(layout))
    return new_array(block, layout) if whole is layout else _cut_out(block, whole, layout)


def _build_alike(layout: Layout, dtype: np.dtype[Any], make: Callable[..., Buffer]) -> Any:
    """Return `build` of blocks that are `make(shape, dtype, device)` wherever they lie."""
    check_bytes(layout, dtype)
    if not layout.has_partial:
        return new_array(make(layout.local_shape(), dtype, device_of(layout)), layout)
    whole = layout.without_partial()
    return _cut_out(make(whole.local_shape(), dtype, device_of(layout)), whole, layout)


def _cut_out(block: Buffer, whole: Layout, layout: Layout) -> Any:
    return new_array(redistribute_local(block, whole, layout), layout)


def check_bytes(layout: Layout, dtype: np.dtype[Any]) -> None:
    """Refuse blocks larger than any memory on all ranks, also those whose own block is small."""
    if layout.size * dtype.itemsize > sys.maxsize:
        largest = dtype.itemsize * layout.largest_block
        if largest > sys.maxsize:
            raise OutOfMemoryError(
                f"an array of shape {layout.shape} and dtype {dtype} has blocks of {largest} bytes "
                f"under {layout}; use more ranks or a smaller dtype"
            )


def _empty(layout: Layout, dtype: np.dtype[Any]) -> Any:
    check_bytes(layout, dtype)
    return new_array(empty_block(layout, dtype), layout)


def _zeros(layout: Layout, dtype: np.dtype[Any]) -> Any:
    return _build_alike(layout, dtype, _memory.zeros)


def as_scalar(value: Any) -> Any:
    """Return a scalar argument as a 0-d NumPy array.

    Raises
    ------
    ArgumentError
        If it has axes.
    """
    array = _backend.to_host(plain_buffer(value, "fill_value", objects=True))
    if array.ndim:
        raise ArgumentError(
            f"fill_value has shape {array.shape}, but must be a scalar; use "
            "distribute_array or broadcast_to for a value with axes"
        )
    return array


def check_value(name: str, value: Any, dtype: np.dtype[Any]) -> np.ndarray:
    """Return a scalar argument as a 0-d array of a dtype.

    Raises
    ------
    ArgumentError
        If it has axes, or does not convert.
    OutOfRangeError
        If the dtype cannot hold it.
    """
    item = np.zeros((), dtype)
    scalar = as_scalar(value)
    try:
        # A Python integer is taken as such: as an item of int64 it would wrap around.
        np.copyto(item, value if type(value) is int else scalar, casting="unsafe")
    except (*REFUSALS, RuntimeError) as error:  # the last where text is too short for dates
        raise refusal(error)(
            f"{name} {value!r} does not become {dtype}: {error}; pass another dtype or value"
        ) from None
    return item


def fill_layout(layout: Layout, dtype: np.dtype[Any], value: Any) -> Any:
    """Return an array of one value; see `full` for what is raised."""
    return _fill(layout, dtype, check_value("fill_value", value, dtype))


def _fill(layout: Layout, dtype: np.dtype[Any], item: np.ndarray) -> Any:
    def make(*of: Any) -> Buffer:
        block = _memory.empty(*of)
        fill(block, _backend.scalar(item, block))
        return block

    return _build_alike(layout, dtype, make)


def _ones(layout: Layout, dtype: np.dtype[Any]) -> Any:
    return _fill(layout, dtype, _one(dtype))


@functools.lru_cache(256)
def _one(dtype: np.dtype[Any]) -> np.ndarray:
    return check_value("fill_value", 1, dtype)


def _layout_like(
    x: BaseArray, shape: Any, mesh: Any, placements: Sequence[Placement] | None, device: Any
) -> Layout:
    """Return the layout of a `*_like` result: the model's own where nothing else is asked."""
    if not isinstance(x, BaseArray):
        sizes = tuple(np.shape(x)) if shape is None else normalize_shape(shape)
        return target_layout(sizes, mesh, placements, device)
    sizes = x.shape if shape is None else normalize_shape(shape)
    check_device_name(device)
    if mesh is None and device is not None:
        own: Any = x.layout.mesh
        mesh = own.on(device)
        placements = x.layout.without_partial().placements if placements is None else placements
    if mesh is None and placements is None and sizes == x.shape:
        return x.layout.without_partial()
    same_mesh = mesh is None or mesh is x.layout.mesh
    if placements is None and same_mesh and len(sizes) == x.ndim:
        placements = x.layout.without_partial().placements
    return target_layout(sizes, x.layout.mesh if mesh is None else mesh, placements, device)


def _dtype_like(x: Any, dtype: Any) -> np.dtype[Any]:
    own = x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype
    return normalize_dtype(dtype, own)


# --- the public functions ------------------------------------------------------------------------

_DOCUMENTATION = """{sentence}

Parameters
----------
{first}{value}dtype : data type, optional
    Default: {dtype}.
device : str, optional
    "cpu", "cuda" or "cuda:<number>": the {mesh} there; with `mesh`, that mesh's own.
{shape}mesh : DeviceMesh, optional
    Default: the {mesh}.
placements : sequence of Placement, optional
    One per mesh axis. Default: {placements}.

Returns
-------
DistArray

Raises
------
ShapeError
    If a size is negative.
PlacementError
    If the placements do not fit the mesh or the shape.
DeviceError
    If `device` is not that of `mesh`.
{errors}
Examples
--------
>>> import distarray as da
>>> {example}
"""
_OF_SHAPE = {
    "first": "shape : int or sequence of int\n    Global shape.\n",
    "shape": "",
    "dtype": "float64",
    "mesh": "default mesh",
    "placements": "the first mesh axis shards axis 0, the others replicate",
}
_LIKE = {
    "first": "x : DistArray\n    The model. Where it is `Partial`, the result is `Replicate`.\n",
    "shape": "shape : int or sequence of int, optional\n    Default: the model's.\n",
    "dtype": "the model's",
    "mesh": "model's mesh",
    "placements": "the model's",
}
_NO_VALUE = {"value": "", "errors": ""}
_VALUE = {
    "value": "fill_value : scalar\n    The same on every process, or an array without axes.\n",
    "errors": """ArgumentError
    If `fill_value` is not a scalar, or does not convert to the data type.
OutOfRangeError
    If the data type cannot hold it.
""",
}


def _of_shape(
    name: str, sentence: str, make: Callable[[Layout, Any], Any], example: str
) -> Callable[..., Any]:
    """Return a public function that makes an array of a shape."""

    @documented(_DOCUMENTATION, name, sentence=sentence, example=example, **_OF_SHAPE, **_NO_VALUE)
    def create(
        shape: Any,
        dtype: Any = None,
        *,
        device: Any = None,
        mesh: Any = None,
        placements: Sequence[Placement] | None = None,
    ) -> Any:
        layout = target_layout(normalize_shape(shape), mesh, placements, device)
        return make(layout, normalize_dtype(dtype))

    return create


def _like(
    name: str, sentence: str, make: Callable[[Layout, Any], Any], example: str
) -> Callable[..., Any]:
    """Return a public function that makes an array like another."""

    @documented(_DOCUMENTATION, name, sentence=sentence, example=example, **_LIKE, **_NO_VALUE)
    def create(
        x: Any,
        /,
        dtype: Any = None,
        *,
        device: Any = None,
        shape: Any = None,
        mesh: Any = None,
        placements: Sequence[Placement] | None = None,
    ) -> Any:
        layout = _layout_like(x, shape, mesh, placements, device)
        return make(layout, _dtype_like(x, dtype))

    return create


empty = _of_shape(
    "empty",
    "Return an array whose values are arbitrary.",
    _empty,
    "da.empty((2, 3)).shape\n(2, 3)",
)
zeros = _of_shape("zeros", "Return an array of zeros.", _zeros, "print(da.zeros(3))\n[0. 0. 0.]")
ones = _of_shape("ones", "Return an array of ones.", _ones, "print(da.ones(3, int))\n[1 1 1]")
empty_like = _like(
    "empty_like",
    "Return any values, with the shape, dtype and layout of another.",
    _empty,
    "da.empty_like(da.zeros((2, 3))).shape\n(2, 3)",
)
zeros_like = _like(
    "zeros_like",
    "Return zeros, with the shape, dtype and layout of another.",
    _zeros,
    "print(da.zeros_like(da.arange(3)))\n[0 0 0]",
)
ones_like = _like(
    "ones_like",
    "Return ones, with the shape, dtype and layout of another.",
    _ones,
    "print(da.ones_like(da.arange(3)))\n[1 1 1]",
)


@documented(
    _DOCUMENTATION,
    sentence="Return an array filled with one value.",
    example="print(da.full(3, 7))\n[7 7 7]",
    **{**_OF_SHAPE, "dtype": "the value's own, as NumPy finds it"},
    **_VALUE,
)
def full(
    shape: Any,
    fill_value: Any,
    dtype: Any = None,
    *,
    device: Any = None,
    mesh: Any = None,
    placements: Sequence[Placement] | None = None,
) -> Any:
    sizes = normalize_shape(shape)
    fill_value = _known(fill_value)
    value = as_scalar(fill_value)
    kind = normalize_dtype(dtype, value.dtype)
    layout = target_layout(sizes, mesh, placements, device)
    return fill_layout(layout, kind, fill_value)


@documented(
    _DOCUMENTATION,
    sentence="Return one value everywhere, with the shape, dtype and layout of another.",
    example="print(da.full_like(da.arange(3), 7))\n[7 7 7]",
    **_LIKE,
    **_VALUE,
)
def full_like(
    x: Any,
    /,
    fill_value: Any,
    dtype: Any = None,
    *,
    device: Any = None,
    shape: Any = None,
    mesh: Any = None,
    placements: Sequence[Placement] | None = None,
) -> Any:
    layout = _layout_like(x, shape, mesh, placements, device)
    return fill_layout(layout, _dtype_like(x, dtype), _known(fill_value))


def _known(value: Any) -> Any:
    """Return a distributed scalar as what every process knows, and any other value itself."""
    if isinstance(value, BaseArray) and not value.ndim:
        return read_values("fill_value", value)
    return value


def _as_numpy(like: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `*_like` function that takes NumPy's arguments (memory order says nothing here)."""

    def call(x: Any, /, *args: Any, order: str = "K", subok: bool = True, **options: Any) -> Any:
        del order, subok
        given = list(args)
        if like is full_like:
            options["fill_value"] = given.pop(0) if given else options["fill_value"]
        if given:
            options["dtype"] = given[0]
        return like(x, **options)

    return call


for _function in (empty_like, zeros_like, ones_like, full_like):
    register(_function, _as_numpy(_function))
