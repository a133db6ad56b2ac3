"""The shared-memory channel of a communicator: ranks of one node read each other's blocks directly.

Each process publishes the memory file behind its arena (``_memory``); the others of the node map
it read-only. A round works through two alternating slots per rank in that memory: a rank fills
its slot, then sets the slot's round number, and waits until every other rank's slot shows the
same number. A slot is written again two rounds later, and a rank can only be two rounds ahead
once everyone has read the slot, so a round needs no closing barrier. A slot carries a small
payload inline, or says where in its owner's arena a large block lies; then the readers' closing
round tells the owners that their blocks may change. Blocks outside of the arena are copied into it;
such copies, unless they are large, wait for the next round instead. Of a block on a GPU the slot
has what other processes need to map it (`cuda/_ipc`).

Every slot names what its rank believes it is doing (a token). Ranks that disagree find out in the
round itself, all of them, and raise the same error instead of exchanging garbage.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import platform
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NoReturn

import numpy as np

from distarray.comm import _backend, _requests
from distarray.comm._agreement import mismatch_error
from distarray.comm._launcher import count_local_ranks
from distarray.comm._packing import copy_box
from distarray.comm._settings import setting
from distarray.comm.cuda import _ipc
from distarray.comm.failures._forks import FORKED, Barred, forget_in_child
from distarray.comm.failures._presence import message_of_gone
from distarray.comm.failures._waits import Meeting, count_by, waiting
from distarray.comm.failures._watchdog import timeout, timeout_message
from distarray.comm.kernels import cores_of, kernel, share_cores
from distarray.comm.shared_memory import _arena
from distarray.comm.shared_memory._slots import (
    BARRIER,
    BLOCK_IN_ARENA,
    BLOCK_INLINE,
    BLOCK_ON_DEVICE,
    BLOCK_STAGED,
    BYTES,
    CORE,
    GONE,
    INLINE_BLOCK,
    INLINE_BYTES,
    KIND,
    MAX_NDIM,
    MISMATCH,
    OFFSET,
    PROBE,
    ROUND,
    SIZE,
    SLOT,
    TOKEN,
    PeerMemory,
    Slot,
    describe,
)
from distarray.errors import CommunicationError, OutOfMemoryError
from distarray.typing import Buffer

# Measured on Zen 5: 200 reads take 4 us, a round about as long; an offer takes 0.5 us where nobody
# takes the core, so that 2000 are a millisecond. Any numbers of these sizes do.
_SPINS = 200  # reads of a flag before the core is offered to others
_SPINS_APART = 2000  # so many more, 50 us, where it is known that the late rank has another core
_SPINS_CROWDED = 10  # the same where the node has more ranks than cores
_YIELDS = 2000  # offers before sleeping in between
_MOST_REFUSED = 20
"""Offers in a row that nobody has taken before a rank sleeps where ranks share cores: Linux may
give each a group of its own (sched(7), "autogroup") and hand nothing over to others, or give it to
other programs. A barrier of 4 ranks on two cores took 1.7 ms then, and 0.12 ms with sleep."""
_TAKEN_SECONDS = 2.5e-6
"""Seconds from which on an offer has been taken: two switches take 5 us, none 1 us (measured on a
virtual machine; on hardware both are quicker by half)."""
_SLEEP = 50e-6  # seconds, about what Linux makes of shorter ones (its timers have 50 us of slack)

_CORE_TOLD = 16  # rounds between two times that a rank says on which core it is, in 0.3 us
_MOVE_EVERY = 1e-3
"""Least seconds between two moves to another core; mostly one or two suffice."""
_MOVE_SHARE = 0.01
"""Of the time that moves may take: 20 us each where a core is idle, but where other programs keep
all busy a rank that moves waits for its turn there, up to 80 ms as measured."""

_KEPT_BYTES = 1024 * 1024
"""Copies up to this size are kept for their readers until the next round, instead of waiting for
them: memory against a few us. Not measured; any number of this size does."""


_WAITING: Final[Any] = Barred(
    "another thread of this rank waits for other ranks at the same time; let one thread make all "
    "calls that need other ranks, or use a mesh over a communicator of its own in each, as by "
    "init_device_mesh(..., comm=MPI.COMM_WORLD.Dup())"
)


class Channel:
    """Rounds among the ranks of a communicator that share this node's memory.

    ``members`` are those on this node, ascending, of which this process is ``me``; ``world_ranks``
    has the number in the MPI world of every rank of the communicator. ``own`` is this rank's two
    slots, as writable memory; ``peers`` has, for each other member, its memory and the offset of
    its slots. ``is_crowded`` says whether this node has more ranks than cores, ``is_complete``
    whether every rank of the communicator is on it.
    """

    finds_gone = True

    def __init__(
        self,
        members: tuple[int, ...],
        me: int,
        world_ranks: tuple[int, ...],
        own: np.ndarray,
        peers: dict[int, tuple[PeerMemory, int]],
        is_crowded: bool = False,
    ) -> None:
        self.members = members
        self.me = me
        self.size = len(world_ranks)
        self.is_complete = len(members) == len(world_ranks)
        self._world_ranks = world_ranks
        self.joined = 0
        """How many rounds this rank has joined."""
        self._place = ""
        self._is_crowded = is_crowded
        self._spins = _SPINS_CROWDED if self._is_crowded else _SPINS
        self._next_move = 0.0
        self._keep = own
        self._unread: Buffer | None = None
        """A copy that others may read until the next round has begun."""
        self._fence = _memory_fence()
        self._memory = {rank: memory for rank, (memory, _) in peers.items()}
        self._on_device: tuple[frozenset[int], ...] | None = None
        mine = own.data
        self._mine = self._slots = [Slot(mine, i * SLOT) for i in range(2)]
        self._others = [
            [(rank, memory.slot(offset, i)) for rank, (memory, offset) in peers.items()]
            for i in range(2)
        ]
        forget_in_child(self)

    def forget(self) -> None:
        """Join no more rounds."""
        self._mine = self._others = FORKED
        _channels.discard(self)

    def count_rounds_as(self, place: str) -> None:
        """Let others be told of long waits for rounds, which `place` names alike on all ranks."""
        self._place = place
        count_by(place, self)

    def _in_world(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """Return what the MPI world calls some ranks of the communicator."""
        return tuple(self._world_ranks[rank] for rank in ranks)

    def exchange(
        self, payload: bytes | memoryview, token: int, what: object = ""
    ) -> list[memoryview | None]:
        """Give every member's payload to every member; None for ranks of other nodes.

        The payload has at most ``INLINE_BYTES`` bytes. What is returned is valid until the next
        round on this channel. ``str(what)`` says in errors what this rank was doing.
        """
        slot = self._mine[self.joined & 1]
        n = len(payload)
        slot.bytes[:n] = payload
        words = slot.words
        words[KIND] = BYTES
        words[SIZE] = n
        result: list[memoryview | None] = [None] * self.size
        result[self.me] = slot.bytes[:n]
        for rank, other in self._complete_round(words, token, what):
            result[rank] = other.bytes[: other.words[SIZE]]
        return result

    def barrier(self) -> None:
        """Wait until every member has come here."""
        words = self._mine[self.joined & 1].words
        words[KIND] = BYTES
        words[SIZE] = 0
        self._complete_round(words, BARRIER, "waiting at a barrier")

    def find_peers_on_device(self) -> tuple[frozenset[int], ...]:
        """Return, for each member, the ranks whose blocks on GPUs it and they can read in place.

        The first call is collective over the members, of which each is bound to a GPU.
        """
        if self._on_device is None:
            self._on_device = _ipc.find_peers(
                self.members,
                self._memory,
                lambda data: self.exchange(data, PROBE, "looking for what GPUs share"),
            )
        return self._on_device

    def reached(self, device: str) -> Collection[int]:
        """Return the ranks whose blocks ``views`` yields, where these are on "cpu" or "cuda"."""
        return self.members if device == "cpu" else self._near

    @property
    def _near(self) -> frozenset[int]:
        return self.find_peers_on_device()[self.members.index(self.me)]

    def views(
        self, block: Buffer, token: int, what: object = "", *, closing: bool = True
    ) -> _Views:
        """Return a context that yields every member's block, readable in place.

        It yields a list with None for ranks of other nodes, and, of blocks on GPUs, for ranks that
        are not ``find_peers_on_device``. The blocks stay unchanged inside the context. Blocks may
        differ in shape and strides, not in dtype or kind of device (the token stands for it).
        """
        views = _Views(self, block, token, what, closing)
        if views.on_device:
            self.find_peers_on_device()
        return views

    def _offer(self, block: np.ndarray) -> np.ndarray | None:
        """Put a block into the own slot, or say there where it lies in the own arena.

        Returns what must stay alive until all have read it.
        """
        slot = self._mine[self.joined & 1]
        if block.nbytes <= INLINE_BLOCK:
            slot.put(block)
            return None
        lent, kind = block, BLOCK_IN_ARENA
        offset = _arena.offset_of(block) if block.ndim <= MAX_NDIM else None
        if offset is None:
            lent = _stage(block)
            offset = _arena.offset_of(lent)
            assert offset is not None  # it is in the arena
            if block.nbytes <= _KEPT_BYTES:
                kind = BLOCK_STAGED
        describe(slot.words, kind, lent, offset)
        return lent

    def _lend(self, block: Buffer) -> Buffer:
        """Say in the own slot where a block on a GPU lies; return what must stay alive."""
        slot = self._mine[self.joined & 1]
        if len(self._near) == 1:  # nobody reads it
            slot.words[KIND] = BLOCK_ON_DEVICE
            return block
        lent, offset, block = _ipc.lend(block)
        slot.bytes[: _ipc.NBYTES] = lent.pack()
        describe(slot.words, BLOCK_ON_DEVICE, block, offset)
        return block

    def _block(self, rank: int, slot: Slot, dtype: np.dtype[Any]) -> Buffer:
        """Return the block that another rank's slot holds or describes."""
        words = slot.words
        if words[KIND] == BLOCK_INLINE:
            return slot.array(dtype)
        if words[KIND] != BLOCK_ON_DEVICE:
            return slot.lent(self._memory[rank], dtype)
        shape, strides = slot.extent()
        lent = _ipc.Lent.unpack(slot.bytes)
        return _ipc.borrow(self._memory[rank], lent, words[OFFSET], shape, strides, dtype)

    def _complete_round(
        self, words: memoryview, token: int, what: object
    ) -> list[tuple[int, Slot]]:
        """Publish the own slot, wait for the others' and compare tokens."""
        others = self._others[self.joined & 1]
        number = self.joined + 1
        if not number % _CORE_TOLD:
            self._tell_core()
        words[TOKEN] = token
        fence = self._fence
        if fence is not None:
            fence()
        words[ROUND] = number  # with the next line: an interrupt before these joins no round
        self.joined = number
        for _, other in others:
            theirs = other.words
            if theirs[ROUND] != number:
                self._wait(theirs, number, what)
        if fence is not None:
            fence()
        for _, other in others:
            if other.words[TOKEN] != token:
                self._raise_mismatch(what)
        return others

    def _raise_mismatch(self, what: object) -> NoReturn:
        """Let every rank say what it was doing, and raise: all members, in the same round."""
        payload = str(what).encode()[:INLINE_BYTES]
        said = self.exchange(payload, MISMATCH)
        raise mismatch_error(
            [bytes(said[rank] or b"").decode(errors="replace") for rank in self.members],
            self._in_world(self.members),
        )

    def leave(self) -> None:
        """Tell those who wait for this rank that it will not come."""
        for slot in self._slots:
            slot.words[GONE] = 1

    def _raise_gone(self, number: int, what: object) -> None:
        """Raise if ranks that have not joined a round will not join it."""
        if self._fence is not None:
            self._fence()  # a rank that is gone has joined every round that it will join
        others = self._others[(number - 1) & 1]
        gone = [r for r, slot in others if slot.words[GONE] and slot.words[ROUND] != number]
        if gone:
            me = self._world_ranks[self.me]
            raise CommunicationError(message_of_gone(me, self._in_world(gone), what))

    def _wait(self, words: memoryview, number: int, what: object) -> None:
        for _ in range(self._spins):
            if words[ROUND] == number:
                return
        mine, self._mine = self._mine, _WAITING
        try:
            self._wait_long(words, number, what)
        finally:
            self._mine = mine

    def _wait_long(self, words: memoryview, number: int, what: object) -> None:
        if not self._is_crowded and self._is_apart(words):
            for _ in range(_SPINS_APART):
                if words[ROUND] == number:
                    return
        refused, since = 0, time.perf_counter()
        for _ in range(_YIELDS):
            if words[ROUND] == number:
                return
            os.sched_yield()
            now = time.perf_counter()
            refused = refused + 1 if now - since < _TAKEN_SECONDS else 0
            if self._is_crowded and refused == _MOST_REFUSED:
                break
            since = now
        deadline = time.monotonic() + timeout()
        meeting = None
        if self._place:
            meeting = Meeting(self._place, number, self._in_world(self.members))

        def late() -> tuple[int, ...]:
            others = self._others[(number - 1) & 1]
            return self._in_world([rank for rank, slot in others if slot.words[ROUND] != number])

        with waiting(what, meeting, late):
            while words[ROUND] != number:
                time.sleep(_SLEEP)
                _requests.progress()
                if words[GONE]:
                    self._raise_gone(number, what)
                if time.monotonic() > deadline:
                    raise CommunicationError(timeout_message(self._world_ranks[self.me]))

    def _is_apart(self, words: memoryview) -> bool:
        """Tell whether a late rank runs on another core than this one, which moves if need be.

        Two ranks that wait for each other in turn by `sched_yield` may share a core for long while
        another one is idle: Linux takes both for too warm in its caches to be moved, and each round
        takes 10 to 30 us then, by switches from one to the other (measured on two cores of a
        virtual machine, where a round on two cores takes 1 us). The rank that waits goes, to a core
        on which no other has run lately, and is free to be moved again at once.
        """
        core = self._tell_core()
        if core < 0 or words[CORE] != core + 1:
            return True
        started = time.monotonic()
        if started < self._next_move:
            return False
        allowed = os.sched_getaffinity(0)
        free = allowed.difference([slot.words[CORE] - 1 for _, slot in self._others[0]])
        if not free:
            return False
        try:
            os.sched_setaffinity(0, {sorted(free)[self.me % len(free)]})
        except OSError:  # where that is not allowed
            return False
        finally:
            os.sched_setaffinity(0, allowed)
            now = time.monotonic()
            self._next_move = now + max(_MOVE_EVERY, (now - started) / _MOVE_SHARE)
        return True

    def _tell_core(self) -> int:
        """Say in the own slots on which core this rank runs, and return it."""
        core = _current_core()
        for slot in self._slots:
            slot.words[CORE] = core + 1
        return core


