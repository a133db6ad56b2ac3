"""The formulas compiled for a GPU: one thread makes the two numbers of a counter block.

Each product of floating-point numbers is one of libdevice that the compiler does not fuse with a
sum (see `comm.cuda._numba`): it would round once where the host rounds twice. So the numbers are
those of the host, bit for bit.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from distarray.comm.cuda._numba import bits_of, cuda, device, double_of, libdevice
from distarray.random import _formulas

# Entries of the table.
SLOTS: Final = 0
"""Counter blocks of all rows, and below of each row, at most."""
SLOTS_OF_ROW: Final = 1
WIDTH: Final = 2
"""Elements of a row."""
CORNER: Final = 3
"""Linear index of the block's first element in the global array."""
WORDS: Final = 4
"""Four entries: two words of the key, two of the counter."""
OUTER: Final = 8
"""Number of the axes beyond the rows; then size and stride of each, innermost first."""

_u64 = np.uint64
_ZERO, _ATTEMPT = _u64(0), _u64(1 << 16)
_multiply, _root = libdevice.dmul_rn, libdevice.dsqrt_rn


class _Unfused(ast.NodeTransformer):
    """Make calls of products and square roots, and take annotations off."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Mult):
            return node
        return ast.Call(ast.Name("_multiply", ast.Load()), [node.left, node.right], [])

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
    """Return formulas of floating point for kernels; those that others call come first."""
    stand_ins = {"bits_of": bits_of, "double_of": double_of, "either": _either}
    namespace = vars(_formulas) | stand_ins | {"_multiply": _multiply, "_root": _root}
    for name in names:
        tree = _Unfused().visit(ast.parse(inspect.getsource(getattr(_formulas, name))))
        code = compile(ast.fix_missing_locations(tree), _formulas.__file__, "exec")
        exec(code, namespace)
        namespace[name] = device(namespace[name])
    return [namespace[name] for name in names]


_philox, _scaled = device(_formulas.philox), device(_formulas.scaled)
_unit_double, _unit_single, _, _, _normal_pair = _compiled(
    "unit_double", "unit_single", "logarithm", "cosine_and_sine", "normal_pair"
)


@device
def _two_doubles(x0: Any, x1: Any) -> Any:
    return _unit_double(x0), _unit_double(x1)


@device
def _two_singles(x0: Any, x1: Any) -> Any:
    return _unit_single(x0), _unit_single(x1)


@device
def _words(table: Any) -> tuple[Any, Any, Any, Any]:
    """Return the words of key and counter."""
    return (
        _u64(table[WORDS]),
        _u64(table[WORDS + 1]),
        _u64(table[WORDS + 2]),
        _u64(table[WORDS + 3]),
    )


@device
def _find_slot(table: Any, i: int) -> tuple[int, int, int]:
    """Find slot ``i`` of all rows.

    Return the first element of its row in the block, the place in that row of the counter block's
    even element (-1 where the row begins with the odd one), and the number of the counter block.
    """
    row = i // table[SLOTS_OF_ROW]
    slot = i - row * table[SLOTS_OF_ROW]
    index = table[CORNER]
    rest = row
    for axis in range(table[OUTER]):
        size = table[OUTER + 1 + 2 * axis]
        above = rest // size
        index += (rest - above * size) * table[OUTER + 2 + 2 * axis]
        rest = above
    odd = index & 1
    return row * table[WIDTH], 2 * slot - odd, (index >> 1) + slot


@functools.cache
def floats(kind: str, dtype: str) -> Any:
    """Return the kernel for "uniform" or "normal" numbers of "float32" or "float64"."""
    uniform = _two_singles if dtype == "float32" else _two_doubles
    make = _normal_pair if kind == "normal" else uniform

    @cuda.jit
    def fill(out: Any, table: Any, loc: float, scale: float) -> None:
        k0, k1, c2, c3 = _words(table)
        width = table[WIDTH]
        i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        while i < table[SLOTS]:
            start, first, block = _find_slot(table, i)
            if first < width:
                x0, x1 = _philox(_u64(block), c2, c3, k0, k1)
                a, b = make(x0, x1)
                if first >= 0:
                    out[start + first] = loc + _multiply(scale, a)
                if first + 1 < width:
                    out[start + first + 1] = loc + _multiply(scale, b)
            i += cuda.gridDim.x * cuda.blockDim.x

    return fill


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
        attempt = attempt + _ATTEMPT
        a, b = _philox(block, c2, attempt, k0, k1)
        value, lower = _scaled(b if second else a, among)
    return value


@functools.cache
def integers(dtype: str) -> Any:
    """Return the kernel for integers, written as "uint8", "uint16", "uint32" or "uint64"."""
    del dtype  # it is compiled for each

    @cuda.jit
    def fill(out: Any, table: Any, least: Any, among: Any, bound: Any) -> None:
        words = _words(table)
        k0, k1, c2, c3 = words
        width = table[WIDTH]
        i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        while i < table[SLOTS]:
            start, first, block = _find_slot(table, i)
            if first < width:
                counter = _u64(block)
                x0, x1 = _philox(counter, c2, c3, k0, k1)
                if first >= 0:
                    out[start + first] = least + _drawn(x0, False, counter, among, bound, words)
                if first + 1 < width:
                    out[start + first + 1] = least + _drawn(x1, True, counter, among, bound, words)
            i += cuda.gridDim.x * cuda.blockDim.x

    return fill
