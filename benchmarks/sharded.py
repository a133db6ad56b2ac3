"""A chain of transformer blocks whose parameters are sharded, by this library and by torch.

Ranks have different inputs. A contender computes the gradients of its own shard of every parameter,
averaged over the ranks, and lets AdamW change that shard.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from mpi4py import MPI
from torch import nn

from benchmarks.block import Block


class Contender(Protocol):
    """A model in shards."""

    model: nn.Module
    shards: list[nn.Parameter]

    def gradients(self) -> Iterator[torch.Tensor]:
        """Yield the whole gradient of each parameter, in the order of the plain model."""


def chain(width: int, layers: int) -> nn.Sequential:
    """Return the plain model, the same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(*(Block(width) for _ in range(layers)))


class ByDistarray:
    """Sharded by this library, block by block, with the policies of ``fully_shard``."""

    def __init__(
        self,
        plain: nn.Sequential,
        comm: MPI.Comm,
        reshard: bool,
        device: str = "cpu",
        **policies: Any,
    ) -> None:
        import distarray as da
        import distarray.torch as dt

        self.mesh = da.init_device_mesh((comm.size,), ("dp",), device=device)
        self.model = copy.deepcopy(plain)
        for block in self.model:
            dt.fully_shard(block, self.mesh, reshard_after_forward=reshard, **policies)
        dt.fully_shard(self.model, self.mesh, **policies)
        self.shards = list(self.model.parameters())
        self._reshard = reshard
        sizes = [sum(p.numel() for p in block.parameters()) for block in plain]
        self._gradients = [torch.zeros(size, device=device) for size in sizes]

    def gradients(self) -> Iterator[torch.Tensor]:
        """Gather one gradient after another."""
        import distarray.torch as dt

        for shard in self.shards:
            yield dt.full_tensor(shard.grad)

    def communicate(self) -> None:
        """Gather and reduce what a step does, and compute nothing."""
        import distarray as da
        import distarray.torch as dt

        for block in self.model:
            block.unshard()
            if self._reshard:
                block.reshard()
        for block, gradient in zip(reversed(self.model), self._gradients, strict=True):
            block.unshard()
            block.reshard()
            dt.redistribute(gradient, self.mesh, [da.Partial("avg")], [da.Shard(0)])


class ByTorch:
    """Sharded by torch's own ``fully_shard``; its process group runs already."""

    def __init__(self, plain: nn.Sequential, comm: MPI.Comm, reshard: bool) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (comm.size,))
        self.model = copy.deepcopy(plain)
        for block in self.model:
            fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
        fully_shard(self.model, mesh=mesh)
        self.shards = list(self.model.parameters())

    def gradients(self) -> Iterator[torch.Tensor]:
        """Gather one gradient after another."""
        for shard in self.shards:
            gradient: Any = shard.grad
            yield gradient.full_tensor()


class Floor:
    """The plain model, and a shard of its parameters for the optimizer: nothing is communicated.

    Its gradients are those of one rank's input, and what the optimizer does is lost.
    """

    def __init__(self, plain: nn.Sequential, comm: MPI.Comm) -> None:
        self.model = copy.deepcopy(plain)
        self._parts = (comm.size, comm.rank)
        self.shards = [nn.Parameter(self._part(p.detach()).clone()) for p in plain.parameters()]

    def hand_over(self) -> None:
        """Give the optimizer gradients."""
        for shard, parameter in zip(self.shards, self.model.parameters(), strict=True):
            shard.grad = self._part(parameter.grad)

    def _part(self, tensor: torch.Tensor) -> torch.Tensor:
        size, rank = self._parts
        return tensor.chunk(size)[rank]
