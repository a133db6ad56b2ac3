"""Cross entropy of logits that are cut along their classes, which are never gathered.

Forward runs two all-reduces of a few numbers per row: the maxima, then sums of exponentials
together with what the targets ask for (M. Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section
3). Backward runs none.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch

from distarray.comm import DeviceMesh, Purpose
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    DTypeError,
    IndexingError,
    LayoutError,
    ShapeError,
)
from distarray.layout import Layout, Replicate, Shard
from distarray.torch._buffers import bytes_of, check_travels
from distarray.torch._layouts import check_mesh, is_placed, layout_from, layout_of, placed_of
from distarray.torch._moves import move
from distarray.torch._opaque import disable_compile, refuse_transforms
from distarray.torch._routes import routes_between
from distarray.torch.loss._row_losses import Terms, row_losses
from distarray.torch.parallel import check_one_axis

_REDUCTIONS = ("mean", "sum", "none")
_SHARDED_LOSSES = (
    "losses of logits that are cut by classes; take the loss of whole ones: leave out "
    "loss_parallel, and gather them by output_layouts=da.Replicate()"
)


@disable_compile
def vocab_parallel_cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    mesh: DeviceMesh,
    *,
    vocab_size: int | None = None,
    weight: torch.Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    axis: int | None = None,
) -> torch.Tensor:
    """Return the cross entropy of logits cut along their classes (collective, differentiable).

    Two all-reduces of a few numbers per row in the forward pass and none in the backward pass,
    whatever the options. The result is that of `torch.nn.functional.cross_entropy` on full logits.

    Parameters
    ----------
    logits
        This rank's shard of the classes: ``(N, shard)``, ``(N, shard, d1, ...)`` or ``(shard,)``.
        Shards may be of any sizes, also empty. float16 and bfloat16 are computed in float32.
    target
        The same on every rank: class numbers, of the shape of the logits without their classes; or
        probabilities, of the shape of the logits, for all classes or for this rank's shard.
    mesh
        Of one axis, along which the classes are cut.
    vocab_size
        Number of classes, where they are cut evenly (as `torch.chunk` does). Without it, and where
        `layout_of` knows nothing of the logits, the ranks tell each other the sizes of their
        shards (which `CommLog` does not count).
    weight, ignore_index, reduction, label_smoothing
        As in torch. ``weight`` is that of all classes, on every rank; it has no gradient.
    axis
        Of the classes; default: 1, or 0 of one-dimensional logits. -1 takes the logits of a
        sequence as they come, ``(batch, length, shard)`` with a target ``(batch, length)``.

    Returns
    -------
    torch.Tensor
        The same on every rank, of the dtype that torch gives.

    Raises
    ------
    IndexingError
        A class number out of range; on every rank, before anything is sent.
    LayoutError
        The logits are known to be placed otherwise.
    MismatchError
        Class numbers, weights or options differ between ranks.

    Notes
    -----
    That the ranks pass the same probabilities is not checked. Of an n-d mesh pass the sub-mesh of
    one axis: rows that another mesh axis cuts are reduced over those of this rank.

    No copy of the logits is made, and backward makes their gradient only.

    Examples
    --------
    >>> def loss():
    ...     shard = torch.zeros(2, 3)  # of 6 classes
    ...     target = torch.tensor([1, 5])
    ...     return dt.vocab_parallel_cross_entropy(shard, target, da.default_mesh(), vocab_size=6)
    >>> da.testing.simulate(2, loss)
    [tensor(1.7918), tensor(1.7918)]
    """
    check_mesh(mesh)
    check_one_axis(mesh, "vocab_parallel_cross_entropy")
    check_travels(logits)
    refuse_transforms(_SHARDED_LOSSES)
    axis = class_axis(logits, axis)
    chosen = takes_classes(logits, target, axis)
    if reduction not in _REDUCTIONS:
        raise ArgumentError(f"reduction={reduction!r}: must be one of {', '.join(_REDUCTIONS)}")
    if not 0 <= label_smoothing <= 1:
        raise ArgumentError(f"label_smoothing={label_smoothing}: must be from 0 to 1")
    if ignore_index >= 0 and not chosen:
        raise ArgumentError(
            f"ignore_index={ignore_index} names a class, and a target of probabilities has none to "
            "ignore; leave it out"
        )
    classes = layout_of_classes(logits, mesh, axis, vocab_size)
    count = classes.shape[axis]
    check_weight(weight, count)
    asked = f"cross entropy, {reduction=}, {ignore_index=}, {label_smoothing=}, "
    dtype = torch.promote_types(logits.dtype, torch.float32)
    keep, smoothed = 1 - label_smoothing, 0.0
    start, stop = classes.local_box()[axis]  # type: ignore[index]
    if chosen:
        ignored = target == ignore_index
        numbers = target.masked_fill(ignored, 0).long()
        check_numbers(numbers, ignored, count)
        asked += f"target and weights {_digest(target, weight)}"
        if weight is None or not count:
            weights, smoothed = torch.ones_like(numbers, dtype=dtype), label_smoothing
        else:
            weights = weight.detach().to(dtype)[numbers]
            smoothed = label_smoothing * float(weight.mean(dtype=torch.float64))
        goal, own = numbers - start, weights * keep
    else:
        target = _shard_of(target, classes, axis)
        asked += f"probabilities, weights {_digest(weight)}"
        dtype = torch.promote_types(dtype, target.dtype)
        goal, own = target.movedim(axis, -1), None
    terms = Terms(mesh, Purpose.of(asked), dtype, keep, label_smoothing / max(count, 1), smoothed)
    of_shard = None if weight is None else weight.detach()[start:stop].to(dtype)
    x = logits.movedim(axis, -1)
    if logits.ndim == 1:
        own = None if own is None else own.unsqueeze(0)
        losses = row_losses(x.unsqueeze(0), goal.unsqueeze(0), own, of_shard, terms).squeeze(0)
    else:
        losses = row_losses(x, goal, own, of_shard, terms)
    if chosen:
        losses = losses.masked_fill(ignored, 0)
        total = weights.masked_fill(ignored, 0).sum()
    else:
        total = losses.new_tensor(losses.numel())
    if reduction != "none":
        losses = losses.sum()
    if reduction == "mean":
        losses = losses / total
    dtype = logits.dtype if chosen else torch.promote_types(logits.dtype, target.dtype)
    if dtype.itemsize < 4 and torch.is_autocast_enabled(logits.device.type):
        dtype = torch.float32
    return losses.to(dtype)


def _shard_of(target: torch.Tensor, classes: Layout, axis: int) -> torch.Tensor:
    """Return this rank's shard of probabilities, given all or just these."""
    start, stop = classes.local_box()[axis]  # type: ignore[index]
    count = classes.shape[axis]
    given = target.shape[axis]
    if given == count and not target.requires_grad:
        return target.narrow(axis, start, stop - start)
    if given == count:
        if classes.partition(axis).largest == count and classes.mesh.size > 1:
            raise ArgumentError(
                f"one rank has all {count} classes, so that a target that requires a gradient "
                "could be full or a shard; detach it"
            )
        whole = Layout(classes.mesh, [Replicate()], classes.shape)
        return move(target, *routes_between(whole, classes))
    if given != stop - start:
        raise ShapeError(
            f"a target of shape {tuple(target.shape)} has probabilities of {given} classes on axis "
            f"{axis}; it must have all {count}, or the {stop - start} of this rank's shard"
        )
    return target


def _digest(*tensors: torch.Tensor | None) -> str:
    """Return a number of the values, to compare between ranks."""
    number = 0
    for tensor in tensors:
        if tensor is not None:
            number = zlib.crc32(bytes_of(tensor).cpu().numpy().data, number)
    return f"{number:08x}"


# --- targets --------------------------------------------------------------------------------------


def class_axis(logits: torch.Tensor, axis: int | None) -> int:
    """Return the axis of the classes, torch's by default."""
    if not logits.is_floating_point():
        raise DTypeError(f"logits of {logits.dtype}: must be floating point")
    if logits.ndim == 0:
        raise ShapeError("logits of shape () have no axis of classes")
    if axis is None:
        return 1 if logits.ndim > 1 else 0
    if not -logits.ndim <= axis < logits.ndim:
        text = f"axis={axis} of logits with {logits.ndim} axes, {tuple(logits.shape)}"
        raise AxisError(text, axis, logits.ndim)
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
        return layout_from(logits, mesh, [Shard(axis)], shape)
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
