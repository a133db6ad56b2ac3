"""CRC-32 of blocks by carry-less multiplication (Numba); ``_checksums`` says when it pays.

Bytes are a polynomial over GF(2), and their checksum is its remainder modulo a fixed one. So 16
bytes with 64 more behind them may be replaced by the product of each half with a constant, added
to the 16 bytes that lie 64 further on: the remainder stays. A block is folded like that until 16
bytes are left, whose checksum zlib computes (V. Gopal et al., Fast CRC Computation for Generic
Polynomials Using PCLMULQDQ Instruction, Intel, 2009).
"""

# ruff: noqa: ARG001 - Numba prescribes the parameters of an intrinsic

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from distarray.comm.kernels import Kernel, _intrinsics
from distarray.comm.kernels._intrinsics import pointer_to

LINE: Final = 64
"""Bytes that are folded at a time: four streams of 16, which do not wait for each other."""

_POLYNOMIAL = 0x104C11DB7
_I64 = ir.IntType(64)
_PAIR = ir.VectorType(_I64, 2)


def _factors(distance: int) -> tuple[int, int]:
    """Return what the first and the second half of 16 bytes are multiplied by.

    Parameters
    ----------
    distance
        How many bits further on the product is added.

    Notes
    -----
    The first bit of the bytes, the lowest of a register, has the highest power. A product of two
    such numbers of 64 bits comes out one power too low, for which the constants make up.
    """
    return _reversed_power(distance + 63), _reversed_power(distance - 1)


def _reversed_power(exponent: int) -> int:
    remainder = 1
    for _ in range(exponent):
        remainder <<= 1
        if remainder >> 32:
            remainder ^= _POLYNOMIAL
    return int(f"{remainder:064b}"[::-1], 2)


def _folded(builder: Any, value: Any, factors: tuple[int, int]) -> Any:
    """Return 16 bytes that stand for others which lie further ahead."""
    byte = ir.IntType(8)
    multiply = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(_PAIR, [_PAIR, _PAIR, byte]), "llvm.x86.pclmulqdq"
    )
    constant = ir.Constant(_PAIR, list(factors))
    first, second = (builder.call(multiply, [value, constant, byte(half)]) for half in (0, 0x11))
    return builder.xor(first, second)


@intrinsic
def _fold(typing: Any, data: Any, lines: Any, out: Any) -> Any:
    """Fold ``lines`` lines, one at least, to the 16 bytes at ``out``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data, lines, out = args
        far, near = _factors(8 * LINE), _factors(128)

        def loaded(address: Any, offset: int) -> Any:
            return builder.load(pointer_to(builder, address, _PAIR, offset), align=1)

        streams = [cgutils.alloca_once(builder, _PAIR) for _ in range(LINE // 16)]
        for i, stream in enumerate(streams):
            value = loaded(data, 16 * i)
            if i == 0:  # where a checksum starts from
                value = builder.xor(value, ir.Constant(_PAIR, [0xFFFFFFFF, 0]))
            builder.store(value, stream)
        with cgutils.for_range(builder, builder.sub(lines, _I64(1))) as loop:
            line = builder.add(data, builder.mul(builder.add(loop.index, _I64(1)), _I64(LINE)))
            for i, stream in enumerate(streams):
                value = _folded(builder, builder.load(stream), far)
                builder.store(builder.xor(value, loaded(line, 16 * i)), stream)
        value = builder.load(streams[0])
        for stream in streams[1:]:
            value = builder.xor(_folded(builder, value, near), builder.load(stream))
        builder.store(value, pointer_to(builder, out, _PAIR), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _fold_blocks(data: int, step: int, lines: int, count: int, out: int) -> None:
    """Fold the first lines of blocks of ``step`` bytes to 16 bytes each."""
    for i in range(count):
        _fold(data + i * step, lines, out + 16 * i)


fold_blocks = Kernel(_fold_blocks, f"void({', '.join(['int64'] * 5)})", _intrinsics)
