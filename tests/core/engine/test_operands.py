"""Plain operands mean what they mean to NumPy, or are refused where their meaning would be lost."""

from __future__ import annotations

import datetime as dt
import operator
import warnings
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse

import distarray as da
from distarray.array._array import DistArray, distribute_array
from distarray.array._mapping import map_blocks
from distarray.comm import default_mesh
from distarray.core._dtypes import REFUSALS
from distarray.errors import ArgumentTypeError, DTypeError, MeshError, ShapeError
from distarray.layout import Replicate, Shard
from distarray.ops.creation._asarray import asarray
from distarray.ops.creation._filled import full
from distarray.ops.creation._ranges import arange, linspace
from distarray.ops.elementwise._rounding import where
from distarray.testing import simulate

pytestmark = pytest.mark.host_only  # CuPy holds numbers only

DAY = dt.date(2020, 1, 2)
RECORD = np.dtype([("a", "i4"), ("b", "f8")])
VALUES = {
    "text": np.array([["UA", "b", ""], ["c", "UA", "longer"], ["b", "b", "UA"]]),
    "bytes": np.array([[b"UA", b"b", b""], [b"c", b"UA", b"d"], [b"b", b"b", b"UA"]]),
    "int": np.arange(9).reshape(3, 3),
    "float": np.array([[0.5, np.nan, 1.0], [2.0, 0.5, -0.0], [np.inf, 1.0, 7.0]]),
    "complex": np.arange(9).reshape(3, 3) * (1 + 1j),
    "date": np.array([["2020-01-02", "NaT", "2021-01-01"]] * 3, "M8[D]"),
    "second": np.array([["2020-01-02", "NaT", "2021-01-01"]] * 3, "M8[s]"),
    "delta": np.arange(9).reshape(3, 3).astype("m8[D]"),
    "record": np.array([[(1, 2.0), (2, 3.0), (1, 2.0)]] * 3, RECORD),
    "bool": np.arange(9).reshape(3, 3) % 2 == 0,
}
OTHERS = {
    "str": "UA",
    "bytes": b"UA",
    "none": None,
    "date": DAY,
    "datetime": dt.datetime(2020, 1, 2),
    "timedelta": dt.timedelta(3),
    "timedelta64": np.timedelta64(3, "D"),
    "datetime64": np.datetime64("2020-01-02"),
    "decimal": Decimal("0.5"),
    "fraction": Fraction(1, 2),
    "object": object(),
    "dict": {},
    "number": 1,
    "huge": 2**70,
    "str_": np.str_("UA"),
    "texts": ["UA", "b", "c"],
    "objects": [1, None, "UA"],
    "object column": np.array([[1], [None], ["b"]], dtype=object),
    "numbers": (1, 2, 7),
    "array": np.array(["UA", "UA", "c"]),
    "variable": np.array(["UA", "b", "c"], dtype=np.dtypes.StringDType()),
    "two": ["UA", "b"],
    "record": np.array((1, 2.0), RECORD)[()],
}
FEW = ("str", "none", "object", "objects", "array", "record")
LAYOUTS = {"S0": Shard(0), "S1": Shard(1), "R": Replicate(), "uneven": Shard(0)}


def placed(value: np.ndarray, layout: str) -> DistArray:
    """Return a value under one of the layouts, on all simulated ranks."""
    mesh = default_mesh()
    x = distribute_array(value, mesh, [Replicate()], src=None)
    if value.ndim == 0:
        return x
    length = len(value)
    cuts = {0: (0, *[min(1, length)] * (mesh.size - 1), length)} if layout == "uneven" else None
    return x.redistribute([LAYOUTS[layout]], boundaries=cuts)


def same(compare: Callable[[Any, Any], Any], ours: Any, theirs: Any) -> None:
    """Check that two pairs of operands give the same booleans, or that both are refused."""
    try:
        expected = np.asarray(compare(*theirs))
    except REFUSALS:
        with pytest.raises(REFUSALS):
            compare(*ours)
        return
    result = compare(*ours)
    assert isinstance(result, DistArray)
    assert result.dtype == bool == expected.dtype
    np.testing.assert_array_equal(result.full_array(), expected)


@pytest.mark.parametrize(("layout", "ranks"), [("S0", 3), ("S1", 2), ("R", 2), ("uneven", 4)])
def test_comparisons_with_any_object_are_numpys(layout: str, ranks: int) -> None:
    def program() -> None:
        for value in VALUES.values():
            for whole in (value, value[:0], np.asarray(value[1, 1])):
                x = placed(whole, layout)
                for name in OTHERS if whole is value else FEW:
                    other = OTHERS[name]
                    operators = [operator.eq, operator.ne]
                    if name in ("str", "bytes", "number", "none", "array"):
                        operators += [operator.lt, operator.ge]
                    for compare in operators:
                        with np.errstate(all="ignore"):
                            if compare in (operator.lt, operator.ge) and not np.size(whole):
                                continue  # NumPy finds nothing there that it could not compare
                            same(compare, (x, other), (whole, other))
                            if whole is value and not isinstance(other, (np.ndarray, np.generic)):
                                same(compare, (other, x), (other, whole))

    simulate(ranks, program)


