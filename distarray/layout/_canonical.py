"""The canonical description of a layout, from what a user writes, with every check."""

from __future__ import annotations

import operator
import sys
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

from distarray.errors import (
    ArgumentTypeError,
    AxisError,
    LayoutError,
    MeshError,
    PlacementError,
    ShapeError,
)
from distarray.layout._axes import normalize_axes
from distarray.layout._mesh import Mesh
from distarray.layout._partition import Partition, chunk, explicit, is_chunk
from distarray.layout._placements import (
    Partial,
    Placement,
    Replicate,
    Shard,
    suggest_for_torch,
)
from distarray.layout._reduction import REDUCTIONS
from distarray.typing import AxisName, Box, Shape

Boundaries: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]
"""Pairs of array axis and offsets, by increasing axis."""

_EXAMPLE = "for instance [Shard(0), Replicate()] on a mesh of two axes"


class Frame:
    """What layouts of one placing of arrays of some number of axes on a mesh have in common.

    There is one of each, which its mesh keeps, so that it is a key of what holds for any lengths.

    Attributes
    ----------
    placements : tuple of Placement
        With their axes counted from the first.
    cuts : tuple of tuple of int
        For each array axis the mesh axes that shard it, the first cut first.
    counts : tuple of tuple of int
        For each array axis into how many parts each of these cuts it.
    own : tuple of tuple of (int, int), or None
        The same, each with which of the parts this process has; None where it is not in the mesh.
    partial_axes, replicated_axes : tuple of int
        Mesh axes with these placements.
    layouts : dict
        Weak references to these layouts by shape, and boundaries where they have some.
    """

    __slots__ = (
        "counts", "cuts", "layouts", "own", "partial_axes", "placements", "replicated_axes",
    )  # fmt: skip

    def __init__(
        self, mesh: Mesh, placements: tuple[Placement, ...], cuts: tuple[tuple[int, ...], ...]
    ) -> None:
        here = mesh.coordinate
        self.placements = placements
        self.cuts = cuts
        self.counts = tuple([tuple([mesh.shape[i] for i in axes]) for axes in cuts])
        self.own: tuple[tuple[tuple[int, int], ...], ...] | None = None
        if here is not None:
            self.own = tuple([tuple([(mesh.shape[i], here[i]) for i in axes]) for axes in cuts])
        self.partial_axes = tuple(i for i, p in enumerate(placements) if type(p) is Partial)
        self.replicated_axes = tuple(i for i, p in enumerate(placements) if type(p) is Replicate)
        self.layouts: dict[object, Any] = {}


class Description:
    """Everything that makes a layout, in the form in which equal layouts are equal.

    What has a canonical form becomes the `Layout` itself, once it turns out that there is none yet.

    Attributes
    ----------
    mesh, placements, shape, shard_order
        See `Layout`.
    _boundaries
        Offsets of each array axis whose split is not the default.
    frame
        What follows from all but the lengths and boundaries.
    _splits
        The partition of each axis; of the default splits made when first asked for.
    """

    __slots__ = (
        "__weakref__", "_abstract", "_boundaries", "_fingerprint", "_has_empty", "_own_box",
        "_own_shape", "_splits", "frame", "has_partial", "is_counted", "is_replicated", "mesh",
        "ndim", "partial_axes", "placements", "replicated_axes", "shape", "shard_order", "size",
    )  # fmt: skip
    mesh: Mesh
    placements: tuple[Placement, ...]
    shape: Shape
    shard_order: tuple[int, ...] | None
    _boundaries: Boundaries
    _splits: tuple[Partition, ...] | None
    frame: Frame
    ndim: int
    size: int
    is_replicated: bool
    has_partial: bool
    is_counted: bool
    partial_axes: tuple[int, ...]
    replicated_axes: tuple[int, ...]
    _abstract: Any
    _own_box: Box | None
    _own_shape: Shape | None
    _fingerprint: int | None
    _has_empty: bool | None


