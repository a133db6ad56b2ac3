"""Streams of random numbers, one for each item of a block, for samplers that need several.

An item's stream is that of its global linear index under a call: turn ``t`` of it is what
`fill_floats` gives the item as attempt ``t`` (see `_formulas`). So no streams overlap, and what an
item becomes depends on no other item: not on the block it lies in, and not on how often its
neighbours are refused. Samplers are functions ``sampler(items, *parameters)`` that give one float64
for each item; parameters are numbers, or arrays with one for each item. They work with as many
items at a time as stay in the cache: the first turn of all comes from the kernels, further ones,
of the few that are left, from the same formulas. Memory besides the block: about 100 bytes for each
of these, and for parameters that are arrays 8 bytes an item.

Measured on one core, beside NumPy's generator: gamma and beta variates 1 to 1.5 times its time,
Poisson and binomial ones 0.3 times where the mean is below 10 and 1.4 to 1.7 times above, von Mises
ones 1.5, hypergeometric ones 6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from distarray.comm import _backend, _memory
from distarray.errors import ArgumentError
from distarray.random._blocks import (
    Geometry,
    Key,
    Words,
    draw,
    fill,
    fill_floats,
    geometry_of,
    indices_of,
    turned,
    words_of,
)
from distarray.typing import Box, Shape

Sampler = Callable[..., Any]
Fill = Callable[..., None]
"""``fill(out, key, call, shape, box, *parameters)``; parameters are numbers, or of the box."""

PIECE: Final = 1 << 16
"""Items at a time: with 16,384 a Poisson number takes twice as long, as each step is a call, and
with 2**18, whose temporary arrays take 40 MiB, four fifths."""
_TURN_BITS: Final = 12
"""Bits of a turn below its part: 16 parts of 4096 turns. A sampler that refuses half of what it
proposes, two turns each, needs more than that with a probability of 2**-2048."""


class Items:
    """Some items of a block, and the numbers of their streams.

    Parameters
    ----------
    words, geometry
        As of `words_of` and `geometry_of`.
    first, size
        Which of the box's items these are, in C order.
    index : ndarray, optional
        Their global linear indices, where they are no stretch of the box.
    """

    def __init__(
        self,
        words: Words,
        geometry: Geometry,
        first: int,
        size: int,
        index: np.ndarray | None = None,
    ) -> None:
        self._words, self._geometry, self._first = words, geometry, first
        self._index, self.size = index, size

    def uniform(self, turn: int) -> np.ndarray:
        """Return numbers in [0, 1), in steps of 2**-53."""
        return self._numbers("uniform", turn)

    def bits(self, turn: int) -> np.ndarray:
        """Return 64 random bits of each, as uint64."""
        return self._numbers("integer", turn)

    def normal(self, turn: int) -> np.ndarray:
        """Return standard normal numbers."""
        return self._numbers("normal", turn)

    def exponential(self, turn: int) -> np.ndarray:
        """Return standard exponential numbers."""
        return self._numbers("exponential", turn)

    def part(self, number: int) -> Items:
        """Return the same items with other turns, for another variate of each."""
        words = turned(self._words, number << _TURN_BITS)
        return Items(words, self._geometry, self._first, self.size, self._index)

    def take(self, places: np.ndarray) -> Items:
        """Return some of the items: by their places, or by a mask."""
        if self._index is None:
            if places.dtype == np.bool_:
                places = np.flatnonzero(places)
            index = indices_of(self._geometry, self._first + places)
        else:
            index = self._index[places]
        return Items(self._words, self._geometry, 0, index.size, index)

    def _numbers(self, kind: str, turn: int) -> np.ndarray:
        words = turned(self._words, turn)
        if self._index is not None:
            return draw(kind, self._index, words)
        out = np.empty(self.size, np.uint64 if kind == "integer" else np.float64)
        fill(out, kind, words, self._geometry, first=self._first)
        return out


# --- samplers of samplers ------------------------------------------------------------------------


def has_axes(parameter: Any) -> bool:
    """Tell whether a parameter is an array, not a number; `np.ndim` takes ten times as long."""
    return getattr(parameter, "ndim", 0) > 0


def pick(parameters: Sequence[Any], places: Any) -> list[Any]:
    """Return the parameters of some items."""
    return [one[places] if has_axes(one) else one for one in parameters]


def choose(items: Items, condition: Any, yes: Sampler, no: Sampler, *parameters: Any) -> Any:
    """Return what one sampler gives where a condition holds, and another one elsewhere."""
    if not has_axes(condition):
        return (yes if condition else no)(items, *parameters)
    if condition.all():
        return yes(items, *parameters)
    if not condition.any():
        return no(items, *parameters)
    out = np.empty(items.size)
    for where, sampler in ((condition, yes), (~condition, no)):
        out[where] = sampler(items.take(where), *pick(parameters, where))
    return out


def reject(items: Items, propose: Callable[..., tuple[Any, Any]], *parameters: Any) -> Any:
    """Return for each item the first value that is accepted.

    ``propose(items, turn, *parameters)`` gives values, and which of them are accepted; it has two
    turns.

    Raises
    ------
    ArgumentError
        If none is accepted in all turns: the parameters are none that it can have.
    """
    out, accepted = propose(items, 0, *parameters)
    left = again = np.flatnonzero(~accepted)
    turn = 0
    while left.size:
        items, parameters = items.take(again), tuple(pick(parameters, again))
        turn += 2
        if turn >> _TURN_BITS:
            raise ArgumentError(f"no number is accepted for the parameters {parameters}")
        out[left], accepted = propose(items, turn, *parameters)
        again = np.flatnonzero(~accepted)
        left = left[again]
    return out


# --- blocks --------------------------------------------------------------------------------------


def by_formula(kind: str, formula: Callable[..., Any]) -> Fill:
    """Return what fills blocks with what a formula makes of numbers of a kind and parameters."""

    def fill_block(out: Any, key: Key, call: int, shape: Shape, box: Box, *parameters: Any) -> None:
        same = out.dtype == np.float64
        numbers = out if same else _memory.empty(out.shape, np.float64, _backend.device_of(out))
        fill_floats(numbers, kind, key, call, shape, box)
        parameters = tuple(
            [_backend.asarray(p, _backend.device_of(out)) if has_axes(p) else p for p in parameters]
        )
        flat, given = out.reshape(-1), numbers.reshape(-1)
        for part, those in _parts(flat.size, PIECE, parameters, out.ndim):
            flat[part] = formula(given[part], *those)

    return fill_block


def by_sampler(sampler: Sampler) -> Fill:
    """Return what fills blocks with what a sampler gives: of GPUs on the host."""

    def fill_block(out: Any, key: Key, call: int, shape: Shape, box: Box, *parameters: Any) -> None:
        words, geometry = words_of(key, call), geometry_of(shape, box)
        parameters = tuple([_backend.to_host(p) if has_axes(p) else p for p in parameters])
        host = out if _backend.is_numpy(out) else np.empty(out.shape, out.dtype)
        flat = host.reshape(-1)
        with np.errstate(all="ignore"):  # what is not accepted, and what is not chosen
            for part, those in _parts(flat.size, PIECE, parameters, out.ndim):
                items = Items(words, geometry, part.start, part.stop - part.start)
                flat[part] = sampler(items, *those)
        if host is not out:
            out.set(host)

    return fill_block


def by_rows(sampler: Sampler) -> Fill:
    """Return what fills blocks whose last axis a sampler gives together: of GPUs on the host.

    ``sampler(items, *parameters)`` gives rows by columns for the items of whole rows, in C order;
    parameters have the shape of the box but for its last axis, or that axis as well. A process
    that has a part of the rows makes all of each.
    """

    def fill_block(out: Any, key: Key, call: int, shape: Shape, box: Box, *parameters: Any) -> None:
        if not out.size:
            return
        width, columns = shape[-1], slice(*box[-1])
        words, geometry = words_of(key, call), geometry_of(shape, (*box[:-1], (0, width)))
        host = out if _backend.is_numpy(out) else np.empty(out.shape, out.dtype)
        rows = host.reshape(-1, out.shape[-1])
        at_a_time = max(1, PIECE // width)
        with np.errstate(all="ignore"):
            for part, those in _parts(len(rows), at_a_time, parameters, out.ndim - 1):
                count = part.stop - part.start
                items = Items(words, geometry, part.start * width, count * width)
                rows[part] = sampler(items, *those)[:, columns]
        if host is not out:
            out.set(host)

    return fill_block


def _parts(length: int, at_a_time: int, parameters: Sequence[Any], axes: int = 0) -> Any:
    """Yield stretches of items, or rows, and the parameters of each.

    The first `axes` of parameters that are arrays are those of the block.
    """
    those = [p.reshape(-1, *p.shape[axes:]) if has_axes(p) else p for p in parameters]
    for start in range(0, length, at_a_time):
        part = slice(start, min(start + at_a_time, length))
        yield part, pick(those, part)
