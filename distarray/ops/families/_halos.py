"""Halos of blocks: how wide they are, what lies in them past the ends of the array, who has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from distarray.core import PLAIN_SCALARS, cache, describe, plain_buffer, remember
from distarray.errors import ArgumentError, ArgumentTypeError
from distarray.layout import Layout, kept, normalize_axis
from distarray.ops.families._neighbours import Reach, Surroundings, own_block, surround
from distarray.ops.families._windows import WHOLE, Exchange, Pair

BOUNDARIES = {
    "periodic": "wrap",
    **{mode: mode for mode in ("wrap", "reflect", "symmetric", "edge", "constant")},
}
"""Names of what lies past the ends of an axis, and those that `numpy.pad` has for them."""


class HaloSpec(NamedTuple):
    """What surrounds each block of an array: the same on all processes.

    Attributes
    ----------
    widths
        Before and after the block, along each axis.
    modes
        Of each axis, as in `numpy.pad`; with None there is nothing past the ends of the array.
    constants
        What "constant" puts there, before and after, along each axis.
    """

    widths: tuple[tuple[int, int], ...]
    modes: tuple[str | None, ...]
    constants: tuple[tuple[Any, Any], ...]


class HaloPlan(NamedTuple):
    """How this process's block of a layout gets its halo, and how that is renewed."""

    first: Surroundings
    edges: Exchange
    """As of `first`, without the block itself."""
    again: Surroundings
    interior: tuple[slice, ...]
    """Where the block lies in the surrounded one."""


def plan_halo(name: str, layout: Layout, spec: HaloSpec, dtype: Any) -> HaloPlan:
    """Return how this process's block gets its halo, for an operation and a dtype."""
    return _plan_halo(name, layout, spec.widths, spec.modes, dtype)


@kept(1024)
def _plan_halo(
    name: str,
    layout: Layout,
    widths: tuple[tuple[int, int], ...],
    modes: tuple[str | None, ...],
    dtype: Any,
) -> HaloPlan:
    reaches = {
        axis: (_reach(layout, axis, pair, mode), mode)
        for axis, (pair, mode) in enumerate(zip(widths, modes, strict=True))
        if any(pair)
    }
    interior = [slice(0, length) for length in layout.local_shape()]
    for axis, (reach, _) in reaches.items():
        index = own_block(layout, axis)
        start, stop = layout.partition(axis).bounds(index)
        low, _ = reach(index)
        interior[axis] = slice(start - low, stop - low)
    text = f"{name} of {dtype}: {widths} with {modes} around {layout!r}"
    first = surround(layout, reaches, text)
    again = surround(layout, reaches, f"{text}, again", inside=True)
    return HaloPlan(first, _edges(first.exchange, interior), again, tuple(interior))


def _edges(exchange: Exchange, interior: Sequence[slice]) -> Exchange:
    """Return an exchange without what puts the block itself into the surrounded one."""
    communicator = exchange.communicator

    def of_others(pairs: tuple[Pair, ...]) -> tuple[Pair, ...]:
        own = communicator.rank
        return tuple(pair for pair in pairs if pair.peer != own or not _is_at(pair, interior))

    receives, sends = of_others(exchange.receives), of_others(exchange.sends)
    return Exchange(communicator, receives, sends, exchange.what, exchange.source)


def _is_at(pair: Pair, interior: Sequence[slice]) -> bool:
    """Tell whether what a pair fills is the interior."""
    key = pair.target.key
    return key == (...,) or all(
        one in (WHOLE, other) for one, other in zip(key, interior, strict=True)
    )


def _reach(layout: Layout, axis: int, widths: tuple[int, int], mode: str | None) -> Reach:
    partition, size = layout.partition(axis), layout.shape[axis]
    before, after = widths

    def reach(index: int) -> tuple[int, int]:
        start, stop = partition.bounds(index)
        if mode is None:
            return max(start - before, 0), min(stop + after, size)
        return start - before, stop + after

    return reach


# --- arguments -----------------------------------------------------------------------------------


def read_halo(name: str, width: Any, boundary: Any, layout: Layout, dtype: Any) -> HaloSpec:
    """Return the halo that arguments of users ask for, which are read once.

    Raises
    ------
    ArgumentError
        If a width is negative, there is no such boundary, a constant is none of the dtype, or an
        axis without items would be extended by them.
    ArgumentTypeError
        If a width is no integer.
    """
    key = name, repr(width), repr(boundary), layout, dtype
    found: HaloSpec | None = _read[key]
    if found is None:
        found = _read_halo(name, width, boundary, layout, dtype)
        remember(_read, key, found)
    return found


