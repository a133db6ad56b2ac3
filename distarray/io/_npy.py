"""NumPy's .npy files, of which each process writes and reads its part."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Sequence
from tokenize import TokenError
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

from distarray.array import reduced_layout
from distarray.core import (
    BaseArray,
    check_integer,
    check_travels,
    choose_mesh,
    choose_placements,
    empty_block,
    functions,
    new_array,
    parsing,
)
from distarray.errors import ArgumentError, DTypeError, FileError, PlacementError
from distarray.layout import Layout, Placement, Shard
from distarray.ops import asarray
from distarray.redistribute import redistribute_local
from distarray.typing import Shape


def save(file: Any, arr: Any, allow_pickle: bool = True) -> None:
    """Write an array to a .npy file, which NumPy reads (collective over the mesh).

    Parameters
    ----------
    file : path
        On a file system that all processes share; ``.npy`` is appended where it lacks that.
    arr : DistArray or array_like
        In any layout. A plain value is the same on every process.
    allow_pickle : bool
        Has no effect: what has Python objects is refused.

    Raises
    ------
    DTypeError
        If the items are Python objects.
    FileError
        If a process cannot write (a full disk, say): on all of them, and what was there before
        stays.
    MismatchError
        If the processes pass different paths.

    Notes
    -----
    Distribution: every process writes its block to its place in the file; what several hold is
    shared out among them. The file gets its name when all of it is on the device. A Partial array
    is reduced first. Blocks of columns whose rows have fewer than 64 KiB are redistributed to
    blocks of rows: each item travels at most once, and takes memory for one more block.

    Examples
    --------
    >>> import numpy as np
    >>> import distarray as da
    >>> da.save("x.npy", da.arange(4))
    >>> np.load("x.npy")
    array([0, 1, 2, 3])
    >>> print(da.load("x.npy"))
    [0 1 2 3]
    """
    from distarray.checkpoint import begin, check_path, write_array, writing_layout

    del allow_pickle
    x: Any = arr if isinstance(arr, BaseArray) else asarray(arr)
    layout, dtype = x.layout, x.dtype
    mesh: Any = layout.mesh
    if mesh.coordinate is None:
        return

    def options() -> dict[str, Any]:
        path = check_path(file)
        path = os.path.realpath(path if path.endswith(".npy") else f"{path}.npy")
        return {"file": path, "array": f"{dtype} {layout}"}

    path = begin(mesh.communicator(), "da.save", options)["file"]
    target = writing_layout(reduced_layout(layout), dtype.itemsize)
    local = redistribute_local(x.to_local(), layout, target)
    write_array(path, _header(x.shape, dtype), local, target)


def load(
    file: Any,
    mmap_mode: None = None,
    allow_pickle: bool = False,
    *,
    max_header_size: int = 10000,
    mesh: Any = None,
    placements: Sequence[Placement] | None = None,
) -> Any:
    """Return the array of a .npy file, of which each process reads its part.

    Collective over the mesh.

    Parameters
    ----------
    file : path
        A file of any version of the format, in C or Fortran order, that all processes see.
    mmap_mode : None
        Takes nothing else: parts are read in any case.
    allow_pickle : bool
        Has no effect: Python objects are refused.
    max_header_size : int
        As in NumPy.
    mesh, placements : optional
        As for `empty`.

    Returns
    -------
    DistArray
        Of the placements asked for; by default the first mesh axis shards axis 0.

    Raises
    ------
    FileError
        If the file is missing, truncated, or no .npy file; on all processes alike.
    DTypeError
        If its items are Python objects.
    PlacementError
        If the placements do not fit the mesh or the array, or have a Partial.
    MismatchError
        If the processes pass different paths or placements.

    Notes
    -----
    Distribution: nothing is sent where blocks are rows. Where a process would read many short
    stretches, as of columns, the ranks read other parts, each byte of the file once, and
    redistribute them (see `distarray.checkpoint.load`). Memory: the block, and twice as much then.

    Examples
    --------
    >>> import distarray as da
    >>> da.save("x.npy", da.arange(4))
    >>> print(da.load("x.npy"))
    [0 1 2 3]
    """
    from distarray.checkpoint import begin, call_on_first, check_path, read_array

    del allow_pickle
    max_header_size = check_integer("load", "max_header_size", max_header_size)
    mesh = choose_mesh(mesh)

    def options() -> dict[str, Any]:
        if mmap_mode is not None:
            raise ArgumentError(
                f"load(mmap_mode={mmap_mode!r}): each process reads its part only; leave it out, "
                "or take blocks of a memory map by da.asarray(np.load(file, mmap_mode='r'))"
            )
        path = os.path.realpath(check_path(file))
        asked = None if placements is None else choose_placements(mesh, placements, 0)
        return {"file": path, "placements": asked}

    if mesh.coordinate is None:
        told = _read_header(options()["file"], max_header_size)
        layout = _layout(told.shape, mesh, placements)
        return new_array(empty_block(layout, told.dtype), layout)
    comm = mesh.communicator()
    path = begin(comm, "da.load", options)["file"]
    told = call_on_first(comm, lambda: _read_header(path, max_header_size))
    layout = _layout(told.shape, mesh, placements)
    if not told.is_fortran:
        return read_array(path, told.size, told.offset, told.dtype, layout)
    # In the file lie the items of the transposed array, in C order.
    turned = [Shard(layout.ndim - 1 - p.axis) if type(p) is Shard else p for p in layout.placements]
    stored = layout.replace(placements=turned, shape=told.shape[::-1])
    block = read_array(path, told.size, told.offset, told.dtype, stored).to_local()
    return new_array(block.T, layout)


def _layout(shape: Shape, mesh: Any, placements: Any) -> Layout:
    layout = Layout(mesh, choose_placements(mesh, placements, len(shape)), shape)
    if layout.has_partial:
        raise PlacementError(
            f"load(placements={placements}): a file has no partial values; pass Shard and "
            "Replicate, which take no more memory"
        )
    return layout


class _Header(NamedTuple):
    """What the beginning of a file says."""

    shape: Shape
    dtype: np.dtype[Any]
    is_fortran: bool
    offset: int
    size: int


def _read_header(path: str, max_header_size: int) -> _Header:
    try:
        with parsing:
            found = npy.open_memmap(path, mode="r", max_header_size=max_header_size)
    except OSError as error:
        raise FileError(f"{path} cannot be opened: {error.strerror}") from None
    # The last three where a length is no integer, or beyond 64 bits, and the header is cut off.
    except (ValueError, TypeError, OverflowError, TokenError) as error:
        if "Python objects" in str(error):
            raise DTypeError(
                f"{path} has Python objects, which no other process could be sent; convert them, "
                "in one process, to numbers or text"
            ) from None
        raise FileError(
            f"{path} is no .npy file, or damaged: {error}. Of an .npz archive, extract the files; "
            "of HDF5, zarr or netCDF, da.asarray(dataset) reads an opened dataset"
        ) from None
    check_travels(found.dtype)
    is_fortran = found.flags.f_contiguous and not found.flags.c_contiguous
    return _Header(found.shape, found.dtype, is_fortran, found.offset, os.stat(path).st_size)


_VERSION_3 = b"\x93NUMPY\x03\x00"
"""What a file begins with whose fields have names beyond Latin-1."""


def _header(shape: Shape, dtype: np.dtype[Any]) -> bytes:
    """Return what a file in C order begins with, in the oldest version that can say it."""
    told = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    start = io.BytesIO()
    for write in (npy.write_array_header_1_0, npy.write_array_header_2_0):
        try:
            write(start, told)
        except ValueError:  # too long, or not Latin-1
            continue
        return start.getvalue()
    text = repr(told).encode()
    length = -(-(len(_VERSION_3) + 4 + len(text) + 1) // npy.ARRAY_ALIGN) * npy.ARRAY_ALIGN
    space = length - len(_VERSION_3) - 4
    return _VERSION_3 + struct.pack("<I", space) + text.ljust(space - 1) + b"\n"


functions[np.save] = save
