"""The chain of blocks sharded by hand with mpi4py: what ZeRO's third stage is at its simplest.

A block's parameters lie in one flat tensor, of which a rank keeps a shard. They are gathered before
the block runs, into a buffer that all blocks use in turn, and once more before its backward pass;
afterwards the gradient of the whole flat tensor is reduced and scattered. Nothing happens in the
background. Buffers are allocated once.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.func import functional_call


class _Flat:
    """The parameters of one block in one flat tensor."""

    def __init__(self, block: nn.Module, comm: MPI.Comm) -> None:
        self.comm = comm
        named = dict(block.named_parameters())
        self.names, self.shapes = list(named), [p.shape for p in named.values()]
        self.sizes = [p.numel() for p in named.values()]
        flat = torch.cat([p.detach().flatten() for p in named.values()])
        padding = -len(flat) % comm.size
        self.sizes[-1:] = [self.sizes[-1], padding]
        flat = torch.cat([flat, flat.new_zeros(padding)])
        self.length = len(flat)
        self.shard = nn.Parameter(flat.chunk(comm.size)[comm.rank].clone())
        self.gradient = torch.empty_like(self.shard)
        self.buffer = torch.empty(0)

    def gather(self) -> None:
        """Bring the shards together."""
        self.comm.Allgather(self.shard.detach().numpy(), self.buffer.numpy())

    def parts(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return views of the parameters."""
        pieces = flat.split(self.sizes)
        shaped = zip(self.names, pieces, self.shapes, strict=False)
        return {name: piece.view(shape) for name, piece, shape in shaped}


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, _: torch.Tensor, flat: _Flat) -> torch.Tensor:
        ctx.flat = flat
        return flat.buffer.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        flat: _Flat = ctx.flat
        comm = flat.comm
        comm.Reduce_scatter_block(gradient.numpy(), flat.gradient.numpy())
        return flat.gradient.div_(comm.size), None


class _Chain(nn.Module):
    """The blocks, one after another."""

    def __init__(self, blocks: nn.Sequential, flats: list[_Flat], reshard: bool) -> None:
        super().__init__()
        self.blocks = copy.deepcopy(blocks).to("meta")
        self.flats = flats
        self.reshard = reshard

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block, flat in zip(self.blocks, self.flats, strict=True):
            flat.gather()
            with torch.autograd.graph.saved_tensors_hooks(_Pack(flat), _unpack):
                values = flat.parts(_Whole.apply(flat.shard, flat))
                x = functional_call(block, values, (x,))
            if self.reshard:
                x.register_hook(lambda _, flat=flat: flat.gather())
        return x


class _Pack:
    """Saves where in the buffer a tensor is, so that the next block may write there."""

    def __init__(self, flat: _Flat) -> None:
        self.flat = flat

    def __call__(self, tensor: torch.Tensor) -> Any:
        buffer = self.flat.buffer
        if tensor.untyped_storage().data_ptr() != buffer.untyped_storage().data_ptr():
            return tensor
        return buffer, tensor.shape, tensor.stride(), tensor.storage_offset()


def _unpack(saved: Any) -> torch.Tensor:
    if isinstance(saved, torch.Tensor):
        return saved
    buffer, shape, stride, offset = saved
    return buffer.as_strided(shape, stride, offset)


class ByHand:
    """Sharded by hand."""

    def __init__(self, plain: nn.Sequential, comm: MPI.Comm, reshard: bool) -> None:
        self._flats = [_Flat(block, comm) for block in plain]
        shared = torch.empty(max(flat.length for flat in self._flats))
        for flat in self._flats:
            flat.buffer = (shared if reshard else torch.empty_like(shared))[: flat.length]
        self.model = _Chain(plain, self._flats, reshard)
        self.shards = [flat.shard for flat in self._flats]

    def gradients(self) -> Iterator[torch.Tensor]:
        """Gather the gradients of one block after another."""
        for flat in self._flats:
            whole = np.empty(flat.length, np.float32)
            flat.comm.Allgather(flat.shard.grad.numpy(), whole)  # type: ignore[union-attr]
            yield from flat.parts(torch.from_numpy(whole)).values()
