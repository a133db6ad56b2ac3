"""Device buffers among simulated ranks, on a device that does everything as late as it may."""

from __future__ import annotations

import gc
import itertools
import sys
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distarray.comm import CommLog, _backend, _communicator, world
from distarray.comm._requests import Pending
from distarray.comm.cuda import _pinned
from distarray.comm.device_messages import _awareness, _exchange
from distarray.comm.simulated._ranks import SimulatedCommunicator
from distarray.errors import ArgumentError, DeviceError, MismatchError, OutOfMemoryError
from distarray.testing import simulate
from tests.comm.device_messages import late_device
from tests.comm.device_messages.late_device import current, late

WAYS = pytest.mark.parametrize("way", ["0", "1"], ids=["staged", "direct"])
CHUNK = 24


@pytest.fixture(autouse=True)
def device(monkeypatch):
    """Put the late device in CuPy's place, and let chunks be short."""
    monkeypatch.setitem(sys.modules, "cupy", late_device.module())
    monkeypatch.setattr(_exchange, "CHUNK_BYTES", CHUNK)
    monkeypatch.setattr(_communicator, "ON_HOST_BYTES", -1)
    monkeypatch.setattr(_pinned, "_SMALLEST", 16)
    monkeypatch.setattr(_pinned, "pool", _pinned.PinnedPool())
    late_device.counts.clear()
    late_device.streams.clear()


@pytest.fixture
def way(request, monkeypatch):
    monkeypatch.setenv(_awareness.VARIABLE, request.param)


def values(size: int, seed: int, dtype: str = "f4") -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 250, size).astype(dtype)


def held() -> int:
    """Return the pinned bytes that somebody holds."""
    gc.collect()
    return _pinned.pool.in_use


def check_all_gather(c, counts, dtype="f4"):
    everyone = [values(n, r, dtype) for r, n in enumerate(counts)]
    out = late(np.zeros(sum(counts), dtype))
    c.all_gather(late(everyone[c.rank]), out, counts)
    np.testing.assert_array_equal(out.get(), np.concatenate(everyone))


def check_all_to_all(c, table):
    pieces = {(s, d): values(table[s][d], 9 * s + d) for s in range(c.size) for d in range(c.size)}
    send = np.concatenate([pieces[c.rank, d] for d in range(c.size)])
    wanted = np.concatenate([pieces[s, c.rank] for s in range(c.size)])
    out = late(np.zeros(wanted.size, "f4"))
    receives = [table[s][c.rank] for s in range(c.size)]
    c.all_to_all(late(send), out, table[c.rank], receives)
    np.testing.assert_array_equal(out.get(), wanted)


def check_rooted(c, counts, root):
    everyone = [values(n, r) for r, n in enumerate(counts)]
    whole = np.concatenate(everyone)
    is_root = c.rank == root
    part = late(np.zeros(counts[c.rank], "f4"))
    source = late(whole) if is_root else None
    c.scatter(source, part, counts, root)
    np.testing.assert_array_equal(part.get(), everyone[c.rank])
    out = late(np.zeros(whole.size, "f4")) if is_root else None
    c.gather(late(everyone[c.rank]), out, counts, root)
    if is_root:
        np.testing.assert_array_equal(out.get(), whole)
    array = late(whole) if is_root else late(np.zeros(whole.size, "f4"))
    c.broadcast(array, root)
    np.testing.assert_array_equal(array.get(), whole)


COUNTS = st.integers(0, 40)


@WAYS
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_values_arrive_whatever_the_counts(way, monkeypatch, data):
    monkeypatch.setenv(_awareness.VARIABLE, way)
    n = data.draw(st.integers(2, 4))
    lists = st.lists(COUNTS, min_size=n, max_size=n)
    counts, table = data.draw(lists), data.draw(st.lists(lists, min_size=n, max_size=n))
    root = data.draw(st.integers(0, n - 1))
    monkeypatch.setattr(_exchange, "DEPTH", data.draw(st.integers(1, 3)))

    def run():
        c = world()
        check_all_gather(c, counts)
        check_all_to_all(c, table)
        check_rooted(c, counts, root)

    simulate(n, run)
    assert held() == 0


