"""How ranks decide together whether device memory goes to MPI, and both ways of moving it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from distarray.comm import _communicator, world
from distarray.comm.cuda import _pinned
from distarray.comm.device_messages import _awareness, _exchange
from distarray.comm.device_messages._awareness import Finding, verdict
from distarray.comm.mpi._transport import MPICommunicator
from distarray.errors import MismatchError
from tests import on_device
from tests.comm.device_messages import device_checks as checks

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60)]
STAND_IN = Path(__file__).resolve().parents[2] / "cupy_stand_in"
YES = {step: Finding(step, True, f"{step}: yes") for step in ("library", "child")}


@pytest.fixture(scope="module")
def xp():
    """Return CuPy, or what stands in for it."""
    return on_device.stand_in()


@pytest.fixture
def c(xp, monkeypatch):
    """Return a communicator that has decided nothing yet, nor any child told."""
    monkeypatch.delenv(_awareness.VARIABLE, raising=False)
    monkeypatch.setattr(_awareness, "_child", None)
    monkeypatch.setattr(_pinned, "pool", _pinned.PinnedPool())
    monkeypatch.setattr(_communicator, "ON_HOST_BYTES", -1)
    monkeypatch.setattr(_exchange, "CHUNK_BYTES", 3000)
    return world().duplicate()


@pytest.fixture
def children(c, monkeypatch):
    """Let the library say yes, and children what a test wants; return who started one."""
    started = []

    def child(device):
        started.append(device)
        return YES["child"]

    monkeypatch.setattr(_awareness, "ask", lambda: YES["library"])
    monkeypatch.setattr(_awareness, "child", child)
    return started


def check_moves(c, xp, size=1500):
    checks.check_moves(c, xp, "f4", size)
    checks.check_reductions(c, xp, "sum", size)
    assert _pinned.pool.in_use == 0


@pytest.mark.parametrize("way", ["0", "1"], ids=["staged", "direct"])
def test_values_move_and_reduce_either_way(c, xp, monkeypatch, way):
    if c.size == 1:
        pytest.skip("nothing moves")
    monkeypatch.setenv(_awareness.VARIABLE, way)
    for dtype in ("i1", "c16"):
        for size in checks.SIZES:
            checks.check_moves(c, xp, dtype, size)
    check_moves(c, xp)
    checks.check_order_of_sums(c, xp, 1000)
    checks.check_low_precision(c, xp, 1000)
    checks.check_log(c, xp, 500)
    assert verdict(c).direct is (way == "1")


def test_requests_arrive_whatever_the_rank_does_before_it_waits(c):
    outs = [np.zeros(3000 * c.size) for _ in range(3)]
    requests = [
        c.start_all_gather(np.full(3000, 10.0 * c.rank + i), out) for i, out in enumerate(outs)
    ]
    if c.rank == 0:  # the others wait for it in shared memory, and messages move nevertheless
        for request in requests:
            request.wait()
    c.barrier()
    for request in reversed(requests):
        request.wait()
    for i, out in enumerate(outs):
        wanted = np.repeat([10.0 * r + i for r in range(c.size)], 3000)
        np.testing.assert_array_equal(out, wanted)


def test_library_that_says_no_is_not_tried(c, xp, children, monkeypatch):
    no = Finding("library", False, "no, says rank 0")
    monkeypatch.setattr(_awareness, "ask", lambda: YES["library"] if c.rank else no)
    assert verdict(c) == (False, (no,))
    assert children == []
    check_moves(c, xp)


def test_child_is_started_once_on_each_node_and_once_for_all_communicators(
    c, xp, children, monkeypatch
):
    monkeypatch.setenv("DISTARRAY_RANKS_PER_NODE", "2")
    found = verdict(c)
    assert found.direct
    assert [finding.step for finding in found.findings] == ["library", "child", "ring"]
    assert len(children) == (c.rank % 2 == 0)
    check_moves(c, xp)
    assert verdict(c.duplicate()).direct
    assert len(children) == (c.rank % 2 == 0)
    monkeypatch.setattr(_awareness, "ask", None)
    assert verdict(c) is found


def test_children_are_believed_only_if_all_say_yes(c, xp, children, monkeypatch):
    monkeypatch.setenv("DISTARRAY_RANKS_PER_NODE", "1")
    no = Finding("child", False if c.size > 2 else None, "no, says the last node")
    last = c.rank == c.size - 1
    monkeypatch.setattr(_awareness, "child", lambda device: no if last else YES["child"])
    found = verdict(c)
    assert not found.direct
    assert found.findings[-1] == no
    check_moves(c, xp)


def test_ring_that_brings_wrong_values_is_believed_and_named(c, xp, children, monkeypatch):
    if c.size == 1:
        pytest.skip("a ring of one rank has the values of its own")
    usual = _awareness._values
    monkeypatch.setattr(_awareness, "_values", lambda n, rank: usual(n, rank + (c.rank == 0)))
    found = verdict(c)
    assert not found.direct
    assert "WRONG VALUES" in found.findings[-1].text
    check_moves(c, xp)


def test_ring_in_which_a_message_is_lost_ends_and_the_job_goes_on(c, xp, children, monkeypatch):
    monkeypatch.setattr(_awareness, "RING_SECONDS", 0.5)
    usual = MPICommunicator._send

    def lost(self, array, dest, tag, blocking):
        if self is not c and self.rank == 0:
            raise RuntimeError("the network is down")
        return usual(self, array, dest, tag, blocking)

    monkeypatch.setattr(MPICommunicator, "_send", lost)
    found = verdict(c)
    assert not found.direct
    assert "network is down" in found.findings[-1].text or "has not come" in found.findings[-1].text
    monkeypatch.setattr(MPICommunicator, "_send", usual)
    check_moves(c, xp)


def test_settings_that_differ_are_an_error_on_all_ranks(c, xp, monkeypatch):
    if c.size == 1:
        pytest.skip("one rank agrees with itself")
    monkeypatch.setenv(_awareness.VARIABLE, "1" if c.rank else "auto")
    with pytest.raises(MismatchError, match=r"rank 0: auto; ranks? [\d, ]+: 1"):
        verdict(c)
    assert c.all_gather_object(c.rank) == list(range(c.size))


def test_real_child_and_ring_say_yes_of_memory_that_mpi_can_read(c, xp, monkeypatch):
    if on_device.has_gpu():
        pytest.skip("this MPI may say otherwise of a real GPU's")
    monkeypatch.setattr(_awareness, "ask", lambda: YES["library"])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(STAND_IN), *filter(None, [os.getcwd()])]))
    assert verdict(c).direct
    check_moves(c, xp)
