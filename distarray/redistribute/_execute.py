"""Execution of a plan on this rank's block: what moves bytes of this floor, with `_packed`.

A plan's steps are bound once to this rank (its boxes, its communicator, a token that names the
step) and cached, so that a repeated redistribution costs a lookup and the copies. Within a node
the blocks of the other ranks are read in place and every byte is copied once, from its owner's
block to its destination; sums are formed while reading. Between nodes pieces are packed,
exchanged by one all-to-all(v) and unpacked.

Peak memory beyond source and destination: none within a node where the source block came from
the library's pool (a copy of it otherwise); between nodes the packed bytes sent and received at
a time, which `packed_at_a_time` bounds by exchanging in rounds, and ``max_bytes`` where it is less.
Of a source that may be overwritten the messages of several rounds lie in both blocks.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import prod
from time import perf_counter
from typing import Any

import numpy as np

from distarray.comm import (
    Communicator,
    DeviceMesh,
    Purpose,
    _backend,
    _memory,
    copy_box,
    copy_boxes,
    fill,
    pause_logs,
    plain_ufunc,
    recording,
    reduce_boxes,
    reduce_into,
    token,
    unheard,
)
from distarray.errors import MismatchError
from distarray.layout import REDUCTIONS, Layout, chunk, forget_recent, keep_recent, kept, recall
from distarray.layout import box as boxes
from distarray.redistribute._cost import DEFAULT_MODEL, CostModel
from distarray.redistribute._messages import Messages, region
from distarray.redistribute._plan import clear_planned, plan
from distarray.redistribute._schedule import receives
from distarray.redistribute._small_blocks import SmallBlocks, are_small
from distarray.redistribute._steps import (
    AllReduceStep,
    DirectAllReduceStep,
    ExchangeStep,
    LocalStep,
    Step,
)
from distarray.typing import Buffer, Shape

BoundStep = Callable[..., Buffer]
"""Function of a block and, optionally, the purpose, and whether the block may be overwritten."""

_READ_BY_ALL = 512 * 1024
"""Blocks that are reduced together and have no more bytes: every rank reads all of all.

