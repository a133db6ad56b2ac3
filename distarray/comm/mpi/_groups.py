"""Groups of ranks, and what MPI and this node hold for them, made once and when needed."""

from __future__ import annotations

import pickle
import threading
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from distarray.comm._agreement import mismatch_error, name_ranks
from distarray.comm._launcher import node_name
from distarray.comm.failures._forks import FORKED, Barred, forget_in_child
from distarray.comm.failures._waits import Meeting, count_by, join_next, waiting
from distarray.comm.mpi._envelopes import MOST_RANKS, Envelopes, Fill, reduce_tokens
from distarray.comm.mpi._start import import_mpi
from distarray.comm.shared_memory._channel import Channel, attach
from distarray.errors import CommunicationError

if TYPE_CHECKING:
    from mpi4py import MPI

_OWN, _EXPORTED, _COPY = 1, 2, 3
"""What a communicator is for: keeps apart the making of those of the same ranks."""

_KINDS: Final = 4  # more than there are
_GROUPS: Final = 8191  # MPI's tags reach to 32767 at least


class Base:
    """The ranks of an MPI communicator, which groups are made from; nothing is sent through it.

    Groups are made from the communicator, so that threads with one each may make theirs at the same
    time, or, once it has been freed, from the MPI world, where that has all the ranks.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        mpi = import_mpi()
        self.rank: int = comm.Get_rank()
        self.ranks = tuple(range(comm.Get_size()))
        self._groups: dict[tuple[int, ...], Group] = {}
        self._lock = threading.Lock()
        group, world = comm.Get_group(), mpi.COMM_WORLD.Get_group()
        numbers = group.Translate_ranks(None, world)
        known = self._in_world = mpi.UNDEFINED not in numbers
        self._parent: MPI.Intracomm = comm
        self._is_world = comm == mpi.COMM_WORLD
        self._kind = "communicator" if self._is_world else "communicator of another"
        self._numbers = numbers if known else list(self.ranks)
        group.Free()
        world.Free()
        if len(self.ranks) > 1:
            forget_in_child(self)

    def forget(self) -> None:
        """Make no more groups."""
        self._parent = FORKED

    def leave_comm(self) -> None:
        """Make further groups from the MPI world, as the communicator is being freed."""
        if self._in_world and self._parent is not FORKED:
            self._parent = import_mpi().COMM_WORLD

    def group(self, ranks: tuple[int, ...]) -> Group:
        """Return the group of some ranks, this one among them; the same one every time."""
        with self._lock:
            group = self._groups.get(ranks)
            if group is None:
                group = self._groups[ranks] = Group(self, ranks)
            return group

    def create(self, ranks: tuple[int, ...], kind: int) -> tuple[MPI.Intracomm, str]:
        """Return a new communicator of some ranks, and its name; collective over these."""
        mpi = import_mpi()
        parent = self._parent
        members = self.world_ranks(ranks) if parent == mpi.COMM_WORLD else ranks
        everyone = parent.Get_group()
        chosen = everyone.Incl(members)
        meeting = self.meeting(ranks, f"{self._kind} {kind}")
        # Threads may make communicators of different ranks at the same time.
        tag = zlib.crc32(repr(list(members)).encode()) % _GROUPS * _KINDS + kind
        try:
            with waiting(self.first_call(ranks), meeting):
                comm = parent.Create_group(chosen, tag)
                if meeting is None:
                    return comm, ""
                # Threads make those of other communicators in any order.
                number = meeting.number if self._is_world else comm.bcast(meeting.number)
                return comm, f"{self._kind} {kind}.{number}"
        finally:
            chosen.Free()
            everyone.Free()

    def world_ranks(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """Return the numbers of some ranks in the MPI world; here, where it lacks some."""
        return tuple(self._numbers[rank] for rank in ranks)

    def meeting(self, ranks: tuple[int, ...], what: str) -> Meeting | None:
        """Return the next meeting of some ranks for something, which this rank joins now.

        None where the MPI world does not have all the ranks.
        """
        if not self._in_world:
            return None
        members = self.world_ranks(ranks)
        return join_next(f"{what} of ranks {members}", members)

    def first_call(self, ranks: tuple[int, ...]) -> str:
        """Return what some ranks do in a meeting, for messages."""
        return f"the first call of {name_ranks(self.world_ranks(ranks))} together"


class Group:
    """Ranks in an order, and their communicators.

    ``ranks`` are numbers in the base communicator, ``world_ranks`` the same in the MPI world, and
    ``rank`` this process's position among them. Once ``connect`` was called, ``channel`` is the
    shared memory with those on this node, and ``ranks_per_node`` how many consecutive ones share a
    node; both are None where there is nothing to tell. ``background`` is the duplicate for work in
    the background, once there has been such.
    """

    finds_gone = False

    def __init__(self, base: Base, ranks: tuple[int, ...]) -> None:
        self.base = base
        self.ranks = ranks
        self.world_ranks = base.world_ranks(ranks)
        self.rank = ranks.index(base.rank)
        self.channel: Channel | None = None
        self.ranks_per_node: int | None = None
        self._connected = len(ranks) == 1
        self._connecting = threading.Lock()
        self._reach_on_device: tuple[bool, bool] | None = None
        self.verdicts: list[Any] = []  # not shared with duplicates, which other threads may use
        self._own: MPI.Intracomm | None = None
        self._name = ""
        self._place = ""
        self.joined = 1  # the call that made the communicator
        """How many collective calls of MPI this rank has made through ``mpi``, and to make it."""
        self._exported: MPI.Intracomm | None = None
        self.sends_envelopes = len(ranks) <= MOST_RANKS
        """Whether tokens travel in envelopes, and not by a reduction of their own."""
        self._envelopes: Envelopes | None = None
        self.background: Group | None = None
        if len(ranks) > 1:
            forget_in_child(self)

    def forget(self) -> None:
        """Send nothing more."""
        self._own = self._exported = self._envelopes = FORKED
        self._connected = True

    @property
    def mpi(self) -> MPI.Intracomm:
        """The communicator that the library sends through; the first use is collective."""
        self.connect()
        return self._own_comm()

    def _own_comm(self) -> MPI.Intracomm:
        if self._own is None:
            self._set_comm(*self.base.create(self.ranks, _OWN))
        assert self._own is not None  # it has just been made
        return self._own

    def _set_comm(self, comm: MPI.Intracomm, name: str) -> None:
        self._own, self._name = comm, name
        if name:
            self._place = f"call through {name} of ranks {self.world_ranks}"
            count_by(self._place, self)

    def next_call(self) -> Meeting | None:
        """Return the next of them as a meeting, which this rank joins now.

        None where the MPI world does not have all the ranks.
        """
        self.joined += 1
        return self._meeting()

    def _meeting(self) -> Meeting | None:
        """Return the one that this rank has joined last."""
        return Meeting(self._place, self.joined, self.world_ranks) if self._place else None

    @property
    def envelopes(self) -> Envelopes:
        """The envelopes of few ranks; the first use is collective."""
        if self._envelopes is None:
            self._envelopes = Envelopes(self.mpi, self._meeting)
        return self._envelopes

    def exchange(self, payload: bytes | memoryview, token: int, what: object = "") -> list[Any]:
        """Give every rank's short payload to every rank, in envelopes."""
        envelopes = self._envelopes or self.envelopes
        self.joined += 1
        try:
            found = envelopes.exchange(payload, token, what)
        except BaseException as error:
            self._leave(error)
            raise
        if found is None:
            self._raise_mismatch(what)
        return found

    def all_to_all(
        self,
        parts: Sequence[np.ndarray],
        into: Sequence[np.ndarray],
        token: int,
        what: object,
        fill: Fill | None,
    ) -> None:
        """Send each rank its part, once ``fill()`` has set it, in an envelope or after it."""
        envelopes = self._envelopes or self.envelopes
        self.joined += 1
        if fill is not None:
            fill()
        try:
            agree = envelopes.all_to_all(parts, into, token, what)
        except BaseException as error:
            self._leave(error)
            raise
        if not agree:
            self._raise_mismatch(what)

    def _leave(self, error: BaseException) -> None:
        """Send nothing more where an exchange has been left: its messages would meet the next."""
        if not isinstance(error, CommunicationError):  # all that was sent has come then
            self._own = self._envelopes = _unfinished("an exchange", self.world_ranks, error)

    def compare(self, token: int, what: object, fill: Fill | None = None) -> None:
        """Check that all ranks do the same: that they pass the same token, below 2**62.

        ``fill()`` is called meanwhile.
        """
        if self.sends_envelopes:
            self.exchange(b"", token, what)
            if fill is not None:
                fill()
            return
        mpi = self.mpi
        with waiting(what, self.next_call()):
            if not reduce_tokens(mpi, token, fill):
                self._raise_mismatch(what)

    def _raise_mismatch(self, what: object) -> NoReturn:
        """Let every rank say what it was doing, and raise: all of them, in the same call."""
        with waiting(what, self._meeting()):
            everyone = all_gather_object(self.mpi, str(what))
        raise mismatch_error(everyone, self.world_ranks)

    def export(self) -> MPI.Intracomm:
        """Return a communicator for the user; the first use is collective."""
        if self._exported is None:
            self._exported, _ = self.base.create(self.ranks, _EXPORTED)
        return self._exported

    def duplicate(self) -> Group:
        """Return another group of the same ranks with communicators of its own; collective."""
        copy = Group(self.base, self.ranks)
        copy._set_comm(*self.base.create(self.ranks, _COPY))
        return copy

    def connect(self) -> Channel | None:
        """Return the channel through shared memory; the first use is collective."""
        if not self._connected:
            with self._connecting:
                if not self._connected:
                    try:
                        self._connect()
                    except BaseException as error:
                        self._own = _unfinished("the first call", self.world_ranks, error)
                        raise
                    finally:
                        self._connected = True
        return self.channel

    def _connect(self) -> None:
        mpi = self._own_comm()
        world_rank = import_mpi().COMM_WORLD.Get_rank()
        meeting = self.base.meeting(self.ranks, f"channel of {self._name}")
        with waiting(self.base.first_call(self.ranks), meeting):
            colours = all_gather_object(mpi, node_name(world_rank))
            mine = colours[self.rank]
            self.ranks_per_node = _ranks_per_node(self.ranks, colours)
            if len(set(colours)) == len(colours):
                return
            members = tuple(i for i, colour in enumerate(colours) if colour == mine)
            self.channel = attach(
                members, self.rank, self.world_ranks, lambda obj: all_gather_object(mpi, obj)
            )
        if self.channel is not None and meeting is not None:
            self.channel.count_rounds_as(f"round of {meeting.place}")

    def reach_on_device(self) -> tuple[bool, bool]:
        """Tell whether all ranks, and whether any two, read each other's blocks on GPUs in place.

        The same on all ranks; the first call is collective.
        """
        if self._reach_on_device is None:
            channel = self.connect()
            near = () if channel is None else channel.find_peers_on_device()
            everyone = all_gather_object(
                self.mpi,
                (
                    bool(near) and min(map(len, near)) == len(self.ranks),
                    bool(near) and max(map(len, near)) > 1,
                ),
            )
            self._reach_on_device = (
                all(complete for complete, _ in everyone) or len(self.ranks) == 1,
                any(some for _, some in everyone),
            )
        return self._reach_on_device

    def free(self) -> None:
        """Free the communicators; collective."""
        if self.background is not None:
            self.background.free()
        if self._envelopes is not None:
            self._envelopes.free()
            self._envelopes = None
        for comm in (self._own, self._exported):
            if comm is not None:
                comm.Free()
        self._own = self._exported = self.background = None
        self.channel, self._connected = None, len(self.ranks) == 1