class _Views:
    """Every member's block, from entering to leaving; leaving waits until all have read."""

    def __init__(
        self, channel: Channel, block: Buffer, token: int, what: object, closing: bool
    ) -> None:
        self._channel = channel
        self._block = block
        self._token = token
        self._what = what
        self._closing = closing
        self.on_device = not _backend.is_numpy(block)
        self._lent: Buffer | None = None
        self._open = False

    def __enter__(self) -> list[Buffer | None]:
        channel, block = self._channel, self._block
        words = channel._mine[channel.joined & 1].words
        self._lent = channel._lend(block) if self.on_device else channel._offer(block)
        views: list[Buffer | None] = [None] * channel.size
        views[channel.me] = block
        lent = self._lent is not None and words[KIND] == BLOCK_IN_ARENA
        others = channel._complete_round(words, self._token, self._what)
        channel._unread = None  # everybody has left the round before
        if self.on_device:
            others = [(rank, other) for rank, other in others if rank in channel._near]
            lent = max(map(len, channel.find_peers_on_device())) > 1  # all wait, or nobody
        for rank, other in others:
            lent = lent or other.words[KIND] == BLOCK_IN_ARENA
            views[rank] = channel._block(rank, other, block.dtype)
        self._open = lent and self._closing
        return views

    def __exit__(self, *_: object) -> None:
        # What travelled inside the slots was copied there, and other copies are kept: nobody needs
        # to wait for the readers.
        if self.on_device:
            _ipc.await_reads()
        if self._open:
            self._channel.barrier()
        else:
            self._channel._unread = self._lent
        self._lent = None


