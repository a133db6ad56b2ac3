"""Which logits, targets and weights a cross entropy of cut classes takes."""

from __future__ import annotations

from typing import Any

import torch

from distarray.comm import DeviceMesh
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    DTypeError,
    IndexingError,
    LayoutError,
    ShapeError,
)
from distarray.layout import Layout, Shard
from distarray.torch import _moves
from distarray.torch._layouts import is_placed, layout_of, placed_of


def class_axis(logits: torch.Tensor, axis: int | None) -> int:
    """Return the axis of the classes, torch's by default."""
    if not logits.is_floating_point():
        raise DTypeError(f"logits of {logits.dtype}: must be floating point")
    if logits.ndim == 0:
        raise ShapeError("logits of shape () have no axis of classes")
    if axis is None:
        return 1 if logits.ndim > 1 else 0
    if not -logits.ndim <= axis < logits.ndim:
        raise AxisError(f"axis={axis} of logits with {logits.ndim} axes, {tuple(logits.shape)}")
    return axis % logits.ndim


def takes_classes(logits: torch.Tensor, target: torch.Tensor, axis: int) -> bool:
    """Tell whether a target has class numbers, rather than probabilities."""
    if not isinstance(target, torch.Tensor):
        raise ArgumentTypeError(f"expected a tensor as target, not {type(target).__name__}")
    placed = layout_of(target) if is_placed(target) else None
    if target.ndim < logits.ndim and placed is not None and not placed.is_replicated:
        raise LayoutError(
            f"the target is placed as {placed}; every rank needs the class numbers of all rows of "
            "its logits: dt.full_tensor(target)"
        )
    if target.device != logits.device:
        raise ArgumentTypeError(
            f"logits are on {logits.device} and the target on {target.device}; move one to the "
            "other's"
        )
    rows = list(logits.shape)
    del rows[axis]
    if list(target.shape) == rows:
        if target.is_floating_point() or target.is_complex() or target.dtype is torch.bool:
            raise DTypeError(
                f"a target of {target.dtype} and shape {tuple(target.shape)}: class numbers must "
                "be integers, and probabilities have an axis of classes"
            )
        return True
    along = list(target.shape)
    if len(along) == logits.ndim:
        del along[axis]
    if len(target.shape) != logits.ndim or along != rows:
        raise ShapeError(
            f"a target of shape {tuple(target.shape)} does not fit logits of shape "
            f"{tuple(logits.shape)} with classes on axis {axis}: it must be {tuple(rows)} for "
            "class numbers, and for probabilities the logits' with all classes or this rank's; "
            "axis= says where the classes are"
        )
    if not target.is_floating_point():
        raise DTypeError(
            f"a target of {target.dtype} and shape {tuple(target.shape)}: probabilities must be "
            f"floating point, and class numbers have the shape {tuple(rows)}"
        )
    return False


def layout_of_classes(
    logits: torch.Tensor, mesh: DeviceMesh, axis: int, vocab_size: int | None
) -> Layout:
    """Return how the classes are cut; collective where it is not known."""
    placed = placed_of(logits)
    if placed is None:
        shape = None
        if vocab_size is not None:
            shape = list(logits.shape)
            shape[axis] = vocab_size
        return _moves.layout_from(logits, mesh, [Shard(axis)], shape)
    known = placed.layout
    if placed.parts:
        raise LayoutError(
            f"the logits {known} consist of parts {placed.parts} along axis {placed.axis} that are "
            "cut each by itself, so that classes are not in the order of the ranks; pass what "
            "dt.full_tensor(logits) returns to torch's cross_entropy"
        )
    over: Any = known.mesh
    along = over.axes_of(mesh)
    if along is None or known.has_partial or known.sharding_axes(axis) != along:
        raise LayoutError(
            f"the logits are placed as {known}; they must be cut along axis {axis}, of the "
            f"classes, by {mesh} alone. axis= says where the classes are, dt.redistribute places "
            "logits otherwise, and those which every rank has need no more than torch's "
            "cross_entropy"
        )
    if vocab_size is not None and vocab_size != known.shape[axis]:
        raise LayoutError(
            f"vocab_size={vocab_size}, but the logits {known} have {known.shape[axis]} classes; "
            "leave it out"
        )
    shape = list(logits.shape)
    shape[axis] = known.shape[axis]
    return Layout(mesh, [Shard(axis)], shape, boundaries={axis: known.partition(axis).offsets})


def check_weight(weight: torch.Tensor | None, count: int) -> None:
    """Raise if the weights are not those of all classes, or have a gradient."""
    if weight is None:
        return
    if tuple(weight.shape) != (count,):
        raise ShapeError(
            f"weight of shape {tuple(weight.shape)}: must have one number for each of the {count} "
            "classes, on every rank (dt.full_tensor gathers one that is cut)"
        )
    if weight.requires_grad:
        raise ArgumentError("weight has no gradient, but requires one; pass weight.detach()")


def check_numbers(numbers: torch.Tensor, ignored: torch.Tensor, count: int) -> None:
    """Raise if a row has a class out of range; ignored ones are 0 here."""
    if not numbers.numel() or (not count and bool(ignored.all())):
        return
    least, most = map(int, numbers.aminmax())
    if least < 0 or most >= count:
        raise IndexingError(
            f"class {least if least < 0 else most} of the target is not one of {count} (0 to "
            f"{count - 1}), nor ignore_index"
        )
