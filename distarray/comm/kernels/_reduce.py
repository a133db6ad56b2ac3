"""Numba kernels that reduce several blocks at once, in one pass over memory.

One line of 64 bytes of the result after the other is made in registers, over the sources in
their order, and stored. The arithmetic is that of NumPy's loops, element by element and in the
same order, so that the results are equal to the last bit (but for which NaN of several is kept).
"""

# ruff: noqa: ARG001 - Numba prescribes the parameters of an intrinsic

from __future__ import annotations

import platform
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import cgutils, registry
from numba.extending import intrinsic

from distarray.comm.kernels._intrinsics import LINE, fence, pointer_to, store
from distarray.comm.kernels._jit import Source

_UNROLL: Final = 4
"""Lines made at a time, so that additions need not wait for each other; not measured further."""

_FLOAT, _DOUBLE, _HALF = ir.FloatType(), ir.DoubleType(), ir.HalfType()
_I32, _I64 = ir.IntType(32), ir.IntType(64)

_CONVERTS_HALF: Final = platform.machine() not in {
    "x86_64",
    "AMD64",
} or "+f16c" in registry.cpu_target.target_context.codegen().magic_tuple()[2].split(",")
"""Whether the code, which may be for another processor than this (``NUMBA_CPU_NAME``), converts
float16 by instructions that are named; where not, it would call a library for it."""

ITEMSIZE: Final = {"bf16": 2} | {
    f"{kind}{size}": size
    for kind, sizes in (("f", (2, 4, 8)), ("iu", (1, 2, 4, 8)))
    for kind in kind
    for size in sizes
}
"""Bytes of an item of each kind of source."""


def _item_of(kind: str) -> Any:
    """Return the type of an item in the sources."""
    if kind[0] == "f":
        return {2: _HALF, 4: _FLOAT, 8: _DOUBLE}[int(kind[1])]
    return ir.IntType(8 * ITEMSIZE[kind])


def result_itemsize(kind: str, op: str) -> int:
    """Return the bytes of an item of the result."""
    return 8 if op == "avg" and kind[0] in "iu" else ITEMSIZE[kind]


def _vector(item: Any, lanes: int) -> Any:
    return ir.VectorType(item, lanes)


def _splat(builder: Any, value: Any, lanes: int) -> Any:
    vector = ir.Constant(_vector(value.type, lanes), ir.Undefined)
    for lane in range(lanes):
        vector = builder.insert_element(vector, value, _I32(lane))
    return vector


def _constant(bits: int, lanes: int) -> Any:
    return ir.Constant(_vector(_I32, lanes), [bits] * lanes)


def _widen(builder: Any, value: Any, kind: str, op: str, lanes: int) -> Any:
    """Bring loaded items to the type in which they are reduced."""
    if kind == "bf16":
        bits = builder.zext(value, _vector(_I32, lanes))
        return builder.bitcast(builder.shl(bits, _constant(16, lanes)), _vector(_FLOAT, lanes))
    if kind == "f2":
        return builder.fpext(value, _vector(_FLOAT, lanes))
    if op == "avg" and kind[0] == "i":
        return builder.sitofp(value, _vector(_DOUBLE, lanes))
    if op == "avg" and kind[0] == "u":
        return builder.uitofp(value, _vector(_DOUBLE, lanes))
    return value


def _narrow(builder: Any, value: Any, kind: str, lanes: int) -> Any:
    """Round the reduced value to the type of the result."""
    if kind == "f2":
        return builder.fptrunc(value, _vector(_HALF, lanes))
    if kind != "bf16":
        return value
    # To nearest, ties to even: half a unit less one, plus the last bit that is kept.
    bits = builder.bitcast(value, _vector(_I32, lanes))
    upper = builder.lshr(bits, _constant(16, lanes))
    half = builder.add(builder.and_(upper, _constant(1, lanes)), _constant(0x7FFF, lanes))
    rounded = builder.lshr(builder.add(bits, half), _constant(16, lanes))
    quiet = builder.or_(upper, _constant(0x40, lanes))  # the addition could make a NaN infinite
    rounded = builder.select(builder.fcmp_unordered("uno", value, value), quiet, rounded)
    return builder.trunc(rounded, _vector(ir.IntType(16), lanes))


