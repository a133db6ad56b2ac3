"""Iterative solvers: SciPy's solutions, few reductions, the same end on all ranks."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import scipy.linalg as scipy_linalg
import scipy.sparse as sparse
import scipy.sparse.linalg as scipys
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.comm import CommLog
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    ImplicitCommunicationError,
    MeshError,
    ShapeError,
)
from distarray.linalg.iterative import _vectors
from distarray.testing import simulate
from tests import peak_memory
from tests.array.strategies import Case, cases, on_ranks
from tests.on_device import host

DTYPES = (np.float64, np.float32, np.complex128, np.int32)
SQUARE = ("cg", "bicgstab", "gmres", "minres")


def tolerance(dtype: Any) -> float:
    return 1e-5 if np.dtype(dtype).char in "fF" else 1e-9


def matrix(n: int, dtype: Any, kind: str = "definite", seed: int = 0) -> np.ndarray:
    """Return a well-conditioned matrix of a kind."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(n, n))
    if np.dtype(dtype).kind == "c":
        a = a + 1j * rng.normal(size=(n, n))
    found = {
        "definite": lambda: a @ a.conj().T / max(n, 1) + np.eye(n),
        "hermitian": lambda: (a + a.conj().T) / 2 + np.diag(3.0 * n * (-1.0) ** np.arange(n)),
        "any": lambda: a + 3 * n * np.eye(n),
    }[kind]()
    return found.astype(np.float64 if np.dtype(dtype).kind == "i" else dtype)


KINDS = {"cg": "definite", "minres": "hermitian", "gmres": "any", "bicgstab": "any"}


def applied(a: np.ndarray) -> Any:
    """Return a matrix as a function of arrays of any number of axes."""
    return lambda x: da.reshape(da.matmul(a, da.reshape(x, (-1,))), x.shape)


@settings(max_examples=25)
@given(data=st.data())
def test_systems_are_solved_in_every_layout(data: Any) -> None:
    solver = data.draw(st.sampled_from(SQUARE))
    case: Case = data.draw(cases(DTYPES, ("sum",)))
    begins, preconditioned = data.draw(st.booleans()), data.draw(st.booleans())
    size = math.prod(case.shape)
    a = matrix(size, case.value.dtype, KINDS[solver])
    eps = tolerance(a.dtype)
    inverse = np.diag(1 / np.abs(np.diag(a)))

    def program() -> Any:
        b = case.build()
        options: dict[str, Any] = {"rtol": eps}
        if begins:
            options["x0"] = da.ones(case.shape, np.float32, mesh=b.mesh)
        if preconditioned:
            options["M"] = applied(inverse)
        if b.mesh.coordinate is None:
            with pytest.raises(MeshError, match="not in"):
                getattr(da.linalg, solver)(applied(a), b, **options)
            return None
        before = host(b.to_local().copy())
        x, info = getattr(da.linalg, solver)(applied(a), b, **options)
        assert info == 0
        assert x.layout == b.layout.without_partial()
        assert x.dtype == a.dtype
        np.testing.assert_array_equal(host(b.to_local()), before)
        found = np.asarray(x).reshape(-1)
        residual = np.linalg.norm(a @ found - case.value.reshape(-1))
        scale = np.linalg.norm(case.value) + 10 * np.linalg.norm(found) * (solver == "minres")
        assert residual <= 30 * eps * scale * max(np.linalg.norm(a, 2), 1) ** (solver == "minres")
        return found.tobytes()

    assert len({*filter(None, on_ranks(program))}) <= 1


def poisson(n: int) -> Any:
    return sparse.diags_array([-1, 2.1, -1], offsets=[-1, 0, 1], shape=(n, n)).tocsr()


def stencil(x: Any) -> Any:
    """Multiply by `poisson`, with the neighbours' edges."""

    def apply(block: np.ndarray) -> np.ndarray:
        found = 2.1 * block
        found[1:] -= block[:-1]
        found[:-1] -= block[1:]
        return found

    return da.map_overlap(apply, x, width=1, boundary=0)


@pytest.mark.parametrize("solver", SQUARE)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_iterations_are_as_many_as_scipys(solver: str, ranks: int) -> None:
    n = 50
    b = np.random.default_rng(1).normal(size=n)
    steps: list[Any] = []
    options: dict[str, Any] = {"callback_type": "pr_norm"} if solver == "gmres" else {}
    theirs, _ = getattr(scipys, solver)(
        poisson(n), b, rtol=1e-7, callback=lambda _: steps.append(0), **options
    )

    def program() -> None:
        own: list[Any] = []
        x, info = getattr(da.linalg, solver)(
            stencil, da.asarray(b), rtol=1e-7, callback=lambda _: own.append(0)
        )
        assert info == 0
        assert abs(len(own) - len(steps)) <= (solver == "minres")
        residual = np.linalg.norm(poisson(n) @ np.asarray(x) - b)
        if solver != "minres":  # it ends relative to norms that it estimates
            assert residual <= 1.01e-7 * np.linalg.norm(b)
        assert residual <= 1.01 * np.linalg.norm(poisson(n) @ theirs - b) + 1e-6

    simulate(ranks, program)


REDUCTIONS = {"cg": (1, 3), "minres": (2, 2), "bicgstab": (2, 3)}
"""Of an iteration; and of the beginning, the first image, and the end after the last allowed."""


@pytest.mark.parametrize("solver", REDUCTIONS)
def test_an_iteration_makes_as_few_reductions_as_it_says(solver: str) -> None:
    each, others = REDUCTIONS[solver]

    def program() -> None:
        b = da.asarray(np.random.default_rng(1).normal(size=64))
        d = da.arange(1.0, 65.0)
        for steps in (1, 2, 7):
            with CommLog() as log, da.communication("raise"):
                getattr(da.linalg, solver)(lambda x: d * x, b, rtol=0, maxiter=steps)
            assert log.count() == log.count("all_reduce") == each * steps + others
            assert log.bytes() <= log.count() * 2 * 5 * 8 * 3

    simulate(4, program)


