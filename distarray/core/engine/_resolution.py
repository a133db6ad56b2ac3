"""Resolution: from the rules of one mesh axis to what operands of given layouts must become.

The rules are expanded to all mesh axes, and of all ways to meet them the cheapest redistribution
of the inputs is chosen. Nothing here communicates, and the outcome depends on layouts and sizes of
items alone, so that all ranks choose alike.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from distarray.core._spec import Move, Rule, Spec
from distarray.errors import DistArrayError
from distarray.layout import Layout, Partial, Placement, Shard, mark_counted
from distarray.redistribute import estimate
from distarray.typing import Shape

_COMBINATIONS = 512  # 8 choices on 3 mesh axes; beyond, these are decided one after another

Choice = int | None | Rule
"""What one mesh axis does: cut a letter, replicate everything, or follow a rule for Partial."""
Cuts = dict[int, tuple[tuple[int, ...], Any]]
"""For each cut letter its mesh axes, first cut first, and its boundaries or None."""


def resolve(
    spec: Spec,
    layouts: Sequence[Layout],
    sizes: Sequence[int],
    work: Callable[[Sequence[Layout]], float] | None = None,
) -> tuple[list[Move], Layout]:
    """Return the moves of the cheapest way to run `spec` on operands of one mesh, and the output.

    Inputs that fit as they are stay as they are. Otherwise the redistribution of the inputs, and
    of a Partial output that it would create, is weighed by `redistribute.estimate` for items of
    `sizes` bytes (of each input, then of the output), together with the seconds of the local call
    that `work(input layouts)` gives.
    """
    mesh = layouts[0].mesh
    if all(layout.shard_order is None and not layout._boundaries for layout in layouts):
        placements = _fitting(spec, tuple([layout.placements for layout in layouts]))
        if placements is not None:
            return [None] * len(layouts), Layout(mesh, placements, _output_shape(spec, layouts))
    per_axis = [
        _choices(spec, have)
        for have in zip(*(layout.placements for layout in layouts), strict=True)
    ]
    count = 1
    for choices in per_axis:
        count *= len(choices)
    if count > _COMBINATIONS:
        per_axis = _narrow(spec, layouts, sizes, per_axis)
    best: tuple[float, list[Layout], Layout] | None = None
    ways = (_layouts(spec, layouts, chosen) for chosen in itertools.product(*per_axis))
    for targets, output in itertools.chain.from_iterable(ways):
        cost = _cost(layouts, targets, output, sizes)
        if cost and work is not None:
            cost += work(targets)
        if best is None or cost < best[0]:
            best = (cost, targets, output)
        if cost == 0.0:
            break
    assert best is not None, "replicating every operand always fits"
    _, targets, output = best
    moves: list[Move] = [
        None if src is dst or src == dst else (src, dst)
        for src, dst in zip(layouts, targets, strict=True)
    ]
    return moves, output


@functools.lru_cache(maxsize=1024)  # any number of this size does
def _fitting(
    spec: Spec, placements: tuple[tuple[Placement, ...], ...]
) -> tuple[Placement, ...] | None:
    """Return the output's placements where inputs of the default splits fit; None: they do not.

    These splits follow from placements and lengths, so that cuts of one letter agree.
    """
    found = []
    for have in zip(*placements, strict=True):
        for choice in _choices(spec, have):
            output, *inputs = choice if isinstance(choice, tuple) else spec.placements(choice)
            if tuple(inputs) == have:
                found.append(output)
                break
        else:
            return None
    ops = {placement.op for placement in found if type(placement) is Partial}
    return tuple(found) if len(ops) < 2 else None  # they may not stand side by side


def align(spec: Spec, layouts: Sequence[Layout], donor: int = 0) -> list[Move]:
    """Return the moves that bring every operand to the layout of operand `donor`, which stays."""
    letters = spec.inputs[donor]
    combination: list[Choice] = [
        letters[placement.axis] if type(placement) is Shard else None
        for placement in layouts[donor].placements
    ]
    cut: dict[int, list[int]] = {}
    for axis, choice in enumerate(combination):
        if isinstance(choice, int):
            cut.setdefault(choice, []).append(axis)
    targets, _ = _built(spec, layouts, combination, _cuts(spec, layouts, cut, donor))
    targets[donor] = layouts[donor]
    return [None if src == dst else (src, dst) for src, dst in zip(layouts, targets, strict=True)]


def _choices(spec: Spec, have: tuple[Placement, ...]) -> list[Choice]:
    """Return what a mesh axis may do on which the inputs have some placements.

    Follow a matching Partial rule, cut a letter, or (None) replicate.
    """
    for rule in spec.partial:
        if rule[1:] == have:
            return [rule]
    letters: dict[int, None] = {}
    refused = False
    for placement, carried in zip(have, spec.inputs, strict=True):
        if type(placement) is Shard:
            letter = carried[placement.axis]
            if letter is None:
                continue
            if spec.may_cut(letter):
                letters[letter] = None
            else:
                refused = True
    if refused:  # the cut must go: exchanging it for a cut of a kept axis is cheaper than gathering
        letters.update(dict.fromkeys(x for x in spec.output if x is not None))
    return [*letters, None]


def _narrow(
    spec: Spec, layouts: Sequence[Layout], sizes: Sequence[int], per_axis: list[list[Choice]]
) -> list[list[Choice]]:
    """Decide one mesh axis after another, each with the others at their first choice."""
    chosen: list[list[Choice]] = [[choices[0]] for choices in per_axis]
    for axis, choices in enumerate(per_axis):
        costs = []
        for choice in choices:
            combination = [kept[0] for kept in chosen]
            combination[axis] = choice
            ways = _layouts(spec, layouts, combination)
            options = [_cost(layouts, *built, sizes) for built in ways]
            costs.append(min(options, default=float("inf")))
        chosen[axis] = [choices[costs.index(min(costs))]]
    return chosen


def _layouts(
    spec: Spec, layouts: Sequence[Layout], combination: Sequence[Choice]
) -> Iterator[tuple[list[Layout], Layout]]:
    """Yield (input layouts, output layout) for one choice per mesh axis.

    Cuts of one letter must agree in order and boundaries; each operand in turn may dictate them.
    """
    cut: dict[int, list[int]] = {}
    for axis, choice in enumerate(combination):
        if isinstance(choice, int):
            cut.setdefault(choice, []).append(axis)
    seen: list[Cuts] = []
    for donor in range(len(layouts)):
        cuts = _cuts(spec, layouts, cut, donor)
        if cuts in seen:
            continue
        seen.append(cuts)
        try:
            built = _built(spec, layouts, combination, cuts)
        except DistArrayError:
            continue  # Partial kinds that cannot stand side by side in one layout
        yield built


def _built(
    spec: Spec, layouts: Sequence[Layout], combination: Sequence[Choice], cuts: Cuts
) -> tuple[list[Layout], Layout]:
    mesh = layouts[0].mesh
    rules = [
        choice if isinstance(choice, tuple) else spec.placements(choice) for choice in combination
    ]
    named = [axis for axes, _ in cuts.values() for axis in axes]
    named += [axis for axis in range(mesh.ndim) if axis not in named]
    # Layouts in mesh order are found by how they are spelled, in a tenth of the time.
    order = None if named == sorted(named) else named
    built = []
    for i, layout in enumerate(layouts):
        placements = [rule[i + 1] for rule in rules]
        built.append(_layout(mesh, placements, layout.shape, order, spec.inputs[i], cuts))
    shape = _output_shape(spec, layouts)
    output = _layout(mesh, [rule[0] for rule in rules], shape, order, spec.output, cuts)
    if any(layout.is_counted for layout in layouts):
        for one in (*built, output):
            mark_counted(one)
    return built, output


def _output_shape(spec: Spec, layouts: Sequence[Layout]) -> Shape:
    sizes: dict[int | None, int] = {}
    for letters, layout in zip(spec.inputs, layouts, strict=True):
        sizes.update(zip(letters, layout.shape, strict=True))
    sizes[None] = 1
    return tuple([sizes[x] for x in spec.output])


def _cuts(spec: Spec, layouts: Sequence[Layout], cut: dict[int, list[int]], donor: int) -> Cuts:
    """Return how each letter is cut, asking the operand `donor` first."""
    asked = [donor, *(i for i in range(len(layouts)) if i != donor)]
    cuts: Cuts = {}
    for letter, axes in cut.items():
        cuts[letter] = (tuple(axes), None)
        for i in asked:
            if letter not in spec.inputs[i]:
                continue
            own = spec.inputs[i].index(letter)
            if set(layouts[i].sharding_axes(own)) == set(axes):
                boundaries = layouts[i].boundaries or {}
                cuts[letter] = (tuple(layouts[i].sharding_axes(own)), boundaries.get(own))
                break
    return cuts


def _layout(
    mesh: Any, placements: Any, shape: Shape, order: list[int] | None, letters: Any, cuts: Cuts
) -> Layout:
    boundaries = {
        own: cuts[letter][1]
        for own, letter in enumerate(letters)
        if letter in cuts and cuts[letter][1] is not None
    }
    return Layout(mesh, placements, shape, shard_order=order, boundaries=boundaries or None)


def _cost(
    layouts: Sequence[Layout], targets: Sequence[Layout], output: Layout, sizes: Sequence[int]
) -> float:
    """Return the seconds that moving the inputs takes, and reducing what that leaves Partial."""
    *each, made = sizes
    moved = [one for one in zip(layouts, targets, each, strict=True) if one[0] != one[1]]
    if not moved:
        return 0.0
    cost = sum(estimate(src, dst, size) for src, dst, size in moved)
    if output.has_partial:
        cost += estimate(output, output.without_partial(), made)
    return max(cost, 1e-12)
