"""Keys of generators: 128 bits from a seed of any size.

A seed is spelled as bytes that no other seed shares: each integer as its length in bytes and its
bytes, lowest first, then the path of ``spawn`` in the same way. BLAKE2b (RFC 7693), personalised
for this use, mixes them into 16 bytes, so that similar seeds have unrelated keys.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from distarray.errors import ArgumentError, ArgumentTypeError


def normalize_seed(seed: Any) -> tuple[int, ...] | None:
    """Return a seed as integers, None for None."""
    if seed is None:
        return None
    try:
        whole = (
            tuple(map(operator.index, seed))
            if isinstance(seed, Iterable)
            else (operator.index(seed),)
        )
    except TypeError:
        raise ArgumentTypeError(
            f"seed={seed!r} is not an integer, a sequence of integers or None; pass e.g. "
            "default_rng(42)"
        ) from None
    if not whole or min(whole) < 0:
        raise ArgumentError(
            f"seed={seed!r} must be one or more integers, each 0 or more; use abs() or a hash"
        )
    return whole


def derive_key(entropy: Sequence[int], path: Sequence[int] = ()) -> tuple[int, int]:
    """Return the two words of 64 bits that key the generator.

    Parameters
    ----------
    entropy
        Of the seed: integers of any size, 0 or more.
    path
        Which child of which child this is.
    """
    import hashlib

    spelled = b"".join(map(_spell, (len(entropy), *entropy, *path)))
    digest = hashlib.blake2b(spelled, digest_size=16, person=b"distarray.random").digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def _spell(number: int) -> bytes:
    length = (number.bit_length() + 7) // 8
    return length.to_bytes(8, "little") + number.to_bytes(length, "little")
