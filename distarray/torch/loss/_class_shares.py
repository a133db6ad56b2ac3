"""What one rank computes of a cross entropy, from its share of the classes.

With row maxima M and sums S of exp(x - M) over all classes, and with q the weight that the target
gives to each class (A is their sum), the loss of a row is A log S - sum q (x - M), and its gradient
is A exp(x - M) / S - q. Rows are taken in blocks, so that intermediate values stay small: nothing
of the size of the logits is made but their gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple, Protocol

import torch

Block = tuple[int, int, int]
"""Rows: the axis along which they are taken, where they start, how many."""
_ELEMENTS = {"cpu": 1 << 17, "cuda": 1 << 24}
"""Of a block: few enough for a core's cache on the host, many enough to keep a GPU busy."""


def blocks(x: torch.Tensor) -> Iterator[Block]:
    """Yield the blocks of rows of logits, whose classes are on the last axis."""
    rows = x.shape[:-1]
    axis = max(range(len(rows)), key=rows.__getitem__)
    limit = _ELEMENTS.get(x.device.type, _ELEMENTS["cuda"])
    each = prod(rows[:axis]) * prod(rows[axis + 1 :]) * x.shape[-1]
    step = max(limit // max(each, 1), 1)
    for start in range(0, rows[axis], step):
        yield axis, start, min(step, rows[axis] - start)


class Goal(Protocol):
    """What the target asks for: q, of this rank's share of the classes."""

    def against(self, x: torch.Tensor, block: Block) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the row sums of q x and of q, or None where they are not needed."""

    def subtract(self, k: torch.Tensor, out: torch.Tensor, block: Block) -> None:
        """Subtract k q, where k is a number per row, from a block in place."""


class Classes(NamedTuple):
    """The target is a class per row.

    Attributes
    ----------
    numbers
        The classes, counted from the first of the share: those of others are out of its range.
    own
        What each row's class weighs.
    smooth
        What smoothing gives to each class of the share; None without smoothing.
    """

    numbers: torch.Tensor
    own: torch.Tensor
    smooth: torch.Tensor | None

    def against(self, x: torch.Tensor, block: Block) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the row sums of q x and of q, of what smoothing gives."""
        del block
        if self.smooth is None:
            return None
        return x @ self.smooth, self.smooth.sum()

    def picked(self, x: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
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
    """The target gives every class a probability.

    Attributes
    ----------
    values
        Those of the share, with the classes on the last axis.
    weight
        Of the classes of the share; None where all weigh 1.
    keep, spread
        Smoothing makes ``keep * p + spread`` of a probability.
    """

    values: torch.Tensor
    weight: torch.Tensor | None
    keep: float
    spread: float

    def asked(self, block: Block, dtype: torch.dtype) -> torch.Tensor:
        """Return q of a block."""
        q = self.values.narrow(*block).to(dtype)
        if self.keep != 1:
            q = q * self.keep + self.spread
        return q if self.weight is None else q * self.weight

    def against(self, x: torch.Tensor, block: Block) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the row sums of q x and of q."""
        q = self.asked(block, x.dtype)
        return (x * q).sum(-1), q.sum(-1)

    def subtract(self, k: torch.Tensor, out: torch.Tensor, block: Block) -> None:
        """Subtract k q from a block in place."""
        out.sub_(self.asked(block, out.dtype) * k.unsqueeze(-1))

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


class Survey(NamedTuple):
    """What a rank tells of its share, a number per row each.

    Attributes
    ----------
    largest
        Row maxima; -inf where the share is empty.
    sums
        Of exp(x - largest).
    weighted, weights
        Sums of q (x - largest) and of q, where they are needed.
    """

    largest: torch.Tensor
    sums: torch.Tensor
    weighted: torch.Tensor | None
    weights: torch.Tensor | None

    def relative_to(self, largest: torch.Tensor) -> list[torch.Tensor]:
        """Return the sums of exp(x - largest), of q (x - largest) and of q, as far as known."""
        told = [self.sums * (self.largest - largest).exp_()]
        if self.weighted is not None and self.weights is not None:
            told += [self.weighted + self.weights * (_finite(self.largest) - largest), self.weights]
        return told


def survey(x: torch.Tensor, goal: Goal, dtype: torch.dtype, weighs: bool) -> Survey:
    """Return what is to be told of a share of logits, computed in ``dtype``.

    Parameters
    ----------
    weighs
        Whether q is needed.
    """
    rows = x.shape[:-1]
    largest = x.new_full(rows, -torch.inf, dtype=dtype)
    sums = x.new_zeros(rows, dtype=dtype)
    weighted = x.new_zeros(rows, dtype=dtype) if weighs else None
    weights = x.new_zeros(rows, dtype=dtype) if weighs else None
    for block in blocks(x) if x.shape[-1] else ():
        part = x.narrow(*block).to(dtype)
        peak = torch.amax(part, -1, out=largest.narrow(*block))
        part = part - _finite(peak).unsqueeze(-1)
        if weighted is not None and weights is not None:
            found = goal.against(part, block)
            assert found is not None
            weighted.narrow(*block).copy_(found[0])
            weights.narrow(*block).copy_(found[1])
        torch.sum(part.exp_(), -1, out=sums.narrow(*block))
    return Survey(largest, sums, weighted, weights)


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
    """Return row maxima that may be subtracted: 0 where all logits of the share are -inf."""
    return largest.masked_fill(largest == -torch.inf, 0)
