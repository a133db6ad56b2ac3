"""The search for the cheapest steps from one layout to another, and the plain ways beside it.

Communication leads up to a layout without new ``Partial`` (`layout_before_filling`), then one local
step creates them. For the communication Dijkstra's algorithm runs over layouts. From every layout
leads an edge to the goal (one round of box intersections) and, where that can pay, edges that
change the mesh axes one at a time or all ``Partial`` ones together: values are reduced before they
are moved on, within a node before they cross to another, and a block that many need is scattered
first and gathered among those.

No edge undoes what another does: an array axis that stays sharded is never replicated on the way,
so that without a reduction no rank receives a value twice or one that it holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from itertools import count
from typing import Any

import numpy as np

from distarray.layout import Layout, Mesh, Partial, Placement, Replicate, Shard
from distarray.redistribute._blocks import kept_partial, same_mesh
from distarray.redistribute._cost import CostModel, seconds_at
from distarray.redistribute._intermediate_layouts import (
    choose_axis,
    intermediate_layout,
    layout_before_filling,
    scatter_copies,
)
from distarray.redistribute._steps import (
    AllReduceStep,
    ExchangeStep,
    LocalStep,
    ReduceScatterStep,
    Step,
    ops_to_fill,
    reduced_dtype,
    reduced_dtype_between,
    step_between,
)

Steps = tuple[Step, ...]


class Search:
    """The cheapest steps from ``src`` to ``goal``, abstract layouts of one shape.

    The goal creates no ``Partial``; the dtype is that of the source's values.
    """

    def __init__(self, src: Layout, goal: Layout, dtype: np.dtype[Any], model: CostModel) -> None:
        self._src = src
        self._goal = goal
        self._dtype = dtype
        self._model = model
        self._one_mesh = same_mesh(src, goal)

    def direct(self) -> Steps | None:
        """Return the plan of one exchange (or no step at all), if one can do it."""
        if self._src is self._goal:
            return ()
        if len({op for _, op in self._pending(self._src)}) > 1:
            return None
        return (step_between(self._src, self._goal, self._dtype),)

    def cheapest(self) -> Steps:
        """Return the cheapest steps that the edges offer."""
        direct = self.direct()
        if direct is not None and not self._worth_searching(direct):
            return direct
        order = count()
        best: dict[Layout, float] = {self._src: 0.0}
        queue: list[tuple[float, int, int, Layout, Steps]] = [(0.0, 0, next(order), self._src, ())]
        while queue:
            spent, taken, _, layout, steps = heappop(queue)
            if layout is self._goal:
                return steps
            if spent > best[layout]:
                continue
            dtype = steps[-1].result_dtype if steps else self._dtype
            for step in self._edges(layout, dtype):
                total = spent + seconds_at(step, (0,) * step.dst.mesh.ndim, self._model)
                if total < best.get(step.dst, float("inf")):
                    best[step.dst] = total
                    heappush(queue, (total, taken + 1, next(order), step.dst, (*steps, step)))
        raise AssertionError(f"no steps lead from {self._src} to {self._goal}")

    def _worth_searching(self, direct: Steps) -> bool:
        """Tell whether anything but the direct exchange could be cheaper."""
        if not direct or isinstance(direct[0], LocalStep) or not self._src.size:
            return False
        pending = self._pending(self._src)
        if pending:
            return not (len(pending) == 1 and isinstance(direct[0], ReduceScatterStep))
        if not self._one_mesh:
            return _spread(self._goal) and _disjoint(self._src.mesh, self._goal.mesh)
        return bool(self._staged_gathers(self._src))

    def _pending(self, layout: Layout) -> list[tuple[int, str]]:
        """Return mesh axis and operation of the reductions still to do."""
        on_goal = self._one_mesh
        return [
            (i, p.op)
            for i, p in enumerate(layout.placements)
            if type(p) is Partial
            and not (on_goal and self._goal.placements[i] is p)
            and (layout.mesh.shape[i] > 1 or reduced_dtype(p.op, self._dtype) != self._dtype)
        ]

    def _edges(self, layout: Layout, dtype: np.dtype[Any]) -> Iterator[Step]:
        """Yield the steps that may be taken from a layout."""
        pending = self._pending(layout)
        ops = dict.fromkeys(op for _, op in pending)  # in one order, on every rank
        arrived = self._one_mesh or layout.mesh is self._goal.mesh
        if len(ops) < 2:
            yield step_between(layout, self._goal, dtype)
            if not arrived and _spread(self._goal) and _disjoint(layout.mesh, self._goal.mesh):
                yield ExchangeStep(layout, scatter_copies(self._goal), dtype)
        for op in ops:
            axes = [i for i, found in pending if found == op]
            yield from self._reductions(layout, dtype, op, axes, len(pending))
        if arrived:
            yield from self._moves(layout, dtype, pending)

    def _reductions(
        self, layout: Layout, dtype: np.dtype[Any], op: str, axes: list[int], pending: int
    ) -> Iterator[Step]:
        """Yield the steps that reduce along mesh axes, one at a time or all together."""
        for chosen in [axes] if len(axes) == 1 else [axes, *([i] for i in axes)]:
            whole = list(layout.placements)
            parts = list(layout.placements)
            for i in chosen:
                wanted = self._goal.placements[i] if self._one_mesh else None
                axis = wanted.axis if type(wanted) is Shard else choose_axis(layout, parts, i)
                whole[i] = Replicate()
                parts[i] = whole[i] if axis is None else Shard(axis)
            goal = self._goal.placements if self._one_mesh else None
            kept = [i for i in chosen if goal is None or type(goal[i]) is Replicate]
            if len(kept) == len(chosen):
                reduced = layout.replace(placements=whole)
                yield AllReduceStep(layout, reduced, op, tuple(chosen), dtype)
            # Reducing in parts that are gathered later pays where values move on in between;
            # otherwise an all-reduce does the same.
            several_nodes = pending > 1 and self._model.ranks_per_node is not None
            staged = not kept or not self._one_mesh or several_nodes
            if staged and all(type(parts[i]) is Shard for i in chosen):
                yield self._step(layout, tuple(parts), dtype)

    def _moves(
        self, layout: Layout, dtype: np.dtype[Any], pending: list[tuple[int, str]]
    ) -> Iterator[Step]:
        """Yield the steps that bring mesh axes to the goal's placements without reducing."""
        changed = self._changed(layout) if pending else self._staged_gathers(layout)
        choices = [[i] for i in changed]
        if len(changed) > 1 and pending:
            choices.append(changed)
        for chosen in choices:
            placements = list(layout.placements)
            for i in chosen:
                placements[i] = self._goal.placements[i]
            yield self._step(layout, tuple(placements), dtype)

    def _changed(self, layout: Layout) -> list[int]:
        """Return the mesh axes whose placements are not the goal's, and not ``Partial``."""
        both = zip(layout.placements, self._goal.placements, strict=True)
        return [i for i, (p, q) in enumerate(both) if p is not q and type(p) is not Partial]

    def _staged_gathers(self, layout: Layout) -> list[int]:
        """Return the mesh axes along which to gather one at a time, if that can pay.

        Between nodes, where nothing but gathers is left: what else changes could let a rank
        gather values that it does not keep.
        """
        changed = self._changed(layout)
        gathers = all(
            type(layout.placements[i]) is Shard and type(self._goal.placements[i]) is Replicate
            for i in changed
        )
        pays = len(changed) > 1 and self._model.ranks_per_node is not None
        return changed if gathers and pays else []

    def _step(
        self, layout: Layout, placements: tuple[Placement, ...], dtype: np.dtype[Any]
    ) -> Step:
        goal = self._goal if layout.mesh is self._goal.mesh else layout
        return step_between(layout, intermediate_layout(layout, goal, placements), dtype)


