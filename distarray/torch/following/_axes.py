"""Axes of tensors in products, views and indices: which meet, which stay whole, and where they go.

Products go by the letters of their axes, as einsum names them. A letter that the result lacks is
summed over; where axes of one letter meet, their items must be of the same places. Operands that
have fewer axes than letters have the last of these. Views are told from the shapes of a rank's
block, as every rank tells alike from its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import torch

from distarray.layout import Layout
from distarray.torch._layouts import cut_axes

Axes = Mapping[int, int]
"""Where every cut axis of an operand is in the result."""
Labels = tuple[int | str, ...]
"""Of each axis of an operand, where it is in the result, from its end; else its letter."""


# --- products -------------------------------------------------------------------------------------

_MATRICES = (("*ij", "*jk"), "*ik")
_EQUATIONS: dict[str, tuple[tuple[str, ...], str]] = {
    # the letters of the operands, "*" for any axes before them that all have, and of the result
    **dict.fromkeys(("matmul", "__matmul__", "__rmatmul__", "mm", "bmm"), _MATRICES),
    "mv": (("*ij", "j"), "*i"),
    **dict.fromkeys(("dot", "vdot"), (("i", "i"), "")),
    "linear": (("*i", "oi", "o"), "*o"),
    "bilinear": (("*i", "*j", "oij", "o"), "*o"),
    "addmm": (("ik", "ij", "jk"), "ik"),
    "addmv": (("i", "ij", "j"), "i"),
    "addbmm": (("ik", "bij", "bjk"), "ik"),
    "baddbmm": (("*ik", "*ij", "*jk"), "*ik"),
    **dict.fromkeys(("outer", "ger"), (("i", "j"), "ij")),
    "addr": (("ij", "i", "j"), "ij"),
    "cdist": (("*im", "*jm"), "*ij"),
    "scaled_dot_product_attention": (("*le", "*se", "*sv", "*ls"), "*lv"),
}
_CAUSAL = (("*se", "*se", "*sv"), "*?v")
"""Of attention where places before others are told by their numbers: it works along both."""
PRODUCTS = frozenset((*_EQUATIONS, "inner", "tensordot", "einsum"))
_NAMES = (
    # of operands that are given by name, in the order in which functions take them
    *("input", "query", "x1", "a", "input1", "mat", "mat1", "batch1", "vec1", "key", "x2", "b"),
    *("input2", "mat2", "vec", "batch2", "vec2", "other", "tensor", "weight", "value", "bias"),
    "attn_mask",
)


def label_axes(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[torch.Tensor, Labels]]:
    """Return the operands of a product with the labels of their axes; nothing if unknown."""
    operands = [*args, *(kwargs[key] for key in _NAMES if key in kwargs)]
    if name == "einsum":
        equation, *operands = operands
        if len(operands) == 1 and isinstance(operands[0], list | tuple):
            operands = list(operands[0])
        if not isinstance(equation, str):
            return []
        letters, result = _read(equation)
    elif name in ("inner", "tensordot"):
        letters, result = _outer(name, args, kwargs, operands)
    else:
        letters, result = _EQUATIONS[name]
        if letters is _MATRICES[0] and operands[name != "__rmatmul__"].ndim == 1:
            letters, result = _EQUATIONS["mv"]
        if name == "__rmatmul__":
            letters = letters[::-1]
        is_causal = args[5] if len(args) > 5 else kwargs.get("is_causal")
        if name == "scaled_dot_product_attention" and is_causal:
            letters, result = _CAUSAL
    found = [
        (x, one) for x, one in zip(operands, letters, strict=False) if isinstance(x, torch.Tensor)
    ]
    labels = _labels(tuple((x.ndim, one) for x, one in found), result)
    return [(x, of_axes) for (x, _), of_axes in zip(found, labels, strict=True)]


@lru_cache(maxsize=4096)
def _labels(operands: tuple[tuple[int, str], ...], result: str) -> tuple[Labels, ...]:
    """Return the labels of operands of so many axes with such letters."""
    spelled = [_spelled(ndim, letters) for ndim, letters in operands]
    batch = max((letters.count("*") for letters in spelled), default=0)
    kept = [x for x in result.replace("*", "*" * batch) if x in "*?" or x in "".join(spelled)]
    found = []
    for letters in spelled:
        labels: list[int | str] = []
        for axis, letter in enumerate(letters):
            at = len(kept) - kept.index(letter) if letter in kept else 0
            if letter == "*" and at:
                at -= batch - letters[axis:].count("*")  # those that are there are the last
            elif letters.count(letter) > 1:
                at = 0
            labels.append(-at if at else letter)
        found.append(tuple(labels))
    return tuple(found)


def _spelled(ndim: int, letters: str) -> str:
    """Return a letter for each of so many axes."""
    more = ndim - len(letters.replace("*", ""))
    return letters.replace("*", "*" * more) if more > 0 else letters.replace("*", "")[-more:]


@lru_cache(maxsize=4096)
def _read(equation: str) -> tuple[tuple[str, ...], str]:
    """Return the letters of einsum's operands and of its result."""
    inputs, arrow, result = equation.replace(" ", "").replace("...", "*").partition("->")
    if not arrow:
        result = "*" + "".join(sorted(x for x in set(inputs) - {"*", ","} if inputs.count(x) == 1))
    return tuple(inputs.split(",")), result


