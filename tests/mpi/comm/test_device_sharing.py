"""Ranks of a node read each other's blocks on GPUs in place, as far as CUDA lets them."""

from __future__ import annotations

import importlib
import itertools

import numpy as np
import pytest

from distarray.comm import world
from distarray.comm.cuda import _ipc
from tests import on_device

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def xp():
    """Return CuPy, or what stands in for it."""
    return on_device.stand_in()


@pytest.fixture
def c(xp, monkeypatch):
    """Return a communicator that has not looked yet who can read whom."""
    if hasattr(xp, "operations"):
        told = importlib.import_module("cupy._device").allocation_of
        monkeypatch.setattr(_ipc, "allocation_of", lambda at: _ipc.Allocation(*told(at)))
    monkeypatch.setattr(_ipc, "_handles", {})
    made = world().duplicate()
    if not made.reaches_all():
        pytest.skip("the system does not let processes map each other's memory")
    return made


def _values(rank: int, n: int) -> np.ndarray:
    return (np.arange(3.0 * n).reshape(n, 3)[::2] + 1000 * rank).T


@pytest.mark.parametrize("n", [1, 5, 50_000])
def test_strided_blocks_of_all_ranks_are_read(xp, c, n):
    block = (xp.arange(3.0 * n).reshape(n, 3)[::2] + 1000 * c.rank).T
    with c.views(block, 1) as views:
        for rank, view in enumerate(views):
            np.testing.assert_array_equal(view.get(), _values(rank, n))
    assert c.reaches_all("cuda")
    assert c.reaches_some("cuda") == (c.size > 1)


def test_a_block_without_items_is_read(xp, c):
    with c.views(xp.empty((c.rank + 1, 0, 2)), 1) as views:
        assert [view.shape for view in views] == [(r + 1, 0, 2) for r in range(c.size)]


def _mappings() -> int:
    return sum(map(len, _ipc._mapped.values()))


def _still_open(xp) -> int:
    counts = getattr(xp, "operations", {})
    return counts.get("ipcOpenMemHandle", 0) - counts.get("ipcCloseMemHandle", 0)


def test_new_memory_at_an_address_that_was_lent_before_is_read_anew(xp, c):
    kept_open = _still_open(xp) - _mappings()
    pool = xp.cuda.MemoryPool()
    for turn in range(4):
        with xp.cuda.using_allocator(pool.malloc):
            block = xp.full((1000 * (1 + turn % 2),), 10.0 * turn + c.rank)
        with c.views(block, 1) as views:
            found = [float(view[-1].get()) for view in views]
        assert found == [10.0 * turn + rank for rank in range(c.size)]
        del block, views
        pool.free_all_blocks()  # the next block may get the same addresses
    for mapped in _ipc._mapped.values():
        spans = sorted((base, base + one.lent.nbytes) for base, one in mapped.items())
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    if hasattr(xp, "operations"):
        assert _still_open(xp) - _mappings() == kept_open


def test_few_mappings_are_kept_and_none_that_is_read_is_closed(xp, c, monkeypatch):
    monkeypatch.setattr(_ipc, "_mapped", {})
    monkeypatch.setattr(_ipc, "_MOST_MAPPED", 3)
    pools = [xp.cuda.MemoryPool() for _ in range(6)]  # whose allocations are not one another's
    blocks = []
    for i, pool in enumerate(pools):
        with xp.cuda.using_allocator(pool.malloc):
            blocks.append(xp.full(500, 10.0 * i + c.rank))
    peer = (c.rank + 1) % c.size
    with c.views(blocks[0], 1) as views:
        first = views[peer]
    for turn in range(2):
        for i, block in enumerate(blocks):
            with c.views(block, 1) as views:
                assert [float(v[-1].get()) for v in views] == [10.0 * i + r for r in range(c.size)]
            del views
        assert all(len(mapped) <= 3 for mapped in _ipc._mapped.values()), turn
    assert float(first[7].get()) == peer
    c.barrier()  # until then the blocks must be there
    _ipc.close_unread()
    assert _mappings() == (0 if c.size == 1 else 1)
    del first
    _ipc.close_unread()
    assert _mappings() == 0


def test_memory_that_cannot_be_lent_is_copied_where_it_can(xp, c, monkeypatch):
    block = xp.arange(5000.0) + c.rank
    known = _ipc.allocation_of(block.data.ptr)
    monkeypatch.setitem(_ipc._handles, (known.identity, known.base), None)
    with c.views(block, 1) as views:
        for rank, view in enumerate(views):
            np.testing.assert_array_equal(view.get(), np.arange(5000.0) + rank)


def test_ranks_that_cannot_read_a_rank_are_not_read_by_it(xp, c, monkeypatch):
    if c.rank == 0:

        def refuse(handle: bytes) -> int:
            raise xp.cuda.runtime.CUDARuntimeError(400)

        monkeypatch.setattr(xp.cuda.runtime, "ipcOpenMemHandle", refuse)
        monkeypatch.setattr(_ipc, "_mapped", {})
    with c.views(xp.full(1000, float(c.rank)), 1) as views:
        reached = [rank for rank, view in enumerate(views) if view is not None]
        assert [float(views[rank][0].get()) for rank in reached] == reached
    assert reached == ([0] if c.rank == 0 else list(range(1, c.size)))
    assert c.reaches_all("cuda") == (c.size == 1)
    assert c.reaches_some("cuda") == (c.size > 2)
