"""Numba kernels that choose, group and merge items; ``_grouping`` says when they serve.

Every argument is an int64: an address or a number of items. Items lie one after another.
"""

# ruff: noqa: ARG001 - Numba prescribes the parameters of an intrinsic

from __future__ import annotations

from typing import Any, Final

import numba
from numba import types
from numba.extending import intrinsic

from distarray.comm.kernels._intrinsics import fence, move, pointer_to, prefetch
from distarray.comm.kernels._jit import Source

# Only kernels call these: wrappers for the interpreter would be a tenth of compiling.
_inline = numba.njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)

_KINDS: Final = {
    f"{kind}{size}": getattr(types, f"{name}{8 * size}")
    for kind, name, sizes in (
        ("u", "uint", (1, 2, 4, 8)),
        ("i", "int", (1, 2, 4, 8)),
        ("f", "float", (4, 8)),
    )
    for size in sizes
}


_TYPES: Final = tuple(_KINDS.values())


@intrinsic(prefer_literal=True)
def _load(typing: Any, address: Any, kind: Any) -> Any:
    """Read an item of a kind (a literal: which of ``_TYPES``) at an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = pointer_to(builder, args[0], context.get_value_type(signature.return_type))
        return builder.load(pointer, align=1)

    if not isinstance(kind, types.Literal):
        return None
    return _TYPES[kind.literal_value](types.int64, kind), generate


@intrinsic(prefer_literal=True)
def _store(typing: Any, address: Any, kind: Any, value: Any) -> Any:
    """Write an item of a kind, as `_load` reads it, to an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = pointer_to(builder, args[0], context.get_value_type(signature.args[2]))
        builder.store(args[2], pointer, align=1)
        return context.get_dummy_value()

    if not isinstance(kind, types.Literal):
        return None
    return types.void(types.int64, kind, _TYPES[kind.literal_value]), generate


_CODES: Final = {kind: code for code, kind in enumerate(_KINDS)}
_BYTE: Final = _CODES["u1"]
_WORD: Final = _CODES["i8"]


@_inline
def _load_word(address: int) -> int:
    return _load(address, _WORD)  # type: ignore[no-any-return]


@_inline
def _store_word(address: int, value: int) -> None:
    _store(address, _WORD, value)


def compress(size: int) -> Source:
    """Return the kernel for one size of item: 1, 2, 4, 8 or 16 bytes."""

    def choose(dst: int, src: int, mask: int, n: int, count: int) -> None:
        """Copy the ``count`` items whose byte of the mask is not 0."""
        end = dst + count * size
        for i in range(n):
            if dst == end:
                return
            move(dst, src + i * size, size, 0)
            dst += size * (_load(mask + i, _BYTE) != 0)

    return Source(choose, f"void({', '.join(['int64'] * 5)})")


@_inline
def _truth(mask: int) -> int:
    """Return 1 where the byte at an address is not 0, in a way that compilers make no branch of.

    A branch that a random mask decides costs some ten cycles an item.
    """
    byte = types.int64(_load(mask, _BYTE))
    return (((byte & 127) + 127) | byte) >> 7


def expand(size: int) -> Source:
    """Return the kernel for one size of item: 1, 2, 4, 8 or 16 bytes."""
    word = min(size, 8)
    code = _CODES[f"u{word}"]
    kind = _TYPES[code]

    def write(dst: int, src: int, mask: int, n: int, count: int) -> None:
        """Write ``count`` items where the mask is not 0; what is not written is what was there."""
        end = src + count * size
        for i in range(n):
            if src == end:
                return
            chosen = _truth(mask + i)
            bits = types.uint64(-chosen)
            for part in range(0, size, word):
                place = dst + i * size + part
                old = types.uint64(_load(place, code))
                new = types.uint64(_load(src + part, code))
                _store(place, code, kind(old ^ ((old ^ new) & bits)))
            src += size * chosen

    return Source(write, f"void({', '.join(['int64'] * 5)})")


