"""Random programs of array calls, run on simulated ranks and by NumPy.

A program is a list of statements over a few arrays: indexing, assignment, sorting, searching, sets,
scans, reductions, changes of shape and of layout, arithmetic on their results. NumPy runs it while
it is drawn; then all ranks run it and compare every result: values bit for bit, dtype, shape, and
whether the call is an error. What fails is made smaller before it is told::

    python -m tests.array.programs --seed 0 --count 20000
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import distarray as da
from distarray.comm import simulate
from tests.array.strategies import MESH_SHAPES, RANKS, special_items

DTYPES = ("f8", "f4", "i8", "i4", "u1", "?", "c16", "M8[s]", "m8[s]", "U3", "S2", "f2", "u8", "i1")
LENGTHS = (0, 1, 2, 3, 4, 5, 7, 8, 11, 16)
SMALL = np.array([0.0, -0.0, 1, -1, 2, 3, 3, 5, np.nan, np.inf, -np.inf])
"""Items whose sums and products do not depend on their order, but for the signs of zeros."""
SUMMED = [
    "sum",
    "prod",
    "mean",
    "cumsum",
    "cumprod",
    "var",
    "std",
    "dot",
    "average",
    "nansum",
    "trapezoid",
    "nanmean",
    "nancumsum",
    "nanvar",
    "trace",
    "vander",
    "cov",
    "quantile",
    "median",
    "histogram",
]
"""Functions whose results are rounded, and whose zeros have either sign."""

OF_EITHER_ZERO = ("min", "max", "nanmax", "accumulate", "unique", "unique_values", "unique_counts",
                  "union1d", "intersect1d", "setdiff1d", "setxor1d", "sort_complex")  # fmt: skip
"""Functions of which nobody says which of 0.0 and -0.0 they give."""


@dataclass(frozen=True)
class Statement:
    """One call: a function, which earlier results it is given, and what else."""

    name: str
    operands: tuple[int, ...] = ()
    static: tuple[Any, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    number: int = 0
    """Of its result."""


@dataclass
class Program:
    """Statements with what NumPy answers."""

    mesh: tuple[int, ...]
    statements: list[Statement] = field(default_factory=list)
    answers: dict[int, Any] = field(default_factory=dict)
    """Copies of the results, or the error, by number."""


class DifferenceError(AssertionError):
    """A result that is not NumPy's."""


def draw(seed: int, length: int = 8) -> Program:
    """Return the random program of a seed."""
    rng = np.random.default_rng(seed)
    program = Program(MESH_SHAPES[rng.integers(len(MESH_SHAPES))])
    values: dict[int, Any] = {}
    for number in range(int(rng.integers(1, 4))):
        statement = Statement("array", (), _array(rng, program.mesh), (), number)
        _answer(program, values, statement)
    while len(program.statements) < length:
        number = len(program.statements)
        arrays = [n for n, v in values.items() if isinstance(v, np.ndarray)]
        name, chosen, static, options = _draw_call(rng, arrays, values, program.mesh)
        _answer(program, values, Statement(name, chosen, static, options, number))
    return program


def _answer(program: Program, values: dict[int, Any], statement: Statement) -> None:
    found = _perform(np, statement, values)
    program.statements.append(statement)
    if isinstance(found, np.ndarray) and not found.flags.writeable:
        found = found.copy()
    values[statement.number] = found
    program.answers[statement.number] = _copied(found)


def _copied(found: Any) -> Any:
    if isinstance(found, tuple | list):
        return [np.array(item, copy=True) for item in found]
    return found if isinstance(found, Exception) else np.array(found, copy=True)


def run(program: Program, refused: Counter[str] | None = None) -> None:
    """Run a program on this rank and compare it with NumPy's answers."""
    values: dict[int, Any] = {}
    for statement in program.statements:
        expected = program.answers[statement.number]
        found = _perform(da, statement, values, program.mesh)
        values[statement.number] = found
        if isinstance(found, Exception):
            _compare_errors(statement, found, expected, refused)
            if not isinstance(expected, Exception):
                return  # refused: what follows has no operand
            continue
        if isinstance(expected, Exception):
            if isinstance(found, da.DistArray) and found.mesh.coordinate is None:
                return  # outside of the mesh nobody knows what only values tell
            if (
                statement.name == "setitem"
                and values[statement.operands[min(1, len(statement.operands) - 1)]].size == 1
            ):
                return  # NumPy refuses an array of one item for one place
            raise DifferenceError(
                f"{_line(statement)}: NumPy raises {expected!r}, and we give {found!r}"
            )
        if isinstance(expected, list):
            if len(found) != len(expected):
                raise DifferenceError(
                    f"{_line(statement)}: {len(found)} results for {len(expected)}"
                )
            for one, other in zip(found, expected, strict=True):
                _compare(statement, one, other)
        else:
            _compare(statement, found, expected)


