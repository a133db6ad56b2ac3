"""Moves for which one rank passes something else than the others."""

from __future__ import annotations

from typing import Any

import torch

import distarray as da
import distarray.torch as dt

R, P, S = da.Replicate(), da.Partial(), da.Shard

DIFFERENT = {
    "shape": lambda odd: ((torch.ones(4 + odd, 2), [P], [R]), {}),
    "axes": lambda odd: ((torch.ones(*(4, 2, 3)[: 2 + odd]), [S(0)], [R]), {}),
    "uncut axis": lambda odd: ((torch.ones(4, 2 + odd), [S(0)], [R]), {}),
    "dtype": lambda odd: (
        (torch.ones(4, 2, dtype=(torch.float32, torch.float64)[odd]), [P], [R]),
        {},
    ),
    "dtype of shards": lambda odd: (
        (torch.ones(4, 2, dtype=(torch.float32, torch.int32)[odd]), [S(0)], [R]),
        {},
    ),
    "source": lambda odd: ((torch.ones(4, 2), [(P, S(0))[odd]], [R]), {"shape": (4 + 4 * odd, 2)}),
    "target": lambda odd: ((torch.ones(4, 2), [P], [(R, S(0))[odd]]), {}),
    "target of shards": lambda odd: ((torch.ones(4, 2), [S(0)], [(R, S(1))[odd]]), {}),
    "shape told": lambda odd: ((torch.ones(4 + odd, 2), [S(0)], [R]), {"shape": (8, 2)}),
    "need of a gradient": lambda odd: (
        (torch.ones(4, 2, requires_grad=bool(odd)), [S(0)], [R]),
        {"grad_placements": [P]},
    ),
    "need of an impossible gradient": lambda odd: (
        (torch.ones(4, 2, requires_grad=bool(odd)), [da.Partial("max")], [R]),
        {},
    ),
}


def here(
    x: torch.Tensor,
    mesh: da.DeviceMesh,
    src: list[Any],
    dst: list[Any],
    background: bool,
    options: dict[str, Any],
) -> torch.Tensor:
    """Redistribute, and wait for it where it runs in the background."""
    found = dt.redistribute(x, mesh, src, dst, **options, async_op=background)
    return found.wait() if background else found
