"""Column-parallel modules: every rank computes its share of the output features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from distarray.comm import DeviceMesh
from distarray.layout import Layout, Partial, Placement, Replicate, Shard
from distarray.torch import _moves
from distarray.torch._cuts import COLUMNS, Cut, cut_of
from distarray.torch._layouts import place
from distarray.torch._modules import map_inputs, state_of
from distarray.torch._style import ParallelStyle, one_axis, placement

_R, _P = Replicate(), Partial()


class ColwiseParallel(ParallelStyle):
    """Cut a module by its output features.

    For `Linear`, `Bilinear`, `Embedding` and `EmbeddingBag` (by the width of the vectors) and
    convolutions (by output channels). The number of features need not be a multiple of the ranks.

    Parameters
    ----------
    input_layouts
        How the input arrives; default: ``Replicate()``. It is brought to every rank.
    output_layouts
        How the output leaves; default: cut along its features, as it is computed.
    use_local_output
        For compatibility: outputs are plain tensors always.
    parts
        Sizes of several weights that are fused into one along the output features, such as
        query, key and value: each is cut by itself.
    """

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
        parts: Sequence[int] = (),
    ) -> None:
        del use_local_output
        self.input_layouts = placement(input_layouts, "input_layouts", Replicate())
        self.output_layouts = (
            None if output_layouts is None else placement(output_layouts, "output_layouts", _R)
        )
        self.parts = tuple(parts)

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> None:
        """Cut the module's parameters, and hook it."""
        one_axis(mesh, "ColwiseParallel")
        cut: Cut = cut_of(COLUMNS, module, "ColwiseParallel")
        for name, axis in cut.parameters.items():
            if getattr(module, name, None) is not None:
                self.distribute(module, name, mesh, [Shard(axis)], parts=self.parts, axis=axis)

        features = cut.features

        def gather(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return map_inputs(args, kwargs, cut.inputs, whole)

        def whole(x: torch.Tensor) -> torch.Tensor:
            # Every rank computes other outputs of it: the gradients of all of them are added.
            ways = _moves.legs(x, mesh, [self.input_layouts], [_R], grad_placements=[_P])
            return _moves.moved(x, *ways)

        def leave(module: nn.Module, y: torch.Tensor) -> torch.Tensor:
            computed = self._computed(module, mesh, features, y)
            if self.output_layouts is None:
                place(y, computed)
                return y
            target = Layout(mesh, [self.output_layouts], computed.shape)
            if target.placements == computed.placements:
                target = computed  # whatever its boundaries
            return _moves.moved(y, *_moves.legs_between(computed, target))

        self.on_input(module, gather)
        self.on_output(module, leave)

    @staticmethod
    def _computed(module: nn.Module, mesh: DeviceMesh, features: int, y: torch.Tensor) -> Layout:
        """Return the layout of the output: cut along the features as the weight is."""
        placed = state_of(module).placed["weight"]
        (cut,) = (p.axis for p in placed.layout.placements if type(p) is Shard)
        shape = list(y.shape)
        shape[features] = placed.layout.shape[cut]
        boundaries = placed.layout.boundaries
        axis = features % y.ndim
        return Layout(
            mesh,
            [Shard(axis)],
            shape,
            boundaries=None if boundaries is None else {axis: boundaries[cut]},
        )
