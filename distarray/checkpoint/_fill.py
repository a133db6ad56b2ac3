"""Filling of memory from a checkpoint, by each rank alone or by all ranks for each other.

A rank that wants columns of what lies by rows in a file wants something of nearly every block of
it, and so do all others. What each would read by itself is estimated from the chunks of the array
and the layout alone, so that all ranks conclude the same. Where that is several times the array,
each reads another part of it, cut along what lies together in the files, and the parts are
redistributed: every byte is read, and compared with its checksum, once. That takes all ranks of the
mesh. So they tell each other first what they want, and read for themselves where they want
different things; and before values move they tell each other whether they have them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple, TypeVar

import numpy as np

from distarray.checkpoint import _agreement
from distarray.checkpoint._agreement import digest
from distarray.checkpoint.storage._blocks import Block, box_view, row_ranges, span, together_from
from distarray.checkpoint.storage._chunks import GAP_BYTES, Reader
from distarray.checkpoint.storage._dtypes import Spec, cast, dtype_of_spec
from distarray.checkpoint.storage._manifest import BLOCK_BYTES, Entry, Manifest, block_items
from distarray.comm import Communicator, DeviceMesh, _memory
from distarray.layout import Layout, Replicate, Shard, kept
from distarray.layout import box as boxes
from distarray.redistribute import redistribute_local
from distarray.typing import Box, Shape

T = TypeVar("T")
_CAST_BYTES = 16 << 20
"""How much is converted at a time: the memory that ``cast`` is documented to take."""
_SLAB_BYTES = 128 << 20
"""How much of its block a rank takes from the others at a time, where that cuts no other axis."""

_SHARE_BYTES = 8 << 20
"""How much a rank reads for the others at a time, at least."""

_BITS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}
"""As what items of so many bytes travel."""


class Target(NamedTuple):
    """An array of a checkpoint, and what this rank holds of what is filled from it."""

    entry: Entry
    block: Block


class _Shared(NamedTuple):
    """A target that the ranks of a mesh read together, in one layout, for another one."""

    target: Target
    read: Layout
    wanted: Layout


_Reads = tuple[list[Target], dict[DeviceMesh, list[_Shared]]]
"""What this rank reads for itself, and what it reads together with others, by meshes."""


def fill(targets: Sequence[Target], manifest: Manifest, verify: bool, comm: Communicator) -> None:
    """Read all that is wanted (collective)."""
    alone: Sequence[Target] = targets
    shared: Mapping[DeviceMesh, Sequence[_Shared]] = {}
    if comm.size > 1:
        alone, shared = _agree_on_shared_reads(targets, manifest, verify, comm)

    def read() -> None:
        with Reader(manifest, verify) as reader:
            _fill(reader, alone, shared)

    _agreement.call_on_all(comm, read)


# --- who reads what ------------------------------------------------------------------------------


def _agree_on_shared_reads(
    targets: Sequence[Target], manifest: Manifest, verify: bool, comm: Communicator
) -> _Reads:
    """Return who reads what; ranks that share several meshes have these in the same order."""
    least = manifest.block_bytes if verify else GAP_BYTES

    def propose() -> tuple[_Reads, dict[bytes, bytes]]:
        alone: list[Target] = []
        proposed: dict[DeviceMesh, list[_Shared]] = {}
        for target in targets:
            wanted = _find_layout(target, comm)
            read = (
                None
                if wanted is None
                else choose_reading_layout(target.entry, wanted, least, verify)
            )
            if wanted is None or read is None:
                alone.append(target)
            else:
                mesh: Any = wanted.mesh
                proposed.setdefault(mesh, []).append(_Shared(target, read, wanted))
        told = {_key(mesh): _digest(shared) for mesh, shared in proposed.items()}
        return (alone, proposed), told

    (alone, proposed), told = _agreement.call_and_gather(comm, propose)
    everyone = dict(zip(comm.ranks, told, strict=True))
    agreed = {}
    for mesh in sorted(proposed, key=_key):
        key = _key(mesh)
        if len({everyone[rank].get(key) for rank in mesh.flat_ranks}) == 1:
            agreed[mesh] = proposed[mesh]
        else:
            alone += [shared.target for shared in proposed[mesh]]
    return alone, agreed


def _find_layout(target: Target, comm: Communicator) -> Layout | None:
    """Return in which layout, over memory of the host, an array is wanted; None if not by one.

    An array that every rank wants all of is replicated over all of them.
    """
    entry, block = target
    if entry.dtype.itemsize not in _BITS or block.is_fused:
        return None
    if block.layout is None:
        return Layout(DeviceMesh(comm.ranks, comm=comm), [Replicate()], entry.shape)
    mesh: Any = block.layout.mesh
    if comm is not mesh._base and (mesh.coordinate is None or comm is not mesh.communicator()):
        return None  # it may have ranks that do not load
    return block.layout.replace(mesh=mesh.on("cpu"))


def _key(mesh: DeviceMesh) -> bytes:
    return digest((mesh.shape, mesh.axis_names, mesh.flat_ranks))


def _digest(shared: Sequence[_Shared]) -> bytes:
    return digest([(one.target.entry.name, one.read, one.wanted) for one in shared])


# --- reading -------------------------------------------------------------------------------------


class _Progress:
    """How reading goes: after a failure, here or elsewhere, a rank does nothing more but say so.

    Attributes
    ----------
    has_failed
        Whether this rank, or one that it reads together with, has failed.
    failure
        What went wrong on this rank.
    """

    def __init__(self) -> None:
        self.has_failed = False
        self.failure: Exception | None = None

    def attempt(self, work: Callable[[], T]) -> T | None:
        """Return what ``work()`` returns; None, of which note is taken, if anything has failed."""
        if self.has_failed:
            return None
        try:
            return work()
        except Exception as error:
            self.failure, self.has_failed = error, True
            return None

    def compare(self, comm: Communicator) -> None:
        """Find out whether any rank has failed (collective)."""
        self.has_failed = any(_agreement.call_on_all(comm, lambda: self.has_failed))


def _fill(
    reader: Reader, alone: Sequence[Target], shared: Mapping[DeviceMesh, Sequence[_Shared]]
) -> None:
    progress = _Progress()
    for target in alone:
        progress.attempt(partial(_fill_alone, reader, target))
    for mesh, wanted in shared.items():
        for one in wanted:
            _fill_together(reader, one, mesh.communicator(), progress)
            if progress.has_failed:  # all ranks of the mesh know it, those of the next mesh do not
                break
    if progress.failure is not None:
        raise progress.failure


def _fill_alone(reader: Reader, target: Target) -> None:
    entry, block = target
    for piece in block.pieces:
        memory = piece.host_memory()
        if entry.spec == block.spec:
            reader.read(entry, piece.box, memory)
        else:
            for box in row_ranges(piece.box, _CAST_BYTES // entry.dtype.itemsize):
                values = np.empty(boxes.shape(box), entry.dtype)
                reader.read(entry, box, values)
                part = box_view(memory, boxes.shift(box, piece.box))
                _store(values, entry.spec, part, block.spec)
        piece.close(memory)


def _fill_together(
    reader: Reader, shared: _Shared, comm: Communicator, progress: _Progress
) -> None:
    entry, block = shared.target
    bits = np.dtype(_BITS[entry.dtype.itemsize])
    piece = block.pieces[0] if block.pieces else None
    memory: Any = None if piece is None else progress.attempt(piece.host_memory)
    for slab in _slabs(shared, entry.dtype.itemsize):

        def read(slab: _Slab = slab) -> np.ndarray:
            values = _memory.empty(slab.read.local_shape(), bits)
            box = slab.read.local_box()
            assert box is not None  # this rank is in the mesh
            reader.read(entry, slab.placed(box), values)
            return values

        def store(values: Any, slab: _Slab = slab) -> None:
            values = redistribute_local(values, slab.read, slab.wanted)
            box = slab.wanted.local_box()
            if piece is not None and box is not None and not boxes.is_empty(box):
                part = box_view(memory, boxes.shift(slab.placed(box), piece.box))
                _store(values, entry.spec, part, block.spec)

        values = progress.attempt(read)
        progress.compare(comm)
        progress.attempt(partial(store, values))
        if progress.has_failed:
            break
    if piece is not None:
        progress.attempt(partial(piece.close, memory))


class _Slab(NamedTuple):
    """Some rows, along one axis, of an array that is read together: their layouts."""

    read: Layout
    wanted: Layout
    axis: int
    start: int

    def placed(self, box: Box) -> Box:
        """Return where in the array a box of the rows is."""
        start, stop = box[self.axis]
        return (
            *box[: self.axis],
            (start + self.start, stop + self.start),
            *box[self.axis + 1 :],
        )


def _slabs(shared: _Shared, itemsize: int) -> Iterator[_Slab]:
    """Yield the rows of an array in parts, where the layout that is wanted has them together."""
    _, read, wanted = shared
    axis = next(i for i in range(read.ndim) if read.sharding_axes(i))
    mesh, shape = wanted.mesh, wanted.shape
    step = rows = shape[axis]
    if not wanted.sharding_axes(axis):
        row_bytes = max(1, prod(shape) // rows * itemsize)
        most = max(_SLAB_BYTES * wanted.block_count, _SHARE_BYTES * mesh.size)
        step = min(rows, max(1, most // row_bytes))
    for start in range(0, rows, step):
        count = min(step, rows - start)
        part = (*shape[:axis], count, *shape[axis + 1 :])
        yield _Slab(read.replace(shape=part), wanted.replace(shape=part), axis, start)


def _store(values: np.ndarray, spec: Spec, target: np.ndarray, target_spec: Spec) -> None:
    """Copy values, whose dtype may be that of their bits, or convert them."""
    if spec == target_spec:
        target.view(values.dtype)[...] = values
        return
    plain = dtype_of_spec(spec)
    values = values.view(f"u{plain.itemsize}" if plain.names else plain)
    whole = tuple((0, n) for n in values.shape)
    for box in row_ranges(whole, _CAST_BYTES // values.itemsize):
        cast(box_view(values, box), spec, box_view(target, box), target_spec)


_SAMPLED_RANKS = 16
"""The wants of so many ranks are looked at, and stand for those of all. Chosen: it bounds the time
of a plan, whatever the number of ranks."""


def choose_reading_layout(entry: Entry, layout: Layout, least: int, verify: bool) -> Layout | None:
    """Return in which layout, over its mesh, ranks read an array that they want in another one.

    None where each may as well read what it wants. At least so many bytes are read at a time:
    those of a block with a checksum, all of which are read with ``verify``, or a gap that is not
    worth leaving out.
    """
    held = tuple([chunk.box for chunk in entry.chunks])
    found = _plan_reads(layout.abstract, held, entry.dtype.itemsize, least, verify)
    return None if found is None else found.replace(mesh=layout.mesh)


@kept(512)
def _plan_reads(
    layout: Layout, held: tuple[Box, ...], itemsize: int, least: int, verify: bool
) -> Layout | None:
    mesh, shape = layout.mesh, layout.shape
    nbytes = prod(shape) * itemsize
    # For less than a block with a checksum nobody waits for others.
    if mesh.size == 1 or nbytes * (mesh.size - 1) < BLOCK_BYTES:
        return None
    alone = _estimate_bytes(layout, held, itemsize, least, verify)
    most = alone - max(BLOCK_BYTES, nbytes // 4)
    best = None
    for axis, size in enumerate(shape):
        if size < mesh.size or most < nbytes:
            continue
        candidate = Layout(mesh, [Shard(axis)] * mesh.ndim, shape)
        told = _estimate_bytes(candidate, held, itemsize, least, verify)
        if told < most:
            best, most = candidate, told
    return best


def _estimate_bytes(
    layout: Layout, held: Sequence[Box], itemsize: int, least: int, verify: bool
) -> int:
    """Return about how many bytes all ranks read together, each its own box."""
    mesh = layout.mesh
    step = max(1, mesh.size // _SAMPLED_RANKS)
    sampled = mesh.flat_ranks[::step]
    known: dict[Box, int] = {}
    total = 0
    for rank in sampled:
        box = layout.local_box(mesh.coordinate_of(rank))
        assert box is not None  # a coordinate of the mesh has one
        if box not in known:
            known[box] = sum(
                _estimate_box_bytes(
                    boxes.shape(one), boxes.shift(common, one), itemsize, least, verify
                )
                for one in held
                if (common := boxes.intersect(one, box)) is not None
            )
        total += known[box]
    return total * mesh.size // len(sampled)


def _estimate_box_bytes(shape: Shape, box: Box, itemsize: int, least: int, verify: bool) -> int:
    """Return about how many bytes are read for a box of a C-contiguous chunk."""
    per = block_items(least, itemsize)
    axis = together_from(shape, box, per)
    first, last = span(shape[axis:], box[axis:])
    count = boxes.volume(box[:axis])
    if not verify:
        return count * (last - first) * itemsize
    if count == 1:
        at, _ = span(shape, box)
        blocks = -(-(at + last - first) // per) - at // per
        return min(blocks * per, prod(shape)) * itemsize
    return min(count * (last - first + per), prod(shape)) * itemsize
