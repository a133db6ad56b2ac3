"""Functions of whole matrices agree with NumPy in any layout, and collect no large matrix."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.comm import CommLog
from distarray.comm.shared_memory import _arena
from distarray.errors import (
    ArgumentError,
    AxisError,
    DTypeError,
    ImplicitCommunicationError,
    ShapeError,
)
from distarray.layout import Partial, Replicate, Shard
from distarray.linalg import _tiles
from distarray.ops.linear_algebra import _whole_axes
from distarray.testing import simulate
from tests import peak_memory
from tests.array.strategies import Case, agrees, cases, on_ranks

DTYPES = (np.float64, np.float32, np.complex128, np.int32)
BATCHES = ((), (), (1,), (3,), (5,), (2, 3), (0,), (4, 1))


def _sizes(factors: Any) -> Any:
    """Return what is certain of factors: their columns may have another sign."""
    return map(abs, factors)


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "cholesky": lambda f, x: f(x @ x.mT.conj()),
    "cond": lambda f, x: (f(x), f(x, 1), f(x, np.inf), f(x, "fro")),
    "det": lambda f, x: f(x),
    "eigvalsh": lambda f, x: (f(x), f(x, "U")),
    "inv": lambda f, x: f(x),
    "matrix_norm": lambda f, x: tuple(
        f(x, ord=ord, keepdims=i % 2 > 0)
        for i, ord in enumerate(("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf, None, 1))
    ),
    "matrix_power": lambda f, x: (f(x, 3), f(x, 0), f(x, 1), f(x, 6), f(x, -2)),
    "pinv": lambda f, x: (f(x), f(x, 0.5), f(x, rtol=np.full(x.shape[:-2], 0.1))),
    "qr": lambda f, x: (*_sizes(f(x)), *f(x, mode="complete"), abs(f(x, "r")), *f(x, "raw")),
    "slogdet": lambda f, x: tuple(f(x)),
    "solve": lambda f, x: (f(x, x), f(x, np.ones(x.shape[-1])), f(x, x[..., :2])),
    "svd": lambda f, x: (*f(x), *_sizes(f(x, full_matrices=False))),
    "svdvals": lambda f, x: f(x),
    "trace": lambda f, x: (f(x), f(x, offset=-1)),
    "diagonal": lambda f, x: (f(x), f(x, offset=2), f(x, offset=-9)),
}
"""Calls of square matrices that are well conditioned."""
HERMITIAN = {"eigvalsh"}
WIDE = {"cond", "diagonal", "matrix_norm", "pinv", "qr", "svd", "svdvals", "trace"}
"""Functions that take any matrices; `cond` does without norms."""


@st.composite
def matrices(draw: Any, square: bool = True) -> Case:
    """Draw stacks of matrices in any layout."""
    batch = draw(st.sampled_from(BATCHES))
    rows = draw(st.sampled_from((1, 2, 3, 5)))
    columns = rows if square else draw(st.sampled_from((1, 2, 3, 5)))
    case = draw(cases(DTYPES, ("sum",), shape=(*batch, rows, columns)))
    return replace(case, values=case.values + 12 * np.eye(rows, columns, dtype=case.values.dtype))


def compare(results: Any, expected: Any) -> None:
    results = results if isinstance(results, tuple) else (results,)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for result, wanted in zip(results, expected, strict=True):
        agrees(result, wanted, rtol=1e-4, atol=1e-4 * np.max(np.abs(wanted), initial=1))


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
@settings(max_examples=12)
@given(data=st.data())
def test_function_of_matrices_agrees_with_numpy(name: str, data: st.DataObject) -> None:
    square = name not in WIDE or data.draw(st.booleans())
    x, use = data.draw(matrices(square)), FUNCTIONS[name]
    if name == "cond" and not square:
        use = lambda f, x: (f(x), f(x, -2))  # noqa: E731
    value = x.value
    if name in HERMITIAN:
        value = value + np.conj(value.mT)
    if name == "matrix_power" and value.dtype.kind == "i":
        use = lambda f, x: (f(x, 2), f(x, 0), f(x, 5))  # noqa: E731
    expected = use(getattr(np.linalg, name), value)

    def program() -> None:
        array = x.build()
        if name in HERMITIAN:
            array = array + da.conj(array.mT)
        compare(use(getattr(da.linalg, name), array), expected)
        if name not in ("cholesky", "solve"):  # NumPy's own function leads to ours
            compare(use(getattr(np.linalg, name), array), expected)

    on_ranks(program)


@settings(max_examples=15)
@given(x=matrices())
def test_eigenvectors_and_eigenvalues_belong_together(x: Case) -> None:
    value = x.value

    def program() -> None:
        array = x.build()
        hermitian = value + np.conj(value.mT)
        w, v = da.linalg.eigh(array + da.conj(array.mT))
        compare(w, np.linalg.eigvalsh(hermitian))
        compare((v * w[..., None, :]) @ da.conj(v.mT), hermitian.astype(v.dtype))
        values, vectors = da.linalg.eig(array)
        assert values.dtype == vectors.dtype == da.linalg.eigvals(array).dtype
        assert values.dtype.kind == "c"
        difference = array @ vectors - vectors * values[..., None, :]
        agrees(difference, np.zeros(value.shape, difference.dtype), rtol=0, atol=1e-3)

    on_ranks(program)


@settings(max_examples=15)
@given(data=st.data())
def test_solve_broadcasts_batches_of_both_operands(data: st.DataObject) -> None:
    x = data.draw(matrices())
    batch = data.draw(st.sampled_from(BATCHES))
    size, mesh = x.shape[-1], x.mesh_shape
    y = data.draw(cases(DTYPES, ("sum",), mesh_shape=mesh, shape=(*batch, size, 2)))
    try:
        np.broadcast_shapes(x.shape[:-2], batch)
    except ValueError:

        def program() -> None:
            with pytest.raises(ShapeError, match="do not broadcast"):
                da.linalg.solve(x.build(), y.build())

    else:
        expected = np.linalg.solve(x.value, y.value)

        def program() -> None:
            compare(da.linalg.solve(x.build(), y.build()), expected)
            compare(np.linalg.solve(x.value, y.build()), expected)

    on_ranks(program)


@settings(max_examples=15)
@given(data=st.data())
def test_lstsq_and_matrix_rank_agree_with_numpy(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(((5, 2), (3, 3), (2, 5), (6, 1))))
    columns = data.draw(st.sampled_from(((), (3,))))
    x = data.draw(cases((np.float64, np.complex128, np.float32, np.int32), ("sum",), shape=shape))
    y = data.draw(cases((np.float64,), (), mesh_shape=x.mesh_shape, shape=(shape[0], *columns)))
    expected = np.linalg.lstsq(x.value, y.value)
    rank = np.linalg.matrix_rank(x.value)
    assert np.array_equal(rank, expected[2])

    def program() -> None:
        array = x.build()
        if array.mesh.coordinate is None:
            return  # a number, of which only the others know
        found = np.linalg.lstsq(array, y.build())
        assert found[2] == expected[2]
        compare((found[0], found[1], found[3]), (expected[0], expected[1], expected[3]))
        compare(da.linalg.matrix_rank(array), rank)
        compare(da.linalg.matrix_rank(array, 2.5), np.linalg.matrix_rank(x.value, 2.5))
        compare(da.linalg.matrix_rank(array, rtol=0.5), np.linalg.matrix_rank(x.value, rtol=0.5))

    on_ranks(program)


@settings(max_examples=15)
@given(data=st.data())
def test_norm_agrees_with_numpy(data: st.DataObject) -> None:
    x = data.draw(cases((*DTYPES, np.bool_), ("max",)))
    ndim = len(x.shape)
    count = data.draw(st.integers(0, min(ndim, 2)))
    axes = data.draw(st.permutations(range(ndim)))[:count]
    axis: Any = None if not axes else (axes[0] if count == 1 else tuple(axes))
    orders: tuple[Any, ...] = (None, 1, 2, np.inf, -np.inf, 0, 3, -1, "fro", "nuc", -2)
    ord, keepdims = data.draw(st.sampled_from(orders)), data.draw(st.booleans())
    with np.errstate(all="ignore"):
        try:
            expected = np.linalg.norm(x.value, ord, axis, keepdims)
        except (ValueError, TypeError):
            expected = None

    def program() -> None:
        with np.errstate(all="ignore"):
            array = x.build()
            if expected is None:
                if array.mesh.coordinate is not None:
                    with pytest.raises((ValueError, TypeError)):
                        da.linalg.norm(array, ord, axis, keepdims)
            else:
                compare(da.linalg.norm(array, ord, axis, keepdims), expected)

    on_ranks(program)


@settings(max_examples=15)
@given(data=st.data())
def test_vector_norm_takes_any_axes(data: st.DataObject) -> None:
    x = data.draw(cases((np.float64, np.complex128, np.float32), ("sum",)))
    ndim = len(x.shape)
    axes = data.draw(st.one_of(st.none(), st.permutations(range(ndim))))
    axis = None if axes is None else tuple(axes[: max(ndim - 1, 1)]) if axes else None
    ord, keepdims = data.draw(st.sampled_from((2, 1, 3, 0, np.inf))), data.draw(st.booleans())
    expected = np.linalg.vector_norm(x.value, axis=axis, ord=ord, keepdims=keepdims)

    def program() -> None:
        compare(da.linalg.vector_norm(x.build(), axis=axis, ord=ord, keepdims=keepdims), expected)

    on_ranks(program)


def test_tensor_equations_agree_with_numpy() -> None:
    value = np.random.default_rng(0).normal(size=(2, 3, 6))
    right = np.arange(6.0).reshape(2, 3)

    def program() -> None:
        for placement in (Shard(0), Shard(2), Replicate()):
            x = da.asarray(value, placements=[placement])
            compare(da.linalg.tensorinv(x), np.linalg.tensorinv(value))
            compare(da.linalg.tensorsolve(x, right), np.linalg.tensorsolve(value, right))
            moved = np.moveaxis(value, 0, 1)
            compare(
                np.linalg.tensorsolve(da.asarray(moved), right.T, axes=None),
                np.linalg.tensorsolve(moved, right.T),
            )
            chain = [value[0], value[0].T, value[1], value[1].T[:, 0]]
            compare(
                da.linalg.multi_dot([da.asarray(one) for one in chain]),
                np.linalg.multi_dot(chain),
            )

    on_ranks(program)


# --- where results lie, and what is sent ---------------------------------------------------------


def test_results_are_cut_as_the_axes_that_were_collected() -> None:
    def program() -> None:
        x = da.ones((8, 8)) + 8 * da.eye(8)
        assert da.linalg.inv(x).placements == (Shard(0),)
        assert da.linalg.inv(x).to_local().shape == (2, 8)
        q, r = da.linalg.qr(x)
        assert (q.placements, r.placements) == ((Shard(0),), (Replicate(),))
        u, s, vh = da.linalg.svd(x.redistribute([Shard(1)]))
        assert (u.placements, s.placements, vh.placements) == (
            (Replicate(),),
            (Replicate(),),
            (Shard(1),),
        )
        assert da.linalg.pinv(x).placements == (Shard(1),)
        assert da.linalg.solve(x, da.ones((8, 8), placements=[Shard(1)])).placements == (Shard(0),)
        assert da.linalg.det(x).placements == (Replicate(),)

    on_ranks(program)


def test_a_batch_axis_is_cut_instead_by_one_exchange() -> None:
    value = np.random.default_rng(0).normal(size=(8, 6, 6))

    def program() -> None:
        x = da.asarray(value)
        with da.communication("raise"), CommLog() as log:
            y = da.linalg.det(x)
        assert log.count() == 0
        assert y.placements == (Shard(0),)
        x = x.redistribute([Shard(1)])
        with CommLog() as log:
            y = da.linalg.det(x)
        assert y.placements == (Shard(0),)
        assert 0 < log.bytes() <= value.nbytes // 4  # what its new block takes
        with da.communication("raise"), pytest.raises(ImplicitCommunicationError, match="det"):
            da.linalg.det(x)
        one = da.asarray(value[:1], placements=[Shard(2)])
        assert da.linalg.svdvals(one).placements == (Replicate(),)

    on_ranks(program)


def test_no_large_matrix_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_whole_axes, "REPLICATED_BYTES", 1000)

    def program() -> None:
        mesh = da.init_device_mesh((4,))
        small, large = da.eye(11, mesh=mesh), da.eye(12, mesh=mesh)
        compare(da.linalg.inv(small), np.eye(11))
        with CommLog() as log, pytest.raises(ImplicitCommunicationError, match=r"x\.redistribute"):
            da.linalg.inv(large)
        assert log.count() == 0
        compare(da.linalg.inv(large.redistribute([Replicate()])), np.eye(12))
        stack = da.broadcast_to(large, (4, 12, 12))  # as many matrices as processes
        compare(da.linalg.inv(stack), np.broadcast_to(np.eye(12), (4, 12, 12)))
        with pytest.raises(ImplicitCommunicationError):
            da.linalg.inv(da.broadcast_to(da.eye(30, mesh=mesh), (1, 30, 30)))

    on_ranks(program)


def test_a_matrix_that_fails_on_one_rank_fails_on_all() -> None:
    value = np.stack([np.eye(3)] * 3 + [np.zeros((3, 3))])

    def program() -> str:
        mesh = da.init_device_mesh((4,))
        x = da.asarray(value, mesh=mesh)
        for call in (da.linalg.inv, np.linalg.inv, lambda x: da.linalg.solve(x, np.ones(3))):
            with pytest.raises(da.linalg.LinAlgError, match="Singular") as caught:
                call(x)
            assert isinstance(caught.value, np.linalg.LinAlgError)
            assert isinstance(caught.value, da.errors.LinAlgError)
        with pytest.raises(np.linalg.LinAlgError, match="positive definite"):
            da.linalg.cholesky(-da.eye(4, mesh=mesh))
        agrees(x, value)  # they go on in step
        return str(caught.value)

    assert len(set(on_ranks(program))) == 1


@pytest.mark.host_only
@pytest.mark.parametrize("least", [0, 1 << 30], ids=["tiles", "whole"])
def test_text_and_dates_have_no_factors(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tiles, "WHOLE_BYTES", least)

    def program() -> None:
        for shape in ((9, 2), (4, 4), (2, 5), (3, 4, 4)):
            for items in (np.full(shape, "1"), np.full(shape, "2020", "M8[Y]")):
                for placement in (Shard(0), Shard(1), Replicate()):
                    x = da.distribute_array(items, placements=[placement], src=None)
                    for mode in ("reduced", "r", "complete"):
                        with CommLog() as log, pytest.raises(DTypeError, match="qr"):
                            da.linalg.qr(x, mode=mode)
                        assert log.count() == 0

    simulate(2, program)
    da.testing.reset()


def test_wrong_operands_are_refused_before_anything_is_sent() -> None:
    def program() -> None:
        x, half, line = da.ones((4, 3)), da.ones((3, 3), dtype=np.float16), da.ones(3)
        with CommLog() as log:
            for name in ("inv", "det", "eigvalsh", "cholesky", "eig", "slogdet"):
                with pytest.raises(np.linalg.LinAlgError):
                    getattr(da.linalg, name)(x)
                with pytest.raises(np.linalg.LinAlgError, match="at least 2 axes"):
                    getattr(da.linalg, name)(line)
                with pytest.raises(DTypeError, match="float16"):
                    getattr(da.linalg, name)(half)
            for pair in ((half, line), (da.ones((3, 3)), half)):
                with pytest.raises(DTypeError, match="float16"):
                    da.linalg.lstsq(*pair)
            for b in (da.ones((4, 2)), da.ones(4)):
                with pytest.raises(ShapeError, match="of 3 rows and right-hand sides of 4"):
                    da.linalg.solve(da.eye(3), b)
                with pytest.raises(ShapeError, match="of 3 rows and right-hand sides of 4"):
                    da.linalg.solve_triangular(da.eye(3), b)
            with pytest.raises(ArgumentError, match="mode="):
                da.linalg.qr(x, "no")
            with pytest.raises(ArgumentError, match=r"mode=a DistArray of shape \(4, 3\)"):
                da.linalg.qr(x, x)
            with pytest.raises(ArgumentError, match=r"UPLO=a DistArray of shape \(4, 3\)"):
                da.linalg.eigh(x, x)
            with pytest.raises(ArgumentError, match="one of"):
                da.linalg.pinv(x, 0.1, rtol=0.1)
            with pytest.raises(ArgumentError, match="ord="):
                da.linalg.matrix_norm(x, ord=3)
            with pytest.raises(AxisError):
                da.linalg.matrix_norm(line)
            with pytest.raises(np.linalg.LinAlgError):
                da.linalg.matrix_power(x, 2)
            with pytest.raises(ShapeError, match="one axis"):
                da.linalg.outer(x, x)
        assert log.count() == 0

    on_ranks(program)


@pytest.mark.parametrize("shape", [(8, 2), (3, 3)])
def test_least_squares_of_infinities_are_refused_on_all_ranks(shape: tuple[int, int]) -> None:
    values = np.ones(shape)
    values[1, 1] = np.inf

    def program() -> None:
        with pytest.raises(np.linalg.LinAlgError, match="converge"):
            da.linalg.lstsq(da.asarray(values), da.ones(shape[0]))

    on_ranks(program)


@pytest.mark.parametrize("shape", [(14, 14), (60, 14)])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_singular_vectors_of_what_is_not_finite_are_an_error(
    bad: float, shape: tuple[int, int]
) -> None:
    value = np.random.default_rng(0).normal(size=shape)
    value[0, 0] = bad  # LAPACK would not return from infinity

    def program() -> None:
        x = da.asarray(value)
        for call in (da.linalg.svd, da.linalg.pinv, np.linalg.pinv):
            with pytest.raises(np.linalg.LinAlgError, match="converge"):
                call(x)
        agrees(x, value)  # they go on in step

    on_ranks(program)


@pytest.mark.host_only
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16", ">f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_norms_of_large_blocks_are_exact_to_some_units(dtype: str, order: str) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(700, 301)).astype(dtype)
    if values.dtype.kind == "c":
        values += (1j * rng.normal(size=values.shape)).astype(dtype)
    values = np.asarray(values, order=order)
    expected = np.sqrt((np.abs(values.astype("c32" if dtype[0] == "c" else "f16")) ** 2).sum())

    def program() -> None:
        for x in (da.asarray(values), da.distribute_array(values, placements=[Shard(1)], src=None)):
            for found in (da.linalg.norm(x), da.linalg.vector_norm(x), da.linalg.matrix_norm(x)):
                assert found.dtype == np.linalg.norm(values[:2]).dtype
                eps = np.finfo(found.dtype).eps
                np.testing.assert_allclose(float(found), float(expected), rtol=8 * eps)
        kept = da.linalg.vector_norm(da.asarray(values), keepdims=True)
        assert kept.shape == (1, 1)

    on_ranks(program)


@pytest.mark.host_only
def test_norms_of_large_blocks_make_no_squares() -> None:
    values = np.random.default_rng(0).normal(size=(512, 512))
    assert peak_memory.scratch(da.linalg.norm, values, 4) < 0.2


@pytest.mark.parametrize("scale", [1e-310, 1e-300, 1e300])
@pytest.mark.parametrize("shape", [(7, 7), (40, 7)])
def test_least_squares_of_any_size_are_those_of_one(shape: tuple[int, int], scale: float) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=shape), rng.normal(size=shape[:1])
    expected = np.linalg.lstsq(a, b)[0]

    def program() -> None:
        with np.errstate(over="ignore"):  # of residuals
            found = da.linalg.lstsq(da.asarray(a * scale), da.asarray(b * scale))
        np.testing.assert_allclose(np.asarray(found[0]), expected, rtol=1e-6)
        assert found[2] == 7

    on_ranks(program)


def test_partial_matrices_are_reduced_first() -> None:
    def program() -> None:
        mesh = da.init_device_mesh((4,))
        x = da.DistArray.from_local(np.eye(3), mesh, [Partial("sum")])
        agrees(da.linalg.inv(x), np.eye(3) / 4)

    on_ranks(program)


@pytest.mark.parametrize("dtype", ["f8", "c16", "g"])
@pytest.mark.parametrize("turned", [False, True])
def test_norm_of_a_large_block_takes_no_memory(
    dtype: str, turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, take = [], _arena.take
    monkeypatch.setattr(_arena, "take", lambda n: (taken.append(n), take(n))[1])
    values = np.random.default_rng(2).random((300, 701)).astype(dtype)
    values *= 1 - 2j if dtype == "c16" else 1
    x = da.asarray(values, device="cpu")
    x = x.T if turned else x
    da.linalg.norm(x)  # what is kept for the layout is made
    taken.clear()
    tracemalloc.start()
    found = float(da.linalg.norm(x))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_allclose(found, float(np.linalg.norm(values)))
    assert not taken
    assert peak < values.nbytes / 4  # NumPy's buffers, and Python's objects


def test_norm_of_infinities_is_infinite() -> None:
    values = np.ones(20000, complex)
    values[7] = np.inf
    assert float(da.linalg.norm(da.asarray(values))) == np.inf


@pytest.mark.parametrize("dtype", ["c8", "c16"])
@pytest.mark.parametrize("size", [10, 40_000])
def test_norm_of_an_infinity_beside_nan_is_nan_in_blocks_of_any_size(dtype: str, size: int) -> None:
    values = np.ones((size, 2), dtype)
    values[7, 0] = complex(-np.inf, np.nan)

    def program() -> None:
        x = da.asarray(values)
        agrees(da.linalg.vector_norm(x), np.float64(np.nan).astype(x.real.dtype))
        agrees(da.linalg.vector_norm(x, axis=0), np.linalg.vector_norm(values, axis=0))

    on_ranks(program)


@pytest.mark.parametrize("shape", [(12,), (12, 3)], ids=str)
@pytest.mark.parametrize("columns", [2, 20])
def test_lstsq_takes_a_plain_matrix_beside_distributed_values(
    shape: tuple[int, ...], columns: int
) -> None:
    rng = np.random.default_rng(4)
    a, b = rng.random((12, columns)), rng.random(shape)
    expected = np.linalg.lstsq(a, b)

    def program() -> None:
        found = np.linalg.lstsq(a, da.asarray(b))
        for one, other in zip(found, expected, strict=True):
            assert np.allclose(one, other)

    on_ranks(program)
