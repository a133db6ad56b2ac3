"""Cuts by other meshes than a style's, as of a batch: they stay beside what its module makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from distarray.layout import Layout
from distarray.torch._layouts import (
    Lost,
    cut_axes,
    cut_beside,
    is_placed_along,
    keep_cuts,
    lines_of_mesh,
    note,
)
from distarray.torch._modules import state_of
from distarray.torch._opaque import disable_compile
from distarray.torch.following import tensors_in


class Cuts(NamedTuple):
    """How other meshes cut an input of a module."""

    x: torch.Tensor
    layout: Layout | Lost


@disable_compile
def find_cuts(module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> Cuts | None:
    """Return how other meshes than those of a module's styles cut its first input that is cut."""
    styles = state_of(module).styles
    if not styles:
        return None
    lines = frozenset(line for _, mesh in styles for line in lines_of_mesh(mesh))
    for x in tensors_in(args, kwargs):
        layout = cut_beside(x, lines)
        if layout is not None:
            return Cuts(x, layout)
    return None


@disable_compile
def keep_cuts_of(module: nn.Module, cuts: Cuts, output: Any) -> Any:
    """Remember how other meshes cut what a module has made of a cut input, or that it is lost."""
    x, layout = cuts
    worked, y = _axes_across(module, x.ndim), next(iter(tensors_in((output,), {})), None)
    if worked is None or y is None:
        return output
    met = worked.intersection(() if isinstance(layout, Lost) else cut_axes(layout))
    if isinstance(layout, Layout) and met and not is_placed_along(y, layout):
        note(y, Lost(layout, type(module).__name__, met))
    else:
        keep_cuts(x, y, layout)
    return output


def _axes_across(module: Any, ndim: int) -> frozenset[int] | None:
    """Return the axes along which a module works; None where that is not known."""
    every = frozenset(range(ndim))
    if isinstance(module, nn.Embedding | nn.Dropout):
        return frozenset()
    if isinstance(module, nn.Linear | nn.Bilinear | nn.LayerNorm | nn.RMSNorm):
        return frozenset(range(ndim - len(getattr(module, "normalized_shape", (0,))), ndim))
    if isinstance(module, nn.MultiheadAttention):
        return every - {int(not module.batch_first)} if ndim == 3 else every
    if isinstance(module, _CONVOLUTIONS):
        first = ndim - len(module.kernel_size)
        windows = {first + i for i, length in enumerate(module.kernel_size) if length > 1}
        return frozenset(windows | {first - 1})
    if isinstance(module, _BATCH_NORMS):
        is_own = module.training or module.running_mean is None
        return every - {1} if is_own else frozenset()
    if isinstance(module, _NORMS):
        return every - {0}
    return None


_CONVOLUTIONS = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_NORMS = (nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
