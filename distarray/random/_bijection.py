"""Keyed bijections of 0 ... n - 1, which find where one number goes without finding the others.

So each process finds its part of a permutation by itself: R. Mitchell, D. Stokes, E. Frank and G.
Holmes, "Bandwidth-optimal random shuffling for GPUs", ACM Trans. Parallel Comput. 9 (2022). A
Feistel network permutes the numbers of as many bits as n - 1 has: in turn one half of the bits is
changed by a function of a key and the other half. Four rounds are enough where the function is
random (M. Luby and C. Rackoff, SIAM J. Comput. 17 (1988)); here it is the finalizer of SplitMix64
(G. L. Steele, D. Lea and C. H. Flood, OOPSLA '14), in eight rounds with keys of their own. What
comes out at n or above goes in again until it is below (cycle walking: J. Black and P. Rogaway,
"Ciphers with arbitrary finite domains", CT-RSA 2002): at most twice on average. The authors of the
shuffle compact instead, for which processes would have to count together.

Short lines are sorted by random keys, so that each of their n! orders is as likely as the others,
but for keys that are equal: such networks reach few of them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from distarray.random._blocks import Words, draw, fill, geometry_of, turned
from distarray.random._streams import PIECE

ROUNDS: Final = 8
SHORT: Final = 4096
"""Items of lines that are sorted: every process sorts all of each, in 0.3 ms."""

_u64 = np.uint64
_M0, _M1 = _u64(0xBF58476D1CE4E5B9), _u64(0x94D049BB133111EB)
_S30, _S27, _S31 = _u64(30), _u64(27), _u64(31)


def permute(
    positions: np.ndarray, n: int, words: Words, line: np.ndarray, stride: int = 1
) -> np.ndarray:
    """Return where positions below `n` go, in lines that are permuted each by itself.

    Parameters
    ----------
    positions
        Of one axis, below `n`.
    words
        Of key and call, as of `words_of`.
    line
        The linear index of the first item of each line, uint64.
    stride
        Between the items of a line.

    Returns
    -------
    ndarray
        int64, lines by positions.
    """
    if n <= SHORT and stride == 1 and line.size == 1:  # a run: no index of one item after the other
        order, start = np.empty(n, np.uint64), int(line[0])
        fill(order, "integer", words, geometry_of((start + n,), ((start, start + n),)))
        return order.argsort(kind="stable")[positions.astype(np.int64)][None]
    out = np.empty((line.size, positions.size), np.int64)
    if n <= SHORT:
        which = positions.astype(np.int64)
        offsets = np.arange(n, dtype=np.uint64) * _u64(stride)
        for lines in range(0, line.size, at_a_time := max(1, PIECE // max(n, 1))):
            part = slice(lines, lines + at_a_time)
            order = draw("integer", line[part, None] + offsets, words)
            out[part] = np.argsort(order, axis=-1, kind="stable")[:, which]
        return out
    keys_of_rounds = [draw("integer", line, turned(words, i)) for i in range(ROUNDS)]
    for row in range(line.size):
        keys = [key[row] for key in keys_of_rounds]
        for start in range(0, positions.size, PIECE):
            part = slice(start, start + PIECE)
            out[row, part] = _walk(positions[part].astype(np.uint64), n, keys)
    return out


def _walk(x: np.ndarray, n: int, keys: list[Any]) -> np.ndarray:
    x = _feistel(x, (n - 1).bit_length(), keys)
    again = np.flatnonzero(x >= _u64(n))
    while again.size:
        x[again] = found = _feistel(x[again], (n - 1).bit_length(), keys)
        again = again[found >= _u64(n)]
    return x


def _feistel(x: np.ndarray, bits: int, keys: list[Any]) -> np.ndarray:
    """Permute numbers of so many bits."""
    low = bits // 2
    shift, low_mask, high_mask = _u64(low), _u64((1 << low) - 1), _u64((1 << (bits - low)) - 1)
    left, right = x >> shift, x & low_mask
    for i, key in enumerate(keys):
        if i % 2:
            right ^= _mix(left ^ key) & low_mask
        else:
            left ^= _mix(right ^ key) & high_mask
    return (left << shift) | right


def _mix(x: np.ndarray) -> np.ndarray:
    """Mix 64 bits, in place."""
    x ^= x >> _S30
    x *= _M0
    x ^= x >> _S27
    x *= _M1
    x ^= x >> _S31
    return x
