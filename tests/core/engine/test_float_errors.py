"""Errors that depend on values reach every rank, and cost nothing where none is asked for."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from distarray.array._array import DistArray, distribute_array
from distarray.array._fusing import fuse
from distarray.comm import CommLog, init_device_mesh
from distarray.core.engine._float_errors import DATES_RAISE
from distarray.errors import ArgumentError, DTypeError, FloatingError, OutOfRangeError
from distarray.layout import Partial, Replicate, Shard
from distarray.ops import vander
from distarray.ops.creation._asarray import asarray
from distarray.ops.manipulation import _joining as joining
from distarray.ops.statistical import _moments as statistics
from distarray.ops.statistical import _reductions as reductions
from distarray.ops.statistical import _scans as scans
from tests.array.strategies import agrees, on_ranks

pytestmark = pytest.mark.host_only

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "unary": lambda x, _: np.log(x),
    "binary": lambda x, _: 1 / x,
    "number": lambda x, _: x / 0.0,
    "arrays": lambda x, y: y / x,
    "in place": lambda x, y: operator.itruediv(y.copy(), x),
    "out": lambda x, y: np.divide(y, x, out=y.copy()),
    "masked": lambda x, y: np.divide(y, x, where=x.full_array() < 9),
    "other layouts": lambda x, y: y.redistribute([Replicate()]) / x,
    "several results": lambda x, y: np.divmod(y, x),
    "sum": lambda x, _: (x * 1e308 + 1e308).sum(),
    "sum over a kept axis": lambda x, _: (x * 1e308).reshape(6, 1).sum(1, dtype=np.float32),
    "sum under a mask": lambda x, _: (x * 1e308 + 1e308).sum(where=np.ones(6, bool)),
    "prod": lambda x, _: (x + 1e200).prod(),
    "mean": lambda x, _: (x * 1e308 + 1e308).mean(),
    "half": lambda x, _: (x + 60000).astype(np.float16).sum(),
    "var": lambda x, _: (x * 1e200).var(),
    "matmul": lambda x, _: (x * 1e200) @ (x * 1e200),
    "small matmul": lambda x, _: (x * 1e200).reshape(6, 1) @ np.full((1, 1), 1e200),
    "astype": lambda x, _: (x * 1e200).astype(np.float32),
    "root": lambda x, _: np.sqrt(-x),
    "assign plain": lambda x, y: y.astype("f2").__setitem__(..., np.arange(6) * 1e6),
    "assign plain to Partial": lambda x, y: y.astype("f4").redistribute(
        [Partial("sum")]).__setitem__(slice(2, 4), np.array([1, 1e200])),
    "assign a plain number": lambda x, y: y.astype("f2").__setitem__(0, np.array(1e6)),
    "assign": lambda x, y: y.astype("f2").__setitem__(..., x * 1e6),
    "assign to Partial": lambda x, y: y.astype("f4").redistribute(
        [Partial("sum")]).__setitem__(..., x * 1e200),
    "assign where": lambda x, y: np.copyto(y.astype("f2"), x * 1e6, where=x > 0),
    "copyto": lambda x, y: np.copyto(y.astype("f2"), x * 1e6),
    "copyto Partial": lambda x, y: np.copyto(
        y.astype("f4").redistribute([Partial("sum")]), x * 1e200),
    "out of a reduction": lambda x, y: np.max((x * 1e6).reshape(3, 2), axis=1,
                                              out=np.zeros_like(x, "f2", shape=3)),
    "asarray": lambda x, _: asarray(x * 1e6, dtype="f2"),
    "asarray plain": lambda x, _: asarray(np.arange(6) * 1e6, "f2", mesh=x.mesh),
    "concat": lambda x, y: joining.concat([x * 1e6, y], dtype="f2"),
    "half of doubles": lambda x, _: (x * 1e6).sum(dtype="f2"),
    "differences": lambda x, _: np.diff(np.where(x < 5, 1e308, -1e308)),
    "gradient": lambda x, _: np.gradient(np.where(x < 5, 1e308, -1e308)),
    "powers": lambda x, _: vander(np.where(x < 5, 1, 1e200)),
    "half of doubles under a mask": lambda x, _: (x * 1e6).sum(dtype="f2", where=np.ones(6, bool)),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["raise", "call"])
@pytest.mark.parametrize("name", CALLS)
def test_float_error_of_one_rank_raises_on_every_rank(name: str, mode: str) -> None:
    def called(kind: str, _: int) -> None:
        raise FloatingPointError(kind)

    def program() -> list[str]:
        mesh = init_device_mesh((4,))
        x, y = (distribute_array(value, mesh, [Shard(0)]) for value in (np.arange(6.0), np.ones(6)))
        said = []
        with np.errstate(all=mode, call=called):
            for _ in range(2):
                with pytest.raises(FloatingError, match=r"np\.errstate") as caught:
                    CALLS[name](x, y)
                said.append(str(caught.value))
            agrees(x + 1, np.arange(6.0) + 1)
        agrees(x * 2, np.arange(6.0) * 2)
        return said

    results = on_ranks(program)
    assert all(said == results[0] for said in results)


LONGEST = np.iinfo(np.int64).max
OVERFLOWS: dict[str, Callable[[Any, Any], Any]] = {
    "arrays": lambda x, _: x + x,
    "number": lambda x, _: x * 2,
    "factors": lambda x, _: np.multiply(np.arange(6), x),
    "scalar": lambda x, _: x + np.timedelta64(1, "s"),
    "plain": lambda x, _: x - np.full(6, -LONGEST, "m8[s]"),
    "in place": lambda x, _: operator.iadd(x.copy(), x),
    "in place by a number": lambda x, _: operator.imul(x.copy(), 2),
    "out": lambda x, _: np.add(x, x, out=x.copy()),
    "out of another unit": lambda x, _: np.add(x, x // 2, out=x.astype("m8[h]").astype("m8[ms]")),
    "fused": lambda x, _: fuse(lambda a: a + a)(x),
    "sum": lambda x, _: x.sum(),
    "sum under a mask": lambda x, _: x.sum(where=np.ones(6, bool)),
    "mean": lambda x, _: x.mean(),
    "cumsum": lambda x, _: x.cumsum(),
    "differences": lambda x, _: np.diff(np.where(x < LONGEST, -x, x) - np.timedelta64(2, "s")),
    "gradient": lambda x, _: np.gradient(np.where(x < LONGEST, -x, x)),
    "at": lambda x, _: np.add.at(x.copy(), [5], x[:1]),
    "units": lambda x, days: days + np.ones(6, "m8[ns]"),
    "equality of units": lambda _, days: days == days[0].astype("M8[ns]"),
    "choice of units": lambda x, days: np.where(x > 0, days, np.zeros(6, "M8[ns]")),
    "astype": lambda _, days: days.astype("M8[ns]"),
    "assign": lambda _, days: days[:1].astype("M8[ns]").repeat(6).__setitem__(..., days),
    "concat": lambda _, days: np.concatenate([days, days[:1].astype("M8[ns]")]),
}


@pytest.mark.skipif(not DATES_RAISE, reason="before NumPy 2.5 dates that overflow raise nothing")
@pytest.mark.parametrize("name", OVERFLOWS)
def test_date_that_overflows_on_one_rank_raises_on_every_rank(name: str) -> None:
    spans = np.array([3, 1, 2, 1, 1, LONGEST], "m8[s]")
    dates = np.array([*["2000-01-01"] * 5, "9999-01-01"], "M8[s]")
    with pytest.raises(OverflowError):
        OVERFLOWS[name](spans, dates)

    def program() -> str:
        mesh = init_device_mesh((4,))
        x, days = (distribute_array(value, mesh, [Shard(0)]) for value in (spans, dates))
        with pytest.raises(OutOfRangeError, match="a coarser unit") as caught:
            OVERFLOWS[name](x, days)
        agrees(x[:5] + x[:5], spans[:5] * 2)
        return str(caught.value)

    results = on_ranks(program)
    assert all(said == results[0] for said in results)


@pytest.mark.parametrize(
    "name", ["binary", "out", "sum", "mean", "var", "astype", "assign", "concat"]
)
def test_rank_outside_of_the_mesh_is_not_told_and_goes_on(name: str) -> None:
    def program() -> bool:
        mesh = init_device_mesh((3,))
        x, y = (distribute_array(value, mesh, [Shard(0)]) for value in (np.arange(6.0), np.ones(6)))
        told = False
        with np.errstate(all="raise"):
            try:
                CALLS[name](x, y)
            except FloatingError:
                told = True
        agrees(x * 2, np.arange(6.0) * 2)
        return told

    assert on_ranks(program) == [True, True, True, False]


def test_nothing_is_said_where_float_errors_do_not_raise() -> None:
    def program() -> None:
        x = distribute_array(np.arange(6.0), init_device_mesh((4,)), [Shard(0)])
        y = distribute_array(np.arange(6), init_device_mesh((4,)), [Shard(0)])
        for mode in ("ignore", "warn"):
            with np.errstate(all=mode), CommLog() as log:
                x + x, x.sum(), x.max(), np.sqrt(x), x.astype(np.float32), y**2, x**y
                y ** distribute_array(np.arange(6, dtype=np.uint8), y.mesh, [Shard(0)], src=None)
            assert log.count() == 0

    on_ranks(program)


POWERS: dict[str, Callable[[Any], Any]] = {
    "number": lambda y: 2**y,
    "number in NumPy": lambda y: np.power(np.int8(2), y),
    "plain": lambda y: np.arange(6) ** y,
    "arrays": lambda y: y**y,
    "in place": lambda y: operator.ipow(y.copy(), y),
    "truths": lambda y: (y > 0) ** y,
    "partial": lambda y: y ** DistArray.from_local(
        np.array([1, -1, 0, 0, 0, -y.mesh.rank]), y.mesh, [Partial("sum")]
    ),
    "reduce": lambda y: np.power.reduce(y[:, None] + np.zeros(2, int), axis=1),
    "accumulate": lambda y: np.power.accumulate(y[:, None] + np.zeros(2, int), axis=1),
    "reduceat": lambda y: np.power.reduceat(y[:, None] + np.zeros(2, int), [0], axis=1),
    "at": lambda y: np.power.at(y.copy(), np.arange(6), y),
    "at with numbers": lambda y: np.power.at(y[:3].copy(), np.arange(3), np.int64(-1)),
}  # fmt: skip


@pytest.mark.parametrize("name", POWERS)
def test_negative_power_of_integers_that_one_rank_holds_raises_on_every_rank(name: str) -> None:
    def program() -> str:
        mesh = init_device_mesh((4,))
        y = distribute_array(np.array([1, 2, 1, 1, 1, -1]), mesh, [Shard(0)])
        with pytest.raises(ArgumentError, match="negative integer powers") as caught:
            POWERS[name](y)
        agrees(2 ** abs(y), 2 ** np.array([1, 2, 1, 1, 1, 1]))
        agrees(2.0**y, 2.0 ** np.array([1, 2, 1, 1, 1, -1]))
        z = DistArray.from_local(np.array([3 - 2 * mesh.rank]), mesh, [Partial("max")])
        agrees(2**z, np.array([8]))  # parts are negative, their largest is not
        return str(caught.value)

    assert len(set(on_ranks(program))) == 1


def test_results_of_python_functions_are_objects_as_in_numpy_until_they_must_travel() -> None:
    half = np.frompyfunc(lambda v: v / 2, 1, 1)
    both = np.frompyfunc(divmod, 2, 2)

    def program() -> list[str]:
        value = np.arange(5.0)
        x = distribute_array(value, init_device_mesh((4,)), [Shard(0)])
        for one, whole in (
            (x, value),
            (x[2], value[2]),
            (x.sum(), value.sum()),
            (x[:0], value[:0]),
        ):
            result = half(one)
            assert result.dtype == object
            assert result.to_local().shape == result.layout.local_shape()
            agrees(result.astype(float), np.asarray(half(whole)).astype(float))
            agrees((result + 1).astype(float), np.asarray(half(whole) + 1).astype(float))
        for result, expected in zip(both(x, 2), both(value, 2), strict=True):
            agrees(result.astype(np.float32), expected.astype(np.float32))
        said = []
        for call in (
            lambda: half(x).full_array(), lambda: half(x).sum(), lambda: half(x).mean(),
            lambda: reductions.max(half(x)), lambda: half(x).redistribute([Replicate()]),
        ):  # fmt: skip
            with pytest.raises(DTypeError, match="objects") as caught:
                call()
            said.append(str(caught.value))
        return said

    results = on_ranks(program)
    assert all(said == results[0] for said in results)


@pytest.mark.parametrize(
    ("values", "target"),
    [
        (["1", "x", "3", "4"], "f8"),
        (["1", "2", "3", "bé"], "S4"),
        (["1970-01-01", "1970-01-02", "no date", "1970-01-04"], "M8[D]"),
        (np.array(["1970-01-01", "NaT", "NaT", "NaT"], "M8[D]"), "U5"),
    ],
)
def test_text_that_does_not_convert_raises_on_every_rank(values, target):
    def convert():
        mesh = init_device_mesh((4,))
        x = distribute_array(np.asarray(values), mesh, [Shard(0)], src=None)
        y = distribute_array(np.zeros(4, target), mesh, [Shard(0)], src=None)
        for call in (
            lambda: x.astype(target),
            lambda: asarray(x, dtype=target),
            lambda: asarray(np.asarray(values), dtype=target, mesh=mesh),
            lambda: joining.concat([x, y], dtype=target, casting="unsafe"),
            lambda: np.copyto(y, x, casting="unsafe"),
            lambda: np.copyto(y, np.asarray(values), casting="unsafe"),
            lambda: y.__setitem__(..., np.asarray(values)),
        ):
            with pytest.raises(ArgumentError):
                call()
        return float(distribute_array(np.ones(8), mesh, [Shard(0)], src=None).sum())

    assert on_ranks(convert) == [8] * 4  # the ranks are in step


def test_bytes_that_are_no_text_raise_on_every_rank() -> None:
    def choose() -> float:
        x = asarray(np.array([b"a", b"b", b"\xff", b"d"]), mesh=init_device_mesh((4,)))
        for other in ("no", np.array("no"), ["no"] * 4):
            with pytest.raises(ArgumentError, match="ascii"):
                np.where(x != b"a", x, other)
        agrees(np.where(x != b"a", "yes", "no"), np.array(["no", "yes", "yes", "yes"]))
        return float(distribute_array(np.ones(8), x.mesh, [Shard(0)], src=None).sum())

    assert on_ranks(choose) == [8] * 4


@pytest.mark.parametrize("dtype", ["V4", [("a", "i4"), ("b", "f8")], "U3"])
def test_items_that_no_number_comes_from_raise_on_every_rank(dtype):
    value = np.full(2, "x", dtype) if dtype == "U3" else np.zeros(2, dtype)

    def convert():
        mesh = init_device_mesh((4,))
        x = distribute_array(value, mesh, [Shard(0)], src=None)  # two ranks have no item
        for call in (
            lambda: joining.concat([x, x], dtype="f4"),
            lambda: statistics.mean(x, dtype="m8[s]"),
            lambda: scans.cumsum(x, dtype="m8[s]"),
        ):
            with pytest.raises((ArgumentError, DTypeError)):
                call()
        return float(distribute_array(np.ones(8), mesh, [Shard(0)], src=None).sum())

    assert on_ranks(convert) == [8] * 4  # the ranks are in step


def test_raw_memory_that_becomes_no_structure_raises_on_every_rank() -> None:
    def convert() -> float:
        mesh = init_device_mesh((4,))
        raw = distribute_array(np.zeros(2, "V3"), mesh, [Shard(0)], src=None)
        pairs = distribute_array(np.zeros(2, "i4,f8"), mesh, [Shard(0)], src=None)
        for call in (
            lambda: np.copyto(pairs, raw, casting="unsafe"),
            lambda: pairs.__setitem__(..., raw),
        ):
            with pytest.raises((ArgumentError, DTypeError)):
                call()
        return float(distribute_array(np.ones(8), mesh, [Shard(0)], src=None).sum())

    assert on_ranks(convert) == [8] * 4  # the ranks are in step