def _unfinished(what: str, ranks: Sequence[int], error: BaseException) -> Any:
    """Return what stands for a communicator where a rank has not finished a call."""
    return Barred(
        f"{what} of {name_ranks(ranks)} together ended on this rank by "
        f"{type(error).__name__}, and the others are out of step with it: let the program end "
        "where that is raised"
    )


def _ranks_per_node(ranks: tuple[int, ...], colours: list[str]) -> int | None:
    """Return into runs of how many consecutive ranks the nodes divide them.

    None on a single node; 1 where no such number says it.
    """
    if len(set(colours)) == 1:
        return None
    for per_node in sorted(set(Counter(colours).values()), reverse=True):
        runs: dict[int, set[str]] = {}
        for rank, colour in zip(ranks, colours, strict=True):
            runs.setdefault(rank // per_node, set()).add(colour)
        if len(runs) == len(set(colours)) and all(len(found) == 1 for found in runs.values()):
            return per_node
    return 1


def all_gather_bytes(comm: MPI.Intracomm, mine: bytes) -> list[bytes]:
    """Return every rank's bytes."""
    sizes = np.empty(comm.Get_size(), np.int64)
    with waiting("MPI's Allgather"):
        comm.Allgather(np.array([len(mine)], np.int64), sizes)
        ends = np.cumsum(sizes)
        everyone = np.empty(int(ends[-1]), np.uint8)
        comm.Allgatherv(np.frombuffer(mine, np.uint8), [everyone, sizes.tolist()])
    starts = ends - sizes
    return [everyone[a:b].tobytes() for a, b in zip(starts, ends, strict=True)]


def all_gather_object(comm: MPI.Intracomm, obj: Any) -> list[Any]:
    """Return every rank's object."""
    return [pickle.loads(item) for item in all_gather_bytes(comm, pickle.dumps(obj))]
