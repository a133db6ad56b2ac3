"""Key words: items of any dtype as unsigned integers whose order is that of `np.sort`.

An item becomes one or more words, the most significant first, and two items compare as their words
do. So any place of the order can be named, not only that of an item that exists: a search that
fixes some bits of a key at a time (`_multiselection`) turns its guesses back into items and lets
`np.searchsorted` count what lies before them.

Every combination of bits stands for an item, and a larger one never for a smaller item. Some
combinations would break this: NaNs that have a sign come before -inf by their bits, although
`np.sort` puts them last. They stand for the nearest item instead, -inf. What follows such words,
in a structure or a complex number, is then the least or the greatest that there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from distarray.errors import DTypeError
from distarray.typing import Buffer

_WORD = np.uint64
_WORD_BITS: Final = 64
_FULL: Final = _WORD((1 << _WORD_BITS) - 1)

_REGISTERED: Final = 2
"""`dtype.isbuiltin` of what another package registers, whose order NumPy asks that package for."""

_LONG_BITS: Final = {63: (16, 63), 112: (64, 64)}
"""Sign and exponent, then fraction, of a long double by the bits of its fraction: x87, IEEE quad
(whose first word has the upper 48 bits of the fraction, too). The integer bit of x87 is left out,
because it follows from the exponent."""


class KeyWords:
    """Keys of the items of one dtype.

    Parameters
    ----------
    dtype : dtype
        Booleans, numbers, dates, text, raw bytes and structures of them. Keys are of the native
        byte order.
    length : int, optional
        Characters (bytes) of the longest text, which `longest` tells: what comes after is not
        looked at. Default: those of the dtype. Fields of a structure have their whole length.

    Attributes
    ----------
    dtype : dtype
        In native byte order; of what `decode` returns.
    bits : tuple of int
        Bits of every word, at most 64; the least significant ones of a uint64.

    Raises
    ------
    DTypeError
        If items of the dtype are not compared by their bits: objects, strings of any length,
        dtypes that a package registers with NumPy, long doubles that are pairs of doubles.

    Examples
    --------
    >>> import numpy as np
    >>> keys = KeyWords(np.dtype(np.int8))
    >>> keys.bits
    (8,)
    >>> keys.encode(np.array([-128, -1, 0, 127], np.int8)).ravel()
    array([  0, 127, 128, 255], dtype=uint64)
    >>> keys.decode(np.array([[0], [255]], np.uint64))
    array([-128,  127], dtype=int8)
    """

    bits: tuple[int, ...]

    def __init__(self, dtype: Any, length: int | None = None) -> None:
        dtype = np.dtype(dtype)
        if dtype.kind not in "biufcmMSUV" or dtype.isbuiltin == _REGISTERED:
            raise DTypeError(
                f"items of {dtype} cannot be sorted across ranks: their order is not that of their "
                "bits; convert them to numbers, dates or text of a fixed length with astype first"
            )
        self.dtype = dtype = dtype.newbyteorder("=")
        self.length = 0
        self._nan_first = False
        self._fields: tuple[tuple[str, KeyWords], ...] = ()
        self._is_words = False
        kind = dtype.kind
        if kind == "V" and dtype.names is not None:
            fields = [(name, _field_dtype(dtype, name)) for name in dtype.names]
            self._fields = tuple((name, KeyWords(field)) for name, field in fields)
            for _, keys in self._fields:
                keys._nan_first = keys.dtype.char == "e"  # as NumPy compares fields, not arrays
            self.bits = tuple(bits for _, keys in self._fields for bits in keys.bits)
            self._is_words = dtype == np.dtype([(name, _WORD) for name, _ in fields])
        elif kind in "SUV":
            most = dtype.itemsize // (4 if kind == "U" else 1)
            self.length = most if length is None else min(length, most)
            self.bits = (_WORD_BITS,) * -(-self.length // _characters_per_word(dtype))
        elif kind == "c":
            part = _float_bits(_part_of(dtype))
            self.bits = (2, *part, *part)
        elif kind == "f":
            self.bits = _float_bits(dtype)
        else:
            self.bits = (1 if kind == "b" else 8 * dtype.itemsize,)

    def __repr__(self) -> str:
        return f"KeyWords({self.dtype!r}, {self.length})"

    def encode(self, block: Buffer) -> Buffer:
        """Return the words of some items, uint64 of shape (*block.shape, words).

        Items that compare as equal have equal words: -0.0 and 0.0, and all NaNs (of a complex
        number: all that have the same finite part).
        """
        block = np.asarray(block, self.dtype)
        if self._fields:
            if self._is_words and block.flags.c_contiguous:
                return block.view(_WORD).reshape(*block.shape, len(self.bits))
            parts = [keys.encode(_field(block, name, keys)) for name, keys in self._fields]
            return np.concatenate(parts, axis=-1)
        kind = self.dtype.kind
        if kind in "SUV":
            return _text_words(block, self.length)
        if kind == "c":
            return _complex_words(block)
        if kind == "f":
            return _float_words(block, self._nan_first)
        return _integer_words(block)[..., None]

    def decode(self, words: Buffer) -> Buffer:
        """Return the items that some words stand for.

        Parameters
        ----------
        words : array of uint64
            Of shape (..., words); any, as long as each has no more than its `bits`.

        Returns
        -------
        array
            Of `dtype` and of the shape (...); ascending where the words are.
        """
        words = np.asarray(words, _WORD)
        if self._fields:
            out = np.zeros(words.shape[:-1], self.dtype)
            for name, keys in self._fields:
                size = len(keys.bits)
                items = keys.decode(words[..., :size])
                words = _following(words, keys.encode(items), size)
                raw = items.view(out.dtype[name].base)
                out[name] = raw.reshape(out[name].shape)
            return out
        kind = self.dtype.kind
        if kind in "SUV":
            return _text(words, self.dtype)
        if kind == "c":
            return _complex_items(words, self.dtype)
        if kind == "f":
            return _floats(words, self.dtype, self._nan_first)
        return _integers(words[..., 0], self.dtype)


def longest(block: Buffer) -> int:
    """Return how many characters the longest text of a block has; 0 where it has no text.

    Ranks that agree on the largest of these need no words for what is empty in all of them.
    """
    kind = block.dtype.kind
    if kind not in "SU" or not block.size:
        return 0
    return int(np.strings.str_len(block).max())


# --- integers, booleans, dates -------------------------------------------------------------------


def _integer_words(block: Buffer) -> Buffer:
    dtype = block.dtype
    if dtype.kind in "bu":
        return block.astype(_WORD)
    words = block.view(f"u{dtype.itemsize}")
    words = words ^ words.dtype.type(1 << 8 * dtype.itemsize - 1)
    if dtype.kind in "Mm":
        words -= _WORD(1)  # NaT, the least integer, comes last
    return words.astype(_WORD, copy=False)


def _integers(words: Buffer, dtype: np.dtype[Any]) -> Buffer:
    if dtype.kind in "bu":
        return words.astype(dtype)
    if dtype.kind in "Mm":
        words = words + _WORD(1)
    words = words ^ _WORD(1 << 8 * dtype.itemsize - 1)
    return words.astype(f"u{dtype.itemsize}").view(dtype)


# --- floating point ------------------------------------------------------------------------------


def _float_bits(dtype: np.dtype[Any]) -> tuple[int, ...]:
    if dtype.itemsize <= 8:
        return (8 * dtype.itemsize,)
    bits = _LONG_BITS.get(int(np.finfo(dtype).nmant))
    if bits is None:
        raise DTypeError(
            f"items of {dtype} cannot be sorted across ranks, because a long double of this "
            "machine is a pair of doubles; convert them with astype(float) first"
        )
    return bits


def _float_words(block: Buffer, nan_first: bool = False) -> Buffer:
    """Return words that are the bits, inverted for negative numbers; zeros and NaNs are alike."""
    bits = _float_bits(block.dtype)
    with np.errstate(all="ignore"):  # signalling NaNs
        words = _raw_words(block + block.dtype.type(0), bits)  # of a copy: -0.0 is 0.0
    _invert(words, bits, _leading_bit(words, bits))
    nan = np.isnan(block)
    for place, size in enumerate(bits):
        np.copyto(words[..., place], _WORD(0 if nan_first else (1 << size) - 1), where=nan)
    return words


def _floats(words: Buffer, dtype: np.dtype[Any], nan_first: bool = False) -> Buffer:
    bits = _float_bits(dtype)
    low, high = _ends(dtype)
    words = _clamped(words, None, high) if nan_first else _clamped(words, low, None)
    _invert(words, bits, ~_leading_bit(words, bits))
    return _from_raw_words(words, dtype)


def _leading_bit(words: Buffer, bits: Sequence[int]) -> Buffer:
    leads: Buffer = words[..., 0] >= _WORD(1 << bits[0] - 1)
    return leads


def _invert(words: Buffer, bits: Sequence[int], negative: Buffer) -> None:
    """Invert all bits of negative numbers, and the sign alone of others."""
    for place, size in enumerate(bits):
        rest = _WORD(0 if place else 1 << size - 1)
        words[..., place] ^= np.where(negative, _WORD((1 << size) - 1), rest)


def _raw_words(block: Buffer, bits: Sequence[int]) -> Buffer:
    """Return the bits of floating point numbers as they lie, in words that may be their memory."""
    if len(bits) == 1:
        return block.view(f"u{block.dtype.itemsize}").astype(_WORD, copy=False)[..., None]
    raw = np.ascontiguousarray(block).reshape(-1).view(_WORD).reshape(*block.shape, 2)
    first, second = (1, 0) if np.little_endian else (0, 1)
    words = np.empty_like(raw)
    words[..., 0] = raw[..., first]
    words[..., 1] = raw[..., second]
    if bits == _LONG_BITS[63]:
        words &= np.array([0xFFFF, (1 << 63) - 1], _WORD)
    return words


def _from_raw_words(words: Buffer, dtype: np.dtype[Any]) -> Buffer:
    if words.shape[-1] == 1:
        return words[..., 0].astype(f"u{dtype.itemsize}").view(dtype)
    raw = np.empty_like(words)
    first, second = (1, 0) if np.little_endian else (0, 1)
    raw[..., first] = words[..., 0]
    raw[..., second] = words[..., 1]
    if np.finfo(dtype).nmant == 63:
        normal = (words[..., 0] & _WORD(0x7FFF)) != 0
        raw[..., second] |= normal.astype(_WORD) << _WORD(63)
    return raw.reshape(-1).view(dtype).reshape(words.shape[:-1])


def _ends(dtype: np.dtype[Any]) -> tuple[Buffer, Buffer]:
    """Return the words of -inf and of inf."""
    ends = _float_words(np.array([-np.inf, np.inf], dtype))
    return ends[0], ends[1]


def _clamped(words: Buffer, low: Buffer | None, high: Buffer | None) -> Buffer:
    """Return a copy of words, of which none is below `low` or above `high`."""
    words = words.copy()
    if low is not None:
        words[_precedes(words, low)] = low
    if high is not None:
        words[_precedes(high, words)] = high
    return words


def _precedes(words: Buffer, others: Buffer) -> Buffer:
    """Tell which words come before others."""
    below = words[..., -1] < others[..., -1]
    for place in range(words.shape[-1] - 2, -1, -1):
        word, other = words[..., place], others[..., place]
        below = (word < other) | ((word == other) & below)
    return below


def _following(words: Buffer, leading: Buffer, size: int) -> Buffer:
    """Return what comes after the first words, which stand for an item with the words `leading`.

    Where these are larger or smaller, so that other words stand for that item, too, it is the
    least or the greatest that there can be.
    """
    rest = words[..., size:].copy()
    rest[_precedes(words[..., :size], leading)] = 0
    rest[_precedes(leading, words[..., :size])] = _FULL
    return rest


# --- complex numbers: those without NaN, with it in the second part, the first, both -------------


def _part_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.empty(0, dtype).real.dtype


def _complex_words(block: Buffer) -> Buffer:
    real, imag = _float_words(block.real), _float_words(block.imag)
    kind = 2 * np.isnan(block.real) + np.isnan(block.imag).astype(_WORD)
    return np.concatenate([kind[..., None].astype(_WORD), real, imag], axis=-1)


def _complex_items(words: Buffer, dtype: np.dtype[Any]) -> Buffer:
    part = _part_of(dtype)
    size = len(_float_bits(part))
    low, high = _ends(part)
    kind, words = words[..., 0], words[..., 1:]
    real_is_nan, imag_is_nan = kind >= 2, (kind & _WORD(1)) != 0
    real = _clamped(words[..., :size], low, high)
    real[real_is_nan] = _FULL
    out = np.empty(kind.shape, dtype)
    out.real = _floats(real, part)
    imag = _following(words, _float_words(out.real), size)
    out.imag = _floats(_clamped(imag, low, high), part)
    out.imag[imag_is_nan] = np.nan
    return out


# --- text, raw bytes -----------------------------------------------------------------------------


def _characters_per_word(dtype: np.dtype[Any]) -> int:
    return 2 if dtype.kind == "U" else 8


def _text_words(block: Buffer, length: int) -> Buffer:
    """Return the first characters, as many as fill a word at a time."""
    per_word = _characters_per_word(block.dtype)
    size = 8 // per_word
    block = np.ascontiguousarray(block).reshape(block.shape)
    count = -(-length // per_word)
    characters = np.zeros((*block.shape, count * per_word), f">u{size}")
    if count and block.size:
        given = block.reshape(-1).view(f"u{size}").reshape(*block.shape, -1)
        characters[..., :length] = given[..., :length]
    return characters.view(">u8").astype(_WORD).reshape(*block.shape, count)


def _text(words: Buffer, dtype: np.dtype[Any]) -> Buffer:
    size = 8 // _characters_per_word(dtype)
    total = dtype.itemsize // size
    shape = words.shape[:-1]
    characters = np.zeros((*shape, total), f"u{size}")
    if words.shape[-1]:
        given = np.ascontiguousarray(words).astype(">u8").view(f">u{size}")
        count = min(total, given.shape[-1])
        characters[..., :count] = given[..., :count]
    if not dtype.itemsize:
        return np.zeros(shape, dtype)
    return characters.reshape(-1).view(dtype).reshape(shape)


# --- fields --------------------------------------------------------------------------------------


def _field_dtype(dtype: np.dtype[Any], name: str) -> np.dtype[Any]:
    """Return the dtype that a field is compared as: an array within an item by its raw bytes."""
    field = dtype[name]
    return np.dtype((np.void, field.itemsize)) if field.subdtype is not None else field


def _field(block: Buffer, name: str, keys: KeyWords) -> Buffer:
    part = block[name]
    if part.shape == block.shape:
        return part
    return np.ascontiguousarray(part).reshape(-1).view(keys.dtype).reshape(block.shape)