def test_bases_make_a_reduction_for_each_vector_or_two() -> None:
    def program() -> None:
        b = da.asarray(np.random.default_rng(1).normal(size=200))
        d = da.asarray(np.random.default_rng(2).normal(size=200))
        with CommLog() as log:
            da.linalg.gmres(lambda x: d * x, b, rtol=0, restart=10, maxiter=3)
        assert 3 * 10 + 4 <= log.count() == log.count("all_reduce") <= 2 * 3 * 10 + 4
        with CommLog() as log:
            da.linalg.power_iteration(lambda x: d * x, b, maxiter=10, rtol=0)
        assert log.count() == 13
        a = SimpleNamespace(matvec=lambda x: d * x, rmatvec=lambda x: d * x)
        with CommLog() as log:
            da.linalg.lsqr(a, b, iter_lim=9, atol=0, btol=0)
        assert log.count() == 2 * 9 + 3
        with (
            CommLog() as log,
            pytest.raises(np.linalg.LinAlgError, match=r"found .* of 3 eigenvalues in 2"),
        ):
            da.linalg.eigsh(lambda x: d * x, 3, v0=b, maxiter=2)
        assert log.count("broadcast") == 2
        assert log.count("all_reduce") <= 2 + 2 * (20 + 8)

    simulate(4, program)


def test_replicas_that_round_otherwise_end_alike() -> None:
    """Of processes with the same block one counts, so that processors may differ."""
    a = matrix(6, np.float64)

    def program() -> tuple[Any, ...]:
        mesh = da.init_device_mesh((2, 2), ("rows", "copies"))
        b = da.distribute_array(np.arange(6.0), mesh, [da.Shard(0), da.Replicate()], src=None)
        b.to_local()[...] *= 1 + mesh.coordinate[1] * 1e-13
        found = []
        for solver in SQUARE:
            sizes: list[Any] = []
            apply = applied(a)
            options = {"callback": sizes.append} if solver == "gmres" else {}
            _, info = getattr(da.linalg, solver)(apply, b, rtol=1e-13, maxiter=40, **options)
            found += [info, *sizes]
        w, v = da.linalg.eigsh(applied(a), 2, v0=b)
        np.testing.assert_allclose(np.asarray(v.T @ v), np.eye(2), atol=1e-10)
        size = np.linalg.norm(np.arange(6.0))
        assert da.linalg.cg(applied(a), b, rtol=0, atol=1.01 * size, maxiter=0)[1] == 0
        assert [getattr(da.linalg, one)(applied(a), b, maxiter=0)[1] for one in SQUARE] == [1] * 4
        assert da.linalg.power_iteration(applied(a), b, maxiter=0)[2] == 1
        return (*found, w.to_local().tobytes())

    assert len(set(simulate(4, program))) == 1


@pytest.mark.host_only  # its functions write into NumPy's arrays
def test_images_may_be_the_argument_or_the_same_memory() -> None:
    n = 2000
    value = np.random.default_rng(0).normal(size=n)
    value += value[::-1]

    def program() -> None:
        b = da.asarray(value)
        out = da.zeros(n)

        def twice(x: Any) -> Any:
            np.multiply(x.to_local(), 2, out=out.to_local())
            return out

        def turn(x: Any) -> Any:
            return da.DistArray.from_local(x.to_local()[::-1], x.mesh, x.placements, check=False)

        scaled = 1 + np.arange(n) % 5

        def scale(x: Any) -> Any:
            np.multiply(x.to_local(), scaled[slice(*x.layout.local_box()[0])], out=out.to_local())
            return out

        for solver in SQUARE:
            solve = getattr(da.linalg, solver)
            for apply, expected in (
                (lambda x: x, value),
                (turn, value[::-1]),
                (twice, value / 2),
            ):
                x, info = solve(apply, b, rtol=1e-10)
                assert info == 0
                np.testing.assert_allclose(np.asarray(x), expected, rtol=1e-8)
                x, info = solve(lambda x: 4 * x, b, M=apply, rtol=1e-10)
                np.testing.assert_allclose(np.asarray(x), value / 4, rtol=1e-8)
            x, info = solve(scale, b, rtol=1e-10)
            np.testing.assert_allclose(np.asarray(x), value / scaled, rtol=1e-6, atol=1e-8)

    with mock.patch.object(_vectors, "_PASS_BYTES", 1 << 14):  # several tiles
        simulate(1, program)


@pytest.mark.parametrize("solver", SQUARE)
def test_nothing_to_solve_and_what_cannot_be_solved(solver: str) -> None:
    solve = getattr(da.linalg, solver)

    def program() -> None:
        def never(x: Any) -> Any:
            raise AssertionError

        b = da.asarray([1.0, 2.0, 3.0, 4.0])
        for zero in (da.zeros(5), da.zeros(0), da.zeros((3, 0, 2))):
            x, info = solve(never, zero)
            assert (info, x.shape, float(da.sum(abs(x)))) == (0, zero.shape, 0)
        x, info = solve(lambda x: 2 * x, da.zeros(4), x0=b)
        assert (info, float(abs(x).max())) == (0, 0)
        x, info = solve(lambda x: 2 * x, da.asarray(3.0))  # an array without axes
        assert (float(x), info) == (1.5, 0)
        for wrong in (np.nan, np.inf):
            x, info = solve(lambda x: 2 * x, da.asarray([1.0, wrong, 0.0, 0.0]))
            assert info == -1
        x, info = solve(lambda x: x * np.nan, b)
        assert info == -1
        assert bool(da.all(x == 0))
        x, info = solve(lambda x: 0 * x, b)  # nothing comes closer
        assert info == (0 if solver == "minres" else -11 if solver == "bicgstab" else -1)
        x, info = solve(lambda x: 2 * x, b, x0=b / 2)
        assert info == 0
        np.testing.assert_array_equal(np.asarray(x), np.asarray(b) / 2)
        x, info = solve(lambda x: x * da.asarray([1.0, 10, 100, 1000]), b, maxiter=1, rtol=1e-14)
        assert info == (0 if solver == "gmres" else 1)

    simulate(3, program)


