"""Rules for Partial inputs of operations item by item: `(out, *ins)` on ONE mesh axis.

Cuts of axes need no rows here: `pointwise` derives them from the shapes. A rule below applies only
where every input has just the placement it names, and where `stays_partial` finds the dtypes exact;
whatever matches no rule is reduced first.
"""

from __future__ import annotations

from distarray.core._spec import Rule
from distarray.layout import Partial, Replicate

_R = Replicate()
_SUM = Partial("sum")

POINTWISE: tuple[Rule, ...] = ()
"""f(a + b) is not f(a) + f(b): every Partial input is reduced first."""

LINEAR: tuple[Rule, ...] = ((_SUM, _SUM),)
"""f(a + b) = f(a) + f(b)."""

ADDITIVE: tuple[Rule, ...] = ((_SUM, _SUM, _SUM),)
"""Sums of sums. A replicated addend is none: added on every rank it would count many times."""

MULTIPLICATIVE: tuple[Rule, ...] = (
    (_SUM, _SUM, _R),
    (_SUM, _R, _SUM),
    (Partial("prod"),) * 3,
)
"""Sums times a factor that every rank of the mesh axis has, and products of products."""


def joining(op: str) -> tuple[Rule, ...]:
    """Return the rules of the operation that reduces `Partial(op)` itself (idempotent ones)."""
    p = Partial(op)
    return ((p, p, p), (p, p, _R), (p, _R, p))
