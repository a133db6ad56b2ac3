"""The formulas compiled by Numba, for a range of the elements of a box.

The elements of a row of the box are made in batches of counter blocks: first the random bits of a
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
    exponential,
    normal_pair,
    philox,
    scaled,
    unit_double,
    unit_single,
)

_u64 = np.uint64
_ZERO, _ONE = _u64(0), _u64(1)
_ATTEMPT: Final = _u64(1 << 16)

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


@overload(_formulas.either)
def _compile_either(condition, a, b):  # type: ignore[no-untyped-def]
    return lambda condition, a, b: a if condition else b


for _formula in (
    philox,
    unit_double,
    unit_single,
    scaled,
    normal_pair,
    _formulas.logarithm,
    _formulas.cosine_and_sine,
    exponential,
):
    register_jitable(error_model="numpy")(_formula)


@_loop
def _fill_bits(
    x0: Any, x1: Any, count: int, block: int, c2: int, c3: int, k0: int, k1: int
) -> None:
    """Make the bits of ``count`` counter blocks."""
    for j in range(count):
        x0[j], x1[j] = philox(_u64(block + j), c2, c3, k0, k1)


@_loop
def _to_floats(
    y0: Any, y1: Any, x0: Any, x1: Any, count: int,
    loc: float, scale: float, is_normal: bool, is_exponential: bool, is_single: bool,
) -> None:  # fmt: skip
    if is_normal:
        for j in range(count):
            a, b = normal_pair(x0[j], x1[j])
            y0[j] = loc + scale * a
            y1[j] = loc + scale * b
    elif is_exponential:
        for j in range(count):
            y0[j] = loc + scale * exponential(x0[j])
            y1[j] = loc + scale * exponential(x1[j])
    elif is_single:
        for j in range(count):
            y0[j] = loc + scale * unit_single(x0[j])
            y1[j] = loc + scale * unit_single(x1[j])
    else:
        for j in range(count):
            y0[j] = loc + scale * unit_double(x0[j])
            y1[j] = loc + scale * unit_double(x1[j])


@_loop
def _to_integer(
    y0: Any, y1: Any, x0: Any, x1: Any, count: int,
    least: int, among: int, bound: int,
) -> int:  # fmt: skip
    """Scale bits to integers, and return whether some must be drawn again."""
    if among == _ZERO:
        for j in range(count):
            y0[j] = least + x0[j]
            y1[j] = least + x1[j]
        return 0
    again = 0
    for j in range(count):
        a, low0 = scaled(x0[j], among)
        b, low1 = scaled(x1[j], among)
        y0[j] = least + a
        y1[j] = least + b
        again |= (low0 < bound) | (low1 < bound)
    return again


@_loop
def _redraw(
    y0: Any, y1: Any, x0: Any, x1: Any, count: int,
    least: int, among: int, bound: int, block: int, c2: int, c3: int, k0: int, k1: int,
) -> None:  # fmt: skip
    """Draw again, each by itself, the integers whose bits came out below the bound."""
    for j in range(count):
        for half in range(2):
            value, low = scaled(x1[j] if half else x0[j], among)
            attempt = _u64(c3)
            while low < bound:
                attempt += _ATTEMPT
                a, b = philox(_u64(block + j), c2, attempt, k0, k1)
                value, low = scaled(b if half else a, among)
            if half:
                y1[j] = least + value
            else:
                y0[j] = least + value


@_loop
def _put(out: Any, at: int, end: int, first: int, y0: Any, y1: Any, count: int) -> int:
    """Write the two numbers of each block in turn, but for what lies outside; return the end."""
    j = 0
    if first:
        out[at] = y1[0]
        at += 1
        j = 1
    pairs = min(count - j, (end - at) >> 1)
    for i in range(pairs):
        out[at + 2 * i] = y0[j + i]
        out[at + 2 * i + 1] = y1[j + i]
    at += 2 * pairs
    if at < end and j + pairs < count:
        out[at] = y0[j + pairs]
        at += 1
    return at


@_loop
def _row_start(row: int, sizes: Any, strides: Any, ndim: int) -> int:
    """Return the linear index, from that of the box on, at which a row of the box starts."""
    index = 0
    for axis in range(ndim - 2, -1, -1):
        above = row // sizes[axis]
        index += (row - above * sizes[axis]) * strides[axis]
        row = above
    return index


def fill(kind: str, dtype: str) -> Source:
    """Return the kernel for an "integer", or "uniform", "normal" or "exponential" floats.

    Integers are written as "uint8", "uint16", "uint32" or "uint64". The arguments: where to write,
    and how many; scratch memory of `BATCH` words, six times; the first element, in C order of the
    box; the sizes and global strides of the box, and how many; the linear index of
    its corner; the words of key and counter; the offset and the scale of floats; and of integers
    the least, how many there are (0 for 2**64), and the bound below which the lower bits of a
    product are drawn again.
    """
    is_integer, is_single = kind == "integer", dtype == "float32"
    is_normal, is_exponential = kind == "normal", kind == "exponential"

    def fill_part(
        out: Any, n: int, x0: Any, x1: Any, y0: Any, y1: Any, z0: Any, z1: Any, first: int,
        sizes: Any, strides: Any, ndim: int, corner: int, words: Any,
        loc: float, scale: float, least: int, among: int, bound: int,
    ) -> None:  # fmt: skip
        k0, k1, c2, c3 = words[0], words[1], words[2], words[3]
        width = sizes[ndim - 1]
        at = 0
        while at < n:
            row, column = divmod(first + at, width)
            index = corner + _row_start(row, sizes, strides, ndim) + column
            end = min(n, at + width - column)
            while at < end:
                odd = index & 1
                count = min(BATCH, (end - at + odd + 1) >> 1)
                before = at
                _fill_bits(x0, x1, count, index >> 1, c2, c3, k0, k1)
                if is_integer:
                    if _to_integer(y0, y1, x0, x1, count, least, among, bound):
                        block = index >> 1
                        _redraw(
                            y0, y1, x0, x1, count, least, among, bound, block, c2, c3, k0, k1
                        )  # fmt: skip
                    at = _put(out, at, end, odd, y0, y1, count)
                else:
                    _to_floats(
                        z0, z1, x0, x1, count, loc, scale, is_normal, is_exponential, is_single
                    )  # fmt: skip
                    at = _put(out, at, end, odd, z0, z1, count)
                index += at - before

    bits, numbers, sizes = (f"CPointer({name})" for name in ("uint64", "float64", "int64"))
    scratch = f"{bits}, {bits}, {bits}, {bits}, {numbers}, {numbers}"
    geometry = f"int64, {sizes}, {sizes}, int64, int64, {bits}"
    parameters = "float64, float64, uint64, uint64, uint64"
    signature = f"void(CPointer({dtype}), int64, {scratch}, {geometry}, {parameters})"
    return Source(fill_part, signature)


def draw(kind: str) -> Source:
    """Return the kernel for elements of any linear indices: doubles, or of "integer" random bits.

    The arguments: where to write, and how many; the indices; the words of key and counter.
    """
    is_normal, is_exponential, is_integer = (
        kind == one for one in ("normal", "exponential", "integer")
    )

    def draw_all(out: Any, n: int, index: Any, words: Any) -> None:
        k0, k1, c2, c3 = words[0], words[1], words[2], words[3]
        for j in range(n):
            x0, x1 = philox(index[j] >> _ONE, c2, c3, k0, k1)
            second = (index[j] & _ONE) == _ONE
            if is_integer:
                out[j] = x1 if second else x0
            elif is_normal:
                a, b = normal_pair(x0, x1)
                out[j] = 0.0 + (b if second else a)
            elif is_exponential:
                out[j] = 0.0 + exponential(x1 if second else x0)
            else:
                out[j] = unit_double(x1 if second else x0)

    bits = "CPointer(uint64)"
    out = bits if kind == "integer" else "CPointer(float64)"
    return Source(draw_all, f"void({out}, int64, {bits}, {bits})")
