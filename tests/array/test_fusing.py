"""Fused functions give what the same functions give, in one pass over their arrays."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray import Partial, Replicate, Shard
from distarray.array import _fusing
from distarray.comm import CommLog
from distarray.core import Trace
from distarray.core.engine import _fusion
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    FloatingError,
    ImplicitCommunicationError,
    OutOfRangeError,
    ReadOnlyError,
    ShapeError,
)
from tests.array import programs
from tests.array.strategies import cases, on_ranks, sample, special_cases
from tests.on_device import DEVICE

on_host = pytest.mark.skipif(DEVICE != "cpu", reason="nothing waits on a GPU")

DTYPES = ("?", "i1", "i2", "i4", "i8", "u1", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
DATES = ("M8[s]", "m8[s]")
UNARY = (
    "negative",
    "abs",
    "sqrt",
    "exp",
    "sin",
    "square",
    "isnan",
    "floor",
    "conj",
    "sign",
    "expm1",
)
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "less", "equal",
          "logaddexp", "hypot", "remainder", "logical_and", "bitwise_xor",
          "floor_divide")  # fmt: skip
REDUCTIONS = ("sum", "prod", "min", "max", "any", "all", "mean", "count_nonzero", "std", "argmax")


class Passes:
    """What is computed by passes: how many steps each has, what it reads at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit: int | None = None) -> None:
        self.steps: list[int] = []
        begin = _fusion.Pass.__init__

        def counted(run: Any, roots: Any, writes: bool) -> None:
            begin(run, roots, writes)
            self.steps.append(len(run._steps))

        monkeypatch.setattr(_fusion.Pass, "__init__", counted)
        if limit is not None:
            monkeypatch.setattr(_fusion, "_PASS_BYTES", limit)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> Passes:
    return Passes(monkeypatch, 100)


@st.composite
def trees(draw: Any, leaves: int, depth: int = 4) -> Any:
    """Draw an expression of arrays numbered from 0: nested tuples of a function and operands."""
    kind = draw(st.integers(0, 9)) if depth else 0
    if kind < 2:
        return draw(st.integers(0, leaves - 1))
    below = trees(leaves, depth - 1)
    if kind < 4:
        return draw(sample(UNARY)), draw(below)
    if kind < 7:
        return draw(sample(BINARY)), draw(below), draw(st.one_of(below, sample((2, 0.5, True))))
    if kind == 7:
        return "where", draw(below), draw(below), draw(below)
    if kind == 8:
        return "astype", draw(below), draw(sample(("f4", "i8", "f8", "?")))
    return draw(sample(("round", "clip", "transposed", "centred"))), draw(below)


def evaluate(tree: Any, arrays: Any, xp: Any) -> Any:
    """Return an expression's value, by functions of a module."""
    if not isinstance(tree, tuple):
        return arrays[tree] if type(tree) is int and tree < len(arrays) else tree
    name, *rest = tree
    if name == "astype":
        return evaluate(rest[0], arrays, xp).astype(rest[1])
    x, *others = (evaluate(one, arrays, xp) for one in rest)
    match name:
        case "clip":
            return xp.clip(x, 0, 2)
        case "transposed":  # which is computed at once
            return x.T.copy().T
        case "centred":
            return x - x.max() if x.size and x.dtype.kind == "f" else x
        case _:
            return getattr(xp, name)(x, *others)


def outcome(call: Callable[[], Any]) -> Any:
    """Return what a call gives, or its error."""
    try:
        return call()
    except AssertionError:
        raise
    except Exception as error:
        return error


