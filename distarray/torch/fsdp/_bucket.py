"""Parameters of one dtype that are gathered together, their blocks in one flat tensor.

Blocks may travel in another form: quantised, compressed, or as the data of custom tensors.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from distarray.comm import DeviceMesh, Purpose, _memory
from distarray.errors import ArgumentTypeError
from distarray.layout import Layout, Replicate, Shard
from distarray.redistribute import Handle, Packed, redistribute_local, run_in_background, run_now
from distarray.torch import _compat
from distarray.torch._buffers import buffer_of, bytes_of, empty, follow, tensor_of
from distarray.torch._saved_tensors import Geometry
from distarray.torch.fsdp._parameter import ShardedParameter, cut_blocks
from distarray.typing import Buffer

Tensors = tuple[torch.Tensor, ...]
PreAllGather = Callable[[torch.Tensor], Tensors]
PostAllGather = Callable[[Sequence[Tensors], Layout, torch.Tensor], torch.Tensor | None]
_Form = tuple[tuple[tuple[int, ...], torch.dtype], ...]


class Bucket:
    """Shards of parameters of one dtype, one after another in one flat tensor.

    While they are gathered ``full`` has the unsharded parameters, in the same way.
    """

    def __init__(
        self,
        members: Sequence[ShardedParameter],
        dtype: torch.dtype,
        group: Any,
        mesh: DeviceMesh,
        smaller: DeviceMesh | None,
        device: torch.device,
        pinned: bool,
    ) -> None:
        self.members = list(members)
        self.group = group  # a weak reference
        self.packed = Packed(mesh, [m.layout for m in members], [m.stride for m in members])
        self._smaller = smaller
        with torch.inference_mode(False):  # parameters, brought there, count their changes
            first = members[0].parameter.detach()
            self._home = _flat(self.packed.count, first, pinned=pinned)
            self._blocks = cut_blocks(self._home, self.members)
        self._like = torch.empty(0, dtype=dtype, device=device)
        self.full: torch.Tensor | None = None
        self._piece: torch.Tensor | None = None
        self._versions: tuple[tuple[int, int], ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the parameters still have the dtype and device that they had."""
        kinds = {(m.parameter.dtype, m.parameter.device) for m in self.members}
        return kinds == {(self._home.dtype, self._home.device)}

    @property
    def is_current(self) -> bool:
        """Whether the shards have not changed since they were gathered."""
        if self._versions != tuple(m.version for m in self.members):
            return False
        return not any(map(_has_moved, self.members, self._blocks))

    def find_member(self, offset: int) -> tuple[ShardedParameter, tuple[int, int]]:
        """Return whose values are at an offset of the gathered memory, and of which version."""
        position = max(bisect_right(self.packed.starts, offset) - 1, 0)
        return self.members[position], self._versions[position]

    def gather(self, what: str) -> Handle:
        """Start to gather the unsharded parameters (collective); `arrive` takes what comes."""
        # Outside of backward values may have been written through ``data``, which nothing counts.
        if not self.is_current or not _compat.is_going_backward():
            self._piece = None
        self._versions = tuple(m.version for m in self.members)
        if self._piece is not None:
            line, piece = self._piece_layout, buffer_of(self._piece)
            if line.mesh.size == 1:
                return run_now(lambda _: piece)
            how: Any = {"purpose": Purpose.of(f"unshard {what} from a smaller group")}
            ways = line, line.replace(placements=[Replicate()])
            return run_in_background(
                lambda behind: redistribute_local(piece, *ways, background=behind, **how)
            )
        self._repack()
        return self._gather_blocks(what)

    def _gather_blocks(self, what: str) -> Handle:
        source = buffer_of(self._wire_form())
        if self.packed.is_flat:  # what this rank has is everything
            return run_now(lambda _: source)
        purpose = _purpose(what, self.packed.total, self._like.dtype)
        return run_in_background(
            lambda behind: self.packed.gather(source, purpose, background=behind),
            alone=self.packed.is_alone,
        )

    def arrive(self, buffer: Buffer) -> None:
        self.full = tensor_of(buffer)
        self._piece = None

    def view_unsharded(self) -> list[torch.Tensor]:
        """Return the unsharded parameters, anew."""
        assert self.full is not None  # it has been gathered
        storage = self.full.untyped_storage()
        starts = self.packed.starts
        return [
            m.view_in(storage, at, self._like) for m, at in zip(self.members, starts, strict=True)
        ]

    def keep_pieces_among(self, smaller: DeviceMesh | None) -> None:
        """Set which ranks keep shards of the unsharded parameters after forward."""
        self._smaller = smaller
        self._piece = None

    def drop(self, *, keep_piece: bool) -> None:
        """Let go of the unsharded parameters; those that still hold one keep its memory."""
        if self.full is not None and keep_piece and self._smaller is not None:
            start, stop = self._piece_layout.local_box()[0]  # type: ignore[index]
            piece = _flat(stop - start, self._like)
            self._piece = piece.copy_(self.full[start:stop])
        self.full = None

    def view(self, dtype: torch.dtype, geometry: Geometry) -> torch.Tensor:
        """Return a view of the gathered memory as it was saved."""
        assert self.full is not None  # it has been gathered again
        like = torch.empty(0, dtype=dtype, device=self._like.device)
        where = geometry.offset, geometry.size, geometry.stride
        return like.set_(self.full.untyped_storage(), *where)  # type: ignore[call-overload, no-any-return]

    def _repack(self) -> None:
        """Bring parameters home whose memory was replaced."""
        for member, block in zip(self.members, self._blocks, strict=True):
            if _has_moved(member, block):
                member.check_form(member.parameter)
                block.copy_(member.parameter.detach())
                member.parameter.data = block

    def _wire_form(self) -> torch.Tensor:
        """Return the shards in the dtype and on the device in which they are gathered."""
        home = self._home
        if home.device != self._like.device:
            # Nobody waits for the copy of a rank that is alone, and the values may change at once.
            home = home.to(self._like.device, non_blocking=not self.packed.is_alone)
        if home.dtype is not self._like.dtype:
            home = _flat(home.numel(), self._like).copy_(home)
        return home

    @property
    def _piece_layout(self) -> Layout:
        """How the gathered memory is shared among the ranks of a smaller group."""
        smaller: Any = self._smaller
        return Layout(smaller, [Shard(0)], (self.packed.total,))


