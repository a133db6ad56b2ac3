"""Row-parallel modules: every rank takes its share of the input features, the outputs are added."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from distarray.comm import DeviceMesh
from distarray.errors import LayoutError
from distarray.layout import Layout, Partial, Placement, Replicate, Shard
from distarray.torch import _moves
from distarray.torch._cuts import ROWS, Cut, cut_of
from distarray.torch._modules import map_inputs, state_of
from distarray.torch._style import ParallelStyle, one_axis, placement
from distarray.torch._vocabulary import cut_vocabulary

_R, _P = Replicate(), Partial()


class RowwiseParallel(ParallelStyle):
    """Cut a module by its input features, or an `Embedding` by its vocabulary.

    For `Linear`, `Bilinear` (by the first input), `Embedding` and convolutions (by input channels).
    A bias is added once. The number of features need not be a multiple of the ranks.

    Parameters
    ----------
    input_layouts
        How the input arrives; default: cut along its features (of an `Embedding`: ``Replicate()``).
    output_layouts
        How the output leaves; default: ``Replicate()`` (one all-reduce). ``Shard(1)`` leaves it cut
        along the sequence (one reduce-scatter).
    use_local_output
        For compatibility: outputs are plain tensors always.
    """

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        del use_local_output
        self.input_layouts = (
            None if input_layouts is None else placement(input_layouts, "input_layouts", _R)
        )
        self.output_layouts = placement(output_layouts, "output_layouts", _R)

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> None:
        """Cut the module's parameters, and hook it."""
        one_axis(mesh, "RowwiseParallel")
        if isinstance(module, nn.Embedding):
            cut_vocabulary(self, module, mesh)
            return
        cut: Cut = cut_of(ROWS, module, "RowwiseParallel")
        for name, axis in cut.parameters.items():
            self.distribute(module, name, mesh, [Shard(axis)])
        biased = getattr(module, "bias", None) is not None
        if biased:
            self.distribute(module, "bias", mesh, [_R])
            self.substitute(module, lambda _: {"bias": None})

        def scatter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return map_inputs(
                args, kwargs, cut.inputs, lambda x: self._features(module, mesh, cut, x)
            )

        def leave(module: nn.Module, y: torch.Tensor) -> torch.Tensor:
            y = self.reduced(mesh, y)
            return y + self._bias(module, mesh, cut, y) if biased else y

        self.on_input(module, scatter)
        self.on_output(module, leave)

    def reduced(self, mesh: DeviceMesh, y: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' outputs, placed as it leaves."""
        summed = Layout(mesh, [_P], y.shape)
        ways = _moves.legs_between(summed, summed.replace(placements=[self.output_layouts]))
        return _moves.moved(y, *ways)

    def _features(
        self, module: nn.Module, mesh: DeviceMesh, cut: Cut, x: torch.Tensor
    ) -> torch.Tensor:
        """Return this rank's share of the input features."""
        weight = state_of(module).placed["weight"].layout
        (along,) = (p.axis for p in weight.placements if type(p) is Shard)
        axis = cut.features % x.ndim
        wanted = Shard(axis)
        given = wanted if self.input_layouts is None else self.input_layouts
        src = Layout(mesh, [given], x.shape)  # settles negative axes
        if src.placements[0] is wanted:
            share = weight.local_shape()[along]
            if x.shape[axis] != share:
                raise LayoutError(
                    f"the input has {x.shape[axis]} features on this rank, where the weight "
                    f"{weight} takes {share}: it must be cut as {wanted} with the weight's split; "
                    "or pass input_layouts= as it arrives, such as da.Replicate()"
                )
            return x
        src = _moves.layout_from(x, mesh, src.placements)
        if src.shape[axis] != weight.shape[along]:
            raise LayoutError(
                f"the input {src} has {src.shape[axis]} features, where the weight {weight} takes "
                f"{weight.shape[along]}"
            )
        return _moves.moved(x, *_moves.legs_between(src, src.replace(placements=[wanted])))

    def _bias(self, module: nn.Module, mesh: DeviceMesh, cut: Cut, y: torch.Tensor) -> torch.Tensor:
        """Return what to add to the output that leaves, given the bias of all features."""
        bias: Any = module.bias
        whole = Layout(mesh, [_R], bias.shape)
        axis = cut.features % y.ndim
        leaving = Layout(mesh, [self.output_layouts], y.shape).placements[0]
        if type(leaving) is Shard and leaving.axis == axis:
            bias = _moves.moved(
                bias, *_moves.legs_between(whole, whole.replace(placements=[Shard(0)]))
            )
        elif type(leaving) is Shard:
            # Each rank adds it to other items: the gradients of all of them are added.
            bias = _moves.moved(bias, *_moves.legs_between(whole, whole, [_P]))
        return bias.reshape(-1, *[1] * (-1 - cut.features))
