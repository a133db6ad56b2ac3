"""Square matrices in tiles: a rank receives as much as a matrix by the root of the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray.comm import CommLog
from distarray.layout import Shard
from distarray.linalg import _tiles
from distarray.testing import simulate
from tests import peak_memory

SIZE, WIDTH = 72, 2


@pytest.fixture(autouse=True)
def _no_matrix_is_small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(_tiles, "WHOLE_BYTES", 0)
    monkeypatch.setattr(_tiles, "WIDTH", WIDTH)
    yield
    da.testing.reset()


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "cholesky": da.linalg.cholesky,
    "slogdet": da.linalg.slogdet,
    "solve": lambda x: da.linalg.solve(x, np.ones((SIZE, 1))),
    "solve_triangular": lambda x: da.linalg.solve_triangular(x, np.ones((SIZE, 1))),
    "inv": da.linalg.inv,
    "qr": da.linalg.qr,
}
PANELS: dict[str, Callable[[int], float]] = {
    "cholesky": lambda _: 2,
    "slogdet": lambda root: 2 + 1 / root,
    "solve": lambda root: 3 + 1 / root,
    "solve_triangular": lambda _: 1,
    "inv": lambda root: 2 + 5 * (1 + 1 / root),
    "qr": lambda _: 6,
}
"""How often half a matrix, of which a rank has one in the root of the ranks, is told along rows or
columns of the grid. Rows that are solved for go out to be shared among the ranks of a column, and
come back; the identity, beside which `inv` eliminates, is no triangle."""

MATRICES = {"slogdet": 1, "solve": 1, "solve_triangular": 1, "qr": 3}
"""How many matrices are dealt out in tiles, or collected, at twice the bytes of a block each."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_bytes_of_panels_are_a_matrix_by_the_root_of_the_ranks(name: str) -> None:
    x = np.random.default_rng(0).normal(size=(SIZE, SIZE))
    x = x @ x.T + SIZE * np.eye(SIZE)

    def program(ranks: int) -> tuple[int, int]:
        a = da.distribute_array(x, da.init_device_mesh((ranks,)), [Shard(0)], src=None)
        with CommLog() as log:
            FUNCTIONS[name](a)
        return log.bytes(), log.bytes("exchange")

    for root in (2, 3, 4):
        told = simulate(root * root, program, root * root)
        panels = np.mean([everything - dealt for everything, dealt in told])
        half = (1 - 1 / root) * SIZE**2 / (2 * root) * 8
        # Tiles on the diagonal go to all, and so do the items of one right-hand side.
        others = SIZE * (1 if name == "solve_triangular" else WIDTH) * 8
        assert panels == pytest.approx(PANELS[name](root) * half + others, rel=0.12)
        dealt = np.mean([dealt for _, dealt in told])
        assert dealt < 2 * MATRICES.get(name, 2) * SIZE**2 * 8 / root**2


MEMORY = {
    "cholesky": 3.0,
    "slogdet": 3.0,
    "solve": 5.0,
    "solve_triangular": 4.0,
    "inv": 6.0,
    "qr": 5.0,
}
"""Blocks beside operands and results, as is stated, but for panels: each is a sixteenth here."""


@pytest.mark.host_only
@pytest.mark.parametrize("name", FUNCTIONS)
def test_peak_memory_is_some_blocks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tiles, "WIDTH", 16)
    size = 512
    x = np.random.default_rng(0).normal(size=(size, size)) + size * np.eye(size)
    x = x + x.T
    call = FUNCTIONS[name] if "solve" not in name else lambda x: getattr(da.linalg, name)(x, x)
    assert peak_memory.scratch(call, x, 4) <= MEMORY[name] + 0.5  # panels