def _outer(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], operands: Sequence[Any]
) -> tuple[tuple[str, ...], str]:
    """Return the letters of a product of all axes with all, but those that are summed over."""
    a, b = operands[:2]
    along: Any = -1 if name == "inner" else (args[2] if len(args) > 2 else kwargs.get("dims", 2))
    if name == "inner":
        along = ([a.ndim - 1], [b.ndim - 1]) if a.ndim and b.ndim else ([], [])
    elif isinstance(along, int):
        along = (range(a.ndim - along, a.ndim), range(along))
    elif isinstance(along, torch.Tensor):
        along = along.tolist()
    letters = [[chr(0x100 + 0x40 * k + i) for i in range(x.ndim)] for k, x in enumerate((a, b))]
    pairs = [[one] if isinstance(one, int) else one for one in along]
    for k, (i, j) in enumerate(zip(*pairs, strict=False)):
        letters[0][i] = letters[1][j] = chr(ord("a") + k)
    result = "".join(x for one in letters for x in one if ord(x) >= 0x100)
    return tuple("".join(one) for one in letters), result


# --- views ----------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def single_axes(layout: Layout) -> frozenset[int]:
    """Return the cut axes of which some rank has one item, as of axes that squeeze drops."""
    ends = ((axis, layout.partition(axis).offsets) for axis in cut_axes(layout))
    return frozenset(axis for axis, at in ends if any(j - i == 1 for i, j in pairwise(at)))


def squeezed_axes(shape: Sequence[int], dropped: Iterable[int], layout: Layout) -> Axes | None:
    """Return where cut axes are without those to be ``dropped`` that are of length 1.

    None where a rank might drop a cut one. The shape is that of this rank's block.
    """
    cut, dropped = cut_axes(layout), frozenset(dropped)
    if dropped & single_axes(layout):
        return None
    gone = [axis for axis in dropped if shape[axis] == 1]
    return {axis: axis - sum(one < axis for one in gone) for axis in cut}


@lru_cache(maxsize=4096)
def reshaped_axes(
    before: tuple[int, ...],
    after: tuple[int, ...],
    cut: tuple[int, ...],
    single: Collection[int] = (),
) -> Axes | None:
    """Return where cut axes are after a reshape of a block; None where one does not stay an axis.

    An axis stays one where as many items lie before it, and after it, as did. Beside a new axis of
    length 1 it may not: one of the two is of that length on this rank alone, such as that of heads.
    Where there were axes of length 1 before, the one that is as far from the end, else from the
    start, is taken, as with longer axes on other ranks. Where a rank with one item could not tell
    which it is, no rank can: ``single`` are the cut axes that are of length 1 on some rank.
    """
    axes = {}
    for axis in cut:
        lead, trail = prod(before[:axis]), prod(before[axis + 1 :])
        fits = _fitting(after, before[axis], lead, trail)
        if not fits:
            return None
        from_end = axis - len(before) + len(after)
        found = axes[axis] = next((k for k in (from_end, axis) if k in fits), fits[0])
        if _ones(_with(after, found, 2), lead, trail) > _ones(_with(before, axis, 2), lead, trail):
            return None
        if axis in single:
            there = _with(before, axis, 1), _with(after, found, 1)
            if any(len(_fitting(shape, 1, lead, trail)) > 1 for shape in there):
                return None
    return axes if len(set(axes.values())) == len(axes) else None


@lru_cache(maxsize=4096)
def torn_axes(before: tuple[int, ...], after: tuple[int, ...], parts: int = 0) -> frozenset[int]:
    """Return the axes of which a reshape makes something else where a rank has a shard of them.

    One that is divided into a number of parts, whose length (-1) follows from the items that are
    there, unless it is that of the ``parts`` of a fused weight; one that is joined to what is left
    of the axis before it; and one that is joined to axes before it into the last, which are
    features: a rank has some of each of those.
    """
    shape, sizes = [length or 1 for length in before], [size or -1 for size in after]
    leads = [prod(shape[:axis]) for axis in range(len(shape) + 1)]
    found = set()
    if sizes.count(-1) == 1:
        at = sizes.index(-1)
        start, rests = prod(sizes[:at]), {prod(sizes[k:]) for k in range(at + 1, len(sizes) + 1)}
        for axis, length in enumerate(shape):
            told, more = divmod(start, leads[axis])
            is_divided = not more and 1 < told < length and prod(shape[axis + 1 :]) in rests
            if is_divided and told != parts:
                found.add(axis)
        sizes[at] = leads[-1] // -prod(sizes)
    if -1 not in sizes and prod(sizes) == leads[-1]:
        last = len(sizes) - 1
        for k, size in enumerate(sizes):
            start = prod(sizes[:k])
            end = start * size + (k == last)  # an axis of one item may be the end of the last
            if start not in leads or k == last > 0:
                found |= {i for i in range(len(shape)) if start < leads[i] < end}
    return frozenset(found)