def _stage(block: np.ndarray) -> np.ndarray:
    """Return a copy of a block in the arena."""
    taken = _arena.take(block.nbytes)
    if taken is None:
        raise OutOfMemoryError(
            f"cannot have {block.nbytes} bytes that other processes of the node can read: the "
            "address space is limited (ulimit -v); raise the limit"
        )
    staged = taken.view(block.dtype).reshape(block.shape)
    copy_box(staged, block)
    return staged


def _is_crowded(ranks: Collection[frozenset[int]]) -> bool:
    """Tell whether a node has more ranks than cores: these, or all that the launcher started here.

    Launchers may give each rank a core of its own: so what they may use themselves counts as well.
    """
    together = frozenset().union(*ranks)
    launched = max(len(together), len(cores_of(os.getppid())))
    return len(ranks) > len(together) or count_local_ranks() > launched


def _find_core() -> Callable[[], int]:
    """Return what tells on which core this thread runs: -1 where nothing does."""
    try:
        # Not by `CDLL`, which lets other threads run and so takes three times as long.
        found: Callable[[], int] = ctypes.PyDLL(None).sched_getcpu
    except (OSError, AttributeError):
        return lambda: -1
    return found if hasattr(os, "sched_setaffinity") else lambda: -1


_current_core = _find_core()


