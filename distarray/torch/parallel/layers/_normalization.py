"""Normalizations where channels are cut, or axes over which statistics run.

Statistics are of one channel, or of one group of channels, over the batch and all positions. So a
rank that has whole groups of channels needs nothing of the others: nothing is moved.

Where other axes are cut the ranks' statistics are merged, exactly. Each rank tells the count, the
sum and the sum of squared deviations from its own mean; merged by T. F. Chan, G. H. Golub and
R. J. LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
One all-gather forward and one reduce-scatter backward, of three numbers for each group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from distarray.comm import DeviceMesh
from distarray.layout import Layout, Partial, Placement, Replicate, Shard
from distarray.torch._compat import check_input_dim
from distarray.torch._moves import move
from distarray.torch._opaque import disable_compile
from distarray.torch._routes import routes_between
from distarray.torch._shards import placed_as
from distarray.torch.parallel._forward_wrapper import extend
from distarray.torch.parallel._parameters import distribute_buffer
from distarray.torch.parallel._partition_rules import REMEDY, check_stock, hook_arguments
from distarray.torch.parallel.layers._features import Features


def normalize(
    module: nn.GroupNorm | Any, x: torch.Tensor, mesh: DeviceMesh, channels: int, groups: int
) -> torch.Tensor:
    """Return a `GroupNorm` or `InstanceNorm` of a block that is cut along axes after the channels.

    ``channels`` is which axis these are, and ``groups`` how many groups of them are normalised.
    """
    rows = x.shape[:channels].numel() * groups
    items = x.reshape(rows, x.numel() // rows if rows else 0)
    if x.dtype in (torch.float16, torch.bfloat16):
        items = items.float()
    result = _standardize(items, mesh, module.eps).reshape(x.shape)
    shape = (-1, *[1] * (x.ndim - channels - 1))
    if module.weight is not None:
        result = result * module.weight.reshape(shape)
    if module.bias is not None:
        result = result + module.bias.reshape(shape)
    return result if torch.is_autocast_enabled(x.device.type) else result.to(x.dtype)


def _standardize(items: torch.Tensor, mesh: DeviceMesh, eps: float) -> torch.Tensor:
    """Return rows less their mean, over their standard deviation; all ranks have items of them."""
    rows, count = items.shape
    total = items.sum(1)
    deviations = items - (total / max(count, 1)).unsqueeze(1)
    told = torch.stack([torch.full_like(total, count), total, (deviations**2).sum(1)])
    cut = Layout(mesh, [Shard(0)], (mesh.size, 3, rows))
    # Every rank uses them for its own items: the gradients of all are added.
    ways = routes_between(cut, cut.replace(placements=[Replicate()]), [Partial()])
    counts, totals, squares = move(told.unsqueeze(0), *ways).unbind(1)
    whole = counts.sum(0)
    mean = totals.sum(0) / whole
    apart = counts * (totals / counts.clamp(min=1) - mean) ** 2
    variance = (squares + apart).sum(0) / whole
    return (items - mean.unsqueeze(1)) * (variance + eps).rsqrt().unsqueeze(1)


# --- channels -------------------------------------------------------------------------------------

_BATCH = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_UNBATCHED = {nn.InstanceNorm1d: 2, nn.InstanceNorm2d: 3, nn.InstanceNorm3d: 4}
INSTANCE_NORMS = tuple(_UNBATCHED)
NORMS: tuple[type[nn.Module], ...] = (*_BATCH, nn.GroupNorm, *INSTANCE_NORMS)
"""Those whose channels can be cut."""
_R = Replicate()


def cut_channels(
    style: Any, module: Any, mesh: DeviceMesh, given: Placement | None, target: Placement | None
) -> None:
    """Cut a normalisation by its channels, running statistics as well, and hook it.

    ``given`` and ``target``, of the input and the output, may be None: cut along the channels.
    """
    kind = next(kind for kind in NORMS if isinstance(module, kind))
    check_stock(module, kind, "ColwiseParallel", REMEDY, style.own_forward)
    parts, unit = style.parts, style.unit
    if isinstance(module, nn.GroupNorm):
        style.refuse_parts(f"a GroupNorm of {module.num_groups} groups is cut by whole groups")
        unit = module.num_channels // module.num_groups
        size = module.num_channels
    else:
        size = module.num_features
    placed = placed_as(mesh, [Shard(0)], (size,), parts, 0, unit)
    features = Features.of(placed, mesh)
    for name in ("weight", "bias"):
        if getattr(module, name) is not None:
            style.distribute(module, name, mesh, [Shard(0)], parts=parts, unit=unit)
    for name, buffer in module.named_buffers(recurse=False):
        if buffer.ndim:
            distribute_buffer(module, name, mesh, [Shard(0)], parts=parts, unit=unit)
        else:
            distribute_buffer(module, name, mesh, [_R])
    if isinstance(module, nn.GroupNorm):
        module.num_groups = features.own // unit
    else:
        module.num_features = features.own
    hook_arguments(module, {"input": lambda m, x: features.take(x, given, _axis(m, x))})
    if features.own == 0:
        extend(module, arounds=_without_channels)
    style.on_output(module, lambda module, y: features.leave(y, target, _axis(module, y)))


def unbatched_ndim(module: nn.Module) -> int:
    """Return how many axes an input of an instance normalisation has that lacks the batch."""
    return next(ndim for kind, ndim in _UNBATCHED.items() if isinstance(module, kind))


def _axis(module: Any, x: torch.Tensor) -> int:
    """Return the axis of the channels, of an input that may lack the batch."""
    if isinstance(module, INSTANCE_NORMS) and x.ndim == unbatched_ndim(module):
        return 0
    return 1


@disable_compile
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
        trains = bool(module.training or module.running_mean is None)
        functional.batch_norm(one, one.new_zeros(1), one.new_ones(1), training=trains)
        if module.training and module.num_batches_tracked is not None:
            module.num_batches_tracked.add_(1)
    elif isinstance(module, INSTANCE_NORMS):
        check_input_dim(module, input)
        functional.instance_norm(one if axis else one[None])
    else:
        functional.group_norm(one, 1)
    if module.weight is None:
        return input.square()  # which saves a tensor: a checkpoint runs again here as elsewhere
    aligned = [0 if i == axis else 1 for i in range(input.ndim)]
    return input * module.weight.view(aligned) + module.bias.view(aligned)