Measured on two ranks of Zen 5: of blocks of 512 KiB that is as quick as to read parts, in two
rounds, of 32 KiB it takes a third of the time. All together count, as each rank reads all.
"""

_READ_SHARE = 8
"""Part of a block, one in so many, from which on it counts as read by others: to write zeros first
costs a tenth of what it costs to write over what they have read (`kernels._loop_nest`)."""


def is_mostly_read(sent: int, held: int) -> bool:
    """Tell whether others read most of a block, by the bytes that they read and those it has."""
    return _READ_SHARE * sent >= held


_ON_GPU = 0x1AD69E8B247F843C  # any number of 62 bits does
_PROGRAMS_KEPT = 4096  # any number of this size does
_programs: dict[tuple[Layout, Layout, np.dtype[Any], int | None, bool], tuple[BoundStep, ...]] = {}
_programs_lock = threading.Lock()


def redistribute_local(
    local: Buffer,
    src: Layout,
    dst: Layout,
    *,
    max_bytes: int | None = None,
    purpose: Purpose | None = None,
    background: bool = False,
    is_free: bool = False,
) -> Buffer:
    """Return this rank's block of ``dst``, given its block of ``src``.

    Collective over the processes of both meshes. The result never shares memory with ``local``,
    unless the layouts are the same: then it is ``local``.

    Parameters
    ----------
    local
        Block of shape ``src.local_shape()``.
    src, dst
        Layouts over device meshes, of one global shape.
    max_bytes
        Bound on the packed bytes that a rank sends and receives at a time.
    purpose
        What else the ranks must agree on.
    background
        Whether this runs in the background, which has communicators of its own.
    is_free
        Whether ``local`` may be overwritten, so that messages need no memory beside the blocks.

    Raises
    ------
    MismatchError
        The ranks ask for different redistributions, or for different purposes.
    """
    if src is dst:
        return local
    for step in bound_steps(src, dst, local.dtype, max_bytes, background):
        local = step(local, purpose, is_free)
        is_free = True
    return local


def redistributing(src: Layout, dst: Layout, dtype: np.dtype[Any]) -> Callable[[Buffer], Buffer]:
    """Return the function of a block that `redistribute_local` is for two layouts and a dtype."""
    steps = bound_steps(src, dst, dtype) if src is not dst else ()
    if len(steps) == 1:
        return steps[0]
    return partial(redistribute_local, src=src, dst=dst)


def redistribute_together(
    blocks: Sequence[Buffer],
    moves: Sequence[tuple[Layout, Layout]],
    bring: Callable[[Buffer, Layout, Layout], Buffer] = redistribute_local,
) -> list[Buffer]:
    """Return what ``bring``, `redistribute_local` or `read_local`, makes of each of several blocks.

    Those that are small travel in one round. Each move is a layout before and after; all are on one
    mesh, and no block is Partial.
    """
    found: dict[int, Buffer] = {}
    key: list[Any] = []
    for block, move in zip(blocks, moves, strict=True):
        key += *move, block.dtype
    together = _together(*key) if len(blocks) > 1 else None
    if together is not None and {np.ndarray}.issuperset(map(type, blocks)):
        found = together(blocks)
        if len(found) == len(blocks):
            return [*found.values()]
    return [
        found[i] if i in found else bring(block, *move)
        for i, (block, move) in enumerate(zip(blocks, moves, strict=True))
    ]


def read_local(local: Buffer, src: Layout, dst: Layout) -> Buffer:
    """Return what `redistribute_local` does, to be read: a view, where ``local`` has it all."""
    steps = bound_steps(src, dst, local.dtype)
    if len(steps) == 1 and isinstance(steps[0], _Local):
        return steps[0].view(local)
    return redistribute_local(local, src, dst)


def fetching(
    src: Layout, dst: Layout, dtype: np.dtype[Any]
) -> Callable[[np.ndarray, Shape, Purpose], np.ndarray | None] | None:
    """Return what gives all ranks the one block that has items, where no rank gets less.

    It is a function of the own block, the shape of the result and the purpose, and is collective.
    The result is read-only; None where that takes `redistribute_local`, on all ranks alike.
    """
    (step, *others) = bound_steps(src, dst, dtype)
    if others or not isinstance(step, _Exchange) or not step.takes_block:
        return None
    return step.fetch


Piece = tuple[tuple[slice, ...], Buffer]
"""Where in a block values belong, and the values where they lie."""


def read_in_place(
    local: Buffer, src: Layout, dst: Layout, *, purpose: Purpose | None = None
) -> AbstractContextManager[list[Piece]]:
    """Return a context that yields the pieces of this rank's block of ``dst``, without a copy.

    They tile it, and each lies in the block of a rank of the node. Inside the context they stay as
    they are; leaving it waits until all have read. Collective, and only where
    `reads_in_place` says so; the rest is as for `redistribute_local`.
    """
    (step,) = bound_steps(src, dst, local.dtype)
    assert isinstance(step, _Exchange)  # `reads_in_place` has found that out
    return step.pieces(local, purpose)


def reads_in_place(moves: Sequence[tuple[Layout, Layout, np.dtype[Any]]]) -> bool:
    """Tell whether ranks can read in place what several redistributions of one mesh bring.

    That is so where each is one exchange in host memory, without a reduction, among ranks that
    reach each other. All that exchange in any of them answer alike; the first call is collective.
    """
    mesh = moves[0][0].mesh
    assert isinstance(mesh, DeviceMesh)  # arrays live on no other
    mesh_axes: set[int] = set()
    for src, dst, dtype in moves:
        steps = bound_steps(src, dst, dtype)
        if len(steps) > 1 or not isinstance(steps[0], _Exchange) or steps[0].reduces:
            return False
        mesh_axes.update(steps[0].mesh_axes)
    return mesh.device == "cpu" and mesh.communicator(tuple(sorted(mesh_axes))).reaches_all()


def bound_steps(
    src: Layout,
    dst: Layout,
    dtype: np.dtype[Any],
    max_bytes: int | None = None,
    background: bool = False,
) -> tuple[BoundStep, ...]:
    """Return the plan's steps bound to this rank.

    With ``background`` they use communicators of their own, because what runs in the background
    must not share one with the foreground.
    """
    key = (src, dst, dtype, max_bytes, background)
    program = _programs.get(key)
    if program is None:
        program = recall(_programs, key)
    if program is None:
        model = _model(src, dst)
        steps = plan(src.abstract, dst.abstract, dtype, max_bytes=max_bytes, model=model).steps
        program = tuple(_bind(step, src, dst, background) for step in steps)
        if src.is_counted or dst.is_counted:
            keep_recent(_programs, key, program)
            return program
        with _programs_lock:
            if len(_programs) >= _PROGRAMS_KEPT:
                for old in list(_programs)[: _PROGRAMS_KEPT // 4]:
                    del _programs[old]
            _programs[key] = program
    return program


def clear_plans() -> None:
    """Forget all plans, and what is bound of them on this process."""
    with _programs_lock:
        _programs.clear()
    _together.cache_clear()
    forget_recent()
    clear_planned()


def refuse(
    src: Layout, dst: Layout, dtype: np.dtype[Any], reason: str, *, background: bool = False
) -> None:
    """Join a redistribution only to say that this rank cannot take part in it.

    The ranks that do take part raise MismatchError with the reason, instead of waiting.
    """
    for step in bound_steps(src, dst, dtype, background=background):
        communicator = getattr(step, "communicator", None)
        if communicator is not None:
            with contextlib.suppress(MismatchError):
                communicator.agree(token("refused", reason), f"refused: {reason}")
            return


def _bind(step: Step, src: Layout, dst: Layout, background: bool) -> BoundStep:
    before, after = (_mesh_behind(layout, src, dst) for layout in (step.src, step.dst))
    shape = step.dst.replace(mesh=after).local_shape()
    if isinstance(step, LocalStep):
        return _Local(step, before.rank, shape)
    communicator = None
    if before is not after:
        communicator = before.communicator_with(after)
    elif step.mesh_axes and before.coordinate is not None:
        communicator = before.communicator(step.mesh_axes)
    if background and communicator is not None:
        communicator = communicator.background()
    if isinstance(step, AllReduceStep):
        return _AllReduce(step, communicator)
    return _Exchange(step, before.rank, shape, communicator)


def _model(src: Layout, dst: Layout) -> CostModel:
    """Return the cost model of the nodes that the ranks of both layouts run on."""
    before, after = src.mesh, dst.mesh
    assert isinstance(before, DeviceMesh)  # arrays live on no other
    assert isinstance(after, DeviceMesh)
    if before is not after:
        communicator = before.communicator_with(after)
    elif before.coordinate is not None:
        communicator = before.communicator()
    else:
        communicator = None
    if communicator is None:
        return DEFAULT_MODEL
    return replace(DEFAULT_MODEL, ranks_per_node=communicator.ranks_per_node)


def _mesh_behind(layout: Layout, src: Layout, dst: Layout) -> DeviceMesh:
    """Return the device mesh that a plan's abstract layout stands for."""
    mesh = src.mesh if layout.mesh == src.mesh.abstract else dst.mesh
    assert isinstance(mesh, DeviceMesh)  # arrays live on no other
    return mesh


