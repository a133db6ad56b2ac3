"""Column-parallel modules: every rank computes its shard of the output features."""

from __future__ import annotations

from torch import nn

from distarray.comm import DeviceMesh
from distarray.layout import Replicate, Shard
from distarray.torch.parallel._forward_wrapper import extend
from distarray.torch.parallel._partition_rules import (
    COLUMNS,
    Cut,
    cut_of,
    hook_arguments,
    own_method,
)
from distarray.torch.parallel._slices import keep_shards
from distarray.torch.parallel._style import FeatureParallel, one_axis
from distarray.torch.parallel.layers import _empty_shards
from distarray.torch.parallel.layers._attention import cut_heads
from distarray.torch.parallel.layers._convolution import cut_groups, is_grouped
from distarray.torch.parallel.layers._embedding import cut_vectors
from distarray.torch.parallel.layers._features import Features, cut_parameters, gather_input
from distarray.torch.parallel.layers._linear import multiply_in_reach
from distarray.torch.parallel.layers._normalization import cut_channels, normalises_channels

_R = Replicate()


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
        one_axis(mesh, "ColwiseParallel")
        if isinstance(module, nn.MultiheadAttention):
            cut_heads(self, module, mesh, self.input_layouts or _R, self.output_layouts or _R)
            return
        if normalises_channels(module):
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
        _empty_shards.fill(style, module, cut.parameters, outputs=cut.features)
    style.on_output(module, lambda _, y: features.leave(y, target, cut.features))
