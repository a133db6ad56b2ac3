"""The formulas compiled for a GPU: one thread makes the four numbers of a counter block.

Each product of floating-point numbers is one of libdevice that the compiler does not fuse with a
sum (see `comm.cuda._numba`): it would round once where the host rounds twice. So the numbers are
those of the host, bit for bit.
"""

# ruff: noqa: ARG001 - what makes numbers has the same parameters for all kinds

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
_ZERO, _ONE = _u64(0), _u64(1)
_multiply, _root = libdevice.dmul_rn, libdevice.dsqrt_rn


class _Plain(ast.NodeTransformer):
    """Take annotations off, and make calls of products and square roots of floats."""

    def __init__(self, of_floats: bool) -> None:
        self._of_floats = of_floats

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not self._of_floats or not isinstance(node.op, ast.Mult):
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


def _compile(*names: str, of_floats: bool = True) -> list[Callable[..., Any]]:
    """Return formulas for kernels; those that others call come first."""
    stand_ins = {"bits_of": bits_of, "double_of": double_of}
    namespace = vars(_formulas) | stand_ins | {"_multiply": _multiply, "_root": _root}
    for name in names:
        tree = _Plain(of_floats).visit(ast.parse(inspect.getsource(getattr(_formulas, name))))
        code = compile(ast.fix_missing_locations(tree), _formulas.__file__, "exec")
        exec(code, namespace)
        namespace[name] = device(namespace[name])
    return [namespace[name] for name in names]


_scaled, _, _philox = _compile("scaled", "mix", "philox", of_floats=False)
_unit_double, _unit_single, _, _, _exponential, _, _normal_pair = _compile(
    "unit_double", "unit_single", "split_double", "logarithm", "exponential", "cosine_and_sine",
    "normal_pair",
)  # fmt: skip


@device
def _find_slot(table: Any, i: int) -> tuple[int, int, int]:
    """Find slot ``i`` of all rows.

    Return the first element of its row in the block, the place in that row of the counter block's
    first element (-1 to -3 where the row begins with a later one), and the number of that block.
    """
    row, slot = 0, i
    if table[SLOTS] != table[SLOTS_OF_ROW]:  # a division of 64 bits takes long
        row = i // table[SLOTS_OF_ROW]
        slot = i - row * table[SLOTS_OF_ROW]
    index = table[CORNER]
    rest = row
    for axis in range(table[OUTER]):
        size = table[OUTER + 1 + 2 * axis]
        above = rest // size
        index += (rest - above * size) * table[OUTER + 2 + 2 * axis]
        rest = above
    return row * table[WIDTH], 4 * slot - (index & 3), (index >> 2) + slot


@device
def _draw(
    x: Any, word: int, block: Any, among: Any, bound: Any, words: tuple[Any, Any, Any, Any]
) -> Any:
    """Return a number below ``among``, drawn again until it is unbiased."""
    if among == _ZERO:
        return x
    k0, k1, call, attempt = words
    value, lower = _scaled(x, among)
    while lower < bound:
        attempt = attempt + _ONE
        a, b, c, d = _philox(block, call, attempt, k0, k1)
        if word == 0:
            x = a
        elif word == 1:
            x = b
        elif word == 2:
            x = c
        else:
            x = d
        value, lower = _scaled(x, among)
    return value


# What is made of two random numbers of a counter block, the first of which is `word`, with the
# parameters of the kernel.


@device
def _two_integers(x0: Any, x1: Any, word: int, block: Any, words: Any, parameters: Any) -> Any:
    least, among, bound = parameters
    first = least + _draw(x0, word, block, among, bound, words)
    return first, least + _draw(x1, word + 1, block, among, bound, words)


@device
def _two_normal(x0: Any, x1: Any, word: int, block: Any, words: Any, parameters: Any) -> Any:
    a, b = _normal_pair(_unit_double(x0), _unit_double(x1))
    loc, scale, _ = parameters
    return loc + _multiply(scale, a), loc + _multiply(scale, b)


@device
def _two_exponentials(x0: Any, x1: Any, word: int, block: Any, words: Any, parameters: Any) -> Any:
    a, b = _exponential(_unit_double(x0)), _exponential(_unit_double(x1))
    loc, scale, _ = parameters
    return loc + _multiply(scale, a), loc + _multiply(scale, b)


@device
def _two_doubles(x0: Any, x1: Any, word: int, block: Any, words: Any, parameters: Any) -> Any:
    loc, scale, _ = parameters
    return loc + _multiply(scale, _unit_double(x0)), loc + _multiply(scale, _unit_double(x1))


@device
def _two_singles(x0: Any, x1: Any, word: int, block: Any, words: Any, parameters: Any) -> Any:
    loc, scale, _ = parameters
    return loc + _multiply(scale, _unit_single(x0)), loc + _multiply(scale, _unit_single(x1))


@functools.cache
def kernel(kind: str, dtype: str) -> Any:
    """Return the kernel for an "integer", or "uniform", "normal" or "exponential" floats."""
    make = {
        "uniform": _two_singles if dtype == "float32" else _two_doubles,
        "normal": _two_normal,
        "exponential": _two_exponentials,
        "integer": _two_integers,
    }[kind]

    @cuda.jit
    def fill(out: Any, table: Any, p0: Any, p1: Any, p2: Any) -> None:
        k0, k1, call, turn = (
            _u64(table[WORDS]), _u64(table[WORDS + 1]),
            _u64(table[WORDS + 2]), _u64(table[WORDS + 3]),
        )  # fmt: skip
        words, parameters = (k0, k1, call, turn), (p0, p1, p2)
        width = table[WIDTH]
        i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        while i < table[SLOTS]:
            start, first, block = _find_slot(table, i)
            if first < width:
                counter = _u64(block)
                x0, x1, x2, x3 = _philox(counter, call, turn, k0, k1)
                a, b = make(x0, x1, 0, counter, words, parameters)
                c, d = make(x2, x3, 2, counter, words, parameters)
                start += first
                if first >= 0:
                    out[start] = a
                if -1 <= first < width - 1:
                    out[start + 1] = b
                if -2 <= first < width - 2:
                    out[start + 2] = c
                if first < width - 3:
                    out[start + 3] = d
            i += cuda.gridDim.x * cuda.blockDim.x

    return fill
