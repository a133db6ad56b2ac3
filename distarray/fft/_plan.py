"""Plan of a transform: which axes each process transforms next, and what is exchanged in between.

Axes that are not cut come first; then the cut of another one is turned to an axis that is done, or
that is not transformed, by one exchange (slabs and pencils: Dalcin, Mortensen and Keyes, "Fast
parallel multidimensional FFT using advanced MPI", 2019). A result stays turned. Of the ways with
the fewest exchanges and even blocks the plan takes the one whose result has its cuts along the
first of the transformed axes, so that an inverse transform leads back to an array that is cut along
those. A line of which no other axis can take the cut is transformed by all processes together
(`_six_steps`, `_chirp`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any, Final, NamedTuple

from distarray.fft._chirp import Chirp
from distarray.fft._six_steps import RealSixSteps, SixSteps, factors, unevenness
from distarray.fft._stages import Keep, Stage, Task, Transform, Turn, crop, recut, turn
from distarray.layout import Layout, Partial, Shard, chunk

EVEN: Final = 1.25
"""Largest block, in even parts, that passes as even: as far as this first axes are preferred."""
UNEVEN: Final = 1.5
"""Largest block, in even parts, up to which one exchange is preferred to the three of a cut line.
Chosen, not measured: half as much memory again is the most that a process should be asked for."""
UNEVEN_FACTORS: Final = 1.52
"""Largest block, in even parts, up to which factors of a length are taken as they are. Chosen: a
chirp moves and computes more, but twice a block on one of two processes is the whole line. A bit
more than one and a half, as real items have a row more than half of the matrix."""
GATHERED_BYTES: Final = 64 << 10
"""A line that nothing else can be cut for is gathered, and every process transforms all of it, if
the array has no more bytes: to receive them costs less than three exchanges take to begin."""


class _Way(NamedTuple):
    """Stages, after what they cost; what comes first counts first."""

    exchanges: int
    unevenness: float
    doubled: int
    """Cuts of axes that another mesh axis cuts as well: the next transform has more to move."""
    aside: int
    """Cuts of axes that are not transformed: components of a vector, say, that belong together."""
    cuts: tuple[int, ...]
    """Of the result: the axis that each mesh axis cuts, or -1."""
    stages: tuple[Stage, ...]


def reduced(layout: Layout, task: Task) -> Layout:
    """Return the layout in which an array that may be Partial is transformed.

    Sums are scattered along an axis that is not transformed, or that another one can be cut for:
    half the bytes of reducing them everywhere, and no process does what another one does. They stay
    whole where such an axis is missing, or the array is small.
    """
    if layout.has_partial and layout.size * task.dtype.itemsize > GATHERED_BYTES:
        taken = {axis for axis, _ in task.lengths}
        order = [axis for axis in range(layout.ndim) if axis not in taken]
        order += [axis for axis, _ in task.lengths if axis != task.real_axis]
        for place, one in enumerate(layout.placements):
            count = layout.mesh.shape[place]
            even = [axis for axis in range(layout.ndim) if _is_even_cut(layout, axis, count)]
            able = [axis for axis in order if axis in even]
            if type(one) is Partial and able and (able[0] not in taken or len(even) > 1):
                placements = [*layout.placements]
                placements[place] = Shard(able[0])
                layout = layout.replace(placements=placements)
    return layout.without_partial()


def _is_even_cut(layout: Layout, axis: int, count: int) -> bool:
    """Tell whether an axis that is not cut has about as many items for each of some processes."""
    size = layout.shape[axis]
    is_whole = Shard(axis) not in layout.placements
    return is_whole and chunk(size, (count,)).largest * count <= EVEN * size


def plan(layout: Layout, task: Task) -> tuple[Stage, ...]:
    """Return the stages of a transform of an array that is not Partial; pure arithmetic."""
    return _search(layout, tuple(axis for axis, _ in task.lengths), task, {}).stages


def _search(layout: Layout, pending: tuple[int, ...], task: Task, known: dict[Any, _Way]) -> _Way:
    """Return the best way to transform the axes that are pending."""
    key = layout, pending
    if key not in known:
        stages: tuple[Stage, ...] = ()
        ready = _ready(layout, pending, task)
        if ready:
            stages = (Transform(layout, ready[::-1], task),)
            layout = stages[-1].after
            pending = tuple(axis for axis in pending if axis not in ready)
        if pending:
            ways = [
                _continue(cost, more, _search(more[-1].after, rest, task, known))
                for cost, more, rest in _options(layout, pending, task)
            ]
            best = min(ways, key=lambda way: way[:5])
        else:
            cuts = tuple(p.axis if type(p) is Shard else -1 for p in layout.placements)
            transformed = {-1, *(axis for axis, _ in task.lengths)}
            best = _Way(0, 0.0, 0, sum(axis not in transformed for axis in cuts), cuts, ())
        known[key] = best._replace(stages=(*stages, *best.stages))
    return known[key]


def _continue(cost: tuple[int, float, int], stages: tuple[Stage, ...], rest: _Way) -> _Way:
    exchanges, unevenness, doubled = cost
    return _Way(
        exchanges + rest.exchanges,
        unevenness + rest.unevenness,
        doubled + rest.doubled,
        rest.aside,
        rest.cuts,
        (*stages, *rest.stages),
    )


def _ready(layout: Layout, pending: tuple[int, ...], task: Task) -> tuple[int, ...]:
    """Return the axes to transform where they lie: real items first, or last."""
    ready = tuple(axis for axis in pending if layout.partition(axis).count == 1)
    if task.real == "in" and task.real_axis in pending and task.real_axis not in ready:
        return ()
    if task.real == "out" and len(ready) < len(pending):
        return tuple(axis for axis in ready if axis != task.real_axis)
    return ready


def _options(
    layout: Layout, pending: tuple[int, ...], task: Task
) -> Iterator[tuple[tuple[int, float, int], tuple[Stage, ...], tuple[int, ...]]]:
    """Yield (cost, stages, what is pending then) of each way to get on with one cut axis."""
    chosen = pending
    if task.real == "in" and task.real_axis in pending:
        chosen = (task.real_axis,)
    elif task.real == "out" and len(pending) > 1:
        chosen = pending[:-1]
    small = layout.size * task.dtype.itemsize <= GATHERED_BYTES
    for axis in chosen:
        most = task.taken(axis)
        before = crop(layout, axis, most)
        moved = [m for m in layout.sharding_axes(axis) if layout.mesh.shape[m] > 1]
        others = [other for other, size in enumerate(before.shape) if other != axis and size > 1]
        share = max(before.size / _ways(layout), 1)
        turns = []
        for targets in product(others, repeat=len(moved)):
            after = turn(before, axis, dict(zip(moved, targets, strict=True)))
            turns.append((_largest(after) / share, after, targets))
        least = min((uneven for uneven, _, _ in turns), default=float("inf"))
        rest = tuple(one for one in pending if one != axis)
        if not turns and small:
            whole = Turn(layout, axis, dict.fromkeys(moved, None), most)
            done = Transform(whole.after, (axis,), task)
            cut = recut(layout, axis, done.after.shape[axis])
            yield (1, 0.0, 0), (whole, done, Keep(done.after, cut)), rest
            continue
        if least > UNEVEN and not small:
            line = make_line(layout, axis, task)
            if line.unevenness < least:
                yield (len(line.sends), max(line.unevenness, EVEN), 0), (line,), rest
                continue
        for uneven, after, targets in turns:
            if uneven <= max(least, UNEVEN):
                cuts = [len(after.sharding_axes(one)) for one in range(after.ndim)]
                doubled = sum(cuts) - sum(map(bool, cuts))
                stage = Turn(layout, axis, dict(zip(moved, targets, strict=True)), most)
                yield (1, max(uneven, EVEN), doubled), (stage,), pending


def make_line(layout: Layout, axis: int, task: Task) -> SixSteps | RealSixSteps | Chirp:
    """Return the stage that transforms an axis that is cut."""
    is_real, count = axis == task.real_axis, layout.partition(axis).count
    sizes = factors(task.length(axis), count, is_real)
    if unevenness(sizes, count, is_real) > UNEVEN_FACTORS:
        return Chirp(layout, axis, task)
    method = RealSixSteps if is_real and task.real == "out" else SixSteps
    return method(layout, axis, task, sizes)


def _largest(layout: Layout) -> int:
    return prod(layout.partition(axis).largest for axis in range(layout.ndim))


def _ways(layout: Layout) -> int:
    return prod(layout.partition(axis).count for axis in range(layout.ndim))