class _NamedStep:
    """What a rank is doing, told only where ranks disagree."""

    def __init__(self, purpose: Purpose, step: BoundStep) -> None:
        self._purpose = purpose
        self._step = step

    def __str__(self) -> str:
        return f"{self._purpose.text}: {self._step}"


def _describe_call(
    number: int, step: BoundStep, purpose: Purpose | None, device: str
) -> tuple[int, object]:
    """Return the token of a step for a purpose and a kind of device, and what says it."""
    if device != "cpu":
        number ^= _ON_GPU
    return (
        (number, step) if purpose is None else (number ^ purpose.token, _NamedStep(purpose, step))
    )


class _Local:
    """A step without communication: cut the own block, or set it among identities."""

    def __init__(self, step: LocalStep, rank: int, shape: Shape) -> None:
        self._shape = shape
        self._op = step.op
        kept = step.kept_boxes(rank)
        self.regions = None if kept is None else (region(kept[0]), region(kept[1]))
        """Where the part that is kept is in the own block, and in the new one."""
        self._is_whole = kept is not None and boxes.shape(kept[1]) == shape

    def view(self, local: Buffer) -> Buffer:
        """Return the new block as a part of the own one, where it is one in host memory.

        NumPy's functions see where what they read and what they write overlap; CuPy's do not.
        """
        if self._op is None and self.regions is not None and _backend.is_numpy(local):
            part = local[self.regions[0]]
            if part.shape == self._shape:
                return part
        return self(local)

    def __call__(self, local: Buffer, _: Purpose | None = None, __: bool = False) -> Buffer:
        dtype = local.dtype
        out = _memory.empty(self._shape, dtype, _backend.device_of(local))
        if self._op is not None and not self._is_whole:
            fill(
                out, _backend.scalar(REDUCTIONS[self._op].identity(dtype.kind, dtype.itemsize), out)
            )
        if self.regions is not None:
            source, target = self.regions
            copy_box(out[target], local[source])
        return out