def _compare_errors(
    statement: Statement, found: Exception, expected: Any, refused: Counter[str] | None
) -> None:
    if isinstance(found, da.errors.CommunicationError):
        raise found
    if isinstance(expected, Exception):
        return
    if not isinstance(found, da.errors.DistArrayError):
        raise DifferenceError(
            f"{_line(statement)}: {found!r}, where NumPy gives {expected!r}"
        ) from found
    if refused is not None:
        refused[f"{statement.name}: {str(found)[:120]}"] += 1


def _compare(statement: Statement, found: Any, expected: np.ndarray) -> None:
    if isinstance(found, da.DistArray):
        if found.to_local().shape != found.layout.local_shape():
            raise DifferenceError(
                f"{_line(statement)}: a block of another shape than its layout says"
            )
        if found.mesh.coordinate is None:
            return
        found = found.full_array()
    found = np.asarray(found)
    if found.dtype.kind in "US" and not found.ndim:
        expected = expected.astype(found.dtype)  # a scalar of NumPy's is as long as its text
    same = found.shape == expected.shape and found.dtype == expected.dtype
    if same and statement.name in SUMMED and found.dtype.kind in "fc":
        eps = np.finfo(found.dtype).eps
        with np.errstate(all="ignore"):
            same = np.allclose(found, expected, 64 * eps, 64 * eps, equal_nan=True)
    elif same and found.dtype.kind in "fc":
        parts = [(found, expected)] if found.dtype.kind == "f" else [
            (found.real, expected.real), (found.imag, expected.imag)]  # fmt: skip
        same = all(
            np.array_equal(a, b, equal_nan=True)
            and np.array_equal(np.signbit(a) & (a == 0), np.signbit(b) & (b == 0))
            for a, b in parts
        )
    elif same:
        same = np.array_equal(found, expected, equal_nan=found.dtype.kind in "mM")
    if not same:
        raise DifferenceError(
            f"{_line(statement)}\ngives {_short(found)}\nnot   {_short(expected)}"
        )


def _perform(
    xp: Any, statement: Statement, values: dict[int, Any], mesh: tuple[int, ...] = ()
) -> Any:
    operands = [values.get(number) for number in statement.operands]
    if any(isinstance(value, Exception | None) for value in operands):
        return ValueError("an operand is missing")
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            found = _call(xp, statement, operands, mesh)
            if statement.name in OF_EITHER_ZERO:
                found = (
                    tuple(map(_unsigned, found)) if isinstance(found, tuple) else _unsigned(found)
                )
            return found
        except Exception as error:
            return error.with_traceback(None)


def _unsigned(x: Any) -> Any:
    """Return an array with 0.0 for -0.0."""
    return x + x.dtype.type(0) if getattr(x, "dtype", np.dtype(bool)).kind in "fc" else x


WRITES = ("setitem", "add.at", "sort_in_place")
"""Calls that change an array: a copy, which is their result, since what is a view differs."""


