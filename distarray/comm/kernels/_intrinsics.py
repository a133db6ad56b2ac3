"""Operations on raw memory that Numba has no words for: wide, streaming and transposing moves.

Addresses are int64. Sizes and kinds are literals, so that each use becomes a few instructions.
A streaming (non-temporal) store goes past the caches: the line it fills is not read first, and
what the caches hold stays there. It must be aligned to 64 bytes and cover a whole line, and
`fence` must follow before another process is told.
"""

# ruff: noqa: ARG001 - Numba prescribes the parameters of an intrinsic

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LINE: Final = 64
"""Bytes of a cache line, and of the widest move."""

_I8 = ir.IntType(8)
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)


def pointer_to(builder: Any, address: Any, type_: Any, offset: int = 0) -> Any:
    """Return a typed pointer to an address."""
    if offset:
        address = builder.add(address, _I64(offset))
    return builder.inttoptr(address, type_.as_pointer())


def store(builder: Any, value: Any, pointer: Any, streaming: bool) -> None:
    instruction = builder.store(value, pointer, align=LINE if streaming else 1)
    if streaming:
        mark = builder.module.add_metadata([_I32(1)])
        instruction.set_metadata("nontemporal", mark)


@intrinsic(prefer_literal=True)
def move(typing: Any, dst: Any, src: Any, nbytes: Any, streaming: Any) -> Any:
    """Copy ``nbytes`` (a literal power of two up to 64), streaming or not (literal 1 or 0)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        size = nbytes.literal_value
        type_ = ir.IntType(8 * size) if size <= 8 else ir.VectorType(_I64, size // 8)
        value = builder.load(pointer_to(builder, args[1], type_), align=1)
        store(builder, value, pointer_to(builder, args[0], type_), bool(streaming.literal_value))
        return context.get_dummy_value()

    if not isinstance(nbytes, types.Literal) or not isinstance(streaming, types.Literal):
        return None
    return types.void(types.int64, types.int64, nbytes, streaming), generate


@intrinsic
def move_lines(typing: Any, dst: Any, src: Any, dst_stride: Any, src_stride: Any) -> Any:
    """Copy two lines, and the two a stride further on: all loads, then streaming stores."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        type_ = ir.VectorType(_I64, LINE // 8)
        targets, values = [], []
        for far in (False, True):
            d, s = args[:2]
            if far:
                d, s = builder.add(d, args[2]), builder.add(s, args[3])
            for offset in (0, LINE):
                targets.append(pointer_to(builder, d, type_, offset))
                values.append(builder.load(pointer_to(builder, s, type_, offset), align=1))
        for value, target in zip(values, targets, strict=True):
            store(builder, value, target, True)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@intrinsic
def copy_bytes(typing: Any, dst: Any, src: Any, nbytes: Any) -> Any:
    """Copy any number of bytes, by the C library."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        dst, src, nbytes = args
        cgutils.raw_memcpy(
            builder, pointer_to(builder, dst, _I8), pointer_to(builder, src, _I8), nbytes, 1
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic(prefer_literal=True)
def prefetch(typing: Any, address: Any, writes: Any) -> Any:
    """Ask for the line at an address early, to be read, or (literal 1) written."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = pointer_to(builder, args[0], _I8)
        type_ = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], type_)
        everywhere, data = _I32(3), _I32(1)
        builder.call(function, [pointer, _I32(writes.literal_value), everywhere, data])
        return context.get_dummy_value()

    if not isinstance(writes, types.Literal):
        return None
    return types.void(types.int64, writes), generate


@intrinsic
def prefetch_item(typing: Any, items: Any, index: Any) -> Any:
    """Ask for the line of an item early, to be read."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.bitcast(builder.gep(args[0], [args[1]]), _I8.as_pointer())
        type_ = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], type_)
        builder.call(function, [pointer, _I32(0), _I32(3), _I32(1)])
        return context.get_dummy_value()

    return types.void(items, types.int64), generate


@intrinsic
def fence(typing: Any) -> Any:
    """Make the stores before it visible before those after it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic(prefer_literal=True)
def transpose_tile(
    typing: Any,
    dst: Any,
    src: Any,
    dst_stride: Any,
    src_stride: Any,
    itemsize: Any,
    width: Any,
    streaming: Any,
) -> Any:
    """Copy a square tile transposed: ``width // itemsize`` rows of ``width`` bytes each.

    The rows are held in registers and exchanged by log2(rows) rounds of shuffles: round s swaps,
    between rows that differ in bit s, the halves that lie on the wrong side.
    """
    literals = (itemsize, width, streaming)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        size, nbytes = itemsize.literal_value, width.literal_value
        lane = min(size, 8)
        lanes, per_item, n = nbytes // lane, size // lane, nbytes // size
        type_ = ir.VectorType(ir.IntType(8 * lane), lanes)
        rows = []
        address = args[1]
        for _ in range(n):
            rows.append(builder.load(pointer_to(builder, address, type_), align=1))
            address = builder.add(address, args[3])
        step = 1
        while step < n:
            low, high = [], []
            for item in range(n):
                for part in range(per_item):
                    own, other = item * per_item + part, (item ^ step) * per_item + part
                    low.append(lanes + other if item & step else own)
                    high.append(lanes + own if item & step else other)
            masks = [ir.Constant(ir.VectorType(_I32, lanes), mask) for mask in (low, high)]
            for i in range(n):
                if not i & step:
                    a, b = rows[i], rows[i | step]
                    rows[i] = builder.shuffle_vector(a, b, masks[0])
                    rows[i | step] = builder.shuffle_vector(a, b, masks[1])
            step *= 2
        address = args[0]
        for row in rows:
            store(builder, row, pointer_to(builder, address, type_), bool(streaming.literal_value))
            address = builder.add(address, args[2])
        return context.get_dummy_value()

    if not all(isinstance(literal, types.Literal) for literal in literals):
        return None
    return types.void(*[types.int64] * 4, *literals), generate


@intrinsic
def bits_of(typing: Any, double: Any) -> Any:
    """Return the bits of a float64 as an int64."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _I64)

    return types.int64(types.float64), generate


@intrinsic
def double_of(typing: Any, bits: Any) -> Any:
    """Return the float64 of these bits, or of a number of floating point."""
    given = bits if isinstance(bits, types.Float) else types.int64

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if given is types.float32:
            return builder.fpext(args[0], ir.DoubleType())
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(given), generate