def expand_one(size: int) -> Source:
    """Return the kernel for one size of item: 1, 2, 4, 8 or 16 bytes."""
    word = min(size, 8)
    code = _CODES[f"u{word}"]
    kind = _TYPES[code]

    def write(dst: int, src: int, mask: int, n: int) -> None:
        """Write one item where the mask is not 0; what is not written is what was there."""
        for part in range(0, size, word):
            new = types.uint64(_load(src + part, code))
            for i in range(n):
                place = dst + i * size + part
                old = types.uint64(_load(place, code))
                bits = types.uint64(-_truth(mask + i))
                _store(place, code, kind(old ^ ((old ^ new) & bits)))

    return Source(write, f"void({', '.join(['int64'] * 4)})")


@intrinsic
def _words(typing: Any, address: Any) -> Any:
    """See memory as int64: loops that index such words compilers make wide instructions of."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return pointer_to(builder, args[0], context.get_value_type(types.int64))

    return types.CPointer(types.int64)(types.int64), generate


@_inline
def _write_addresses(
    table: int, numbers: int, first: int, n: int, last: int, base: int, stride: int
) -> None:
    """Write where rows of a block lie, of which row 0 would be at ``base``."""
    to, given = _words(table), _words(numbers + 8 * first)
    for k in range(n):
        number = given[k] if numbers else first + k
        to[k] = base + types.int64(min(types.uint64(number), types.uint64(last))) * stride


_FEW_BLOCKS: Final = 16
"""Up to so many blocks all rows are compared with the beginnings of all, by wide instructions.

