"""What a layout becomes where torch reshapes, converts or scales a tensor that has one.

Functions that leave the cut axes whole are known, and what they do to these. The result of any
other has no layout, and it is remembered that it comes of a share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from distarray.layout import Layout, Shard
from distarray.torch._layouts import Beside, Placed, displace, is_placed, own_placed, place
from distarray.torch.following._products import PRODUCTS, Labels
from distarray.torch.following._reshaped import Axes, cut_axes
from distarray.torch.following._rules import Case, item_by_item, labels_of, rule_of
from distarray.torch.following._worked_axes import bare
from distarray.torch.parallel._parameters import is_sharded

_FRESH = ("new_", "__get__", "_foreach")
"""Beginnings of names: results are no part of the arguments, or are followed by other means."""
JOINING = ("cat", "concat", "concatenate", "stack", "hstack", "vstack")


class Lost(NamedTuple):
    """What a tensor comes of, in which it is not known how it is cut.

    Attributes
    ----------
    layout
        Of a tensor that it was computed from.
    function
        The name of a function that worked along cut axes of that one, and saw this rank's share
        of them only; "" where there was none.
    axes
        Which axes these were.
    """

    layout: Layout
    function: str = ""
    axes: frozenset[int] = frozenset()


_lost: Beside[Lost] = Beside()
"""Tensors that a rank computed from its share, in which it is not known how they are cut."""
_of_weights: Beside[bool] = Beside()
"""Tensors that were computed from parameters, such as conversions and masked weights."""


def carry(
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
    worked: Lost | None = None,
) -> None:
    """Place the result of a torch function whose input has a layout, where it is known how.

    A result of which it is not is remembered as something of this rank's alone, unless a parameter
    with a layout took part: then the module's style says what the result is. That the function, or
    one before it, has ``worked`` along a cut axis is remembered in any case.
    """
    name = getattr(function, "__name__", "")
    if name == "__setitem__":
        result = args[0]
    operands = tensors_in(args, kwargs)
    placed = [(x, found) for x in operands if (found := own_placed(x)) is not None]
    to_add = next((found.layout for _, found in placed if found.layout.has_partial), None)
    placed = [(x, found) for x, found in placed if is_sharded(found.layout)] or placed
    losts = [lost for x in operands if (lost := lost_of(x)) is not None]
    losing = worked or next((lost for lost in losts if lost.function), next(iter(losts), None))
    if losing is None and to_add is not None:
        losing = Lost(to_add)
    if losing is None and not placed:
        return
    weights = [is_weight(x) for x, _ in placed]
    rule = None
    if losing is None and not (any(weights) and bare(name) in PRODUCTS):
        labels = labels_of(function, args, kwargs, operands)
        rule = rule_of(function) if _alike(name, labels, placed) else None
    if losing is None and is_sharded(placed[0][1].layout):
        losing = Lost(placed[0][1].layout)
    if name.startswith(_FRESH) and rule_of(function) is None:
        return
    if any(weights) and losing is not None and not losing.function:
        losing = None
    for one in result if isinstance(result, tuple | list) else (result,):
        if not isinstance(one, torch.Tensor):
            continue
        if is_placed(one):
            if losing is None or not losing.function or all(one is not x for x in operands):
                continue
            displace(one)  # it was changed in place
        axes = None
        if rule is not None:
            source, found = placed[0]
            axes = rule(Case(function, args, kwargs, source, found.layout, one))
            if found.parts and (rule is not item_by_item or one.shape != source.shape):
                axes = None
            if axes is not None:
                place(one, relabelled(found.layout, axes, tuple(one.shape)), *found[1:])
                if all(weights):
                    _of_weights.set(one, True)
        if axes is None and losing is not None:
            _lost.set(one, losing)


def concerns(values: Iterable[Any]) -> bool:
    """Tell whether anything is known of a tensor among values, or in a sequence among them."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if is_placed(value) or _lost.get(value) is not None:
                return True
        elif isinstance(value, list | tuple) and concerns(value):
            return True
    return False


def tensors_in(args: Iterable[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the tensors among arguments, and those in sequences among them."""
    found = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += [one for one in value if isinstance(one, torch.Tensor)]
    return found


def is_weight(x: torch.Tensor) -> bool:
    """Tell whether a tensor is a cut parameter, or was computed item by item from such."""
    if not isinstance(x, torch.nn.Parameter) and not _of_weights.get(x):
        return False
    layout = known(x)
    return layout is not None and is_sharded(layout)


def lost_of(x: torch.Tensor) -> Lost | None:
    """Return what a tensor comes of, in which the cut is lost; None where there is nothing."""
    return None if is_placed(x) else _lost.get(x)


def lose(x: torch.Tensor, lost: Lost) -> None:
    """Say what a tensor comes of, in which the cut is lost."""
    _lost.set(x, lost)


def _alike(
    name: str,
    labels: list[tuple[torch.Tensor, Labels]],
    placed: list[tuple[torch.Tensor, Placed]],
) -> bool:
    """Tell whether a rule for one operand holds for all: axes with one label are cut alike.

    Beside a tensor that is known to be cut others count as shares, or as alike on all ranks. Beside
    one that is known to be replicated they may be anything.
    """
    layouts = [found.layout for _, found in placed]
    if not layouts or any(layout.has_partial for layout in layouts):
        return False
    alone = name in JOINING or not any(map(is_sharded, layouts))
    if alone and len(placed) < len(labels):
        return False
    if len(layouts) == 1:
        return True
    if len({found[1:] for _, found in placed}) > 1:
        return False  # parts of other sizes, or beside features that are none
    uses = [(found.layout, one) for x, found in placed for y, one in labels if x is y]
    ndim = max((-i for _, one in uses for i in one if isinstance(i, int)), default=0)
    aligned = set()
    for layout, one in uses:
        axes = {axis: i + ndim for axis in cut_axes(layout) if isinstance(i := one[axis], int)}
        if len(axes) < len(cut_axes(layout)):
            return False
        aligned.add(relabelled(layout, axes, (1,) * ndim))
    return len(aligned) == 1


def known(x: Any) -> Layout | None:
    """Return the layout of a tensor itself; None where there is none, or for other objects.

    Tensors that consist of parts, each cut by itself, are not followed.
    """
    placed = own_placed(x) if isinstance(x, torch.Tensor) else None
    return None if placed is None or placed.parts else placed.layout


def relabelled(layout: Layout, axes: Axes, local: Sequence[int]) -> Layout:
    """Return a layout whose cut axes have moved, of blocks of another shape.

    Parameters
    ----------
    axes
        From the layout's cut axes to those of the result.
    local
        Shape of this rank's block; its other axes are whole.
    """
    if tuple(local) == layout.local_shape() and all(old == new for old, new in axes.items()):
        return layout
    shape = list(local)
    boundaries = {}
    for old, new in axes.items():
        shape[new] = layout.shape[old]
        boundaries[new] = layout.partition(old).offsets
    placements = [Shard(axes[p.axis]) if type(p) is Shard else p for p in layout.placements]
    return Layout(
        layout.mesh,
        placements,
        shape,
        shard_order=layout.shard_order,
        boundaries=boundaries or None,
    )
