"""Sorts of one block, and merges of the sorted runs that other ranks have sent.

Items that compare as equal have the same bits, but for zeros and NaNs of floating point numbers,
complex numbers and structures. Where they have, every sort is stable, and the fastest serves:
`np.sort` with its vector instructions for numbers, the same on key words for dates and short text,
which NumPy compares one by one, and radix sort, "stable", for single bytes. Floating point numbers
are sorted likewise, and zeros and NaNs, whose signs and payloads the vector instructions do not
keep, are put back in their first order.

Positions are sorted beside their items by packing key and position into one word of 64 bits, which
makes every sort of them stable, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import numpy as np

from distarray.comm import _memory
from distarray.comm import merge_runs as merge_two
from distarray.ops.sorting._keys import KeyWords, longest
from distarray.typing import Buffer

_NUMPY_ITEMS: Final = 2048
"""Items of a line that NumPy sorts before the passes that prepare something faster are done."""

_SHORTEST: Final = 16
"""Of many lines of floats, up to which NumPy's stable sort takes as long as its quickest."""

_MOST_WORDS: Final = 4
"""Of a text, each sorted in a pass of its own; for more NumPy's own sort is about as fast."""

_MERGED: Final = ("i4", "u4", "i8", "u8", "f4", "f8")
"""Of which two runs are merged faster than sorted."""

_PIECE: Final = 1 << 15
"""Items whose bits are exchanged while they are in a core's cache."""

_MOST_MERGED: Final = 8
"""Runs that are merged in pairs, three times: for more, one vectorised sort is about as fast."""


def sort_block(block: Buffer, *, stable: bool = True, descending: bool = False) -> Buffer:
    """Return a copy of a block, sorted along its last axis.

    Parameters
    ----------
    block : array
        Of a dtype that `KeyWords` takes, in native byte order.
    stable : bool
        Zeros of both signs, NaNs and whatever else compares as equal stay in order. If not, they
        come as NumPy's fastest sort leaves them, which keeps no sign of a zero and no payload.
    descending : bool
        Equal items stay in order, and NaN comes first.

    Examples
    --------
    >>> import numpy as np
    >>> sort_block(np.array([2.0, np.nan, 0.0, -0.0, -1.0]))
    array([-1.,  0., -0.,  2., nan])
    """
    result = _sorted(block[..., ::-1] if descending else block, stable)
    return np.ascontiguousarray(result[..., ::-1] if descending else result)


def argsort_block(block: Buffer, *, descending: bool = False) -> Buffer:
    """Return the positions of the items in sorted order, int64; equal ones stay in order.

    Parameters are those of `sort_block`.
    """
    order = _order(block[..., ::-1] if descending else block)
    if descending:
        order = (block.shape[-1] - 1 - order)[..., ::-1]
    return np.ascontiguousarray(order)


def merge_runs(
    runs: Buffer, offsets: Any, words: Buffer | None = None, *, stable: bool = True
) -> tuple[Buffer, Buffer | None]:
    """Return the items of sorted runs, which lie one after the other, in one order.

    Parameters
    ----------
    runs : array
        1-d; may be changed.
    offsets : sequence of int
        Where each run begins, and where the last one ends; runs may be empty.
    words : array, optional
        int64 that travel with the items; may be changed.
    stable : bool
        Of equal items those of the first runs come first. With words they do always.
    """
    count = np.count_nonzero(np.diff(offsets))
    if count < 2:
        return runs, words
    dtype = runs.dtype
    if count > _MOST_MERGED or len(runs) < _NUMPY_ITEMS or dtype.str[1:] not in _MERGED:
        if words is None:
            return _sorted(runs, stable), None
        order = _order(runs)
        return runs[order], words[order]
    cuts = np.unique(offsets).tolist()
    spare = _memory.empty(runs.shape, dtype)
    spare_words = None if words is None else _memory.empty(words.shape, words.dtype)
    while len(cuts) > 2:
        pairs = cuts[::2] if len(cuts) % 2 else [*cuts[::2], cuts[-1]]
        for start, stop in pairwise(pairs):
            middle = next(cut for cut in cuts if cut > start)
            a, b = slice(start, middle), slice(middle, stop)
            both = slice(start, stop)
            if words is None or spare_words is None:
                merge_two(runs[a], runs[b], spare[both])
            else:
                carried = words[a], words[b], spare_words[both]
                merge_two(runs[a], runs[b], spare[both], carried)
        runs, spare, cuts = spare, runs, pairs
        words, spare_words = spare_words, words
    return runs, words