def test_minres_finds_the_smallest_residual_of_a_singular_system_and_shifts() -> None:
    d, value = np.array([0.0, 1, -2, 3, 4]), np.arange(5.0) + 1

    def program() -> None:
        b = da.asarray(value)
        x, info = da.linalg.minres(lambda x: x * d, b, rtol=1e-12)
        assert info == 0
        np.testing.assert_allclose(np.asarray(x)[1:], value[1:] / d[1:], rtol=1e-8)
        for x0 in (None, da.ones(5)):
            x, info = da.linalg.minres(lambda x: x * d, b, x0, shift=0.5, rtol=1e-12)
            np.testing.assert_allclose(np.asarray(x), value / (d - 0.5), rtol=1e-8)
        with pytest.raises(np.linalg.LinAlgError, match="M is not positive definite"):
            da.linalg.minres(lambda x: x * d, b, M=lambda x: -x)

    simulate(2, program)


def test_gmres_begins_anew_and_tells_how_far_it_is() -> None:
    a, value = matrix(30, np.float64) + np.triu(np.ones((30, 30)), 1) * 0.3, np.arange(30.0)

    def program() -> None:
        b = da.asarray(value)
        sizes: list[float] = []
        x, info = da.linalg.gmres(applied(a), b, restart=7, rtol=1e-9, callback=sizes.append)
        assert info == 0
        assert len(sizes) > 14
        assert sizes[-1] <= 1e-9 < sizes[-2]
        residual = np.linalg.norm(a @ np.asarray(x) - value) / np.linalg.norm(value)
        assert abs(residual - sizes[-1]) < 1e-12
        found: list[Any] = []
        _, info = da.linalg.gmres(
            applied(a), b, restart=3, rtol=0, maxiter=4, callback=found.append, callback_type="x"
        )
        assert info == 4
        assert [one.shape for one in found] == [b.shape] * 4

    simulate(3, program)


def test_gmres_says_no_solution_of_what_rounding_leaves() -> None:
    rng = np.random.default_rng(0)

    def program(a: np.ndarray, value: np.ndarray) -> tuple[int, float]:
        b = da.asarray(value)
        x, info = da.linalg.gmres(lambda x: da.matmul(da.asarray(a), x), b, rtol=1e-5)
        wide = a.astype(float) @ np.asarray(x, float) - value
        return info, float(np.linalg.norm(wide) / np.linalg.norm(value))

    for size in (2, 3, 5, 8) * 4:  # of a rank less than that, and a right-hand side outside
        a = (rng.normal(size=(size, size - 1)) @ rng.normal(size=(size - 1, size))).astype("f")
        (info, left), *_ = simulate(2, program, a, rng.normal(size=size).astype("f"))
        assert info == -1
        assert left > 0.001


SCALES = [
    *[(np.float64, scale) for scale in (1e-300, 1e-200, 1e-150, 1e-80, 1e80, 1e150, 1e200, 1e300)],
    *[(np.float32, scale) for scale in (1e-34, 1e-20, 1e20, 1e34)],
    *[(np.complex128, scale) for scale in (1e-200, 1e200)],
]
"""Of items whose squares are not there."""


@pytest.mark.parametrize("solver", SQUARE)
@pytest.mark.parametrize(("dtype", "scale"), SCALES)
@pytest.mark.parametrize("both", [False, True])
def test_systems_of_large_and_of_small_numbers_are_solved(
    solver: str, dtype: Any, scale: float, both: bool
) -> None:
    """Of A, of both A and b, and of b alone."""
    a, value = matrix(12, dtype, KINDS[solver]), np.arange(12.0) + 1
    eps, wide = tolerance(dtype), np.result_type(dtype, np.float64)
    solve = getattr(da.linalg, solver)

    def program() -> None:
        for of_a, of_b in ((scale, scale if both else 1.0), (1.0, scale)):
            right = (value * of_b).astype(dtype)
            b = da.asarray(right)
            images = [da.asarray(np.full(12, one * of_b / of_a, dtype)) for one in (0, 0.1)]
            inverse = (np.diag(1 / np.abs(np.diag(a))) / of_a).astype(dtype)
            told: list[Any] = []
            options: dict[str, Any] = {"rtol": eps, "callback": lambda x: told.append(x + 0)}  # noqa: B023
            if solver == "gmres":
                options["callback_type"] = "x"
            matrix_of = (a * of_a).astype(dtype)
            for start in (None, *images):
                for M in (None, applied(inverse)):
                    x, info = solve(applied(matrix_of), b, start, M=M, **options)
                    assert info == 0
                    found = np.asarray(x).astype(wide) * (of_a / of_b)
                    np.testing.assert_allclose(a @ found, value, rtol=1e3 * eps)
                    last = np.asarray(told[-1]).astype(wide) * (of_a / of_b)
                    np.testing.assert_allclose(last, found, rtol=0.02, atol=0.02)
            np.testing.assert_array_equal(np.asarray(b), right)

    simulate(2, program)


def test_a_solution_that_no_number_holds_is_none() -> None:
    def program() -> None:
        b = da.asarray([1e200, -3e200, 2e200])
        for solver in SQUARE:
            _, info = getattr(da.linalg, solver)(lambda x: 1e-200 * x, b)
            assert info == -1
        tiny = SimpleNamespace(matvec=lambda x: 1e-200 * x, rmatvec=lambda x: 1e-200 * x)
        assert da.linalg.lsqr(tiny, b)[1] == -1

    simulate(2, program)


def test_minres_shifts_large_and_small_numbers() -> None:
    d, value = np.array([1.0, -2, 3, 4]), np.arange(4.0) + 1

    def program() -> None:
        for scale in (1e-200, 1e200):
            for x0 in (None, da.asarray(np.full(4, 1 / scale))):
                x, info = da.linalg.minres(
                    lambda x: x * d * scale,  # noqa: B023
                    da.asarray(value),
                    x0,
                    shift=0.5 * scale,
                    rtol=1e-12,
                )
                assert info == 0
                np.testing.assert_allclose(np.asarray(x) * scale, value / (d - 0.5), rtol=1e-8)
        x, info = da.linalg.minres(lambda x: x * 1e-200, da.asarray(value), shift=0.5)
        np.testing.assert_allclose(np.asarray(x), value / -0.5)

    simulate(2, program)


