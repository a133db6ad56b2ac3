"""Rules for Partial inputs of operations item by item: `(out, *ins)` on ONE mesh axis.

Cuts of axes need no rows here: `pointwise` derives them from the shapes. A rule below applies only
where every input has just the placement it names; whatever matches no rule is reduced first.
"""

from __future__ import annotations

from distarray.core._spec import Rule
from distarray.layout import Partial, Replicate

_R = Replicate()
_SUMS = (Partial("sum"), Partial("avg"))
_OPS = ("sum", "avg", "prod", "min", "max", "any", "all", "band", "bor", "bxor")

POINTWISE: tuple[Rule, ...] = ()
"""f(a + b) is not f(a) + f(b): every Partial input is reduced first."""

KEEPING: tuple[Rule, ...] = tuple((Partial(op), Partial(op)) for op in _OPS)
"""The items themselves, as in `positive`."""

LINEAR: tuple[Rule, ...] = tuple((p, p) for p in _SUMS)
"""f(a + b) = f(a) + f(b)."""

ADDITIVE: tuple[Rule, ...] = tuple((p, p, p) for p in _SUMS)
"""Sums of sums. A replicated addend is none: added on every rank it would count many times."""

BILINEAR: tuple[Rule, ...] = tuple(rule for p in _SUMS for rule in ((p, p, _R), (p, _R, p)))
"""Products with a factor that every rank of the mesh axis has.

Where such a factor is infinite, the parts of a sum may give NaN (0 times infinity, or infinities
of both signs) where the product of the sum is infinite. Plain values are looked at for that, and
the sum is reduced first; a distributed factor is not, as its items differ along other mesh axes.
"""

DIVIDING: tuple[Rule, ...] = tuple((p, p, _R) for p in _SUMS)
"""Linear in the first operand alone."""

MULTIPLICATIVE: tuple[Rule, ...] = (*BILINEAR, (Partial("prod"),) * 3)
"""BILINEAR, and products of products."""

SELECTING: tuple[Rule, ...] = tuple((p, _R, p, p) for p in _SUMS)
"""`where` with a condition that every rank of the mesh axis has."""


def joining(op: str) -> tuple[Rule, ...]:
    """Return the rules of the operation that reduces `Partial(op)` itself (idempotent ones)."""
    p = Partial(op)
    return ((p, p, p), (p, p, _R), (p, _R, p))
