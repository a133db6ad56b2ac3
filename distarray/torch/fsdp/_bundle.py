"""Parameters of one dtype that are gathered together: their shares, and the wholes while needed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch

from distarray.comm import DeviceMesh, Purpose
from distarray.layout import Layout, Replicate, Shard
from distarray.redistribute import Handle, Packed, done_by, in_background, redistribute_local
from distarray.torch import _compat
from distarray.torch._buffers import buffer_of, empty, tensor_of
from distarray.torch._saved_tensors import Geometry
from distarray.torch.fsdp._parameter import ShardedParameter
from distarray.typing import Buffer


class Bundle:
    """Shares of parameters of one dtype, one after another in one flat tensor.

    Attributes
    ----------
    members
        The parameters.
    full
        The gathered wholes, one after another in one flat tensor; None while there are none.
    """

    def __init__(
        self,
        members: Sequence[ShardedParameter],
        mesh: DeviceMesh,
        smaller: DeviceMesh | None,
        dtype: torch.dtype,
        device: torch.device,
        *,
        pinned: bool = False,
    ) -> None:
        self.members = list(members)
        self.packed = Packed(mesh, [m.layout for m in members], [m.stride for m in members])
        self._dtype = dtype
        self._device = device
        self._smaller = smaller
        first = members[0].parameter.detach()
        self._kind = first.dtype, first.device
        self._home = _flat(self.packed.count, first, pinned=pinned)
        self._blocks = self._cut(self._home)
        self._like = torch.empty(0, dtype=dtype, device=device)
        self.full: torch.Tensor | None = None
        self._piece: torch.Tensor | None = None
        self._versions: tuple[tuple[int, int], ...] | None = None

    @property
    def fits(self) -> bool:
        """Whether the parameters still have the dtype and device that they had."""
        kinds = {(m.parameter.dtype, m.parameter.device) for m in self.members}
        return kinds == {self._kind}

    @property
    def is_current(self) -> bool:
        """Whether the shares have not changed since they were gathered."""
        if self._versions != tuple(m.version for m in self.members):
            return False
        return not any(map(_has_moved, self.members, self._blocks))

    def made_of(self, offset: int) -> tuple[ShardedParameter, tuple[int, int]]:
        """Return whose values are at an offset of the wholes, and of which version they are."""
        assert self._versions is not None  # it has been gathered
        position = max(bisect_right(self.packed.starts, offset) - 1, 0)
        return self.members[position], self._versions[position]

    def gather(self, what: str) -> Handle:
        """Start to gather the wholes (collective); `arrive` takes what comes."""
        self._drop_stale_piece()
        self._versions = tuple(m.version for m in self.members)
        if self._piece is not None:
            assert self._smaller is not None  # that keeps the piece
            gather = self._gathering_pieces(self._piece, what)
            return in_background(gather, alone=self._smaller.size == 1)
        self._settle()
        source = buffer_of(self._travelling())
        if self.packed.is_flat:  # what this rank has is everything
            return done_by(lambda _: source)
        purpose = _purpose(what, self.packed.total, self._dtype)
        return in_background(
            lambda behind: self.packed.gather(source, purpose, background=behind),
            alone=self.packed.is_alone,
        )

    def _drop_stale_piece(self) -> None:
        """Let go of what is kept among a smaller group, unless its values are those of now."""
        # Outside of backward values may have been written through ``data``, which nothing counts.
        if not self.is_current or not _compat.is_going_backward():
            self._piece = None

    def arrive(self, buffer: Buffer) -> None:
        """Take a full buffer."""
        self.full = tensor_of(buffer)
        self._piece = None

    def wholes(self) -> list[torch.Tensor]:
        """Return the wholes, anew."""
        assert self.full is not None  # it has been gathered
        storage = self.full.untyped_storage()
        starts = self.packed.starts
        return [
            m.whole_of(storage, at, self._like) for m, at in zip(self.members, starts, strict=True)
        ]

    def keep_among(self, smaller: DeviceMesh | None) -> None:
        """Set which ranks keep shares of the wholes after forward."""
        self._smaller = smaller
        self._piece = None

    def free(self, *, keep_piece: bool) -> None:
        """Let go of the wholes; those that still hold one keep its memory."""
        if self.full is not None and keep_piece and self._smaller is not None:
            start, stop = self._line.local_box()[0]  # type: ignore[index]
            piece = _flat(stop - start, self._like)
            self._piece = piece.copy_(self.full[start:stop])
        self.full = None

    def view(self, dtype: torch.dtype, geometry: Geometry) -> torch.Tensor:
        """Return a view of the gathered memory as it was saved."""
        assert self.full is not None  # it has been gathered again
        storage = self.full.untyped_storage()
        like = torch.empty(0, dtype=dtype, device=self._device)
        return like.set_(storage, geometry.offset, geometry.size, geometry.stride)  # type: ignore[call-overload, no-any-return]

    @property
    def nbytes(self) -> int:
        """Bytes that the shares take up."""
        return self._home.numel() * self._home.element_size()

    def _cut(self, flat: torch.Tensor) -> list[torch.Tensor]:
        blocks = self.packed.blocks(buffer_of(flat))
        at, found = 0, []
        for block in blocks:
            found.append(flat[at : at + block.size].view(block.shape))
            at += block.size
        return found

    def _settle(self) -> None:
        """Bring parameters home whose memory was replaced."""
        for member, block in zip(self.members, self._blocks, strict=True):
            if _has_moved(member, block):
                member.check_form(member.parameter)
                block.copy_(member.parameter.detach())
                member.parameter.data = block

    def _travelling(self) -> torch.Tensor:
        """Return the shares in the dtype and on the device in which they are gathered."""
        home = self._home
        if home.device != self._device:
            # Nobody waits for the copy of a rank that is alone, and the values may change at once.
            home = home.to(self._device, non_blocking=not self.packed.is_alone)
        if home.dtype is not self._dtype:
            home = _flat(home.numel(), self._like).copy_(home)
        return home

    @property
    def _line(self) -> Layout:
        """How the gathered memory is shared among the ranks of a smaller group."""
        assert self._smaller is not None
        return Layout(self._smaller, [Shard(0)], (self.packed.total,))

    def _gathering_pieces(self, piece: torch.Tensor, what: str) -> Callable[[bool], Buffer]:
        line = self._line
        whole = line.replace(placements=[Replicate()])
        purpose = Purpose.of(f"unshard {what} from a smaller group")
        buffer = buffer_of(piece)

        def gather(background: bool) -> Buffer:
            if line.mesh.size == 1:
                return buffer
            return redistribute_local(buffer, line, whole, purpose=purpose, background=background)

        return gather


@lru_cache(maxsize=4096)
def _purpose(what: str, total: int, dtype: torch.dtype) -> Purpose:
    return Purpose.of(f"unshard {what}: {total} elements of {dtype}")


def _has_moved(member: ShardedParameter, block: torch.Tensor) -> bool:
    """Tell whether a share is no longer in the memory that is gathered."""
    parameter = member.parameter
    return parameter.data_ptr() != block.data_ptr() or not parameter.is_contiguous()


def _flat(size: int, like: torch.Tensor, *, pinned: bool = False) -> torch.Tensor:
    """Return a new flat tensor, page-locked or in memory that the ranks of the node can read."""
    if pinned:
        return torch.empty(size, dtype=like.dtype, device="cpu", pin_memory=True)
    return tensor_of(empty(size, like))