# --- least squares -------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(20, 6), (6, 20), (9, 9)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.complex128])
@pytest.mark.parametrize("damp", [0.0, 0.7])
@pytest.mark.parametrize("begins", [False, True])
def test_lsqr_says_what_scipys_says(
    shape: tuple[int, int], dtype: Any, damp: float, begins: bool
) -> None:
    rng = np.random.default_rng(3)
    a = (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(np.complex128)
    a, b = a if np.dtype(dtype).kind == "c" else a.real, rng.normal(size=shape[0])
    a, b = a.astype(dtype), b.astype(dtype)
    start = np.ones(shape[1], dtype) if begins else None
    eps = tolerance(dtype)
    expected = scipys.lsqr(a, b, damp, eps, eps, x0=start, calc_var=True)

    def program() -> None:
        x0 = None if start is None else da.asarray(start)
        found = da.linalg.lsqr(da.asarray(a), da.asarray(b), damp, eps, eps, x0=x0, calc_var=True)
        assert found[0].dtype == dtype
        np.testing.assert_allclose(np.asarray(found[0]), expected[0], atol=100 * eps, rtol=1e-3)
        if dtype is np.float64:
            assert found[1:3] == expected[1:3]
            np.testing.assert_allclose(found[3:5], expected[3:5], atol=1e-7)
            np.testing.assert_allclose(found[5:7], expected[5:7], rtol=1e-5)
            np.testing.assert_allclose(found[8], expected[8], rtol=1e-5)
            np.testing.assert_allclose(np.asarray(found[9]), expected[9], rtol=1e-5)

    simulate(3, program)


def test_lsqr_takes_small_numbers_and_tells_of_the_smallest() -> None:
    rng = np.random.default_rng(0)
    matrix, right = rng.normal(size=(40, 12)), rng.normal(size=40)
    expected = np.linalg.lstsq(matrix, right)[0]

    def program() -> None:
        for scale, size in ((1e-20, 1e-20), (1, 1e-120), (1e-60, 1e60)):
            a = da.asarray(matrix * scale)
            b = da.asarray(right * size)
            x, istop, *_ = da.linalg.lsqr(a, b, atol=1e-12, btol=1e-12)
            assert istop == 2
            np.testing.assert_allclose(np.asarray(x) * (scale / size), expected, rtol=1e-9)

    simulate(3, program)


@pytest.mark.parametrize(("dtype", "scale"), SCALES)
def test_lsqr_of_large_and_of_small_numbers_says_the_same(dtype: Any, scale: float) -> None:
    rng = np.random.default_rng(0)
    matrix, right = rng.normal(size=(40, 12)), rng.normal(size=40)
    eps = tolerance(dtype)
    wide = np.result_type(dtype, np.float64)

    def solve(of_a: float, of_b: float, start: float | None) -> tuple[Any, ...]:
        x, *told, spread = da.linalg.lsqr(
            da.asarray((matrix * of_a).astype(dtype)),
            da.asarray((right * of_b).astype(dtype)),
            0.5 * of_a,
            eps,
            eps,
            x0=None if start is None else da.asarray(np.full(12, start * of_b / of_a, dtype)),
            calc_var=True,
        )
        units = 1, 1, of_b, of_b, of_a, 1, of_b * of_a, of_b / of_a
        with np.errstate(all="ignore"):
            spread = np.asarray(spread).astype(wide) * of_a * of_a
        numbers = [one / unit for one, unit in zip(told, units, strict=True)]
        return np.asarray(x).astype(wide) * (of_a / of_b), numbers, spread

    def program() -> None:
        for start in (None, 0, 2.0):
            expected = solve(1, 1, start)
            for of_a, of_b in ((scale, 1), (1, scale), (scale**0.5, scale**0.5)):
                found = solve(of_a, of_b, start)
                np.testing.assert_allclose(found[0], expected[0], rtol=1e3 * eps)
                more = abs(found[1][1] - expected[1][1])  # iterations: by how they round
                assert more <= 2
                np.testing.assert_allclose(found[1][2:4], expected[1][2:4], rtol=0.03)
                # Norm and condition are estimates to which each iteration adds a twelfth or so.
                rtol = 0.03 + 0.15 * more
                np.testing.assert_allclose(found[1][4:6], expected[1][4:6], rtol=rtol)
                if dtype is np.float64 and 1e-100 < of_a < 1e100:  # or squares are no numbers
                    np.testing.assert_allclose(found[2], expected[2], rtol=0.01)

    simulate(2, program)


def test_lsqr_of_functions_and_of_nothing() -> None:
    def program() -> None:
        b = da.asarray(np.arange(12.0).reshape(3, 4))
        # Sums of pairs of columns, and their adjoint: vectors have two axes.
        a = SimpleNamespace(
            matvec=lambda x: da.repeat(x, 2, axis=1),
            rmatvec=lambda y: y[:, ::2] + y[:, 1::2],
            shape=(12, 6),
        )
        x, istop, *_ = da.linalg.lsqr(a, b)
        assert istop == 2
        np.testing.assert_allclose(np.asarray(x), np.arange(12.0).reshape(3, 2, 2).mean(2))
        x, istop, itn, *_ = da.linalg.lsqr(a, da.zeros((3, 4)))
        assert (istop, itn, float(abs(x).max())) == (0, 0, 0)
        assert da.linalg.lsqr(a, b * np.nan)[1] == -1
        a.shape = (12, 7)
        with pytest.raises(ShapeError, match=r"A has shape \(12, 7\)"):
            da.linalg.lsqr(a, b)
        with pytest.raises(ArgumentError, match="A has no adjoint"):
            da.linalg.lsqr(a.matvec, b)

    simulate(3, program)


# --- eigenvalues ---------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["LM", "SM", "LA", "SA", "BE"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.complex128])
@pytest.mark.parametrize("n", [5, 60])
@pytest.mark.parametrize("ranks", [1, 3])
def test_eigenvalues_are_numpys(which: str, dtype: Any, n: int, ranks: int) -> None:
    a = matrix(n, np.complex128 if dtype is np.complex128 else np.float64, "definite", 5)
    a = (a - 2 * np.eye(n)).astype(dtype)
    values = np.linalg.eigvalsh(a)
    order = {"LM": -abs(values), "SM": abs(values), "LA": -values, "SA": values}
    wanted = values[[0, -2, -1]] if which == "BE" else values[np.argsort(order[which])[:3]]
    eps = 100 * np.finfo(dtype).eps * np.abs(values).max()

    def program() -> None:
        w, v = da.linalg.eigsh(da.asarray(a), 3, which=which)
        assert w.layout.is_replicated
        assert v.shape == (n, 3)
        assert v.dtype == dtype
        assert v.to_local().flags.c_contiguous
        np.testing.assert_allclose(np.asarray(w), np.sort(wanted), atol=eps)
        v = np.asarray(v)
        np.testing.assert_allclose(a @ v, v * np.asarray(w), atol=20 * eps)
        np.testing.assert_allclose(v.conj().T @ v, np.eye(3), atol=eps)
        only = da.linalg.eigsh(da.asarray(a), 3, which=which, return_eigenvectors=False)
        np.testing.assert_array_equal(np.asarray(only), np.asarray(w))

    simulate(ranks, program)


@pytest.mark.parametrize("ranks", [1, 3])
def test_smallest_eigenvalues_are_found_to_the_precision_of_the_largest(ranks):
    """Rounding leaves more of a residual than such a value's own precision is."""
    matrix = 2 * np.eye(200) - np.eye(200, k=1) - np.eye(200, k=-1)
    matrix[0, 0] = matrix[-1, -1] = 1  # a path's Laplacian, whose least eigenvalue is 0
    expected = np.linalg.eigvalsh(matrix)[:3]

    def program():
        a = da.distribute_array(matrix)
        for which in ("SA", "SM"):
            found = da.linalg.eigsh(a, 3, which=which, maxiter=300, return_eigenvectors=False)
            np.testing.assert_allclose(found.full_array(), expected, atol=1e-13)

    simulate(ranks, program)


def test_eigenvalues_of_a_stencil_near_a_number_and_many_times() -> None:
    n = 40
    exact = 2.1 - 2 * np.cos(np.arange(1, n + 1) * np.pi / (n + 1))

    def program() -> None:
        v0 = da.random.default_rng(1).normal(size=n)
        w, _ = da.linalg.eigsh(stencil, 4, which="SA", v0=v0)
        np.testing.assert_allclose(np.asarray(w), np.sort(exact)[:4], rtol=1e-10)

        def inverse(b: Any) -> Any:
            return da.linalg.minres(stencil, b, shift=1.0, rtol=1e-14)[0]

        w, v = da.linalg.eigsh(stencil, 2, sigma=1.0, v0=v0, OPinv=inverse)
        near = exact[np.argsort(abs(exact - 1))[:2]]
        np.testing.assert_allclose(np.asarray(w), np.sort(near), rtol=1e-8)
        np.testing.assert_allclose(
            poisson(n) @ np.asarray(v), np.asarray(v) * np.asarray(w), atol=1e-6
        )
        # Of the identity nothing leads out of the first vector; others are drawn.
        w, v = da.linalg.eigsh(da.eye(7), 7)
        np.testing.assert_allclose(np.asarray(w), np.ones(7), rtol=1e-12)
        np.testing.assert_allclose(np.asarray(v.T @ v), np.eye(7), atol=1e-12)
        w, v = da.linalg.eigsh(lambda x: x * 3, 2, v0=da.ones((4, 5)))
        assert v.shape == (4, 5, 2)
        np.testing.assert_allclose(np.asarray(w), [3, 3], rtol=1e-12)
        with pytest.raises(np.linalg.LinAlgError, match="not finite"):
            da.linalg.eigsh(lambda x: x * np.inf, 2, v0=v0)

    simulate(3, program)


@pytest.mark.parametrize("shape", [(30, 8), (8, 30), (12, 12)])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("k", [1, 4])
def test_singular_values_are_numpys(shape: tuple[int, int], dtype: Any, k: int) -> None:
    rng = np.random.default_rng(4)
    a = rng.normal(size=shape) + (1j * rng.normal(size=shape) if dtype is np.complex128 else 0)
    values = np.linalg.svdvals(a)

    def program() -> None:
        x = da.asarray(a)
        function = SimpleNamespace(
            shape=shape,
            dtype=a.dtype,
            matvec=lambda v: da.matmul(a, v),
            rmatvec=lambda v: da.matmul(a.conj().T, v),
        )
        for one in (x, function):
            u, s, vh = map(np.asarray, da.linalg.svds(one, k))
            np.testing.assert_allclose(s, values[:k][::-1], rtol=1e-10)
            np.testing.assert_allclose(a @ vh.conj().T, u * s, atol=1e-9)
            np.testing.assert_allclose(u.conj().T @ u, np.eye(k), atol=1e-9)
            np.testing.assert_allclose(vh @ vh.conj().T, np.eye(k), atol=1e-9)
        least = da.linalg.svds(x, k, which="SM", return_singular_vectors=False)
        np.testing.assert_allclose(np.asarray(least), values[::-1][:k], rtol=1e-6)

    simulate(3, program)


@pytest.mark.parametrize(("dtype", "scale"), SCALES)
def test_eigenvalues_of_large_and_of_small_numbers_are_found(dtype: Any, scale: float) -> None:
    """More items than a basis has vectors: or any basis would do."""
    n, k = 60, 3
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(matrix(n, np.result_type(dtype, np.float64), "any"))[0]
    values = np.sort(rng.normal(size=n))
    a = ((turn * values) @ turn.conj().T * scale).astype(dtype)
    start = (rng.normal(size=n) * scale).astype(dtype)
    short = turn[:, :40] * np.linspace(1, 9, 40)
    rectangle = (short @ np.linalg.qr(rng.normal(size=(40, 40)))[0] * scale).astype(dtype)
    allowed = {"rtol": 3e3 * tolerance(dtype)}

    def program() -> None:
        for which, expected in (("SA", values[:k]), ("LA", values[-k:])):
            w, v = da.linalg.eigsh(da.asarray(a), k, which=which)
            np.testing.assert_allclose(np.asarray(w, float) / scale, expected, **allowed)
            v = np.asarray(v)
            left = (a / dtype(scale)) @ v - v * (np.asarray(w) / dtype(scale))
            assert abs(left).max() < 1e3 * tolerance(dtype)
        w, _, info = da.linalg.power_iteration(da.asarray(a), da.asarray(start), rtol=1e-4)
        assert info == 0
        assert abs(w / scale) == pytest.approx(abs(values).max(), rel=1e-3)
        for x in (rectangle, rectangle.conj().T):
            u, s, vh = da.linalg.svds(da.asarray(x), k)
            np.testing.assert_allclose(
                np.asarray(s, float) / scale, [8.589744, 8.794872, 9], **allowed
            )
            u, s, vh = np.asarray(u), np.asarray(s), np.asarray(vh)
            left = (x / dtype(scale)) @ vh.conj().T - u * (s / dtype(scale))
            assert abs(left).max() < 1e3 * tolerance(dtype)

    simulate(2, program)


@pytest.mark.parametrize("generalized", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.complex128])
@pytest.mark.parametrize("ranks", [1, 3])
def test_block_gradients_find_scipys_eigenvalues(ranks: int, dtype: Any, generalized: bool) -> None:
    n, k = 40, 3
    a = matrix(n, dtype, "definite")
    b = matrix(n, dtype, "definite", seed=1) if generalized else np.eye(n, dtype=dtype)
    start = np.random.default_rng(2).normal(size=(n, k)).astype(dtype)
    values = scipy_linalg.eigh(a, b, eigvals_only=True)
    tol = 2e-3 if dtype is np.float32 else 1e-7

    def program() -> None:
        mesh = da.default_mesh()
        for placement in (da.Shard(0), da.Shard(1), da.Replicate()):
            x = da.distribute_array(start, mesh, [placement], src=None)
            for largest, wanted in ((True, values[: -k - 1 : -1]), (False, values[:k])):
                for m in (None, np.linalg.inv(a)):
                    w, v = da.linalg.lobpcg(
                        a, x, b if generalized else None, m, tol=tol, maxiter=200, largest=largest
                    )
                    assert (w.dtype, v.dtype) == (a.real.dtype, a.dtype)
                    assert v.placements == (
                        (da.Shard(0),) if placement == da.Shard(1) else (placement,)
                    )
                    w, v = np.asarray(w), np.asarray(v)
                    np.testing.assert_allclose(w, wanted, rtol=1e-3 if tol > 1e-3 else 1e-9)
                    products = v.conj().T @ b @ v
                    np.testing.assert_allclose(products, np.eye(k), atol=100 * np.finfo(dtype).eps)
                    assert (np.linalg.norm(a @ v - b @ v * w, axis=0) <= 1.5 * tol).all()

    simulate(ranks, program)


