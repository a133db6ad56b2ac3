"""The formulas compiled for a GPU: one thread makes the two numbers of a counter block.

The functions of ``_formulas`` are compiled with each addition, subtraction and multiplication as
an instruction of its own (see ``_intrinsics_cuda``): fused operations would round once where the
host rounds twice. So the numbers are those of the host, bit for bit.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numba import cuda

from distarray.comm.cuda._intrinsics import (
    bits_of,
    bits_of_single,
    device,
    double_of,
    entry,
    kernel,
    load8,
    minus,
    plus,
    root,
    store1,
    store2,
    store4,
    store8,
    store16,
    times,
)
from distarray.random import _formulas

# Entries of the table.
OUT: Final = 0
"""Address of the block."""
SLOTS: Final = 1
"""Counter blocks of all rows, and below of each row, at most."""
SLOTS_OF_ROW: Final = 2
MULTIPLIER: Final = 3
"""Multiplier and shift that divide by the latter; the multiplier is 0 where indices are large."""
SHIFT: Final = 4
WIDTH: Final = 5
"""Elements of a row."""
CORNER: Final = 6
"""Linear index of the block's first element in the global array."""
WORDS: Final = 7
"""Four entries: two words of the key, two of the counter."""
PARAMETERS: Final = 11
"""Three entries: bits of offset and scale; or the least number, how many, and the bound below
which numbers are drawn again."""
OUTER: Final = 14
"""Number of the axes beyond the rows; then size and stride of each, innermost first."""

_u64 = np.uint64
_ZERO, _ATTEMPT = _u64(0), _u64(1 << 16)
_OPERATIONS: Final = {ast.Add: "_plus", ast.Sub: "_minus", ast.Mult: "_times"}