def merge_order(runs: Buffer, offsets: Any) -> Buffer:
    """Return the order in which `merge_runs` takes the items, int64; for what travels with them."""
    if np.count_nonzero(np.diff(offsets)) < 2:
        return np.arange(len(runs), dtype=np.int64)
    return _order(runs)


# --- items, along the last axis ------------------------------------------------------------------


def _sorted(lines: Buffer, stable: bool) -> Buffer:
    dtype = lines.dtype
    kind = dtype.kind
    if lines.shape[-1] < _NUMPY_ITEMS or dtype.names is not None:
        few = lines.copy()
        many = few.size >= _NUMPY_ITEMS and few.shape[-1] >= _SHORTEST
        quick = not stable or kind in "iu" or (kind == "f" and many)
        few.sort(kind=None if quick and not _is_byte(dtype) else "stable")
        if stable and quick and kind == "f":
            _sort_again(_as_lines(few), _as_lines(lines))
        return few
    if kind in "mMSUV":
        keys = _keys_of(lines)
        if len(keys.bits) == 1:
            words = keys.encode(lines)
            words[..., 0].sort()
            return keys.decode(words)
    if kind in "SUV" or dtype.char == "g" or (kind == "c" and stable):
        return np.take_along_axis(lines, _order(lines), -1)
    result = _memory.empty(lines.shape, dtype)
    result[...] = lines
    if dtype.char == "e":
        _sort_halves(result)
    else:
        result.sort(kind="stable" if _is_byte(dtype) else None)
    if stable and kind == "f":
        for line, source in zip(_as_lines(result), _as_lines(lines), strict=True):
            _restore(line, source)
    return result


def _sort_halves(lines: Buffer) -> None:
    """Sort lines of half precision, contiguous, as the integers that have their order.

    It takes a quarter of the time; and NumPy 2.4 leaves some items out of order on processors with
    AVX-512, in lines of several thousand: of 50,000 small integers one or two, also without NaN.
    """
    words = lines.view(np.int16)
    _exchange_order(words.reshape(-1))
    words.sort()
    least = np.int16(~0x7C00)  # of minus infinity: below are NaNs of that sign, which come last
    each = _as_lines(words)
    for place in np.flatnonzero((each[:, :1] < least).any(axis=1)):
        line = each[place]
        line[...] = np.roll(line, -np.searchsorted(line, least))
    _exchange_order(words.reshape(-1))


def _exchange_order(words: Buffer) -> None:
    """Make bits of numbers of half precision integers of their order, and these bits again."""
    for start in range(0, len(words), _PIECE):
        part = words[start : start + _PIECE]
        part ^= (part >> 15) & 0x7FFF


def _sort_again(lines: Buffer, sources: Buffer) -> None:
    """Sort lines of several zeros, or with NaN, such that their bits are in order as well."""
    chosen = (np.count_nonzero(lines == 0, axis=-1) > 1) | np.isnan(lines[:, -1])
    if chosen.any():
        some = sources[chosen]
        some.sort(kind="stable")
        lines[chosen] = some