Measured on Xeon (Emerald Rapids): 4 million rows of 8 bytes of 2 blocks take 50 ms instead of 90,
of 16 blocks 65 instead of 120, of 32 blocks 92 instead of 140. Other processors compare half as
many at once.
"""


@_inline
def _find_blocks(table: int, numbers: int, n: int, starts: int, count: int) -> None:
    """Write for each row the last of ``count`` blocks that begins at it or before it.

    Without branches: random rows would decide them. Negative numbers are of the last block.
    """
    to, given = _words(table), _words(numbers)
    bits = 0
    if count <= _FEW_BLOCKS:
        for k in range(n):
            to[k] = 0
        for block in range(1, count):
            start = types.uint64(_load_word(starts + 8 * block))
            for k in range(n):
                to[k] += types.uint64(given[k]) >= start
        return
    while count > 1 << bits:
        bits += 1
    for k in range(n):
        block = 0
        for bit in range(bits - 1, -1, -1):
            begin = types.uint64(_load_word(starts + 8 * min(block + (1 << bit), count - 1)))
            block += types.int64(begin <= types.uint64(given[k])) << bit
        to[k] = min(block, count - 1)


@_inline
def _find_rows(
    table: int, numbers: int, n: int, starts: int, blocks: int, count: int, own: int
) -> int:
    """Write where rows lie of several blocks; return how many are of the block ``own``.

    Where row 0 would be, and a stride, are known of each block.
    """
    to, given = _words(table), _words(numbers)
    last = types.uint64(_load_word(starts + 8 * count) - 1)
    found = 0
    # Numbers of no row are of the last block found, which has to have the last row.
    while count > 1 and _load_word(starts + 8 * (count - 1)) > types.int64(last):
        count -= 1
    _find_blocks(table, numbers, n, starts, count)
    for k in range(n):
        found += to[k] == own
    for k in range(n):
        block = blocks + 16 * to[k]
        number = types.int64(min(types.uint64(given[k]), last))
        to[k] = _load_word(block) + number * _load_word(block + 8)
    return found


def move_rows(width: int, exact: bool, streaming: int) -> Source:
    """Return the kernel for rows of ``width`` bytes, or of more where these are not ``exact``.

    Moves are of ``width`` bytes. With streaming 1, which wants whole lines, past the caches.
    """

    def move_each(
        dst: int, places: int, dst_rows: int,
        numbers: int, starts: int, blocks: int, count: int, own: int,
        n: int, run: int, ahead: int, tables: int,
    ) -> int:  # fmt: skip
        """Copy rows of ``run`` bytes from their numbers in some blocks to their places in another.

        Without addresses of numbers they lie one after another; those of no row become the last.
        So many rows ``ahead``, addresses are written to tables, four of so many words (of one if it
        is 0), and what lies there is asked for early: nothing else foretells it. The answer is how
        many rows were of the block ``own``.
        """
        most = max(ahead, 1)
        now, then = tables, tables + 16 * most
        found = m = first = 0
        while first < n or m:
            # of those after the m rows whose addresses are known
            more = min(most, n - first)
            if numbers:
                found += _find_rows(then, numbers + 8 * first, more, starts, blocks, count, own)
            else:
                _write_addresses(
                    then, 0, first, more, _load_word(starts + 8) - 1,
                    _load_word(blocks), _load_word(blocks + 8),
                )  # fmt: skip
            _write_addresses(then + 8 * most, places, first, more, dst_rows - 1, dst, run)
            for k in range(max(m, more)):
                if ahead and k < more:
                    for at in range(0, width if exact else run, 64):
                        if numbers:
                            prefetch(_load_word(then + 8 * k) + at, 0)
                        if places:
                            prefetch(_load_word(then + 8 * most + 8 * k) + at, 1)
                if k < m:
                    s, d = _load_word(now + 8 * k), _load_word(now + 8 * most + 8 * k)
                    if exact:
                        move(d, s, width, streaming)
                    else:
                        for at in range(0, run - width, width):
                            move(d + at, s + at, width, streaming)
                        move(d + run - width, s + run - width, width, streaming)
            now, then = then, now
            m = more
            first += more
        if streaming:
            fence()
        return found

    return Source(move_each, f"int64({', '.join(['int64'] * 12)})")


def count(kind: str) -> Source:
    """Return the kernel for one kind of integer, such as "u1"."""
    code, size = _CODES[kind], int(kind[1])

    def count_each(counts: int, numbers: int, n: int, ahead: int) -> None:
        """Count numbers, of which each has a word; what comes ``ahead`` is asked for early."""
        for k in range(n):
            prefetch(
                counts + 8 * types.int64(_load(numbers + size * min(k + ahead, n - 1), code)), 1
            )
            place = counts + 8 * types.int64(_load(numbers + size * k, code))
            _store_word(place, _load_word(place) + 1)

    return Source(count_each, f"void({', '.join(['int64'] * 4)})")


@_inline
def _begin(lengths: int, count: int) -> None:
    """Write where each of some groups begins in the place of its length."""
    start = 0
    for i in range(count):
        length = _load_word(lengths + 8 * i)
        _store_word(lengths + 8 * i, start)
        start += length


def group(size: int) -> Source:
    """Return the kernel for owners that are unsigned integers of so many bytes."""
    code = _CODES[f"u{size}"]

    def number_by_owner(owner: int, n: int, order: int, ends: int, groups: int) -> int:
        """Write the numbers of the items, group by group, and where each group ends.

        ``ends`` has ``groups`` zeros. Where an owner is no group nothing is written to ``order``,
        and the answer is 0.
        """
        for i in range(n):
            group = _load(owner + i * size, code)
            if group >= groups:
                return 0
            place = ends + 8 * types.int64(group)
            _store_word(place, _load_word(place) + 1)
        _begin(ends, groups)
        for i in range(n):
            place = ends + 8 * types.int64(_load(owner + i * size, code))
            at = _load_word(place)
            _store_word(order + 8 * at, i)
            _store_word(place, at + 1)
        return 1

    return Source(number_by_owner, f"int64({', '.join(['int64'] * 5)})")


def divide() -> Source:
    """Return the kernel."""

    def number_by_block(
        numbers: int, n: int, starts: int, count: int,
        order: int, own: int, ends: int, table: int, piece: int,
    ) -> None:  # fmt: skip
        """Write which rows each block has, block by block, their numbers there, and where it ends.

        ``ends`` has ``count`` zeros, ``table`` room for the words of a piece of the rows.
        """
        for first in range(0, n, piece):
            m = min(piece, n - first)
            _find_blocks(table, numbers + 8 * first, m, starts, count)
            for k in range(m):
                place = ends + 8 * _load_word(table + 8 * k)
                _store_word(place, _load_word(place) + 1)
        _begin(ends, count)
        for first in range(0, n, piece):
            m = min(piece, n - first)
            _find_blocks(table, numbers + 8 * first, m, starts, count)
            for k in range(m):
                block = _load_word(table + 8 * k)
                at = _load_word(ends + 8 * block)
                _store_word(ends + 8 * block, at + 1)
                _store_word(order + 8 * at, first + k)
                number = _load_word(numbers + 8 * (first + k))
                _store_word(own + 8 * at, number - _load_word(starts + 8 * block))

    return Source(number_by_block, f"void({', '.join(['int64'] * 9)})")


def merge(kind: str, carries: bool) -> Source:
    """Return the kernel for one kind of item, and whether words travel with the items."""
    code, size = _CODES[kind], int(kind[1])

    def merge_runs(
        dst: int, a: int, na: int, b: int, nb: int, dst_words: int, a_words: int, b_words: int
    ) -> None:
        """Merge two sorted runs: both halves of the result, each from both its ends.

        So four items are on their way at once, of which none waits for another.
        """
        a_end, b_end = na, nb
        while na and _load(a + (na - 1) * size, code) != _load(a + (na - 1) * size, code):
            na -= 1  # NaN comes last; without it one comparison tells which item is first
        while nb and _load(b + (nb - 1) * size, code) != _load(b + (nb - 1) * size, code):
            nb -= 1
        half = (na + nb) // 2
        cut, most = max(0, half - nb), min(half, na)
        while cut < most:  # how many of a are in the first half
            middle = (cut + most) // 2
            if _load(b + (half - middle - 1) * size, code) < _load(a + middle * size, code):
                most = middle
            else:
                cut = middle + 1
        # From i to p of a and from j to q of b go to k to z, in the first half and the second.
        i, p, j, q, k, z = 0, cut - 1, 0, half - cut - 1, 0, half - 1
        i2, p2, j2, q2, k2, z2 = cut, na - 1, half - cut, nb - 1, half, na + nb - 1
        while not carries and i <= p and j <= q and i2 <= p2 and j2 <= q2:
            x, y = _load(a + i * size, code), _load(b + j * size, code)
            second = y < x
            _store(dst + k * size, code, y if second else x)
            i += 1 - second
            j += second
            k += 1
            # Where that was the last of its run it compares so that the other's is taken.
            x, y = _load(a + p * size, code), _load(b + q * size, code)
            first = y < x
            _store(dst + z * size, code, x if first else y)
            p -= first
            q -= 1 - first
            z -= 1
            x, y = _load(a + i2 * size, code), _load(b + j2 * size, code)
            second = y < x
            _store(dst + k2 * size, code, y if second else x)
            i2 += 1 - second
            j2 += second
            k2 += 1
            x, y = _load(a + p2 * size, code), _load(b + q2 * size, code)
            first = y < x
            _store(dst + z2 * size, code, x if first else y)
            p2 -= first
            q2 -= 1 - first
            z2 -= 1
        for part in range(3):
            while i <= p and j <= q:
                x, y = _load(a + i * size, code), _load(b + j * size, code)
                second = y < x
                _store(dst + k * size, code, y if second else x)
                if carries:
                    v, w = _load_word(a_words + i * 8), _load_word(b_words + j * 8)
                    _store_word(dst_words + k * 8, w if second else v)
                i += 1 - second
                j += second
                k += 1
                x, y = _load(a + p * size, code), _load(b + q * size, code)
                first = y < x
                _store(dst + z * size, code, x if first else y)
                if carries:
                    v, w = _load_word(a_words + p * 8), _load_word(b_words + q * 8)
                    _store_word(dst_words + z * 8, v if first else w)
                p -= first
                q -= 1 - first
                z -= 1
            for at in range(i, p + 1):
                move(dst + k * size, a + at * size, size, 0)
                if carries:
                    move(dst_words + k * 8, a_words + at * 8, 8, 0)
                k += 1
            for at in range(j, q + 1):
                move(dst + k * size, b + at * size, size, 0)
                if carries:
                    move(dst_words + k * 8, b_words + at * 8, 8, 0)
                k += 1
            if part == 0:
                i, p, j, q, k, z = i2, p2, j2, q2, k2, z2
            else:  # all NaN
                i, p, j, q, k, z = na, a_end - 1, nb, b_end - 1, na + nb, a_end + b_end - 1

    return Source(merge_runs, f"void({', '.join(['int64'] * 8)})")