def _call(xp: Any, statement: Statement, operands: list[Any], mesh: tuple[int, ...]) -> Any:
    name, static, options = statement.name, statement.static, dict(statement.options)
    x = operands[0] if operands else None
    if name in WRITES:
        x = x.copy()
    match name:
        case "array":
            value, placements, order, boundaries = static
            return (
                value.copy()
                if xp is np
                else _distributed(value, mesh, placements, order, boundaries)
            )
        case "redistribute":
            return x if xp is np else x.redistribute(_placements(static[0]))
        case "rebalance":
            return x if xp is np else x.rebalance()
        case "getitem":
            return x[_key(static[0], operands[1:])]
        case "setitem":
            of_key = operands[1:] if static[1] is not None else operands[2:]
            x[_key(static[0], of_key)] = operands[1] if static[1] is None else static[1]
            return x
        case "add.at":
            np.add.at(x, _key(static[0], operands[1:]), static[1])
            return x
        case "sort_in_place":
            x.sort(**options)
            return x
        case "operator":
            return _OPERATORS[static[0]](*operands)
        case "accumulate":
            return getattr(np, static[0]).accumulate(x, **options)
        case "concat":
            return xp.concatenate(operands, **options)
        case "stack":
            return xp.stack(operands, **options)
        case "lexsort":
            return xp.lexsort(operands)
        case "unique_values" if xp is np:  # whose own leaves the order open, and joins NaT
            items = np.sort(x, axis=None)
            return items[[True, *(items[1:] != items[:-1])][: items.size]]
    return getattr(xp, name)(*operands, *static, **options)


_OPERATORS: dict[str, Callable[..., Any]] = {
    "+": lambda a, b: a + b,
    "*": lambda a, b: a * b,
    "<": lambda a, b: a < b,
    "==": lambda a, b: a == b,
    "where": lambda a, b: a * (b == b),
}


