"""Replicated parameters that each rank uses for items of its own: their gradients are added."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from distarray.comm import DeviceMesh
from distarray.layout import Layout, Partial, Replicate
from distarray.torch import _moves
from distarray.torch._compat import parameters_of
from distarray.torch._layouts import Beside
from distarray.torch._transforms import refuse_transforms

_R, _P = Replicate(), Partial()
_standing_in: Beside[bool] = Beside()
"""Tensors that stand for parameters, in calls that may call their module again."""


class _Summed(torch.autograd.Function):
    """Return tensors as they are; their gradients are added up over the ranks, all in one."""

    @staticmethod
    def forward(ctx: Any, mesh: DeviceMesh, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.mesh = mesh
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:  # type: ignore[override]
        return None, *_totals(ctx.mesh, gradients)


def _totals(mesh: DeviceMesh, tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Return the sums of all ranks' tensors, by one all-reduce for those of one dtype."""
    totals: list[torch.Tensor] = list(tensors)
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        chosen = [i for i, tensor in enumerate(tensors) if tensor.dtype is dtype]
        pieces = [tensors[i].reshape(-1) for i in chosen]
        packed = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        summed = Layout(mesh, [_P], packed.shape)
        ways = _moves.legs_between(summed, summed.replace(placements=[_R]))
        total = _moves.moved(packed, *ways)
        for i, piece in zip(chosen, total.split([piece.numel() for piece in pieces]), strict=True):
            totals[i] = piece.view(tensors[i].shape)
    return totals


def summed_parameters(module: nn.Module, mesh: DeviceMesh) -> dict[str, torch.Tensor]:
    """Return what stands for a module's own parameters where it computes this rank's items.

    The gradients of the parameters are then those of all ranks' items: one all-reduce of all of
    them together, in the backward pass. Parameters that require no gradient are left out.
    """
    found = {
        name: parameter
        for name, parameter in parameters_of(module).items()
        if parameter is not None and parameter.requires_grad and not _is_summed(parameter)
    }
    if not found or mesh.size == 1 or not torch.is_grad_enabled():
        return {}
    refuse_transforms(
        "replicated parameters whose gradients are added up over the ranks (SequenceParallel, and "
        "norms in it); call a copy of the module that is not parallelized"
    )
    summed = dict(zip(found, _Summed.apply(mesh, *found.values()), strict=True))
    for tensor in summed.values():
        _standing_in.set(tensor, True)
    return summed


def _is_summed(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor stands for a parameter already, in a call inside a call."""
    return bool(_standing_in.get(tensor))


@contextlib.contextmanager
def with_summed_parameters(module: nn.Module, mesh: DeviceMesh) -> Iterator[None]:
    """Let a module find `summed_parameters` in the place of its own inside."""
    parameters = parameters_of(module)
    found = summed_parameters(module, mesh)
    own = {name: parameters[name] for name in found}
    parameters.update(found)
    try:
        yield
    finally:
        parameters.update(own)