def _description(
    mesh: Mesh,
    frame: Frame,
    shape: Shape,
    size: int,
    shard_order: tuple[int, ...] | None = None,
    boundaries: Boundaries = (),
    splits: tuple[Partition, ...] | None = None,
) -> Description:
    made = Description()
    made.mesh = mesh
    made.frame = frame
    made.placements = frame.placements
    made.partial_axes = frame.partial_axes
    made.replicated_axes = frame.replicated_axes
    made.shape = shape
    made.shard_order = shard_order
    made._boundaries = boundaries
    made._splits = splits
    made.ndim = len(shape)
    made.size = size
    made.has_partial = made.partial_axes != ()
    made.is_replicated = len(made.replicated_axes) == len(made.placements)
    made.is_counted = False
    made._abstract = made._own_box = made._own_shape = made._fingerprint = made._has_empty = None
    return made


def _frame_of(
    mesh: Mesh, placements: tuple[Placement, ...], ndim: int, order: tuple[int, ...] | None
) -> Frame:
    """Return what valid placements say, whose mesh axes cut in a canonical order."""
    key = (placements, ndim) if order is None else (placements, ndim, order)
    found: Frame | None = mesh.frames.get(key)
    if found is None:
        cuts = tuple([_in_order(axes, order) for axes in _sharding(placements, ndim)])
        # Atomic, so that threads that race here go on with one.
        found = mesh.frames.setdefault(key, Frame(mesh, placements, cuts))
    return found


def _sharding(placements: Sequence[Placement], ndim: int) -> list[list[int]]:
    """Return for each array axis the mesh axes that shard it, in mesh order."""
    by_axis: list[list[int]] = [[] for _ in range(ndim)]
    for mesh_axis, placement in enumerate(placements):
        if type(placement) is Shard:
            by_axis[placement.axis].append(mesh_axis)
    return by_axis


def block_index(mesh: Mesh, axes: Sequence[int], coordinate: Sequence[int]) -> int:
    """Return which block of an array axis that some mesh axes cut is at a coordinate."""
    index = 0
    for mesh_axis in axes:
        index = index * mesh.shape[mesh_axis] + coordinate[mesh_axis]
    return index


def describe(
    mesh: Mesh,
    placements: Sequence[Placement],
    shape: Sequence[int],
    shard_order: Sequence[AxisName] | None,
    boundaries: Mapping[int, Sequence[int]] | None,
) -> Description:
    """Check the parts of a layout and return them in canonical form.

    The shard order is kept only where it changes who holds what, boundaries only where they differ
    from the default split.
    """
    if not isinstance(mesh, Mesh):
        raise ArgumentTypeError(
            f"mesh {mesh!r}: a layout needs an AbstractMesh or a DeviceMesh, not "
            f"{type(mesh).__name__}"
        )
    extents, size = _read_shape(shape)
    ndim = len(extents)
    placed = _read_placements(placements, mesh, ndim)
    order = None if shard_order is None else _canonical_order(shard_order, placed, mesh, ndim)
    frame = _frame_of(mesh, placed, ndim, order)
    if shard_order is None:
        mesh.frames.setdefault((tuple(placements), ndim), frame)  # as it was spelled
    if boundaries is None:
        return _description(mesh, frame, extents, size, order)
    partitions = [*map(chunk, extents, frame.counts)]
    kept = _apply_boundaries(boundaries, partitions, extents)
    splits = tuple(partitions) if kept else None
    return _description(mesh, frame, extents, size, order, kept, splits)


def describe_lengths(mesh: Mesh, frame: Frame, shape: Shape) -> Description:
    """Check lengths, and return the layout of the default splits in canonical form."""
    extents, size = _read_shape(shape)
    return _description(mesh, frame, extents, size)