def _spread(layout: Layout) -> bool:
    """Tell whether several ranks of a layout hold the same values."""
    shape = layout.mesh.shape
    return layout.ndim > 0 and any(shape[i] > 1 for i in layout.replicated_axes)


@lru_cache(maxsize=256)
def _disjoint(a: Mesh, b: Mesh) -> bool:
    """Tell whether two meshes have no rank in common."""
    (low, high), (first, last) = _span(a.flat_ranks), _span(b.flat_ranks)
    return high < first or last < low or set(a.flat_ranks).isdisjoint(b.flat_ranks)


def _span(ranks: Sequence[int]) -> tuple[int, int]:
    ends = (ranks[0], ranks[-1]) if isinstance(ranks, range) else ranks
    return min(ends), max(ends)


def cheapest(src: Layout, dst: Layout, dtype: np.dtype[Any], model: CostModel) -> Steps:
    """Return the steps of the cheapest way; none where the layouts are the same."""
    if src is dst:
        return ()
    goal = _goal(src, dst, dtype)
    steps = Search(src, goal, dtype, model).cheapest()
    return _add_filling(steps, goal, dst, dtype)


def alternatives(
    src: Layout, dst: Layout, dtype: np.dtype[Any], model: CostModel
) -> list[tuple[str, Steps]]:
    """Return the plain ways by name, for comparison; those that exist."""
    goal = _goal(src, dst, dtype)
    found: list[tuple[str, Steps | None]] = [
        ("one exchange", Search(src, goal, dtype, model).direct()),
        ("all-reduce first", _reduce_first(src, goal, dtype)),
        ("one mesh axis after another", _axis_by_axis(src, goal, dtype)),
        ("replicate, then slice", _replicate_and_slice(src, goal, dtype)),
    ]
    return [
        (name, _add_filling(steps, goal, dst, dtype)) for name, steps in found if steps is not None
    ]


