"""Fill memory from a checkpoint: each rank reads what it wants, or all read for each other.

Where the ranks of a mesh would read an array several times over (`_shared_reads`) each reads
another part of it, cut along what lies together in the files, and the parts are redistributed:
every byte is read, and compared with its checksum, once. That takes all ranks of the mesh. So they
tell each other first what they want, and read for themselves where they want different things;
and before values move they tell each other whether they have them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from math import prod
from typing import Any, NamedTuple, TypeVar

import numpy as np

from distarray.checkpoint import _rendezvous
from distarray.checkpoint._blocks import Block, within
from distarray.checkpoint._casting import cast
from distarray.checkpoint._dtypes import Spec, parsed
from distarray.checkpoint._manifest import Entry, Manifest
from distarray.checkpoint._reading import GAP_BYTES, Reader
from distarray.checkpoint._shared_reads import reading_layout
from distarray.comm import Communicator, DeviceMesh, _memory
from distarray.layout import Layout, Replicate
from distarray.layout import box as boxes
from distarray.redistribute import redistribute_local
from distarray.typing import Box

T = TypeVar("T")
_CAST_BYTES = 16 << 20
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


def fill(targets: Sequence[Target], manifest: Manifest, verify: bool, comm: Communicator) -> None:
    """Read all that is wanted (collective).

    Raises
    ------
    CheckpointError
        A file is missing or damaged, on all ranks. Some values may have been filled in.
    """
    alone: Sequence[Target] = targets
    shared: Mapping[DeviceMesh, Sequence[_Shared]] = {}
    if comm.size > 1:
        alone, shared = _agreed(targets, manifest, verify, comm)

    def read() -> None:
        with Reader(manifest, verify) as reader:
            _fill(reader, alone, shared)

    _rendezvous.each(comm, read)


# --- who reads what ------------------------------------------------------------------------------


def _agreed(
    targets: Sequence[Target], manifest: Manifest, verify: bool, comm: Communicator
) -> tuple[list[Target], dict[DeviceMesh, list[_Shared]]]:
    """Return what this rank reads for itself, and what it reads together with others, by meshes.

    Ranks that share several meshes have these in the same order.
    """
    alone: list[Target] = []
    proposed: dict[DeviceMesh, list[_Shared]] = {}
    least = manifest.block_bytes if verify else GAP_BYTES

    def propose() -> dict[bytes, bytes]:
        for target in targets:
            wanted = _layout_of(target, comm)
            read = None if wanted is None else reading_layout(target.entry, wanted, least, verify)
            if wanted is None or read is None:
                alone.append(target)
            else:
                mesh: Any = wanted.mesh
                proposed.setdefault(mesh, []).append(_Shared(target, read, wanted))
        return {_key(mesh): _digest(shared) for mesh, shared in proposed.items()}

    everyone = dict(zip(comm.ranks, _rendezvous.each(comm, propose), strict=True))
    agreed = {}
    for mesh in sorted(proposed, key=_key):
        key = _key(mesh)
        if len({everyone[rank].get(key) for rank in mesh.flat_ranks}) == 1:
            agreed[mesh] = proposed[mesh]
        else:
            alone += [shared.target for shared in proposed[mesh]]
    return alone, agreed


def _layout_of(target: Target, comm: Communicator) -> Layout | None:
    """Return in which layout, over memory of the host, an array is wanted; None if not by one.

    An array that every rank wants all of is replicated over all of them.
    """
    entry, block = target
    if entry.dtype.itemsize not in _BITS or block.is_torn:
        return None
    if block.layout is None:
        return Layout(DeviceMesh(comm.ranks, comm=comm), [Replicate()], entry.shape)
    mesh: Any = block.layout.mesh
    if mesh._base is not comm:
        return None  # it may have ranks that do not load
    if mesh.device != "cpu":
        mesh = DeviceMesh(mesh.ranks, mesh.axis_names, comm=comm)
    return block.layout.replace(mesh=mesh)


def _key(mesh: DeviceMesh) -> bytes:
    return _hash((mesh.shape, mesh.axis_names, mesh.flat_ranks))


def _digest(shared: Sequence[_Shared]) -> bytes:
    return _hash([(one.target.entry.name, one.read, one.wanted) for one in shared])


def _hash(value: Any) -> bytes:
    return blake2b(repr(value).encode("utf-8", "surrogatepass"), digest_size=16).digest()


# --- reading -------------------------------------------------------------------------------------


class _Course:
    """How reading goes: after a failure, here or elsewhere, a rank does nothing more but say so.

    Attributes
    ----------
    is_over
        Whether a rank that this one reads together with has failed.
    failure
        What went wrong on this rank.
    """

    def __init__(self) -> None:
        self.is_over = False
        self.failure: Exception | None = None

    def go_on(self, work: Callable[[], T]) -> T | None:
        """Return what ``work()`` returns; None, of which note is taken, if anything has failed."""
        if self.is_over:
            return None
        try:
            return work()
        except Exception as error:
            self.failure, self.is_over = error, True
            return None

    def compare(self, comm: Communicator) -> None:
        """Find out whether any rank has failed (collective)."""
        self.is_over = any(_rendezvous.each(comm, lambda: self.is_over))


def _fill(
    reader: Reader, alone: Sequence[Target], shared: Mapping[DeviceMesh, Sequence[_Shared]]
) -> None:
    course = _Course()
    for target in alone:
        course.go_on(partial(_fill_alone, reader, target))
    for mesh, wanted in shared.items():
        for one in wanted:
            _fill_together(reader, one, mesh.communicator(), course)
            if course.is_over:  # all ranks of the mesh know it, those of the next mesh do not
                break
    if course.failure is not None:
        raise course.failure


def _fill_alone(reader: Reader, target: Target) -> None:
    entry, block = target
    for piece in block.pieces:
        memory = piece.opened()
        if entry.spec == block.spec:
            reader.read(entry, piece.box, memory)
        else:
            for box in _bands(piece.box, _CAST_BYTES // entry.dtype.itemsize):
                values = np.empty(boxes.shape(box), entry.dtype)
                reader.read(entry, box, values)
                part = within(memory, boxes.shift(box, piece.box))
                _store(values, entry.spec, part, block.spec)
        piece.close(memory)


def _fill_together(reader: Reader, shared: _Shared, comm: Communicator, course: _Course) -> None:
    entry, block = shared.target
    bits = np.dtype(_BITS[entry.dtype.itemsize])
    piece = block.pieces[0] if block.pieces else None
    memory: Any = None if piece is None else course.go_on(piece.opened)
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
                part = within(memory, boxes.shift(slab.placed(box), piece.box))
                _store(values, entry.spec, part, block.spec)

        values = course.go_on(read)
        course.compare(comm)
        course.go_on(partial(store, values))
        if course.is_over:
            break
    if piece is not None:
        course.go_on(partial(piece.close, memory))


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
        cuts = prod(mesh.shape[i] for j in range(wanted.ndim) for i in wanted.sharding_axes(j))
        row_bytes = max(1, prod(shape) // rows * itemsize)
        most = max(_SLAB_BYTES * cuts, _SHARE_BYTES * mesh.size)
        step = min(rows, max(1, most // row_bytes))
    for start in range(0, rows, step):
        count = min(step, rows - start)
        part = (*shape[:axis], count, *shape[axis + 1 :])
        yield _Slab(read.replace(shape=part), wanted.replace(shape=part), axis, start)


def _bands(box: Box, items: int) -> Iterator[Box]:
    """Yield a box in parts along its first axis, of about so many items each."""
    if not box:
        yield box
        return
    (first, last), rest = box[0], box[1:]
    step = max(1, items // max(1, boxes.volume(rest)))
    for start in range(first, last, step):
        yield ((start, min(start + step, last)), *rest)


def _store(values: np.ndarray, spec: Spec, target: np.ndarray, target_spec: Spec) -> None:
    """Copy values, whose dtype may be that of their bits, or convert them."""
    if spec == target_spec:
        target.view(values.dtype)[...] = values
        return
    plain = parsed(spec)
    values = values.view(f"u{plain.itemsize}" if plain.names else plain)
    whole = tuple((0, n) for n in values.shape)
    for box in _bands(whole, _CAST_BYTES // values.itemsize):
        cast(within(values, box), spec, within(target, box), target_spec)
