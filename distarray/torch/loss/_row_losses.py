"""Row losses of logits cut along their classes, as autograd sees them: once and twice."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from distarray.comm import DeviceMesh, Purpose
from distarray.errors import ArgumentError
from distarray.layout import Layout, Partial, Replicate
from distarray.redistribute import redistribute_local
from distarray.torch._buffers import buffer_of, tensor_of
from distarray.torch._transforms import refuse_transforms
from distarray.torch.loss._class_shares import Classes, Goal, Probabilities, gradient, survey


class Terms(NamedTuple):
    """What a loss is made of besides tensors.

    Attributes
    ----------
    mesh
        Of one axis, that cuts the classes.
    purpose
        What the ranks must agree on.
    dtype
        In which rows are computed.
    keep, spread
        Smoothing makes ``keep * p + spread`` of the probability p of a class.
    smoothed
        What smoothing gives to all classes together, where a class is the target.
    """

    mesh: DeviceMesh
    purpose: Purpose
    dtype: torch.dtype
    keep: float
    spread: float
    smoothed: float


def row_losses(
    x: torch.Tensor,
    target: torch.Tensor,
    own: torch.Tensor | None,
    weight: torch.Tensor | None,
    terms: Terms,
) -> torch.Tensor:
    """Return the loss of every row (collective, differentiable).

    Parameters
    ----------
    x
        This rank's share of the logits, with the classes on the last axis.
    target
        Class numbers from the first of the share; or the probabilities of the share.
    own
        What the class of each row weighs; None with probabilities.
    weight
        Of the classes of the share, where they do not all weigh 1.
    """
    refuse_transforms(INSTEAD)
    losses: torch.Tensor = _Losses.apply(x, target, own, weight, terms)
    return losses


INSTEAD = (
    "losses of logits that are cut by classes; take the loss of whole ones: leave out "
    "loss_parallel, and gather them by output_layouts=da.Replicate()"
)


class _Losses(torch.autograd.Function):
    """A log S - sum q (x - M), of sums over all ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        target: torch.Tensor,
        own: torch.Tensor | None,
        weight: torch.Tensor | None,
        terms: Terms,
    ) -> torch.Tensor:
        goal = _goal(x, target, own, weight, terms)
        weighs = own is None or terms.spread != 0
        found = survey(x, goal, terms.dtype, weighs)
        largest = _reduced(found.largest, "max", terms)
        sums, *asked = found.relative_to(largest)
        if own is None:
            sums, against, weights = _reduced(torch.stack([sums, *asked]), "sum", terms)
        else:
            assert isinstance(goal, Classes)
            picked = goal.picked(x, largest)
            if asked:
                picked += asked[0]
            sums, against = _reduced(torch.stack([sums, picked]), "sum", terms)
            weights = own + terms.smoothed
        ctx.save_for_backward(x, target, own, weight, largest, sums, weights)
        ctx.terms = terms
        return weights * sums.log() - against

    @staticmethod
    def backward(ctx: Any, k: torch.Tensor) -> Any:  # type: ignore[override]
        x, target, own, weight, largest, sums, weights = ctx.saved_tensors
        of_logits = of_target = None
        if ctx.needs_input_grad[0]:
            of_logits = _Gradient.apply(
                k, x, target, own, weight, largest, sums, weights, ctx.terms
            )
        if ctx.needs_input_grad[1]:
            if torch.is_grad_enabled() and (k.requires_grad or x.requires_grad):
                raise ArgumentError(
                    "a second derivative of the cross entropy by its target's probabilities was "
                    "asked for; only that by the logits exists: detach the target"
                )
            goal = Probabilities(target, weight, ctx.terms.keep, ctx.terms.spread)
            of_target = goal.gradient(k, x, largest, sums)
        return of_logits, of_target, None, None, None


class _Gradient(torch.autograd.Function):
    """k (A s - q), with s = exp(x - M) / S: what the logits' gradient is, per row's gradient k."""

    @staticmethod
    def forward(
        ctx: Any,
        k: torch.Tensor,
        x: torch.Tensor,
        target: torch.Tensor,
        own: torch.Tensor | None,
        weight: torch.Tensor | None,
        largest: torch.Tensor,
        sums: torch.Tensor,
        weights: torch.Tensor,
        terms: Terms,
    ) -> torch.Tensor:
        ctx.save_for_backward(k, x, target, own, weight, largest, sums, weights)
        ctx.terms = terms
        goal = _goal(x, target, own, weight, terms)
        return gradient(k, x, goal, largest, weights / sums)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, v: torch.Tensor) -> Any:  # type: ignore[override]
        k, x, target, own, weight, largest, sums, weights = ctx.saved_tensors
        terms: Terms = ctx.terms
        x = x.to(terms.dtype)
        goal = _goal(x, target, own, weight, terms)
        by_k = gradient(torch.ones_like(k), x, goal, largest, weights / sums)
        s = (x - largest.unsqueeze(-1)).exp_().div_(sums.unsqueeze(-1))
        told = torch.stack([(s * v).sum(-1), (by_k * v).sum(-1)])
        mean, of_k = _reduced(told, "sum", terms)
        of_x = s.mul_(v - mean.unsqueeze(-1)).mul_((k * weights).unsqueeze(-1)).to(v.dtype)
        return (of_k, of_x, *(None,) * 7)


def _goal(
    x: torch.Tensor,
    target: torch.Tensor,
    own: torch.Tensor | None,
    weight: torch.Tensor | None,
    terms: Terms,
) -> Goal:
    if own is None:
        return Probabilities(target, weight, terms.keep, terms.spread)
    if not terms.spread:
        return Classes(target, own, None)
    if weight is None:
        return Classes(target, own, x.new_full(x.shape[-1:], terms.spread, dtype=terms.dtype))
    return Classes(target, own, weight * terms.spread)


def _reduced(values: torch.Tensor, op: str, terms: Terms) -> torch.Tensor:
    """Return the reduction of all ranks' numbers."""
    src = Layout(terms.mesh, [Partial(op)], values.shape)
    dst = src.replace(placements=[Replicate()])
    reduced = redistribute_local(buffer_of(values), src, dst, purpose=terms.purpose)
    return tensor_of(reduced)
