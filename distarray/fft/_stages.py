"""Stages of a transform: of whole lines in each block, and of blocks cut along another axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from distarray.comm import _backend, _memory
from distarray.fft._blocks import PLANE_BYTES, OnTile, by_tiles, transform, transform_real
from distarray.layout import Layout, Replicate, Shard
from distarray.redistribute import redistribute_local
from distarray.typing import Box, Buffer

Send = tuple[Layout, Layout, bool]
"""Layouts before and after, and whether that is redistributed; see `Layouts` of the engine."""


class Task(NamedTuple):
    """What is to be transformed."""

    lengths: tuple[tuple[int, int], ...]
    """Axes, none of them twice, and their lengths."""
    forward: bool
    real: str
    """Of the last axis: "in" where items before are real, "out" where those after are."""
    norm: str | None
    workers: int | None
    dtype: np.dtype[Any]
    """Of the complex numbers."""

    @property
    def real_axis(self) -> int | None:
        """The axis of which half of the frequencies are known."""
        return self.lengths[-1][0] if self.real else None

    @property
    def kind(self) -> str:
        """The transform of complex numbers."""
        return "fft" if self.forward else "ifft"

    @property
    def real_kind(self) -> str:
        """The transform of the last axis."""
        if self.real == "in":
            return "rfft" if self.forward else "ihfft"
        return "hfft" if self.forward else "irfft"

    @property
    def real_dtype(self) -> np.dtype[Any]:
        """Of parts of the complex numbers."""
        return np.empty(0, self.dtype).real.dtype

    @property
    def result(self) -> np.dtype[Any]:
        """Of the result."""
        return self.real_dtype if self.real == "out" else self.dtype

    def length(self, axis: int) -> int:
        """Return the length of the transform of an axis."""
        return dict(self.lengths)[axis]

    def taken(self, axis: int) -> int:
        """Return how many items of a line count."""
        n = self.length(axis)
        return n // 2 + 1 if self.real == "out" and axis == self.real_axis else n

    def given(self, axis: int) -> int:
        """Return how many items a line has then."""
        n = self.length(axis)
        return n // 2 + 1 if self.real == "in" and axis == self.real_axis else n

    def prepare(self, tile: Buffer) -> Buffer:
        """Return items in the dtype that a library transforms."""
        wanted = self.dtype if self.real == "out" or tile.dtype.kind == "c" else self.real_dtype
        return tile.astype(wanted, copy=False)


class Stage(Protocol):
    """A step from one layout to another."""

    after: Layout
    sends: tuple[Send, ...]

    def bind(self, is_ours: bool) -> Callable[[Buffer], Buffer]:
        """Return the function of this process's block, which may be overwritten if it is ours."""


class Transform:
    """Each process transforms axes that are not cut."""

    sends: tuple[Send, ...] = ()

    def __init__(self, before: Layout, axes: Sequence[int], task: Task) -> None:
        self._before, self._task = before, task
        self.after = before.replace(shape=_given(before.shape, axes, task))
        real = [axis for axis in axes if axis == task.real_axis]
        others = [axis for axis in axes if axis != task.real_axis]
        self._axes = [*others, *real] if task.real == "out" else [*real, *others]

    def bind(self, is_ours: bool) -> Callable[[Buffer], Buffer]:
        """Return the function of a block; complex ones of ours are transformed in place."""
        task, shape = self._task, self._before.local_shape()
        passes = []
        for axes in _groups(self._axes, self.after.local_shape(), task.dtype.itemsize):
            shape = _given(shape, axes, task)
            passes.append((axes, shape, _on_tiles(axes, task)))

        def transform_block(block: Buffer) -> Buffer:
            is_free = is_ours
            for axes, shape, on_tile in passes:
                is_last_real = task.real == "out" and task.real_axis in axes
                dtype = task.result if is_last_real else task.dtype
                out = block
                if not is_free or block.dtype != dtype or block.shape != shape:
                    out = _memory.empty(shape, dtype, _backend.device_of(block))
                block = by_tiles(on_tile, block, out, axes)
                is_free = True
            return block

        return transform_block


def _given(shape: Sequence[int], axes: Sequence[int], task: Task) -> tuple[int, ...]:
    return tuple(task.given(axis) if axis in axes else size for axis, size in enumerate(shape))


