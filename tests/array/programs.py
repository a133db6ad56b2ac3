"""Random programs of array calls, run on simulated ranks and by NumPy.

A program is a list of statements over a few arrays: indexing, assignment, sorting, searching, sets,
scans, reductions, changes of shape and of layout, arithmetic on their results. NumPy runs it while
it is drawn; then all ranks run it and compare every result: values bit for bit, dtype, shape, and
whether the call is an error. What fails is made smaller before it is told::

    python -m tests.array.programs --seed 0 --count 20000

A call is a row of `ROWS`: a function that draws its arguments, and what may be compared.
"""

from __future__ import annotations

import argparse
import math
import operator
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pytest

import distarray as da
from distarray.comm import _grouping, _states, simulate
from distarray.core import new_array
from distarray.core.engine import _pipeline
from distarray.core.families import _folding
from distarray.ops import _extraction
from distarray.ops.families import _selection
from distarray.ops.searching import _searchsorted
from distarray.ops.sets import _membership
from distarray.ops.sorting import _block_sort, _exchange, _multiselection, _sort
from distarray.ops.statistical import _histograms, _quantiles
from distarray.redistribute import _execute, _small_blocks
from distarray.testing import reset
from tests.array.strategies import MESH_SHAPES, RANKS, Case, special_items
from tests.ops.test_every_row import BY_ITEM, CHOICES, COMPUTED, EXACT, LEAST_AXES, NUMPYS

FIELDS = np.dtype([("a", "i4"), ("b", ">f8"), ("c", "U2")])
DTYPES = ("f8", "f8", "f4", "i8", "i8", "i4", "u1", "?", "?", "c16", "M8[s]", "m8[s]", "U3", "S2",
          "f2", "u8", "i1", "c8", ">f8", ">i4", ">U3", ">M8[s]", ">c16", FIELDS)  # fmt: skip
LENGTHS = (0, 1, 2, 3, 4, 5, 7, 8, 11, 16)
MOST_ITEMS = 600
"""Of an operand: NumPy's time for what is made of several is bounded with it."""
SMALL = np.array([0.0, -0.0, 1, -1, 2, 3, 3, 5, np.nan, np.inf, -np.inf])
"""Items whose sums do not depend on their order, but for the signs of zeros."""
OPS = {"b": ("any", "all"), "i": ("sum", "prod", "min", "max", "band", "bor", "bxor"),
       "u": ("sum", "prod", "min", "max", "band", "bor", "bxor"),
       "f": ("sum", "min", "max", "avg"), "c": ("sum", "avg")}  # fmt: skip
"""What blocks that are `Partial` may be reduced by, of each kind of dtype."""
MEMORY = ("own", "own", "read-only", "strided", "backwards", "from_local")
"""Blocks in memory of different kinds."""
QUANTILES = ("inverted_cdf", "averaged_inverted_cdf", "closest_observation",
           "interpolated_inverted_cdf", "hazen", "weibull", "linear", "median_unbiased",
           "normal_unbiased", "lower", "higher", "midpoint", "nearest")  # fmt: skip
MODES = ("constant", "edge", "wrap", "reflect", "symmetric", "maximum", "minimum", "empty", "mean",
         "median", "linear_ramp")  # fmt: skip


METHODS = ["all", "any", "argmax", "argmin", "argsort", "choose", "clip", "cumprod", "cumsum",
           "diagonal", "dot", "max", "mean", "min", "nonzero", "prod", "ravel",
           "repeat", "reshape", "searchsorted", "squeeze", "sum", "swapaxes",
           "take", "transpose", "var"]  # fmt: skip
"""Functions that are methods of arrays, with the same arguments."""
SMALL_LIMITS: dict[Any, dict[str, int]] = {
    _exchange: {"GATHERED_BYTES": 0},
    _sort: {"_MOST_LINES": 2},
    _block_sort: {"_NUMPY_ITEMS": 4},
    _multiselection: {"_FEW_BYTES": 0, "_ROUND_BYTES": 400},
    _small_blocks: {"_MOST_BYTES": -1},
    _quantiles: {
        "GATHERED_BYTES": 0,
        "_SORTED_ITEMS": -1,
        "_SAMPLE": 4,
        "_PIECE": 3,
        "_FEW_LINES": 0,
    },
    _histograms: {"_ALWAYS_DENSE": 0},
    _searchsorted: {"FEW_BYTES": 0, "_LEAST_QUERIES": 1, "_SORTED_QUERIES": 2},
    _membership: {"FEW_BYTES": 0, "_FEW_SOUGHT": -1, "_PIECE": 3},
    _extraction: {"FEW_BYTES": 0},
    _selection: {"SPREAD_ITEMS": 20},
    _states: {"SMALL_BYTES": 0, "FOLDED_BY_ALL": 0},
    _grouping: {"_FEW_ROWS": 0},
    _execute: {"_READ_BY_ALL": 0},
    _pipeline: {"_MANY_STATES": 0, "FOLDED_BY_ALL": 0},
    _folding: {"_SMALL_BLOCK": 0},
}
"""What makes small arrays take the ways of large ones."""


# --- programs -------------------------------------------------------------------------------------


class Setting(NamedTuple):
    """How a group of programs runs."""

    ranks_per_node: int | None = None
    as_if_large: bool = False


USUAL = Setting()
RAN = "programs"
GROUP = 25
"""Programs that run together, so that ranks are made once."""


def setting_of(seed: int) -> Setting:
    """Return how the program of a seed runs."""
    group = seed // GROUP
    return Setting((None, None, 2, 1)[group % 4], group % 3 == 1)


@contextmanager
def limits(setting: Setting) -> Iterator[None]:
    """Have small arrays take the ways of large ones, in some settings."""
    if not setting.as_if_large:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        reset()  # what is kept has been made for other limits
        for module, values in SMALL_LIMITS.items():
            for name, value in values.items():
                patch.setattr(module, name, value)
        yield
    reset()


@dataclass(frozen=True)
class Ref:
    """An earlier result, or one of several that a call gave."""

    number: int
    part: int | None = None
    value: Any = field(default=None, compare=False)
    """NumPy's, while a program is drawn."""

    def __repr__(self) -> str:
        return f"#{self.number}" + ("" if self.part is None else f"[{self.part}]")


@dataclass(frozen=True)
class New:
    """An array that a program begins with."""

    case: Case
    memory: str

    def __repr__(self) -> str:
        case = self.case
        given = f"{case.values.dtype.str!r} " if case.values.dtype.names is None else ""
        given += f"{case.values[0].tolist() if case.op is None else case.values.tolist()}"
        own = f" boundaries={dict(case.boundaries)}" if case.boundaries else ""
        order = "" if case.order is None else f" shard_order={case.order}"
        return (
            f"{given} {case.shape} {' '.join(map(str, case.placements))}{order}{own} {self.memory}"
        )


