"""Plain values as distributed arrays: every process has the value already, and nothing is sent."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from distarray.comm import _backend, _memory
from distarray.core import (
    BaseArray,
    call_on_all,
    cast,
    check_device_name,
    check_flag,
    check_order,
    convert_on_all,
    copy_array,
    documented,
    is_stored,
    join_arrays,
    move,
    normalize_dtype,
    plain_source,
    read_box,
    with_length,
)
from distarray.errors import ArgumentError, ArgumentTypeError
from distarray.layout import Layout, Placement
from distarray.ops.creation._filled import build, target_layout
from distarray.typing import Box, Buffer


def asarray(
    obj: Any,
    /,
    dtype: Any = None,
    *,
    device: Any = None,
    copy: bool | None = None,
    mesh: Any = None,
    placements: Sequence[Placement] | None = None,
) -> Any:
    """Return a value as a distributed array.

    Parameters
    ----------
    obj : array_like or DistArray
        A plain value must be the same on every process: each takes its block of it and nothing is
        sent (for a value that one process has, see `distribute_array`). A list of distributed
        arrays becomes what `stack` makes of it. Of an HDF5, zarr or netCDF
        variable, a memory map, or anything else with a shape, a dtype and slices, each process
        reads its block only; the processes tell each other whether they could.
    dtype : data type, optional
        Default: the value's own.
    device : str, optional
        As for `empty`; a DistArray is taken there.
    copy : bool, optional
        False: blocks look at the value's memory; an error where that cannot be. Default: blocks of
        a plain value are copies, and a DistArray that is as asked for is returned itself.
    mesh, placements
        As for `empty`. A DistArray keeps its own, or is redistributed to those given.

    Raises
    ------
    DTypeError
        If the value holds Python objects.
    ArgumentError
        If `copy=False` cannot be had.
    FileError
        If a process cannot read its block of a stored value; on all of them.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.asarray([[1, 2], [3, 4]], placements=[da.Shard(1)])
    >>> print(x + 1)
    [[2 3]
     [4 5]]
    """
    obj = join_arrays(obj)
    if isinstance(obj, BaseArray):
        return _convert(obj, dtype, device, copy, mesh, placements)
    # NumPy decides what a list of numbers is; the wanted dtype decides how large ones fit.
    wanted = None if dtype is None else normalize_dtype(dtype)
    source = plain_source(obj, "asarray", wanted)
    kind = source.dtype if wanted is None else with_length(wanted, source.dtype)
    layout = target_layout(tuple(source.shape), mesh, placements, device)
    there: Any = layout.mesh
    here = _backend.is_buffer(obj) and _backend.is_here(source, there.device)
    if copy is False and (source.dtype != kind or layout.has_partial or not here):
        raise ArgumentError(
            f"asarray of {type(obj).__name__} with copy=False: the blocks of {layout} with dtype "
            f"{kind} cannot look at its memory; leave copy out"
        )

    def make(box: Box) -> Buffer:
        read = functools.partial(read_box, source, box, "asarray")
        block = call_on_all(there, "asarray", read) if is_stored(source) else read()
        if copy is False:
            return block
        own = _memory.empty(block.shape, kind, _backend.device_of(block))
        convert_on_all(there, "asarray", block.dtype, kind, lambda: own.__setitem__(..., block))
        return own

    return build(layout, kind, make)


def array(
    obj: Any,
    /,
    dtype: Any = None,
    *,
    copy: bool | None = True,
    device: Any = None,
    mesh: Any = None,
    placements: Sequence[Placement] | None = None,
) -> Any:
    """Return a value as a new distributed array: `asarray`, but always a copy.

    Parameters
    ----------
    obj : array_like or DistArray
        A plain value must be the same on every process: each takes its block of it and nothing is
        sent (for a value that one process has, see `distribute_array`).
    dtype : data type, optional
        Default: the value's own.
    copy, device, mesh, placements
        As for `asarray`.

    Raises
    ------
    DTypeError
        If the value holds Python objects.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.zeros(2)
    >>> y = da.array(x)
    >>> y[0] = 1
    >>> print(x, y)
    [0. 0.] [1. 0.]
    """
    return asarray(obj, dtype=dtype, device=device, copy=copy, mesh=mesh, placements=placements)


def from_dlpack(
    x: Any,
    /,
    *,
    device: Any = None,
    copy: bool | None = None,
    mesh: Any = None,
    placements: Sequence[Placement] | None = None,
) -> Any:
    """Return an array of another library, of which DLPack tells the memory, as a distributed one.

    Parameters
    ----------
    x : object with `__dlpack__`, or DistArray
        A plain array must be the same on every process: each takes its block of it, and nothing is
        sent.
    device : str, optional
        As for `empty`; default: the mesh's.
    copy : bool, optional
        False: blocks look at the memory of `x`; an error where that cannot be. Default: as for
        `asarray`.
    mesh, placements
        As for `empty`.

    Returns
    -------
    DistArray

    Raises
    ------
    ArgumentTypeError
        If `x` has no `__dlpack__`.
    ArgumentError
        If `copy=False` cannot be had, or DLPack does not tell of such memory.

    Examples
    --------
    >>> import numpy as np
    >>> import distarray as da
    >>> print(da.from_dlpack(np.arange(3)))
    [0 1 2]
    """
    if copy is not None:
        copy = check_flag("from_dlpack", "copy", copy)
    if not isinstance(x, BaseArray):
        try:
            on_host = int(x.__dlpack_device__()[0]) == _HOST
            x = _backend.module("cpu" if on_host else "cuda").from_dlpack(x)
        except AttributeError:
            raise ArgumentTypeError(
                f"from_dlpack got {type(x).__name__}, which has no __dlpack__; use asarray"
            ) from None
        except (BufferError, TypeError, ValueError, RuntimeError) as error:
            raise ArgumentError(f"from_dlpack of {type(x).__name__}: {error}") from None
    return asarray(x, device=device, copy=copy, mesh=mesh, placements=placements)


_HOST = 1
"""DLPack's kDLCPU."""


