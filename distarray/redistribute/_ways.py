"""Whole ways from one layout to another: the cheapest, and the plain ones it is compared with.

A way is communication up to a layout without new ``Partial`` (see `exchange_target`), then one
local step that creates them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distarray.errors import DTypeError
from distarray.layout import REDUCTIONS, Layout, Partial, Replicate
from distarray.redistribute._cost import CostModel
from distarray.redistribute._regular import step_between
from distarray.redistribute._route import kept_partial, op_of, same_mesh
from distarray.redistribute._search import Search
from distarray.redistribute._steps import (
    AllReduceStep,
    LocalStep,
    Step,
    filled,
    reduced_dtype,
)
from distarray.redistribute._targets import between, exchange_target

Steps = tuple[Step, ...]


def cheapest(src: Layout, dst: Layout, dtype: np.dtype[Any], model: CostModel) -> Steps:
    """Return the steps of the cheapest way; none where the layouts are the same."""
    if src is dst:
        return ()
    goal = _goal(src, dst, dtype)
    steps = Search(src, goal, dtype, model).cheapest()
    return _with_filling(steps, goal, dst, dtype)


def alternatives(
    src: Layout, dst: Layout, dtype: np.dtype[Any], model: CostModel
) -> list[tuple[str, Steps]]:
    """Return the plain ways by name, for comparison; those that exist."""
    goal = _goal(src, dst, dtype)
    found: list[tuple[str, Steps | None]] = [
        ("one exchange", Search(src, goal, dtype, model).direct()),
        ("all-reduce first", _reduced_first(src, goal, dtype)),
        ("one mesh axis after another", _by_axis(src, goal, dtype)),
        ("replicate, then slice", _replicated(src, goal, dtype)),
    ]
    return [
        (name, _with_filling(steps, goal, dst, dtype)) for name, steps in found if steps is not None
    ]


def check_dtype(src: Layout, dst: Layout, dtype: np.dtype[Any]) -> None:
    """Raise DTypeError if a ``Partial`` on the way has an operation that its values do not know.

    Or if the result would depend on the order of the reductions: the sum of truth values is their
    disjunction, and that of averages is not.
    """
    kept = kept_partial(src, dst)
    ops = {op_of(src, i) for i in src.partial_axes if i not in kept and src.mesh.shape[i] > 1}
    if dtype.kind == "b" and len(ops) > 1 and "avg" in ops:
        raise DTypeError(
            f"{src} averages truth values along one mesh axis and reduces them otherwise along "
            "another, whose order matters; redistribute in two steps, or convert the array first"
        )
    for layout, kind in ((src, dtype), (dst, _reduced(src, dst, dtype))):
        for i in layout.partial_axes:
            placement = layout.placements[i]
            if i not in kept and type(placement) is Partial:
                _check(placement, kind)


def _check(placement: Partial, dtype: np.dtype[Any]) -> None:
    kinds = REDUCTIONS[placement.op].kinds
    # Kinds beyond NumPy's own (bfloat16 has V) are the business of those who reduce them.
    if dtype.kind not in kinds and dtype.kind in "biufcmMSUO":
        raise DTypeError(
            f"{placement!r} of {dtype}: this reduction is defined for the dtype kinds "
            f"{', '.join(kinds)}; convert the array first, or choose another reduction"
        )


def _reduced(src: Layout, dst: Layout, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the values once reduced."""
    kept = kept_partial(src, dst)
    for i in src.partial_axes:
        placement = src.placements[i]
        if i not in kept and type(placement) is Partial:
            dtype = reduced_dtype(placement.op, dtype)
    return dtype


def _goal(src: Layout, dst: Layout, dtype: np.dtype[Any]) -> Layout:
    """Return where communication ends."""
    return exchange_target(src, dst, _reduced(src, dst, dtype), same_mesh(src, dst))


def _with_filling(steps: Steps, goal: Layout, dst: Layout, dtype: np.dtype[Any]) -> Steps:
    """Return the steps with the local one that creates ``Partial`` blocks, if any are created."""
    if goal is dst:
        return steps
    dtype = steps[-1].result_dtype if steps else dtype
    last = LocalStep("fill" if filled(goal, dst) else "relabel", goal, dst, dtype)
    before = steps[-1] if steps else None
    if last.kind == "relabel" and isinstance(before, LocalStep):
        return (*steps[:-1], LocalStep(before.kind, before.src, dst, dtype))
    return (*steps, last)


def _reduced_first(src: Layout, goal: Layout, dtype: np.dtype[Any]) -> Steps | None:
    """Return an all-reduce of everything that is reduced, then one exchange."""
    kept = kept_partial(src, goal)
    axes = tuple(i for i in src.partial_axes if i not in kept and src.mesh.shape[i] > 1)
    ops = {p.op for p in (src.placements[i] for i in axes) if type(p) is Partial}
    if len(ops) != 1:
        return None
    placements = [
        Replicate() if i in axes else placement for i, placement in enumerate(src.placements)
    ]
    reduced = src.replace(placements=placements)
    first = AllReduceStep(src, reduced, ops.pop(), axes, dtype)
    if reduced is goal:
        return (first,)
    if len(set(reduced.partial_axes) - set(kept_partial(reduced, goal))):
        return None
    return (first, step_between(reduced, goal, first.result_dtype))


def _by_axis(src: Layout, goal: Layout, dtype: np.dtype[Any]) -> Steps | None:
    """Return one step per mesh axis, the last mesh axis first."""
    if not same_mesh(src, goal) or src.mesh is not goal.mesh:
        return None
    steps: Steps = ()
    layout = src
    for i in reversed(range(src.mesh.ndim)):
        old, new = layout.placements[i], goal.placements[i]
        if old is new:
            continue
        placements = (*layout.placements[:i], new, *layout.placements[i + 1 :])
        after = between(layout, goal, placements)
        if type(old) is Partial and type(new) is Replicate:
            after = layout.replace(placements=placements)
            steps = (*steps, AllReduceStep(layout, after, old.op, (i,), dtype))
        else:
            steps = (*steps, step_between(layout, after, dtype))
        dtype = steps[-1].result_dtype
        layout = after
    return (*steps, step_between(layout, goal, dtype)) if layout is not goal else steps


def _replicated(src: Layout, goal: Layout, dtype: np.dtype[Any]) -> Steps | None:
    """Return all values on every rank of the source mesh, then what each keeps of them."""
    if goal.has_partial or len({p.op for p in src.placements if type(p) is Partial}) > 1:
        return None
    whole = Layout(src.mesh, [Replicate()] * src.mesh.ndim, src.shape)
    if whole in (src, goal):
        return None
    first = step_between(src, whole, dtype)
    return (first, step_between(whole, goal, first.result_dtype))
