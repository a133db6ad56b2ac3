"""Convolutions with groups: every rank has whole groups, of the input and of the output channels.

Nothing is added between ranks, so that columns and rows are the same cut: a depthwise convolution
between a column- and a row-parallel one moves nothing at all.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn import functional

from distarray.comm import DeviceMesh
from distarray.errors import ArgumentError
from distarray.layout import Placement, Shard
from distarray.torch.parallel._partition_rules import CONVOLUTIONS, TRANSPOSED, hook_arguments
from distarray.torch.parallel.layers._features import Features, fill_empty


def is_grouped(module: nn.Module) -> bool:
    """Tell whether a module is a convolution with several groups."""
    return isinstance(module, (*CONVOLUTIONS, *TRANSPOSED)) and module.groups > 1


def cut_groups(
    style: Any,
    module: Any,
    mesh: DeviceMesh,
    given: Placement | None,
    target: Placement | None,
    *,
    rows: bool = False,
) -> None:
    """Cut a convolution by groups and hook it.

    ``given`` and ``target``, of the input and the output, may be None: cut along the channels, by
    whole groups. With ``rows`` the style's unit, which makes several groups stay together, counts
    input channels.
    """
    per_input = module.in_channels // module.groups
    per_output = module.out_channels // module.groups
    together = _groups_together(style, module, per_input if rows else per_output)
    entering = Features.in_units(mesh, module.in_channels, per_input * together)
    leaving = Features.in_units(mesh, module.out_channels, per_output * together)
    transposed = isinstance(module, TRANSPOSED)
    axis = -1 - len(module.kernel_size)
    unit = (per_input if transposed else per_output) * together
    style.distribute(module, "weight", mesh, [Shard(0)], unit=unit)
    if module.bias is not None:
        style.distribute(module, "bias", mesh, [Shard(0)], unit=per_output * together)
    own = entering.own // per_input
    module.groups = max(own, 1)
    hook_arguments(module, {"input": lambda _, x: entering.take(x, given, axis)})
    if own == 0:
        width = 1 if transposed else per_input
        empty = {"weight": 0} if transposed else {"weight": 0, "bias": 0}
        fill_empty(style, module, empty, inputs=axis, outputs=axis, width=width)
        if transposed and module.bias is not None:
            style.substitute(module, lambda m: {"bias": functional.pad(m.bias, (0, per_output))})
    style.on_output(module, lambda _, y: leaving.leave(y, target, axis))


def _groups_together(style: Any, module: Any, per_group: int) -> int:
    """Return how many groups make up a unit of a style."""
    unit = style.unit
    if style.parts or not isinstance(unit, int):
        raise ArgumentError(
            f"parts={style.parts}, unit={unit}: a convolution with {module.groups} groups is cut "
            "by whole groups; leave parts out, and give one unit"
        )
    if unit == 1:
        return 1
    if unit < 1 or unit % per_group or module.groups % (unit // per_group):
        raise ArgumentError(
            f"unit={unit}: a convolution with {module.groups} groups of {per_group} channels is "
            f"cut by whole groups; give a multiple of {per_group} that divides all channels, or "
            "leave it out"
        )
    return int(unit // per_group)
