"""Row-parallel modules: every rank takes its shard of the input features, the outputs are added."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import nn

from distarray.comm import DeviceMesh
from distarray.layout import Replicate, Shard
from distarray.torch._modules import state_of
from distarray.torch.parallel._partition_rules import ROWS, Cut, cut_of, hook_arguments
from distarray.torch.parallel._style import FeatureParallel, one_axis
from distarray.torch.parallel.layers import _empty_shards
from distarray.torch.parallel.layers._convolution import cut_groups, is_grouped
from distarray.torch.parallel.layers._embedding import cut_bags, cut_vocabulary
from distarray.torch.parallel.layers._features import (
    Features,
    cut_parameters,
    gather_input,
    sum_output,
)
from distarray.torch.parallel.layers._linear import multiply_in_reach

_R = Replicate()


class RowwiseParallel(FeatureParallel):
    """Cut a module by its input features, or an embedding by its vocabulary.

    For `Linear`, `Bilinear` (by the first input), `Embedding`, `EmbeddingBag` and convolutions (by
    input channels; with groups, by whole groups). A bias is added once. The number of features need
    not be a multiple of the ranks.

    Parameters
    ----------
    input_layouts
        How the input arrives; default: cut along its features (of embeddings: ``Replicate()``).
        The second input of a `Bilinear` is ``Replicate()`` always.
    output_layouts
        How the output leaves; default: ``Replicate()`` (one all-reduce). ``Shard(1)`` leaves it cut
        along the sequence (one reduce-scatter).
    use_local_output
        For compatibility: outputs are plain tensors always.
    parts, unit
        How the input features are cut, as in the `ColwiseParallel` that computes them.
    own_forward
        Whether a ``forward`` that a class derived from torch's has of its own is right where it is
        given a rank's shard of the input and no bias, and the outputs are added; others are
        refused.

    Examples
    --------
    >>> def shapes():
    ...     model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5))
    ...     plan = {"0": dt.ColwiseParallel(), "2": dt.RowwiseParallel()}
    ...     dt.parallelize_module(model, da.default_mesh(), plan)
    ...     return [*model[2].weight.shape], [*model(torch.ones(2, 4)).shape]
    >>> da.testing.simulate(2, shapes)  # 3 of the 6 features between the layers on each rank
    [([5, 3], [2, 5]), ([5, 3], [2, 5])]
    """

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> None:
        """Cut the module's parameters, and hook it."""
        one_axis(mesh, "RowwiseParallel")
        cut = cut_of(ROWS, module, "RowwiseParallel", self.own_forward)
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            self.refuse_parts("a vocabulary has none")
            if isinstance(module, nn.Embedding):
                cut_vocabulary(self, module, mesh)
            else:
                cut_bags(self, module, mesh)
        elif is_grouped(module):
            given, target = self.input_layouts, self.output_layouts or _R
            cut_groups(self, module, mesh, given, target, rows=True)
        else:
            features = cut_rows(self, module, mesh, cut)
            if getattr(type(module), "reset_parameters", None) is nn.Bilinear.reset_parameters:
                module.__dict__["reset_parameters"] = MethodType(_reset_bilinear, module)
            biased = getattr(module, "bias", None) is not None
            hook_rows(self, module, mesh, features, cut, lambda m: m.bias if biased else None)


def cut_rows(style: RowwiseParallel, module: nn.Module, mesh: DeviceMesh, cut: Cut) -> Features:
    """Cut a module's weight, and leave its bias to those who add it once."""
    features = cut_parameters(style, module, mesh, cut.parameters)
    if getattr(module, "bias", None) is not None:
        style.distribute(module, "bias", mesh, [_R])
        if type(style.output_layouts) is Shard:
            state_of(module).summed["bias"] = mesh
        style.substitute(module, lambda _: {"bias": None})
    return features


def hook_rows(
    style: RowwiseParallel,
    module: nn.Module,
    mesh: DeviceMesh,
    features: Features,
    cut: Cut,
    bias_of: Callable[[Any], torch.Tensor | None],
) -> None:
    """Bring a module's inputs to where they are needed, and add up the ranks' outputs."""
    given, target = style.input_layouts, style.output_layouts or _R
    ways = dict.fromkeys(cut.inputs, lambda _, x: gather_input(x, mesh))
    ways[cut.inputs[0]] = lambda _, x: features.take(x, given, cut.features)
    hook_arguments(module, ways)
    if isinstance(module, nn.Linear):
        multiply_in_reach(module, adds_output=True)
    if cut.fills and features.own == 0:
        _empty_shards.fill(style, module, cut.parameters, inputs=cut.features, name=cut.inputs[0])
    style.on_output(module, lambda m, y: sum_output(y, mesh, target, bias_of(m), cut.features))


def _reset_bilinear(module: Any) -> None:
    """Reset as torch does, which takes the first input's size from the weight: here of a shard."""
    bound = 1 / math.sqrt(module.in1_features)
    for parameter in module.parameters(recurse=False):
        nn.init.uniform_(parameter, -bound, bound)