@pytest.mark.parametrize("largest", [False, True])
def test_block_gradients_need_as_many_images_as_scipys(largest: bool) -> None:
    n, k = 200, 4
    start = np.random.default_rng(1).normal(size=(n, k))
    exact = 2.1 - 2 * np.cos(np.arange(1, n + 1) * np.pi / (n + 1))
    solve = sparse.linalg.splu(poisson(n).tocsc()).solve
    options: dict[str, Any] = {"tol": 1e-6, "maxiter": 300, "largest": largest}
    counts: list[Any] = []

    def counted(x: Any) -> Any:
        counts.append(x.shape[-1])
        return poisson(n) @ x

    theirs = scipys.LinearOperator((n, n), matvec=counted, matmat=counted, dtype=float)
    inverse = scipys.LinearOperator((n, n), matvec=solve, matmat=solve, dtype=float)
    scipys.lobpcg(theirs, start.copy(), M=None if largest else inverse, **options)

    def program() -> None:
        own: list[Any] = []

        def apply(x: Any) -> Any:
            own.append(x.shape[-1])
            return stencil(x)

        def precondition(x: Any) -> Any:
            return da.asarray(solve(np.array(x)), mesh=x.mesh, placements=x.placements)

        with CommLog() as log:
            w, v = da.linalg.lobpcg(
                apply, da.asarray(start), M=None if largest else precondition, **options
            )
        assert sum(own) <= 1.1 * sum(counts) + 2 * k
        iterations = len(own) - 2
        assert log.count("all_reduce") <= 3 * iterations + 8
        wanted = np.sort(exact)[::-1][:k] if largest else np.sort(exact)[:k]
        np.testing.assert_allclose(np.asarray(w), wanted, rtol=1e-8)
        assert v.layout == da.asarray(start).layout

    simulate(3, program)


