"""Collectives of buffers on GPUs, on simulated ranks and the stand-in for CuPy."""

from __future__ import annotations

import pytest

from distarray.comm import _communicator, world
from distarray.comm.cuda import _pinned
from distarray.comm.device_messages import _awareness, _exchange
from distarray.testing import simulate
from tests import on_device
from tests.comm.collective_checks import REDUCED
from tests.comm.device_messages import device_checks as checks

RANKS = (2, 3)


@pytest.fixture(scope="module")
def xp():
    """Return CuPy, or what stands in for it."""
    return on_device.stand_in()


@pytest.fixture(params=["0", "1", "host"], ids=["staged", "direct", "by host"])
def way(request, monkeypatch):
    """Let buffers go a certain way, in chunks that do not divide anything."""
    monkeypatch.setattr(_pinned, "pool", _pinned.PinnedPool())
    monkeypatch.setattr(_exchange, "CHUNK_BYTES", 3000)
    if request.param == "host":
        return
    monkeypatch.setenv(_awareness.VARIABLE, request.param)
    monkeypatch.setattr(_communicator, "ON_HOST_BYTES", -1)


def on_ranks(ranks, check, *args, **kwargs):
    for n in ranks:
        simulate(n, lambda: check(world(), *args, **kwargs))
    assert _pinned.pool.in_use == 0


@pytest.mark.parametrize("dtype", checks.MOVED)
def test_values_of_every_dtype_move_unchanged(xp, way, dtype):
    for size in checks.SIZES:
        on_ranks(RANKS, checks.check_moves, xp, dtype, size)


@pytest.mark.parametrize("op", REDUCED)
def test_reductions_equal_numpys_for_every_dtype(xp, way, op):
    for size in (3, 1500):
        on_ranks((1, *RANKS), checks.check_reductions, xp, op, size)


@pytest.mark.parametrize(
    "check", [checks.check_low_precision, checks.check_order_of_sums, checks.check_log]
)
def test_transport_passes(xp, way, check):
    for size in (5, 1200):
        on_ranks((*RANKS, 4), check, xp, size)
