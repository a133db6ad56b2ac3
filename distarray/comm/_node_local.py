"""The shared-memory channel of a communicator: ranks of one node read each other's blocks directly.

Each process publishes the memory file behind its arena (``_memory``); the others of the node map
it read-only. A round works through two alternating slots per rank in that memory: a rank fills
its slot, then sets the slot's round number, and waits until every other rank's slot shows the
same number. A slot is written again two rounds later, and a rank can only be two rounds ahead
once everyone has read the slot, so a round needs no closing barrier. A slot carries a small
payload inline, or says where in its owner's arena a large block lies; then the readers' closing
round tells the owners that their blocks may change.

Every slot names what its rank believes it is doing (a token). Ranks that disagree find out in the
round itself, all of them, and raise the same error instead of exchanging garbage.

Whether the processes can map each other's memory is found out when the channel is made: each
maps every peer and reads a number that only the peer could have written there.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import platform
import time
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from distarray.comm import _memory
from distarray.comm._packing import copy_box
from distarray.errors import CommunicationError, MismatchError

INLINE_BYTES = 32 * 1024
"""Payloads up to this size travel inside the slot."""

_MAX_NDIM = 64  # NumPy's own limit
_HEADER = (8 + 2 * _MAX_NDIM) * 8  # the words named below, then shape and strides
_SLOT = _HEADER + INLINE_BYTES
_ROUND, _TOKEN, _KIND, _SIZE, _NDIM, _OFFSET, _SHAPE = range(7)
_DESCRIBED = 5  # blocks of up to so many axes are described by one run of bytes
_DESCRIPTION = slice(_KIND * 8, (_SHAPE + 2 * _DESCRIBED) * 8)
_KEPT = 256  # descriptions whose arrays are kept, per slot
_BARRIER, _MISMATCH = -1, -2  # tokens of the channel itself
_BYTES, _BLOCK_INLINE, _BLOCK_IN_ARENA = range(3)

_SPINS = 200  # reads of a flag before the core is offered to others
_SPINS_CROWDED = 10  # the same where the node has more ranks than this process has cores
_YIELDS = 2000  # offers before sleeping in between
_SLEEP = 50e-6


class _Slot:
    """One slot: its header as words, the description of a block in it, and its payload."""

    __slots__ = ("bytes", "description", "known", "words")

    def __init__(self, memory: memoryview, offset: int) -> None:
        header = memory[offset : offset + _HEADER]
        self.words = header.cast("q")
        self.description = header[_DESCRIPTION]
        self.bytes = memory[offset + _HEADER : offset + _SLOT]
        self.known: dict[Any, Any] = {}  # arrays over the payload, by what describes them

    def keep(self, key: Any, value: Any) -> None:
        if len(self.known) >= _KEPT:
            self.known.clear()
        self.known[key] = value

    def array(self, dtype: np.dtype[Any]) -> np.ndarray:
        """Return the block that lies in the payload."""
        key = (bytes(self.description), dtype)
        found = self.known.get(key)
        if found is None:
            words = self.words
            ndim = words[_NDIM]
            shape = tuple(words[_SHAPE : _SHAPE + ndim])
            found = np.ndarray(shape, dtype, self.bytes)
            if ndim <= _DESCRIBED:
                self.keep(key, found)
        return found


class _PeerMemory:
    """A peer's arena, mapped read-only as far as it has been needed."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._length = os.fstat(self._file).st_size
        self._map: mmap.mmap | None = None

    def upto(self, end: int) -> mmap.mmap:
        """Return a mapping that covers the first ``end`` bytes."""
        if self._map is None or len(self._map) < end:
            length = min(self._length, max(256 << 20, 1 << (end - 1).bit_length()))
            # The shorter mapping lives on while views of it do.
            self._map = mmap.mmap(self._file, length, prot=mmap.PROT_READ)
        return self._map

    def slot(self, offset: int, i: int) -> _Slot:
        """Return slot ``i`` of the pair at ``offset``."""
        return _Slot(memoryview(self.upto(offset + 2 * _SLOT)), offset + i * _SLOT)


_peers: dict[tuple[int, int, int], _PeerMemory] = {}  # (process, file, nonce) -> its memory


