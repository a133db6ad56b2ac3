"""A stack of layers of which some may be left out, sharded layer by layer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import nn

import distarray as da
import distarray.torch as dt
from distarray.testing import simulate
from tests.torch.fsdp.training import filled, values


class Layer(nn.Module):
    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.spare = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, spare: bool = False) -> torch.Tensor:
        x = torch.tanh(self.linear(x)) * self.scale
        return x + self.spare(x) if spare else x


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.head = nn.Linear(5, 2)

    def forward(
        self, x: torch.Tensor, only: Sequence[int] = (0, 1, 2), spare: bool = False
    ) -> torch.Tensor:
        for i in only:
            x = self.layers[i](x, spare=spare)
        return self.head(x)


def stack(dtype: torch.dtype = torch.float64) -> nn.Module:
    """Return a whole stack with values of its own."""
    return filled(Stack()).to(dtype)


def sharded(module: nn.Module, mesh: da.DeviceMesh, **kwargs: Any) -> nn.Module:
    """Return a copy of a stack of which each layer, and the rest, is sharded."""
    mine = copy.deepcopy(module)
    for child in mine.layers:
        dt.fully_shard(child, mesh, **kwargs)
    return dt.fully_shard(mine, mesh, **kwargs)


def of_mesh(shape: tuple[int, ...], program: Callable[[da.DeviceMesh], Any]) -> list[Any]:
    """Run a program on simulated ranks, on a mesh of several axes."""
    names = ("r", "s", "t")[: len(shape)]
    return simulate(prod(shape), lambda: program(da.init_device_mesh(shape, names)))


X, Y, Z = (values(12, 5, seed=i) for i in range(3))