@dataclass(frozen=True)
class Statement:
    """One call: the name of its row, and its arguments, in which earlier results are a `Ref`."""

    name: str
    args: tuple[Any, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    number: int = 0
    """Of its result."""
    way: str = ""
    """"np." where NumPy's own function is called with our arrays, "x." where it is a method."""

    def operands(self) -> list[Ref]:
        """Return the earlier results among the arguments."""
        found: list[Ref] = []
        _mapped((self.args, self.options), lambda ref: found.append(ref))
        return found

    def __str__(self) -> str:
        given = [repr(item).replace("\n", "") for item in self.args]
        given += [f"{name}={value!r}".replace("\n", "") for name, value in self.options]
        return f"  #{self.number} = {self.way}{self.name}({', '.join(given)})"


def _mapped(tree: Any, change: Callable[[Ref], Any]) -> Any:
    """Return nested arguments with something in the place of every `Ref`."""
    if isinstance(tree, Ref):
        return change(tree)
    if type(tree) in (tuple, list):
        return type(tree)(_mapped(item, change) for item in tree)
    return tree


@dataclass
class Program:
    """Statements with what NumPy answers."""

    mesh: tuple[int, ...]
    ranks: tuple[int, ...]
    setting: Setting = USUAL
    statements: list[Statement] = field(default_factory=list)
    values: dict[int, Any] = field(default_factory=dict)
    """NumPy's results, or the error, by number; those that are views may be written into."""
    answers: dict[int, Any] = field(default_factory=dict)
    """Copies of them."""

    def add(self, statement: Statement) -> Any:
        """Run a statement by NumPy."""
        with _unwarned():
            found = _perform(np, statement, self.values)
        if isinstance(found, np.ndarray) and not found.flags.writeable:
            found = found.copy()
        self.statements.append(statement)
        self.values[statement.number] = found
        self.answers[statement.number] = _copied(found)
        return found


@contextmanager
def _unwarned() -> Iterator[None]:
    """Ignore warnings, by filters that all threads share: enter it outside of ranks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _copied(found: Any) -> Any:
    if isinstance(found, tuple | list):
        return [np.array(item, copy=True) for item in found]
    return found if isinstance(found, Exception) else np.array(found, copy=True)


class DifferenceError(AssertionError):
    """A result that is not NumPy's."""


class MissingError(Exception):
    """An operand that a refused call did not give."""


def run(program: Program, refused: Counter[str] | None = None) -> None:
    """Run a program on this rank and compare it with NumPy's answers."""
    values: dict[int, Any] = {}
    outside = False
    for statement in program.statements:
        expected = program.answers[statement.number]
        found = _perform(da, statement, values, program.ranks)
        values[statement.number] = found
        refused = None if outside else refused
        outside |= isinstance(found, da.DistArray) and found.mesh.coordinate is None
        if isinstance(found, MissingError):
            continue
        if isinstance(found, Exception):
            _compare_errors(statement, found, expected, refused)
        elif outside:
            continue  # of the mesh, where nobody knows what only values tell
        elif isinstance(expected, Exception):
            if statement.name in ("setitem", "view"):
                continue  # of NumPy's, one item for one place may have no axes
            raise DifferenceError(f"{statement}: NumPy raises {expected!r}, and we give {found!r}")
        elif isinstance(expected, list):
            if len(found) != len(expected):
                raise DifferenceError(f"{statement}: {len(found)} results for {len(expected)}")
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
        if isinstance(found, da.errors.DistArrayError | TypeError | ValueError | IndexError):
            return
        raise DifferenceError(f"{statement}: {found!r}, where NumPy raises {expected!r}") from found
    if not isinstance(found, da.errors.DistArrayError):
        raise DifferenceError(f"{statement}: {found!r}, where NumPy gives {expected!r}") from found
    if refused is not None:
        refused[f"{statement.name}: {str(found)[:160]}"] += 1


def _compare(statement: Statement, found: Any, expected: np.ndarray) -> None:
    if isinstance(found, da.DistArray):
        if found.to_local().shape != found.layout.local_shape():
            raise DifferenceError(f"{statement}: a block of another shape than its layout says")
        found = found.full_array()
    found = np.asarray(found)
    if not found.ndim:  # a scalar of NumPy's is as long as its text, in its order of bytes
        to = found.dtype if found.dtype.kind in "US" else expected.dtype.newbyteorder(
            found.dtype.byteorder)  # fmt: skip
        expected = expected.astype(to) if expected.dtype.kind == found.dtype.kind else expected
    same = found.shape == expected.shape and found.dtype == expected.dtype
    if not same or not _same(found, expected, ROWS[statement.name].same):
        raise DifferenceError(f"{statement}\ngives {_short(found)}\nnot   {_short(expected)}")


def _same(found: np.ndarray, expected: np.ndarray, how: str) -> bool:
    if found.dtype.names is not None:
        return all(_same(found[name], expected[name], how) for name in found.dtype.names)
    if found.dtype.kind == "c":
        if how == "any NaN":
            found, expected = (
                np.where(x != x, complex(np.nan, np.nan), x) for x in (found, expected)
            )
        if how != "rounded":
            return _same(found.real, expected.real, how) and _same(found.imag, expected.imag, how)
    if found.dtype.kind not in "fc":
        return np.array_equal(found, expected, equal_nan=found.dtype.kind in "mM")
    if how == "rounded":
        eps = float(np.finfo(found.dtype).eps)
        with np.errstate(all="ignore"):
            most = float(np.max(np.abs(expected), initial=1, where=np.isfinite(expected)))
            return np.allclose(found, expected, 256 * eps, 256 * eps * most, equal_nan=True)
    return np.array_equal(found, expected, equal_nan=True) and (
        how != ""
        or np.array_equal(np.signbit(found) & (found == 0), np.signbit(expected) & (expected == 0))
    )


def _perform(
    xp: Any, statement: Statement, values: dict[int, Any], ranks: tuple[int, ...] = ()
) -> Any:
    def given(ref: Ref) -> Any:
        value = values[ref.number]
        if isinstance(value, Exception):
            raise MissingError
        if ref.part is None:
            return value
        if ref.part >= len(value):  # of a list whose length is not known outside of the mesh
            raise MissingError
        return value[ref.part]

    with np.errstate(all="ignore"):
        try:
            args, options = _mapped((statement.args, statement.options), given)
            if statement.name == "array":
                return args[0].case.value.copy() if xp is np else _made(args[0], ranks)
            own = OWN.get(statement.name)
            if own is not None:
                return own(xp, *args, **dict(options))
            if statement.way == "x.":
                return getattr(args[0], statement.name)(*args[1:], **dict(options))
            space = np if statement.way else xp
            return getattr(space, statement.name)(*args, **dict(options))
        except Exception as error:
            return error.with_traceback(None)


def _made(new: New, ranks: tuple[int, ...]) -> Any:
    x = replace(new.case, ranks=ranks).build()
    block = x.to_local()
    match new.memory:
        case "read-only":
            block.flags.writeable = False
        case "strided" if block.ndim:
            block = np.repeat(block, 2, axis=-1)[..., ::2]
        case "backwards" if block.ndim:
            block = np.flip(block.copy().T).T
            block[...] = x.to_local()
        case "from_local" if new.case.order is None:
            return da.DistArray.from_local(block, x.mesh, x.placements)
    return new_array(block, x.layout)


# --- drawing --------------------------------------------------------------------------------------


class UnfitError(Exception):
    """No arguments of a call fit the arrays that there are."""


class Draw:
    """A program that is drawn: its random choices, and the arrays that it has."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        shape = MESH_SHAPES[self.int(len(MESH_SHAPES))]
        ranks = range(RANKS) if self.rng.integers(3) else self.rng.permutation(RANKS)
        self.program = Program(
            shape, tuple(int(r) for r in ranks)[: math.prod(shape)], setting_of(seed)
        )
        self.arrays: list[Ref] = []
        self.averages = self.int(4) == 0
        """Whether there are any: extreme items written into their blocks would overflow."""

    # choices

    def int(self, low: int, high: int | None = None) -> int:
        """Return an integer below the last argument."""
        low, high = (0, low) if high is None else (low, high)
        return int(self.rng.integers(low, max(high, low + 1)))

    def one(self, *choices: Any) -> Any:
        """Return one of the choices."""
        return choices[self.int(len(choices))]

    def some(self, **options: Any) -> dict[str, Any]:
        """Return each option, or not."""
        return {name: value for name, value in options.items() if self.int(2)}

    def ints(self, low: int, high: int, size: Any) -> np.ndarray:
        """Return an array of integers."""
        return (
            np.asarray(self.rng.integers(low, high, size=size)) if high > low else np.zeros(0, int)
        )

    def axis(self, x: Ref, *, none: bool = False) -> Any:
        """Return an axis, or None."""
        ndim = x.value.ndim
        if none and (self.int(4) == 0 or not ndim):
            return None
        return self.int(-ndim, ndim) if ndim else self.one(0, -1)

    def axes(self, x: Ref) -> Any:
        """Return what reductions take: None, an axis, or several."""
        ndim = x.value.ndim
        if ndim < 2 or self.int(3):
            return self.axis(x, none=True)
        return tuple(int(a) for a in self.rng.permutation(ndim)[: self.int(ndim + 1)])

    # operands

    def find(self, fits: Callable[[np.ndarray], bool]) -> Ref:
        """Return an array that fits."""
        found = [ref for ref in self.arrays if fits(ref.value)]
        if not found:
            raise UnfitError
        return found[self.int(len(found))]

    def given(self, fits: Callable[[np.ndarray], bool], shape: Any, dtype: Any) -> Ref:
        """Return an array that fits, or a new one of this shape and dtype."""
        if self.int(3):
            found = [ref for ref in self.arrays if fits(ref.value)]
            if found:
                return found[self.int(len(found))]
        return self.new(shape, dtype)

    def like(self, x: Ref, dtype: Any = None) -> Ref:
        """Return an array of the same shape, and dtype unless one is given."""
        dtype = x.value.dtype if dtype is None else np.dtype(dtype)
        shape = x.value.shape
        return self.given(lambda v: v.shape == shape and v.dtype == dtype, shape, dtype)

    def kin(self, x: Ref) -> Ref:
        """Return an array of the same dtype."""
        return self.given(lambda v: v.dtype == x.value.dtype, None, x.value.dtype)

    def fitting(self, x: Ref, dtype: Any = None) -> Ref:
        """Return an array whose shape broadcasts to that of another."""
        shape = x.value.shape[self.int(x.value.ndim + 1) :]
        shape = tuple(self.one(n, n, n, 1) for n in shape)
        dtype = x.value.dtype if dtype is None else dtype
        return self.given(lambda v: v.shape == shape and v.dtype == dtype, shape, dtype)

    def line(self, dtype: Any, size: int | None = None) -> Ref:
        """Return an array of one axis."""
        size = self.one(*LENGTHS) if size is None else size
        return self.given(lambda v: v.shape == (size,) and v.dtype == dtype, (size,), dtype)

    def new(self, shape: Any = None, dtype: Any = None, items: Any = None, memory: str = "") -> Ref:
        """Add a new array."""
        dtype = np.dtype(DTYPES[self.int(len(DTYPES))] if dtype is None else dtype)
        if shape is None:
            shape = tuple(self.one(*LENGTHS) for _ in range(self.one(0, 1, 1, 1, 2, 2, 3)))
        shape = tuple(map(int, shape))
        while math.prod(shape) > MOST_ITEMS:
            shape = tuple(n // 2 for n in shape)
        ops = [op for op in OPS.get(dtype.kind, ()) if op != "avg" or self.averages]
        placements, order = self.placements(len(shape), ops)
        mesh = self.program.mesh
        pairs = list(zip(mesh, placements, strict=True))
        op = next((p.op for p in placements if type(p) is da.Partial), None)
        count = math.prod(n for n, p in pairs if type(p) is da.Partial)
        items = self.items(dtype) if items is None else np.asarray(items, dtype)
        if op is not None and dtype.kind in "fc":
            items = (
                items[(items == items) & (np.abs(items) < 9) & (items == np.trunc(items.real))] + 0
            )
        values = items[self.rng.integers(items.size, size=(count, *shape))].astype(dtype)
        if op == "avg":  # of multiples of the count, so that it is exact
            values = (values * count).astype(dtype)
        case = Case(mesh, placements, values, order, self.cuts(shape, placements))
        return self.emit("array", New(case, memory or self.one(*MEMORY)))

    def cuts(self, shape: Any, placements: Any) -> tuple[Any, ...]:
        """Return where some axes are cut."""
        own = []
        pairs = list(zip(self.program.mesh, placements, strict=True))
        for axis, size in enumerate(shape):
            blocks = math.prod(n for n, p in pairs if p is da.Shard(axis))
            if da.Shard(axis) in placements and self.int(2):
                cuts = sorted(int(c) for c in self.rng.integers(0, size + 1, size=blocks - 1))
                own.append((axis, (0, *cuts, size)))
        return tuple(own)

    def items(self, dtype: np.dtype) -> np.ndarray:
        if dtype.names is not None:
            found = np.zeros(12, dtype)
            for name in dtype.names:
                some = self.items(dtype[name])
                found[name] = some[self.rng.integers(some.size, size=12)]
            return found
        if dtype.kind in "fc":
            kind = self.int(3 if self.averages else 4)
            if kind == 3:
                return special_items(dtype).astype(dtype)
            return (SMALL if kind else np.arange(-3.0, 4)).astype(dtype)
        if dtype.kind in "iu" and self.int(3):
            return np.arange(5).astype(dtype)
        return special_items(dtype).astype(dtype)

    def placements(self, ndim: int, ops: Sequence[str] = ()) -> tuple[Any, Any]:
        """Return a placement of each mesh axis, and which cuts first."""
        choices: list[Any] = [da.Replicate(), *map(da.Shard, (*range(ndim), *range(ndim)))]
        if ops and self.int(4) == 0:
            choices += [da.Partial(self.one(*ops))] * max(1, ndim)
        mesh = self.program.mesh
        found = tuple(self.one(*choices) for _ in mesh)
        order = tuple(int(i) for i in self.rng.permutation(len(mesh))) if self.int(3) == 0 else None
        return found, order

    def emit(self, name: str, *args: Any, **options: Any) -> Ref:
        """Add a statement, unless it is an error of NumPy's and there are enough of these."""
        program = self.program
        number = len(program.statements)
        if self.int(4) == 0:
            first = next((i for i, arg in enumerate(args) if isinstance(arg, Ref)), 0) + 1
            args = args[:first] + _mapped(args[first:], self._plain)
        statement = Statement(name, args, tuple(options.items()), number, self._way(name, args))
        found = program.add(statement)
        if isinstance(found, Exception) and self.int(8):
            program.statements.pop()
            raise UnfitError
        if isinstance(found, Exception):
            return Ref(number)
        several = isinstance(found, tuple | list)
        if name in ("contains", "tolist"):  # no array of ours
            return Ref(number)
        if any(_is_open(one, ROWS[name].same) for one in (found if several else [found])):
            return Ref(number)  # an operand of nothing, which would enlarge differences
        for part, value in enumerate(found if several else [found]):
            if isinstance(value, np.ndarray) and value.size <= MOST_ITEMS and value.dtype != object:
                ref = Ref(number, part if several else None, value)
                self.arrays.append(ref)
        return self.arrays[-1] if not several and self.arrays else Ref(number)

    def _plain(self, ref: Ref) -> Any:
        """Return an operand that every process has as an array of NumPy's, now and then."""
        return ref if self.int(3) or ref.value is None else ref.value.copy()

    def _way(self, name: str, args: Any) -> str:
        if name in OWN or self.int(2):
            return ""
        is_method = name in METHODS and args and isinstance(args[0], Ref)
        return self.one("np." if hasattr(np, name) else "", "x." if is_method else "")


@dataclass(frozen=True)
class Row:
    """A kind of call: what draws its arguments, how often, of which operands."""

    draw: Callable[[Draw, Ref], Any]
    weight: int = 2
    same: str = ""
    """How results are compared: "zero" where nobody says which of 0.0 and -0.0 they have, "any NaN"
    nor which complex NaN, "rounded" where sums depend on the layout."""
    kinds: str = "biufcmMUSV"
    """Of dtypes of the operand."""
    tame: bool = False
    """Whether the operand's items are such that sums and products are exact."""
    axes: int = 0
    """That the operand has at least."""

    def takes(self, x: np.ndarray) -> bool:
        """Tell whether the row takes an operand."""
        return x.ndim >= self.axes and x.dtype.kind in self.kinds and (not self.tame or _is_tame(x))


def _is_tame(x: np.ndarray) -> bool:
    """Tell whether sums and products of few items are exact in any order."""
    if x.dtype.kind in "iu":
        return not x.size or max(abs(int(x.min())), int(x.max())) < 9
    if x.dtype.kind not in "fc":
        return x.dtype.kind == "b"
    with np.errstate(all="ignore"):
        return bool(
            np.all((np.abs(x) < 9) & (x == np.trunc(x.real)) | (x != x) & (x.dtype.kind == "f"))
        )


def _is_open(x: Any, same: str) -> bool:
    """Tell whether a result need not be NumPy's to the last bit."""
    x = np.asarray(x)
    return same != "" and (x.dtype.kind in "fc" if same == "rounded" else _has_zeros(x))


def _has_zeros(x: np.ndarray) -> bool:
    """Tell whether there are items that may be another zero, or another complex NaN."""
    return x.dtype.kind in "fc" and bool(np.any((x.real == 0) | (x.imag == 0) | (x != x)))


def _has_nan(x: np.ndarray) -> bool:
    if x.dtype.names is not None:
        return any(_has_nan(x[name]) for name in x.dtype.names)
    return x.dtype.kind in "fcmM" and bool(np.any(x != x))


def draw(seed: int) -> Program:
    """Return the random program of a seed."""
    drawn = Draw(seed)
    length = drawn.int(5, 13)
    for _ in range(drawn.int(1, 4)):
        drawn.new()
    while len(drawn.program.statements) < length:
        name = NAMES[drawn.int(len(NAMES))]
        row = ROWS[name]
        before = len(drawn.program.statements)
        try:
            found = row.draw(drawn, drawn.find(row.takes))
            if found is not None:
                args, options = found
                drawn.emit(name, *args, **options)
        except UnfitError:
            del drawn.program.statements[before:]
            drawn.arrays = [ref for ref in drawn.arrays if ref.number < before]
    return drawn.program


def call(*args: Any, **options: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call."""
    return args, options


# --- calls that are no function of both namespaces ------------------------------------------------


def _writing(write: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call that changes an array: a copy, which is its result."""

    def call(xp: Any, x: Any, *args: Any, **options: Any) -> Any:
        x = x.copy()
        write(xp, x, *args, **options)
        return x

    return call


def _assign(_: Any, x: Any, key: Any, value: Any) -> None:
    x[key] = value


def _update(_: Any, x: Any, name: str, value: Any) -> None:
    INPLACE[name](x, value)


def _update_items(_: Any, x: Any, key: Any, name: str, value: Any) -> None:
    x[key] = INPLACE[name](x[key], value)


def _update_at(xp: Any, x: Any, ufunc: str, key: Any, value: Any) -> None:
    if xp is np:  # which reads beyond a value that is broadcast over several axes of indices
        value = np.broadcast_to(value, x[key].shape).copy()
    getattr(np, ufunc).at(x, key, value)


def _write_view(_: Any, x: Any, view: str, given: Any, name: str, value: Any) -> None:
    seen = VIEWS[view](x, given)
    if name == "=":
        seen[...] = value
    elif INPLACE[name](seen, value) is not seen:
        raise da.errors.ReadOnlyError("what is no view has been copied, for `x[key] += ...` alone")


def _write_reshaped(xp: Any, x: Any, shape: Any, value: Any) -> Any:
    seen = xp.reshape(x.copy(), shape)
    seen[..., -1:] = value
    return seen


INPLACE: dict[str, Any] = {"+=": operator.iadd, "*=": operator.imul, "-=": operator.isub,
                           "|=": operator.ior, "&=": operator.iand, "//=": operator.ifloordiv,
                           "/=": operator.itruediv, "**=": operator.ipow}  # fmt: skip
OPERATORS: dict[str, Any] = {"+": operator.add, "*": operator.mul, "-": operator.sub,
                             "<": operator.lt, "==": operator.eq, ">=": operator.ge,
                             "!=": operator.ne, "|": operator.or_, "&": operator.and_,
                             "^": operator.xor, "//": operator.floordiv, "%": operator.mod,
                             "<<": operator.lshift, "/": operator.truediv}  # fmt: skip


def _through(x: Any, shape: Any, ranks: Any, placements: Any) -> Any:
    """Return an array that was on another mesh in between."""
    there = x.redistribute(placements, mesh=da.DeviceMesh(np.reshape(ranks, shape)))
    return there.redistribute(x.placements, mesh=x.mesh)


def _created(xp: Any, x: Any, name: str, placements: Any, args: Any, options: Any) -> Any:
    """Return a new array, on the mesh of another."""
    given = {} if xp is np else {"mesh": x.mesh, "placements": placements}
    return getattr(xp, name)(*args, **dict(options), **given)


def _read_and_set(xp: Any, x: Any, key: Any, value: Any) -> Any:
    """Write into an array whose blocks have been reduced, say, and read it again."""
    x = x.copy()
    before = x == x
    x[key] = value
    return before, x == x, x.copy()


def _overlap(xp: Any, x: Any, to: Any, of: Any, name: str) -> Any:
    """Write items of an array into the same array."""
    x = x.copy()
    if name == "=":
        x[to] = x[of]
    elif name == "out":
        np.logical_xor(x[to], x[of], out=x[to])
    else:
        x[to] = INPLACE[name](x[to], x[of])
    return x


VIEWS: dict[str, Any] = {
    "getitem": operator.getitem,
    "T": lambda x, _: x.T,
    "reshape": lambda x, shape: x.reshape(shape),
    "ravel": lambda x, _: x.ravel(),
    "swapaxes": lambda x, _: x.swapaxes(0, -1),
    "squeeze": lambda x, _: x.squeeze(),
    "real": lambda x, _: x.real,
    "first": lambda x, _: x[..., 0],
}


OWN: dict[str, Callable[..., Any]] = {
    "redistribute": lambda xp, x, placements, order, cuts: (
        x if xp is np else x.redistribute(placements, shard_order=order, boundaries=dict(cuts))
    ),
    "through": lambda xp, x, *to: x if xp is np else _through(x, *to),
    "create": _created,
    "out": lambda xp, name, out, args, options: getattr(xp, name)(
        *args, **dict(options), out=out.copy()
    ),
    "rebalance": lambda xp, x: x if xp is np else x.rebalance(),
    "copy": lambda xp, x: x.copy(),
    "astype": lambda xp, x, dtype: x.astype(dtype),
    "getitem": lambda xp, x, key: x[key],
    "operator": lambda xp, name, a, b: OPERATORS[name](a, b),
    "setitem": _writing(_assign),
    "read_and_set": _read_and_set,
    "overlap": _overlap,
    "contains": lambda xp, x, item: np.asarray(item in x),
    "iterate": lambda xp, x: list(x)[:3],
    "tolist": lambda xp, x: np.array(x.tolist(), x.dtype),
    "fill": _writing(lambda xp, x, item: x.fill(item)),
    "update": _writing(_update),
    "update_items": _writing(_update_items),
    "view": _writing(_write_view),
    "reshaped": _write_reshaped,
    "ufunc.at": _writing(_update_at),
    "ufunc.accumulate": lambda xp, x, ufunc, **k: getattr(np, ufunc).accumulate(x, **k),
    "ufunc.reduce": lambda xp, x, ufunc, **k: getattr(np, ufunc).reduce(x, **k),
    "ufunc.reduceat": lambda xp, x, ufunc, *args, **k: getattr(np, ufunc).reduceat(x, *args, **k),
    "ufunc.outer": lambda xp, x, ufunc, y: getattr(np, ufunc).outer(x, y),
    "ufunc.out": lambda xp, x, ufunc, *args, **k: getattr(np, ufunc)(*args, out=x.copy(), **k),
    "sort_fields": lambda xp, *args: xp.argsort(*args),
    "sort_in_place": _writing(lambda xp, x, **k: x.sort(**k)),
    "put": _writing(lambda xp, x, *args, **k: xp.put(x, *args, **k)),
    "putmask": _writing(lambda xp, x, *args: xp.putmask(x, *args)),
    "place": _writing(lambda xp, x, *args: xp.place(x, *args)),
    "copyto": _writing(lambda xp, x, *args, **k: xp.copyto(x, *args, **k)),
    "put_along_axis": _writing(lambda xp, x, *args, **k: xp.put_along_axis(x, *args, **k)),
    "fill_diagonal": _writing(lambda xp, x, *args, **k: xp.fill_diagonal(x, *args, **k)),
    "partition": lambda xp, x, kth, axis: (
        np.sort(x, axis=axis) if xp is np else xp.partition(x, kth, axis=axis)
    ),
    "argpartition": lambda xp, x, kth, axis: np.take_along_axis(
        x,
        np.argsort(x, axis, kind="stable") if xp is np else xp.argpartition(x, kth, axis=axis),
        axis,
    ),
    "lexsort": lambda xp, keys, **k: xp.lexsort(
        [x.astype(x.dtype.newbyteorder("=")) for x in keys] if xp is np else keys, **k
    ),  # of text NumPy's compares other orders of bytes as if they were its own
    "topk": lambda xp, *args, **k: NUMPYS["topk"](*args, **k) if xp is np else xp.topk(*args, **k),
    "unique_values": lambda xp, x: _unique_values(x) if xp is np else xp.unique_values(x),
    "use": lambda xp, name, x, i: (CHOICES | COMPUTED)[name](_function(xp, name), x, i),
    "use_rounded": lambda xp, name, x, i: COMPUTED[name](_function(xp, name), x, i),
    "by_item": lambda xp, name, *args: (BY_ITEM[name].local if xp is np else BY_ITEM[name])(*args),
    "by_item_rounded": lambda xp, name, *args: (BY_ITEM[name].local if xp is np else BY_ITEM[name])(
        *args
    ),
    "piecewise": lambda xp, x, masks, numbers: xp.piecewise(
        x, masks, [*numbers, lambda items: items]
    ),
    "apply_along_axis": lambda xp, x, name, axis: xp.apply_along_axis(LINES[name], axis, x),
    "histogramdd": lambda xp, x, **k: _flattened(xp.histogramdd(x, **k)),
}

LINES: dict[str, Any] = {
    "sort": np.sort,
    "every second": lambda line: line[::2],
    "outer": lambda line: line[:2, None] == line,
    "last": lambda line: line[-1] if line.size else line.dtype.type(),
}


def _flattened(found: Any) -> Any:
    return (found[0], *found[1])


def _function(xp: Any, name: str) -> Any:
    return (NUMPYS.get(name) or getattr(np, name)) if xp is np else getattr(da, name)


def _unique_values(x: np.ndarray) -> np.ndarray:
    """Return what `unique_values` gives in ascending order, NaT and NaN each for itself."""
    items = np.sort(x, axis=None)
    return items[[True, *(items[1:] != items[:-1])][: items.size]]


# --- the rows -------------------------------------------------------------------------------------


def _key(d: Draw, x: Ref) -> Any:
    """Return a key of an array."""
    shape = x.value.shape
    if shape and d.int(4) == 0:
        mask = shape[: d.int(1, len(shape) + 1)]
        return d.given(lambda v: v.dtype == bool and v.shape == mask, mask, bool)
    entries: list[Any] = []
    axis = 0
    while axis < len(shape) and d.int(6):
        size = shape[axis]
        match d.int(9):
            case 0 if size:
                entries.append(d.int(-size, size))
            case 1:
                entries.append(None)
                continue
            case 2 if size:
                entries.append(d.ints(-size, size, d.one((0,), (1,), (3,), (9,), (2, 1), (2, 3))))
            case 3:
                entries.append(d.rng.random(size) < 0.5)
            case 4 if size:
                entries.append(d.find(lambda v: v.dtype.kind in "iu" and v.ndim < 3))
            case 5 if size:
                fits = lambda v, n=size: v.dtype.kind in "iu" and v.ndim < 3 and (v < n).all()  # noqa: E731
                entries.append(d.given(fits, d.one((3,), (8,), (2, 2)), "i8"))
            case 6 if d.int(3) == 0:
                entries.append(None if any(e is Ellipsis for e in entries) else Ellipsis)
                continue
            case _:
                start, stop = (d.int(-size - 1, size + 2) for _ in range(2))
                step = d.one(None, 1, 2, -1, -2)
                entries.append(slice(start, stop, step) if d.int(2) else slice(None, None, step))
        axis += 1
    return entries[0] if len(entries) == 1 and d.int(2) else tuple(entries)


def _basic(d: Draw, x: Ref) -> Any:
    """Return a key of slices and integers."""
    key: list[Any] = []
    for size in x.value.shape:
        start, stop = (d.int(-size - 1, size + 2) for _ in range(2))
        whole = slice(None, None, d.one(None, None, -1, 2))
        key.append(d.one(whole, slice(start, stop), d.int(-size, size) if size else whole))
    return tuple(key)


def _value(d: Draw, x: Ref, shape: Any) -> Any:
    """Return what to write at items of an array: an item, or an array that fits."""
    if d.int(3) == 0:
        return d.one(*d.items(x.value.dtype))
    shape = shape[d.int(len(shape) + 1) :]
    dtype = x.value.dtype
    if dtype.kind in NUMBERS and d.int(4) == 0:
        dtype = np.dtype(d.one("f8", "i4", "?", ">f8"))
    return d.given(lambda v: v.dtype == dtype and v.shape == shape, shape, dtype)


def _shape_at(x: Ref, key: Any) -> Any:
    try:
        return x.value[_mapped(key, lambda ref: ref.value)].shape
    except IndexError:
        raise UnfitError from None


def _moved(d: Draw, x: Ref) -> Any:
    placements, order = d.placements(x.value.ndim)
    return call(x, placements, order, d.cuts(x.value.shape, placements))


def _through_row(d: Draw, x: Ref) -> Any:
    x = d.new(memory="own")  # whose shape is known outside of the mesh
    shape = d.one(*MESH_SHAPES)
    ranks = d.rng.permutation(max(d.program.ranks) + 1)[: math.prod(shape)]
    if len(ranks) < math.prod(shape):
        raise UnfitError
    choices = (da.Replicate(), *map(da.Shard, range(x.value.ndim)))
    return call(x, shape, tuple(int(r) for r in ranks), tuple(d.one(*choices) for _ in shape))


CREATED: dict[str, Callable[[Draw], Any]] = {
    "arange": lambda d: (d.int(-5, 5), d.int(5, 30), d.one(1, 3, 0.5, -2)),
    "linspace": lambda d: (d.int(-5, 5), d.int(5, 30), d.int(0, 12)),
    "full": lambda d: ((d.int(9), d.int(4)), d.one(3, 2.5, True)),
    "eye": lambda d: (d.int(9), d.int(9), d.int(-3, 4)),
    "tri": lambda d: (d.int(9), d.int(9), d.int(-3, 4)),
    "indices": lambda d: ((d.int(9), d.int(4)),),
    "identity": lambda d: (d.int(9),),
}


def _created_row(d: Draw, x: Ref) -> Any:
    name = d.one(*CREATED)
    args = CREATED[name](d)
    options = tuple(d.some(dtype=d.one("f4", "i4", "f8")).items())
    ndim = np.ndim(getattr(np, name)(*args))
    return call(x, name, d.placements(ndim)[0], args, options)


def _out_row(d: Draw, x: Ref) -> Any:
    names = [name for name in INTO_OUT if ROWS[name].takes(x.value)]
    name = names[d.int(len(names))]
    args, options = ROWS[name].draw(d, x)
    given = _mapped((args, tuple(options.items())), lambda ref: ref.value)
    try:
        with np.errstate(all="ignore"):
            found = getattr(np, name)(*given[0], **dict(given[1]))
    except Exception:
        raise UnfitError from None
    out = d.new(
        np.shape(found),
        d.one(found.dtype, "f8") if name in ("cumsum", "max", "sum") else found.dtype,
    )
    return call(name, out, args, tuple(options.items()))


INTO_OUT = ["all", "any", "argmax", "clip", "compress", "cumprod", "cumsum", "max", "sum", "take"]
"""Functions whose result goes into `out=`."""


def _setitem(d: Draw, x: Ref) -> Any:
    key = _key(d, x)
    return call(x, key, _value(d, x, _shape_at(x, key)))


def _both(d: Draw, x: Ref) -> Any:
    """Return operands of an operator, in both orders."""
    y = d.one(
        d.fitting(x), d.fitting(x, d.one("f8", "i4", "?", ">i4", "c8", "u1")), 2, 0.5, d.like(x)
    )
    return (x, y), (x, y), (y, x)


def _overlap_row(d: Draw, x: Ref) -> Any:
    of, to = [], []
    for size in x.value.shape:
        take = d.int(size + 1)
        for key in (of, to):
            start, step = d.int(size - take + 1), d.one(1, 1, -1)
            stop = start + take
            key.append(
                slice(start, stop) if step == 1 else slice(stop - size - 1, start - size - 1, -1)
            )
    places = d.rng.permutation(x.value.shape[0]) if x.value.ndim and d.int(3) == 0 else None
    if places is not None:
        of, to = [places, *of[1:]], [slice(None), *to[1:]]
    return call(x, tuple(to), tuple(of), d.one("=", "=", "out", "+=", "|="))


def _update_items_row(d: Draw, x: Ref) -> Any:
    key = _key(d, x)
    return call(x, key, d.one("+=", "*=", "|="), _value(d, x, _shape_at(x, key)))


def _view_row(d: Draw, x: Ref) -> Any:
    view = d.one("getitem", "getitem", *VIEWS)
    given = _basic(d, x) if view == "getitem" else _shape_of(d, x)
    try:
        shape = VIEWS[view](x.value, given).shape
    except (ValueError, IndexError):
        raise UnfitError from None
    return call(x, view, given, d.one("=", "=", "+=", "*=", "|="), _value(d, x, shape))


def _shape_of(d: Draw, x: Ref) -> Any:
    size, shape = x.value.size, x.value.shape
    shapes: list[Any] = [(size,), (1, size), (size, 1), (-1,), shape[::-1], (*shape, 1)]
    shapes += [(n, size // n) for n in (2, 3, 4) if size and size % n == 0]
    shapes += [(-1, *shape[2:]), (*shape[:-2], -1)] if len(shape) > 1 and size else []
    return d.one(*shapes)


def _kth(d: Draw, x: Ref) -> Any:
    axis = d.axis(x)
    size = x.value.shape[axis]
    return call(x, d.int(-size, size) if size else 0, axis)


def _topk(d: Draw, x: Ref) -> Any:
    axis = d.axis(x)
    return call(x, d.int(x.value.shape[axis] + 1), axis, largest=bool(d.int(2)))


def _reduced(d: Draw, x: Ref) -> Any:
    options = d.some(axis=d.axes(x), keepdims=bool(d.int(2)))
    return call(x, **options)


def _reduced_where(d: Draw, x: Ref) -> Any:
    given, options = _reduced(d, x)
    if d.int(3) == 0:
        options["where"] = d.fitting(x, bool)
    return given, options


def _with_initial(d: Draw, x: Ref) -> Any:
    given, options = _reduced_where(d, x)
    if d.int(2) or "where" in options:
        options["initial"] = d.one(0, 1, -3)
    return given, options


def _quantile(d: Draw, x: Ref) -> Any:
    if x.value.dtype.itemsize < 8 and _has_nan(x.value):  # of which NumPy's dtype depends on q
        raise UnfitError
    q = d.one(0.0, 0.5, 0.3, 1.0, [0.1, 0.9], [[0.25], [1]])
    options = d.some(axis=d.axes(x), keepdims=True) | {"method": d.one(*QUANTILES)}
    if d.int(4) == 0:
        options |= {"method": "inverted_cdf", "weights": d.new(x.value.shape, "f8", [0, 1, 2, 0.5])}
    return call(x, q, **options)


def _nanquantile(d: Draw, x: Ref) -> Any:
    (x, q), options = _quantile(d, x)
    if options.get("axis") == () or np.ndim(q) > 1:  # NumPy puts the axes of `q` elsewhere
        q = 0.3
    return call(x, q, **options)


def _at(d: Draw, x: Ref) -> Any:
    ufunc = d.one("add", "maximum", "multiply", "subtract", "bitwise_or")
    key = _key(d, x)
    return call(x, ufunc, key, _value(d, x, _shape_at(x, key)))


def _reduceat(d: Draw, x: Ref) -> Any:
    axis = d.axis(x)
    size = x.value.shape[axis]
    if not size:
        raise UnfitError
    places = d.ints(0, size, d.one(1, 3, 6))
    places = places if d.int(9) == 0 else np.sort(places)
    return call(x, d.one("add", "maximum", "logical_or", "bitwise_xor", "fmin"), places, axis=axis)


def _pad(d: Draw, x: Ref) -> Any:
    mode = d.one(*MODES[: 7 if x.value.dtype.kind in "biu" else 5])  # either zero is the largest
    shape = x.value.shape
    widths = d.one(d.int(4), (1, 2), tuple((d.int(4), d.int(4)) for _ in shape) or 1)
    options: dict[str, Any] = {}
    if mode in ("maximum", "minimum"):
        options = d.some(stat_length=d.int(1, 4))
    elif mode in ("reflect", "symmetric"):
        options = d.some(reflect_type="even")
    elif mode == "constant" and x.value.dtype.kind in "iufc":
        options = d.some(constant_values=d.one(3, (1, 2)))
    return call(x, widths, mode=mode, **options)


def _join(d: Draw, x: Ref) -> Any:
    """Return arrays of one shape, but along one axis, and the axis."""
    if not x.value.ndim:
        raise UnfitError
    axis = d.axis(x)
    return call(list(_several(d, x, axis)), axis=axis, **d.some(casting="unsafe"))


def _several(d: Draw, x: Ref, axis: int) -> Any:
    for place in range(d.int(1, 4)):
        if not place:
            yield x
            continue
        shape = list(x.value.shape)
        shape[axis] = d.one(shape[axis], 0, 1, 3)
        dtype = d.one(x.value.dtype, x.value.dtype, d.one("f8", "?", "i4"))
        yield d.given(
            lambda v, s=tuple(shape), t=dtype: v.shape == s and v.dtype == t, shape, dtype
        )  # type: ignore[misc]


def _stacked(d: Draw, x: Ref) -> Any:
    ndim = x.value.ndim
    return call([x, d.like(x), d.like(x)][: d.int(1, 4)], axis=d.int(-ndim - 1, ndim + 1))


def _joined_alike(d: Draw, x: Ref) -> Any:
    return call([x, d.like(x), d.like(x)][: d.int(1, 4)])


def _block(d: Draw, x: Ref) -> Any:
    row = [x, d.like(x)]
    return call(d.one(row, [row, row[::-1]], [[x], [d.like(x)]], [[row, row], [row[::-1], row]]))


def _places(d: Draw, x: Ref, axis: Any, dtype: str = "i8") -> Any:
    """Return indices into an axis: numbers, or a distributed array."""
    size = x.value.size if axis is None else x.value.shape[axis] if x.value.ndim else 1
    if not size:
        raise UnfitError
    shape = d.one((), (0,), (1,), (4,), (9,), (2, 3))
    if d.int(2):
        return d.ints(-size, size, shape)
    return d.new(shape, dtype, np.arange(-size, size))


def _take(d: Draw, x: Ref) -> Any:
    axis = d.axis(x, none=True)
    return call(x, _places(d, x, axis), axis=axis, mode=d.one("raise", "wrap", "clip"))


def _delete(d: Draw, x: Ref) -> Any:
    axis = d.axis(x, none=True)
    size = x.value.size if axis is None else x.value.shape[axis]
    mask = d.rng.random(size) < 0.5
    places = (
        _places(d, x, axis) if d.int(2) else d.one(mask, slice(None, None, 2), d.int(-size, size))
    )
    return call(x, places, axis=axis)


def _insert(d: Draw, x: Ref) -> Any:
    axis = d.axis(x, none=True)
    size = x.value.size if axis is None else x.value.shape[axis]
    places = d.one(d.int(-size, size + 1), d.ints(-size, size + 1, d.int(4)), slice(0, size, 2))
    return call(x, places, _value(d, x, ()), axis=axis)


def _put(d: Draw, x: Ref) -> Any:
    places = _places(d, x, None)
    return call(x, places, _value(d, x, (d.one(1, 3, 7),)), mode=d.one("raise", "wrap", "clip"))


def _along(d: Draw, x: Ref) -> tuple[Ref, int]:
    axis = d.axis(x)
    shape = list(x.value.shape)
    size = shape[axis]
    if not size:
        raise UnfitError
    shape[axis] = d.one(size, 1, 0, 3)
    shape = [d.one(n, n, n, 1) if a != axis % len(shape) else n for a, n in enumerate(shape)]
    return d.new(shape, d.one("i8", "i4"), np.arange(-size, size)), axis


def _put_along(d: Draw, x: Ref) -> Any:
    places, axis = _along(d, x)
    return call(x, places, _value(d, x, places.value.shape), axis)


def _row(d: Draw, x: Ref) -> Ref:
    """Return the items of an array in ascending order."""
    line = d.given(lambda v: v.ndim == 1 and v.dtype == x.value.dtype, None, x.value.dtype)
    if line.value.ndim != 1:
        raise UnfitError
    return d.emit("sort", line, kind="stable")


def _searchsorted(d: Draw, x: Ref) -> Any:
    side = d.one("left", "right")
    if d.int(3):
        return call(_row(d, x), x, side=side)
    line = d.find(lambda v: v.ndim == 1 and v.dtype == x.value.dtype)
    return call(line, x, side=side, sorter=d.emit("argsort", line, kind="stable"))


def _digitize(d: Draw, x: Ref) -> Any:
    bins = _row(d, x)
    if d.int(2):
        bins = d.emit("getitem", bins, slice(None, None, -1))
    return call(x, bins, right=bool(d.int(2)))


def _histogram(d: Draw, x: Ref) -> Any:
    options: dict[str, Any] = {"bins": d.one(1, 3, 7, [-1, 0, 2, 2.5], [0, 1])}
    options |= d.some(range=(-1, 4))
    if d.int(3) == 0:
        options["weights"] = d.new(x.value.shape, d.one("f8", "i4"), [0, 1, 2, -3])
    return call(x, **options)


def _bincount(d: Draw, x: Ref) -> Any:
    options: dict[str, Any] = d.some(minlength=d.int(9))
    if d.int(3) == 0:
        options["weights"] = d.new(x.value.shape, d.one("f8", "i4", "f4"), [0, 1, 2, -3])
    return call(x, **options)


def _sets(d: Draw, x: Ref) -> Any:
    y = d.kin(x)
    if x.value.dtype.kind == "c" and (_has_zeros(x.value) or _has_zeros(y.value)):
        raise UnfitError  # NumPy finds some of several NaNs or zeros equal, by their hashes
    return call(x, y)


def _without_nan(d: Draw, x: Ref) -> Any:
    if _has_nan(x.value):  # which of several comes first is open
        raise UnfitError
    return call(x)


def _unique(d: Draw, x: Ref) -> Any:
    options = d.some(return_index=True, return_inverse=True, return_counts=True)
    if x.value.dtype.kind in "fcmMV":
        options |= d.some(equal_nan=False)
        if _has_nan(x.value):  # which of several comes first is open
            options = d.some(return_counts=True)
    if x.value.dtype.kind == "c" and _has_zeros(x.value):
        raise UnfitError
    if d.int(3) == 0 and x.value.ndim and x.value.dtype.kind in "biuUSmM":
        options |= {"axis": d.axis(x)}
    return call(x, **options)


def _einsum(d: Draw, x: Ref) -> Any:
    letters = "abc"[: x.value.ndim]
    dtype = x.value.dtype
    y = d.new([d.one(2, n) if a else n for a, n in enumerate(x.value.shape)], dtype, [0, 1, 2])
    other = letters[:1] + "xyz"[: y.value.ndim - 1]
    out = "".join(d.rng.permutation(list(dict.fromkeys(letters + other)))[: d.int(4)])
    return call(d.one(f"{letters},{other}->{out}", f"{letters},{other}"), x, y)


def _tensordot(d: Draw, x: Ref) -> Any:
    axis = d.int(x.value.ndim)
    y = d.new((x.value.shape[axis], 3), x.value.dtype, [0, 1, 2])
    return call(x, y, axes=((axis,), (0,)))


def _matmul(d: Draw, x: Ref) -> Any:
    size = x.value.shape[-1]
    return call(x, d.new(d.one((size,), (size, 1), (size, 4)), x.value.dtype, [0, 1, 3]))


def _small_pair(d: Draw, x: Ref) -> Any:
    return call(x, d.new(d.one((3,), (1,), (2, 2), ()), x.value.dtype, [0, 1, 3]))


def _interp(d: Draw, x: Ref) -> Any:
    size = d.one(1, 2, 5, 8)
    points = d.emit("sort", d.new((size,), "f8", np.arange(-8.0, 8)))
    values = d.new((size,), d.one("f8", "f8", "c16"), np.arange(-3.0, 4))
    return call(x, points, values, **d.some(left=-9.0, right=9.0, period=4.0))


def _gradient(d: Draw, x: Ref) -> Any:
    axis = d.axis(x)
    spacing = d.one((), (2.0,), (np.cumsum(d.ints(1, 3, x.value.shape[axis])),))
    return call(x, *spacing, axis=axis, edge_order=d.int(1, 3))


def _diff(d: Draw, x: Ref) -> Any:
    return call(x, n=d.int(3), axis=d.axis(x), **d.some(prepend=d.one(0, 1)))


def _roll(d: Draw, x: Ref) -> Any:
    ndim = x.value.ndim
    if not ndim or d.int(2):
        return call(x, d.int(-9, 10), axis=d.axis(x, none=True))
    axes = tuple(d.int(-ndim, ndim) for _ in range(d.int(1, 4)))
    return call(x, d.one(d.int(-9, 9), tuple(d.int(-9, 9) for _ in axes)), axis=axes)


def _flip(d: Draw, x: Ref) -> Any:
    return call(x, axis=d.axes(x))


def _repeat(d: Draw, x: Ref) -> Any:
    axis = d.axis(x, none=True)
    size = x.value.size if axis is None else x.value.shape[axis]
    return call(x, d.one(d.int(4), d.ints(0, 3, size), d.new((size,), "i8", [0, 1, 2])), axis=axis)


def _choose(d: Draw, x: Ref) -> Any:
    places = d.new(x.value.shape, "i8", [0, 1, 2, -1])
    return call(places, [x, d.like(x), d.fitting(x)], mode=d.one("wrap", "clip", "raise"))


def _select(d: Draw, x: Ref) -> Any:
    choices = [x, d.fitting(x)][: d.int(1, 3)]
    return call([d.like(x, bool) for _ in choices], choices, default=d.one(0, d.like(x)))


def _ufunc_out(d: Draw, x: Ref) -> Any:
    ufunc = d.one("add", "maximum", "multiply", "subtract", "less", "logical_and", "bitwise_xor")
    out = d.like(x, d.one(x.value.dtype, "f8", "?"))
    return call(out, ufunc, x, d.fitting(x), **d.some(where=d.fitting(x, bool), casting="unsafe"))


def _by_item(names: list[str]) -> Callable[[Draw, Ref], Any]:
    def pick(d: Draw, x: Ref) -> Any:
        name = names[d.int(len(names))]
        others = [d.one(d.fitting(x), d.fitting(x), 2, x) for _ in range(BY_ITEM[name].nin - 1)]
        return call(name, *d.one([x, *others], [*others, x]))

    return pick


def _use(names: list[str]) -> Callable[[Draw, Ref], Any]:
    def pick(d: Draw, x: Ref) -> Any:
        name = names[d.int(len(names))]
        if x.value.ndim < LEAST_AXES.get(name, 0) or (
            name in ("cov", "corrcoef") and not x.value.size
        ):
            raise UnfitError
        return call(name, x, d.int(12))

    return pick


def _alone(d: Draw, x: Ref) -> Any:
    return call(x)


ROUNDED = ["angle", "average", "mean", "nanmean", "corrcoef", "cov", "nanstd", "nanvar", "std",
           "var", "gradient", "convolve", "correlate", "interp", "poly", "polyadd",
           "polyder", "polydiv", "polyfit", "polyint", "polymul", "polysub",
           "polyval", "roots", "vander", "trapezoid", "unwrap", "histogram",
           "histogram_bin_edges", "histogram2d", "histogramdd", "median",
           "nanmedian", "nanpercentile", "nanquantile", "percentile", "quantile"]  # fmt: skip
NOT_ARRAYS = ["can_cast", "common_type", "einsum_path", "result_type", "iscomplexobj",
              "isrealobj", "min_scalar_type", "array_equal", "array_equiv",
              "allclose", "shape", "size", "ndim"]  # fmt: skip
TOO_LARGE = ["kron", "outer", "meshgrid", "diagflat", "ix_", "histogramdd"]
OPEN = ["intersect1d", "lexsort", "setdiff1d", "setxor1d", "union1d", "unique", "unique_all",
        "unique_inverse"]  # fmt: skip
"""Functions with rows of their own, which know what NumPy leaves open."""
_SIMPLE = [name for name in CHOICES if name not in (*NOT_ARRAYS, *TOO_LARGE, *OPEN)]
_ORDINARY = [name for name in COMPUTED if name not in (*NOT_ARRAYS, *TOO_LARGE, *ROUNDED)]
_NOT_EXACT = [name for name in ROUNDED if name not in TOO_LARGE]
NUMBERS = "biufc"
ACCUMULATED = ("maximum", "minimum", "add", "logical_or", "fmax", "bitwise_xor", "subtract")
REDUCED = ("maximum", "minimum", "add", "logical_or", "fmax", "bitwise_xor", "logical_xor", "gcd")
ROWS: dict[str, Row] = {
    "array": Row(lambda d, x: d.new() and None, 4),
    "redistribute": Row(_moved, 6),
    "through": Row(_through_row, 2),
    "create": Row(_created_row, 3),
    "out": Row(_out_row, 5, "zero"),
    "sort_fields": Row(
        lambda d, x: call(x, d.axis(x), "stable", d.one("a", "b", ["c", "a"])), 2, kinds="V"
    ),
    "rebalance": Row(_alone, 4),
    "copy": Row(_alone),
    "astype": Row(lambda d, x: call(x, d.one(*DTYPES)), 4, kinds="biufcmMUS"),
    "getitem": Row(lambda d, x: call(x, _key(d, x)), 28),
    "field": Row(
        lambda d, x: d.emit("getitem", x, d.one("a", "b", "c", ["a", "c"])) and None, 2, kinds="V"
    ),
    "setitem": Row(_setitem, 16),
    "read_and_set": Row(_setitem, 4),
    "overlap": Row(_overlap_row, 5),
    "contains": Row(lambda d, x: call(x, d.one(*d.items(x.value.dtype))), 1, kinds="biufU"),
    "iterate": Row(_alone, 1),
    "tolist": Row(_alone, 1, kinds="biufcUS"),
    "fill": Row(lambda d, x: call(x, d.one(*d.items(x.value.dtype))), 1),
    "update": Row(
        lambda d, x: call(x, d.one(*INPLACE), _value(d, x, x.value.shape)), 6, kinds=NUMBERS + "mM"
    ),
    "update_items": Row(_update_items_row, 4, kinds=NUMBERS, tame=True),
    "view": Row(_view_row, 8),
    "reshaped": Row(lambda d, x: call(x, _shape_of(d, x), _value(d, x, ())), 3),
    "operator": Row(lambda d, x: call(d.one(*OPERATORS), *d.one(*_both(d, x))), 14),
    "sort": Row(lambda d, x: call(x, axis=d.axis(x, none=True), kind="stable"), 8),
    "argsort": Row(lambda d, x: call(x, axis=d.axis(x, none=True), kind="stable"), 6),
    "sort_in_place": Row(lambda d, x: call(x, axis=d.axis(x), kind="stable"), 2),
    "lexsort": Row(
        lambda d, x: call(
            tuple([x, d.like(x, d.one("i8", "U3")), d.like(x)][: d.int(1, 4)]), axis=d.axis(x)
        ),
        3,
    ),
    "partition": Row(_kth, 2, "zero", axes=1),
    "argpartition": Row(_kth, 2, "zero", axes=1),
    "topk": Row(_topk, 3, axes=1),
    "searchsorted": Row(_searchsorted, 6, kinds="biufcmM"),
    "digitize": Row(_digitize, 3, kinds="biuf"),
    "max": Row(_with_initial, 3, "any NaN", kinds=NUMBERS),
    "min": Row(_with_initial, 3, "any NaN", kinds=NUMBERS),
    "sum": Row(_with_initial, 4, "zero", kinds=NUMBERS, tame=True),
    "prod": Row(_with_initial, 2, "zero", kinds="biu"),
    "any": Row(_reduced_where, 2),
    "all": Row(_reduced_where, 2),
    "count_nonzero": Row(_reduced, 2),
    "mean": Row(_reduced_where, 2, "rounded", kinds=NUMBERS, tame=True),
    "var": Row(_reduced_where, 2, "rounded", kinds=NUMBERS, tame=True),
    "argmax": Row(lambda d, x: call(x, axis=d.axis(x, none=True), **d.some(keepdims=True)), 3),
    "argmin": Row(lambda d, x: call(x, axis=d.axis(x, none=True), **d.some(keepdims=True)), 3),
    "nanargmax": Row(lambda d, x: call(x, axis=d.axis(x, none=True)), 1),
    "nanmax": Row(_with_initial, 2, "any NaN", kinds=NUMBERS),
    "nansum": Row(_with_initial, 2, "zero", kinds=NUMBERS, tame=True),
    "nanvar": Row(_reduced_where, 1, "rounded", kinds="biuf", tame=True),
    "quantile": Row(_quantile, 4, "rounded", kinds="biuf"),
    "nanquantile": Row(_nanquantile, 3, "rounded", kinds="biuf"),
    "average": Row(
        lambda d, x: call(
            x, axis=d.axis(x, none=True), weights=d.new(x.value.shape, "f8", [1, 2, 3])
        ),
        2,
        "rounded",
        kinds=NUMBERS,
        tame=True,
    ),
    "cumsum": Row(
        lambda d, x: call(x, axis=d.axis(x, none=True)), 3, "zero", kinds=NUMBERS + "m", tame=True
    ),
    "cumprod": Row(lambda d, x: call(x, axis=d.axis(x, none=True)), 2, "zero", kinds="biu"),
    "ufunc.at": Row(_at, 6, "any NaN", kinds=NUMBERS, tame=True),
    "ufunc.accumulate": Row(
        lambda d, x: call(
            x,
            d.one(*ACCUMULATED),
            axis=d.axis(x),
            **d.some(dtype=d.one("f8", "i8")),
        ),
        4,
        "any NaN",
        kinds=NUMBERS,
        tame=True,
    ),
    "ufunc.reduce": Row(
        lambda d, x: call(
            x,
            d.one(*REDUCED),
            axis=d.axes(x),
            **d.some(keepdims=True, initial=1),
        ),
        4,
        "any NaN",
        kinds=NUMBERS,
        tame=True,
    ),
    "ufunc.reduceat": Row(_reduceat, 4, "any NaN", kinds=NUMBERS, tame=True, axes=1),
    "ufunc.outer": Row(
        lambda d, x: call(x, d.one("add", "less", "maximum", "multiply"), d.kin(x)), 2
    ),
    "ufunc.out": Row(_ufunc_out, 4),
    "nonzero": Row(_alone, 3),
    "argwhere": Row(_alone),
    "flatnonzero": Row(_alone),
    "ravel": Row(_alone),
    "transpose": Row(
        lambda d, x: call(x, d.one(None, tuple(int(a) for a in d.rng.permutation(x.value.ndim)))), 3
    ),
    "trim_zeros": Row(lambda d, x: call(x, d.one("fb", "f", "b")), 2),
    "diagonal": Row(
        lambda d, x: call(x, d.int(-3, 4), *d.rng.permutation(x.value.ndim)[:2].tolist()), 2, axes=2
    ),
    "rot90": Row(
        lambda d, x: call(
            x, d.int(-3, 4), axes=tuple(d.rng.permutation(x.value.ndim)[:2].tolist())
        ),
        2,
        axes=2,
    ),
    "flip": Row(_flip, 3),
    "roll": Row(_roll, 5),
    "reshape": Row(lambda d, x: call(x, _shape_of(d, x)), 6),
    "resize": Row(lambda d, x: call(x, d.one((7,), (2, 5), 0, (3, 2, 2), ())), 2),
    "broadcast_to": Row(lambda d, x: call(x, (d.int(3), *x.value.shape)), 2),
    "expand_dims": Row(lambda d, x: call(x, d.one(0, -1, (0, 1))), 2),
    "squeeze": Row(_alone, 2),
    "moveaxis": Row(lambda d, x: call(x, d.axis(x), d.axis(x)), 2, axes=1),
    "repeat": Row(_repeat, 3),
    "tile": Row(lambda d, x: call(x, d.one(2, (2, 1), (1, 3, 2), 0)), 2),
    "pad": Row(_pad, 5),
    "concatenate": Row(_join, 6, axes=1),
    "stack": Row(_stacked, 3),
    "hstack": Row(_joined_alike, 1),
    "vstack": Row(_joined_alike, 1),
    "dstack": Row(_joined_alike, 1),
    "column_stack": Row(_joined_alike, 1),
    "block": Row(_block, 2),
    "append": Row(lambda d, x: call(x, d.kin(x)), 2),
    "array_split": Row(
        lambda d, x: call(x, d.one(d.int(1, 6), sorted(d.ints(0, 9, 2).tolist())), axis=d.axis(x)),
        3,
    ),
    "split": Row(
        lambda d, x: call(x, d.one(d.int(1, 4), sorted(d.ints(0, 9, 2).tolist())), axis=d.axis(x)),
        1,
    ),
    "delete": Row(_delete, 4),
    "insert": Row(_insert, 4),
    "take": Row(_take, 8),
    "take_along_axis": Row(lambda d, x: call(x, *_along(d, x)), 4, axes=1),
    "put_along_axis": Row(_put_along, 3, axes=1),
    "put": Row(_put, 4),
    "putmask": Row(lambda d, x: call(x, d.like(x, bool), _value(d, x, (d.one(1, 3, 7),))), 3),
    "place": Row(lambda d, x: call(x, d.like(x, bool), d.line(x.value.dtype, d.one(1, 3, 7))), 3),
    "copyto": Row(
        lambda d, x: call(x, _value(d, x, x.value.shape), **d.some(where=d.fitting(x, bool))), 3
    ),
    "fill_diagonal": Row(
        lambda d, x: call(x, _value(d, x, (d.one(1, 3),)), wrap=bool(d.int(2))), 1, axes=2
    ),
    "extract": Row(lambda d, x: call(d.like(x, bool), x), 3),
    "compress": Row(lambda d, x: call(d.line("?"), x, axis=d.axis(x, none=True)), 3),
    "choose": Row(_choose, 2),
    "select": Row(_select, 2),
    "where": Row(lambda d, x: call(d.fitting(x, bool), x, d.fitting(x)), 4),
    "clip": Row(
        lambda d, x: call(x, d.one(None, d.fitting(x), 1), d.one(d.fitting(x), 3)),
        2,
        "zero",
        kinds="biuf",
    ),
    "piecewise": Row(
        lambda d, x: call(x, [d.like(x, bool) for _ in range(2)], d.one((1, 0), (1,))[:2]),
        2,
        kinds=NUMBERS,
    ),
    "apply_along_axis": Row(lambda d, x: call(x, d.one(*LINES), d.axis(x)), 2, axes=1),
    "isin": Row(lambda d, x: call(*_sets(d, x)[0], **d.some(invert=True, assume_unique=False)), 4),
    "union1d": Row(_sets, 2, "zero"),
    "setdiff1d": Row(_sets, 2, "zero"),
    "setxor1d": Row(_sets, 2, "zero"),
    "intersect1d": Row(
        lambda d, x: call(*_sets(d, x)[0], **d.some(return_indices=True)), 3, "zero"
    ),
    "unique": Row(_unique, 5, "zero"),
    "unique_values": Row(_alone, 2, "zero"),
    "unique_counts": Row(_without_nan, 2, "zero"),
    "unique_inverse": Row(_without_nan, 2, "zero"),
    "unique_all": Row(_without_nan, 2, "zero"),
    "histogram": Row(_histogram, 4, "rounded", kinds="biuf"),
    "histogram2d": Row(
        lambda d, x: call(
            x, d.line(x.value.dtype, x.value.size), bins=d.one(2, (2, 3)), range=((-2, 5), (0, 4))
        ),
        1,
        "rounded",
        kinds="iuf",
        tame=True,
        axes=1,
    ),
    "histogramdd": Row(
        lambda d, x: call(
            d.new((d.int(9), d.int(1, 4)), "f8", np.arange(-3.0, 4)), bins=2, range=[(-2, 5)] * 3
        ),
        1,
        "rounded",
        kinds="iuf",
        tame=True,
        axes=2,
    ),
    "bincount": Row(_bincount, 3, "zero", kinds="biu", tame=True, axes=1),
    "einsum": Row(_einsum, 4, "zero", kinds=NUMBERS, tame=True, axes=1),
    "tensordot": Row(_tensordot, 3, "zero", kinds=NUMBERS, tame=True, axes=1),
    "matmul": Row(_matmul, 3, "zero", kinds=NUMBERS, tame=True, axes=1),
    "dot": Row(_matmul, 2, "zero", kinds=NUMBERS, tame=True, axes=1),
    "inner": Row(lambda d, x: call(x, d.like(x)), 1, "zero", kinds=NUMBERS, tame=True, axes=1),
    "outer": Row(_small_pair, 1, kinds=NUMBERS, tame=True),
    "kron": Row(_small_pair, 1, kinds=NUMBERS, tame=True),
    "interp": Row(_interp, 3, "rounded", kinds="biuf"),
    "unwrap": Row(
        lambda d, x: call(x, axis=d.axis(x), **d.some(period=4)),
        2,
        "rounded",
        kinds="iuf",
        tame=True,
        axes=1,
    ),
    "gradient": Row(_gradient, 3, "rounded", kinds="iuf", tame=True, axes=1),
    "diff": Row(_diff, 3, axes=1),
    "ediff1d": Row(lambda d, x: call(x, **d.some(to_end=d.one(1, [2, 3]), to_begin=1)), 2),
    "trapezoid": Row(
        lambda d, x: call(x, axis=d.axis(x)), 1, "rounded", kinds="iuf", tame=True, axes=1
    ),
    "packbits": Row(
        lambda d, x: call(x, axis=d.axis(x, none=True), bitorder=d.one("big", "little")),
        3,
        kinds="biu",
    ),
    "unpackbits": Row(
        lambda d, x: call(x, axis=d.axis(x, none=True), bitorder=d.one("big", "little")),
        2,
        kinds="u",
    ),
    "use": Row(_use(_SIMPLE), 24, "any NaN"),
    "use_ordinary": Row(
        lambda d, x: d.emit("use", *_use(_ORDINARY)(d, x)[0]) and None, 16, kinds=NUMBERS, tame=True
    ),
    "use_rounded": Row(_use(_NOT_EXACT), 16, "rounded", kinds=NUMBERS, tame=True),
    "by_item": Row(_by_item(sorted(EXACT & BY_ITEM.keys())), 12, "any NaN", kinds="biuf"),
    "by_item_rounded": Row(_by_item(sorted(BY_ITEM.keys() - EXACT)), 6, "rounded", kinds=NUMBERS),
}
NAMES = [name for name, row in ROWS.items() for _ in range(row.weight)]


# --- running --------------------------------------------------------------------------------------


def failures(seeds: range, refused: Counter[str], until: float = math.inf) -> Iterator[Any]:
    """Run the programs of seeds and give each that differs with its message, made smaller.

    Ends early at a time of the clock `time.perf_counter`; `refused[RAN]` counts what ran.
    """
    for _, group in groupby(seeds, lambda seed: seed // GROUP):
        if time.perf_counter() > until:
            return
        programs = {seed: draw(seed) for seed in group}
        found = _errors_of(list(programs.values()), refused)
        refused[RAN] += len(programs)
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

    setting = programs[0].setting
    try:
        with limits(setting), _unwarned():
            found = simulate(RANKS, work, ranks_per_node=setting.ranks_per_node)
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
        if any(statement.number in (ref.number for ref in s.operands()) for s in kept):
            continue
        shorter = Program(program.mesh, program.ranks, program.setting)
        for one in kept:
            shorter.add(one)
        (found,) = _errors_of([shorter], Counter())
        if found is not None:
            program, message = shorter, found
    return program, message


def _short(value: np.ndarray) -> str:
    text = " ".join(repr(value).split())
    return f"{value.shape} {value.dtype} {text[:500]}"


def main() -> None:
    """Run programs from the command line."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seed", type=int, default=0, help="of the first program")
    options.add_argument("--count", type=int, default=1000, help="how many programs")
    options.add_argument("--seconds", type=float, default=math.inf, help="after which it ends")
    options.add_argument(
        "--calls", action="store_true", help="count what is drawn, and run nothing"
    )
    given = options.parse_args()
    seeds = range(given.seed, given.seed + given.count)
    if given.calls:
        _print_calls(seeds)
        return
    refused: Counter[str] = Counter()
    wrong = 0
    started = time.perf_counter()
    for seed, program, message in failures(seeds, refused, until=started + given.seconds):
        wrong += 1
        lines = "\n".join(map(str, program.statements))
        where = f"{program.mesh} {program.ranks} {program.setting}"
        print(f"seed {seed} on {where}:\n{lines}\n{message}\n", flush=True)
    ran = refused.pop(RAN, 0)
    for text, count in refused.most_common():
        print(f"refused {count:6d}  {text}")
    print(f"{ran} programs, {wrong} differ, {time.perf_counter() - started:.0f} s")
    sys.exit(bool(wrong))


def _print_calls(seeds: range) -> None:
    drawn: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    for seed in seeds:
        program = draw(seed)
        for statement in program.statements:
            name = statement.name
            if name.startswith(("use", "by_item")):
                name += f" {statement.args[0]}"
            drawn[name] += 1
            errors[name] += isinstance(program.values[statement.number], Exception)
    for name, count in drawn.most_common():
        print(f"{count:6d} {errors[name]:6d} errors  {name}")


if __name__ == "__main__":
    main()