def describe_carried(
    before: Description,
    shape: Shape,
    axes: Mapping[int, int] | None,
    offsets: Mapping[int, tuple[int, ...]],
) -> Description:
    """Return the description of `carry_cuts`, of parts that are canonical before.

    Nothing is read or normalised again; of the offsets it is checked that they make a split.
    Without `axes` every axis stays where it is.
    """
    mesh = before.mesh
    frame = before.frame
    order = before.shard_order
    own: Mapping[int, tuple[int, ...]] = dict(before._boundaries)
    if axes is not None and not (
        [*axes] == [*axes.values()] and len(axes) == len(before.shape) == len(shape)
    ):
        shards = {old: Shard(new) for old, new in axes.items()}
        placed = tuple(
            [shards.get(p.axis, Replicate()) if type(p) is Shard else p for p in before.placements]
        )
        if order is not None:
            origin = {new: old for old, new in axes.items()}
            cuts = [frame.cuts[origin[axis]] for axis in sorted(origin)]
            order = _kept_order(cuts, mesh)
        frame = _frame_of(mesh, placed, len(shape), order)
        own = {axes[old]: split for old, split in own.items() if old in axes}
    extents, size = _read_shape(shape)
    kept: list[tuple[int, tuple[int, ...]]] = []
    for axis, split in sorted({**own, **offsets}.items()):
        length, counts = extents[axis], frame.counts[axis]
        if split[-1] != length or len(split) != prod(counts) + 1:
            _read_split(axis, split, chunk(length, counts))  # tells what is wrong
        if not is_chunk(split, counts):
            kept.append((axis, split))
    if not kept:
        return _description(mesh, frame, extents, size, order)
    given = dict(kept)
    partitions = tuple(
        [
            explicit(given[axis]) if axis in given else chunk(extents[axis], counts)
            for axis, counts in enumerate(frame.counts)
        ]
    )
    return _description(mesh, frame, extents, size, order, tuple(kept), partitions)


def _read_shape(shape: Sequence[int]) -> tuple[Shape, int]:
    """Return the shape, of Python's integers, none negative, and how many items it has."""
    try:
        extents = tuple(map(operator.index, shape))
    except TypeError:
        raise ArgumentTypeError(
            f"shape {shape!r}: must be a sequence of integers, for instance (512, 64)"
        ) from None
    if extents and min(extents) < 0:
        raise ShapeError(f"shape {extents}: no axis can have a negative length")
    size = prod(extents)
    if size > sys.maxsize or (not size and max(extents) > sys.maxsize):
        raise ShapeError(f"shape {extents}: the number of items must fit into 64 bits")
    return extents, size


def _read_placements(
    placements: Sequence[Placement], mesh: Mesh, ndim: int
) -> tuple[Placement, ...]:
    """Return one placement per mesh axis, with every shard axis resolved."""
    if isinstance(placements, (Placement, str)) or not isinstance(placements, Sequence):
        raise ArgumentTypeError(
            f"placements {placements!r}: must be a sequence with one placement per mesh axis, "
            f"{_EXAMPLE}"
        )
    placed = tuple(placements)
    for placement in placed:
        if not isinstance(placement, Placement):
            raise ArgumentTypeError(
                f"placement {placement!r}: must be Shard(axis), Replicate() or Partial(op), not "
                f"{type(placement).__name__}{suggest_for_torch(placement)}"
            )
    if len(placed) != mesh.ndim:
        raise PlacementError(
            f"placements {placed} on the mesh {mesh}: it takes {mesh.ndim}, one for each mesh "
            f"axis, not {len(placed)}; {_EXAMPLE}"
        )
    resolved = tuple([_resolve_axis(placement, ndim) for placement in placed])
    _check_reductions(resolved)
    return resolved


def _resolve_axis(placement: Placement, ndim: int) -> Placement:
    """Return the placement with a shard axis counted from the first axis."""
    if type(placement) is not Shard or 0 <= placement.axis < ndim:
        return placement
    if not -ndim <= placement.axis < 0:
        remedy = (
            f"use an axis from {-ndim} to {ndim - 1}" if ndim else "place a 0-d array by Replicate"
        )
        text = f"{placement!r} of an array with {ndim} axes: {remedy}"
        raise AxisError(text, placement.axis, ndim)
    return Shard(placement.axis + ndim)


