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
from distarray.torch._compat import is_in_function_forward, is_of_function
from distarray.torch._layouts import Derived, Placed, is_known, note, place
from distarray.torch._moves import move
from distarray.torch._routes import moving_for, routes_between
from distarray.torch.following._operands import Operand
from distarray.torch.following._rules import Call

_R, _P = Replicate(), Partial()
Line = tuple[int, ...]
"""The ranks along a mesh axis, among which is this one."""


RESIZING = ("expand", "expand_as", "broadcast_to", "repeat", "tile")
"""Functions whose result may have the length of a shard, and then another one on each rank."""


def sum_gradients(call: Call) -> Call:
    """Return a call in which the gradients of what all ranks have are added up, beside shards."""
    call.varying = {line: op for one in call.operands for line, op in _varying(one).items()}
    if not call.varying or not torch.is_grad_enabled():
        return call
    moved, written = {}, call.written
    for x, placed, _, derived in call.operands:
        source = placed if derived is None else derived.source
        if source is None or not (axes := _to_sum(x, source, call.varying)):
            continue
        if derived is not None:
            moved[id(x)] = _repeat(call, derived, axes)
        elif x is not written:
            moved[id(x)] = _summed(x, source, axes, call.name)
            parts = source.partial_grad.union((axis, "sum") for axis in axes)
            place(moved[id(x)], *source._replace(partial_grad=parts))
        elif not any(other.is_cut or other.lost for other in call.operands):
            raise LayoutError(
                f"{call.name} would write something of whose gradient each rank has a part into a "
                f"tensor placed as {source.layout} whose gradient every rank has whole; write "
                "the sum, product or whatever it is into a tensor of its own, as in y = x + z"
            )
    if not moved:
        return call
    summing = call.with_tensors(moved)
    summing.varying = call.varying
    return summing


def derive(call: Call, result: Any) -> None:
    """Remember what results come of that all ranks have, where more is not known of them."""
    grad = torch.is_grad_enabled()
    if not grad and not is_in_function_forward():  # as in a checkpoint, which goes backward itself
        return
    if any(one.is_cut or one.lost for one in call.operands):
        return
    sources = [_source(one, call) for one in call.operands if one.x.requires_grad or not grad]
    found = [one for one in sources if one is not None]
    if not found:
        return
    derived = next((one for one in found if not one.source.partial_grad), found[0])
    if not grad:
        derived = Derived(derived.source)
    for x in result if isinstance(result, tuple | list) else (result,):
        floats = isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())
        if floats and (x.requires_grad or not grad) and not is_known(x):
            note(x, derived)


def place_beside(placed: Placed, varying: dict[Line, str]) -> Placed:
    """Return how a result is placed that was computed from what varies along lines of ranks."""
    lines, replicated = _lines(placed.layout)
    parts = ((i, varying[lines[i]]) for i in replicated if lines[i] in varying)
    return placed._replace(partial_grad=frozenset(parts))


def _source(one: Operand, call: Call) -> Derived | None:
    """Return what an operand with a gradient is, or comes of, that all ranks have."""
    if one.derived is None:
        if one.placed is None or not one.placed.layout.is_replicated:
            return None
        source, before = one.placed, None
        if is_of_function(one.x):
            parts = frozenset((i, "") for i in _lines(source.layout)[1])
            source = source._replace(partial_grad=parts)
    else:
        source, before = one.derived.source, one.derived.repeat
        if before is None:
            return one.derived
    if call.name not in RESIZING or one.x is not call.first:
        return Derived(source)
    start = one.x if one.derived is None else one.derived.x

    def repeat(moved: torch.Tensor) -> torch.Tensor:
        again = call.with_tensors({id(one.x): moved if before is None else before(moved)})
        made: torch.Tensor = again.function(*again.args, **again.kwargs)
        return made

    return Derived(source, repeat, start)


def _varying(one: Operand) -> dict[Line, str]:
    """Return along which lines the ranks have other items, or other parts of the gradient."""
    x, placed, lost, derived = one
    found: dict[Line, str] = {}
    known = placed or lost
    if known is not None:
        lines, replicated = _lines(known.layout)
        found = {line: "sum" for i, line in lines.items() if i not in replicated}
    source = placed if derived is None else derived.source
    if source is not None and x.requires_grad:
        lines, replicated = _lines(source.layout)
        if placed is not None and is_of_function(x):
            found |= {lines[i]: "" for i in replicated}
        else:
            found |= {lines[i]: op for i, op in source.partial_grad if i in lines}
    return found


def _to_sum(x: torch.Tensor, placed: Placed, varying: dict[Line, str]) -> list[int]:
    """Return along which mesh axes each rank will have a part of a gradient that was whole."""
    if not x.requires_grad or is_of_function(x):
        return []
    lines, replicated = _lines(placed.layout)
    return [i for i in replicated.difference(dict(placed.partial_grad)) if lines[i] in varying]


def _summed(x: torch.Tensor, placed: Placed, axes: list[int], name: str) -> torch.Tensor:
    """Return a tensor whose ranks' gradients are added up along mesh axes."""
    mesh: Any = placed.layout.mesh
    with moving_for(f"the gradient of what all ranks have, in {name}"):
        for axis in sorted(axes):
            along = Layout(mesh[mesh.axis_names[axis]], [_R], x.shape)
            x = move(x, *routes_between(along, along, [_P]))
    return x


def _repeat(call: Call, derived: Derived, axes: list[int]) -> torch.Tensor:
    """Compute anew, from a tensor whose gradients are added up, what has a size of its own."""
    if derived.repeat is None or derived.x is None:
        raise LayoutError(
            f"{call.name} beside a shard would leave a part of a gradient on each rank: that of "
            f"what was computed from a tensor that all ranks have, {derived.source.layout}, and "
            "from tensors of which nothing is known, or by lengths of a rank's own. Say that all "
            "ranks have it, dt.redistribute(x, mesh, [da.Replicate()], [da.Replicate()]), and the "
            "parts are added up; or take x.detach()"
        )
    return derived.repeat(_summed(derived.x, derived.source, axes, call.name))


@lru_cache(maxsize=4096)
def _lines(layout: Layout) -> tuple[dict[int, Line], frozenset[int]]:
    """Return the lines of a layout's mesh axes of several ranks, and which are replicated."""
    mesh: Any = layout.mesh
    axes = [i for i, size in enumerate(mesh.shape) if size > 1]
    lines = {i: mesh[mesh.axis_names[i]].flat_ranks for i in axes}
    return lines, frozenset(i for i in axes if type(layout.placements[i]) is Replicate)