def _with(shape: Sequence[int], axis: int, length: int) -> list[int]:
    """Return the shape of another rank's block."""
    return [*shape[:axis], length, *shape[axis + 1 :]]


def _fitting(shape: Sequence[int], own: int, lead: int, trail: int) -> list[int]:
    """Return the axes of a length with so many items before and after them."""
    return [
        k
        for k, length in enumerate(shape)
        if length == own and prod(shape[:k]) == lead and prod(shape[k + 1 :]) == trail
    ]


def _ones(shape: Sequence[int], lead: int, trail: int) -> int:
    """Count the axes of length 1 with at least so many items before and after them."""
    return sum(
        length == 1 and prod(shape[:k]) >= lead and prod(shape[k + 1 :]) >= trail
        for k, length in enumerate(shape)
    )


# --- indices --------------------------------------------------------------------------------------

_MASKS = (torch.bool, torch.uint8)


class Picked(NamedTuple):
    """Axes of what an index picks."""

    kept: Axes  # where the axes are that stay whole
    start: int  # the first of those that tensors and lists make
    depth: int  # how many these are
    ndim: int


def is_mask(index: Any) -> bool:
    """Tell whether an index is a tensor that tells of each item whether it is picked."""
    return isinstance(index, torch.Tensor) and index.dtype in _MASKS


def picked_axes(index: Any, ndim: int) -> frozenset[int] | None:
    """Return the axes from which an index picks; None for one that is not followed."""
    found = _picked(index, ndim)
    return None if found is None else frozenset(range(ndim)) - found.kept.keys()


def label_index(x: torch.Tensor, index: Any) -> list[tuple[torch.Tensor, Labels]]:
    """Return a tensor and those of its index with the labels of their axes in what is picked."""
    found = _picked(index, x.ndim)
    if found is None:
        return [(x, ("",) * x.ndim)]
    kept, start, depth, ndim = found
    labels: list[tuple[torch.Tensor, Labels]] = [
        (x, tuple(kept[axis] - ndim if axis in kept else "" for axis in range(x.ndim)))
    ]
    for item in index if isinstance(index, tuple) else (index,):
        if isinstance(item, torch.Tensor):
            end = start + depth - ndim
            own = ("",) * item.ndim if is_mask(item) else tuple(range(end - item.ndim, end))
            labels.append((item, own))
    return labels


def _picked(index: Any, ndim: int) -> Picked | None:
    """Return the axes of what an index picks; None if it is not followed.

    Numbers drop their axes first. Tensors and lists then make axes together, of the shape that they
    are broadcast to: in the place of theirs if these are side by side, else in front.
    """
    items = index if isinstance(index, tuple) else (index,)
    if any(_width(item) is None for item in items):
        return None
    if not any(item is Ellipsis for item in items):
        items = (*items, Ellipsis)
    missing = ndim - sum(_width(item) or 0 for item in items)
    if missing < 0:
        return None
    axes: list[int | None] = []  # of the result: those that are kept, and None for others
    picking: list[int] = []  # places among them of tensors, which all pick together
    depth = at = 0
    for item in items:
        if item is Ellipsis:
            axes += range(at, at + missing)
            at += missing
        elif item is None:
            axes.append(None)
        elif isinstance(item, slice):
            axes.append(at if item == slice(None) else None)
        elif _is_list(item) or (isinstance(item, torch.Tensor) and (item.ndim or is_mask(item))):
            width = max(_width(item) or 0, 1)
            picking += range(len(axes), len(axes) + width)
            axes += [None] * width
            depth = max(depth, 1 if _is_list(item) or is_mask(item) else item.ndim)
        at += 0 if item is Ellipsis else _width(item) or 0
    start = 0
    if picking:
        side_by_side = picking == list(range(picking[0], picking[-1] + 1))
        start = picking[0] if side_by_side else 0
        rest = [axis for place, axis in enumerate(axes) if place not in picking]
        axes = [*rest[:start], *[None] * depth, *rest[start:]]
    kept = {axis: place for place, axis in enumerate(axes) if axis is not None}
    return Picked(kept, start, depth, len(axes))


def _is_list(item: Any) -> bool:
    return isinstance(item, Sequence) and not isinstance(item, str)


def _width(item: Any) -> int | None:
    """Return how many axes an index takes up; None for one that is not followed."""
    if item is None or item is Ellipsis:
        return 0
    if isinstance(item, slice) or (isinstance(item, int) and not isinstance(item, bool)):
        return 1
    if isinstance(item, torch.Tensor):
        return item.ndim if is_mask(item) else 1
    if _is_list(item) and all(isinstance(one, int) for one in item):
        return 1  # of numbers, or of booleans for one axis
    return None