def _memory_fence() -> Callable[[], None] | None:
    """Return what orders this process's memory accesses; None where the processor does.

    x86 makes stores visible in order (Intel SDM 3A, 9.2).
    """
    if platform.machine() in ("x86_64", "AMD64", "i686"):
        return None
    fence = kernel("distarray.comm.kernels._copy", "memory_fence").load()
    if fence is None:
        raise CommunicationError(
            "to read each other's memory ranks need a kernel on this processor: install numba, or "
            "set DISTARRAY_SHARED_MEMORY=0"
        )
    return fence


# --- making a channel ----------------------------------------------------------------------------

# Whether processes can map each other's memory is found out by trying: each maps every peer's and
# reads a number that only the peer could have written there.

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
    everyone = all_gather_object((offer, len(members), cores_of()))
    cores = {rank: everyone[rank][-1] for rank in members}
    share_cores(cores[me], cores.values())
    if all(alone == 1 for _, alone, _ in everyone) and len(world_ranks) > 1:
        return None
    offers = [theirs for theirs, *_ in everyone]
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
    crowded = _is_crowded(cores.values())
    channel = Channel(members, me, world_ranks, own, peers, crowded)
    if not _channels:
        atexit.register(_leave_all)
    _channels.add(channel)
    return channel


_channels: weakref.WeakSet[Channel] = weakref.WeakSet()


def _leave_all() -> None:
    for channel in list(_channels):
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