def test_comparisons_of_two_arrays_of_unlike_dtypes_are_numpys() -> None:
    def program() -> None:
        for first in VALUES.values():
            for second in VALUES.values():
                for layouts in (("S0", "S0"), ("S0", "S1"), ("uneven", "R")):
                    x, y = placed(first, layouts[0]), placed(second, layouts[1])
                    same(operator.eq, (x, y), (first, second))
                    same(operator.ne, (x, y), (first, second))

    simulate(3, program)


def test_what_cannot_be_compared_raises_on_every_rank_alike() -> None:
    class Refusing:
        def __eq__(self, other: object) -> bool:
            raise TypeError("not with me")

        __hash__ = None  # type: ignore[assignment]

    def program() -> None:
        x = placed(np.arange(1), "S0")  # one item: only the first rank compares any
        for other in (None, DAY, Decimal(1), [None], "UA"):
            with pytest.raises(TypeError):
                x < other  # noqa: B015
        with pytest.raises(DTypeError, match="not with me"):
            x == Refusing()  # noqa: B015
        assert (placed(VALUES["text"], "S0") < "c").full_array().tolist() == (
            VALUES["text"] < "c"
        ).tolist()

    simulate(2, program)


def test_comparison_never_answers_by_identity() -> None:
    class Stranger:
        __array_ufunc__ = None

        def __eq__(self, other: object) -> Any:
            return "stranger"

        __hash__ = None  # type: ignore[assignment]

    def program() -> None:
        x = placed(np.arange(3), "S0")
        with pytest.raises(ShapeError, match="broadcast"):
            x == [1, 2]  # noqa: B015
        assert (x == Stranger()) == "stranger"  # it asks to be the one that answers
        assert "UA" in placed(VALUES["text"], "S0")
        assert "UA" not in x
        assert None not in x
        np.testing.assert_array_equal((np.str_("UA") == x).full_array(), [False] * 3)
        np.testing.assert_array_equal(
            (np.array([1, None, 2], dtype=object) == x).full_array(), [False, False, True]
        )
        with pytest.raises(TypeError, match="unhashable"):
            hash(x)

    simulate(2, program)


def test_ufuncs_of_a_numpy_array_and_ours_answer_as_the_operators_that_call_them() -> None:
    def program() -> None:
        for value in VALUES.values():
            x = placed(value, "S0")
            for other in (np.array("UA"), np.array(2.5), np.array(3, "M8[D]")):
                for compare, ufunc in ((operator.eq, np.equal), (operator.ne, np.not_equal)):
                    same(compare, (other, x), (other, value))
                    try:
                        expected = compare(value, other)
                    except REFUSALS:
                        with pytest.raises(DTypeError):
                            ufunc(other, x)
                    else:
                        np.testing.assert_array_equal(ufunc(other, x).full_array(), expected)

    simulate(2, program)


def test_functions_of_equality_refuse_what_numpys_refuse() -> None:
    def program() -> None:
        for value in VALUES.values():
            x = placed(value, "S0")
            for other in ("UA", 2.5, None, [1, None, 2], *VALUES.values()):
                ours = placed(other, "S0") if isinstance(other, np.ndarray) else other
                for ufunc, function in ((np.equal, da.equal), (np.not_equal, da.not_equal)):
                    try:
                        expected = ufunc(value, other)
                    except REFUSALS:
                        for one, pair in (
                            (ufunc, (x, ours)),
                            (function, (x, ours)),
                            (function, (ours, x)),
                            (function, (value, other)),
                        ):
                            with pytest.raises((DTypeError, ShapeError)):
                                one(*pair)
                    else:
                        np.testing.assert_array_equal(ufunc(x, ours).full_array(), expected)
                        np.testing.assert_array_equal(function(x, ours).full_array(), expected)
                        np.testing.assert_array_equal(function(value, other), expected)

    simulate(3, program)


class Unit(np.ndarray):
    """An array whose items have a unit."""


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # NumPy 2.5 wants to drop the class
    CHARACTERS = np.char.array(["a ", "b", "c"])
MEANINGFUL = {
    "masked": np.ma.masked_equal([1.0, 2.0, 3.0], 2.0),
    "unmasked": np.ma.MaskedArray([1.0, 2.0, 3.0]),
    "matrix": np.array([[1.0, 2.0, 3.0]]).view(np.matrix),
    "unit": np.array([1.0, 2.0, 3.0]).view(Unit),
    "chararray": CHARACTERS,
}
WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "asarray": lambda _, v: asarray(v),
    "asarray with a dtype": lambda _, v: asarray(v, dtype="U3"),
    "distribute_array": lambda _, v: distribute_array(v),
    "distribute_array everywhere": lambda _, v: distribute_array(v, src=None),
    "from_local": lambda _, v: DistArray.from_local(v),
    "from_local unchecked": lambda _, v: DistArray.from_local(v, check=False),
    "operator": lambda x, v: x + v,
    "comparison": lambda x, v: x == v,
    "in place": lambda x, v: operator.imul(x, v),
    "product": lambda x, v: x @ np.ndarray.view(v.T, type(v)),
    "reflected product": lambda x, v: DistArray.__rmatmul__(x, v),
    "ufunc": lambda x, v: np.add(x, v),
    "ufunc before": lambda x, v: np.hypot(v, x),
    "setitem": lambda x, v: x.__setitem__(0, v),
    "where": lambda x, v: where(x > 0, x, v),
    "condition": lambda x, v: where(v, x, 0),
    "mask": lambda x, v: np.sum(x, where=v, initial=0),
    "clip": lambda x, v: np.clip(x, v, None),
    "concatenate": lambda x, v: np.concatenate([x, v]),
    "copyto": lambda x, v: np.copyto(x, v),
    "einsum": lambda x, v: np.einsum("i,i->", x, v),
    "map_blocks": lambda x, v: map_blocks(lambda _: v, x),
}