class Rendezvous:
    """A message that has left only when the other rank has taken it."""

    def __init__(self, group, key):
        self.group, self.key = group, (key, group._posted[key])

    def test(self):
        self.group.program.check()
        return self.key not in self.group.mail

    def wait(self):
        while not self.test():
            time.sleep(0)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_few_chunks_under_way_suffice_where_each_waits_for_its_receiver(monkeypatch, data):
    usual = SimulatedCommunicator._send

    def send(self, array, dest, tag, blocking):
        handle = Rendezvous(self._group, (self.rank, dest, tag))
        usual(self, array, dest, tag, blocking)
        return Pending(handle, (array,))

    n = data.draw(st.integers(2, 4))
    lists = st.lists(st.integers(0, 30), min_size=n, max_size=n)
    counts, table = data.draw(lists), data.draw(st.lists(lists, min_size=n, max_size=n))
    root = data.draw(st.integers(0, n - 1))

    def run():
        c = world()
        check_all_gather(c, counts)
        check_all_to_all(c, table)
        check_rooted(c, counts, root)

    with monkeypatch.context() as patched:
        patched.setattr(_exchange, "DEPTH", data.draw(st.integers(1, 2)))
        patched.setattr(SimulatedCommunicator, "_send", send)
        simulate(n, run, timeout=20)


@pytest.mark.parametrize("dtype", ["?", "i1", "f2", "f8", "c16"])
def test_items_of_any_size_move(dtype):
    simulate(3, lambda: check_all_gather(world(), [7, 0, 30], dtype))


def test_call_returns_when_the_values_are_on_the_device():
    def run():
        c = world()
        out = late(np.zeros(2 * 30, "f4"))
        c.all_gather(late(values(30, c.rank)), out)
        other = 1 - c.rank
        part = out.memory[30 * other : 30 * (other + 1)]  # behind the back of every stream
        np.testing.assert_array_equal(part, values(30, other))

    simulate(2, run)


def test_receive_buffer_is_written_after_what_the_current_stream_does_to_it():
    def run():
        c = world()
        out = late(np.zeros(2 * 9, "f4"))
        out.become(np.full(2 * 9, -1, "f4"))  # queued, and late: it must not come afterwards
        c.all_gather(late(values(9, c.rank)), out)
        current().finish()
        np.testing.assert_array_equal(out.memory, np.concatenate([values(9, 0), values(9, 1)]))

    simulate(2, run)


def test_two_ranks_exchange_messages_of_one_tag_in_order():
    def run():
        c = world()
        for i in range(4):
            if c.rank == 0:
                c.send(late(values(40, i)), 1)
            else:
                out = late(np.zeros(40, "f4"))
                c.recv(out, 0)
                np.testing.assert_array_equal(out.get(), values(40, i))

    simulate(2, run)


# --- what is waited for, and what is held --------------------------------------------------------


def test_streams_wait_for_the_current_one_and_the_host_for_none_of_them():
    def run():
        c = world()
        c.all_gather(late(values(60, c.rank)), late(np.zeros(120, "f4")), [60, 60])

    simulate(2, run)
    assert late_device.counts["stream.synchronize"] == 0
    assert late_device.counts["event.synchronize"] == 0  # it asks, and does other things meanwhile
    assert late_device.counts["stream.wait_event"] == 2 * 2  # to and from the device, on two ranks


