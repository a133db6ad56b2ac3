"""Modules cut by their features: by columns, those of the output, or by rows, those of the input.

By columns every rank computes its shard of the output features. By rows it takes its shard of the
input features, and the ranks' outputs are added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import torch
from torch import nn

from distarray.comm import DeviceMesh
from distarray.errors import ArgumentError, ArgumentTypeError
from distarray.layout import Placement, Replicate, Shard, suggest_for_torch
from distarray.torch._modules import state_of
from distarray.torch.parallel._forward_wrapper import extend
from distarray.torch.parallel._partition_rules import (
    COLUMNS,
    ROWS,
    Cut,
    cut_of,
    hook_arguments,
    own_method,
)
from distarray.torch.parallel._slices import keep_shards
from distarray.torch.parallel._style import ParallelStyle, check_one_axis
from distarray.torch.parallel.layers._attention import cut_heads
from distarray.torch.parallel.layers._convolution import cut_groups, is_grouped
from distarray.torch.parallel.layers._embedding import cut_bags, cut_vectors, cut_vocabulary
from distarray.torch.parallel.layers._features import (
    Features,
    cut_parameters,
    fill_empty,
    gather_input,
    sum_output,
)
from distarray.torch.parallel.layers._linear import multiply_in_reach
from distarray.torch.parallel.layers._normalization import NORMS, cut_channels

_R = Replicate()


class FeatureParallel(ParallelStyle):
    """Cut a module by its features: what the styles for columns and rows are made with.

    Layouts are None where the default of the style, or of the kind of module, holds.
    """

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
        parts: Sequence[int] = (),
        unit: int | Sequence[int] = 1,
        own_forward: bool = False,
    ) -> None:
        del use_local_output
        self.input_layouts = _placement(input_layouts, "input_layouts")
        self.output_layouts = _placement(output_layouts, "output_layouts")
        self.parts = tuple(parts)
        self.unit = unit
        self.own_forward = own_forward

    def refuse_parts(self, why: str) -> None:
        """Raise where parts or units are given for a module that knows its own, or has none."""
        if self.parts or self.unit != 1:
            raise ArgumentError(f"parts={self.parts}, unit={self.unit}: {why}; leave both out")


def _placement(value: Any, name: str) -> Placement | None:
    """Return one placement of a keyword argument, which may come in a sequence of one."""
    if isinstance(value, Sequence) and len(value) == 1:
        value = value[0]
    if value is not None and not isinstance(value, Placement):
        raise ArgumentTypeError(
            f"{name}={value!r}: takes one placement, such as da.Shard(1) or da.Replicate()"
            f"{suggest_for_torch(value)}"
        )
    return value


# --- columns --------------------------------------------------------------------------------------


class ColwiseParallel(FeatureParallel):
    """Cut a module by its output features.

    For `Linear`, `Bilinear`, `Embedding` and `EmbeddingBag` (by the width of the vectors),
    convolutions (by output channels; with groups, by whole groups) and `MultiheadAttention` (by
    heads). The number of features need not be a multiple of the ranks.

    `BatchNorm`, `GroupNorm` (by whole groups) and `InstanceNorm` between modules whose channels are
    cut are cut alike, with their running statistics: nothing is moved.

    Parameters
    ----------
    input_layouts
        How the input arrives; default: ``Replicate()``. It is brought to every rank, except for
        convolutions with groups, where each rank takes the channels of its groups. Normalisations
        take it cut along the channels by default. Of an input of 1 MiB and more that is gathered a
        rank keeps its shard alone for the backward pass, and gathers there once more, for the
        weight's gradient; what a `Linear` takes under autocast is gathered cast.
    output_layouts
        How the output leaves; default: cut along its features, as it is computed. That of a
        `MultiheadAttention` leaves as ``Replicate()`` by default.
    use_local_output
        For compatibility: outputs are plain tensors always.
    parts
        Sizes of several weights that are fused into one along the output features, such as
        query, key and value: each is cut by itself, and the output of a rank is its shard of each,
        one after another.
    unit
        How many output features must stay together: the size of a head, for instance. One number,
        or one for each part. Where ``g`` query heads share one key and value,
        ``parts=(g * heads * size, heads * size, heads * size), unit=(g * size, size, size)``.
    own_forward
        Whether a ``forward`` that a class derived from torch's has of its own is right on a rank's
        shard of the features; others are refused.

    Notes
    -----
    The `RowwiseParallel` that takes an output cut in units is given the same ``unit``.

    References
    ----------
    V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
    arXiv:2205.05198, section 4.2.2.

    Examples
    --------
    >>> def shapes():
    ...     layer = nn.Linear(4, 6)
    ...     dt.parallelize_module(layer, da.default_mesh(), dt.ColwiseParallel())
    ...     return [*layer.weight.shape], [*layer(torch.ones(2, 4)).shape]
    >>> da.testing.simulate(2, shapes)  # 3 of the 6 features on each rank
    [([3, 4], [2, 3]), ([3, 4], [2, 3])]
    """

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> None:
        """Cut the module's parameters, and hook it."""
        check_one_axis(mesh, "ColwiseParallel")
        if isinstance(module, nn.MultiheadAttention):
            cut_heads(self, module, mesh, self.input_layouts or _R, self.output_layouts or _R)
            return
        if isinstance(module, NORMS):
            cut_channels(self, module, mesh, self.input_layouts, self.output_layouts)
            return
        cut = cut_of(COLUMNS, module, "ColwiseParallel", self.own_forward)
        if is_grouped(module):
            cut_groups(self, module, mesh, self.input_layouts or _R, self.output_layouts)
        elif isinstance(module, nn.Embedding | nn.EmbeddingBag):
            cut_vectors(self, module, mesh)
        else:
            features = cut_parameters(self, module, mesh, cut.parameters)
            hook_columns(self, module, mesh, features, cut)


def hook_columns(
    style: ColwiseParallel, module: nn.Module, mesh: DeviceMesh, features: Features, cut: Cut
) -> None:
    """Bring a module's inputs to every rank, and its output to where it leaves."""
    given, target = style.input_layouts or _R, style.output_layouts
    casts = isinstance(module, nn.Linear) and own_method(module, nn.Linear) is None
    ways = dict.fromkeys(cut.inputs, lambda _, x: gather_input(x, mesh, given, casts=casts))
    hook_arguments(module, ways)
    if isinstance(module, nn.Linear):
        multiply_in_reach(module, adds_output=False)
    if type(given) is Shard:
        extend(module, arounds=keep_shards)
    if cut.fills and features.own == 0:
        fill_empty(style, module, cut.parameters, outputs=cut.features)
    style.on_output(module, lambda _, y: features.leave(y, target, cut.features))


# --- rows -----------------------------------------------------------------------------------------


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
        check_one_axis(mesh, "RowwiseParallel")
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
        fill_empty(style, module, cut.parameters, inputs=cut.features, name=cut.inputs[0])
    style.on_output(module, lambda m, y: sum_output(y, mesh, target, bias_of(m), cut.features))


def _reset_bilinear(module: Any) -> None:
    """Reset as torch does, which takes the first input's size from the weight: here of a shard."""
    bound = 1 / math.sqrt(module.in1_features)
    for parameter in module.parameters(recurse=False):
        nn.init.uniform_(parameter, -bound, bound)
