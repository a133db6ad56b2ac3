"""Channels through the shared memory of a node: whether there can be one, and making it.

Whether processes can map each other's memory is found out by trying: each maps every peer's and
reads a number that only the peer could have written there.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from collections.abc import Callable
from typing import Any

from distarray.comm._settings import setting
from distarray.comm.shared_memory import _arena
from distarray.comm.shared_memory._channel import Channel
from distarray.comm.shared_memory._slots import SLOT, TOKEN, PeerMemory, Slot

_peers: dict[tuple[int, int, int], PeerMemory] = {}  # by process, file and identity of its arena


def attach(
    members: tuple[int, ...],
    me: int,
    world_ranks: tuple[int, ...],
    all_gather_object: Callable[[Any], list[Any]],
) -> Channel | None:
    """Make the channel of a communicator's ranks on this node; None where none share memory.

    Collective over the communicator, through ``all_gather_object``, which gathers one small object
    of every rank to every rank; whether there are channels all ranks answer alike. ``members``,
    ``me`` and ``world_ranks`` are those of the `Channel`.
    """
    offer = own = None
    nonce = int.from_bytes(os.urandom(7), "little")
    if setting("DISTARRAY_SHARED_MEMORY", "1") != "0" and _arena.HAS_MEMORY_FILES:
        with contextlib.suppress(OSError):
            own = _arena.take(2 * SLOT)
    if own is not None:
        own[:] = 0
        slots = [Slot(own.data, i * SLOT) for i in range(2)]
        slots[0].words[TOKEN] = nonce
        arena = _arena.arena()
        offer = (os.getpid(), arena.file, arena.identity, arena.offset_of(own), nonce)
    everyone = all_gather_object((offer, len(members)))
    if all(alone == 1 for _, alone in everyone) and len(world_ranks) > 1:
        return None
    offers = [theirs for theirs, _ in everyone]
    peers: dict[int, tuple[PeerMemory, int]] = {}
    reached = offer is not None
    if reached:
        try:
            for rank in members:
                if rank != me:
                    peers[rank] = _reach(offers[rank])
        except (OSError, ValueError, TypeError):
            reached = False
    if not all(all_gather_object(reached)):
        return None
    assert own is not None  # all have reached each other
    channel = Channel(members, me, world_ranks, own, peers)
    if not _channels:
        atexit.register(_leave_all)
    _channels.add(channel)
    return channel


_channels: weakref.WeakSet[Channel] = weakref.WeakSet()


def _leave_all() -> None:
    for channel in list(_channels):
        if channel.is_own:
            channel.leave()


def _reach(offer: tuple[int, int, int, int, int]) -> tuple[PeerMemory, int]:
    """Map a peer's memory and prove that it is the peer's."""
    process, file, identity, offset, nonce = offer
    memory = _peers.get((process, file, identity))
    if memory is None:
        memory = PeerMemory(f"/proc/{process}/fd/{file}")
    if memory.slot(offset, 0).words[TOKEN] != nonce:
        raise ValueError("another process's memory")
    _peers[process, file, identity] = memory
    return memory, offset
