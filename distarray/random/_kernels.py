"""The formulas compiled by Numba, for a range of the elements of a box.

The items of rows of the box are made in batches of counter blocks: first the random bits of a
batch, then the numbers they stand for, each in a loop that the processor's vectors take, and
last the numbers in their order. A batch stays in the nearest cache.
"""

# ruff: noqa: ARG001 - Numba prescribes the parameters of an intrinsic and of an overload

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload, register_jitable

from distarray.comm.kernels import Source
from distarray.random import _formulas
from distarray.random._blocks import BATCH
from distarray.random._formulas import (
    ROUNDS,
    WEYL_0,
    WEYL_1,
    exponential,
    mix,
    normal_pair,
    philox,
    scaled,
    unit_double,
    unit_single,
)

_u64 = np.uint64
_ZERO, _ONE, _TWO, _THREE = (_u64(n) for n in range(4))
_ALL: Final = 4 * BATCH
"""Words of scratch memory: the first words of all counter blocks of a batch, then the second ones,
and so on."""

# Each loop is a function of its own, with plain numbers as arguments: Numba vectorises it as it
# stands. A division by zero must not raise for that (none is made here). Only kernels call them:
# wrappers for the interpreter would be a tenth of compiling.
_loop = numba.njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)


@intrinsic
def _bits_of(typing: Any, double: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(64))

    return types.uint64(types.float64), generate


@intrinsic
def _double_of(typing: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.uint64), generate


# Numba wants an overload to have the parameters of what it returns: no annotations, a lambda.
@overload(_formulas.bits_of, inline="always")
def _compile_bits_of(doubles):  # type: ignore[no-untyped-def]
    return lambda doubles: _bits_of(doubles)  # noqa: PLW0108


@overload(_formulas.double_of, inline="always")
def _compile_double_of(bits):  # type: ignore[no-untyped-def]
    return lambda bits: _double_of(bits)  # noqa: PLW0108


for _formula in (
    scaled,
    mix,
    philox,
    unit_double,
    unit_single,
    normal_pair,
    _formulas.split_double,
    _formulas.logarithm,
    _formulas.cosine_and_sine,
    exponential,
):
    register_jitable(error_model="numpy")(_formula)


@_loop
def _mix(x: Any, count: int, k0: Any, k1: Any) -> None:
    """Make random words of counters: each round of all of them, which vectors take."""
    for _ in range(ROUNDS):
        for j in range(count):
            x[j], x[BATCH + j], x[2 * BATCH + j], x[3 * BATCH + j] = mix(
                x[j], x[BATCH + j], x[2 * BATCH + j], x[3 * BATCH + j], k0, k1
            )
        k0 += WEYL_0
        k1 += WEYL_1


@_loop
def _fill_bits(x: Any, blocks: Any, count: int, words: Any) -> None:
    """Make the bits of some counter blocks."""
    for j in range(count):
        x[j] = blocks[j] + _ONE
        x[BATCH + j] = words[2]
        x[2 * BATCH + j] = words[3]
        x[3 * BATCH + j] = _ZERO
    _mix(x, count, words[0], words[1])


@_loop
def _to_floats(
    y: Any, x: Any, count: int,
    loc: float, scale: float, is_normal: bool, is_exponential: bool, is_single: bool,
) -> None:  # fmt: skip
    if is_normal:
        for at in range(0, _ALL, 2 * BATCH):
            for j in range(at, at + count):
                a, b = normal_pair(unit_double(x[j]), unit_double(x[BATCH + j]))
                y[j] = loc + scale * a
                y[BATCH + j] = loc + scale * b
    else:
        for at in range(0, _ALL, BATCH):
            for j in range(at, at + count):
                if is_exponential:
                    y[j] = loc + scale * exponential(unit_double(x[j]))
                elif is_single:
                    y[j] = loc + scale * unit_single(x[j])
                else:
                    y[j] = loc + scale * unit_double(x[j])


@_loop
def _to_integer(y: Any, x: Any, count: int, least: int, among: int, bound: int) -> int:
    """Scale bits to integers, and return whether some must be drawn again."""
    again = 0
    for at in range(0, _ALL, BATCH):
        for j in range(at, at + count):
            if among == _ZERO:
                y[j] = least + x[j]
            else:
                value, low = scaled(x[j], among)
                y[j] = least + value
                again |= low < bound
    return again


@_loop
def _redraw(
    y: Any, x: Any, blocks: Any, count: int, words: Any, least: int, among: int, bound: int
) -> None:
    """Draw again, each by itself, the integers whose bits came out below the bound."""
    for j in range(count):
        for word in range(4):
            value, low = scaled(x[word * BATCH + j], among)
            attempt = words[3]
            while low < bound:
                attempt += _ONE
                again = philox(blocks[j], words[2], attempt, words[0], words[1])
                value, low = scaled(again[word], among)
            y[word * BATCH + j] = least + value


