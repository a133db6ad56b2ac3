"""Low-rank updates of a layer, cut together with it: what moves for the layer serves both.

``y = base(x) + up(down(x))`` with a narrow middle (E. J. Hu et al., "LoRA: Low-Rank Adaptation of
Large Language Models", arXiv:2106.09685). By columns, base and up are cut by their outputs and all
ranks compute the middle; by rows, base and down are cut by their inputs, up is applied to each
rank's part of the middle, and one reduction adds up everything. What is not cut (down by columns,
up by rows) is used by each rank for something of its own: its small gradient is added up.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import nn

from distarray.comm import DeviceMesh, list_first
from distarray.errors import ArgumentError, ArgumentTypeError, LayoutError
from distarray.torch._compat import parameters_of
from distarray.torch._opaque import skip_compile
from distarray.torch._shards import shards
from distarray.torch.following import hidden
from distarray.torch.parallel._feature_parallel import (
    ColwiseParallel,
    RowwiseParallel,
    cut_rows,
    hook_columns,
    hook_rows,
)
from distarray.torch.parallel._forward_wrapper import extend
from distarray.torch.parallel._partition_rules import COLUMNS, ROWS, check_stock
from distarray.torch.parallel._style import ParallelStyle, check_one_axis, twin_of_style
from distarray.torch.parallel.layers._features import cut_parameters


class LowRankParallel(ParallelStyle):
    """Cut a linear layer and its low-rank updates (LoRA) together.

    For modules that hold a `Linear`, usually frozen, and pairs of narrow ones, whose ``forward``
    returns the layer's output plus any multiples of what the pairs make of the same input; dropout
    may come before a pair. Nothing more is moved between ranks than for the layer alone, but for
    the gradients of one weight of each pair (its rank times the width of the layer).

    Parameters
    ----------
    style
        `ColwiseParallel` or `RowwiseParallel`, with what it says of layouts, parts and units.
    base, down, up
        Names of the layers in the module; `fnmatch` patterns where there are several pairs. Those
        of the ``peft`` package are ``"base_layer"``, ``"lora_A.*"`` and ``"lora_B.*"``.

    Examples
    --------
    >>> class Adapted(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.base = nn.Linear(8, 6)
    ...         self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 6, bias=False)
    ...     def forward(self, x):
    ...         return self.base(x) + self.up(self.down(x))
    >>> def shapes():
    ...     layer, style = Adapted(), dt.LowRankParallel(dt.ColwiseParallel())
    ...     dt.parallelize_module(layer, da.default_mesh(), style)
    ...     return [[*part.weight.shape] for part in (layer.base, layer.down, layer.up)]
    >>> da.testing.simulate(2, shapes)[0]
    [[3, 8], [2, 8], [3, 2]]
    """

    def __init__(
        self,
        style: ColwiseParallel | RowwiseParallel,
        *,
        base: str = "base",
        down: str = "down",
        up: str = "up",
    ) -> None:
        if not isinstance(style, ColwiseParallel | RowwiseParallel):
            raise ArgumentTypeError(
                f"LowRankParallel cuts a layer by ColwiseParallel or RowwiseParallel, not by "
                f"{type(style).__name__}{twin_of_style(style)}"
            )
        self.style = style
        self.names = {"base": base, "down": down, "up": up}

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> None:
        """Cut the layers, and hook the module that holds them."""
        check_one_axis(mesh, "LowRankParallel")
        (base, *others), downs, ups = (self._layers(module, role) for role in self.names)
        if others:
            raise ArgumentError(
                f"base={self.names['base']!r} matches {1 + len(others)} layers; name the only one"
            )
        remedy = "pass own_forward=True to the style inside if it is"
        for layer in (base, *downs, *ups):
            check_stock(layer, nn.Linear, "LowRankParallel", remedy, self.style.own_forward)
            extend(layer)
        first = list(inspect.signature(type(module).forward).parameters)[1]
        if isinstance(self.style, ColwiseParallel):
            columns = replace(COLUMNS[nn.Linear], inputs=(first,))
            features, *_ = [
                cut_parameters(self.style, m, mesh, columns.parameters) for m in (base, *ups)
            ]
            for layer in downs:
                self._keep_whole(layer, mesh, summed=True)
            hook_columns(self.style, module, mesh, features, columns)
            return
        for layer in (*downs, *ups):
            if layer.bias is not None:
                raise ArgumentError(
                    "a bias inside of a low-rank pair cannot be added once where rows are cut; "
                    "make the pair with bias=False"
                )
        rows = replace(ROWS[nn.Linear], inputs=(first,))
        (name,) = (n for n, m in module.named_modules() if m is base)
        length = None if base.bias is None else len(base.bias)
        features, *_ = [cut_rows(self.style, m, mesh, rows) for m in (base, *downs)]
        for layer in ups:
            self._keep_whole(layer, mesh, summed=True)
        if length is not None:
            extend(module, arounds=partial(_call_without_bias, name=name))
        hook_rows(self.style, module, mesh, features, rows, lambda m: _bias_of(m, name, length))

    def _layers(self, module: nn.Module, role: str) -> list[Any]:
        pattern = self.names[role]
        found = {n: m for n, m in module.named_modules() if n and fnmatchcase(n, pattern)}
        layers = {n: m for n, m in found.items() if isinstance(m, nn.Linear)}
        if not layers:
            names = [repr(name) for name, _ in module.named_modules() if name]
            raise ArgumentError(
                f"{role}={pattern!r} matches no Linear of the {type(module).__name__}, which has "
                f"{list_first(names) or 'no modules'}"
            )
        return list(layers.values())


@skip_compile
def _call_without_bias(
    module: nn.Module, forward: Callable[..., Any], *args: Any, name: str, **kwargs: Any
) -> Any:
    """Hide the bias of a layer in a module, also from a forward that computes with its weight.

    A shard of `fully_shard` stays in its place till the layer itself is called.
    """
    parameters = parameters_of(module.get_submodule(name))
    bias = parameters["bias"]
    if bias is None or bias in shards:
        return forward(*args, **kwargs)
    parameters["bias"] = None
    before = hidden.set((*hidden.get(), (parameters, ("bias",))))
    try:
        return forward(*args, **kwargs)
    finally:
        hidden.reset(before)
        parameters["bias"] = bias


def _bias_of(module: nn.Module, name: str, length: int | None) -> torch.Tensor | None:
    """Return the bias of a layer in a module, of a length that it had when it was cut."""
    layer: Any = module.get_submodule(name)
    bias: torch.Tensor | None = layer.bias
    if bias is not None and len(bias) != length:
        raise LayoutError(
            f"the bias of {name!r}, of {length} items, is a shard of {len(bias)} here: "
            "it is added when the layer and its updates have been, after the group of the layer "
            "has gone; let fully_shard make one group of the "
            f"{type(module).__name__}, not of layers in it"
        )
    return bias
