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
from distarray.errors import ArgumentError, ShapeError
from distarray.layout import Layout, Replicate
from distarray.torch import _moves
from distarray.torch._buffers import check_travels
from distarray.torch._opaque import untraced
from distarray.torch._transforms import refuse_transforms
from distarray.torch.loss._row_losses import INSTEAD, Terms, row_losses
from distarray.torch.loss._targets import (
    check_numbers,
    check_weight,
    class_axis,
    layout_of_classes,
    takes_classes,
)
from distarray.torch.parallel._style import one_axis

_REDUCTIONS = ("mean", "sum", "none")


@untraced
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
        This rank's share of the classes: ``(N, share)``, ``(N, share, d1, ...)`` or ``(share,)``.
        Shares may be of any sizes, also empty. float16 and bfloat16 are computed in float32.
    target
        The same on every rank: class numbers, of the shape of the logits without their classes; or
        probabilities, of the shape of the logits, for all classes or for this rank's share.
    mesh
        Of one axis, along which the classes are cut.
    vocab_size
        Number of classes, where they are cut evenly (as `torch.chunk` does). Without it, and where
        `layout_of` knows nothing of the logits, the ranks tell each other the sizes of their
        shares (which `CommLog` does not count).
    weight, ignore_index, reduction, label_smoothing
        As in torch. ``weight`` is that of all classes, on every rank; it has no gradient.
    axis
        Of the classes; default: 1, or 0 of one-dimensional logits. -1 takes the logits of a
        sequence as they come, ``(batch, length, share)`` with a target ``(batch, length)``.

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
    """
    _moves.check_mesh(mesh)
    one_axis(mesh, "vocab_parallel_cross_entropy")
    check_travels(logits)
    refuse_transforms(INSTEAD)
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
    if chosen:
        ignored = target == ignore_index
        numbers = target.masked_fill(ignored, 0).long()
        check_numbers(numbers, ignored, count)
        asked += f"target and weights {_digest(target, weight)}"
        losses, total = _of_classes(logits, numbers, weight, label_smoothing, classes, axis, asked)
        losses = losses.masked_fill(ignored, 0)
        total = total.masked_fill(ignored, 0).sum()
    else:
        target = _share_of(target, classes, axis)
        asked += f"probabilities, weights {_digest(weight)}"
        losses = _of_probabilities(logits, target, weight, label_smoothing, classes, axis, asked)
        total = losses.new_tensor(losses.numel())
    if reduction != "none":
        losses = losses.sum()
    if reduction == "mean":
        losses = losses / total
    return losses.to(_dtype_of_result(logits, None if chosen else target))


def _of_classes(
    logits: torch.Tensor,
    numbers: torch.Tensor,
    weight: torch.Tensor | None,
    smoothing: float,
    classes: Layout,
    axis: int,
    asked: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the losses of rows with class numbers, and what these classes weigh."""
    dtype = torch.promote_types(logits.dtype, torch.float32)
    count = classes.shape[axis]
    if weight is None or not count:
        own = torch.ones_like(numbers, dtype=dtype)
        smoothed = smoothing
    else:
        own = weight.detach().to(dtype)[numbers]
        smoothed = smoothing * float(weight.mean(dtype=torch.float64))
    terms = _terms(classes, smoothing, axis, asked, dtype)._replace(smoothed=smoothed)
    start, _ = _own_share(classes, axis)
    x, y, w = _rows(logits, axis), numbers - start, own * (1 - smoothing)
    if logits.ndim == 1:
        y, w = y.unsqueeze(0), w.unsqueeze(0)
    losses = row_losses(x, y, w, _own_weight(weight, classes, axis, dtype), terms)
    return losses.reshape(numbers.shape), own


def _of_probabilities(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    smoothing: float,
    classes: Layout,
    axis: int,
    asked: str,
) -> torch.Tensor:
    """Return the losses of rows with probabilities, of this rank's share."""
    dtype = torch.promote_types(logits.dtype, target.dtype)
    dtype = torch.promote_types(dtype, torch.float32)
    terms = _terms(classes, smoothing, axis, asked, dtype)
    w = _own_weight(weight, classes, axis, dtype)
    losses = row_losses(_rows(logits, axis), _rows(target, axis), None, w, terms)
    return losses.squeeze(0) if logits.ndim == 1 else losses


def _terms(classes: Layout, smoothing: float, axis: int, asked: str, dtype: torch.dtype) -> Terms:
    spread = smoothing / max(classes.shape[axis], 1)
    mesh: Any = classes.mesh
    return Terms(mesh, Purpose.of(asked), dtype, 1 - smoothing, spread, 0.0)


def _rows(values: torch.Tensor, axis: int) -> torch.Tensor:
    """Return a view with the classes last, and at least one axis of rows."""
    return values.unsqueeze(0) if values.ndim == 1 else values.movedim(axis, -1)


def _own_share(classes: Layout, axis: int) -> tuple[int, int]:
    box = classes.local_box()
    assert box is not None  # this rank is in the mesh
    return box[axis]


def _own_weight(
    weight: torch.Tensor | None, classes: Layout, axis: int, dtype: torch.dtype
) -> torch.Tensor | None:
    return None if weight is None else weight.detach()[slice(*_own_share(classes, axis))].to(dtype)


def _share_of(target: torch.Tensor, classes: Layout, axis: int) -> torch.Tensor:
    """Return this rank's share of probabilities, given all or just these."""
    start, stop = _own_share(classes, axis)
    count = classes.shape[axis]
    given = target.shape[axis]
    if given == count and not target.requires_grad:
        return target.narrow(axis, start, stop - start)
    if given == count:
        if classes.partition(axis).largest == count and classes.mesh.size > 1:
            raise ArgumentError(
                f"one rank has all {count} classes, so that a target that requires a gradient "
                "could be full or a share; detach it"
            )
        whole = Layout(classes.mesh, [Replicate()], classes.shape)
        return _moves.moved(target, *_moves.legs_between(whole, classes))
    if given != stop - start:
        raise ShapeError(
            f"a target of shape {tuple(target.shape)} has probabilities of {given} classes on axis "
            f"{axis}; it must have all {count}, or the {stop - start} of this rank's share"
        )
    return target


def _digest(*tensors: torch.Tensor | None) -> str:
    """Return a number of the values, to compare between ranks."""
    number = 0
    for tensor in tensors:
        if tensor is not None:
            plain = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            number = zlib.crc32(plain.numpy().data, number)
    return f"{number:08x}"


def _dtype_of_result(logits: torch.Tensor, target: torch.Tensor | None) -> torch.dtype:
    """Return torch's dtype: the logits', float32 where autocast would have it."""
    dtype = logits.dtype
    if target is not None:
        dtype = torch.promote_types(dtype, target.dtype)
    if dtype.itemsize < 4 and torch.is_autocast_enabled(logits.device.type):
        return torch.float32
    return dtype