def _combine(builder: Any, a: Any, b: Any, kind: str, op: str) -> Any:
    """Return ``a op b``."""
    real = kind[0] in "fb" or op == "avg"
    if op in ("sum", "avg"):
        return builder.fadd(a, b) if real else builder.add(a, b)
    if op == "prod":
        return builder.fmul(a, b) if real else builder.mul(a, b)
    if op in ("min", "max"):
        sign = "<" if op == "min" else ">"
        if real:  # a where it is the one or a NaN; a NaN in b fails the comparison
            keep = builder.or_(
                builder.fcmp_ordered(sign, a, b), builder.fcmp_unordered("uno", a, a)
            )
        elif kind[0] == "i":
            keep = builder.icmp_signed(sign, a, b)
        else:
            keep = builder.icmp_unsigned(sign, a, b)
        return builder.select(keep, a, b)
    return {"band": builder.and_, "bor": builder.or_, "bxor": builder.xor}[op](a, b)


@intrinsic(prefer_literal=True)
def _reduce_items(
    typing: Any, dst: Any, table: Any, count: Any, row: Any, first: Any,
    kind: Any, op: Any, lanes: Any, vectors: Any, streaming: Any,
) -> Any:  # fmt: skip
    """Reduce ``vectors * lanes`` items, from item ``first`` of a row on, into ``dst``."""
    literals = (kind, op, lanes, vectors, streaming)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        what, how, n, times, past = (literal.literal_value for literal in literals)
        item = _item_of(what)
        size = ITEMSIZE[what]
        target, entries, sources, row, first = args[:5]

        def load(j: Any) -> list[Any]:
            entry = builder.add(entries, builder.mul(j, _I64(16)))
            base = builder.load(pointer_to(builder, entry, _I64))
            stride = builder.load(pointer_to(builder, entry, _I64, 8))
            base = builder.add(base, builder.mul(row, stride))
            base = builder.add(base, builder.mul(first, _I64(size)))
            loaded = []
            for i in range(times):
                at = pointer_to(builder, base, _vector(item, n), i * n * size)
                loaded.append(_widen(builder, builder.load(at, align=1), what, how, n))
            return loaded

        start = load(_I64(0))
        sums = [cgutils.alloca_once_value(builder, value) for value in start]
        for slot, value in zip(sums, start, strict=True):
            builder.store(value, slot)
        with cgutils.for_range(builder, sources, start=_I64(1)) as loop:
            for slot, value in zip(sums, load(loop.index), strict=True):
                builder.store(_combine(builder, builder.load(slot), value, what, how), slot)
        for i, slot in enumerate(sums):
            value = builder.load(slot)
            if how == "avg":
                divisor = _splat(builder, builder.sitofp(sources, value.type.element), n)
                value = builder.fdiv(value, divisor)
            value = _narrow(builder, value, what, n)
            width = n * result_itemsize(what, how)
            store(builder, value, pointer_to(builder, target, value.type, i * width), bool(past))
        return context.get_dummy_value()

    if not all(isinstance(literal, types.Literal) for literal in literals):
        return None
    return types.void(*[types.int64] * 5, *literals), generate


def reduction(kind: str, op: str, streaming: int) -> Source | None:
    """Return the kernel for one kind of item (a key of ``ITEMSIZE``) and one operation.

    With ``streaming`` 1 it stores past the caches; the result is then aligned to its items. None
    for float16 where the processor does not convert it.
    """
    if kind == "f2" and not _CONVERTS_HALF:
        return None
    size = result_itemsize(kind, op)
    lanes = LINE // size
    several = _UNROLL * lanes
    four = _UNROLL

    def reduce(dst: int, table: int, count: int, rows: int, dst_stride: int, n: int) -> None:
        """Reduce ``count`` sources; ``table`` holds the address and row stride of each."""
        for row in range(rows):
            d = dst + row * dst_stride
            i = 0
            if streaming:
                head = min(n, (-d & 63) // size)
                while i < head:
                    _reduce_items(d + i * size, table, count, row, i, kind, op, 1, 1, 0)
                    i += 1
            while i + several <= n:
                _reduce_items(d + i * size, table, count, row, i, kind, op, lanes, four, streaming)
                i += several
            while i < n:
                _reduce_items(d + i * size, table, count, row, i, kind, op, 1, 1, 0)
                i += 1
        if streaming:
            fence()

    return Source(reduce, f"void({', '.join(['int64'] * 6)})")