@_loop
def _put(out: Any, at: int, end: int, skipped: int, y: Any, block: int) -> None:
    """Write the four numbers of each block in turn, from one on, but for those outside."""
    start = at - skipped
    first, last = min(skipped, 1), (end - start) >> 2
    for j in range(first, last):
        for word in range(4):
            out[start + 4 * j + word] = y[word * BATCH + block + j]
    if skipped:
        for word in range(skipped, min(4, end - start)):
            out[start + word] = y[word * BATCH + block]
    if last >= first:
        for word in range(end - start - 4 * last):
            out[start + 4 * last + word] = y[word * BATCH + block + last]


@_loop
def _row_start(row: int, sizes: Any, strides: Any, ndim: int) -> int:
    """Return the linear index, from that of the box on, at which a row of the box starts."""
    index = 0
    for axis in range(ndim - 2, -1, -1):
        above = row // sizes[axis]
        index += (row - above * sizes[axis]) * strides[axis]
        row = above
    return index


@_loop
def _find_run(
    at: int, n: int, first: int, sizes: Any, strides: Any, ndim: int, corner: int, room: int
) -> tuple[int, int, int]:
    """Return the linear index of an item, where its row ends, and how many counter blocks it has.

    The row ends earlier where there is no room for more of them.
    """
    width = sizes[ndim - 1]
    row, column = divmod(first + at, width)
    index = corner + _row_start(row, sizes, strides, ndim) + column
    skipped = index & 3
    blocks = min((min(width - column, n - at) + skipped + 3) >> 2, room)
    return index, min(at + width - column, n, at + 4 * blocks - skipped), blocks


def fill(kind: str, dtype: str) -> Source:
    """Return the kernel for an "integer", or "uniform", "normal" or "exponential" floats.

    Integers are written as "uint8", "uint16", "uint32" or "uint64". The arguments: where to write,
    and how many; scratch memory of four times `BATCH` words for bits, and for integers or floats,
    and of as many for the numbers of counter blocks; the first item, in C order of the box; the
    sizes and global strides of the box, and how many; the linear index of its corner; the words of
    key and counter; the offset and the scale of floats; and of integers the least, how many there
    are (0 for 2**64), and the bound below which the lower bits of a product are drawn again.
    """
    is_integer, is_single = kind == "integer", dtype == "float32"
    is_normal, is_exponential = kind == "normal", kind == "exponential"

    def fill_part(
        out: Any, n: int, x: Any, y: Any, z: Any, blocks: Any, first: int,
        sizes: Any, strides: Any, ndim: int, corner: int, words: Any,
        loc: float, scale: float, least: int, among: int, bound: int,
    ) -> None:  # fmt: skip
        at = 0
        while at < n:
            here = count = 0
            end = at
            while end < n and count < BATCH:
                index, end, here = _find_run(
                    end, n, first, sizes, strides, ndim, corner, BATCH - count
                )
                for j in range(here):
                    blocks[count + j] = _u64((index >> 2) + j)
                count += here
            _fill_bits(x, blocks, count, words)
            if not is_integer:
                _to_floats(z, x, count, loc, scale, is_normal, is_exponential, is_single)
            elif _to_integer(y, x, count, least, among, bound):
                _redraw(y, x, blocks, count, words, least, among, bound)
            count = 0
            while at < end:
                index, stop, here = _find_run(
                    at, n, first, sizes, strides, ndim, corner, BATCH - count
                )
                _put(out, at, stop, index & 3, y if is_integer else z, count)
                count += here
                at = stop

    bits, numbers, sizes = (f"CPointer({name})" for name in ("uint64", "float64", "int64"))
    geometry = f"int64, {sizes}, {sizes}, int64, int64, {bits}"
    parameters = "float64, float64, uint64, uint64, uint64"
    scratch = f"{bits}, {bits}, {numbers}, {bits}"
    signature = f"void(CPointer({dtype}), int64, {scratch}, {geometry}, {parameters})"
    return Source(fill_part, signature)


def draw(kind: str) -> Source:
    """Return the kernel for items of any linear indices: doubles, or of "integer" random bits.

    The arguments: where to write, and how many; scratch memory of four times `BATCH` words, and of
    as many; the indices; the words of key and counter.
    """
    is_normal, is_exponential, is_integer = (
        kind == one for one in ("normal", "exponential", "integer")
    )

    def draw_all(out: Any, n: int, x: Any, blocks: Any, index: Any, words: Any) -> None:
        for start in range(0, n, BATCH):
            count = min(BATCH, n - start)
            for j in range(count):
                blocks[j] = index[start + j] >> _TWO
            _fill_bits(x, blocks, count, words)
            for j in range(count):
                word = index[start + j] & _THREE
                bits = x[word * BATCH + j]
                if is_integer:
                    out[start + j] = bits
                elif is_normal:
                    pair = (word & _TWO) * BATCH + j
                    a, b = normal_pair(unit_double(x[pair]), unit_double(x[pair + BATCH]))
                    out[start + j] = 0.0 + (b if word & _ONE else a)
                elif is_exponential:
                    out[start + j] = 0.0 + exponential(unit_double(bits))
                else:
                    out[start + j] = unit_double(bits)

    bits = "CPointer(uint64)"
    out = bits if kind == "integer" else "CPointer(float64)"
    return Source(draw_all, f"void({out}, int64, {bits}, {bits}, {bits}, {bits})")