class _Apart(ast.NodeTransformer):
    """Make calls of operators, so that nothing contracts them, and take annotations off."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        name = _OPERATIONS.get(type(node.op))
        if name is None:
            return node
        return ast.Call(ast.Name(name, ast.Load()), [node.left, node.right], [])

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return ast.Name("_root", ast.Load()) if node.attr == "sqrt" else node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(node.arg)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.returns = None
        return node


@device
def _either(condition: Any, a: Any, b: Any) -> Any:
    return a if condition else b


def _compiled(*names: str) -> list[Callable[..., Any]]:
    """Return functions of the formulas for kernels; those that others call come first."""
    instructions = {"_plus": plus, "_minus": minus, "_times": times, "_root": root}
    bits = {"bits_of": bits_of, "double_of": double_of, "either": _either}
    namespace = vars(_formulas) | instructions | bits
    for name in names:
        tree = _Apart().visit(ast.parse(inspect.getsource(getattr(_formulas, name))))
        code = compile(ast.fix_missing_locations(tree), _formulas.__file__, "exec")
        exec(code, namespace)
        namespace[name] = device(namespace[name])
    return [namespace[name] for name in names]


_philox, _unit_double, _unit_single, _, _, _normal_pair, _scaled = _compiled(
    "philox",
    "unit_double",
    "unit_single",
    "logarithm",
    "cosine_and_sine",
    "normal_pair",
    "scaled",
)


# --- how the bits of a block become two numbers --------------------------------------------------


@device
def _two_doubles(x0: Any, x1: Any) -> Any:
    return _unit_double(x0), _unit_double(x1)


@device
def _two_singles(x0: Any, x1: Any) -> Any:
    return _unit_single(x0), _unit_single(x1)


@device
def _put_double(at: int, value: Any) -> None:
    store8(at, bits_of(value))


@device
def _put_single(at: int, value: Any) -> None:
    store4(at, bits_of_single(np.float32(value)))


@device
def _put_two_doubles(at: int, a: Any, b: Any) -> None:
    store16(at, bits_of(a), bits_of(b))


@device
def _put_two_singles(at: int, a: Any, b: Any) -> None:
    upper = bits_of_single(np.float32(b))
    store8(at, bits_of_single(np.float32(a)) | (_u64(upper) << _u64(32)))


@device
def _where(table: int, i: int) -> tuple[int, int, int]:
    """Find slot ``i`` of all rows.

    Return the first element of its row in the block, the place in that row of the counter block's
    even element (-1 where the row begins with the odd one), and the number of the counter block.
    """
    row = 0
    slot = i
    slots_of_row = entry(table + 8 * SLOTS_OF_ROW)
    if entry(table + 8 * SLOTS) != slots_of_row:
        multiplier = entry(table + 8 * MULTIPLIER)
        by_shift = (i * multiplier) >> entry(table + 8 * SHIFT)
        row = by_shift if multiplier else i // slots_of_row
        slot = i - row * slots_of_row
    index = entry(table + 8 * CORNER)
    at = table + 8 * (OUTER + 1)
    rest = row
    for _ in range(entry(table + 8 * OUTER)):
        size = entry(at)
        above = rest // size
        index += (rest - above * size) * entry(at + 8)
        rest = above
        at += 16
    odd = index & 1
    return row * entry(table + 8 * WIDTH), 2 * slot - odd, (index >> 1) + slot


@functools.cache
def floats(kind: str, dtype: str) -> Any:
    """Return the kernel for "uniform" or "normal" numbers of "float32" or "float64"."""
    single = dtype == "float32"
    size = 4 if single else 8
    uniform = _two_singles if single else _two_doubles
    make = _normal_pair if kind == "normal" else uniform
    put = _put_single if single else _put_double
    put_two = _put_two_singles if single else _put_two_doubles

    def fill(table: int, _boxes: int, _tiles: int) -> None:
        k0, k1 = _u64(load8(table + 8 * WORDS)), _u64(load8(table + 8 * (WORDS + 1)))
        c2, c3 = _u64(load8(table + 8 * (WORDS + 2))), _u64(load8(table + 8 * (WORDS + 3)))
        loc = double_of(load8(table + 8 * PARAMETERS))
        scale = double_of(load8(table + 8 * (PARAMETERS + 1)))
        width = entry(table + 8 * WIDTH)
        slots = entry(table + 8 * SLOTS)
        i = table * 0 + cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        while i < slots:
            start, first, block = _where(table, i)
            if first < width:
                x0, x1 = _philox(_u64(block), c2, c3, k0, k1)
                a, b = make(x0, x1)
                y0 = plus(loc, times(scale, a))
                y1 = plus(loc, times(scale, b))
                at = entry(table + 8 * OUT) + (start + first) * size
                if first >= 0 and first + 1 < width:
                    if at % (2 * size) == 0:
                        put_two(at, y0, y1)
                    else:
                        put(at, y0)
                        put(at + size, y1)
                elif first >= 0:
                    put(at, y0)
                elif first + 1 < width:
                    put(at + size, y1)
            i += cuda.gridDim.x * cuda.blockDim.x

    return kernel(fill)


@device
def _drawn(
    x: Any, second: bool, block: Any, among: Any, bound: Any, words: tuple[Any, Any, Any, Any]
) -> Any:
    """Return a number below ``among``, drawn again until it is unbiased."""
    if among == _ZERO:
        return x
    k0, k1, c2, attempt = words
    value, lower = _scaled(x, among)
    while lower < bound:
        attempt = plus(attempt, _ATTEMPT)
        a, b = _philox(block, c2, attempt, k0, k1)
        value, lower = _scaled(b if second else a, among)
    return value


@functools.cache
def integers(size: int) -> Any:
    """Return the kernel for integers of so many bytes."""
    store = {1: store1, 2: store2, 4: store4, 8: store8}[size]

    def fill(table: int, _boxes: int, _tiles: int) -> None:
        k0, k1 = _u64(load8(table + 8 * WORDS)), _u64(load8(table + 8 * (WORDS + 1)))
        c2, c3 = _u64(load8(table + 8 * (WORDS + 2))), _u64(load8(table + 8 * (WORDS + 3)))
        least = _u64(load8(table + 8 * PARAMETERS))
        among = _u64(load8(table + 8 * (PARAMETERS + 1)))
        bound = _u64(load8(table + 8 * (PARAMETERS + 2)))
        words = (k0, k1, c2, c3)
        width = entry(table + 8 * WIDTH)
        slots = entry(table + 8 * SLOTS)
        i = table * 0 + cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        while i < slots:
            start, first, block = _where(table, i)
            if first < width:
                counter = _u64(block)
                x0, x1 = _philox(counter, c2, c3, k0, k1)
                at = entry(table + 8 * OUT) + (start + first) * size
                if first >= 0:
                    store(at, plus(least, _drawn(x0, False, counter, among, bound, words)))
                if first + 1 < width:
                    store(at + size, plus(least, _drawn(x1, True, counter, among, bound, words)))
            i += cuda.gridDim.x * cuda.blockDim.x

    return kernel(fill)
