"""Modules that are whole on every rank, but for parameters that a model's plan cuts by name.

What a module of experts computes is linear in its last weights. So each expert is cut as two linear
layers are, the first by columns and the last by rows, every rank computes a part of the output of
every expert, whatever items are routed to it, and the parts are added up once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from distarray.comm import DeviceMesh
from distarray.layout import Placement, Replicate, Shard
from distarray.torch._moves import redistribute
from distarray.torch.parallel._forward_wrapper import hide_forward
from distarray.torch.parallel._parameters import distribute_buffer
from distarray.torch.parallel._style import ParallelStyle
from distarray.torch.parallel.layers._features import gather_input, sum_output

_R = Replicate()


class WholeParallel(ParallelStyle):
    """Keep a module's parameters and buffers whole, as is known where they meet shards.

    There their gradients are added up: so those of a norm over each head. What an embedding gives
    all ranks have, since they have the same words.

    Parameters
    ----------
    grad_placements
        How gradients of the output arrive: ``[Partial()]`` where all that follows is cut.
    cuts
        By name, ``axis``, ``parts`` and ``unit`` of parameters that are cut after all.
    """

    def __init__(
        self,
        grad_placements: Sequence[Placement] | None = None,
        cuts: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.grad_placements = grad_placements
        self.cuts = cuts or {}

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> None:
        """Give all ranks the module's parameters and buffers."""
        least = self.least(module, mesh)
        for name, _ in module.named_parameters(recurse=False):
            told = dict(self.cuts.get(name) or {})
            if told:
                told["unit"] = told.get("unit", 1) * least
            self.distribute(module, name, mesh, [Shard(told["axis"]) if told else _R], **told)
        for name, _ in module.named_buffers(recurse=False):
            distribute_buffer(module, name, mesh, [_R])
        if isinstance(module, nn.Embedding) or self.grad_placements:
            how: Any = {"grad_placements": self.grad_placements}
            self.on_output(module, lambda _, y: redistribute(y, mesh, [_R], [_R], **how))

    def least(self, module: nn.Module, mesh: DeviceMesh) -> int:
        """Return how many units of what is cut a rank has at least, if any."""
        del module, mesh
        return 1


class ExpertsParallel(WholeParallel):
    """Cut all experts of a module, each in itself, and add up what the ranks compute."""

    def least(self, module: nn.Module, mesh: DeviceMesh) -> int:
        """Return eight features where there are many: torch's grouped products take 16 bytes."""
        inside = min(getattr(module, k).shape[told["axis"]] for k, told in self.cuts.items())
        return next((n for n in (8, 4, 2) if inside % n == 0 and inside // n >= mesh.size), 1)

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> None:
        """Cut the module's parameters, and hook it."""
        super().apply(module, mesh)

        def bring(value: Any) -> Any:
            is_real = isinstance(value, torch.Tensor) and value.is_floating_point()
            return gather_input(value, mesh) if is_real else value

        self.on_input(
            module,
            lambda _, args, kwargs: (
                tuple(map(bring, args)),
                {name: bring(value) for name, value in kwargs.items()},
            ),
        )
        hide_forward(module)
        self.on_output(module, lambda _, y: sum_output(y, mesh, _R))


class IdentityParallel(ParallelStyle):
    """Let a module in `ExpertsParallel` that returns its input give each rank a part of it."""

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> None:
        """Divide the input, of which the ranks' parts will be added up."""
        size = mesh.size
        self.on_input(module, lambda _, args, kwargs: ((args[0] / size, *args[1:]), kwargs))
