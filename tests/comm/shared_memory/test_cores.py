"""Ranks that wait leave the core of the late one, offer it to others, or sleep."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from distarray.comm.shared_memory import _channel
from distarray.comm.shared_memory._channel import Channel
from distarray.comm.shared_memory._slots import CORE, ROUND, SLOT, Slot


class _Memory:
    """A peer's memory that lies in this process."""

    def __init__(self) -> None:
        self._bytes = memoryview(bytearray(2 * SLOT))

    def slot(self, offset: int, i: int) -> Slot:
        return Slot(self._bytes, offset + i * SLOT)


class _Machine:
    """Two cores, on the first of which this rank runs; what it asks for is kept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[set[int]] = []
        self.allowed = {0, 1}
        self.refuses = False
        self.now = 1000.0
        monkeypatch.setattr(_channel, "_current_core", lambda: 0)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(self.allowed))
        monkeypatch.setattr(os, "sched_setaffinity", self._set)
        monkeypatch.setattr(_channel.time, "monotonic", lambda: self.now)

    def _set(self, _: int, cores: set[int]) -> None:
        self.asked.append(set(cores))
        if self.refuses and cores != self.allowed:
            raise OSError(1, "not permitted")


def _channel_of_two(is_crowded: bool = False) -> tuple[Channel, Slot]:
    memory: Any = _Memory()
    own = np.zeros(2 * SLOT, np.uint8)
    channel = Channel((0, 1), 0, (0, 1), own, {1: (memory, 0)}, is_crowded)
    return channel, channel._others[0][0][1]


def test_a_rank_that_waits_leaves_the_core_of_the_late_one(monkeypatch) -> None:
    machine = _Machine(monkeypatch)
    channel, late = _channel_of_two()
    late.words[CORE] = 0 + 1
    assert channel._is_apart(late.words)
    assert machine.asked == [{1}, {0, 1}]  # and may be moved by the system again
    assert not channel._is_apart(late.words)  # not again at once
    assert len(machine.asked) == 2
    machine.now += 1
    assert channel._is_apart(late.words)
    assert len(machine.asked) == 4
    assert all(slot.words[CORE] == 1 for slot in channel._mine)


def test_ranks_on_cores_of_their_own_stay(monkeypatch) -> None:
    machine = _Machine(monkeypatch)
    channel, late = _channel_of_two()
    for core in (1 + 1, 0):  # another one, and one that nobody knows
        late.words[CORE] = core
        assert channel._is_apart(late.words)
    assert not machine.asked


def test_a_rank_that_may_not_move_stays(monkeypatch) -> None:
    machine = _Machine(monkeypatch)
    channel, late = _channel_of_two()
    late.words[CORE] = 0 + 1
    machine.refuses = True
    assert not channel._is_apart(late.words)
    machine.refuses, machine.allowed, machine.now = False, {0}, machine.now + 1
    machine.asked.clear()
    assert not channel._is_apart(late.words)
    assert not machine.asked


@pytest.mark.parametrize("is_crowded", [False, True])
@pytest.mark.parametrize("seconds", [1e-6, 5e-6])
def test_ranks_in_a_crowd_sleep_once_nobody_takes_their_core(
    monkeypatch, is_crowded, seconds
) -> None:
    channel, late = _channel_of_two(is_crowded)
    now, offers = [0.0], [0]

    def offer() -> None:
        offers[0] += 1
        now[0] += seconds

    def sleep(_: float) -> None:
        late.words[ROUND] = 2  # the rank that had the core meanwhile

    monkeypatch.setattr(os, "sched_yield", offer)
    monkeypatch.setattr(_channel.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(_channel.time, "sleep", sleep)
    channel._wait(late.words, 2, "waiting")
    refused = seconds < _channel._TAKEN_SECONDS
    assert offers[0] == (_channel._MOST_REFUSED if is_crowded and refused else _channel._YIELDS)


@pytest.mark.parametrize(
    ("ranks", "launched", "launcher", "crowded"),
    [
        ([{0, 1}, {0, 1}], 2, {0, 1}, False),
        ([{0, 1}] * 3, 3, {0, 1}, True),
        ([{0, 1}, {0, 1}], 4, {0, 1}, True),  # a communicator of some ranks of a node
        ([{0}, {1}], 4, {0, 1, 2, 3}, False),  # bound to a core each
        ([{0}, {0}], 2, {0, 1}, True),
        ([{0, 1}, {2, 3}], 4, {0, 1}, False),
    ],
)
def test_more_ranks_than_cores_are_a_crowd(monkeypatch, ranks, launched, launcher, crowded) -> None:
    monkeypatch.setattr(_channel, "count_local_ranks", lambda: launched)
    monkeypatch.setattr(_channel, "cores_of", lambda _: frozenset(launcher))
    assert _channel._is_crowded(list(map(frozenset, ranks))) is crowded
