"""Cross entropy by its usual name, on logits that are cut along their classes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional

from distarray.comm import DeviceMesh
from distarray.errors import LayoutError
from distarray.layout import Layout
from distarray.torch._compat import is_in_function_forward, reduction_of
from distarray.torch._layouts import check_mesh, cut_axes, is_sharded, lost_of
from distarray.torch._opaque import disable_compile
from distarray.torch.following import Following, known_layout
from distarray.torch.loss._cross_entropy import vocab_parallel_cross_entropy
from distarray.torch.parallel import check_one_axis


@contextmanager
def loss_parallel(mesh: DeviceMesh | None = None) -> Iterator[None]:
    """Let `torch.nn.functional.cross_entropy` work on logits that are cut along their classes.

    Inside, ``F.cross_entropy`` and ``nn.CrossEntropyLoss`` take each rank's shard of the classes,
    as `ColwiseParallel` returns it, and give every rank the loss of the full logits, which are
    never gathered (`vocab_parallel_cross_entropy`). Replicated logits give torch's own loss.

    Parameters
    ----------
    mesh
        Of one axis. With it, logits that no layout is known of are taken as cut along their
        classes by that axis. Without it they are an error.

    Raises
    ------
    LayoutError
        By ``F.cross_entropy``: no layout is known of the logits, or another one than such a cut. By
        any other function of torch: it would take this rank's shard for the whole.

    Notes
    -----
    Other functions of torch give, inside, what they give to one process, or are refused. Those that
    work item by item, along other axes than the cut one, or that only reshape leave the layout of
    the result known. Those that reduce, order, normalise, multiply or pick along the cut axis are
    an error: ``softmax``, ``sum``, ``max``, ``norm``, ``topk``, ``x[..., 0]``, other losses. The
    result of any further function is known to come of a shard, no more: neither a number nor a loss
    is made of it. What modules with a style do with their own weights is theirs. Where a result of
    this rank's alone is meant, compute it outside.

    Before the context, layouts are followed in the ``forward`` of modules that hold parallelized
    ones alone: what becomes of logits after they have left the model belongs inside.

    Outside, ``F.cross_entropy`` sees a plain tensor with fewer classes, and nothing can tell it
    that these are a shard: the loss would be wrong, or a class number out of range.

    What `torch.utils.checkpoint.checkpoint` runs inside, it runs inside when it computes it again,
    wherever ``backward`` is called. In the forward of any other function of autograd's, open the
    context there. Hooks that run in the backward pass are outside.

    The context holds for the thread that opens it. Contexts may be nested; the innermost one's mesh
    counts.

    Examples
    --------
    >>> def loss():
    ...     scores = nn.Linear(4, 6)
    ...     nn.init.zeros_(scores.weight), nn.init.zeros_(scores.bias)
    ...     dt.parallelize_module(scores, da.default_mesh(), dt.ColwiseParallel())
    ...     with dt.loss_parallel():
    ...         return F.cross_entropy(scores(torch.ones(2, 4)), torch.tensor([1, 5])).detach()
    >>> da.testing.simulate(2, loss)  # of six equal scores
    [tensor(1.7918), tensor(1.7918)]
    """
    if mesh is not None:
        check_mesh(mesh)
        check_one_axis(mesh, "loss_parallel")
    with _LossParallel(mesh):
        yield


class _LossParallel(Following):
    """Follows layouts, and knows a loss of shards."""

    def __init__(self, mesh: DeviceMesh | None) -> None:
        super().__init__()
        self._mesh = mesh
        self._instead = {functional.cross_entropy: self._cross_entropy}

    def anew(self) -> Following:
        return _LossParallel(self._mesh)

    @disable_compile
    def _cross_entropy(
        self,
        input: torch.Tensor,
        target: torch.Tensor,
        weight: torch.Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> torch.Tensor:
        """Take the arguments of torch's function."""
        if size_average is not None or reduce is not None:
            reduction = reduction_of(size_average, reduce)
        options: dict[str, Any] = {
            "weight": weight,
            "ignore_index": ignore_index,
            "reduction": reduction,
            "label_smoothing": label_smoothing,
        }
        mesh = self._mesh_of(input)
        if mesh is None:
            return functional.cross_entropy(input, target, **options)
        if is_in_function_forward() and not self.runs_again:
            raise LayoutError(
                "cross_entropy inside loss_parallel and in the forward of a torch.autograd."
                "Function, whose backward might compute it again outside: there it would see this "
                "rank's shard only. Open loss_parallel inside that forward, or take "
                "dt.vocab_parallel_cross_entropy there"
            )
        return vocab_parallel_cross_entropy(input, target, mesh, **options)

    def _mesh_of(self, logits: torch.Tensor) -> DeviceMesh | None:
        """Return the mesh axis that cuts the classes; None where every rank has them all."""
        layout = known_layout(logits)
        if layout is not None:
            return _cutting(layout, 1 if logits.ndim > 1 else 0, self._mesh)
        if self._mesh is None:
            lost = lost_of(logits)
            why = (
                "as of what torch has computed outside loss_parallel and of modules that hold "
                "parallelized ones"
                if lost is None
                else f"since they were computed from a tensor placed as {lost.layout} by functions "
                "that are not followed; those that work item by item, along other axes, or only "
                "reshape are"
            )
            raise LayoutError(
                f"nothing is known of how the logits of shape {tuple(logits.shape)} are placed, "
                f"{why}. loss_parallel(mesh) says that they are cut along their classes by that "
                "mesh of one axis; a loss of full logits belongs outside"
            )
        return self._mesh


def _cutting(layout: Layout, axis: int, mesh: DeviceMesh | None) -> DeviceMesh | None:
    over: Any = layout.mesh
    if layout.has_partial:
        raise LayoutError(
            f"the logits are placed as {layout}, and not summed yet; redistribute them to "
            "Shard or Replicate first"
        )
    if not is_sharded(layout):
        return None
    cutting = layout.sharding_axes(axis)
    rest = [other for other in cut_axes(layout) if other != axis]
    if rest or len(cutting) != 1:
        raise LayoutError(
            f"the logits are placed as {layout}; cross_entropy has its classes on axis {axis}, "
            "which one mesh axis must cut, and none the others. Transpose or flatten them, "
            "dt.redistribute them, or pass the rows of this rank and a mesh of one axis to "
            "dt.vocab_parallel_cross_entropy(logits, target, mesh, axis=...)"
        )
    own: DeviceMesh = over if over.ndim == 1 else over[over.axis_names[cutting[0]]]
    if mesh is not None and mesh is not own:
        raise LayoutError(
            f"the logits are placed as {layout}, cut by {own}, and loss_parallel was given {mesh}; "
            "leave the mesh out"
        )
    return own
