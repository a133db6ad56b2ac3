"""Exponentials of matrices are as accurate as one process finds them, in any layout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.errors import ImplicitCommunicationError
from distarray.layout import Shard
from distarray.linalg import _exponential, _tiles
from distarray.testing import simulate
from tests.array.strategies import agrees, cases, on_ranks

RNG = np.random.default_rng(0)
SIZE = 13


def turned(values: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return a hermitian matrix of some eigenvalues, and its exponential."""
    q = np.linalg.qr(np.random.default_rng(1).normal(size=(SIZE, SIZE)))[0]
    return (q * values) @ q.T, (q * np.exp(values)) @ q.T


NILPOTENT = np.triu(np.ones((4, 4)), 1)
ANGLE = np.array([[0.0, 1.0], [-1.0, 0.0]])
KNOWN: dict[str, tuple[np.ndarray, np.ndarray]] = {
    "nothing": (np.zeros((3, 3)), np.eye(3)),
    "a number": (np.array([[2.0]]), np.exp([[2.0]])),
    "diagonal": (np.diag(np.arange(-3.0, 4)), np.diag(np.exp(np.arange(-3.0, 4)))),
    "nilpotent": (
        NILPOTENT,
        np.eye(4)
        + NILPOTENT
        + NILPOTENT @ NILPOTENT / 2
        + np.linalg.matrix_power(NILPOTENT, 3) / 6,
    ),
    "a turn": (
        10 * ANGLE,
        np.cos(10) * np.eye(2) + np.sin(10) * ANGLE,
    ),
    "large beside a diagonal": (
        np.array([[1.0, 1e6], [0.0, -1.0]]),
        np.array([[np.e, 1e6 * np.sinh(1)], [0.0, 1 / np.e]]),
    ),  # the paper's example of too many squarings
    "complex": (1j * np.pi * np.eye(3), -np.eye(3).astype(complex)),
    **{
        f"of size {size}": turned(np.linspace(-size, size, SIZE))
        for size in (1e-3, 0.1, 0.4, 1, 9, 60)
    },
}


@pytest.fixture(params=[0, 1 << 30], ids=["tiles", "whole"], autouse=True)
def least(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(_tiles, "WHOLE_BYTES", request.param)
    monkeypatch.setattr(_tiles, "WIDTH", 4)
    yield request.param
    da.testing.reset()


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_exponentials_are_those_that_are_known(name: str, ranks: int) -> None:
    value, wanted = KNOWN[name]

    def program() -> None:
        x = da.distribute_array(value, placements=[Shard(0)], src=None)
        found = da.linalg.expm(x)
        assert found.layout == x.layout
        error = abs(np.asarray(found) - wanted).max() / abs(wanted).max()
        assert error < 1e-15 * max(100, 10 * np.linalg.norm(value, 1))

    simulate(ranks, program)


@settings(max_examples=15)
@given(data=st.data())
def test_exponentials_of_any_layout_and_dtype(data: st.DataObject) -> None:
    scipy = pytest.importorskip("scipy.linalg")
    shape = data.draw(st.sampled_from([(5, 5), (2, 3, 3), (0, 3, 3), (9, 9), (0, 0)]))
    dtypes = (np.float64, np.float32, np.complex128, np.complex64, np.int32)
    case = data.draw(cases(dtypes, ("sum",), shape=shape))
    value = case.value
    wanted = (
        np.array([scipy.expm(one) for one in value])
        if len(shape) == 3 and len(value)
        else (scipy.expm(value) if value.size else value)
    )
    dtype = np.linalg.inv(value.astype(value.dtype)[..., :0, :0]).dtype

    def program() -> None:
        array = case.build()
        if array.mesh.coordinate is None:
            return
        found = da.linalg.expm(array)
        assert found.dtype == dtype
        eps = np.finfo(dtype).eps
        scale = abs(wanted).max(initial=0)
        agrees(found, np.asarray(wanted, dtype), rtol=0, atol=1e5 * eps * scale)

    on_ranks(program)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
def test_what_is_not_finite_has_no_exponential(bad: float) -> None:
    value = np.eye(SIZE)
    value[3, 5], value[5, 3] = bad, 1e200

    def program() -> None:
        assert np.isnan(np.asarray(da.linalg.expm(da.asarray(value)))).all()

    on_ranks(program)


def test_matrices_that_are_not_square_are_refused() -> None:
    def program() -> None:
        with pytest.raises(da.linalg.LinAlgError, match="square"):
            da.linalg.expm(da.ones((4, 3)))

    on_ranks(program)


def test_large_matrices_are_never_collected(least: int) -> None:
    if least:
        pytest.skip("small ones are")
    value, wanted = KNOWN["of size 9"]

    def program() -> None:
        x = da.asarray(value)
        with da.communication("raise"), pytest.raises(ImplicitCommunicationError):
            da.linalg.expm(x)
        agrees(da.linalg.expm(x), wanted, rtol=0, atol=1e-9)

    on_ranks(program)


def test_small_matrices_take_few_products(monkeypatch: pytest.MonkeyPatch) -> None:
    degrees: list[int] = []
    approximate = _exponential._approximate

    def watch(a: Any, powers: Any, degree: int) -> Any:
        degrees.append(degree)
        return approximate(a, powers, degree)

    monkeypatch.setattr(_exponential, "_approximate", watch)

    def program() -> None:
        for size in (1e-3, 0.1, 0.4, 1, 9):
            da.linalg.expm(da.asarray(KNOWN[f"of size {size}"][0], dtype=np.float64))

    simulate(1, program)
    assert degrees == [3, 5, 7, 9, 13]