@pytest.mark.parametrize("way", WAYS)
def test_arrays_that_mean_more_than_their_values_are_refused(way: str) -> None:
    def program() -> None:
        x = distribute_array(np.arange(3.0), src=None)
        before = x.full_array()
        for value in MEANINGFUL.values():
            with pytest.raises(ArgumentTypeError, match=f"{type(value).__name__}.*np.asarray"):
                WAYS[way](x, value)
        np.testing.assert_array_equal(x.full_array(), before)

    simulate(2, program)


def test_masked_constant_is_refused() -> None:
    def program() -> None:
        x = distribute_array(np.arange(3.0), src=None)
        uses: tuple[Callable[[Any], Any], ...] = (
            lambda v: x + v,
            lambda v: full(3, v),
            lambda v: x.__setitem__(0, v),
            lambda v: np.sum(x, initial=v),
            lambda v: np.unwrap(x, period=v),
            lambda v: arange(3, v),
            lambda v: linspace(0, v, 3),
        )
        for use in uses:
            with pytest.raises(ArgumentTypeError, match="MaskedConstant"):
                use(np.ma.masked)

    simulate(2, program)


def test_memory_maps_and_record_arrays_are_plain_values(tmp_path: Any) -> None:
    def program() -> None:
        rank = default_mesh().rank
        stored = np.memmap(tmp_path / f"{rank}", np.float64, "w+", shape=(4,))
        stored[...] = [1, 2, 3, 4]
        records = np.rec.array([(1, 2.0), (3, 4.0)], dtype=RECORD)
        x = asarray(stored)
        assert type(x.to_local()) is np.ndarray
        np.testing.assert_array_equal((x + stored).full_array(), [2, 4, 6, 8])
        own = DistArray.from_local(stored)
        assert type(own.to_local()) is np.ndarray
        assert np.shares_memory(own.to_local(), stored)
        x[...] = stored * 2
        np.testing.assert_array_equal(x.full_array(), [2, 4, 6, 8])
        np.testing.assert_array_equal((asarray(records) == records).full_array(), [True, True])

    simulate(2, program)


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (sparse.csr_array(np.eye(4)), r"value\.toarray\(\).*docs/iterative\.md"),
        (sparse.coo_array(np.eye(4)), r"value\.toarray\(\).*docs/iterative\.md"),
        ((i for i in range(3)), r"a generator is no array to NumPy.*list\(value\)"),
        ({"a": 1}, r"a dict is no array to NumPy.*list\(value\.values\(\)\)"),
        (np.array(["a", "bc"], object), r"np\.asarray\(value\).*astype\('U8'\)"),
        (["a", None], r"np\.asarray\(value\).*astype\('U8'\)"),
    ],
)
def test_what_holds_python_objects_is_told_what_to_pass_instead(value: Any, remedy: str) -> None:
    for make in (da.asarray, da.array, da.distribute_array, da.DistArray.from_local):
        with pytest.raises(DTypeError, match=f"holds Python objects.*{remedy}"):
            make(value)


def test_a_sparse_operand_is_told_what_to_pass_instead() -> None:
    with pytest.raises(ArgumentTypeError, match=r"add does not take csr_array; .*toarray\(\)"):
        da.add(da.ones((4, 4)), sparse.csr_array(np.eye(4)))


def test_meshes_that_do_not_fit_are_told_apart_by_their_ranks_or_communicators() -> None:
    def program() -> list[str]:
        line = da.init_device_mesh((2, 2), ("down", "across"))["across"].communicator()
        first = da.ones(4, mesh=da.DeviceMesh([0, 1]))
        told = []
        for other in (da.DeviceMesh([1, 2]), da.DeviceMesh(line.ranks, comm=line)):
            for call in (np.add, da.isin):
                with pytest.raises(MeshError) as refused:
                    call(first, da.ones(4, mesh=other))
                told.append(str(refused.value).split(": ")[1].split(";")[0])
        return told

    told = simulate(4, program)[0]
    assert told[:2] == ["[axis0=2] of ranks 0, 1 and [axis0=2] of ranks 1, 2"] * 2
    assert told[2:] == ["[axis0=2] of ranks 0, 1, over different communicators"] * 2