class Channel:
    """Rounds among the ranks of a communicator that share this node's memory.

    Parameters
    ----------
    members
        Ranks of the communicator on this node, ascending.
    me
        This process's rank in the communicator.
    size
        Size of the communicator.
    own
        This rank's two slots, as writable memory.
    peers
        For each other member: its memory, and the offset of its slots in it.
    """

    def __init__(
        self,
        members: tuple[int, ...],
        me: int,
        size: int,
        own: np.ndarray,
        peers: dict[int, tuple[_PeerMemory, int]],
    ) -> None:
        self.members = members
        self.me = me
        self.size = size
        self._round = 0
        self._spins = _SPINS if len(members) <= _cores() else _SPINS_CROWDED
        self._keep = own
        self._memory = {rank: memory for rank, (memory, _) in peers.items()}
        mine = own.data
        self._mine = [_Slot(mine, i * _SLOT) for i in range(2)]
        self._others = [
            [(rank, memory.slot(offset, i)) for rank, (memory, offset) in peers.items()]
            for i in range(2)
        ]

    @property
    def is_complete(self) -> bool:
        """Whether every rank of the communicator is on this node."""
        return len(self.members) == self.size

    def exchange(
        self, payload: bytes | memoryview, token: int, what: object = ""
    ) -> list[memoryview | None]:
        """Give every member's payload to every member; None for ranks of other nodes.

        The payload has at most ``INLINE_BYTES`` bytes. What is returned is valid until the next
        round on this channel. ``str(what)`` says in errors what this rank was doing.

        Raises
        ------
        MismatchError
            The ranks passed different tokens.
        """
        slot = self._mine[self._round & 1]
        n = len(payload)
        slot.bytes[:n] = payload
        words = slot.words
        words[_KIND] = _BYTES
        words[_SIZE] = n
        result: list[memoryview | None] = [None] * self.size
        result[self.me] = slot.bytes[:n]
        for rank, other in self._complete_round(words, token, what):
            result[rank] = other.bytes[: other.words[_SIZE]]
        return result

    def barrier(self) -> None:
        """Wait until every member has come here."""
        words = self._mine[self._round & 1].words
        words[_KIND] = _BYTES
        words[_SIZE] = 0
        self._complete_round(words, _BARRIER, "waiting at a barrier")

    def views(self, block: np.ndarray, token: int, what: object = "") -> _Views:
        """Return a context that yields every member's block, readable in place.

        It yields a list with None for ranks of other nodes. The blocks stay unchanged inside the
        context. Blocks may differ in shape and strides, not in dtype (the token stands for it).

        Raises
        ------
        MismatchError
            On entering: the ranks passed different tokens.
        """
        return _Views(self, block, token, what)

    def _offer(self, block: np.ndarray) -> np.ndarray | None:
        """Put a block into the own slot, or say there where it lies in the own arena.

        Returns what must stay alive until all have read it.
        """
        slot = self._mine[self._round & 1]
        if block.nbytes > INLINE_BYTES:
            lent = block if _in_arena(block) else _stage(block)
            offset = _memory.arena().offset_of(lent)
            assert offset is not None  # it is in the arena
            _describe(slot.words, _BLOCK_IN_ARENA, lent, offset)
            return lent
        key = (block.shape, block.dtype)
        found = slot.known.get(key)
        if found is None:
            inline: np.ndarray = np.ndarray(block.shape, block.dtype, slot.bytes)
            slot.description[:] = bytes(len(slot.description))
            _describe(slot.words, _BLOCK_INLINE, inline, 0)
            if block.ndim <= _DESCRIBED:
                slot.keep(key, (inline, bytes(slot.description)))
            inline[...] = block
            return None
        inline, slot.description[:] = found
        inline[...] = block
        return None

    def _block(self, rank: int, slot: _Slot, dtype: np.dtype[Any]) -> np.ndarray:
        """Return the block that another rank's slot holds or describes."""
        words = slot.words
        if words[_KIND] == _BLOCK_INLINE:
            return slot.array(dtype)
        ndim = words[_NDIM]
        shape = tuple(words[_SHAPE : _SHAPE + ndim])
        strides = tuple(words[_SHAPE + ndim : _SHAPE + 2 * ndim])
        offset = words[_OFFSET]
        reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s > 0)
        buffer = self._memory[rank].upto(offset + reach + dtype.itemsize)
        return np.ndarray(shape, dtype, buffer, offset, strides)

    def _complete_round(
        self, words: memoryview, token: int, what: object
    ) -> list[tuple[int, _Slot]]:
        """Publish the own slot, wait for the others' and compare tokens."""
        others = self._others[self._round & 1]
        self._round += 1
        number = self._round
        words[_TOKEN] = token
        _fence()
        words[_ROUND] = number
        for _, other in others:
            theirs = other.words
            if theirs[_ROUND] != number:
                self._wait(theirs, number)
        _fence()
        for _, other in others:
            if other.words[_TOKEN] != token:
                self._raise_mismatch(what)
        return others

    def _raise_mismatch(self, what: object) -> NoReturn:
        """Let every rank say what it was doing, and raise: all members, in the same round."""
        payload = str(what).encode()[:INLINE_BYTES]
        said = self.exchange(payload, _MISMATCH)
        doing = {r: bytes(text).decode(errors="replace") for r, text in enumerate(said) if text}
        raise MismatchError(
            "ranks are about to do different things together: "
            + "; ".join(f"rank {rank}: {text}" for rank, text in doing.items())
            + ". Every rank must make the same calls with the same layouts, shapes and dtypes"
        )

    def _wait(self, words: memoryview, number: int) -> None:
        for _ in range(self._spins):
            if words[_ROUND] == number:
                return
        for _ in range(_YIELDS):
            if words[_ROUND] == number:
                return
            os.sched_yield()
        deadline = time.monotonic() + _timeout()
        while words[_ROUND] != number:
            time.sleep(_SLEEP)
            if time.monotonic() > deadline:
                late = [r for r, o in self._others[(number - 1) & 1] if o.words[_ROUND] != number]
                raise CommunicationError(
                    f"rank {self.me} has waited {_timeout():g} s for ranks {late} to join an "
                    "operation; they are elsewhere in the program, or gone "
                    "(DISTARRAY_TIMEOUT sets the limit)"
                )


