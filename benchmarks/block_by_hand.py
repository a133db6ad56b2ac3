"""The transformer block by hand with mpi4py: buffers are allocated once, for inputs of one shape.

Without MPI the same work is done and nothing is added up or gathered: the baseline.
"""

from __future__ import annotations

from typing import Any

import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional

from benchmarks.block import COLUMNS, NORMS, ROWS, Block, cut


class Wire:
    """What is sent between the layers of one block.

    Parameters
    ----------
    shape
        Of the whole input, (batch, length, width); between layers it is cut along the sequence, or
        not at all.
    silent
        Send nothing.
    """

    def __init__(self, comm: MPI.Comm, shape: torch.Size, silent: bool) -> None:
        self.comm, self.silent = comm, silent
        self.whole = torch.zeros(shape)
        batch, length, width = shape
        self.pieces = torch.empty(comm.size, batch, length // comm.size, width)
        self.piece = torch.empty_like(self.pieces[0])

    def add(self, part: torch.Tensor) -> torch.Tensor:
        """Sum over the ranks."""
        if self.silent:
            return part.view_as(part)
        self.comm.Allreduce(part.contiguous().numpy(), self.whole.numpy())
        return self.whole.view_as(self.whole)

    def gather(self, piece: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        """Bring the pieces of the sequence together."""
        if not self.silent:
            self.comm.Allgather(piece.contiguous().numpy(), self.pieces.numpy())
            _by_rank(whole, self.comm.size).copy_(self.pieces)
        return whole.view_as(whole)

    def add_piece(self, part: torch.Tensor) -> torch.Tensor:
        """Sum over the ranks, and keep this rank's piece of the sequence."""
        if self.silent:
            return part.chunk(self.comm.size, 1)[self.comm.rank]
        self.pieces.copy_(_by_rank(part, self.comm.size))
        self.comm.Reduce_scatter_block(self.pieces.numpy(), self.piece.numpy())
        return self.piece.view_as(self.piece)


def _by_rank(x: torch.Tensor, ranks: int) -> torch.Tensor:
    return x.unflatten(1, (ranks, -1)).movedim(1, 0)


class _Enter(torch.autograd.Function):
    """Take what columns compute with, and add up its gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, wire: Wire, kept: torch.Tensor | None) -> torch.Tensor:
        ctx.add = wire.add if kept is None else wire.add_piece
        return x.view_as(x) if kept is None else wire.gather(x, kept)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return ctx.add(gradient), None, None


class _Leave(torch.autograd.Function):
    """Add up what rows compute, and take its gradient."""

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, wire: Wire, sequence: bool) -> torch.Tensor:
        ctx.wire, ctx.sequence = wire, sequence
        return (wire.add_piece if sequence else wire.add)(y.detach())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        if ctx.sequence:
            gradient = ctx.wire.gather(gradient, ctx.wire.whole)
        return gradient, None, None


class _Shared(torch.autograd.Function):
    """Use a parameter for some of the passage: its gradient is added up."""

    @staticmethod
    def forward(ctx: Any, parameter: torch.Tensor, wire: Wire) -> torch.Tensor:
        ctx.wire = wire
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        if not ctx.wire.silent:
            gradient = gradient.contiguous()
            ctx.wire.comm.Allreduce(MPI.IN_PLACE, gradient.numpy())
        return gradient, None


class _Layer(nn.Module):
    def __init__(self, layer: Any, wire: Wire, sequence: bool) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.wire, self.sequence = wire, sequence
        # The layer keeps its input for the backward pass: no other may write there.
        self.kept = torch.zeros_like(wire.whole) if sequence else None


class _Columns(_Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = _Enter.apply(x, self.wire, self.kept)
        return functional.linear(x, self.weight, self.bias)


class _Rows(_Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = _Leave.apply(functional.linear(x, self.weight), self.wire, self.sequence)
        bias = _Shared.apply(self.bias, self.wire) if self.sequence else self.bias
        return y + bias


class _Norm(_Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = (_Shared.apply(p, self.wire) for p in (self.weight, self.bias))
        return functional.layer_norm(x, weight.shape, weight, bias)


def by_hand(
    block: Block, comm: MPI.Comm, shape: torch.Size, sequence: bool, *, silent: bool = False
) -> Block:
    """Return a cut copy of a block that communicates, or leaves that out."""
    block = cut(block, comm)
    wire = Wire(comm, shape, silent)
    for names, kind in ((COLUMNS, _Columns), (ROWS, _Rows), (NORMS, _Norm)):
        for name in names:
            if kind is not _Norm or sequence:
                block.set_submodule(name, kind(block.get_submodule(name), wire, sequence))
    return block