class _Collective(ABC):
    """A step in which ranks communicate; recorded as one, whatever transport carries it.

    ``communicator`` is that of the ranks that do, None where this one does not; ``token`` tells the
    step from others, and ``name`` is what logs call it.
    """

    def __init__(
        self, step: ExchangeStep | AllReduceStep, communicator: Communicator | None
    ) -> None:
        self._step = step
        self._op = step.reduce
        self._dtype = step.result_dtype
        self.token = token(
            step.name, step.src.fingerprint, step.dst.fingerprint, step.dtype.str, step.rounds
        )
        self.communicator = communicator
        self.name = step.name.replace("-", "_")

    def bytes_received(self, rank: int) -> int:
        """Return the bytes that a rank of the meshes takes from others."""
        return self._step.bytes_received(rank)

    def bytes_sent(self, rank: int) -> int:
        """Return the bytes that others take from a rank of the meshes."""
        return self._step.bytes_sent(rank)

    def __str__(self) -> str:
        step = self._step
        rounds = f" in {step.rounds} rounds" if step.rounds > 1 else ""
        return f"{step.name} of {step.dtype}: {step.src} -> {step.dst}{rounds}"

    def __call__(
        self, local: Buffer, purpose: Purpose | None = None, is_free: bool = False
    ) -> Buffer:
        communicator = self.communicator
        if communicator is None or not recording():
            return self._run(local, purpose, is_free)
        started = perf_counter()
        with pause_logs():
            result = self._run(local, purpose, is_free)
        record_steps([self], communicator, started)
        return result

    def _reduce_by_transport(
        self, communicator: Communicator, local: Buffer, out: Buffer, number: int, what: object
    ) -> Buffer:
        """Fill ``out`` with the reduction of all blocks, by the transport's own all-reduce.

        Between nodes, on two ranks of Zen 1, it takes a third of the time that exchanged blocks of
        16 to 64 KiB took, and as long from 1 MiB on.
        """
        communicator.agree(number, what)
        op = self._op
        assert op is not None  # it reduces
        source, target = _memory.make_contiguous(local).reshape(-1), out.reshape(-1)
        for start, stop in pairwise(chunk(source.size, (self._step.rounds,)).offsets):
            communicator.all_reduce(source[start:stop], op, out=target[start:stop])
        return out

    @abstractmethod
    def _run(self, local: Buffer, purpose: Purpose | None, is_free: bool) -> Buffer:
        """Return the new block."""


def record_steps(
    steps: Collection[_Collective], communicator: Communicator, started: float
) -> None:
    """Record as one communication what steps, with one communicator, have brought this rank."""
    if recording():
        rank = communicator.ranks[communicator.rank]
        names = {step.name for step in steps}
        name = names.pop() if len(names) == 1 else "exchange"
        communicator.record(name, sum(step.bytes_received(rank) for step in steps), started)


Take = tuple[tuple[int, ...], tuple[slice, ...], tuple[slice, ...]]
"""The ranks of which a part is taken, where it is in their blocks, and where in the new one."""