def quietly(program: Callable[[], None]) -> None:
    """Run a program on ranks without warnings, whose filters all threads share."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        on_ranks(program)


def same(fused: Any, plain: Any, exact: bool = True) -> None:
    """Compare two results on this rank: class, layout, dtype, the bits of their blocks."""
    assert type(fused) is type(plain), (fused, plain)
    if isinstance(plain, Exception):
        assert str(fused) == str(plain)
        return
    assert fused.layout is plain.layout
    assert fused.dtype == plain.dtype
    a, b = fused.to_local(), plain.to_local()
    assert type(a) is type(b)
    if exact:
        np.testing.assert_array_equal(a, b)
        if a.dtype.kind == "f":
            np.testing.assert_array_equal(np.signbit(a), np.signbit(b))
    else:
        eps = float(np.finfo(a.dtype).eps) if a.dtype.kind in "fc" else 0.0
        np.testing.assert_allclose(a, b, rtol=64 * eps, atol=0)


def compare(drawn: Any, call: Callable[..., Any], exact: bool = True) -> None:
    """Compare a function with itself, fused, on arrays that all ranks build."""

    def program() -> None:
        arrays = [case.build() for case in drawn]
        with np.errstate(all="ignore"):
            plain = outcome(lambda: call(*arrays))
            fused = outcome(lambda: da.fuse(call)(*arrays))
        same(fused, plain, exact)

    quietly(program)


@st.composite
def operands(
    draw: Any, dtypes: Any = DTYPES, partial: bool = True, special: bool = True
) -> list[Any]:
    """Draw one to three arrays on one mesh whose shapes broadcast, some of special values."""
    first = draw(cases((np.float64,), ()))
    found = []
    for _ in range(draw(st.integers(1, 3))):
        kept = draw(st.integers(0, len(first.shape))) if found else len(first.shape)
        shape = first.shape[len(first.shape) - kept :]
        shape = tuple(1 if found and draw(st.integers(0, 4)) == 0 else n for n in shape)
        own = {"mesh_shape": first.mesh_shape, "shape": shape}
        if special and draw(st.booleans()):
            found.append(draw(special_cases(dtypes, **own)))
        else:
            found.append(draw(cases(dtypes, ("sum", "max") if partial else (), **own)))
    return found


@pytest.mark.parametrize("limit", [None, 100])
def test_expressions_are_those_that_are_not_fused(
    limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = Passes(monkeypatch, limit)

    @settings(max_examples=30)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        drawn = data.draw(operands())
        tree = data.draw(trees(len(drawn)))
        compare(drawn, lambda *arrays: evaluate(tree, arrays, da))

    check()
    assert max(passes.steps, default=0) > 2 or DEVICE != "cpu"


@settings(max_examples=20)
@given(data=st.data())
def test_expressions_agree_with_numpy(data: st.DataObject) -> None:
    drawn = data.draw(operands(partial=False))
    tree = data.draw(trees(len(drawn)))
    values = [case.value for case in drawn]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = outcome(lambda: np.asarray(evaluate(tree, values, np)))

    def program() -> None:
        arrays = [case.build() for case in drawn]
        with np.errstate(all="ignore"):
            found = outcome(lambda: da.fuse(lambda *x: evaluate(tree, x, da))(*arrays))
        if isinstance(expected, Exception):
            assert isinstance(found, Exception)
        elif arrays[0].mesh.coordinate is not None:
            assert isinstance(found, da.DistArray), found
            assert found.dtype == expected.dtype
            exact = expected.dtype.kind not in "fc"
            eps = 0.0 if exact else 16 * float(np.finfo(expected.dtype).eps)
            full = found.full_array()
            np.testing.assert_allclose(full, expected, rtol=eps, atol=eps)

    quietly(program)


@on_host
@settings(max_examples=10)
@given(data=st.data())
def test_dates_wait_as_numbers_do(data: st.DataObject) -> None:
    case = data.draw(special_cases(DATES))
    compare([case], lambda x: da.where(x == x.max(), x, x + np.timedelta64(5, "s")))
    compare([case], lambda x: (x + np.timedelta64(5, "s")).min())
    compare([case], lambda x: (x - x).sum(0) if x.ndim else x - x)


@pytest.mark.parametrize("limit", [None, 100])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_expressions_are_those_that_are_not_fused(
    name: str, limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    Passes(monkeypatch, limit)

    @settings(max_examples=10)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        exact = name not in ("sum", "prod", "mean", "std")  # whatever the order of items
        dtypes = ("i4", "u1", "?") if name == "prod" else ("f8", "f4", "f2", "i4", "u1", "?", "c16")
        drawn = data.draw(operands(dtypes, special=exact))
        ndim = len(drawn[0].shape)
        axis = data.draw(sample((None, *range(ndim), *([(0, ndim - 1)] if ndim > 1 else ()))))
        options = (
            {} if name in ("argmax", "count_nonzero") else {"keepdims": data.draw(st.booleans())}
        )

        def call(x: Any, *others: Any) -> Any:
            for y in others:
                x = da.where(x < y, x, y)
            return getattr(da, name)(x * 2, axis=axis if name != "argmax" else 0, **options)

        compare(drawn, call, exact)

    check()


def test_sums_are_as_accurate_as_numpys() -> None:
    x = da.random.default_rng(3).random(size=1 << 21, dtype=np.float32)
    wide = x.full_array().astype(np.float64)
    exact = float(((wide - 0.25) * 2).sum())
    plain = abs(float(((x.full_array() - np.float32(0.25)) * 2).sum()) - exact)
    fused = abs(float(da.fuse(lambda x: ((x - 0.25) * 2).sum())(x)) - exact)
    assert fused <= max(plain, 1e-7 * exact)


@on_host
def test_one_pass_computes_an_expression_and_what_it_is_reduced_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes = Passes(monkeypatch)
    x, y = da.arange(12.0).reshape(3, 4), da.ones((3, 4))
    da.fuse(lambda x, y: da.sqrt(x) * y + 1)(x, y)
    assert passes.steps == [3]
    da.fuse(lambda x: ((x - 2) ** 2).sum(0))(x)
    assert passes.steps == [3, 2]
    da.fuse(lambda x, y: (x - y, (x - y) * 2, np.exp(y)))(x, y)
    assert passes.steps == [3, 2, 4]
    da.fuse(lambda x: (x - x.mean(0)) / x.std(0))(x)
    assert passes.steps == [3, 2, 4, 2]


@on_host
def test_scratch_memory_is_shared_by_steps_and_tiles() -> None:
    def chain(x: Any) -> Any:
        for _ in range(50):
            x = np.sqrt(x * x + 1)
        return x.sum(), x

    def scratch(run: Any) -> int:
        return len(run._dtypes)

    with Trace():
        x = object.__new__(_fusing._Argument).enter(da.ones((100, 100)))
        y = x
        for _ in range(50):
            y = np.sqrt(y * y + 1)
        assert scratch(_fusion.Pass([y._node], writes=True)) == 0
        assert scratch(_fusion.Pass([y._node], writes=False)) == 1
        z = (x + 1) * (x + 2) + (x + 3) * (x + 4)
        assert scratch(_fusion.Pass([z._node], writes=True)) == 2
        assert scratch(_fusion.Pass([(z > 3)._node], writes=True)) == 3
    total, last = da.fuse(chain)(da.ones((100, 100)))
    np.testing.assert_allclose(float(total), float(last.sum()))


@on_host
def test_tiles_of_sums_over_the_first_axis_have_few_rows() -> None:
    # As many as lie in one place of the caches, if rows are as long as a power of two.
    with Trace():
        x = object.__new__(_fusing._Argument).enter(da.ones((100, 1 << 14)))
        run = _fusion.Pass([(x * 2)._node], writes=False)
        kept, boxes = next(run.tiles([0]))
        assert next(boxes) == (slice(0, 8), kept[1])
        assert kept[1] == slice(0, (1 << 20) // 16 // 8)


def test_what_is_needed_again_is_not_overwritten(small_tiles: Passes) -> None:
    def several(x: Any) -> Any:
        a = x + 1
        b = a * a
        c = (a + 3) * (b + 5) + (b + 7) * (a + 9)
        return c, b, a, c - b

    def around(x: Any) -> Any:
        a = x + 1
        early = x * 2  # while a is needed further
        b = a - 4
        return early, b * b + a

    x = da.arange(24.0).reshape(4, 6)
    for call in (several, around):
        for one, other in zip(da.fuse(call)(x), call(x.full_array()), strict=True):
            np.testing.assert_array_equal(one, other)


@on_host
def test_memory_order_of_results_is_that_of_the_operands(small_tiles: Passes) -> None:
    x = da.asarray(np.arange(12.0).reshape(3, 4)).T
    found = da.fuse(lambda x: x * 2 + 1)(x)
    assert found.to_local().flags.f_contiguous
    np.testing.assert_array_equal(found, np.arange(12.0).reshape(3, 4).T * 2 + 1)
    np.testing.assert_array_equal(
        da.fuse(lambda x: (x * 2).sum(0))(x), (np.arange(12.0).reshape(3, 4).T * 2).sum(0)
    )


def test_what_is_written_meanwhile_does_not_change_what_waits() -> None:
    captured, plain = da.ones(6), np.ones(6)

    @da.fuse
    def writes(x: Any, everywhere: Any) -> Any:
        before, beside, copied = x + captured, x + plain, everywhere + plain
        plain[...] = 7.0
        captured[2:] = 5.0
        np.add(captured, 1, out=captured)
        own = x * 1
        view = own[1:]
        after = view + 1
        own += 10
        return before, beside, copied, x + captured, own, after

    found = writes(da.zeros(6), da.zeros(6, placements=[Replicate()]))
    wanted = [[1] * 6, [1] * 6, [1] * 6, [2, 2, 6, 6, 6, 6], [10] * 6, [1] * 5]
    for one, values in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, values)
    np.testing.assert_array_equal(captured, [2, 2, 6, 6, 6, 6])


@on_host
def test_arguments_are_read_only_inside() -> None:
    x = da.zeros((4, 2))

    def add(x: Any) -> Any:
        x += 1
        return x

    def assign(x: Any) -> None:
        x[1] = 2.0

    for call in (add, assign, lambda x: np.exp(x, out=x), lambda x: x.fill(1)):
        with pytest.raises(ReadOnlyError, match=r"inside a function of da\.fuse"):
            da.fuse(call)(x)
    with pytest.raises(ValueError, match="read-only"):
        da.fuse(lambda x: x.to_local().fill(1))(x)
    np.testing.assert_array_equal(x, np.zeros((4, 2)))
    x += 1  # not outside


@on_host
def test_an_array_that_is_left_over_raises() -> None:
    kept = []

    def keeps(x: Any) -> Any:
        kept.append(x + 1)
        kept.append(x * 2)
        return float(kept[0].sum()), kept[1]

    total, product = da.fuse(keeps)(da.ones(4))
    assert total == 8.0
    np.testing.assert_array_equal(product, [2, 2, 2, 2])
    np.testing.assert_array_equal(kept[1], [2, 2, 2, 2])
    with pytest.raises(ArgumentError, match="let the function return it"):
        kept[0].to_local()
    with pytest.raises(ZeroDivisionError):
        da.fuse(lambda x: x / (1 // 0))(da.ones(4))
    assert not _fusion.open_traces


def test_a_number_beyond_the_dtype_raises_at_once_on_every_rank() -> None:
    def meet(x: Any, function: Any) -> Any:
        try:
            return function(x)
        except OutOfRangeError:
            return x

    def program() -> None:
        x = da.distribute_array(np.arange(3, dtype="u1"), da.init_device_mesh((4,)), [Shard(0)])
        for function in (lambda x: np.minimum(x, -1), lambda x: (x + 256).sum()):
            assert da.fuse(meet)(x, function) is x  # the last rank has no items
        np.testing.assert_array_equal(da.fuse(lambda x: x + 200)(x), np.uint8([200, 201, 202]))
        assert da.fuse(lambda x: (x > -1) & (x < 1000))(x).all()

    on_ranks(program)


@on_host
def test_errors_are_raised_where_they_are_without_fuse() -> None:
    def program() -> None:
        x = da.distribute_array(np.arange(8.0), da.init_device_mesh((4,)), [Shard(0)])
        with pytest.raises(ShapeError):
            da.fuse(lambda x: x + da.ones(3))(x)
        with np.errstate(divide="raise"), pytest.raises(FloatingError):
            da.fuse(lambda x: 1 / x)(x)

        def inside(x: Any) -> Any:
            y = x + 1
            with np.errstate(divide="raise"):
                return y / x

        with pytest.raises(FloatingError):
            da.fuse(inside)(x)

    on_ranks(program)


@on_host
def test_warnings_are_those_of_the_errstate_in_which_an_operation_stands() -> None:
    @da.fuse
    def ratio(x: Any) -> Any:
        outside = 1 / x
        with np.errstate(divide="ignore"):
            np.log(x).to_local()
            return float(outside.max())

    with pytest.warns(RuntimeWarning, match="divide by zero encountered in divide") as seen:
        ratio(da.arange(3.0))
    assert len(seen) == 1
    with np.errstate(divide="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        da.fuse(lambda x: 1 / x)(da.arange(3.0))


def test_structures_nested_calls_and_other_arguments_pass() -> None:
    inner = da.fuse(lambda x, k=1: x * k)

    @da.fuse
    def outer(pair: Any, /, scale: int, **named: Any) -> Any:
        """Say something."""
        if float(pair[0].sum()) > 3:
            return {"a": inner(pair[0], k=scale), "b": [named["y"], (named["y"] + pair[1], "t")]}
        return pair

    x, y = da.ones(4), da.arange(4.0)
    found = outer((x, np.ones(4)), scale=3, y=y)
    np.testing.assert_array_equal(found["a"], [3, 3, 3, 3])
    assert type(found["a"]) is da.DistArray
    assert found["b"][0] is y
    np.testing.assert_array_equal(found["b"][1][0], [1, 2, 3, 4])
    assert found["b"][1][1] == "t"
    assert outer((da.zeros(4), 1), 2)[1] == 1
    assert outer.__doc__ == "Say something."
    assert da.fuse(lambda x: x)(x) is x
    assert inner(3, 2) == 6
    with pytest.raises(ArgumentTypeError, match="fuse takes a function"):
        da.fuse(x)


def test_what_is_sent_is_what_is_sent_without_fuse() -> None:
    def standardised(x: Any, y: Any, p: Any) -> Any:
        x = (x - x.mean(0)) / x.std(0) + y
        return ((x * x).sum(1) + p) @ x

    def program() -> None:
        mesh = da.init_device_mesh((4,))
        value = np.arange(40.0).reshape(8, 5) ** 1.5
        x = da.distribute_array(value, mesh, [Shard(0)])
        y = da.distribute_array(value, mesh, [Shard(1)])
        p = da.DistArray.from_local(np.full(8, mesh.rank + 1.0), mesh, [Partial("sum")])
        logs, results = [], []
        for call in (standardised, da.fuse(standardised)):
            with CommLog() as log:
                results.append(call(x, y, p))
            logs.append(Counter((one.collective, one.nbytes) for one in log.records))
        assert logs[0] == logs[1]
        assert results[0].layout is results[1].layout
        np.testing.assert_allclose(results[1], results[0])
        with da.communication("raise"), pytest.raises(ImplicitCommunicationError):
            da.fuse(lambda x, y: x * 2 + y)(x, y)

    on_ranks(program)


def test_a_partial_argument_is_reduced_once() -> None:
    def program() -> None:
        mesh = da.init_device_mesh((4,))
        total = da.distribute_array(np.arange(24.0).reshape(8, 3), mesh, [Shard(0)]).sum(0)
        assert total.layout.has_partial
        other = da.distribute_array(np.ones(3), mesh, [Replicate()])
        da.fuse(lambda t, o: t * o)(total, other)
        with CommLog() as log:
            da.fuse(lambda t, o: t / o + 1)(total, other)
        assert not log.records

    on_ranks(program)


@on_host
@pytest.mark.parametrize("limit", [None, 100])
def test_programs_agree_with_numpy_inside_a_fused_function(
    limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that the library does with arrays that wait, and writes into its own ones, is right."""
    make, run, compare = programs._made, programs.run, programs._compare
    passes = Passes(monkeypatch, limit)

    def made(new: Any, ranks: Any) -> Any:
        x = make(new, ranks)
        inside = object.__new__(_fusing._Argument)
        inside._local, inside._layout = x._local, x._layout
        return inside

    def fused(*args: Any) -> None:
        with Trace():
            run(*args)

    def sometimes(statement: Any, found: Any, expected: Any) -> None:
        if statement.number % 3 == 0:  # what is not looked at goes on waiting
            compare(statement, found, expected)

    monkeypatch.setattr(Trace, "defers", lambda _: True)  # programs ignore errors
    monkeypatch.setattr(programs, "_made", made)
    monkeypatch.setattr(programs, "run", fused)
    monkeypatch.setattr(programs, "_compare", sometimes)
    seeds = range(200) if limit is None else range(200, 400)
    assert not list(programs.failures(seeds, Counter()))
    assert max(passes.steps) > 2
