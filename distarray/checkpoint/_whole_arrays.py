"""Files that have whole arrays in C order: ranks write their items, or read them, in any layout.

Those of safetensors and of NumPy's .npy format are such.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from distarray.checkpoint import _agreement
from distarray.checkpoint._adapters import block_of, make_distributed
from distarray.checkpoint._fill import fill
from distarray.checkpoint._load_plan import LoadPlan
from distarray.checkpoint.storage import _files
from distarray.checkpoint.storage._blocks import Block, span, split_box, together_from
from distarray.checkpoint.storage._chunks import GAP_BYTES, iterate_pieces
from distarray.checkpoint.storage._dtypes import spec_of_dtype
from distarray.checkpoint.storage._manifest import BLOCK_BYTES, bare_manifest, chunk_row
from distarray.comm import Communicator
from distarray.errors import FileError
from distarray.layout import Layout, Shard
from distarray.layout import box as boxes
from distarray.typing import Box


class WholeFile(NamedTuple):
    """A file: its path, what it begins with, where each array begins, and its size."""

    path: str
    start: bytes
    offsets: Mapping[str, int]
    size: int


def write_files(
    files: Sequence[WholeFile],
    blocks: Mapping[str, Block],
    mine: Mapping[str, Sequence[Box]],
    publish: Callable[[], None],
    comm: Communicator,
) -> None:
    """Write hidden files, by all ranks, and give them their names when they are whole.

    Parameters
    ----------
    blocks, mine
        What this rank holds of each array, and which boxes of it it writes.
    publish
        Called on the first rank when all files are on the device.
    """

    def create() -> None:
        for path, start, _, size in files:
            number = _files.create(path)
            try:
                _files.set_size(number, size, path)
                _files.write_at(number, start, 0, path)
                _files.sync(number, path)
            finally:
                os.close(number)

    def write() -> None:
        for path, _, offsets, _ in files:
            if not any(mine[name] for name in offsets):
                continue
            number = _files.open_to_write(path)
            try:
                for name, offset in offsets.items():
                    for box in mine[name]:
                        _write_box(number, blocks[name], box, offset, path)
                _files.sync(number, path)
            finally:
                os.close(number)

    try:
        _agreement.call_on_first(comm, create)
        _agreement.call_on_all(comm, write)
        _agreement.call_on_first(comm, publish)
    except BaseException:
        if comm.rank == 0:
            for file in files:
                with contextlib.suppress(OSError):
                    os.unlink(file.path)
        raise


def _write_box(file: int, block: Block, box: Box, offset: int, path: str) -> None:
    """Write a box of an array to where its items are in the whole, in C order."""
    piece = next(piece for piece in block.pieces if boxes.contains(piece.box, box))
    values = piece.part(box)
    first, last = span(block.shape, box)
    itemsize = values.itemsize
    if last - first == values.size:
        at = offset + first * itemsize
        for data in iterate_pieces(values):
            _files.write_at(file, data, at, path)
            at += len(data)
        return
    # Rows of it that lie together in the file, one after another.
    outer = together_from(block.shape, box, 1)
    for index in np.ndindex(values.shape[:outer]):
        row = np.ascontiguousarray(values[(*index, ...)])
        corner = tuple(start + i for (start, _), i in zip(box, index, strict=False))
        rest = box[outer:]
        start, _ = span(block.shape, (*((i, i + 1) for i in corner), *rest))
        _files.write_at(file, row.reshape(-1).view(np.uint8), offset + start * itemsize, path)


# --- one array -----------------------------------------------------------------------------------


def write_array(path: str, start: bytes, local: Any, layout: Layout) -> None:
    """Write a file that begins with ``start`` and goes on with an array (collective).

    It appears by one step, whole; a failure on one rank is raised on all, and leaves what was
    there. ``local`` is this rank's block of a layout without ``Partial``, in whose mesh it is.
    """
    mesh: Any = layout.mesh
    comm = mesh.communicator()
    directory, name = os.path.split(path)

    def prepare() -> str:
        if not os.path.isdir(directory) or os.path.isdir(path):
            wrong = f"there is no directory {directory}"
            if os.path.isdir(path):
                wrong = "it is a directory"
            raise FileError(f"{path} cannot be written: {wrong}")
        return secrets.token_hex(8)

    id = _agreement.call_on_first(comm, prepare)
    hidden = os.path.join(directory, f".{name}.tmp-{id}")

    def publish() -> None:
        _files.rename(hidden, path)
        _files.sync_directory(directory)

    size = len(start) + layout.size * local.dtype.itemsize
    file = WholeFile(hidden, start, {path: len(start)}, size)
    mine = {path: _own_part(layout, local.dtype.itemsize)}
    write_files([file], {path: block_of(local, layout)}, mine, publish, comm)


def _own_part(layout: Layout, itemsize: int) -> list[Box]:
    """Return what this rank writes: what several hold is shared out among them."""
    box, mesh = layout.local_box(), layout.mesh
    if box is None or mesh.coordinate is None or boxes.is_empty(box):
        return []
    index, count = 0, 1
    for axis in layout.replicated_axes:
        index = index * mesh.shape[axis] + mesh.coordinate[axis]
        count *= mesh.shape[axis]
    parts = split_box(box, max(1, min(count, boxes.volume(box) * itemsize // BLOCK_BYTES)))
    return parts[index : index + 1]


def writing_layout(layout: Layout, itemsize: int) -> Layout:
    """Return the layout in which an array is written: its own, or one with longer runs.

    A block of columns has short runs, of which each takes a call: where they are below 64 KiB the
    array is cut along an earlier axis instead, if one is long enough for all ranks.
    """
    shape, mesh = layout.shape, layout.mesh
    last = max((axis for axis in range(layout.ndim) if layout.sharding_axes(axis)), default=0)
    cut = [layout.partition(axis).largest for axis in range(last, last + 1) if shape]
    run = boxes.volume(boxes.whole((*cut, *shape[last + 1 :]))) * itemsize
    if run < GAP_BYTES:
        for axis in range(last):
            if shape[axis] >= mesh.size:
                return Layout(mesh, [Shard(axis)] * mesh.ndim, shape)
    return layout


def read_array(path: str, size: int, offset: int, dtype: np.dtype[Any], layout: Layout) -> Any:
    """Return an array of a layout from a file of this size, in which it begins at an offset.

    Collective over the mesh. Every rank reads its block, or, where that takes many short reads,
    another part, and the parts are redistributed. A failure on one rank is raised on all.
    """
    mesh: Any = layout.mesh
    comm = mesh.communicator()
    rows = [chunk_row(0, offset, boxes.whole(layout.shape), "")] if layout.size else []
    told = {"dtype": spec_of_dtype(dtype), "shape": list(layout.shape), "chunks": rows}
    manifest = bare_manifest(path, [(path, size)], {path: told})
    plan = LoadPlan(manifest, None, comm.rank, comm.size, False)
    finish = make_distributed(manifest.arrays[path], layout, plan)
    fill(plan.targets, manifest, False, comm)
    return finish()
