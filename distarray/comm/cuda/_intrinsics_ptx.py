"""Loads, stores, conversions and arithmetic as instructions of a GPU (PTX), for Numba's kernels."""

# ruff: noqa: ARG001 - Numba prescribes the parameters of an intrinsic

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba import cuda
from numba.cuda.extending import intrinsic

# The package numba-cuda has types of its own, Numba's own target those of Numba.
types: Any = cuda.types if hasattr(cuda.types, "uint64") else numba.types

_GLOBAL = 1  # number of the address space
_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_FLOAT, _DOUBLE = ir.FloatType(), ir.DoubleType()
_PAIR = ir.VectorType(_I64, 2)


def _at(builder: Any, address: Any, type_: Any) -> Any:
    return builder.inttoptr(address, type_.as_pointer(_GLOBAL))


def _loading(size: int, result: Any) -> Any:
    type_ = ir.IntType(8 * size)

    @intrinsic
    def load(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = builder.load(_at(builder, args[0], type_), align=size)
            return value if size == 8 else builder.zext(value, _I64)

        return result(types.int64), generate

    return load


def _storing(size: int) -> Any:
    type_ = ir.IntType(8 * size)

    @intrinsic
    def store(typing: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = args[1] if size == 8 else builder.trunc(args[1], type_)
            builder.store(value, _at(builder, args[0], type_), align=size)
            return context.get_dummy_value()

        return types.void(types.int64, types.uint64), generate

    return store


load1, load2, load4, load8 = (_loading(size, types.uint64) for size in (1, 2, 4, 8))
store1, store2, store4, store8 = (_storing(size) for size in (1, 2, 4, 8))
entry = _loading(8, types.int64)


@intrinsic
def load16(typing: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pair = builder.load(_at(builder, args[0], _PAIR), align=16)
        words = [builder.extract_element(pair, _I32(i)) for i in range(2)]
        return context.make_tuple(builder, signature.return_type, words)

    return types.UniTuple(types.uint64, 2)(types.int64), generate


@intrinsic
def store16(typing: Any, address: Any, low: Any, high: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pair = ir.Constant(_PAIR, ir.Undefined)
        for i in range(2):
            pair = builder.insert_element(pair, args[1 + i], _I32(i))
        builder.store(pair, _at(builder, args[0], _PAIR), align=16)
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64, types.uint64), generate


def _instruction(builder: Any, text: str, result: Any, args: Any, constraints: str) -> Any:
    function = ir.FunctionType(result, [arg.type for arg in args])
    operands = ", ".join(f"${i}" for i in range(len(args) + 1))
    return builder.call(ir.InlineAsm(function, f"{text} {operands};", constraints), args)


def _arithmetic(name: str, on_integers: str) -> Any:
    @intrinsic
    def operate(typing: Any, a: Any, b: Any) -> Any:
        whole = isinstance(a, types.Integer) and isinstance(b, types.Integer)
        single = a == types.float32 and b == types.float32
        type_ = types.uint64 if whole else types.float32 if single else types.float64

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            if whole:
                return getattr(builder, on_integers)(*args)
            size, letter = (32, "f") if single else (64, "d")
            constraints = f"={letter},{letter},{letter}"
            result = _FLOAT if single else _DOUBLE
            return _instruction(builder, f"{name}.rn.f{size}", result, args, constraints)

        return type_(type_, type_), generate

    return operate


plus, minus, times = (_arithmetic(name, name) for name in ("add", "sub", "mul"))


def _converting(source: Any, result: Any, build: Callable[[Any, Any], Any]) -> Any:
    @intrinsic
    def convert(typing: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return build(builder, args[0])

        return result(source), generate

    return convert


def _narrow(builder: Any, bits: Any, type_: Any) -> Any:
    return builder.bitcast(builder.trunc(bits, _I32), type_)


low = _converting(
    types.int64,
    types.int64,
    lambda builder, value: builder.zext(builder.trunc(value, _I32), _I64),
)
root = _converting(
    types.float64,
    types.float64,
    lambda builder, x: _instruction(builder, "sqrt.rn.f64", _DOUBLE, [x], "=d,d"),
)
double_of = _converting(
    types.uint64, types.float64, lambda builder, bits: builder.bitcast(bits, _DOUBLE)
)
bits_of = _converting(types.float64, types.uint64, lambda builder, x: builder.bitcast(x, _I64))
single_of = _converting(
    types.uint64, types.float32, lambda builder, bits: _narrow(builder, bits, _FLOAT)
)
bits_of_single = _converting(
    types.float32,
    types.uint64,
    lambda builder, x: builder.zext(builder.bitcast(x, _I32), _I64),
)
single_of_half = _converting(
    types.uint64,
    types.float32,
    lambda builder, bits: _instruction(
        builder, "cvt.f32.f16", _FLOAT, [builder.trunc(bits, _I16)], "=f,h"
    ),
)
half_of_single = _converting(
    types.float32,
    types.uint64,
    lambda builder, x: builder.zext(
        _instruction(builder, "cvt.rn.f16.f32", _I16, [x], "=h,f"), _I64
    ),
)


def _signed(size: int) -> Any:
    type_ = ir.IntType(8 * size)

    def build(builder: Any, bits: Any) -> Any:
        return builder.sitofp(bits if size == 8 else builder.trunc(bits, type_), _DOUBLE)

    return _converting(types.uint64, types.float64, build)


double_of_signed = {size: _signed(size) for size in (1, 2, 4, 8)}
double_of_unsigned = _converting(
    types.uint64, types.float64, lambda builder, bits: builder.uitofp(bits, _DOUBLE)
)


def device(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let kernels call a function."""
    return cuda.jit(device=True)(function)  # type: ignore[no-any-return]