class _Operand:
    """The place of an array in a key."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"#{self.number}"


def _key(key: Any, operands: list[Any]) -> Any:
    if isinstance(key, tuple):
        return tuple(operands[k.number] if isinstance(k, _Operand) else k for k in key)
    return operands[key.number] if isinstance(key, _Operand) else key


def _placements(given: tuple[Any, ...]) -> list[Any]:
    return [da.Replicate() if p is None else da.Shard(p) for p in given]


def _distributed(value: Any, mesh: tuple[int, ...], placements: Any, order: Any, own: Any) -> Any:
    ranks = np.arange(int(np.prod(mesh))).reshape(mesh)
    layout = da.Layout(
        da.DeviceMesh(ranks),
        _placements(placements),
        value.shape,
        shard_order=order,
        boundaries=own,
    )
    if layout.mesh.coordinate is None:
        return da.distribute_array(value, layout.mesh, layout.placements, src=None)
    block = value[tuple(slice(*ends) for ends in layout.local_box())]
    made = object.__new__(da.DistArray)
    return made._new(np.array(block, value.dtype), layout)


def _array(
    rng: Any, mesh: tuple[int, ...], shape: Any = None, dtype: Any = None
) -> tuple[Any, ...]:
    """Return the static part of a statement that makes an array."""
    if shape is None:
        shape = tuple(int(n) for n in rng.choice(LENGTHS, size=rng.choice((0, 1, 1, 1, 2, 2, 3))))
    dtype = np.dtype(DTYPES[rng.integers(len(DTYPES))] if dtype is None else dtype)
    if dtype.kind in "fc":
        items = SMALL.astype(dtype) if rng.integers(3) else np.arange(-3.0, 4).astype(dtype)
    elif dtype.kind in "iu" and rng.integers(3):
        items = np.arange(5).astype(dtype)
    else:
        items = special_items(dtype)
    value = items[rng.integers(items.size, size=shape)].astype(dtype)
    placements, order = _draw_placements(rng, mesh, len(shape))
    own = {}
    for axis in range(len(shape)):
        blocks = int(
            np.prod([n for n, p in zip(mesh, placements, strict=True) if p == axis], dtype=int)
        )
        if axis in placements and rng.integers(2):
            cuts = sorted(int(c) for c in rng.integers(0, shape[axis] + 1, size=blocks - 1))
            own[axis] = (0, *cuts, shape[axis])
    return np.asarray(value), placements, order, own or None


def _draw_placements(rng: Any, mesh: tuple[int, ...], ndim: int) -> tuple[Any, Any]:
    choices = [None, *range(ndim), *range(ndim)]
    placements = tuple(choices[rng.integers(len(choices))] for _ in mesh)
    order = tuple(int(i) for i in rng.permutation(len(mesh))) if rng.integers(3) == 0 else None
    return placements, order


def _draw_call(rng: Any, arrays: list[int], values: dict[int, Any], mesh: Any) -> Any:
    """Return a call: its name, operands, static arguments and options."""
    while True:
        name = CALLS[rng.integers(len(CALLS))]
        x = int(arrays[rng.integers(len(arrays))])
        if name in SUMMED and not _is_tame(values[x]):
            continue
        found = _DRAW[name](rng, x, arrays, values, mesh)
        if found is not None:
            return (name if found[0] is None else found[0], *found[1:])


def _is_tame(x: np.ndarray) -> bool:
    """Tell whether sums of the items overflow or underflow in no order."""
    if x.dtype.kind in "iu":
        return not x.size or max(abs(int(x.min())), int(x.max())) < 2**40
    if x.dtype.kind not in "fc":
        return True
    sizes = np.abs(x[np.isfinite(x) & (x != 0)])
    return bool(np.all((sizes < 100) & (sizes > 0.01)))


_DRAW: dict[str, Callable[..., Any]] = {}


def _drawn(*names: str, weight: int = 1) -> Callable[[Any], Any]:
    def keep(function: Any) -> Any:
        for name in names:
            _DRAW[name] = function
            WEIGHTS[name] = weight
        return function

    return keep


WEIGHTS: dict[str, int] = {}


@_drawn("array", weight=2)
def _new(rng: Any, x: int, arrays: Any, values: Any, mesh: Any) -> Any:
    return None, (), _array(rng, mesh), ()


@_drawn("redistribute", weight=3)
def _moved(rng: Any, x: int, arrays: Any, values: Any, mesh: Any) -> Any:
    return None, (x,), (_draw_placements(rng, mesh, values[x].ndim)[0],), ()


@_drawn("rebalance", weight=2)
def _evened(rng: Any, x: int, *_: Any) -> Any:
    return None, (x,), (), ()


def _draw_key(rng: Any, x: np.ndarray, arrays: Any, values: Any) -> tuple[Any, tuple[int, ...]]:
    """Return a key and the numbers of the distributed arrays in it."""
    fit = [n for n in arrays if values[n].dtype == bool and values[n].ndim
           and values[n].shape == x.shape[: values[n].ndim]]  # fmt: skip
    if fit and rng.integers(3) == 0:
        return _Operand(0), (int(fit[rng.integers(len(fit))]),)
    entries: list[Any] = []
    used: list[int] = []
    axis = 0
    while axis < x.ndim and rng.integers(6):
        size = x.shape[axis]
        match int(rng.integers(8)):
            case 0 if size:
                entries.append(int(rng.integers(-size, size)))
            case 1:
                entries.append(None)
                continue
            case 2 if size:
                shape = tuple(int(n) for n in rng.choice((0, 1, 2, 3, 9), size=rng.integers(1, 3)))
                entries.append(rng.integers(-size, size, size=shape))
            case 3:
                entries.append(rng.random(size) < 0.5)
            case 4 if size:
                index = [n for n in arrays if values[n].dtype.kind in "iu" and values[n].ndim < 3]
                if index:
                    entries.append(_Operand(len(used)))
                    used.append(int(index[rng.integers(len(index))]))
                else:
                    entries.append([int(i) for i in rng.integers(-size, size, size=3)])
            case 5 if rng.integers(3) == 0:
                entries.append(
                    Ellipsis if Ellipsis not in [e for e in entries if e is Ellipsis] else None
                )
                continue
            case _:
                start, stop = (int(n) for n in rng.integers(-size - 1, size + 2, size=2))
                step = (None, 1, 2, -1, -2)[rng.integers(5)]
                entries.append(
                    slice(start, stop, step) if rng.integers(2) else slice(None, None, step)
                )
        axis += 1
    key = tuple(entries)
    return (key[0] if len(key) == 1 and rng.integers(2) else key), tuple(used)


@_drawn("getitem", weight=14)
def _got(rng: Any, x: int, arrays: Any, values: Any, mesh: Any) -> Any:
    key, used = _draw_key(rng, values[x], arrays, values)
    return None, (x, *used), (key,), ()


@_drawn("setitem", weight=8)
def _set(rng: Any, x: int, arrays: Any, values: Any, mesh: Any) -> Any:
    key, used = _draw_key(rng, values[x], arrays, values)
    same = [n for n in arrays if values[n].dtype == values[x].dtype and n != x]
    if same and rng.integers(2):
        return None, (x, int(same[rng.integers(len(same))]), *used), (key, None), ()
    return None, (x, *used), (key, special_items(values[x].dtype)[0]), ()


@_drawn("add.at", weight=3)
def _add_at(rng: Any, x: int, arrays: Any, values: Any, mesh: Any) -> Any:
    key, used = _draw_key(rng, values[x], arrays, values)
    if values[x].dtype.kind not in "iufc":
        return None
    return None, (x, *used), (key, values[x].dtype.type(1)), ()


def _axis(rng: Any, x: np.ndarray, *, none: bool = True) -> Any:
    if not x.ndim:
        return None if none else 0
    return None if none and rng.integers(4) == 0 else int(rng.integers(-x.ndim, x.ndim))


@_drawn("sort", "argsort", weight=4)
def _sorted(rng: Any, x: int, arrays: Any, values: Any, mesh: Any) -> Any:
    return None, (x,), (), (("axis", _axis(rng, values[x])), ("kind", "stable"))


@_drawn("sort_in_place", weight=1)
def _sorted_in_place(rng: Any, x: int, arrays: Any, values: Any, mesh: Any) -> Any:
    return None, (x,), (), (("axis", _axis(rng, values[x], none=False)), ("kind", "stable"))


@_drawn("lexsort", weight=1)
def _lexsorted(rng: Any, x: int, arrays: Any, values: Any, mesh: Any) -> Any:
    same = [int(n) for n in arrays if values[n].shape == values[x].shape]
    keys = tuple(same[rng.integers(len(same))] for _ in range(rng.integers(1, 4)))
    return None, keys, (), ()


@_drawn("cumsum", "cumprod", "max", "min", "argmax", "argmin", "sum", "any", "all", "nancumsum",
        "nanargmax", "median", "nanmax", "mean", "nanmean", "count_nonzero", "nansum")  # fmt: skip
def _along(rng: Any, x: int, arrays: Any, values: Any, mesh: Any) -> Any:
    return None, (x,), (), (("axis", _axis(rng, values[x])),)


@_drawn("quantile", weight=2)
def _quantile(rng: Any, x: int, arrays: Any, values: Any, mesh: Any) -> Any:
    q = (0.0, 0.5, 0.3, 1.0, [0.1, 0.9])[rng.integers(5)]
    method = ("linear", "lower", "inverted_cdf", "nearest", "weibull")[rng.integers(5)]
    return None, (x,), (q,), (("axis", _axis(rng, values[x])), ("method", method))


@_drawn("accumulate", weight=2)
def _accumulated(rng: Any, x: int, arrays: Any, values: Any, mesh: Any) -> Any:
    name = ("maximum", "minimum", "add", "multiply", "logical_or", "fmax")[rng.integers(6)]
    if name in ("add", "multiply") and values[x].dtype.kind in "fc":
        return None
    return None, (x,), (name,), (("axis", _axis(rng, values[x], none=False)),)


@_drawn("nonzero", "argwhere", "flatnonzero", "unique", "ravel", "transpose",
        "fliplr", "atleast_2d", "trim_zeros", weight=2)  # fmt: skip
@_drawn("unique_values", weight=2)
@_drawn("ediff1d", "rot90", "flipud", "tril", "triu", "atleast_3d", "diagonal", "trace", "vander",
        "sort_complex", "nan_to_num", "isnan", "signbit")  # fmt: skip
def _alone(rng: Any, x: int, *_: Any) -> Any:
    return None, (x,), (), ()


@_drawn("pad", weight=2)
def _padded(rng: Any, x: int, arrays: Any, values: Any, mesh: Any) -> Any:
    modes = ("constant", "edge", "wrap", "reflect", "symmetric", "maximum", "minimum")
    if values[x].dtype.kind in "mM":  # NumPy would round their largest item, and cannot
        modes = modes[:5]
    widths = tuple(tuple(int(n) for n in rng.integers(0, 4, size=2)) for _ in values[x].shape)
    return None, (x,), (widths,), (("mode", modes[rng.integers(len(modes))]),)


@_drawn("array_split")
def _split(rng: Any, x: int, arrays: Any, values: Any, mesh: Any) -> Any:
    axis = _axis(rng, values[x], none=False)
    return "array_split", (x,), (int(rng.integers(1, 6)),), (("axis", axis),)


@_drawn("unique_inverse", "unique_counts", weight=2)
def _tuples(rng: Any, x: int, arrays: Any, values: Any, mesh: Any) -> Any:
    if (values[x] != values[x]).any():  # nobody says which NaN is the first
        return None
    return None, (x,), (), ()


@_drawn("diff", weight=2)
def _differences(rng: Any, x: int, arrays: Any, values: Any, mesh: Any) -> Any:
    return (
        None,
        (x,),
        (),
        (("axis", _axis(rng, values[x], none=False)), ("n", int(rng.integers(3)))),
    )


@_drawn("flip", "roll", weight=2)
def _turned(rng: Any, x: int, arrays: Any, values: Any, mesh: Any) -> Any:
    return "flip", (x,), (), (("axis", _axis(rng, values[x])),)


@_drawn("reshape", weight=2)
def _reshaped(rng: Any, x: int, arrays: Any, values: Any, mesh: Any) -> Any:
    size = values[x].size
    shapes = [(size,), (1, size), (size, 1)] + [
        (d, size // d) for d in (2, 3, 4) if size and size % d == 0
    ]
    return None, (x,), (shapes[rng.integers(len(shapes))],), ()


@_drawn("take", weight=4)
def _taken(rng: Any, x: int, arrays: Any, values: Any, mesh: Any) -> Any:
    axis = _axis(rng, values[x])
    size = values[x].size if axis is None else values[x].shape[axis] if values[x].ndim else 1
    if not size:
        return None
    index = rng.integers(-size, size, size=int(rng.integers(0, 12)))
    mode = ("raise", "wrap", "clip")[rng.integers(3)]
    own = [int(n) for n in arrays if values[n].dtype.kind in "iu"]
    if own and rng.integers(3) == 0:
        return None, (x, own[rng.integers(len(own))]), (), (("axis", axis), ("mode", mode))
    return None, (x,), (index,), (("axis", axis), ("mode", mode))


@_drawn("take_along_axis", weight=2)
def _taken_along(rng: Any, x: int, arrays: Any, values: Any, mesh: Any) -> Any:
    axis = _axis(rng, values[x], none=False)
    fit = [
        int(n) for n in arrays if values[n].dtype == np.int64 and values[n].ndim == values[x].ndim
    ]
    if not fit or not values[x].ndim:
        return None
    return None, (x, fit[rng.integers(len(fit))]), (), (("axis", axis),)


@_drawn("searchsorted", "digitize", weight=3)
def _searched(rng: Any, x: int, arrays: Any, values: Any, mesh: Any) -> Any:
    rows = [int(n) for n in arrays if values[n].ndim == 1]
    if not rows or values[x].dtype.kind in "US":
        return None
    row = rows[rng.integers(len(rows))]
    if not _is_sorted(values[row]):
        return None
    side = ("left", "right")[rng.integers(2)]
    return "searchsorted", (row, x), (), (("side", side),)


def _is_sorted(row: np.ndarray) -> bool:
    return bool(np.array_equal(np.sort(row), row, equal_nan=row.dtype.kind in "fcmM"))


@_drawn("isin", "union1d", "intersect1d", "setdiff1d", "setxor1d", weight=2)
def _pair(rng: Any, x: int, arrays: Any, values: Any, mesh: Any) -> Any:
    same = [int(n) for n in arrays if values[n].dtype == values[x].dtype]
    return None, (x, same[rng.integers(len(same))]), (), ()


@_drawn("operator", weight=8)
def _operated(rng: Any, x: int, arrays: Any, values: Any, mesh: Any) -> Any:
    fit = [int(n) for n in arrays if values[n].dtype == values[x].dtype
           and values[n].shape == values[x].shape]  # fmt: skip
    kind = ("+", "*", "<", "==", "where")[rng.integers(5)]
    return None, (x, fit[rng.integers(len(fit))]), (kind,), ()


@_drawn("compress", "extract", weight=2)
def _compressed(rng: Any, x: int, arrays: Any, values: Any, mesh: Any) -> Any:
    fit = [int(n) for n in arrays if values[n].dtype == bool and values[n].shape == values[x].shape]
    if not fit:
        return None
    return "extract", (fit[rng.integers(len(fit))], x), (), ()


@_drawn("concat", "stack", weight=2)
def _joined(rng: Any, x: int, arrays: Any, values: Any, mesh: Any) -> Any:
    axis = _axis(rng, values[x], none=False)
    fit = [int(n) for n in arrays if values[n].shape == values[x].shape]
    return None, (x, fit[rng.integers(len(fit))]), (), (("axis", axis),)


@_drawn("bincount", weight=2)
def _counted(rng: Any, x: int, arrays: Any, values: Any, mesh: Any) -> Any:
    if (
        values[x].ndim != 1
        or values[x].dtype.kind not in "iu"
        or (values[x].size and values[x].max() > 99)
    ):
        return None
    return None, (x,), (), ()


@_drawn("histogram", weight=2)
def _histogram(rng: Any, x: int, arrays: Any, values: Any, mesh: Any) -> Any:
    return None, (x,), (int(rng.integers(1, 6)),), (("range", (-1, 4)),)


ABSENT = ("redistribute", "rebalance", "getitem", "setitem", "add.at", "operator", "accumulate")
ABSENT += ("array", "sort_in_place", "concat")
"""Calls that are no functions of the namespace."""
CALLS = [
    name
    for name, weight in WEIGHTS.items()
    if name in ABSENT or hasattr(da, name)
    for _ in range(weight)
]


def failures(seeds: Iterator[int] | range, refused: Counter[str], batch: int = 25) -> Iterator[Any]:
    """Run the programs of seeds and give each that differs with its message, made smaller."""
    seeds = list(seeds)
    for first in range(0, len(seeds), batch):
        programs = {seed: draw(seed) for seed in seeds[first : first + batch]}
        found = _errors_of(list(programs.values()), refused)
        for (seed, program), message in zip(programs.items(), found, strict=True):
            if message is not None:
                yield seed, *_smaller(program, message)


def _errors_of(programs: list[Program], refused: Counter[str]) -> list[str | None]:
    def work() -> tuple[list[str | None], Counter[str]]:
        messages: list[str | None] = []
        counts: Counter[str] = Counter()
        for program in programs:
            try:
                run(program, counts)
                messages.append(None)
            except DifferenceError as difference:
                messages.append(str(difference))
        return messages, counts

    try:
        found = simulate(RANKS, work, timeout=60)
    except Exception as error:
        if len(programs) == 1:
            return [f"{type(error).__name__}: {error}"]
        return [message for program in programs for message in _errors_of([program], refused)]
    refused.update(found[0][1])
    return [
        next((m for m in ranks if m), None) for ranks in zip(*(f[0] for f in found), strict=True)
    ]


def _smaller(program: Program, message: str) -> tuple[Program, str]:
    """Leave out statements that the difference does not need."""
    for statement in reversed(list(program.statements)):
        kept = [s for s in program.statements if s is not statement]
        if any(statement.number in s.operands for s in kept):
            continue
        shorter = Program(program.mesh)
        values: dict[int, Any] = {}
        for one in kept:
            _answer(shorter, values, one)
        (found,) = _errors_of([shorter], Counter())
        if found is not None:
            program, message = shorter, found
    return program, message


def _short(value: np.ndarray) -> str:
    text = " ".join(repr(value).split())
    return f"{value.shape} {value.dtype} {text[:500]}"


def _line(statement: Statement) -> str:
    operands = "".join(f" #{number}" for number in statement.operands)
    static = " ".join(repr(item).replace("\n", "") for item in statement.static)
    options = "".join(f" {name}={value!r}" for name, value in statement.options)
    return f"  #{statement.number} = {statement.name}{operands} {static}{options}"


def main() -> None:
    """Run programs from the command line."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seed", type=int, default=0, help="of the first program")
    options.add_argument("--count", type=int, default=1000, help="how many programs")
    given = options.parse_args()
    refused: Counter[str] = Counter()
    wrong = 0
    started = time.perf_counter()
    for seed, program, message in failures(range(given.seed, given.seed + given.count), refused):
        wrong += 1
        lines = "\n".join(map(_line, program.statements))
        print(f"seed {seed} on {program.mesh}:\n{lines}\n{message}\n", flush=True)
    for text, count in refused.most_common():
        print(f"refused {count:6d}  {text}")
    print(f"{given.count} programs, {wrong} differ, {time.perf_counter() - started:.0f} s")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