def _groups(axes: Sequence[int], shape: Sequence[int], itemsize: int) -> list[list[int]]:
    """Return axes to transform together: as many as leave something in the cache meanwhile."""
    groups: list[list[int]] = []
    nbytes = 0
    for axis in axes:
        nbytes *= shape[axis]
        if not groups or nbytes > PLANE_BYTES:
            groups.append([])
            nbytes = itemsize * shape[axis]
        groups[-1].append(axis)
    return groups


def _on_tiles(axes: Sequence[int], task: Task) -> OnTile:
    """Return the function that transforms axes of a tile."""
    real = task.real_axis if task.real_axis in axes else None
    others = tuple(axis for axis in axes if axis != real)
    lengths = tuple(map(task.length, others))
    norm, workers = task.norm, task.workers

    def on_tile(tile: Buffer, _: Box) -> Buffer:
        tile = task.prepare(tile)
        if real is not None and task.real == "in":
            tile = transform_real(tile, real, task.length(real), task.real_kind, norm, workers)
        if others:
            tile = transform(tile, others, lengths, task.kind, norm, workers)
        if real is not None and task.real == "out":
            tile = transform_real(tile, real, task.length(real), task.real_kind, norm, workers)
        return tile

    return on_tile


class Turn:
    """Mesh axes that cut one axis cut others instead, or none, for one exchange."""

    def __init__(self, before: Layout, axis: int, targets: Mapping[int, int | None], most: int):
        self._axis = axis
        self._cropped = crop(before, axis, most)
        self.after = turn(self._cropped, axis, targets)
        self.sends: tuple[Send, ...] = ((self._cropped, self.after, True),)

    def bind(self, is_ours: bool) -> Callable[[Buffer], Buffer]:
        """Return the function of a block; messages may lie in one of ours."""
        cropped, after, axis = self._cropped, self.after, self._axis
        return lambda block: redistribute_local(
            cut_off(block, cropped, axis), cropped, after, is_free=is_ours
        )


class Keep:
    """Each process keeps its part of an axis of which it has all."""

    sends: tuple[Send, ...] = ()

    def __init__(self, before: Layout, after: Layout) -> None:
        self._before, self.after = before, after

    def bind(self, _: bool) -> Callable[[Buffer], Buffer]:
        """Return the function of a block."""
        before, after = self._before, self.after
        return lambda block: redistribute_local(block, before, after)


def crop(layout: Layout, axis: int, most: int) -> Layout:
    """Return the layout of an array of which an axis has `most` items at most, where they lie."""
    if layout.shape[axis] <= most:
        return layout
    shape = (*layout.shape[:axis], most, *layout.shape[axis + 1 :])
    boundaries = dict(layout.boundaries or {})
    if layout.sharding_axes(axis):
        boundaries[axis] = tuple(min(offset, most) for offset in layout.partition(axis).offsets)
    return layout.replace(shape=shape, boundaries=boundaries or None)


def recut(layout: Layout, axis: int, length: int) -> Layout:
    """Return the layout of an array with another length of an axis, split evenly if it differs."""
    if layout.shape[axis] == length:
        return layout
    shape = (*layout.shape[:axis], length, *layout.shape[axis + 1 :])
    boundaries = {a: at for a, at in (layout.boundaries or {}).items() if a != axis}
    return layout.replace(shape=shape, boundaries=boundaries or None)


def cut_off(block: Buffer, cropped: Layout, axis: int) -> Buffer:
    """Return a view of the items of a block that are there in its cropped layout."""
    return block[(slice(None),) * axis + (slice(cropped.local_shape()[axis]),)]


def turn(layout: Layout, axis: int, targets: Mapping[int, int | None]) -> Layout:
    """Return the layout in which mesh axes that cut `axis` cut their target; None: replicate."""
    placements = list(layout.placements)
    for mesh_axis, target in targets.items():
        placements[mesh_axis] = Replicate() if target is None else Shard(target)
    cuts = [
        [m for m in layout.sharding_axes(one) if m not in targets] for one in range(layout.ndim)
    ]
    for mesh_axis in layout.sharding_axes(axis):
        target = targets.get(mesh_axis)
        if target is not None:
            cuts[target].append(mesh_axis)
    changed = {axis, *targets.values()}
    boundaries = {a: at for a, at in (layout.boundaries or {}).items() if a not in changed}
    order = [mesh_axis for cut in cuts for mesh_axis in cut]
    return layout.replace(placements=placements, shard_order=order, boundaries=boundaries or None)
