"""Torch's own transformer layers as a whole: attention by heads, the rest by columns and rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from distarray.comm import DeviceMesh
from distarray.errors import ArgumentTypeError
from distarray.layout import Layout, Replicate
from distarray.torch._modules import state_of
from distarray.torch._moves import move
from distarray.torch._opaque import disable_compile
from distarray.torch._routes import routes_between
from distarray.torch.parallel._feature_parallel import ColwiseParallel, RowwiseParallel
from distarray.torch.parallel._forward_wrapper import extend
from distarray.torch.parallel._partition_rules import check_stock
from distarray.torch.parallel._style import ParallelStyle, check_one_axis
from distarray.torch.parallel.layers._features import Features
from distarray.torch.training import drop

_LAYERS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
_CHILDREN: dict[str, type[ParallelStyle]] = {
    "self_attn": ColwiseParallel,
    "multihead_attn": ColwiseParallel,
    "linear1": ColwiseParallel,
    "linear2": RowwiseParallel,
}


class TransformerLayerParallel(ParallelStyle):
    """Cut an `nn.TransformerEncoderLayer` or `nn.TransformerDecoderLayer` as a whole.

    Activations come and go whole on every rank; each block (attention or feed-forward) needs one
    all-reduce forward and one backward. Heads and hidden features need not be multiples of the
    ranks. The activation function must act item by item, as ReLU and GELU do.

    Dropout of what is cut leaves out the same items on any number of ranks; that of whole
    activations does where torch was seeded alike on all ranks.

    Examples
    --------
    >>> def heads():
    ...     model = nn.Sequential(nn.TransformerEncoderLayer(8, 4), nn.Linear(8, 5))
    ...     dt.parallelize_module(model, da.default_mesh(), {"0": dt.TransformerLayerParallel()})
    ...     return [*model[0].self_attn.in_proj_weight.shape]
    >>> da.testing.simulate(2, heads)  # query, key and value of 2 of the 4 heads
    [[12, 8], [12, 8]]
    """

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> None:
        """Cut the layer's parts, and hook them."""
        check_one_axis(mesh, "TransformerLayerParallel")
        if not isinstance(module, _LAYERS):
            raise ArgumentTypeError(
                f"TransformerLayerParallel takes nn.TransformerEncoderLayer and "
                f"nn.TransformerDecoderLayer, not a {type(module).__name__}; plan styles for its "
                "parts instead"
            )
        kind = next(k for k in _LAYERS if isinstance(module, k))
        remedy = "plan styles for its parts instead"
        check_stock(module, kind, "TransformerLayerParallel", remedy)
        check_stock(module.dropout, nn.Dropout, "TransformerLayerParallel", remedy)
        for name, style in _CHILDREN.items():
            child = getattr(module, name, None)
            if child is not None:
                style().apply(child, mesh)
        for child in module.children():
            if isinstance(child, nn.LayerNorm):
                self._keep_whole(child, mesh, summed=False)
                extend(child)
        hidden = Features.of(state_of(module.linear1).placed["weight"], mesh)

        @disable_compile
        def leave_out(
            module: nn.Module, forward: Callable[[torch.Tensor], Any], input: torch.Tensor
        ) -> Any:
            if not module.training or module.p == 0:
                return forward(input)
            shape = (*input.shape[:-1], hidden.size)
            return drop(module, input, hidden.layout(shape, input.ndim - 1))

        def leave(_: nn.Module, y: torch.Tensor) -> torch.Tensor:
            whole = Layout(mesh, [Replicate()], y.shape)
            return move(y, *routes_between(whole, whole))

        extend(module.dropout, arounds=leave_out)
        self.on_output(module, leave)
