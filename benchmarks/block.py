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
NORMS, COLUMNS, ROWS = ("norm1", "norm2"), ("attention.qkv", "up"), ("attention.out", "down")


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


def cut(block: Block, comm: MPI.Comm) -> Block:
    """Return a copy whose layers hold this rank's part."""
    block = copy.deepcopy(block)
    for name, parameter in block.named_parameters():
        parameter.data = share(parameter.detach(), name, comm).clone()
    return block


def by_distarray(block: Block, comm: MPI.Comm, sequence: bool, device: str = "cpu") -> nn.Module:
    """Let this library cut and hook the layers."""
    import distarray as da
    import distarray.torch as dt

    mesh = da.init_device_mesh((comm.size,), ("tp",), device=device)
    return dt.parallelize_module(copy.deepcopy(block), mesh, _plan(dt, da.Shard(1), sequence))


def by_dtensor(block: Block, comm: MPI.Comm, sequence: bool) -> nn.Module:
    """Let torch's own styles do it; its process group runs already."""
    from torch.distributed.tensor import Shard, init_device_mesh, parallel

    mesh = init_device_mesh("cpu", (comm.size,))
    plan = _plan(parallel, Shard(1), sequence)
    return parallel.parallelize_module(copy.deepcopy(block), mesh, plan)


def _plan(styles: Any, cut: Any, sequence: bool) -> dict[str, Any]:
    """Return the plan, which is written alike for both."""
    columns = {"input_layouts": cut} if sequence else {}
    rows = {"output_layouts": cut} if sequence else {}
    plan = {name: styles.ColwiseParallel(**columns) for name in COLUMNS}
    plan |= {name: styles.RowwiseParallel(**rows) for name in ROWS}
    if sequence:
        plan |= {name: styles.SequenceParallel() for name in NORMS}
    return plan
