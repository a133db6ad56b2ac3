"""What computes in pieces of bounded size gives NumPy's results for blocks of several pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray.layout import Shard
from distarray.ops.searching import _bins, _searchsorted
from distarray.testing import simulate

pytestmark = pytest.mark.host_only

N = 35_000
"""Items: of each of two ranks more than a piece has."""
X = np.random.default_rng(0).integers(-300, 300, N) / 4
Y = X[::-1].copy()
SORTED = np.sort(X)
RISING = np.arange(float(N))

CALLS: dict[str, Any] = {
    "histogram2d": lambda f, x, y: f.histogram2d(x, y, 7)[0],
    "i0": lambda f, x, y: f.i0(x / 99),
    "interp": lambda f, x, y: f.interp(x * 200 + 9000.5, x * 0 + RISING, y),
    "isclose": lambda f, x, y: f.isclose(x, y, rtol=0.5),
    "isin": lambda f, x, y: f.isin(x, [1.5, 2, np.nan]),
    "kaiser": lambda f, x, y: f.kaiser(N, 3.0),
    "lexsort": lambda f, x, y: f.lexsort((x.reshape(-1, 250), y.reshape(-1, 250))),
    "searchsorted among many": lambda f, x, y: f.searchsorted(x * 0 + SORTED, y),
    "searchsorted among some": lambda f, x, y: f.searchsorted(SORTED[::8], y),
    "sinc": lambda f, x, y: f.sinc(x),
    "unwrap": lambda f, x, y: f.unwrap(x),
}


@pytest.mark.parametrize("name", CALLS)
def test_blocks_of_several_pieces_are_computed_as_by_numpy(name, monkeypatch):
    for module in (_bins, _searchsorted):
        monkeypatch.setattr(module, "_PIECE", 1 << 14)

    def program() -> np.ndarray:
        mesh = da.init_device_mesh((2,))
        x, y = (da.distribute_array(one, mesh, [Shard(0)]) for one in (X, Y))
        return CALLS[name](da, x, y).full_array()

    expected = CALLS[name](np, X, Y)
    for found in simulate(2, program):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-9)
