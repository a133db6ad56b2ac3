"""A block of two linear layers, to be cut on simulated ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import distarray as da
from distarray.testing import simulate


class Block(nn.Module):
    """Two linear layers under the names up and down."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.up = nn.Linear(4, width)
        self.down = nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)))


def each(program: Callable[[da.DeviceMesh], Any], ranks: int = 2) -> list[Any]:
    """Run a program of a mesh on simulated ranks."""
    return simulate(ranks, lambda: program(da.init_device_mesh((ranks,), ("tp",))))


X = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)
