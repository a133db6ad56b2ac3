"""How the kernels of a GPU read, combine, round and write one value of each type."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from distarray.comm.cuda._intrinsics import (
    bits_of,
    bits_of_single,
    device,
    double_of,
    double_of_signed,
    double_of_unsigned,
    half_of_single,
    load1,
    load2,
    load4,
    load8,
    load16,
    minus,
    plus,
    single_of,
    single_of_half,
    store1,
    store2,
    store4,
    store8,
    store16,
    times,
)

_u64 = np.uint64
_ONE, _QUIET, _BELOW_HALF = _u64(1), _u64(0x40), _u64(0x7FFF)
_S16 = _u64(16)

_LOADS: Final[dict[int, Any]] = {1: load1, 2: load2, 4: load4, 8: load8, 16: load16}
_STORES: Final[dict[int, Any]] = {1: store1, 2: store2, 4: store4, 8: store8, 16: store16}


# --- how two values become one -------------------------------------------------------------------


@device
def _least(a: Any, b: Any) -> Any:
    return a if a < b or a != a else b


@device
def _most(a: Any, b: Any) -> Any:
    return a if a > b or a != a else b


@device
def _and(a: Any, b: Any) -> Any:
    return a & b


@device
def _or(a: Any, b: Any) -> Any:
    return a | b


@device
def _xor(a: Any, b: Any) -> Any:
    return a ^ b


@device
def _product(a: Any, b: Any) -> Any:
    """Multiply complex numbers."""
    return (
        minus(times(a[0], b[0]), times(a[1], b[1])),
        plus(times(a[0], b[1]), times(a[1], b[0])),
    )


@device
def _least_complex(a: Any, b: Any) -> Any:
    """Return the lesser, by real parts and then by imaginary ones, or the one with a NaN."""
    keep = a[0] < b[0] and a[1] == a[1] and b[1] == b[1]
    keep = keep or (a[0] == b[0] and a[1] <= b[1])
    return a if keep or a[0] != a[0] or a[1] != a[1] else b


@device
def _most_complex(a: Any, b: Any) -> Any:
    keep = a[0] > b[0] and a[1] == a[1] and b[1] == b[1]
    keep = keep or (a[0] == b[0] and a[1] >= b[1])
    return a if keep or a[0] != a[0] or a[1] != a[1] else b


_COMBINE: Final = {
    "sum": plus,
    "avg": plus,
    "prod": times,
    "min": _least,
    "max": _most,
    "band": _and,
    "bor": _or,
    "bxor": _xor,
}
_COMBINE_COMPLEX: Final = {"prod": _product, "min": _least_complex, "max": _most_complex}


def _of_both(combine: Any) -> Any:
    @device
    def both(a: Any, b: Any) -> Any:
        return combine(a[0], b[0]), combine(a[1], b[1])

    return both


def _by_number(divide: Any) -> Any:
    @device
    def both(value: Any, count: int) -> Any:
        return divide(value[0], count), divide(value[1], count)

    return both


# --- how values are read and written -------------------------------------------------------------


@device
def _bfloat16_of(value: Any) -> Any:
    """Round to nearest, ties to even, and keep what is not a number."""
    bits = bits_of_single(value)
    upper = bits >> _S16
    rounded = plus(bits, plus(_BELOW_HALF, upper & _ONE)) >> _S16
    return (upper | _QUIET) if value != value else rounded


@device
def _single_of_bfloat16(bits: Any) -> Any:
    return single_of(bits << _S16)


_BITS: Final[dict[str, tuple[Any, Any]]] = {
    "f2": (single_of_half, half_of_single),
    "bf16": (_single_of_bfloat16, _bfloat16_of),
    "f4": (single_of, bits_of_single),
    "f8": (double_of, bits_of),
}
"""How bits become a value of a kind, and a value the lowest bits of a word."""


def _floating(kind: str, lanes: int) -> tuple[Any, Any]:
    """Return how values beside each other are read, as pairs of pairs, and written."""
    of, to = _BITS[kind]
    size = 2 if kind == "bf16" else int(kind[1])
    width = size
    while width < min(size * lanes, 8):
        of, to = _paired(of, to, 8 * width)
        width *= 2
    load, store = _LOADS[size * lanes], _STORES[size * lanes]

    @device
    def read(address: int) -> Any:
        return of(load(address))

    @device
    def write(address: int, value: Any) -> None:
        store(address, to(value))

    @device
    def read_two_words(address: int) -> Any:
        low, high = load(address)
        return of(low), of(high)

    @device
    def write_two_words(address: int, value: Any) -> None:
        store(address, to(value[0]), to(value[1]))

    return (read_two_words, write_two_words) if size * lanes == 16 else (read, write)


def _paired(of: Any, to: Any, bits: int) -> tuple[Any, Any]:
    """Return the same for two values in a word, of so many bits each."""
    mask, shift = _u64((1 << bits) - 1), _u64(bits)

    @device
    def of_both(word: Any) -> Any:
        return of(word & mask), of(word >> shift)

    @device
    def to_both(value: Any) -> Any:
        return to(value[0]) | (to(value[1]) << shift)

    return of_both, to_both


def _complex(size: int, read: Any, write: Any) -> tuple[Any, Any]:
    half = size // 2

    @device
    def read_parts(address: int) -> Any:
        return read(address), read(address + half)

    @device
    def write_parts(address: int, value: Any) -> None:
        write(address, value[0])
        write(address + half, value[1])

    return read_parts, write_parts


def _whole(size: int, signed: bool) -> tuple[Any, Any]:
    """Return how integers are read as bits that compare as they do, and written."""
    load, store = _LOADS[size], _STORES[size]
    flip = _u64(1 << (8 * size - 1))

    @device
    def read(address: int) -> Any:
        return load(address) ^ flip

    @device
    def write(address: int, value: Any) -> None:
        store(address, value ^ flip)

    return (read, write) if signed else (load, store)


def _converted(kind: str) -> Any:
    """Return how an integer is read as float64."""
    size = int(kind[1])
    load = _LOADS[size]
    convert: Any = double_of_signed[size] if kind[0] == "i" else double_of_unsigned

    @device
    def read(address: int) -> Any:
        return convert(load(address))

    return read


def _pair_of_words(combine: Any) -> tuple[Any, Any, Any]:
    @device
    def write(address: int, value: Any) -> None:
        store16(address, value[0], value[1])

    return load16, _of_both(combine), write


def ways(kind: str, op: str, lanes: int) -> tuple[Any, Any, Any]:
    """Return how to read, combine and write values of a kind."""
    combine = _COMBINE[op]
    if op in ("band", "bor", "bxor"):
        size = int(kind[1:])
        return _pair_of_words(combine) if size == 16 else (_LOADS[size], combine, _STORES[size])
    if kind in _BITS:
        read, write = _floating(kind, lanes)
        return read, _nested(_of_both, combine, lanes), write
    if kind in ("c8", "c16"):
        read, write = _complex(int(kind[1:]), *_floating(f"f{int(kind[1:]) // 2}", 1))
        return read, _COMBINE_COMPLEX[op], write
    if op == "avg":
        return _converted(kind), combine, _floating("f8", 1)[1]
    read, write = _whole(int(kind[1]), signed=kind[0] == "i" and op in ("min", "max"))
    return read, combine, write


def _nested(of_both: Any, function: Any, lanes: int) -> Any:
    """Return a function of one value as one of so many, in pairs of pairs."""
    while lanes > 1:
        function, lanes = of_both(function), lanes // 2
    return function


def averaged(kind: str, lanes: int) -> Any:
    """Return how a sum is divided by the number of sources."""

    @device
    def single(value: Any, count: int) -> Any:
        return value / np.float32(count)

    @device
    def double(value: Any, count: int) -> Any:
        return value / np.float64(count)

    return _nested(_by_number, single if kind in ("f4", "f2", "bf16") else double, lanes)


@device
def unchanged(value: Any, _: int) -> Any:
    return value