class _Exchange(_Collective):
    """One round in which every rank takes the parts of its new block from those that hold them.

    ``takes`` are these parts, by ranks of the communicator; ``source`` is the layout before and the
    dtype of what travels, along ``mesh_axes``, and ``reduces`` says whether it is reduced there.
    """

    _step: ExchangeStep

    def __init__(
        self, step: ExchangeStep, rank: int, shape: Shape, communicator: Communicator | None
    ) -> None:
        super().__init__(step, communicator)
        self._shape = shape
        self.source = step.src, step.dtype
        self.mesh_axes = step.mesh_axes
        self.reduces = self._op is not None
        ranks = (rank,) if communicator is None else communicator.ranks
        index = {r: i for i, r in enumerate(ranks)}
        self.takes = [
            (
                tuple(index[peer] for peer in transfer.peers),
                region(transfer.src_box),
                region(transfer.dst_box),
            )
            for transfer in receives(step.src, step.dst, rank)
        ]
        self._kept = self._find_kept(rank)
        """Which of the takes is that of the whole own block; None where it is not taken whole."""
        self._whole = (
            isinstance(step, DirectAllReduceStep)
            and communicator is not None
            and self._takes_all(rank)
            and len(self.takes[0][0]) == communicator.size
        )
        """Whether every rank takes all of all blocks."""
        self._messages: dict[str, Messages] = {}
        self._small: SmallBlocks | None = None
        """How blocks travel that are small, once it is known that they are."""
        self._looked = False
        self._is_pooled = prod(shape) * self._dtype.itemsize >= _memory.POOLED_BYTES
        self._combine: np.ufunc | None = None
        """What reduces small blocks to a new array, where all of it comes of the same ranks."""
        if self._op not in (None, "avg") and not self._is_pooled and self._takes_all(rank):
            self._combine = plain_ufunc(self._op, self._dtype)
        sent = 0 if communicator is None else step.bytes_sent(rank)
        self._lends = is_mostly_read(sent, self._held(rank) * step.dtype.itemsize)
        """Whether others read most of the own block."""

    def _held(self, rank: int) -> int:
        """Return the size of the own block."""
        mesh = self._step.src.mesh
        return prod(self._step.src.local_shape(mesh.coordinate_of(rank))) if rank in mesh else 0

    def _find_kept(self, rank: int) -> int | None:
        step = self._step
        if step.reduce is not None or rank not in step.src.mesh:
            return None
        held = self._held(rank)
        for i, transfer in enumerate(receives(step.src, step.dst, rank)):
            if transfer.peers == (rank,) and transfer.size == held:
                return i
        return None

    def _takes_all(self, rank: int) -> bool:
        """Tell whether all of the new block comes of the same ranks, two at least."""
        takes = receives(self._step.src, self._step.dst, rank)
        return len(takes) == 1 and len(takes[0].peers) > 1 and takes[0].size == prod(self._shape)

    def _run(self, local: Buffer, purpose: Purpose | None, is_free: bool) -> Buffer:
        communicator = self.communicator
        device = "cpu" if type(local) is np.ndarray else _backend.device_of(local)
        if communicator is None:
            out = _memory.empty(self._shape, self._dtype, device)
            self._take([local], out, self.takes)
            return out
        number: int = self.token
        what: object = self
        if purpose is not None or device != "cpu":
            number, what = _describe_call(number, self, purpose, device)
        if device == "cpu":
            if self._whole and local.nbytes <= communicator.short_bytes:
                assert self._op is not None  # it reduces
                reduced = communicator.all_reduce_small(local, self._op, number, what)
                if reduced is not None:
                    return reduced
            if not self._looked:
                self._looked = True
                if self._step.rounds == 1 and are_small([self.source], communicator):
                    self._small = SmallBlocks([self.source], communicator, [self.peers])
            if self._small is not None:
                told = self._small.exchange_one(local, number, what)
                if told is not None:
                    return self.take(told)
                self._small = None
        out = _memory.empty(self._shape, self._dtype, device, renews=False)
        kind = _backend.kind_of(device)
        takes, offered = self.takes, local
        if self._kept is not None and self._is_better_read_in(out, local, communicator):
            _, source, target = takes[self._kept]
            copy_box(out[target], local[source], total=out.nbytes)
            takes = [*takes[: self._kept], *takes[self._kept + 1 :]]
            offered = out[target]
        if communicator.reaches_all(kind):
            lent = _memory.take_lent(out) if takes is self.takes else None
            with communicator.views(offered, number, what) as views:
                _memory.write_new(out, lambda: self._take(views, out, takes), lent)
            if self._lends:
                _memory.lend(offered)
            return out
        if self._whole and kind == "cpu":
            return self._reduce_by_transport(communicator, local, out, number, what)
        messages = self._messages.get(kind)
        if messages is None:
            messages = self._messages[kind] = Messages(self._step, communicator, kind)
        messages.exchange(offered, out, number, what, is_free and offered is local)
        return out

    def fetch(self, local: np.ndarray, shape: Shape, purpose: Purpose) -> np.ndarray | None:
        """Return the one block that the new one is, read-only and in a shape, if it is small."""
        small, communicator = self._small, self.communicator
        if small is None or communicator is None:  # not known to be so yet
            return None
        started = perf_counter()
        told = small.send(local.tobytes(), self.token ^ purpose.token, _NamedStep(purpose, self))
        if told is None:
            return None
        record_steps([self], communicator, started)
        return np.ndarray(shape, self._dtype, bytes(told[self.takes[0][0][0]]))

    @property
    def takes_block(self) -> bool:
        """Whether the new block is the block of one rank."""
        if len(self.takes) != 1 or self.reduces or self.communicator is None:
            return False
        ((peer, *others), source, target) = self.takes[0]
        (layout, _), rank = self.source, self.communicator.ranks[peer]
        whole = layout.local_shape(layout.mesh.coordinate_of(rank))
        return not others and source == target == region(tuple((0, n) for n in whole))

    @property
    def gives(self) -> list[tuple[int, tuple[slice, ...]]]:
        """The other ranks of the communicator that take a part of the own block, and which."""
        assert self.communicator is not None  # there are others
        ranks = self.communicator.ranks
        rank, index = ranks[self.communicator.rank], {r: i for i, r in enumerate(ranks)}
        return [
            (index[one.peers[0]], region(one.src_box))
            for one in self._step.sends(rank)
            if one.peers[0] != rank
        ]

    @property
    def peers(self) -> set[int]:
        """The ranks of the communicator of whose blocks a part is taken."""
        return {peer for peers, _, _ in self.takes for peer in peers}

    def take(self, blocks: Mapping[int, Buffer]) -> Buffer:
        """Return the new block, of blocks in host memory by rank of the communicator."""
        op, combine = self._op, self._combine
        if combine is not None:
            peers, source, _ = self.takes[0]
            total, *others = [blocks[peer][source] for peer in peers]
            for other in others:
                total = unheard.call(combine, total, other, order="C")
            return np.asarray(total)
        if self._is_pooled:
            out: np.ndarray = _memory.empty(self._shape, self._dtype)
            self._take(blocks, out, self.takes)
            return out
        out = np.empty(self._shape, self._dtype)
        if op is None:
            for peers, source, target in self.takes:
                out[target] = blocks[peers[0]][source]
        else:
            for peers, source, target in self.takes:
                reduce_into(out[target], [blocks[peer][source] for peer in peers], op)
        return out

    @contextlib.contextmanager
    def pieces(self, local: Buffer, purpose: Purpose | None) -> Iterator[list[Piece]]:
        """Yield what the new block is made of, where it lies."""
        communicator = self.communicator
        assert communicator is not None  # the ranks are in the mesh
        started = perf_counter()
        number, what = _describe_call(self.token, self, purpose, "cpu")
        with communicator.views(local, number, what) as views:
            record_steps([self], communicator, started)
            yield [(target, views[peers[0]][source]) for peers, source, target in self.takes]

    def _is_better_read_in(self, out: Buffer, local: Buffer, communicator: Communicator) -> bool:
        """Tell whether others can read a new block in place, and not the old one that it has."""
        return (
            local.nbytes >= _memory.POOLED_BYTES
            and communicator.reaches_some(_backend.kind_of(_backend.device_of(local)))
            and not _memory.is_shared(local)
            and _memory.is_shared(out)
        )

    def _take(self, blocks: Any, out: Buffer, takes: Sequence[Take]) -> None:
        op = self._op
        total = out.nbytes
        if op is None:
            pairs = [(out[target], blocks[peers[0]][source]) for peers, source, target in takes]
            copy_boxes(pairs, total=total)
            return
        parts = [
            (out[target], [blocks[peer][source] for peer in peers])
            for peers, source, target in takes
        ]
        reduce_boxes(parts, op, total=total)


