"""Losses of rows of logits that are cut along their classes, and their derivatives.

With row maxima M and sums S of exp(x - M) over all classes, and with q the weight that the target
gives to each class (A is their sum), the loss of a row is A log S - sum q (x - M), and its gradient
is A exp(x - M) / S - q. Each rank computes its shard of these sums. Rows are taken in blocks, so
that intermediate values stay small: nothing of the size of the logits is made but their gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import torch

from distarray.comm import DeviceMesh, Purpose
from distarray.errors import ArgumentError
from distarray.layout import Layout, Partial
from distarray.redistribute import redistribute_local
from distarray.torch._buffers import buffer_of, tensor_of


class Terms(NamedTuple):
    """What a loss is made of besides tensors."""

    mesh: DeviceMesh  # of one axis, that cuts the classes
    purpose: Purpose  # what the ranks must agree on
    dtype: torch.dtype  # in which rows are computed
    keep: float  # smoothing makes keep * p + spread of the probability p of a class
    spread: float
    smoothed: float  # what that gives to all classes together, where a class is the target


def row_losses(
    x: torch.Tensor,
    target: torch.Tensor,
    own: torch.Tensor | None,
    weight: torch.Tensor | None,
    terms: Terms,
) -> torch.Tensor:
    """Return the loss of every row (collective, differentiable).

    x is this rank's shard of the logits, with the classes on the last axis. The target has class
    numbers, from the first of the shard, of which each row's weighs ``own``; or, where that is
    None, the probabilities of the shard. ``weight`` is that of the classes of the shard, None for
    all 1.
    """
    losses: torch.Tensor = _Losses.apply(x, target, own, weight, terms)
    return losses


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
        goal = _read_target(x, target, own, weight, terms)
        weighs = own is None or terms.spread != 0
        peaks, sums, weighted, weights = survey(x, goal, terms.dtype, weighs)
        largest = _reduce(peaks, "max", terms)
        sums = sums * (peaks - largest).exp_()
        if weighs:
            weighted = weighted + weights * (_finite(peaks) - largest)
        if isinstance(goal, Probabilities):
            sums, against, weights = _reduce(torch.stack([sums, weighted, weights]), "sum", terms)
        else:
            picked = goal.pick(x, largest) + weighted if weighs else goal.pick(x, largest)
            sums, against = _reduce(torch.stack([sums, picked]), "sum", terms)
            weights = goal.own + terms.smoothed
        ctx.save_for_backward(x, target, own, weight, largest, sums, weights)
        ctx.terms = terms
        return weights * sums.log() - against

    @staticmethod
    def backward(ctx: Any, k: torch.Tensor) -> Any:  # type: ignore[override]
        saved = ctx.saved_tensors
        x, target, _, weight, largest, sums, _ = saved
        of_logits = of_target = None
        if ctx.needs_input_grad[0]:
            of_logits = _Gradient.apply(ctx.terms, k, *saved)
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
    def forward(ctx: Any, terms: Terms, k: torch.Tensor, *saved: Any) -> torch.Tensor:
        ctx.save_for_backward(k, *saved)
        ctx.terms = terms
        x, target, own, weight, largest, sums, weights = saved
        return gradient(k, x, _read_target(x, target, own, weight, terms), largest, weights / sums)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, v: torch.Tensor) -> Any:  # type: ignore[override]
        k, x, target, own, weight, largest, sums, weights = ctx.saved_tensors
        terms: Terms = ctx.terms
        x = x.to(terms.dtype)
        goal = _read_target(x, target, own, weight, terms)
        by_k = gradient(torch.ones_like(k), x, goal, largest, weights / sums)
        s = (x - largest.unsqueeze(-1)).exp_().div_(sums.unsqueeze(-1))
        told = torch.stack([(s * v).sum(-1), (by_k * v).sum(-1)])
        mean, of_k = _reduce(told, "sum", terms)
        of_x = s.mul_(v - mean.unsqueeze(-1)).mul_((k * weights).unsqueeze(-1)).to(v.dtype)
        return (None, of_k, of_x, *(None,) * 6)


def _read_target(
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


def _reduce(values: torch.Tensor, op: str, terms: Terms) -> torch.Tensor:
    """Return the reduction of all ranks' numbers."""
    src = Layout(terms.mesh, [Partial(op)], values.shape)
    dst = src.without_partial()
    return tensor_of(redistribute_local(buffer_of(values), src, dst, purpose=terms.purpose))


# --- class shards ---------------------------------------------------------------------------------

Block = tuple[int, int, int]
"""Rows: the axis along which they are taken, where they start, how many."""
_ELEMENTS = {"cpu": 1 << 17, "cuda": 1 << 24}
"""Of a block: half a MiB of float32 stays in a core's cache; 64 MiB keep a GPU busy (a guess that
no run has tested)."""