def test_block_gradients_take_operators_of_any_kind_and_vectors_of_any_shape() -> None:
    d = np.arange(1.0, 25).reshape(4, 6)
    start = np.random.default_rng(3).normal(size=(4, 6, 2))

    def program() -> None:
        x, weights = da.asarray(start), da.asarray(d)[..., None]
        w, v = da.linalg.lobpcg(lambda x: weights * x, x, maxiter=100, tol=1e-8)
        np.testing.assert_allclose(np.asarray(w), [24, 23], rtol=1e-12)
        assert v.shape == (4, 6, 2)
        np.testing.assert_allclose(abs(np.asarray(v[3, 5])), [1, 0], atol=1e-7)
        columns = da.reshape(x, (24, 2))
        line = da.reshape(da.asarray(d), (-1,))
        for one in (
            da.diag(line),
            np.diag(d.reshape(-1)),
            SimpleNamespace(matvec=lambda x: line * x, shape=(24, 24)),
            SimpleNamespace(
                matvec=lambda x: 1 / 0, matmat=lambda x: line[:, None] * x, shape=(24, 24)
            ),
        ):
            w, _ = da.linalg.lobpcg(one, columns, largest=False, tol=1e-8, maxiter=100)
            np.testing.assert_allclose(np.asarray(w), [1, 2], rtol=1e-12)
        w, v = da.linalg.lobpcg(da.diag(line[:4]), da.eye(4), largest=False)  # all there are
        np.testing.assert_allclose(np.asarray(w), [1, 2, 3, 4])

    simulate(2, program)


