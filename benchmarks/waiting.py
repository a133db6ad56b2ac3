"""Layers that wait where others compute: as the processor sees a model that runs on a device."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn


class _Wait(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor, seconds: float
    ) -> torch.Tensor:
        ctx.gradient, ctx.seconds = gradient, seconds
        time.sleep(seconds)
        return x * weight[0]

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> Any:  # type: ignore[override]
        time.sleep(2 * ctx.seconds)
        return upstream, ctx.gradient if ctx.needs_input_grad[1] else None, None, None


class Waiting(nn.Module):
    """A layer of one flat parameter, whose gradient is known beforehand.

    Parameters
    ----------
    size
        Of the parameter.
    seconds
        How long its forward pass takes; the backward pass takes twice that.
    """

    def __init__(self, size: int, seconds: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._gradient = torch.full((size,), 0.5)
        self._seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Wait.apply(x, self.weight, self._gradient, self._seconds)
