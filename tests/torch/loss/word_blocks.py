"""Blocks of one tensor of rows and words, and whether others are the blocks they are said to be."""

from __future__ import annotations

import torch

import distarray as da
from distarray.torch._layouts import place
from distarray.torch.following import known_layout

ROWS, WORDS = 5, 7
FULL = torch.randn(ROWS, WORDS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def block_of(mesh: da.DeviceMesh, axis: int) -> torch.Tensor:
    """Return this rank's block of `FULL`, cut along an axis."""
    layout = da.Layout(mesh, [da.Shard(axis)], FULL.shape)
    box = tuple(slice(*bounds) for bounds in layout.local_box())
    block = FULL[box].clone()
    place(block, layout)
    return block


def is_block(mine: torch.Tensor, full: torch.Tensor) -> bool:
    """Tell whether a tensor is what its layout says of that of one process."""
    layout = known_layout(mine)
    box = tuple(slice(*bounds) for bounds in layout.local_box())
    if tuple(layout.shape) != tuple(full.shape) or full[box].shape != mine.shape:
        return False
    wide = torch.complex128
    return torch.allclose(full[box].to(wide), mine.to(wide), equal_nan=True)