@pytest.mark.parametrize(("dtype", "scale"), SCALES)
def test_block_gradients_of_large_and_of_small_numbers(dtype: Any, scale: float) -> None:
    n = 60
    a = (matrix(n, np.float64, "definite") * scale).astype(dtype)
    values = np.linalg.eigvalsh(matrix(n, np.float64, "definite"))
    start = (np.random.default_rng(0).normal(size=(n, 2)) * scale).astype(dtype)
    tol = 3e3 * tolerance(dtype) * scale

    def program() -> None:
        w, v = da.linalg.lobpcg(da.asarray(a), da.asarray(start), tol=tol, maxiter=200)
        found = np.asarray(w, float) / scale
        np.testing.assert_allclose(found, values[:-3:-1], rtol=3e3 * tolerance(dtype))
        np.testing.assert_allclose(np.linalg.norm(np.asarray(v), axis=0), 1, rtol=1e-5)

    simulate(2, program)


def test_block_gradients_that_do_not_end_say_so_and_others_raise() -> None:
    d = np.arange(1.0, 31)
    start = np.random.default_rng(0).normal(size=(30, 2))
    twice = np.repeat(start[:, :1], 2, axis=1)

    def program() -> None:
        x, linalg = da.asarray(start), da.linalg
        with pytest.raises(np.linalg.LinAlgError, match="not independent"):
            linalg.lobpcg(np.diag(d), da.asarray(twice))
        with pytest.raises(np.linalg.LinAlgError, match="not independent"):
            linalg.lobpcg(np.diag(d), x * 0)
        with pytest.raises(np.linalg.LinAlgError, match="positive definite"):
            linalg.lobpcg(np.diag(d), x, B=-np.eye(30))
        for broken in ({"A": lambda x: x * np.nan}, {"M": lambda x: x * np.inf}):
            with pytest.raises(np.linalg.LinAlgError, match="not finite"):
                linalg.lobpcg(**{"A": np.diag(d), "X": x, **broken})
        for item in (np.inf, np.nan):
            with pytest.raises(np.linalg.LinAlgError, match="X has items that are not finite"):
                linalg.lobpcg(np.diag(d), x * item)
        for message, error, call in (
            ("does not take Y=", ArgumentError, lambda: linalg.lobpcg(np.diag(d), x, Y=x)),
            ("tol=-1", ArgumentError, lambda: linalg.lobpcg(np.diag(d), x, tol=-1)),
            ("maxiter=-2", ArgumentError, lambda: linalg.lobpcg(np.diag(d), x, maxiter=-2)),
            ("X of shape", ShapeError, lambda: linalg.lobpcg(np.diag(d), x[:, 0])),
            ("X of shape", ShapeError, lambda: linalg.lobpcg(np.diag(d), x[:, :0])),
            ("X of shape", ShapeError, lambda: linalg.lobpcg(np.diag(d), x.T)),
            ("A has shape", ShapeError, lambda: linalg.lobpcg(np.diag(d[1:]), x)),
            ("what B returned", ShapeError, lambda: linalg.lobpcg(np.diag(d), x, lambda x: x[1:])),
            ("is of complex", DTypeError, lambda: linalg.lobpcg(lambda x: 1j * x, x)),
            ("lobpcg", ArgumentTypeError, lambda: linalg.lobpcg(np.diag(d), start)),
        ):
            with pytest.raises(error, match=message):
                call()

    simulate(2, program)
    with pytest.warns(UserWarning, match="after 3 iterations residuals are up to"):
        da.linalg.lobpcg(np.diag(d), da.asarray(start), maxiter=3, tol=1e-9)


