"""How modules are cut: which axis of which parameter, and where the features are.

A module that computes ``y = f(x, W) + b`` is cut by *columns* where every rank computes some of the
output features, and by *rows* where every rank takes some of the input features and the outputs
are added (M. Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from distarray.errors import ArgumentTypeError


@dataclass(frozen=True, slots=True)
class Cut:
    """One way to cut a class of modules.

    Attributes
    ----------
    parameters
        The axis along which each parameter is cut; the others are replicated.
    features
        The axis, from the end, that has the features: of the output where columns are cut, of the
        input where rows are.
    inputs
        How many of the first arguments are inputs.
    """

    parameters: Mapping[str, int]
    features: int
    inputs: int = 1


COLUMNS: dict[type[nn.Module], Cut] = {
    nn.Linear: Cut({"weight": 0, "bias": 0}, -1),
    nn.Bilinear: Cut({"weight": 0, "bias": 0}, -1, inputs=2),
    nn.Embedding: Cut({"weight": 1}, -1),
    nn.EmbeddingBag: Cut({"weight": 1}, -1),
    nn.Conv1d: Cut({"weight": 0, "bias": 0}, -2),
    nn.Conv2d: Cut({"weight": 0, "bias": 0}, -3),
    nn.Conv3d: Cut({"weight": 0, "bias": 0}, -4),
    nn.ConvTranspose1d: Cut({"weight": 1, "bias": 0}, -2),
    nn.ConvTranspose2d: Cut({"weight": 1, "bias": 0}, -3),
    nn.ConvTranspose3d: Cut({"weight": 1, "bias": 0}, -4),
}
ROWS: dict[type[nn.Module], Cut] = {
    nn.Linear: Cut({"weight": 1}, -1),
    nn.Bilinear: Cut({"weight": 1}, -1),
    nn.Conv1d: Cut({"weight": 1}, -2),
    nn.Conv2d: Cut({"weight": 1}, -3),
    nn.Conv3d: Cut({"weight": 1}, -4),
    nn.ConvTranspose1d: Cut({"weight": 0}, -2),
    nn.ConvTranspose2d: Cut({"weight": 0}, -3),
    nn.ConvTranspose3d: Cut({"weight": 0}, -4),
}


def cut_of(table: Mapping[type[nn.Module], Any], module: nn.Module, style: str) -> Any:
    """Return the entry of a module's class, or of the nearest class that it derives from."""
    for kind in type(module).__mro__:
        if kind in table:
            return table[kind]
    known = ", ".join(kind.__name__ for kind in table)
    raise ArgumentTypeError(
        f"{style} knows no way to cut a {type(module).__name__}; it takes {known} and what derives "
        "from them, and a ParallelStyle of your own takes everything else"
    )
