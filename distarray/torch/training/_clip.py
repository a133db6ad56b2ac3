"""Gradients scaled to a norm, that of the whole model."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from distarray.torch._layouts import layout_of
from distarray.torch._share_records import name_of
from distarray.torch.training._norms import Block, alike, distinct, total_norm


@torch.no_grad()
def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    """Scale gradients down, in place, so that their norm is not above a maximum (collective).

    The norm is that of all gradients as one vector, of the model as one process has it: blocks
    count once however they are replicated. One all-reduce of a single number where any parameter is
    sharded, over the mesh axes that shard; none otherwise.

    Parameters
    ----------
    parameters
        The same on every rank, with whatever layouts. Those that `layout_of` knows nothing of are
        taken as replicated. What has a gradient on one rank has one on all.
    max_norm
        Maximum of the norm.
    norm_type
        p of the p-norm, such as 2.0 or ``float("inf")``; not 0.
    error_if_nonfinite
        Raise, on every rank, where the norm is not finite; else the gradients become NaN or 0.
    foreach
        As in torch: False takes tensors one by one.

    Returns
    -------
    torch.Tensor
        The norm before scaling, the same on every rank; of float32 where gradients are of lower
        precision, in which norms are computed then.

    Raises
    ------
    NonFiniteError
        See ``error_if_nonfinite``.
    MismatchError
        The ranks pass parameters of different shapes or layouts, or other options; or one has no
        gradient of a parameter of which others have one, so that no norm would be that of one
        process.
    """
    found = distinct(parameters)
    max_norm = float(max_norm)
    blocks = [
        Block(p.grad, layout_of(p), _name(i, p) if p.grad is None else "")
        for i, p in enumerate(found)
    ]
    asked = f"clip_grad_norm_, {max_norm=}"
    total = total_norm(blocks, float(norm_type), error_if_nonfinite, foreach, asked)
    scale = (max_norm / (total + 1e-6)).clamp(max=1.0)
    gradients = [block.values for block in blocks if block.values is not None]
    if foreach is False:
        for gradient in gradients:
            gradient.mul_(scale.to(gradient.device))
    else:
        for group in alike(gradients):
            torch._foreach_mul_(group, scale.to(group[0].device))
    return total


def _name(position: int, parameter: torch.Tensor) -> str:
    """Return how a message calls a parameter: alike on all ranks."""
    layout = layout_of(parameter)
    shape = tuple(parameter.shape) if layout is None else layout.shape
    return f"parameter {position} {name_of(parameter)}of shape {shape}"