@pytest.mark.host_only
@pytest.mark.parametrize("generalized", [False, True])
def test_memory_of_block_gradients_is_what_they_say(generalized: bool) -> None:
    k = 3
    value = np.random.default_rng(0).normal(size=(30_000, k))
    scale = np.linspace(1, 2, len(value) // 2)[:, None]

    def call(x: Any) -> Any:
        def apply(x: Any) -> Any:
            return da.map_blocks(lambda block: block * scale, x)

        b = apply if generalized else None
        return da.linalg.lobpcg(apply, x, b, tol=1e3, maxiter=3)[1]

    with mock.patch.object(_vectors, "_PASS_BYTES", 1 << 16):
        blocks = 9 if generalized else 6
        # One of them is the solution, and the operator makes another.
        assert peak_memory.scratch(call, value, 2) <= blocks + 2 + 1 - 1 + 0.3


def test_power_iteration_finds_the_largest_eigenvalue() -> None:
    d = np.array([1.0, -5, 3, 2, 0, 4])

    def program() -> None:
        w, v, info = da.linalg.power_iteration(da.diag(da.asarray(d)), rtol=1e-9, maxiter=1000)
        assert info == 0
        assert abs(w + 5) < 1e-9
        np.testing.assert_allclose(abs(np.asarray(v)), [0, 1, 0, 0, 0, 0], atol=1e-7)
        w, v, info = da.linalg.power_iteration(lambda x: 1j * x, da.ones((2, 3), complex))
        assert (w, info) == (pytest.approx(1j), 0)
        w, v, info = da.linalg.power_iteration(lambda x: x * d, da.ones(6), maxiter=2)
        assert info == 2
        assert da.linalg.power_iteration(lambda x: 0 * x, da.ones(6))[::2] == (0, 0)
        assert da.linalg.power_iteration(lambda x: x * np.nan, da.ones(6))[2] == -1
        with pytest.raises(np.linalg.LinAlgError, match="v0 has size 0"):
            da.linalg.power_iteration(lambda x: x, da.zeros(6))

    simulate(3, program)


# --- operators, arguments, memory ----------------------------------------------------------------


def test_matrices_objects_and_results_of_any_layout_are_operators() -> None:
    a, value = matrix(12, np.float64), np.arange(12.0)

    def program() -> None:
        mesh = da.init_device_mesh((2, 2))
        tiles = da.distribute_array(a, mesh, [da.Shard(0), da.Shard(1)], src=None)
        parts = da.distribute_array(a, mesh, [da.Replicate(), da.Shard(1)], src=None)
        b = da.distribute_array(value, mesh, [da.Replicate(), da.Shard(0)], src=None)
        expected = np.linalg.solve(a, value)
        for one in (tiles, parts, a, SimpleNamespace(shape=a.shape, matvec=lambda x: tiles @ x)):
            for solver in ("cg", "gmres"):
                x, info = getattr(da.linalg, solver)(one, b, rtol=1e-11, M=np.eye(12))
                assert (info, x.layout) == (0, b.layout)
                np.testing.assert_allclose(np.asarray(x), expected, rtol=1e-8)
        with da.communication("raise"), pytest.raises(ImplicitCommunicationError):
            da.linalg.cg(tiles, b)

    simulate(4, program)


@pytest.mark.parametrize("solver", SQUARE)
def test_wrong_arguments_are_refused_on_all_ranks(solver: str) -> None:
    solve = getattr(da.linalg, solver)

    def program() -> None:
        b = da.ones(6)

        def same(x: Any) -> Any:
            return 2 * x

        for error, message, a, options in (
            (ArgumentTypeError, "(?s)A is .*docs/iterative.md", sparse.eye_array(6), {}),
            (ArgumentTypeError, "M is ", same, {"M": "jacobi"}),
            (ArgumentTypeError, "what A returned is ", lambda x: np.ones(6), {}),
            (ArgumentTypeError, "returned is an array of", lambda x: np.ones(99), {}),
            (ArgumentTypeError, r"block y of it DistArray\.from_local", lambda x: x.to_local(), {}),
            (ArgumentTypeError, "what M returned is ", same, {"M": lambda x: None}),
            (ShapeError, "what A returned has shape", lambda x: x[:3], {}),
            (ShapeError, r"A has shape \(6, 5\)", da.ones((6, 5)), {}),
            (ShapeError, r"A has shape \(6,\)", da.ones(6), {}),
            (ShapeError, r"x0 has shape \(5,\)", same, {"x0": da.ones(5)}),
            (DTypeError, "is of complex128", lambda x: 1j * x, {}),
            (ArgumentError, "rtol=-1", same, {"rtol": -1}),
            (ArgumentError, "rtol=nan", same, {"rtol": np.nan}),
            (ArgumentError, "maxiter=-1", same, {"maxiter": -1}),
            (ArgumentTypeError, "maxiter=1.5", same, {"maxiter": 1.5}),
        ):
            with pytest.raises(error, match=message):
                solve(a, b, **options)
        with pytest.raises(ArgumentTypeError, match=f"{solver} got ndarray"):
            solve(same, np.ones(6))

    simulate(2, program)


def test_wrong_arguments_of_one_solver_are_refused() -> None:
    def program() -> None:
        a, b = da.eye(6), da.ones(6)
        linalg = da.linalg
        for message, call in (
            ("callback_type='legacy'", lambda: linalg.gmres(a, b, callback_type="legacy")),
            ("restart=0", lambda: linalg.gmres(a, b, restart=0)),
            ("show=True", lambda: linalg.minres(a, b, show=True)),
            ("show=True", lambda: linalg.lsqr(a, b, show=True)),
            ("does not take M=", lambda: linalg.eigsh(a, 2, a)),
            ("mode='buckling'", lambda: linalg.eigsh(a, 2, mode="buckling")),
            ("which='XX'", lambda: linalg.eigsh(a, 2, which="XX")),
            ("OPinv=", lambda: linalg.eigsh(a, 2, sigma=0.5)),
            ("k=7 and ncv=6", lambda: linalg.eigsh(a, 7)),
            ("ncv=2", lambda: linalg.eigsh(a, 2, ncv=2)),
            ("Pass v0=", lambda: linalg.eigsh(lambda x: x, 2)),
            ("Pass v0=", lambda: linalg.power_iteration(lambda x: x)),
            ("solver='lobpcg'", lambda: linalg.svds(a, 2, solver="lobpcg")),
            ("no adjoint", lambda: linalg.svds(lambda x: x, 2)),
            ("k=7", lambda: linalg.svds(a, 7)),
        ):
            with pytest.raises((ArgumentError, ShapeError), match=message):
                call()

    simulate(2, program)


@pytest.mark.host_only
@pytest.mark.parametrize(
    ("solver", "vectors", "options"),
    [
        ("cg", 4, {}),
        ("bicgstab", 5, {}),
        ("minres", 7, {}),
        ("gmres", 5 + 4, {"restart": 5}),
    ],
)
def test_memory_is_that_of_as_many_vectors_as_it_says(
    solver: str, vectors: int, options: dict[str, Any]
) -> None:
    value = np.random.default_rng(0).normal(size=40_000)
    scale = np.linspace(1, 2, len(value) // 2)

    def call(b: Any) -> Any:
        def apply(x: Any) -> Any:
            return da.map_blocks(lambda block: block * scale, x)

        return getattr(da.linalg, solver)(apply, b, rtol=0, maxiter=3, **options)

    # One of them is the solution, and the operator makes another.
    with mock.patch.object(_vectors, "_PASS_BYTES", 1 << 16):
        assert peak_memory.scratch(call, value, 2) <= vectors - 1 + 1 + 0.3


@pytest.mark.parametrize("name", [*SQUARE, "lsqr", "eigsh", "lobpcg", "power_iteration"])
def test_copies_of_a_solution_are_one_where_processes_round_otherwise(name: str) -> None:
    a = matrix(12, np.float64)

    def apply(x: Any) -> Any:
        rounding = 1 + 1e-15 * da.default_mesh().rank * np.arange(12)
        image = a @ host(x.to_local()) * rounding
        return da.asarray(image, mesh=x.mesh, placements=x.placements)

    def program() -> None:
        b = da.ones(12, placements=[da.Replicate()])
        solver = getattr(da.linalg, name)
        operator = SimpleNamespace(matvec=apply, rmatvec=apply, shape=(12, 12), dtype=a.dtype)
        if name == "eigsh":
            found = solver(operator, k=2, v0=b)[1]
        elif name == "lobpcg":
            operator.matmat = lambda x: da.stack([apply(x[:, i]) for i in range(x.shape[1])], -1)
            x = da.arange(1.0, 13.0, placements=[da.Replicate()])[:, None]
            found = solver(operator, x, tol=1e3)[1]
        elif name == "power_iteration":
            found = solver(operator, v0=b)[1]
        else:
            found = solver(operator, b)[0]
        block = host(found.to_local())
        everyone = da.default_mesh().communicator().all_gather_object(block)
        assert found.layout.is_replicated
        assert all((one == block).all() for one in everyone)

    simulate(2, program)
