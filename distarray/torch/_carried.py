"""What a layout becomes where torch reshapes, converts or scales a tensor that has one.

Functions that leave the cut axes whole are known, and what they do to these. The result of any
other has no layout, and it is remembered that it comes of a share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from distarray.layout import Layout, Shard
from distarray.torch._followed import Case, rule_of
from distarray.torch._layouts import Beside, is_placed, place, placed_of
from distarray.torch._parameters import is_sharded
from distarray.torch._reshaped import Axes, cut_axes

_FRESH = ("new_", "__get__", "_foreach")
"""Beginnings of names: results are no part of the arguments, or are followed by other means."""
_JOINING = ("cat", "concat", "concatenate", "stack", "hstack", "vstack")
_lost: Beside[Layout] = Beside()
"""Tensors that a rank computed from its share, in which it is not known how they are cut."""
_of_weights: Beside[bool] = Beside()
"""Tensors that were computed from parameters, such as conversions and masked weights."""


def carry(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    """Place the result of a torch function whose input has a layout, where it is known how.

    A result of which it is not is remembered as something of this rank's alone, unless a parameter
    with a layout took part: then the module's style says what the result is.
    """
    name = getattr(function, "__name__", "")
    operands = tensors_in(args, kwargs)
    placed = [(x, found) for x in operands if (found := known(x)) is not None]
    placed = [(x, found) for x, found in placed if is_sharded(found)] or placed
    losing = next((lost for x in operands if (lost := lost_layout(x)) is not None), None)
    if losing is None and not placed:
        return
    rule = None if losing is not None or not _alike(name, operands, placed) else rule_of(function)
    if losing is None and placed and is_sharded(placed[0][1]):
        losing = placed[0][1]
    if name.startswith(_FRESH) and rule is None:
        return
    weights = [is_weight(x) for x, _ in placed]
    if any(weights):
        losing = None
    for one in result if isinstance(result, tuple | list) else (result,):
        if not isinstance(one, torch.Tensor) or is_placed(one):
            continue
        axes = None
        if rule is not None:
            source, layout = placed[0]
            axes = rule(Case(function, args, kwargs, source, layout, one))
            if axes is not None:
                place(one, relabelled(layout, axes, tuple(one.shape)))
                if all(weights):
                    _of_weights.set(one, True)
        if axes is None and losing is not None:
            _lost.set(one, losing)


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


def lost_layout(x: torch.Tensor) -> Layout | None:
    """Return a layout from which this rank computed a tensor, in which the cut is lost."""
    return None if is_placed(x) else _lost.get(x)


def _alike(
    name: str, operands: list[torch.Tensor], placed: list[tuple[torch.Tensor, Layout]]
) -> bool:
    """Tell whether a rule for one operand holds for all: axes are told by their ends, as in torch.

    Beside a tensor that is known to be cut others count as shares, or as alike on all ranks. Beside
    one that is known to be replicated they may be anything.
    """
    layouts = [layout for _, layout in placed]
    if not layouts or any(layout.has_partial for layout in layouts):
        return False
    alone = name in _JOINING or not any(map(is_sharded, layouts))
    if alone and len(placed) < len(operands):
        return False
    if len(layouts) == 1:
        return True
    ndim = max(layout.ndim for layout in layouts)
    aligned = [
        relabelled(one, {axis: axis + ndim - one.ndim for axis in cut_axes(one)}, (1,) * ndim)
        for one in layouts
    ]
    return len(set(aligned)) == 1


def known(x: Any) -> Layout | None:
    """Return the layout of a tensor itself; None where there is none, or for other objects.

    Tensors that consist of parts, each cut by itself, are not followed.
    """
    placed = placed_of(x) if isinstance(x, torch.Tensor) and is_placed(x) else None
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