@lru_cache(maxsize=4096)
def _purpose(what: str, total: int, dtype: torch.dtype) -> Purpose:
    return Purpose.of(f"unshard {what}: {total} elements of {dtype}")


def _has_moved(member: ShardedParameter, block: torch.Tensor) -> bool:
    """Tell whether a shard is no longer in the memory that is gathered."""
    parameter = member.parameter
    return parameter.data_ptr() != block.data_ptr() or not parameter.is_contiguous()


def _flat(size: int, like: torch.Tensor, *, pinned: bool = False) -> torch.Tensor:
    """Return a new flat tensor, page-locked or in memory that the ranks of the node can read."""
    if pinned:
        return torch.empty(size, dtype=like.dtype, device="cpu", pin_memory=True)
    return tensor_of(empty(size, like))


class ExtendedBucket(Bucket):
    """One parameter whose blocks travel in another form."""

    _forms: tuple[_Form, ...] = ()
    _instead: torch.Tensor | None = None

    def _gather_blocks(self, what: str) -> Handle:
        """Start to gather what the blocks have been turned into."""
        (member,) = self.members
        travelling = self._check_travelling(member.extension[0](member.parameter.detach()))
        form: _Form = tuple((tuple(t.shape), t.dtype) for t in travelling)
        sent = [bytes_of(t).cpu().numpy() for t in travelling]
        known = self._forms[self.packed.rank : self.packed.rank + 1] == (form,)
        shape = "the shape that it had" if known else "a new shape"
        purpose = Purpose.of(f"unshard {what}: {member.path} extended, of {shape}")

        def work(behind: bool) -> Buffer:
            communicator = self.packed.communicator(behind)
            communicator.agree(purpose.token, purpose.text)
            if not known:
                self._forms = tuple(communicator.all_gather_object(form))
            counts = [sum(map(_nbytes, one)) for one in self._forms]
            own = _memory.empty((counts[communicator.rank],), np.uint8)
            at = 0
            for part in sent:
                own[at : at + part.size] = part
                at += part.size
            found = _memory.empty((sum(counts),), np.uint8)
            communicator.all_gather(own, found, counts)
            return found

        follow(self._like)
        return run_in_background(work)

    def arrive(self, buffer: Buffer) -> None:
        """Turn what has come into the whole."""
        if self._piece is not None:
            super().arrive(buffer)
            return
        (member,) = self.members
        flat = torch.from_numpy(buffer).to(self._like.device)
        lengths = [_nbytes(one) for form in self._forms for one in form]
        pieces = iter(
            flat[start : start + length]
            for start, length in zip(accumulate(lengths, initial=0), lengths, strict=False)
        )
        parts = [
            tuple(next(pieces).clone().view(dtype).view(shape) for shape, dtype in form)
            for form in self._forms
        ]
        self.full = tensor_of(empty(self.packed.total, self._like))
        (whole,) = super().view_unsharded()
        with torch.no_grad():
            self._instead = member.extension[1](parts, member.layout, whole)
        if self._instead is not None:
            self.full = self._like.clone()

    def view_unsharded(self) -> list[torch.Tensor]:
        """Return what modules use in the place of the parameter."""
        return super().view_unsharded() if self._instead is None else [self._instead.detach()]

    def drop(self, *, keep_piece: bool) -> None:
        super().drop(keep_piece=keep_piece and self._instead is None)
        self._instead = None

    def _check_travelling(self, travelling: Any) -> Tensors:
        found = travelling if isinstance(travelling, tuple) else (travelling,)
        for one in found:
            if not isinstance(one, torch.Tensor):
                raise ArgumentTypeError(
                    f"{self.members[0].path}: the function before the all-gather returned a "
                    f"{type(one).__name__}; it must return a tensor or a tuple of tensors"
                )
        return found


def _nbytes(one: tuple[tuple[int, ...], torch.dtype]) -> int:
    shape, dtype = one
    return int(np.prod(shape)) * dtype.itemsize
