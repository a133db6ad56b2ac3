"""Stored arrays, of HDF5, zarr and their like: blocks written to the slices where they belong."""

from __future__ import annotations

import contextlib
import math
from typing import Any, NamedTuple

import numpy as np

from distarray.comm import Communicator, _backend, all_gather_checked
from distarray.core import check_distributed
from distarray.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from distarray.layout import Layout, Shard
from distarray.layout import box as boxes
from distarray.typing import Box, Buffer, Shape

_PIECE_BYTES = 64 << 20
"""How much one process that writes for all gathers at a time."""


def store(x: Any, target: Any) -> None:
    """Write a distributed array into a stored one (collective over the mesh of `x`).

    Parameters
    ----------
    x : DistArray
        In any layout; Partial is reduced first.
    target : stored array or None
        Of the shape of `x`, with a dtype that takes its items. On every process, where all can
        write at a time: a zarr array, on one node a NumPy memory map, or a dataset of a file that
        h5py has opened with ``driver="mpio"``. On one process alone, and None on the others,
        whatever takes slices: a dataset of an HDF5 file that this one has opened, a netCDF
        variable.

    Raises
    ------
    ShapeError, DTypeError
        If the target cannot take the array.
    ArgumentError, ArgumentTypeError
        If the processes pass targets that do not go together.
    FileError
        If a process cannot write: on all of them. What others have written stays written.

    Notes
    -----
    Distribution: where all write, the array is cut at boundaries of chunks (of a zarr array's
    shards, if it has them), so that each chunk is written whole by one process: what a block lacks
    of its chunks is sent to it. Where one writes for all, it gathers 64 MiB at a time. The file is
    complete when the call returns; closing it is the caller's.

    Examples
    --------
    >>> import numpy as np
    >>> import distarray as da
    >>> target = np.lib.format.open_memmap("x.npy", mode="w+", dtype="f8", shape=(3,))
    >>> da.store(da.linspace(0, 1, 3), target)
    >>> print(da.asarray(np.load("x.npy", mmap_mode="r")))
    [0.  0.5 1. ]
    """
    check_distributed("store", x)
    mesh = x.mesh
    if mesh.coordinate is None:
        return
    told = all_gather_checked(mesh, "store", lambda: _check(x, target))
    found = {i: one for i, one in enumerate(told) if one is not None}
    if len(found) == 1:
        _store_by_one(x, target, *found)
    elif len(found) < mesh.size:
        raise ArgumentTypeError(
            f"store: {len(found)} of {mesh.size} processes have a target, and the others None; "
            "pass one on all of them, or on one"
        )
    else:
        _check_parallel([*found.values()], mesh.communicator())
        _store_by_all(x, target, found[0].chunks)


class _Target(NamedTuple):
    """What the ranks tell each other of a stored array."""

    kind: str
    name: str
    dtype: str
    chunks: Shape
    problem: str
    """Why all processes cannot write it at a time; empty where they can."""


def _check(x: Any, target: Any) -> _Target | None:
    if target is None:
        return None
    shape, dtype = getattr(target, "shape", None), getattr(target, "dtype", None)
    kind = f"{type(target).__module__.partition('.')[0]}.{type(target).__name__}"
    if shape is None or dtype is None or not hasattr(target, "__setitem__"):
        raise ArgumentTypeError(
            f"store takes what has a shape, a dtype and takes slices, such as an HDF5 dataset or a "
            f"zarr array, not {kind}; make one of shape {x.shape} and dtype {x.dtype} first"
        )
    if tuple(shape) != x.shape:
        raise ShapeError(
            f"store of an array of shape {x.shape} in a {kind} of shape {tuple(shape)}; they must "
            "be equal, so resize it, or reshape the array"
        )
    if not np.can_cast(x.dtype, dtype, "same_kind"):
        raise DTypeError(
            f"store of {x.dtype} in a {kind} of {dtype}, which cannot hold it; convert it by "
            "x.astype(...) first"
        )
    chunks = getattr(target, "shards", None) or getattr(target, "chunks", None) or (1,) * x.ndim
    name = f"{getattr(target, 'filename', '')}{getattr(target, 'store_path', '')}"
    return _Target(kind, name, str(dtype), tuple(map(int, chunks)), _problem(target))


