"""Ranks with nothing of a weight: they compute with one channel of zeros, and leave it out.

Convolutions and bilinear forms refuse weights without channels, or mistake the shape of what
comes out. The parameter stays empty, and its gradient is.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional

from distarray.torch.parallel._partition_rules import hook_arguments
from distarray.torch.parallel._style import ParallelStyle


def fill(
    style: ParallelStyle,
    module: nn.Module,
    parameters: Mapping[str, int],
    *,
    inputs: int | None = None,
    outputs: int | None = None,
    name: str = "input",
    width: int = 1,
) -> None:
    """Let a module run whose parameters are empty along an axis: ``parameters`` says which of each.

    ``inputs`` and ``outputs`` are the axes, from the end, of the features of the first input (of
    this ``name``) and of the output, where these are empty as well; one channel of zeros takes
    ``width`` features of the input. Call this after the hooks that bring inputs here, and before
    those that take outputs away.
    """

    def pad(module: nn.Module) -> dict[str, torch.Tensor | None]:
        found: dict[str, torch.Tensor | None] = {}
        for key, axis in parameters.items():
            parameter = getattr(module, key)
            if parameter is not None:
                found[key] = _one_more(parameter, axis, 1)
        return found

    style.substitute(module, pad)
    if inputs is not None:
        hook_arguments(module, {name: lambda _, x: _one_more(x, inputs, width)})
    if outputs is not None:
        axis = outputs
        style.on_output(module, lambda _, y: y.narrow(axis, 0, 0))


def _one_more(x: torch.Tensor, axis: int, width: int) -> torch.Tensor:
    """Return a tensor with zeros after its end along an axis."""
    return functional.pad(x, (0, 0) * (x.ndim - 1 - axis % x.ndim) + (0, width))
