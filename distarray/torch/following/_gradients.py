"""Gradients of replicated tensors beside shards: every rank has a part, and the parts are added.

Where a tensor that all ranks have meets a shard, each rank computes something of its own with it,
and has that part of its gradient. So the tensor goes there through a move that sends nothing
forward and adds up the ranks' gradients backward. What is replicated and has a gradient in parts
already is remembered as such (`Placed.partial_grad`); the types of JAX that vary over mesh axes
tell the same.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from distarray.errors import LayoutError
from distarray.layout import Layout, Partial, Replicate
from distarray.torch._layouts import Placed, own_placed, place
from distarray.torch._moves import move
from distarray.torch._routes import routes_between
from distarray.torch.following._operands import Operand
from distarray.torch.following._rules import Call

_R, _P = Replicate(), Partial()
Line = tuple[int, ...]
"""The ranks along a mesh axis, among which is this one."""


def sum_gradients(call: Call) -> Call:
    """Return a call in which the gradients of what all ranks have are added up, beside shards."""
    call.varying = frozenset().union(*map(_varying, call.operands))
    if not call.varying or not torch.is_grad_enabled():
        return call
    moved, written = {}, call.written
    for x, placed, _ in call.operands:
        if placed is None or not (axes := _to_sum(x, placed, call.varying)):
            continue
        if x is not written:
            moved[id(x)] = _summed(x, placed, axes)
        elif not any(other.is_cut or other.lost for other in call.operands):
            raise LayoutError(
                f"{call.name} would write something of whose gradient each rank has a part into a "
                f"tensor placed as {placed.layout} whose gradient every rank has whole; write "
                "the sum, product or whatever it is into a tensor of its own, as in y = x + z"
            )
    if not moved:
        return call
    summing = call.with_tensors(moved)
    summing.varying = call.varying
    return summing


def place_beside(placed: Placed, varying: frozenset[Line]) -> Placed:
    """Return how a result is placed that was computed from what varies along lines of ranks."""
    if not varying:
        return placed
    lines, replicated = _lines(placed.layout)
    axes = frozenset(i for i in replicated if lines[i] in varying)
    return placed._replace(partial_grad=axes)


def _varying(one: Operand) -> frozenset[Line]:
    """Return along which lines the ranks have other items, or other parts of the gradient."""
    known = one.placed or one.lost
    if known is None:
        return frozenset()
    lines, replicated = _lines(known.layout)
    alike = replicated if one.placed is None else replicated - one.placed.partial_grad
    return frozenset(line for i, line in lines.items() if i not in alike)


def _to_sum(x: torch.Tensor, placed: Placed, varying: frozenset[Line]) -> list[int]:
    """Return along which mesh axes each rank will have a part of a gradient that was whole."""
    if not x.requires_grad:
        return []
    lines, replicated = _lines(placed.layout)
    return [i for i in replicated - placed.partial_grad if lines[i] in varying]


def _summed(x: torch.Tensor, placed: Placed, axes: list[int]) -> torch.Tensor:
    """Return a tensor whose ranks' gradients are added up along mesh axes.

    Views, such as what is expanded to a shard's length, may have another shape on each rank. Their
    gradients are added up where they come together, at the tensor that is viewed.
    """
    base = x._base
    viewed = None if base is None or base.dtype is not x.dtype else own_placed(base)
    if base is None or viewed is None or x.is_conj() or x.is_neg():
        moved = _moved(x, placed, axes)
    else:
        lines = _lines(placed.layout)[0]
        moved = _moved(base, viewed, _to_sum(base, viewed, frozenset(lines[i] for i in axes)))
        start = x.storage_offset() - base.storage_offset() + moved.storage_offset()
        moved = moved.as_strided(x.shape, x.stride(), start)
    place(moved, *placed._replace(partial_grad=placed.partial_grad.union(axes)))
    return moved


def _moved(x: torch.Tensor, placed: Placed, axes: list[int]) -> torch.Tensor:
    mesh: Any = placed.layout.mesh
    for axis in sorted(axes):
        along = Layout(mesh[mesh.axis_names[axis]], [_R], x.shape)
        x = move(x, *routes_between(along, along, [_P]))
    return x


@lru_cache(maxsize=4096)
def _lines(layout: Layout) -> tuple[dict[int, Line], frozenset[int]]:
    """Return the lines of a layout's mesh axes of several ranks, and which are replicated."""
    mesh: Any = layout.mesh
    axes = [i for i, size in enumerate(mesh.shape) if size > 1]
    lines = {i: mesh[mesh.axis_names[i]].flat_ranks for i in axes}
    return lines, frozenset(i for i in axes if type(layout.placements[i]) is Replicate)
