"""Blocks of many tensors that travel together: one all-gather, or one reduce-scatter, for all.

A rank's blocks lie one after another in one flat buffer, its own; the whole tensors lie one after
another in another, the full one. Within a node every block is copied once, from its owner's buffer
to its place in the whole tensor, and sums are formed while they are read. Between nodes the flat
buffers travel by one collective of variable counts, and are unpacked.

Peak memory beyond the buffers of both ends: none within a node; a second full buffer between nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod
from time import perf_counter
from typing import Any, NamedTuple

from distarray.comm import (
    Communicator,
    DeviceMesh,
    Purpose,
    _backend,
    _memory,
    copy_boxes,
    pause_logs,
    reduce_boxes,
)
from distarray.layout import Layout, Partial, Replicate, Shard
from distarray.redistribute._execute import redistribute_local
from distarray.redistribute._messages import region
from distarray.typing import Buffer, Shape


class _Piece(NamedTuple):
    """One rank's block of one tensor: where it is in the tensor, and in the rank's flat buffer."""

    tensor: int
    region: tuple[Any, ...]
    start: int
    stop: int
    shape: Shape


class Packed:
    """Tensors of one dtype whose blocks travel together along the last axis of a mesh.

    Parameters
    ----------
    mesh
        The tensors are cut along its last axis alone.
    layouts
        Of each tensor, over the mesh; ``Shard`` of any axis, or ``Replicate``.
    strides
        Of each whole tensor in the full buffer, in elements: a permutation of C order.

    Attributes
    ----------
    starts
        Where each whole tensor is in the full buffer, in elements.
    total
        Elements of the full buffer.
    rank
        This process's position along the axis.
    count, counts
        Elements of this rank's flat buffer, and of everybody's.
    is_alone
        Whether there is one rank along the axis.
    is_flat
        Whether the flat buffers of all ranks, one after another, are the full one.
    """

    def __init__(
        self, mesh: DeviceMesh, layouts: Sequence[Layout], strides: Sequence[Sequence[int]]
    ) -> None:
        self._mesh = mesh
        self._shapes = [layout.shape for layout in layouts]
        self._strides = [tuple(steps) for steps in strides]
        *starts, self.total = accumulate((layout.size for layout in layouts), initial=0)
        self.starts = tuple(starts)
        coordinate = mesh.coordinate
        assert coordinate is not None  # this rank is in the mesh
        self.rank = coordinate[-1]
        ranks = range(mesh.shape[-1])
        self._pieces = [_pieces(layouts, (*coordinate[:-1], rank)) for rank in ranks]
        self.counts = tuple(pieces[-1].stop if pieces else 0 for pieces in self._pieces)
        self.count = self.counts[self.rank]
        self.is_alone = len(ranks) == 1
        self.is_flat = self.is_alone and all(map(_in_order, self._shapes, self._strides))
        self._cut = [type(layout.placements[-1]) is Shard for layout in layouts]
        self._line = Layout(
            mesh,
            [Replicate()] * (mesh.ndim - 1) + [Shard(0)],
            (sum(self.counts),),
            boundaries={0: (0, *accumulate(self.counts))},
        )

    def blocks(self, own: Buffer) -> list[Buffer]:
        """Return the blocks in this rank's flat buffer, each in its shape."""
        return [own[p.start : p.stop].reshape(p.shape) for p in self._pieces[self.rank]]

    def wholes(self, full: Buffer) -> list[Buffer]:
        """Return the whole tensors in a full buffer, each in its shape and strides."""
        found = []
        for start, shape, strides in zip(self.starts, self._shapes, self._strides, strict=True):
            flat = full[start : start + prod(shape)]
            lib: Any = _backend.namespace_of(flat).lib.stride_tricks
            steps = [step * flat.itemsize for step in strides]
            found.append(lib.as_strided(flat, shape, steps) if flat.size else flat.reshape(shape))
        return found

    def gather(self, own: Buffer, purpose: Purpose, *, background: bool = False) -> Buffer:
        """Return a new full buffer, of the flat buffers of all ranks (collective)."""
        full = _memory.empty((self.total,), own.dtype, _backend.device_of(own))
        communicator = self.communicator(background)
        started = perf_counter()
        with pause_logs():
            if communicator.size == 1:
                self._place([own], full)
            elif communicator.reaches_all(_backend.device_of(own)):
                with communicator.views(own, purpose.token, purpose.text) as views:
                    self._place(views, full)
            else:
                lined = redistribute_local(
                    own, self._line, self._whole, purpose=purpose, background=background
                )
                ends = pairwise(accumulate(self.counts, initial=0))
                self._place([lined[start:stop] for start, stop in ends], full)
        if communicator.size > 1:
            nbytes = (self.total - self.count) * own.itemsize
            communicator.record("all_gather", nbytes, started)
        return full

    def reduce(
        self, full: Buffer, op: str, purpose: Purpose, *, background: bool = False
    ) -> Buffer:
        """Return a new flat buffer: this rank's blocks of the sums, or averages, of full buffers.

        Collective; ``full`` is this rank's contribution.
        """
        communicator = self.communicator(background)
        started = perf_counter()
        with pause_logs():
            if communicator.size == 1:
                own = self._own_blocks([full], op)
            elif communicator.reaches_all(_backend.device_of(full)):
                with communicator.views(full, purpose.token, purpose.text) as views:
                    own = self._own_blocks(views, op)
            else:
                partial = [Replicate()] * (self._mesh.ndim - 1) + [Partial(op)]
                src = self._whole.replace(placements=partial)
                lined = self._in_line(full)
                own = redistribute_local(
                    lined, src, self._line, purpose=purpose, background=background
                )
        if communicator.size > 1:
            nbytes = (communicator.size - 1) * self.count * full.itemsize
            communicator.record("reduce_scatter", nbytes, started)
        return own

    @property
    def _whole(self) -> Layout:
        replicated = [Replicate()] * self._mesh.ndim
        return self._line.replace(placements=replicated, boundaries=None)

    def communicator(self, background: bool) -> Communicator:
        """Return the communicator of the ranks whose blocks travel together."""
        communicator = self._mesh.communicator((self._mesh.ndim - 1,))
        return communicator.background() if background else communicator

    def _place(self, flats: Sequence[Buffer], full: Buffer) -> None:
        """Copy the blocks of all ranks to their places in the whole tensors."""
        wholes = self.wholes(full)
        pairs = [
            (
                wholes[piece.tensor][piece.region],
                flat[piece.start : piece.stop].reshape(piece.shape),
            )
            for rank, (pieces, flat) in enumerate(zip(self._pieces, flats, strict=False))
            for piece in pieces
            if piece.start < piece.stop and (self._cut[piece.tensor] or rank == self.rank)
        ]
        copy_boxes(pairs, total=full.nbytes)

    def _own_blocks(self, fulls: Sequence[Buffer], op: str) -> Buffer:
        """Reduce this rank's blocks out of the contributions of all ranks."""
        own = _memory.empty((self.count,), fulls[0].dtype, _backend.device_of(fulls[0]))
        contributions = [self.wholes(full) for full in fulls]
        boxes = [
            (block, [wholes[piece.tensor][piece.region] for wholes in contributions])
            for piece, block in zip(self._pieces[self.rank], self.blocks(own), strict=True)
            if block.size
        ]
        reduce_boxes(boxes, op, total=own.nbytes)
        return own

    def _in_line(self, full: Buffer) -> Buffer:
        """Return the blocks of all ranks one after another, out of whole tensors."""
        lined = _memory.empty(self._line.shape, full.dtype, _backend.device_of(full))
        wholes = self.wholes(full)
        at = 0
        pairs = []
        for pieces, count in zip(self._pieces, self.counts, strict=True):
            for piece in pieces:
                block = lined[at + piece.start : at + piece.stop].reshape(piece.shape)
                pairs.append((block, wholes[piece.tensor][piece.region]))
            at += count
        copy_boxes(pairs, total=lined.nbytes)
        return lined


def _in_order(shape: Shape, strides: Sequence[int]) -> bool:
    """Tell whether items lie in C order, without gaps."""
    step = 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length > 1 and stride != step:
            return False
        step *= length
    return True


def _pieces(layouts: Sequence[Layout], coordinate: tuple[int, ...]) -> list[_Piece]:
    """Return the blocks of a rank, one after another."""
    found = []
    start = 0
    for tensor, layout in enumerate(layouts):
        shape = layout.local_shape(coordinate)
        box = layout.local_box(coordinate)
        assert box is not None  # the coordinate is one of the mesh
        stop = start + prod(shape)
        found.append(_Piece(tensor, region(box), start, stop, shape))
        start = stop
    return found
