"""A transformer block, and what each contender makes of it on several ranks.

The layer that makes query, key and value has them head by head, so that a contiguous cut of its
outputs gives every rank whole heads, whoever cuts.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional

HEAD = 64
COLUMNS, ROWS = ("attention.qkv", "up"), ("attention.out", "down")


class Attention(nn.Module):
    """Causal self-attention over the heads whose weights are here."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(x).unflatten(-1, (-1, 3, HEAD)).permute(3, 0, 2, 1, 4)
        y = functional.scaled_dot_product_attention(*qkv.unbind(), is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """LayerNorm, attention, LayerNorm and an MLP of four times the width, each with a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gelu = nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.gelu(self.up(self.norm2(x))))


def share(full: torch.Tensor, name: str, comm: MPI.Comm) -> torch.Tensor:
    """Return this rank's part of a parameter, or of its gradient."""
    layer, kind = name.rsplit(".", 1)
    if layer in COLUMNS:
        return full.chunk(comm.size, 0)[comm.rank]
    if layer in ROWS and kind == "weight":
        return full.chunk(comm.size, 1)[comm.rank]
    return full


def without_communication(block: Block, comm: MPI.Comm) -> Block:
    """Cut the layers and leave it at that: the same work, and wrong sums."""
    block = copy.deepcopy(block)
    for name, parameter in block.named_parameters():
        parameter.data = share(parameter.detach(), name, comm).clone()
    return block


def by_distarray(block: Block, comm: MPI.Comm) -> nn.Module:
    """Let this library cut and hook the layers."""
    import distarray as da
    import distarray.torch as dt

    plan = {name: dt.ColwiseParallel() for name in COLUMNS}
    plan |= {name: dt.RowwiseParallel() for name in ROWS}
    mesh = da.init_device_mesh((comm.size,), ("tp",))
    return dt.parallelize_module(copy.deepcopy(block), mesh, plan)


def by_dtensor(block: Block, comm: MPI.Comm) -> nn.Module:
    """Let torch's own styles do it; its process group runs already."""
    from torch.distributed.tensor import init_device_mesh
    from torch.distributed.tensor import parallel as tp

    plan = {name: tp.ColwiseParallel() for name in COLUMNS}
    plan |= {name: tp.RowwiseParallel() for name in ROWS}
    mesh = init_device_mesh("cpu", (comm.size,))
    return tp.parallelize_module(copy.deepcopy(block), mesh, plan)


# --- by hand -------------------------------------------------------------------------------------


class _Enter(torch.autograd.Function):
    """Pass the input of columns; add up its gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, comm: MPI.Comm, total: torch.Tensor) -> torch.Tensor:
        ctx.comm, ctx.total = comm, total
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        ctx.comm.Allreduce(gradient.contiguous().numpy(), ctx.total.numpy())
        return ctx.total, None, None


class _Leave(torch.autograd.Function):
    """Add up the output of rows; pass its gradient."""

    @staticmethod
    def forward(_: Any, y: torch.Tensor, comm: MPI.Comm, total: torch.Tensor) -> torch.Tensor:
        comm.Allreduce(y.detach().numpy(), total.numpy())
        return total.view_as(total)

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return gradient, None, None


class _Columns(nn.Module):
    def __init__(self, layer: nn.Linear, comm: MPI.Comm, total: torch.Tensor) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.comm, self.total = comm, total

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(_Enter.apply(x, self.comm, self.total), self.weight, self.bias)


class _Rows(_Columns):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = _Leave.apply(functional.linear(x, self.weight), self.comm, self.total)
        return y + self.bias


def by_hand(block: Block, comm: MPI.Comm, like: torch.Tensor) -> Block:
    """Write it with mpi4py, for inputs of one shape: one buffer serves all four sums."""
    block = without_communication(block, comm)
    total = torch.empty_like(like, requires_grad=False)
    for names, kind in ((COLUMNS, _Columns), (ROWS, _Rows)):
        for name in names:
            block.set_submodule(name, kind(block.get_submodule(name), comm, total))
    return block