def asanyarray(
    obj: Any,
    /,
    dtype: Any = None,
    order: Any = None,
    *,
    device: Any = None,
    copy: bool | None = None,
    mesh: Any = None,
    placements: Sequence[Placement] | None = None,
) -> Any:
    """Return a value as a distributed array: `asarray`, as there are no subclasses.

    Parameters
    ----------
    obj : array_like or DistArray
    dtype, device, copy, mesh, placements
        As for `asarray`.
    order : {None, "K", "A", "C", "F"}
        Of each block in memory; "C" and "F" may copy.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.ones(3)
    >>> da.asanyarray(x) is x
    True
    """
    order = "K" if order is None else check_order("asanyarray", order, "CFAK")
    x = asarray(obj, dtype, device=device, copy=copy, mesh=mesh, placements=placements)
    return in_order(x, order)


_CONTIGUOUS = """Return a value as an array of at least one axis whose blocks lie in {how} order.

Parameters
----------
obj : array_like or DistArray
dtype, device, mesh, placements
    As for `asarray`.

Examples
--------
>>> import distarray as da
>>> da.{name}(da.ones((2, 3)){turned}).to_local().flags.{flag}
True
"""


def _contiguous(name: str, how: str, flag: str, turned: str) -> Callable[..., Any]:
    """Return the function that brings blocks into an order in memory."""

    @documented(_CONTIGUOUS, name, how=how, flag=flag, turned=turned)
    def function(
        obj: Any,
        /,
        dtype: Any = None,
        *,
        device: Any = None,
        mesh: Any = None,
        placements: Sequence[Placement] | None = None,
    ) -> Any:
        x = asarray(obj, dtype, device=device, mesh=mesh, placements=placements)
        if not x.ndim:
            layout = x._layout.replace(shape=(1,))
            x = x._new(x._local.reshape(layout.local_shape()), layout)
        return in_order(x, how[0])

    return function


ascontiguousarray = _contiguous("ascontiguousarray", "C", "c_contiguous", ".T")
asfortranarray = _contiguous("asfortranarray", "Fortran", "f_contiguous", "")


def in_order(x: Any, order: str) -> Any:
    """Return `x`, or a copy whose block lies in an order in memory, if it does not."""
    flags = x._local.flags
    if (order == "C" and not flags.c_contiguous) or (order == "F" and not flags.f_contiguous):
        return copy_array(x, order)
    return x


def _convert(
    x: Any,
    dtype: Any,
    device: Any,
    copy: bool | None,
    mesh: Any,
    placements: Sequence[Placement] | None,
) -> Any:
    """Return a DistArray with the dtype and layout asked for."""
    if check_device_name(device) is not None and device != x.device and mesh is None:
        if copy is False:
            raise ArgumentError(
                f"asarray(device={device!r}, copy=False) of an array on {x.device!r}: it must be "
                "copied; leave copy out"
            )
        x = x.to_device(device)
    layout = x._layout
    target = layout
    if mesh is not None or placements is not None:
        same_mesh = mesh is None or mesh is layout.mesh
        if placements is None and same_mesh:
            placements = layout.placements
        target = target_layout(x.shape, layout.mesh if mesh is None else mesh, placements, device)
    kind = with_length(normalize_dtype(dtype, x.dtype), x.dtype)
    if kind == x.dtype and target is layout:
        return copy_array(x) if copy else x
    if copy is False:
        raise ArgumentError(
            f"asarray of an array of {x.dtype}, {layout}, as {kind}, {target} with copy=False; "
            "leave copy out"
        )
    x = cast("asarray", x, kind)
    return x._new(_move(x._local, x._layout, target), target)


def _move(block: Buffer, layout: Layout, target: Layout) -> Buffer:
    here: Any = layout.mesh
    mesh: Any = target.mesh
    if here.device != mesh.device:
        near = target.replace(mesh=mesh.on(here.device))
        return _backend.asarray(move("asarray", block, layout, near), mesh.device)
    return move("asarray", block, layout, target)