def _goal(src: Layout, dst: Layout, dtype: np.dtype[Any]) -> Layout:
    """Return where communication ends."""
    return layout_before_filling(src, dst, reduced_dtype_between(src, dst, dtype))


def _add_filling(steps: Steps, goal: Layout, dst: Layout, dtype: np.dtype[Any]) -> Steps:
    """Return the steps with the local one that creates ``Partial`` blocks, if any are created."""
    if goal is dst:
        return steps
    dtype = steps[-1].result_dtype if steps else dtype
    last = LocalStep("fill" if ops_to_fill(goal, dst) else "relabel", goal, dst, dtype)
    before = steps[-1] if steps else None
    if last.kind == "relabel" and isinstance(before, LocalStep):
        return (*steps[:-1], LocalStep(before.kind, before.src, dst, dtype))
    return (*steps, last)


def _reduce_first(src: Layout, goal: Layout, dtype: np.dtype[Any]) -> Steps | None:
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


def _axis_by_axis(src: Layout, goal: Layout, dtype: np.dtype[Any]) -> Steps | None:
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
        after = intermediate_layout(layout, goal, placements)
        if type(old) is Partial and type(new) is Replicate:
            after = layout.replace(placements=placements)
            steps = (*steps, AllReduceStep(layout, after, old.op, (i,), dtype))
        else:
            steps = (*steps, step_between(layout, after, dtype))
        dtype = steps[-1].result_dtype
        layout = after
    return (*steps, step_between(layout, goal, dtype)) if layout is not goal else steps


def _replicate_and_slice(src: Layout, goal: Layout, dtype: np.dtype[Any]) -> Steps | None:
    """Return all values on every rank of the source mesh, then what each keeps of them."""
    if goal.has_partial or len({p.op for p in src.placements if type(p) is Partial}) > 1:
        return None
    whole = Layout(src.mesh, [Replicate()] * src.mesh.ndim, src.shape)
    if whole in (src, goal):
        return None
    first = step_between(src, whole, dtype)
    return (first, step_between(whole, goal, first.result_dtype))