def _problem(target: Any) -> str:
    package = type(target).__module__.partition(".")[0]
    if isinstance(target, np.memmap) or package == "zarr":
        in_memory = type(getattr(target, "store", None)).__name__ == "MemoryStore"
        if isinstance(target, np.memmap):  # a copy of one has no map, and mode "c" none of the file
            in_memory = getattr(target, "_mmap", None) is None or target.mode == "c"
        return "is in the memory of one process" if in_memory else ""
    if package == "h5py":
        is_parallel = target.file.driver == "mpio"
        return "" if is_parallel else "is of a file opened without driver='mpio'"
    return "is of a kind that is not known to take it"


def _check_parallel(told: list[_Target], comm: Communicator) -> None:
    first = told[0]
    if any(one != first for one in told):
        raise ArgumentError(
            f"store: the processes have different targets, {first} and others; pass the same"
        )
    problem = first.problem
    if first.kind == "numpy.memmap" and comm.ranks_per_node is not None:
        problem = "is mapped on several nodes, which have copies of the pages at borders of blocks"
    if problem:
        raise ArgumentError(
            f"store: all processes write at a time, and the {first.kind} {problem}; open it "
            "on one process, and pass None on the others"
        )


def _store_by_one(x: Any, target: Any, writer: int) -> None:
    from distarray.checkpoint import call_on_all, split_box

    comm = x.mesh.communicator()
    pieces = max(1, -(-x.nbytes // _PIECE_BYTES))
    for box in split_box(boxes.whole(x.shape), pieces) if x.size else ():
        part = x[boxes.slices(box)].full_array(dst=writer)

        def write(box: Box = box, part: Any = part) -> None:
            if part is not None:
                _write(target, box, part)

        call_on_all(comm, write)


def _store_by_all(x: Any, target: Any, chunks: Shape) -> None:
    from distarray.checkpoint import call_on_all

    layout = _aligned_layout(x.layout, chunks)
    x = x.redistribute(
        layout.placements, shard_order=layout.shard_order, boundaries=layout.boundaries
    )
    box = layout.local_box() or ()
    has_part = layout.ndim > 0 or x.mesh.communicator().rank == 0

    def write() -> None:
        # Of HDF5 the processes write together, also those that have nothing.
        with getattr(target, "collective", contextlib.nullcontext()):
            if has_part and (hasattr(target, "collective") or not boxes.is_empty(box)):
                _write(target, box, x.to_local())

    call_on_all(x.mesh.communicator(), write)


def _write(target: Any, box: Box, values: Buffer) -> None:
    target[boxes.slices(box) or ...] = _backend.to_host(values)
    if isinstance(target, np.memmap):
        target.flush()


def _aligned_layout(layout: Layout, chunks: Shape) -> Layout:
    """Return a layout near to this one in which no two ranks have items of one chunk.

    Along mesh axes that do not cut the array, it is cut along the axis that has most chunks.
    """
    shape = layout.shape
    if not shape:
        return layout.without_partial()
    most = max(range(len(shape)), key=lambda axis: math.ceil(shape[axis] / max(chunks[axis], 1)))
    placements = [p if type(p) is Shard else Shard(most) for p in layout.placements]
    cut = Layout(layout.mesh, placements, shape, shard_order=layout.shard_order)
    boundaries = {}
    for axis, size in enumerate(shape):
        axes = cut.sharding_axes(axis)
        if axes:
            near = layout if layout.sharding_axes(axis) == axes else cut
            step = max(chunks[axis], 1)
            rounded = (
                min((at + step // 2) // step * step, size)
                for at in near.partition(axis).offsets[:-1]
            )
            boundaries[axis] = (*rounded, size)
    return cut.replace(boundaries=boundaries)
