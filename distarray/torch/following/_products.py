"""Products of tensors by the letters of their axes, as einsum names them.

A letter that the result lacks is summed over; where axes of one letter meet, their items must be of
the same places. Operands that have fewer axes than letters have the last of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

Labels = tuple[int | str, ...]
"""Of each axis of an operand, where it is in the result, from its end; else its letter."""

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


def labelled(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[torch.Tensor, Labels]]:
    """Return the operands of a product with the labels of their axes; nothing if they are unknown.

    Parameters
    ----------
    name
        One of `PRODUCTS`.
    """
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
        if name == "scaled_dot_product_attention" and _is_causal(args, kwargs):
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


def _is_causal(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return bool(args[5] if len(args) > 5 else kwargs.get("is_causal", False))