_read = cache()
"""Rims by arguments as they are written: 1 and 1.0 are equal, but no integers both."""


def _read_halo(name: str, width: Any, boundary: Any, layout: Layout, dtype: Any) -> HaloSpec:
    widths = tuple(read_widths(name, "width", width, layout.ndim))
    modes: list[str | None] = []
    constants = []
    for one in _boundary_of_axes(name, boundary, layout.ndim):
        value = None
        if one is None or (isinstance(one, str) and one in BOUNDARIES):
            mode = None if one is None else BOUNDARIES[one]
            value = np.zeros((), dtype)[()] if mode == "constant" else None
        elif isinstance(one, (*PLAIN_SCALARS, np.generic)):
            mode, value = "constant", _constant(name, one, dtype)
        else:
            raise ArgumentError(
                f"{name} got boundary={describe(one)}; None, a number, or one of "
                f"{', '.join(map(repr, BOUNDARIES))}"
            )
        modes.append(mode)
        constants.append((value, value))
    for axis, (pair, found) in enumerate(zip(widths, modes, strict=True)):
        if not layout.shape[axis] and any(pair) and found not in (None, "constant"):
            raise ArgumentError(
                f"{name} with boundary={found!r} along axis {axis} of length 0: there are no items "
                "to extend it by; pass a number, or None"
            )
    return HaloSpec(widths, tuple(modes), tuple(constants))


def _boundary_of_axes(name: str, boundary: Any, ndim: int) -> list[Any]:
    """Return the boundary of each axis, of what is given once, by axis, or for each."""
    if isinstance(boundary, Mapping):
        each: list[Any] = [None] * ndim
        for axis, one in boundary.items():
            each[normalize_axis(axis, ndim)] = one
        return each
    if not isinstance(boundary, (list, tuple)):
        return [boundary] * ndim
    if len(boundary) != ndim:
        raise ArgumentError(
            f"{name} got {len(boundary)} boundaries for {ndim} axes; pass one for all, one for "
            "each axis, or a dict by axis"
        )
    return list(boundary)


def _constant(name: str, value: Any, dtype: Any) -> Any:
    """Return a number as an item of a dtype that can hold it; floats may be rounded."""
    fits = dtype.kind == "c" or not np.iscomplexobj(value)
    if fits:
        try:
            with np.errstate(all="ignore"):
                found = np.asarray(value).astype(dtype)[()]
            fits = dtype.kind in "fc" or bool(found == value)
        except (TypeError, ValueError, OverflowError):
            fits = False
    if not fits:
        raise ArgumentError(
            f"{name} got boundary={value!r}, which is no item of {dtype}; pass one that is, or "
            "convert the array with astype"
        )
    return found


def read_widths(name: str, argument: str, given: Any, ndim: int) -> list[tuple[int, int]]:
    """Return a pair for each axis, of what `numpy.pad` takes as its widths."""
    if isinstance(given, dict):
        spread = [(0, 0)] * ndim
        for axis, width in given.items():
            spread[normalize_axis(axis, ndim)] = width if isinstance(width, tuple) else (width,) * 2
        given = spread if ndim else 0
    return check_counts(name, argument, given, read_pairs(name, argument, given, ndim))


def check_counts(name: str, argument: str, given: Any, pairs: list[Any]) -> list[Any]:
    """Return pairs of integers, none negative, as they are; None may be among those of pad."""
    counts = [n for pair in pairs for n in pair if n is not None or argument != "stat_length"]
    if any(isinstance(n, bool) or not isinstance(n, int) for n in counts):
        raise ArgumentTypeError(f"{name} got {argument}={describe(given)}; these are integers")
    if min(counts, default=0) < 0:
        raise ArgumentError(f"{name} got {argument}={describe(given)}; these must be 0 or more")
    return pairs


_NUMBERS = frozenset((int, float))


def read_pairs(name: str, argument: str | None, given: Any, ndim: int) -> list[Any]:
    """Return a pair for each axis of what is given once, as a pair, or for each axis."""
    if given is None or given.__class__ in _NUMBERS:
        return [(given, given)] * ndim
    try:
        array = np.asarray(plain_buffer(given, name, objects=True))
        if array.ndim < 3 and array.size < 3 and array.shape != (2, 1):
            array = array.reshape(1, -1)
        return [tuple(pair) for pair in np.broadcast_to(array, (ndim, 2)).tolist()]
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"{name} got {argument}={describe(given)} for {ndim} axes: {error}; pass one value, a "
            "pair, or a pair for each axis"
        ) from None
