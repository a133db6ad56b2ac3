"""Rounds of a channel, as one rank sees them: which it joins, and when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from distarray.comm.shared_memory._channel import Channel
from distarray.comm.shared_memory._slots import BARRIER, ROUND, SLOT, TOKEN, Slot


class _Memory:
    """A peer's memory that lies in this process."""

    def __init__(self) -> None:
        self._bytes = memoryview(bytearray(2 * SLOT))

    def slot(self, offset: int, i: int) -> Slot:
        return Slot(self._bytes, offset + i * SLOT)


def test_a_rank_that_is_interrupted_before_it_joins_a_round_joins_it_later() -> None:
    memory: Any = _Memory()
    channel = Channel((0, 1), 0, (0, 1), np.zeros(2 * SLOT, np.uint8), {1: (memory, 0)})
    interrupts = [True, False, False]

    def fence() -> None:
        if interrupts.pop(0):
            raise KeyboardInterrupt  # as a handler of signals does

    channel._fence = fence
    with pytest.raises(KeyboardInterrupt):
        channel.barrier()
    assert channel.joined == 0
    assert channel._slots[0].words[ROUND] == 0
    other = memory.slot(0, 0)
    other.words[TOKEN], other.words[ROUND] = BARRIER, 1  # it has come there
    channel.barrier()
    assert channel.joined == channel._slots[0].words[ROUND] == 1
