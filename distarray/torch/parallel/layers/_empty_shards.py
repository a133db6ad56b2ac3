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
    """Let a module run whose parameters are empty along an axis.

    It is hooked: call this after the hooks that bring inputs here, and before those that take
    outputs away.

    Parameters
    ----------
    parameters
        The axis along which each of them is empty.
    inputs, outputs
        The axis, from the end, of the features of the first input and of the output, where these
        are empty as well.
    name
        Of the first input.
    width
        How many features of the input one channel of zeros takes.
    """

    def padded(module: nn.Module) -> dict[str, torch.Tensor | None]:
        found: dict[str, torch.Tensor | None] = {}
        for key, axis in parameters.items():
            parameter = getattr(module, key)
            if parameter is not None:
                found[key] = _one_more(parameter, axis, 1)
        return found

    style.substitute(module, padded)
    if inputs is not None:
        hook_arguments(module, {name: lambda _, x: _one_more(x, inputs, width)})
    if outputs is not None:
        axis = outputs
        style.on_output(module, lambda _, y: y.narrow(axis, 0, 0))


def _one_more(x: torch.Tensor, axis: int, width: int) -> torch.Tensor:
    """Return a tensor with zeros after its end along an axis."""
    return functional.pad(x, (0, 0) * (x.ndim - 1 - axis % x.ndim) + (0, width))
