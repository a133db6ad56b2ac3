"""The collectives over MPI: every dtype and op, through shared memory and through the library."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from distarray.comm import world
from distarray.comm.mpi import _datatypes, _large_counts, _transport
from distarray.errors import MismatchError
from tests.comm import collective_checks as checks

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def through_the_library():
    """Return a communicator that makes no use of shared memory."""
    c = world().duplicate()
    c._group._connected = True
    return c


@pytest.fixture
def in_pieces(monkeypatch):
    """Make believe that the library counts to five at most, as MPI 3 does to 2**31 - 1."""
    monkeypatch.setattr(_large_counts, "LIMIT", 5)
    monkeypatch.setattr(_large_counts, "library_displaces", lambda: False)


def test_values_of_every_dtype_move_unchanged():
    for dtype in checks.MOVED:
        checks.check_all_gather(world(), dtype)
        checks.check_all_to_all(world(), dtype)
        checks.check_rooted(world(), dtype)


def test_reductions_equal_numpys_for_every_dtype():
    for op, chars in checks.REDUCED.items():
        for char in chars:
            checks.check_all_reduce(world(), op, np.dtype(char))


CHECKS = pytest.mark.parametrize(
    "check",
    [
        checks.check_all_reduce_in_place,
        checks.check_nan_and_infinity,
        checks.check_roundoff_is_the_same_on_every_rank,
        checks.check_low_precision_sums,
        checks.check_point_to_point,
        checks.check_objects,
        checks.check_many_requests_in_flight,
        checks.check_log,
    ],
    ids=lambda check: check.__name__.removeprefix("check_"),
)


@CHECKS
def test_transport_passes(check):
    check(world())


@CHECKS
def test_transport_passes_without_shared_memory(check, through_the_library):
    assert through_the_library.size == 1 or not through_the_library.reaches_all()
    check(through_the_library)


def test_small_reductions_agree_with_and_without_shared_memory(through_the_library):
    for op, chars in checks.REDUCED.items():
        for char in chars:
            checks.check_all_reduce(through_the_library, op, np.dtype(char))


@pytest.mark.parametrize("char", ["f8", "?", "V5", "e"])
def test_collectives_in_pieces_give_the_same(char, in_pieces, monkeypatch):
    monkeypatch.setattr(checks, "LARGE", 17)
    dtype = np.dtype(char)
    c = world()
    checks.check_all_gather(c, dtype)
    checks.check_all_to_all(c, dtype)
    checks.check_rooted(c, dtype)
    if dtype.kind != "V":
        checks.check_all_reduce(c, "max", dtype)


def test_point_to_point_and_in_place_in_pieces(in_pieces, monkeypatch):
    monkeypatch.setattr(checks, "LARGE", 17)
    checks.check_point_to_point(world())
    monkeypatch.setattr(_transport.MPICommunicator, "all_reduce_small", lambda *_: None)
    checks.check_all_reduce_in_place(world())


def test_long_reductions_are_given_to_the_library_in_pieces(through_the_library, monkeypatch):
    c = through_the_library
    if c.size == 1:
        pytest.skip("one rank reduces for itself")
    monkeypatch.setattr(_transport.MPICommunicator, "all_reduce_small", lambda *_: None)
    monkeypatch.setattr(_transport, "_REDUCED_BYTES", 100 * 16)
    monkeypatch.setattr(_transport, "_REDUCED_BY_EACH", 100)
    monkeypatch.setattr(checks, "LARGE", 333)
    before = c._group.joined
    c.all_reduce(np.ones(333))
    assert c._group.joined - before == 2
    checks.check_all_reduce_in_place(c)
    checks.check_nan_and_infinity(c)
    for op, chars in checks.REDUCED.items():
        for char in chars:
            checks.check_all_reduce(c, op, np.dtype(char))


def test_datatypes_are_made_once():
    assert _datatypes.moving_type(24) is _datatypes.moving_type(24)
    assert _datatypes.reducing_type(np.dtype("f8"), "max") is _datatypes.reducing_type(
        np.dtype("f8"), "max"
    )


def test_abandoned_request_keeps_its_buffers_until_it_is_done():
    c = world()
    for i in range(20):  # nobody waits
        c.start_all_gather(np.full(checks.LARGE, float(i)), np.empty(checks.LARGE * c.size))
    result = np.empty(checks.LARGE * c.size)
    c.start_all_gather(np.ones(checks.LARGE), result).wait()
    np.testing.assert_array_equal(result, np.ones(checks.LARGE * c.size))


def test_ranks_in_different_reductions_raise_on_all_and_go_on():
    c = world()
    if not c.reaches_all() or c.size == 1:
        pytest.skip("disagreement is noticed where memory is shared")
    expected = pytest.raises(MismatchError, match="different things")
    with expected if c.size > 1 else contextlib.nullcontext():
        c.all_reduce(np.ones(2), "sum" if c.rank else "max")
    assert c.all_reduce(np.ones(2)).tolist() == [c.size] * 2


def test_ranks_that_gather_other_counts_are_told_apart():
    c = world()
    if not c.reaches_all() or c.size == 1:
        pytest.skip("disagreement is noticed where memory is shared")
    counts = [1] * c.size if c.rank else [2] + [1] * (c.size - 1)
    with pytest.raises(MismatchError, match="different things"):
        c.all_gather(np.ones(counts[c.rank]), np.empty(sum(counts)), counts)
    kept = _transport._token.cache_info().currsize
    for length in range(1, 20):
        mine, everyone = np.full(length, float(c.rank)), np.empty(length * c.size)
        c.all_gather(mine, everyone, [length] * c.size)
        assert everyone.tolist() == [float(r) for r in range(c.size) for _ in range(length)]
    assert _transport._token.cache_info().currsize <= kept + 1
