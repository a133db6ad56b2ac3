"""A small language for shape operations: where every axis of the result comes from."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from math import prod
from typing import NamedTuple, TypeAlias

from distarray.errors import ArgumentTypeError, AxisError, ShapeError
from distarray.layout._axes import normalize_axes
from distarray.typing import Shape


class InputAxis(NamedTuple):
    """Axis `axis` of the input, unchanged."""

    axis: int


class Flatten(NamedTuple):
    """Several input axes as one, in row-major order."""

    axes: tuple[int, ...]


class Split(NamedTuple):
    """Part `part` of an axis that is cut, in row-major order, into axes of the lengths `shape`."""

    source: InputAxis | Flatten
    shape: Shape
    part: int


class Broadcast(NamedTuple):
    """An axis of `size` equal items: a new one, or input axis `axis`, which has length 1."""

    size: int
    axis: int | None = None


class Singleton(NamedTuple):
    """A new axis of length 1."""


AxisSource: TypeAlias = InputAxis | Flatten | Split | Broadcast | Singleton


class Group(NamedTuple):
    """Input axes and output axes that hold the same elements in the same row-major order."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class DimMap(NamedTuple):
    """A shape operation as data.

    Attributes
    ----------
    in_shape : tuple of int
    axes : tuple of AxisSource
        What each output axis comes from. Input axes that appear nowhere have length 1 and vanish.
    """

    in_shape: Shape
    axes: tuple[AxisSource, ...]

    @property
    def out_shape(self) -> Shape:
        """Shape of the result."""
        return tuple(self._length(source) for source in self.axes)

    @property
    def groups(self) -> tuple[Group, ...]:
        """Return the axes that keep their elements, each input and output axis in one group."""
        found: list[Group] = []
        outputs: dict[tuple[tuple[int, ...], Shape], list[int]] = {}
        for out, source in enumerate(self.axes):
            match source:
                case InputAxis(axis):
                    found.append(Group((axis,), (out,)))
                case Flatten(axes):
                    found.append(Group(axes, (out,)))
                case Split(InputAxis(axis), shape, _):
                    outputs.setdefault(((axis,), shape), []).append(out)
                case Split(Flatten(axes), shape, _):
                    outputs.setdefault((axes, shape), []).append(out)
                case _:
                    pass
        found.extend(Group(axes, tuple(outs)) for (axes, _), outs in outputs.items())
        return tuple(sorted(found, key=lambda group: group.outputs))

    def _length(self, source: AxisSource) -> int:
        """Return the length of an output axis."""
        match source:
            case InputAxis(axis):
                return self.in_shape[axis]
            case Flatten(axes):
                return prod(self.in_shape[axis] for axis in axes)
            case Split(_, shape, part):
                return shape[part]
            case Broadcast(size, _):
                return size
            case _:
                return 1


def transpose(shape: Shape, axes: Sequence[int] | None = None) -> DimMap:
    """Return the map that reorders axes; reverses their order by default."""
    order = normalize_axes(axes, len(shape)) if axes is not None else tuple(range(len(shape)))[::-1]
    if len(order) != len(shape):
        raise AxisError(
            f"axes {order} for a transpose of shape {shape}: name all {len(shape)} axes once"
        )
    return DimMap(shape, tuple(map(InputAxis, order)))


def moveaxis(shape: Shape, source: int | Sequence[int], destination: int | Sequence[int]) -> DimMap:
    """Return the map that puts some axes elsewhere and keeps the order of the others."""
    ndim = len(shape)
    moved, places = normalize_axes(source, ndim), normalize_axes(destination, ndim)
    if len(moved) != len(places):
        raise AxisError(
            f"moveaxis from {source} to {destination}: as many destinations as sources are needed"
        )
    order = [axis for axis in range(ndim) if axis not in moved]
    for place, axis in sorted(zip(places, moved, strict=True)):
        order.insert(place, axis)
    return transpose(shape, order)


def squeeze(shape: Shape, axes: int | Sequence[int] | None = None) -> DimMap:
    """Return the map that drops axes of length 1: those named, by default all."""
    if axes is None:
        dropped = tuple(axis for axis, size in enumerate(shape) if size == 1)
    else:
        dropped = normalize_axes(axes, len(shape))
    for axis in dropped:
        if shape[axis] != 1:
            raise ShapeError(
                f"squeeze of axis {axis} of shape {shape}: its length is {shape[axis]}, "
                "and only axes of length 1 can be dropped"
            )
    return DimMap(shape, tuple(InputAxis(i) for i in range(len(shape)) if i not in dropped))


