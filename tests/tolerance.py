"""Comparison of what two orders of adding up round differently.

What a sum is off by follows the magnitude of its terms, not that of the sum: a gradient that is
zero but for rounding is as large as one unit in the last place of what cancels in it. So nothing is
compared with a fixed absolute tolerance: the scale is the largest number that took part.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

FACTOR = 4096.0
"""Units in the last place of the largest term: sums of some thousand terms, in a few layers."""


def magnitude(terms: Iterable[Any]) -> float:
    """Return the largest finite absolute value in some tensors; None stands for no tensor."""
    sizes = [term.detach().abs().double().flatten() for term in terms if term is not None]
    finite = [one[one.isfinite()] for one in sizes]
    return max((float(one.max()) for one in finite if one.numel()), default=0.0)


def assert_close(
    given: torch.Tensor,
    wanted: torch.Tensor,
    terms: Iterable[Any] = (),
    *,
    tolerance: float | None = None,
    what: str = "",
) -> None:
    """Compare tensors, by the scale of what was added up in them.

    Parameters
    ----------
    terms
        Tensors of the magnitude of what was added up, where that is not that of what is wanted: all
        gradients of a module, where some of them cancel.
    tolerance
        What may differ, relative to that; by default what the dtype rounds.
    what
        Stands before the message.
    """
    if tolerance is None:
        tolerance = FACTOR * torch.finfo(given.dtype).eps if given.dtype.is_floating_point else 0.0
    scale = magnitude((wanted, *terms))
    torch.testing.assert_close(
        given,
        wanted,
        rtol=tolerance,
        atol=tolerance * scale,
        equal_nan=True,
        msg=lambda message: f"{what}: {message}" if what else message,
    )
