"""Refusal of torch.func, whose transforms see nothing of what ranks send each other."""

from __future__ import annotations

from distarray.errors import ArgumentError
from distarray.torch._compat import is_transforming


def refuse_transforms(what: str) -> None:
    """Raise inside of a transform of torch.func.

    Parameters
    ----------
    what
        What the transforms cannot follow, and what to do instead.
    """
    if is_transforming():
        raise ArgumentError(
            f"torch.func (grad, vjp, jvp, vmap, ...) cannot look into {what}; or take gradients by "
            "backward() or torch.autograd.grad"
        )