def expand_dims(shape: Shape, axes: int | Sequence[int]) -> DimMap:
    """Return the map that puts new axes of length 1 at the given places of the result."""
    count = len(axes) if isinstance(axes, Sequence) else 1
    ndim = len(shape) + count
    new = normalize_axes(axes, ndim)
    rest = iter(range(len(shape)))
    return DimMap(
        shape, tuple(Singleton() if out in new else InputAxis(next(rest)) for out in range(ndim))
    )


def broadcast_to(in_shape: Shape, out_shape: Shape) -> DimMap:
    """Return the map that repeats axes of length 1 and adds leading ones, as NumPy broadcasts."""
    new = len(out_shape) - len(in_shape)
    sources: list[AxisSource] = [Broadcast(size) for size in out_shape[: max(new, 0)]]
    for axis, size in enumerate(in_shape):
        wanted = out_shape[new + axis] if new >= 0 else -1
        if size == wanted:
            sources.append(InputAxis(axis))
        elif size == 1 and wanted >= 0:
            sources.append(Broadcast(wanted, axis))
        else:
            raise ShapeError(
                f"shape {in_shape} cannot be broadcast to {out_shape}: counted from the last axis, "
                "every length must agree or be 1"
            )
    return DimMap(in_shape, tuple(sources))


def reshape(in_shape: Shape, out_shape: Sequence[int]) -> DimMap:
    """Return the map of a row-major reshape, in the smallest groups of axes that it takes.

    Parameters
    ----------
    in_shape : tuple of int
    out_shape : sequence of int
        One entry may be -1: it is found from the others.

    Raises
    ------
    ShapeError
        If the two shapes hold different numbers of elements.
    """
    wanted = _resolve_shape(in_shape, out_shape)
    if in_shape == wanted:
        return DimMap(in_shape, tuple(map(InputAxis, range(len(in_shape)))))
    if 0 in in_shape:
        everything = Flatten(tuple(range(len(in_shape))))
        return DimMap(in_shape, tuple(Split(everything, wanted, k) for k in range(len(wanted))))
    sources: list[AxisSource] = [Singleton()] * len(wanted)
    ins = [axis for axis, size in enumerate(in_shape) if size != 1]
    outs = [axis for axis, size in enumerate(wanted) if size != 1]
    while ins:
        first_in, first_out = [ins.pop(0)], [outs.pop(0)]
        size_in, size_out = in_shape[first_in[0]], wanted[first_out[0]]
        while size_in != size_out:
            if size_in < size_out:
                first_in.append(ins.pop(0))
                size_in *= in_shape[first_in[-1]]
            else:
                first_out.append(outs.pop(0))
                size_out *= wanted[first_out[-1]]
        source = InputAxis(first_in[0]) if len(first_in) == 1 else Flatten(tuple(first_in))
        if len(first_out) == 1:
            sources[first_out[0]] = source
            continue
        pieces = tuple(wanted[out] for out in first_out)
        for part, out in enumerate(first_out):
            sources[out] = Split(source, pieces, part)
    return DimMap(in_shape, tuple(sources))


def _resolve_shape(in_shape: Shape, out_shape: Sequence[int]) -> Shape:
    """Return the shape that a reshape asks for, with -1 replaced by what is left."""
    try:
        wanted = [operator.index(size) for size in out_shape]
    except TypeError:
        raise ArgumentTypeError(f"shape {out_shape!r}: must be a sequence of integers") from None
    total, free = prod(in_shape), [i for i, size in enumerate(wanted) if size == -1]
    known = prod(size for size in wanted if size != -1)
    if len(free) == 1 and known > 0 and total % known == 0:
        wanted[free[0]] = total // known
    if len(free) > 1 or any(size < 0 for size in wanted) or prod(wanted) != total:
        raise ShapeError(
            f"shape {in_shape} cannot become {tuple(out_shape)}: the number of elements, {total}, "
            "must stay, and at most one length may be -1"
        )
    return tuple(wanted)
