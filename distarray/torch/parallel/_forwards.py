"""Whether a module computes what the class of torch's computes that a style knows how to cut."""

from __future__ import annotations

from typing import Any

from torch import nn

from distarray.errors import ArgumentTypeError
from distarray.torch._compat import COMPUTING
from distarray.torch.parallel._forward_wrapper import passage_of


def own_method(module: nn.Module, base: type[nn.Module] | None = None) -> str | None:
    """Return which method of a module computes something else than torch's class; None if none.

    Parameters
    ----------
    base
        That class; default: the nearest of torch's that the module derives from.
    """
    if passage_of(module).forward is not None:
        return "forward"
    kind: Any = base or next(
        k for k in type(module).__mro__ if k.__module__.startswith("torch.nn.")
    )
    for name in COMPUTING:
        if getattr(type(module), name, None) is not getattr(kind, name, None):
            return name
    return None


def check_stock(
    module: nn.Module, base: type[nn.Module], style: str, remedy: str, consent: bool = False
) -> None:
    """Raise unless a module computes what torch's class does, or the user vouches for it.

    Parameters
    ----------
    style
        What would cut it.
    remedy
        What the user can do.
    consent
        Whether the user says that what the module computes is right on a share.
    """
    own = None if consent else own_method(module, base)
    if own is not None:
        raise ArgumentTypeError(
            f"the {type(module).__name__} has a {own} of its own, not that of torch's "
            f"{base.__name__}: whether it is right on one rank's share, {style} cannot know; "
            f"{remedy}"
        )
