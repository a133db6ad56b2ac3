"""Numba kernels that choose, group and merge items; ``_grouping`` says when they serve.

Every argument is an int64: an address or a number of items. Items lie one after another.
"""

# ruff: noqa: ARG001 - Numba prescribes the parameters of an intrinsic

from __future__ import annotations

from typing import Any, Final

import numba
from numba import types
from numba.extending import intrinsic

from distarray.comm.kernels import _intrinsics
from distarray.comm.kernels._intrinsics import move, pointer_to
from distarray.comm.kernels._jit import Kernel

_KINDS: Final = {
    f"{kind}{size}": getattr(types, f"{name}{8 * size}")
    for kind, name, sizes in (
        ("u", "uint", (1, 2, 4, 8)),
        ("i", "int", (1, 2, 4, 8)),
        ("f", "float", (4, 8)),
    )
    for size in sizes
}


def _loading(type_: Any) -> Any:
    """Return the function that reads an item at an address."""

    def load(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = pointer_to(builder, args[0], context.get_value_type(type_))
            return builder.load(pointer, align=1)

        return type_(types.int64), generate

    load.__name__ = f"load_{type_}"  # which tells kernels apart that are kept on disk
    return intrinsic(load)


@intrinsic
def _store_word(typing: Any, address: Any, value: Any) -> Any:
    """Write an int64 to an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = pointer_to(builder, args[0], context.get_value_type(types.int64))
        builder.store(args[1], pointer, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


_LOAD: Final = {kind: _loading(type_) for kind, type_ in _KINDS.items()}
_load_byte, _load_word = _LOAD["u1"], _LOAD["i8"]


def _compressing(size: int) -> Kernel:
    """Return the kernel for one size of item."""

    def compress(dst: int, src: int, mask: int, n: int, count: int) -> None:
        """Copy the ``count`` items whose byte of the mask is not 0."""
        end = dst + count * size
        for i in range(n):
            if dst == end:
                return
            move(dst, src + i * size, size, 0)
            dst += size * (_load_byte(mask + i) != 0)

    return Kernel(compress, f"void({', '.join(['int64'] * 5)})", _intrinsics)


COMPRESS: Final[dict[int, Kernel]] = {size: _compressing(size) for size in (1, 2, 4, 8, 16)}
"""By the size of an item."""


def _moving(width: int, exact: bool) -> Kernel:
    """Return the kernel for rows of ``width`` bytes, or of more, in moves of so many."""

    def move_rows(
        dst: int, places: int, dst_rows: int,
        src: int, numbers: int, src_rows: int, src_stride: int,
        n: int, run: int,
    ) -> None:  # fmt: skip
        """Copy rows of ``run`` bytes from their numbers in one block to their places in another.

        Without addresses of numbers they lie one after another; those of no row become the last.
        """
        for k in range(n):
            i = types.uint64(_load_word(numbers + 8 * k) if numbers else k)
            j = types.uint64(_load_word(places + 8 * k) if places else k)
            s = src + types.int64(min(i, types.uint64(src_rows - 1))) * src_stride
            d = dst + types.int64(min(j, types.uint64(dst_rows - 1))) * run
            if exact:
                move(d, s, width, 0)
            else:
                for at in range(0, run - width, width):
                    move(d + at, s + at, width, 0)
                move(d + run - width, s + run - width, width, 0)

    return Kernel(move_rows, f"void({', '.join(['int64'] * 9)})", _intrinsics)


WIDTHS: Final = (64, 32, 16, 8, 4, 2, 1)

MOVE_ROWS: Final[dict[tuple[int, bool], Kernel]] = {
    (width, exact): _moving(width, exact) for width in WIDTHS for exact in (True, False)
}
"""By the width of a move, and whether rows have no more."""


def _grouping(size: int) -> Kernel:
    """Return the kernel for owners of one size of integer."""
    load = _LOAD[f"u{size}"]

    def group(owner: int, n: int, order: int, ends: int, groups: int) -> int:
        """Write the numbers of the items, group by group, and where each group ends.

        ``ends`` has ``groups`` zeros. Where an owner is no group nothing is written to ``order``,
        and the answer is 0.
        """
        for i in range(n):
            group = load(owner + i * size)
            if group >= groups:
                return 0
            place = ends + 8 * types.int64(group)
            _store_word(place, _load_word(place) + 1)
        start = 0
        for i in range(groups):
            length = _load_word(ends + 8 * i)
            _store_word(ends + 8 * i, start)
            start += length
        for i in range(n):
            place = ends + 8 * types.int64(load(owner + i * size))
            at = _load_word(place)
            _store_word(order + 8 * at, i)
            _store_word(place, at + 1)
        return 1

    return Kernel(group, f"int64({', '.join(['int64'] * 5)})", _intrinsics)


GROUP: Final[dict[int, Kernel]] = {size: _grouping(size) for size in (1, 2, 4, 8)}
"""By the size of an owner's number."""


@numba.njit(nogil=True)
def _precedes(b: Any, a: Any) -> Any:
    """Tell whether b comes before a, which comes first among equals; NaN comes last."""
    return (b < a) | ((a != a) & (b == b))


def _merging(kind: str, carries: bool) -> Kernel:
    """Return the kernel for one kind of item, and whether integers travel with the items."""
    load, size = _LOAD[kind], int(kind[1])

    def merge(
        dst: int, a: int, na: int, b: int, nb: int, dst_words: int, a_words: int, b_words: int
    ) -> None:
        """Merge two sorted runs, from both ends at once: neither end waits for the other."""
        a_last, b_last = a + (na - 1) * size, b + (nb - 1) * size
        last = dst + (na + nb - 1) * size
        if carries:
            a_last_word, b_last_word = a_words + (na - 1) * 8, b_words + (nb - 1) * 8
            last_word = dst_words + (na + nb - 1) * 8
        while a <= a_last and b <= b_last:
            second = _precedes(load(b), load(a))
            move(dst, b if second else a, size, 0)
            b += size * second
            a += size * (1 - second)
            dst += size
            # Where that was the last of its run it compares so that the other's is taken.
            first = _precedes(load(b_last), load(a_last))
            move(last, a_last if first else b_last, size, 0)
            a_last -= size * first
            b_last -= size * (1 - first)
            last -= size
            if carries:
                move(dst_words, b_words if second else a_words, 8, 0)
                b_words += 8 * second
                a_words += 8 * (1 - second)
                dst_words += 8
                move(last_word, a_last_word if first else b_last_word, 8, 0)
                a_last_word -= 8 * first
                b_last_word -= 8 * (1 - first)
                last_word -= 8
        while a <= a_last:
            move(dst, a, size, 0)
            a += size
            dst += size
            if carries:
                move(dst_words, a_words, 8, 0)
                a_words += 8
                dst_words += 8
        while b <= b_last:
            move(dst, b, size, 0)
            b += size
            dst += size
            if carries:
                move(dst_words, b_words, 8, 0)
                b_words += 8
                dst_words += 8

    return Kernel(merge, f"void({', '.join(['int64'] * 8)})", _intrinsics)


MERGE: Final[dict[tuple[str, bool], Kernel]] = {
    (kind, carries): _merging(kind, carries) for kind in _KINDS for carries in (False, True)
}
"""By the kind of item, and whether integers of 8 bytes travel with the items."""
