"""Normalisations of channels that are cut: every rank normalises the channels that it has.

Statistics are of one channel, or of one group of channels, over the batch and all positions. So a
rank that has whole groups needs nothing of the others: nothing is moved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from distarray.comm import DeviceMesh
from distarray.errors import ArgumentError
from distarray.layout import Placement, Replicate, Shard
from distarray.torch._compat import buffers_of, check_input_dim
from distarray.torch._opaque import untraced
from distarray.torch.following._positions import unbatched_ndim
from distarray.torch.parallel._forward_wrapper import around
from distarray.torch.parallel._forwards import check_stock
from distarray.torch.parallel._parameters import distribute_buffer, placed_as
from distarray.torch.parallel._partition_rules import REMEDY, map_arguments
from distarray.torch.parallel.layers._features import Features

_BATCH = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_INSTANCE = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_KINDS: tuple[type[nn.Module], ...] = (*_BATCH, nn.GroupNorm, *_INSTANCE)
_R = Replicate()


def normalises_channels(module: nn.Module) -> bool:
    """Tell whether a module is a normalisation whose channels can be cut."""
    return isinstance(module, _KINDS)


def cut_channels(
    style: Any,
    module: Any,
    mesh: DeviceMesh,
    given: Placement | None,
    target: Placement | None,
) -> None:
    """Cut a normalisation by its channels, running statistics as well, and hook it.

    Parameters
    ----------
    given, target
        How the input arrives and the output leaves; None: cut along the channels.
    """
    kind = next(kind for kind in _KINDS if isinstance(module, kind))
    check_stock(module, kind, "ColwiseParallel", REMEDY, style.own_forward)
    parts, unit = style.parts, style.unit
    if isinstance(module, nn.GroupNorm):
        if parts or unit != 1:
            raise ArgumentError(
                f"parts={parts}, unit={unit}: a GroupNorm of {module.num_groups} groups is cut by "
                "whole groups; leave both out"
            )
        unit = module.num_channels // module.num_groups
        size = module.num_channels
    else:
        size = module.num_features
    placed = placed_as(mesh, [Shard(0)], (size,), parts, 0, unit)
    features = Features.of(placed, mesh)
    for name in ("weight", "bias"):
        if getattr(module, name) is not None:
            style.distribute(module, name, mesh, [Shard(0)], parts=parts, unit=unit)
    for name, buffer in list(buffers_of(module).items()):
        if buffer is None:
            continue
        if buffer.ndim:
            distribute_buffer(module, name, mesh, [Shard(0)], parts=parts, unit=unit)
        else:
            distribute_buffer(module, name, mesh, [_R])
    if isinstance(module, nn.GroupNorm):
        module.num_groups = features.own // unit
    else:
        module.num_features = features.own

    def gather(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def channels(x: torch.Tensor) -> torch.Tensor:
            return features.take(x, given, _axis(module, x))

        return map_arguments(args, kwargs, {"input": channels})

    style.on_input(module, gather)
    if features.own == 0:
        around(module, _without_channels)
    style.on_output(module, lambda module, y: features.leave(y, target, _axis(module, y)))


def _axis(module: Any, x: torch.Tensor) -> int:
    """Return the axis of the channels, of an input that may lack the batch."""
    if isinstance(module, _INSTANCE) and x.ndim == unbatched_ndim(module):
        return 0
    return 1


@untraced
def _without_channels(
    module: Any, _: Callable[..., torch.Tensor], input: torch.Tensor
) -> torch.Tensor:
    """Return an output without channels, which torch's kernels refuse to compute."""
    axis = _axis(module, input)
    shape = list(input.shape)
    shape[axis] = 1
    one = input.new_zeros(shape)  # for what torch checks of the other axes, on every rank alike
    if isinstance(module, _BATCH):
        check_input_dim(module, input)
        functional.batch_norm(one, one.new_zeros(1), one.new_ones(1), training=_trains(module))
        if module.training and module.num_batches_tracked is not None:
            module.num_batches_tracked.add_(1)
    elif isinstance(module, _INSTANCE):
        check_input_dim(module, input)
        functional.instance_norm(one if axis else one[None])
    else:
        functional.group_norm(one, 1)
    if module.weight is None:
        return input
    aligned = [0 if i == axis else 1 for i in range(input.ndim)]
    return input * module.weight.view(aligned) + module.bias.view(aligned)


def _trains(module: Any) -> bool:
    return bool(module.training or module.running_mean is None)