def blocks(x: torch.Tensor) -> Iterator[Block]:
    """Yield the blocks of rows of logits, whose classes are on the last axis."""
    rows = x.shape[:-1]
    axis = max(range(len(rows)), key=rows.__getitem__)
    limit = _ELEMENTS.get(x.device.type, _ELEMENTS["cuda"])
    each = prod(rows[:axis]) * prod(rows[axis + 1 :]) * x.shape[-1]
    step = max(limit // max(each, 1), 1)
    for start in range(0, rows[axis], step):
        yield axis, start, min(step, rows[axis] - start)


class Classes(NamedTuple):
    """The target is a class per row."""

    numbers: torch.Tensor  # from the first of the shard on: those of others are out of its range
    own: torch.Tensor  # what each row's class weighs
    smooth: torch.Tensor | None  # what smoothing gives to each class of the shard

    def weigh_rows(self, x: torch.Tensor, block: Block) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the row sums of q x and of q, of what smoothing gives."""
        del block
        assert self.smooth is not None  # else nobody asks
        return x @ self.smooth, self.smooth.sum()

    def pick(self, x: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
        """Return q (x - largest) of the rows' classes, 0 where another rank has the class."""
        here = (self.numbers >= 0) & (self.numbers < x.shape[-1])
        if x.shape[-1] == 0:
            return torch.zeros_like(largest)
        index = torch.where(here, self.numbers, 0).unsqueeze(-1)
        found = x.gather(-1, index).squeeze(-1).to(largest.dtype)
        return torch.where(here, self.own * (found - largest), 0)

    def subtract(self, k: torch.Tensor, out: torch.Tensor, block: Block) -> None:
        """Subtract k q from a block in place."""
        if self.smooth is not None:
            out.sub_(k.unsqueeze(-1) * self.smooth)
        numbers = self.numbers.narrow(*block)
        here = (numbers >= 0) & (numbers < out.shape[-1])
        taken = torch.where(here, -k * self.own.narrow(*block), 0)
        index = torch.where(here, numbers, 0)
        out.scatter_add_(-1, index.unsqueeze(-1), taken.unsqueeze(-1))


class Probabilities(NamedTuple):
    """The target gives every class a probability."""

    values: torch.Tensor  # of the shard, with the classes on the last axis
    weight: torch.Tensor | None  # of the classes of the shard; None where all weigh 1
    keep: float  # as in `Terms`
    spread: float

    def weigh(self, block: Block, dtype: torch.dtype) -> torch.Tensor:
        """Return q of a block."""
        q = self.values.narrow(*block).to(dtype)
        if self.keep != 1:
            q = q * self.keep + self.spread
        return q if self.weight is None else q * self.weight

    def weigh_rows(self, x: torch.Tensor, block: Block) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the row sums of q x and of q."""
        q = self.weigh(block, x.dtype)
        return (x * q).sum(-1), q.sum(-1)

    def subtract(self, k: torch.Tensor, out: torch.Tensor, block: Block) -> None:
        """Subtract k q from a block in place."""
        out.sub_(self.weigh(block, out.dtype) * k.unsqueeze(-1))

    def gradient(
        self, k: torch.Tensor, x: torch.Tensor, largest: torch.Tensor, sums: torch.Tensor
    ) -> torch.Tensor:
        """Return the gradient of the values, given that of the rows' losses."""
        result = torch.empty_like(self.values)
        for block in blocks(x):
            off = (largest + sums.log()).narrow(*block).unsqueeze(-1)
            found = (off - x.narrow(*block)).mul_((self.keep * k).narrow(*block).unsqueeze(-1))
            result.narrow(*block).copy_(found if self.weight is None else found * self.weight)
        return result


Goal = Classes | Probabilities
"""What the target asks for: q, of this rank's shard of the classes."""


def survey(
    x: torch.Tensor, goal: Goal, dtype: torch.dtype, weighs: bool
) -> tuple[torch.Tensor, ...]:
    """Return row maxima M of a shard of logits, -inf where it is empty, and sums over the shard.

    They are sums of exp(x - M) and, where it ``weighs``, of q (x - M) and of q.
    """
    rows = x.shape[:-1]
    largest = x.new_full(rows, -torch.inf, dtype=dtype)
    sums, weighted, weights = x.new_zeros((3, *rows), dtype=dtype)
    for block in blocks(x) if x.shape[-1] else ():
        part = x.narrow(*block).to(dtype)
        peak = torch.amax(part, -1, out=largest.narrow(*block))
        part = part - _finite(peak).unsqueeze(-1)
        if weighs:
            for total, found in zip((weighted, weights), goal.weigh_rows(part, block), strict=True):
                total.narrow(*block).copy_(found)
        torch.sum(part.exp_(), -1, out=sums.narrow(*block))
    return largest, sums, weighted, weights


def gradient(
    k: torch.Tensor, x: torch.Tensor, goal: Goal, largest: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    """Return k (scale exp(x - largest) - q) for numbers k per row, in the dtype of the logits."""
    result = torch.empty_like(x)
    factor = k * scale
    for block in blocks(x) if x.shape[-1] else ():
        off = largest.narrow(*block).unsqueeze(-1)
        target = result.narrow(*block)
        if x.dtype is largest.dtype:
            part = torch.sub(x.narrow(*block), off, out=target)
        else:
            part = x.narrow(*block) - off
        part.exp_().mul_(factor.narrow(*block).unsqueeze(-1))
        goal.subtract(k.narrow(*block), part, block)
        if part is not target:
            target.copy_(part)
    return result


def _finite(largest: torch.Tensor) -> torch.Tensor:
    """Return row maxima that may be subtracted: 0 where all logits of the shard are -inf."""
    return largest.masked_fill(largest == -torch.inf, 0)
