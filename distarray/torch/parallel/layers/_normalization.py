"""Normalisation over axes that are cut: the ranks' statistics are merged, exactly.

Each rank tells the count, the sum and the sum of squared deviations from its own mean; merged by
T. F. Chan, G. H. Golub and R. J. LeVeque, "Updating formulae and a pairwise algorithm for computing
sample variances", 1979. One all-gather forward and one reduce-scatter backward, of three numbers
for each group.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from distarray.comm import DeviceMesh
from distarray.layout import Layout, Partial, Replicate, Shard
from distarray.torch import _moves


def normalized(
    module: nn.GroupNorm | Any, x: torch.Tensor, mesh: DeviceMesh, channels: int, groups: int
) -> torch.Tensor:
    """Return a `GroupNorm` or `InstanceNorm` of a block that is cut along axes after the channels.

    Parameters
    ----------
    x
        This rank's block, of shape (..., channels, *).
    channels
        Which axis they are.
    groups
        How many groups of channels are normalised, each by itself.
    """
    rows = x.shape[:channels].numel() * groups
    items = x.reshape(rows, x.numel() // rows if rows else 0)
    if x.dtype in (torch.float16, torch.bfloat16):
        items = items.float()
    result = _standardized(items, mesh, module.eps).reshape(x.shape)
    shape = (-1, *[1] * (x.ndim - channels - 1))
    if module.weight is not None:
        result = result * module.weight.reshape(shape)
    if module.bias is not None:
        result = result + module.bias.reshape(shape)
    return result if torch.is_autocast_enabled(x.device.type) else result.to(x.dtype)


def _standardized(items: torch.Tensor, mesh: DeviceMesh, eps: float) -> torch.Tensor:
    """Return rows less their mean, over their standard deviation; all ranks have items of them."""
    rows, count = items.shape
    total = items.sum(1)
    deviations = items - (total / max(count, 1)).unsqueeze(1)
    told = torch.stack([torch.full_like(total, count), total, (deviations**2).sum(1)])
    cut = Layout(mesh, [Shard(0)], (mesh.size, 3, rows))
    # Every rank uses them for its own items: the gradients of all are added.
    ways = _moves.legs_between(cut, cut.replace(placements=[Replicate()]), [Partial()])
    counts, totals, squares = _moves.moved(told.unsqueeze(0), *ways).unbind(1)
    whole = counts.sum(0)
    mean = totals.sum(0) / whole
    apart = counts * (totals / counts.clamp(min=1) - mean) ** 2
    variance = (squares + apart).sum(0) / whole
    return (items - mean.unsqueeze(1)) * (variance + eps).rsqrt().unsqueeze(1)