def _check_reductions(placements: tuple[Placement, ...]) -> None:
    """Refuse pending reductions that do not commute with each other."""
    ops = {placement.op for placement in placements if type(placement) is Partial}
    if len(ops) > 1 and not all(REDUCTIONS[op].linear for op in ops):
        raise PlacementError(
            f"placements {placements}: the reductions {' and '.join(sorted(ops))} give different "
            "values in different orders, so they cannot be pending together; reduce over one mesh "
            "axis first (redistribute it to Replicate)"
        )


def _canonical_order(
    shard_order: Sequence[AxisName], placements: Sequence[Placement], mesh: Mesh, ndim: int
) -> tuple[int, ...] | None:
    """Return the mesh axes that cut out of mesh order, array axis by array axis, or None.

    Mesh axes of size 1 cut nothing, so that their place in the order never matters.
    """
    if isinstance(shard_order, str) or not isinstance(shard_order, Sequence):
        raise ArgumentTypeError(
            f"shard_order {shard_order!r}: must be a sequence of mesh axes, for instance (1, 0) or "
            '("tp", "dp")'
        )
    try:
        named = mesh.axis_indices(shard_order)
    except MeshError as error:
        raise MeshError(f"shard_order {tuple(shard_order)}: {error}") from None
    return _kept_order([_in_order(axes, named) for axes in _sharding(placements, ndim)], mesh)


def _kept_order(cuts: Sequence[tuple[int, ...]], mesh: Mesh) -> tuple[int, ...] | None:
    """Return the mesh axes that cut out of mesh order, array axis by array axis, or None."""
    kept: list[int] = []
    for axes in cuts:
        cutting = [axis for axis in axes if mesh.shape[axis] > 1]
        if cutting != sorted(cutting):
            kept.extend(cutting)
    return tuple(kept) or None


def _in_order(axes: Sequence[int], order: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return mesh axes in the order given; those it leaves out follow in mesh order."""
    if order is None or len(axes) < 2:
        return tuple(axes)
    first = [axis for axis in order if axis in axes]
    return (*first, *(axis for axis in axes if axis not in first))


def _apply_boundaries(
    boundaries: Mapping[int, Sequence[int]], partitions: list[Partition], shape: Shape
) -> Boundaries:
    """Put the explicit splits into `partitions` and return those that differ from the default."""
    if not isinstance(boundaries, Mapping):
        raise ArgumentTypeError(
            f"boundaries {boundaries!r}: must map array axes to offsets, for instance "
            "{0: (0, 3, 10)}"
        )
    kept: dict[int, tuple[int, ...]] = {}
    try:
        axes = normalize_axes(tuple(boundaries), len(shape))
    except (ArgumentTypeError, AxisError) as error:
        raise type(error)(f"boundaries {dict(boundaries)}: {error}") from None
    for axis, offsets in zip(axes, boundaries.values(), strict=True):
        default = partitions[axis]
        split = _read_split(axis, offsets, default)
        if split != default:
            partitions[axis] = split
            kept[axis] = split.offsets
    return tuple(sorted(kept.items()))


def _read_split(axis: int, offsets: Sequence[int], default: Partition) -> Partition:
    """Return explicit boundaries as a partition that has the default's size and block count."""
    try:
        values = tuple(map(operator.index, offsets))
    except TypeError:
        raise ArgumentTypeError(
            f"boundaries {offsets!r} of axis {axis}: must be a sequence of integers"
        ) from None
    if len(values) != default.count + 1:
        raise LayoutError(
            f"{len(values)} boundaries of axis {axis}: the mesh axes that shard it make "
            f"{default.count} blocks, which needs {default.count + 1}"
        )
    if values[-1] != default.size:
        raise LayoutError(
            f"boundaries of axis {axis} end with {values[-1]}: they must end with its length, "
            f"{default.size}"
        )
    return explicit(values)
