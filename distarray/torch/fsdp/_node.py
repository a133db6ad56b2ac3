"""Where the wholes come from, for autograd: its node is reached when all their gradients are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from distarray.torch._anchor import ANCHOR


class Gathering(Protocol):
    """What gathers wholes and takes their gradients."""

    def wholes(self) -> list[torch.Tensor]:
        """Return the wholes, and which of them require gradients."""

    def receive(self, gradients: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
        """Take the gradients of the wholes; return those of the shares, None for later ones."""


class _Unshard(torch.autograd.Function):
    """Hand out the wholes of a group's parameters; take their gradients all at once."""

    @staticmethod
    def forward(ctx: Any, group: Gathering, *_: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.group = group
        ctx.set_materialize_grads(False)
        wholes = tuple(group.wholes())
        needed = ctx.needs_input_grad[2:]
        ctx.mark_non_differentiable(
            *(w for w, need in zip(wholes, needed, strict=True) if not need)
        )
        return wholes

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:  # type: ignore[override]
        return None, None, *ctx.group.receive(gradients)


def unsharded(group: Gathering, shares: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the wholes of a group, as autograd knows them."""
    if torch.is_grad_enabled() and any(share.requires_grad for share in shares):
        return list(_Unshard.apply(group, ANCHOR, *shares))
    return group.wholes()