class _JointExchange:
    """Several exchanges of small blocks, in one round."""

    def __init__(self, moves: Mapping[int, _Exchange], communicator: Communicator) -> None:
        self._moves = moves
        self._communicator = communicator
        steps = moves.values()
        sources, peers = [step.source for step in steps], [step.peers for step in steps]
        self._small: SmallBlocks | None = SmallBlocks(sources, communicator, peers)
        self._token = token("together", *[step.token for step in steps])

    def __str__(self) -> str:
        return ", ".join(map(str, self._moves.values()))

    def __call__(self, blocks: Sequence[np.ndarray]) -> dict[int, Buffer]:
        """Return the new blocks, by their places; none where that needs another way."""
        if self._small is None:
            return {}
        started = perf_counter()
        own = [blocks[i] for i in self._moves]
        told = self._small.exchange(own, self._token, self)
        if told is None:
            self._small = None
            return {}
        pairs = zip(self._moves.items(), told, strict=True)
        found = {i: step.take(blocks) for (i, step), blocks in pairs}
        record_steps(self._moves.values(), self._communicator, started)
        return found


@kept(1024)  # any number of this size does
def _together(*parts: Any) -> _JointExchange | None:
    """Return how several blocks move in one round, given layouts before and after and dtypes.

    None where fewer than two are small and go along the same mesh axes.
    """
    chosen: dict[int, _Exchange] = {}
    for i in range(0, len(parts), 3):
        src, dst, dtype = parts[i : i + 3]
        (step, *others) = (None,) if src is dst else bound_steps(src, dst, dtype)
        if isinstance(step, _Exchange) and not others and not step.reduces:
            chosen[i // 3] = step
    steps = [*chosen.values()]
    if len(steps) < 2:
        return None
    communicator = steps[0].communicator
    if communicator is None or any(step.communicator is not communicator for step in steps):
        return None
    if not are_small([step.source for step in steps], communicator):
        return None
    return _JointExchange(chosen, communicator)


class _AllReduce(_Collective):
    """Blocks of one shape are reduced, the result on every rank.

    Where all blocks can be read in place, small ones are reduced by every rank for itself; of
    large ones every rank reduces its part, then copies the others' parts.
    """

    _op: str

    def _run(self, local: Buffer, purpose: Purpose | None, _: bool) -> Buffer:
        communicator = self.communicator
        device = _backend.device_of(local)
        if communicator is None:
            out = _memory.empty(local.shape, self._dtype, device)
            reduce_into(out, [local], self._op)
            return out
        number, what = _describe_call(self.token, self, purpose, device)
        if local.nbytes <= communicator.short_bytes:
            reduced = communicator.all_reduce_small(local, self._op, number, what)
            if reduced is not None:
                return reduced
        out = _memory.empty(local.shape, self._dtype, device, renews=False)
        if not communicator.reaches_all(device):
            return self._reduce_by_transport(communicator, local, out, number, what)
        lent = _memory.take_lent(out)
        if local.nbytes * communicator.size <= _READ_BY_ALL:
            with communicator.views(local, number, what) as views:
                _memory.write_new(out, lambda: reduce_into(out, views, self._op), lent)
            _memory.lend(local)
            return out
        source = _memory.make_contiguous(local).reshape(-1)
        target = out.reshape(-1)
        parts = chunk(source.size, (communicator.size,))
        start, stop = parts.bounds(communicator.rank)
        offered = source
        if source.dtype == target.dtype and not _memory.is_shared(source):
            # What the others read of it fits where their parts of the result come later.
            copy_box(target[:start], source[:start], total=out.nbytes)
            copy_box(target[stop:], source[stop:], total=out.nbytes)
            offered = target
        own = target[start:stop]
        with communicator.views(offered, number, what, closing=False) as views:
            views[communicator.rank] = source
            pieces = [view[start:stop] for view in views]
            reduce_own = partial(reduce_into, own, pieces, self._op, total=out.nbytes)
            _memory.write_new(own, reduce_own, lent)
        if offered is target:
            lent = _memory.extent_of(target)
        with communicator.views(target, number + 1, what) as views:
            for peer, view in enumerate(views):
                if peer != communicator.rank:
                    start, stop = parts.bounds(peer)
                    part, theirs = target[start:stop], view[start:stop]
                    copy_theirs = partial(copy_box, part, theirs, total=out.nbytes)
                    _memory.write_new(part, copy_theirs, lent)
        _memory.lend(source)
        _memory.lend(own)
        return out
