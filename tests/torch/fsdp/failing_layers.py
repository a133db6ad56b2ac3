"""Layers in a row that fail where they are told to, sharded beside whole."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import distarray as da
import distarray.torch as dt
from tests.torch.fsdp.training import (
    check_gradients,
    check_parameters,
    filled,
    gradients,
    on_ranks,
    rows_of,
    same,
    values,
)

X, Y = values(6, 5), values(6, 5, seed=1)


class Layer(nn.Module):
    """A layer that fails in forward, or in backward, while ``fails_in`` says so."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.fails_in = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fails_in == "forward":
            raise ZeroDivisionError("forward")
        x = torch.tanh(self.linear(x))
        if self.fails_in == "backward" and x.requires_grad:
            x.register_hook(_fail)
        return x


def _fail(_: torch.Tensor) -> None:
    raise ZeroDivisionError("backward")


def layers(count: int = 3) -> nn.Module:
    """Return layers with values of their own, and a head."""
    return filled(nn.Sequential(*(Layer() for _ in range(count)), nn.Linear(5, 2)))


def sharded(module: nn.Module, mesh: da.DeviceMesh, **kwargs: Any) -> nn.Module:
    """Return a copy of which each layer is sharded."""
    mine = copy.deepcopy(module)
    for child in mine:
        dt.fully_shard(child, mesh, **kwargs)
    return dt.fully_shard(mine, mesh, **kwargs)


def beside(
    program: Callable[[nn.Module], list[torch.Tensor] | None],
    ranks: int = 2,
    module: nn.Module | None = None,
    **kwargs: Any,
) -> None:
    """Run a program with a sharded module and with a whole one; compare what it returns.

    The program returns gradients of activations, of losses that are means over the rows.
    """
    start = layers() if module is None else module
    whole = copy.deepcopy(start)
    wanted = program(whole)

    def on_rank(mesh: da.DeviceMesh) -> None:
        mine = sharded(start, mesh, **kwargs)
        found = program(mine)
        for given, expected in zip(found or (), wanted or (), strict=True):
            # A gradient of the mean over a shard is that of the whole mean times the shards.
            same(given.detach(), rows_of(mine, expected.detach()) * mesh.size, "result")
        check_gradients(mine, gradients(whole))
        check_parameters(mine, whole)
        assert mesh.size == 1 or all(
            p.shape != q.shape for p, q in zip(mine.parameters(), whole.parameters(), strict=True)
        )

    on_ranks(ranks, on_rank)
    on_ranks(1, on_rank)  # where shards are the wholes