def _restore(line: Buffer, source: Buffer) -> None:
    """Put zeros and NaNs of a sorted line back in the order, and with the bits, of its source."""
    zero = line.dtype.type(0)
    start, stop = np.searchsorted(line, zero, "left"), np.searchsorted(line, zero, "right")
    if stop - start > 1:
        line[start:stop] = source[source == 0]
    if np.isnan(line[-1]):
        nans = source[np.isnan(source)]
        line[len(line) - len(nans) :] = nans


def _is_byte(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biu" and dtype.itemsize == 1


def _keys_of(lines: Buffer) -> KeyWords:
    return KeyWords(lines.dtype, longest(lines) if lines.dtype.kind in "SU" else None)


def _as_lines(lines: Buffer) -> Buffer:
    """Return an array whose items are the lines, as a view where it can be one."""
    return lines.reshape(-1, lines.shape[-1]) if lines.size else lines[:0].reshape(0, 0)


# --- positions, along the last axis --------------------------------------------------------------


def _order(lines: Buffer) -> Buffer:
    dtype = lines.dtype
    small = dtype.kind in "biu" and dtype.itemsize <= 2  # which NumPy sorts by radix
    keys = None
    if lines.size and lines.shape[-1] >= _NUMPY_ITEMS and not small:
        keys = _keys_of(lines)
    if keys is None and dtype.names and all(dtype[name] == np.uint64 for name in dtype.names):
        return np.lexsort([lines[name] for name in reversed(dtype.names)], axis=-1)
    if keys is None or (len(keys.bits) > _MOST_WORDS and dtype.names is None):
        return lines.argsort(axis=-1, kind="stable").astype(np.int64, copy=False)
    orders = [_order_of_words(keys.encode(line)) for line in _as_lines(lines)]
    return (orders[0] if len(orders) == 1 else np.stack(orders)).reshape(lines.shape)


def _order_of_words(words: Buffer) -> Buffer:
    """Return the stable order of 1-d keys: word by word, the least significant first."""
    order = None
    for place in range(words.shape[-1] - 1, -1, -1):
        column = words[:, place]
        if order is None:
            if column.min() != column.max():
                order = _order_of_word(column)
            continue
        word = column[order]
        if word.min() == word.max():
            continue
        step = _order_of_word(word, functools.partial(_taken, column, order))
        for start in range(0, len(step), _PIECE):  # in place
            step[start : start + _PIECE] = order[step[start : start + _PIECE]]
        order = step
    return np.arange(len(words)) if order is None else order


def _taken(column: Buffer, order: Buffer, among: Buffer) -> Buffer:
    taken: Buffer = column[order[among]]
    return taken


def _order_of_word(word: Buffer, again: Callable[[Buffer], Buffer] | None = None) -> Buffer:
    """Return the stable order of words by sorting them with their positions in the lowest bits.

    Where both do not fit, the lowest bits of the words are left out at first, and what is equal
    without them is sorted again. Words that `again` returns, for some positions, are overwritten.
    """
    low = word.min()
    position_bits = (len(word) - 1).bit_length()
    lost = max(0, int(word.max() - low).bit_length() + position_bits - 64)
    packed = np.subtract(word, low, out=None if again is None else word)
    if lost:  # bits that are 0 in whole numbers and in others of few digits
        is_exact = not int(np.bitwise_or.reduce(packed)) & ((1 << lost) - 1)
    packed >>= np.uint64(lost)
    packed <<= np.uint64(position_bits)
    places = np.arange(len(word), dtype=np.uint64)
    packed |= places
    packed.sort()
    order = np.bitwise_and(packed, np.uint64((1 << position_bits) - 1), out=places).view(np.int64)
    if lost and not is_exact:
        packed >>= np.uint64(position_bits)
        same = packed[1:] == packed[:-1]
        del packed
        if same.any():
            open_ = np.zeros(len(word), bool)
            open_[1:] = same
            open_[:-1] |= same
            among = order[open_]
            some = word[among] if again is None else again(among)
            order[open_] = among[np.argsort(some, kind="stable")]
    return order