def test_direct_messages_wait_for_the_current_stream_once(monkeypatch):
    monkeypatch.setenv(_awareness.VARIABLE, "1")
    monkeypatch.setattr(_backend, "synchronize", lambda array: None)  # by simulated messages

    def run():
        c = world()
        c.all_gather(late(values(60, c.rank)), late(np.zeros(120, "f4")), [60, 60])

    simulate(2, run)
    assert late_device.counts["stream.synchronize"] == 2
    assert late_device.counts["pinned"] == 0


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_calls_hold_a_few_chunks(monkeypatch, depth):
    monkeypatch.setattr(_exchange, "DEPTH", depth)
    seen = []
    take = _pinned.PinnedPool.take

    def watched(pool, xp, nbytes):
        found = take(pool, xp, nbytes)
        seen.append(pool.in_use)
        return found

    monkeypatch.setattr(_pinned.PinnedPool, "take", watched)
    table = [[0, 100], [100, 0]]
    simulate(2, lambda: check_all_to_all(world(), table))
    assert len(seen) == 2 * 2 * -(-400 // CHUNK)
    assert max(seen) <= 2 * 2 * depth * 32  # two ranks, two ways, chunks in buffers of 32 bytes
    assert held() == 0


def test_small_parts_for_many_ranks_are_copied_from_the_device_at_once(monkeypatch):
    monkeypatch.setattr(_exchange, "CHUNK_BYTES", 4096)
    copies = []
    get = late_device.LateArray.get

    def counted(self, *args, **kwargs):
        copies.append(self.nbytes)
        return get(self, *args, **kwargs)

    monkeypatch.setattr(late_device.LateArray, "get", counted)
    table = [[3 + s + d for d in range(5)] for s in range(5)]

    def run():
        c = world()
        out = late(np.zeros(sum(row[c.rank] for row in table), "f4"))
        send = late(values(sum(table[c.rank]), c.rank))
        c.all_to_all(send, out, table[c.rank], [row[c.rank] for row in table])

    simulate(5, run)
    assert len(copies) == 2 + 2 * 3  # before and after the own part, which is first and last once


class BrokenError(RuntimeError):
    pass


@pytest.mark.parametrize("call", ["_send", "_recv"])
def test_error_on_the_way_leaves_nothing_behind(monkeypatch, call):
    calls = itertools.count()
    usual = getattr(SimulatedCommunicator, call)

    def failing(self, *args):
        if self.rank == 0 and next(calls) == 4:
            raise BrokenError
        return usual(self, *args)

    monkeypatch.setattr(SimulatedCommunicator, call, failing)
    with pytest.raises(BrokenError):
        simulate(3, lambda: check_all_gather(world(), [60, 60, 60]))
    monkeypatch.undo()
    # Requests that nobody waits for any more let go when the next is made.
    gc.collect()
    for _ in range(4):
        Pending(_Done())
    assert _pinned.pool.in_use == 0
    # No copy is queued that would write to memory somebody else has by now.
    assert [stream for stream in late_device.streams if stream.queue] == []


class _Done:
    def wait(self):
        pass

    def test(self):
        return True


def test_different_sizes_are_refused():
    def run():
        c = world()
        size = 30 if c.rank else 20
        if c.rank:
            c.send(late(values(5, 0)), 0)
        else:
            with pytest.raises(MismatchError, match="20 uint8"):
                c.recv(late(np.zeros(size, "f4")), 1)

    simulate(2, run)


def test_buffers_of_host_and_device_together_are_refused():
    def run():
        c = world()
        with pytest.raises(DeviceError, match="cuda"):
            c.all_gather(late(values(2, 0)), np.zeros(4, "f4"))

    simulate(2, run)


def test_small_values_go_by_host_memory_and_are_logged_alike(monkeypatch):
    monkeypatch.setattr(_communicator, "ON_HOST_BYTES", 1000)
    told = []

    def run():
        c = world()
        for size in (8, 8000):
            with CommLog() as log:
                check_all_gather(c, [size, size])
            told.append((size, log.count("all_gather"), log.bytes(), log.count()))

    simulate(2, run)
    assert sorted(told) == [(8, 1, 32, 1)] * 2 + [(8000, 1, 32000, 1)] * 2


# --- the pool ------------------------------------------------------------------------------------


def test_pool_keeps_buffers_up_to_its_limit_and_gives_the_rest_back():
    pool = _pinned.PinnedPool(kept=100)
    xp = sys.modules["cupy"]
    first, second = pool.take(xp, 60), pool.take(xp, 33)
    assert (first.size, second.size, pool.in_use) == (60, 33, 128)
    address = first.ctypes.data
    view = first[10:]
    del first, second
    assert (pool.in_use, pool.idle) == (64, 64)  # a view holds it
    del view
    assert (pool.in_use, pool.idle) == (0, 64)  # the second that came back was too much
    pool.trim()
    assert pool.idle == 0
    again = pool.take(xp, 64)
    assert again.size == 64
    assert address


def test_pool_names_what_it_could_not_have(monkeypatch):
    pool = _pinned.PinnedPool()
    xp = sys.modules["cupy"]

    def refuse(size):
        raise late_device.CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")

    held = pool.take(xp, 1000)
    xp.cuda.alloc_pinned_memory = refuse
    with pytest.raises(OutOfMemoryError, match=r"4096 bytes of pinned .*1024 bytes are on"):
        pool.take(xp, 4000)
    assert held.size == 1000


def test_setting_that_is_not_known_is_refused_on_every_rank(monkeypatch):
    monkeypatch.setenv(_awareness.VARIABLE, "yes")

    def run():
        with pytest.raises(ArgumentError, match=r"'yes'.*auto.*1 .*0 "):
            check_all_gather(world(), [3, 3])

    simulate(2, run)
