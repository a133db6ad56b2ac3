"""Routes of values and of their gradients, and which module a move is made for: nothing moves here.

Layers of one shape move alike: ranks that call two of them in different orders, or go back through
them so, would add what does not belong together. A move for a module remembers the module's path,
which the ranks compare before values leave, forward and backward.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from distarray.comm import Purpose
from distarray.errors import DistArrayError, DTypeError, LayoutError
from distarray.layout import Layout, Partial, Placement, Replicate

_P = Partial()
_LINEAR = frozenset(("sum", "avg"))


class Route(NamedTuple):
    """One way of a move, on which values are multiplied by a scale."""

    src: Layout
    dst: Layout
    scale: float = 1.0
    purpose: Purpose | None = None
    """What the ranks must agree on before values that require a gradient leave: the way back,
    where that communicates."""

    @property
    def is_still(self) -> bool:
        """Whether values stay as they are."""
        return self.src is self.dst and self.scale == 1


def routes_between(
    src: Layout,
    dst: Layout,
    grad_placements: Sequence[Placement] | None = None,
    requires_grad: bool = True,
) -> tuple[Route, Route]:
    """Return the ways between layouts, of values and of gradients, or raise if there are none."""
    told = None if grad_placements is None else tuple(grad_placements)
    there, back, refusal = _routes_of(src, dst, told)
    if refusal and requires_grad:
        raise DTypeError(refusal)
    return there, back


@lru_cache(maxsize=4096)
def to_parts(src: Layout, back: Route, layout: Layout, parts: frozenset[tuple[int, str]]) -> Route:
    """Return the way of a gradient to a replicated tensor, parts of which are summed further back.

    The tensor has moved as ``src``: of contributions to sums each has the whole gradient.
    """
    mesh: Any = layout.mesh
    own = mesh.axes_of(src.mesh)
    if own is None:
        return back
    placements = zip(own, src.placements, back.dst.placements, strict=True)
    returning = [
        _P if (axis, "sum") in parts and type(before) is Replicate else p
        for axis, before, p in placements
    ]
    return back._replace(dst=back.dst.replace(placements=returning))


@lru_cache(maxsize=4096)
def _routes_of(
    src: Layout, dst: Layout, grad_placements: tuple[Placement, ...] | None
) -> tuple[Route, Route, str]:
    """Return the ways of values and gradients, and why a gradient has none, where it has none."""
    returning = src.without_partial()
    arriving = dst.without_partial()
    if grad_placements is not None:  # the gradient is not placed as the tensor
        arriving = dst.replace(placements=grad_placements)
        for given, own in zip(arriving.placements, dst.placements, strict=True):
            if given is not own and not {type(given), type(own)} <= {Partial, Replicate}:
                raise LayoutError(
                    f"the gradient of {dst} cannot arrive as {arriving}: it is cut where the "
                    "tensor is; only Replicate and Partial may take each other's place"
                )
    ops = {p.op for layout in (src, dst, arriving) for p in layout.placements if type(p) is Partial}
    refusal = ""
    if not ops <= _LINEAR:
        refusal = (
            f"{src} -> {dst} has no gradient: only sums and averages have. Detach the tensor, or "
            "reduce it by Partial('sum') or Partial('avg')"
        )
    back = Route(arriving, returning, _averaged_over(dst) / _averaged_over(src))
    purpose = None
    ends = zip(arriving.placements, returning.placements, dst.mesh.shape, strict=True)
    if any(p is not q and type(p) is not Replicate and size > 1 for p, q, size in ends):
        # It is certain to move between ranks.
        purpose = Purpose.of(f"of a tensor whose gradient goes {arriving} -> {returning}")
    return Route(src, dst, 1.0, purpose), back, refusal


def _averaged_over(layout: Layout) -> Any:
    return prod(
        size
        for size, p in zip(layout.mesh.shape, layout.placements, strict=True)
        if type(p) is Partial and p.op == "avg"
    )


# --- origins --------------------------------------------------------------------------------------


class Origin(NamedTuple):
    """What a move is for, and the move of its gradient.

    ``failures`` tells how many calls of models have ended by an error on this rank since ranks have
    agreed: one that has caught an error alone must not go on with what the others have begun.
    """

    there: Purpose
    back: Purpose
    failures: int = 0

    @property
    def reversed(self) -> Origin:
        """What the move of the gradient is for."""
        return Origin(self.back, self.there, self.failures)

    def join(self, purpose: Purpose) -> Purpose:
        """Return what ranks must agree on that move something for a purpose."""
        joined = join_purposes(self.there, purpose)
        if not self.failures:
            return joined
        told = f"after {self.failures} calls of models that ended by an error here"
        return join_purposes(joined, Purpose.of(told))


class _Current(threading.local):
    origin: Origin | None = None
    failures = 0


_current = _Current()


def current() -> Origin | None:
    """Return what moves of this thread are for; None outside of modules that have a path."""
    origin, failures = _current.origin, _current.failures
    return origin._replace(failures=failures) if origin is not None and failures else origin


def count_failure(error: BaseException) -> None:
    """Remember that a call of a model ended by an error, which others may know nothing of.

    Errors of this package come on all ranks, and checkpoints of torch end by an error what they
    compute again.
    """
    if not isinstance(error, DistArrayError) and type(error).__module__ != "torch.utils.checkpoint":
        _current.failures += 1


def forget_failures() -> None:
    """Begin anew, where all ranks do: they have agreed, or found out that they do not."""
    _current.failures = 0


class moving_for:  # noqa: N801 - reads as a phrase: with moving_for(path)
    """Let moves inside be for the module of a path; "" is none."""

    __slots__ = ("_before", "_origin")

    def __init__(self, path: str) -> None:
        self._origin = _origin(path) if path else None

    def __enter__(self) -> None:
        self._before = _current.origin
        _current.origin = self._origin

    def __exit__(self, *_: object) -> None:
        _current.origin = self._before


@lru_cache(maxsize=4096)
def _origin(path: str) -> Origin:
    back = f"backward through {path}, which each rank's loss must depend on"
    return Origin(Purpose.of(path), Purpose.of(back))


@lru_cache(maxsize=4096)
def join_purposes(first: Purpose, second: Purpose) -> Purpose:
    return Purpose(first.token ^ second.token, f"{first.text}: {second.text}")
