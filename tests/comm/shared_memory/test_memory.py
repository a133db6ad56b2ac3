"""The pool hands out warm memory again, but never memory that anyone still looks at."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distarray.comm import _memory
from distarray.comm.shared_memory import _arena
from distarray.comm.shared_memory._hugepages import Mapping
from distarray.errors import ArgumentError, OutOfMemoryError

MEBIBYTE = 1 << 20


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_empty_aligns_large_blocks_to_cache_lines():
    for n in (65536, 65537, 100_001, MEBIBYTE + 3):
        assert address(_memory.empty((n,), np.uint8)) % 64 == 0


def test_block_is_reused_after_the_last_view_is_gone():
    _memory.trim()
    block = _memory.empty((300, 1000), np.float64)
    where = address(block)
    del block
    assert address(_memory.empty((300, 1000), np.float64)) == where


def test_blocks_that_become_smaller_share_one_stretch():
    _memory.trim()
    before = _arena.stats()
    for rows in range(900, 450, -25):
        block = _memory.empty((rows, 1000), np.float64)
        assert _arena.stats().in_use - before.in_use <= 1.13 * block.nbytes
        del block
    assert _arena.stats().idle - before.idle <= 1.13 * 900_000 * 8
    kept = _memory.empty((500, 1000), np.float64)
    kept[...] = 1
    other = _memory.empty((900, 1000), np.float64)  # whose stretch is taken
    other[...] = 2
    assert (kept == 1).all()


def test_what_others_have_read_is_known_of_the_next_block_there(monkeypatch):
    monkeypatch.setattr(_memory, "renew", lambda _: pytest.fail("its caller does that"))
    block = _memory.empty((300, 1000), np.float64)
    assert _memory.take_lent(block) is None
    _memory.lend(block[30:60])
    _memory.lend(block[40:90, :500])  # not contiguous: left alone
    _memory.lend(block[50:80])
    where = _memory.extent_of(block[30:80])
    assert _memory.take_lent(block) is None
    del block
    block = _memory.empty((300, 1000), np.float64, renews=False)
    assert _memory.take_lent(block) == where
    assert _memory.take_lent(block) is None
    del block
    assert _memory.take_lent(_memory.empty((300, 1000), np.float64, renews=False)) is None
    _memory.lend(np.zeros((300, 1000)))  # which others cannot read


@pytest.mark.parametrize("forget", ["much later", "trimmed"])
def test_what_others_have_read_is_forgotten(forget, monkeypatch):
    _memory.trim()
    block = _memory.empty((300, 1000), np.float64)
    _memory.lend(block)
    del block
    if forget == "trimmed":
        _memory.trim()
    else:
        monkeypatch.setattr(_arena, "_EVICTED_BYTES", MEBIBYTE)
    block = _memory.empty((300, 1000), np.float64, renews=False)
    assert _memory.take_lent(block) is None


def test_block_that_others_have_read_is_written_anew(monkeypatch):
    renewed, written = [], []
    monkeypatch.setattr(_memory, "renew", lambda block: renewed.append(block.nbytes))
    monkeypatch.setattr(_memory, "write_lent", lambda dst, write: (renewed.append(dst), write()))
    block = _memory.empty((300, 1000), np.float64)
    _memory.lend(block)
    del block
    block = _memory.empty((300, 1000), np.float64)
    assert renewed == [block.nbytes]
    part = block[10:20]
    start, stop = _memory.extent_of(part)
    for lent in (None, (start - 50, start), (stop, stop + 50), (start + 50, stop)):
        _memory.write_new(part, lambda: written.append(part), lent)
    assert len(renewed) == 2, "where others have read some of it"
    assert renewed[1] is part
    assert len(written) == 4


@pytest.mark.parametrize(
    "look",
    [
        lambda a: a[5:7],
        lambda a: a.T,
        lambda a: a.reshape(-1)[::2],
        lambda a: a.view(np.uint8),
        lambda a: memoryview(a),
        lambda a: np.asarray(a)[..., None],
        lambda a: np.frombuffer(a),
        lambda a: iter(a),
    ],
)
def test_block_is_not_reused_while_something_looks_at_it(look):
    block = _memory.empty((300, 1000), np.float64)
    where = address(block)
    held = look(block)
    del block
    gc.collect()
    others = [_memory.empty((300, 1000), np.float64) for _ in range(3)]
    assert where not in [address(o) for o in others]
    del held, others


def test_small_blocks_do_not_touch_the_pool():
    before = _memory.stats().in_use
    kept = [_memory.empty((10,), np.float64) for _ in range(100)]
    assert _memory.stats().in_use == before
    assert len(kept) == 100


def test_stats_count_what_is_in_use_and_idle():
    _memory.trim()
    before = _memory.stats()
    block = _memory.empty((MEBIBYTE,), np.uint8)
    assert _memory.stats().in_use - before.in_use >= MEBIBYTE
    del block
    after = _memory.stats()
    assert after.in_use == before.in_use
    assert after.idle >= MEBIBYTE
    assert after.peak >= before.in_use + MEBIBYTE
    _memory.trim()
    assert _memory.stats().idle == 0


def test_limit_bounds_the_idle_memory():
    limit = _memory.stats().limit
    try:
        _memory.set_limit(3 * MEBIBYTE)
        blocks = [_memory.empty((MEBIBYTE,), np.uint8) for _ in range(8)]
        del blocks
        assert _memory.stats().idle <= 3 * MEBIBYTE
    finally:
        _memory.set_limit(limit)


def test_limit_from_the_environment_is_a_number_of_bytes(monkeypatch):
    monkeypatch.setenv("DISTARRAY_POOL_LIMIT", "5000000")
    assert _arena.Arena().limit == 5_000_000
    for wrong in ("4G", "1e9", "-1"):
        monkeypatch.setenv("DISTARRAY_POOL_LIMIT", wrong)
        with pytest.raises(ArgumentError, match="not a number of bytes"):
            _arena.Arena()


def test_stretch_that_came_back_last_goes_out_again() -> None:
    arena = _arena.Arena()
    held = [arena.lease(nbytes * MEBIBYTE) for nbytes in (3, 1, 2, 1)]
    in_use = arena.stats().in_use
    places = [one._stretch[0] for one in held if one is not None]
    while held:
        held.pop(0)
    again = [arena.lease(nbytes * MEBIBYTE) for nbytes in (1, 1, 3, 2)]
    assert [one._stretch[0] for one in again if one is not None] == [
        places[i] for i in (3, 1, 0, 2)
    ]
    assert arena.stats()[:2] == (in_use, 0)
    del again
    assert arena.stats()[:2] == (0, in_use)


def test_idle_memory_makes_room_for_many_small_blocks(monkeypatch):
    arena = _arena.Arena()
    leases = [arena.lease(MEBIBYTE) for _ in range(8)]
    del leases
    assert arena.stats().idle == 8 * MEBIBYTE
    monkeypatch.setattr(_arena, "available", lambda: 16 * MEBIBYTE)
    leases = [arena.lease(2 * MEBIBYTE) for _ in range(36)]
    assert arena.stats().idle == 0
    assert arena.stats().in_use == 2 * MEBIBYTE * len(leases)


def test_pages_of_a_block_that_could_not_be_had_go_back(monkeypatch):
    arena = _arena.Arena()

    def populate(self, offset, length):
        os.posix_fallocate(arena.file, offset, length // 2)
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(Mapping, "populate", populate)
    with pytest.raises(OutOfMemoryError, match="Cannot allocate memory"):
        arena.lease(8 * MEBIBYTE)
    assert os.fstat(arena.file).st_blocks == 0


def test_full_and_zeros_hold_their_value_in_reused_memory():
    block = _memory.full((200, 500), 7.5, np.float64)
    assert (block == 7.5).all()
    del block
    assert not _memory.zeros((200, 500), np.float64).any()


def test_empty_raises_when_the_machine_has_not_that_much_memory():
    with pytest.raises(OutOfMemoryError, match="bytes for a local block"):
        _memory.empty((1 << 62,), np.uint8)
    assert _memory.empty((MEBIBYTE,), np.uint8).size == MEBIBYTE


def test_more_than_the_memory_left_is_refused_before_any_of_it_is_touched():
    with pytest.raises(OutOfMemoryError, match="more than the system has left"):
        _memory.empty((_arena.available() + (1 << 30),), np.uint8)


def test_blocks_can_be_had_where_the_address_space_is_limited():
    program = (
        "import resource, numpy as np\n"
        "from distarray.comm import _memory\n"
        "resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))\n"
        "blocks = [_memory.full((50 << 20,), i, np.uint8) for i in range(20)]\n"
        "assert [int(b[-1]) for b in blocks] == list(range(20))\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_forked_child_does_not_write_into_the_parents_blocks():
    block = _memory.full((MEBIBYTE,), 3, np.uint8)
    idle = _memory.empty((MEBIBYTE,), np.uint8)
    del idle
    child = os.fork()
    if child == 0:
        fine = (block == 3).all()
        others = [_memory.full((MEBIBYTE,), 9, np.uint8) for _ in range(4)]
        os._exit(0 if fine and len(others) == 4 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (block == 3).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(65536, 700_000)), max_size=60))
def test_live_blocks_never_overlap_under_any_order_of_calls(calls):
    live: dict[int, np.ndarray] = {}
    for i, (slot, nbytes) in enumerate(calls):
        if slot == 9:
            _memory.trim()
        else:
            block = _memory.empty((nbytes,), np.uint8)
            block[:] = slot
            live[slot] = block
            del block
        if i % 3 == 0:
            live.pop((slot + 1) % 9, None)
        for owner, held in live.items():
            assert held[0] == owner
            assert held[-1] == owner
    spans = sorted((address(a), address(a) + a.nbytes) for a in live.values())
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