class _Views:
    """Every member's block, from entering to leaving; leaving waits until all have read."""

    __slots__ = ("_block", "_channel", "_lent", "_open", "_token", "_what")

    def __init__(self, channel: Channel, block: np.ndarray, token: int, what: object) -> None:
        self._channel = channel
        self._block = block
        self._token = token
        self._what = what
        self._lent: np.ndarray | None = None
        self._open = False

    def __enter__(self) -> list[np.ndarray | None]:
        channel, block = self._channel, self._block
        words = channel._mine[channel._round & 1].words
        self._lent = channel._offer(block)
        views: list[np.ndarray | None] = [None] * channel.size
        views[channel.me] = block
        lent = self._lent is not None
        for rank, other in channel._complete_round(words, self._token, self._what):
            lent = lent or other.words[_KIND] == _BLOCK_IN_ARENA
            views[rank] = channel._block(rank, other, block.dtype)
        self._open = lent
        return views

    def __exit__(self, *_: object) -> None:
        # What travelled inside the slots was copied there: nobody needs to wait for the readers.
        if self._open:
            self._channel.barrier()
        self._lent = None


def attach(
    members: tuple[int, ...],
    me: int,
    size: int,
    all_gather_object: Callable[[Any], list[Any]],
) -> Channel | None:
    """Make the channel of a communicator's ranks on this node; None where none share memory.

    Collective over the communicator, through ``all_gather_object``. All ranks get the same answer
    to whether there are channels.

    Parameters
    ----------
    members
        Ranks of the communicator on this node, ascending, this one among them.
    me, size
        This process's rank and the number of ranks.
    all_gather_object
        Gathers one small object of every rank to every rank.
    """
    offer = None
    nonce = int.from_bytes(os.urandom(7), "little")
    if os.environ.get("DISTARRAY_SHARED_MEMORY", "1") != "0" and hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError):
            arena = _memory.arena()
            own = _memory.empty((max(2 * _SLOT, _memory.POOLED_BYTES),), np.uint8)
            own[: 2 * _SLOT] = 0
            slots = [_Slot(memoryview(own), i * _SLOT) for i in range(2)]
            slots[0].words[_TOKEN] = nonce
            offer = (os.getpid(), arena.file, arena.identity, arena.offset_of(own), nonce)
    everyone = all_gather_object((offer, len(members)))
    if all(alone == 1 for _, alone in everyone) and size > 1:
        return None
    offers = [theirs for theirs, _ in everyone]
    peers: dict[int, tuple[_PeerMemory, int]] = {}
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
    return Channel(members, me, size, own, peers)


def _reach(offer: tuple[int, int, int, int, int]) -> tuple[_PeerMemory, int]:
    """Map a peer's memory and prove that it is the peer's."""
    process, file, identity, offset, nonce = offer
    memory = _peers.get((process, file, identity))
    if memory is None:
        memory = _PeerMemory(f"/proc/{process}/fd/{file}")
    if memory.slot(offset, 0).words[_TOKEN] != nonce:
        raise ValueError("another process's memory")
    _peers[process, file, identity] = memory
    return memory, offset


def _describe(words: memoryview, kind: int, block: np.ndarray, offset: int) -> None:
    ndim = block.ndim
    words[_KIND] = kind
    words[_SIZE] = block.itemsize
    words[_NDIM] = ndim
    words[_OFFSET] = offset
    for axis, (length, stride) in enumerate(zip(block.shape, block.strides, strict=True)):
        words[_SHAPE + axis] = length
        words[_SHAPE + ndim + axis] = stride


def _in_arena(block: np.ndarray) -> bool:
    return block.ndim <= _MAX_NDIM and _memory.arena().offset_of(block) is not None


def _stage(block: np.ndarray) -> np.ndarray:
    staged = _memory.empty(block.shape, block.dtype)
    if _memory.arena().offset_of(staged) is None:
        staged = _memory.empty((_memory.POOLED_BYTES,), np.uint8)[: block.nbytes]
        staged = staged.view(block.dtype).reshape(block.shape)
    copy_box(staged, block)
    return staged


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def _timeout() -> float:
    return float(os.environ.get("DISTARRAY_TIMEOUT", math.inf))


def _no_fence() -> None:
    """Nothing: x86 processors make stores visible in order (Intel SDM 3A, 9.2)."""


def _fence() -> None:
    """Order this process's memory accesses; replaced on first use by what the processor needs."""
    global _fence
    if platform.machine() in ("x86_64", "AMD64", "i686"):
        _fence = _no_fence
    else:
        from distarray.comm._kernels_cpu import memory_fence

        _fence = memory_fence
    _fence()
