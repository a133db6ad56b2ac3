"""Gradients of replicated tensors beside shards: every rank has a part, and the parts are added.

Where a tensor that all ranks have meets a shard, each rank computes something of its own with it,
and has that part of its gradient. So the tensor goes there through a move that sends nothing
forward and adds up the ranks' gradients backward. What is replicated and has a gradient in parts
already is remembered as such (`Placed.partial_grad`); the types of JAX that vary over mesh axes
tell the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch

from distarray.errors import LayoutError
from distarray.layout import Layout, Partial, Replicate, Shard
from distarray.torch._backward import awaited
from distarray.torch._compat import graph_leaves, is_in_function_forward, is_of_function
from distarray.torch._layouts import (
    Derived,
    Line,
    Placed,
    is_known,
    keep_over_others,
    lines_known,
    lines_of,
    note,
    place,
    whole_over,
)
from distarray.torch._moves import move
from distarray.torch._routes import moving_for, routes_between
from distarray.torch.following._operands import Operand, tensors_in
from distarray.torch.following._rules import Call

_R, _P = Replicate(), Partial()

RESIZING = ("expand", "expand_as", "broadcast_to", "repeat", "tile")
"""Functions whose result may have the length of a shard, and then another one on each rank."""


def sum_gradients(call: Call) -> Call:
    """Return a call in which the gradients of what all ranks have are added up, beside shards."""
    call.varying = {line: op for one in call.operands for line, op in _varying(one).items()}
    if not call.varying or not torch.is_grad_enabled():
        return call
    _check_unknown(call)
    moved, written = {}, call.written
    for one in call.operands:
        x, source = one.x, _source(one)
        for derived in one.over_others:
            if _has_gradient(x) and (axes := _to_sum(derived.source, call.varying)):
                _repeat(call, derived, axes)
        if source is None or not (axes := _to_sum(source, call.varying)):
            continue
        if one.derived is not None:
            moved[id(x)] = _repeat(call, one.derived, axes)
        elif x is not written:
            moved[id(x)] = _summed(x, source, axes, call.name)
            parts = source.partial_grad.union((axis, "sum") for axis in axes)
            place(moved[id(x)], *source._replace(partial_grad=parts))
            keep_over_others(moved[id(x)], one.over_others)
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


def _check_unknown(call: Call) -> None:
    """Raise where a shard meets all of something that has a gradient, of which nothing is known.

    What has as many items as the shard along its cut axis counts as a shard itself. Parameters that
    are not those of a module under way are left to who calls torch's functions by hand.
    """
    cuts = [one for one in call.operands if one.placed is not None and one.is_cut]
    asking = (one for one in call.operands if one.x.requires_grad)
    rest = [one for one in asking if not isinstance(one.x, torch.nn.Parameter)]
    if not cuts or len(call.operands) < 2 or call.is_of_weights:
        return
    told = {id(one.x): labels for one, labels in call.labels()} if rest else {}
    for one, other in product(cuts, rest):
        layout, known = _layout(one), _lines_told(other)
        for i, line in lines_of(layout)[0].items():
            p, own, labels = layout.placements[i], told.get(id(one.x)), told.get(id(other.x))
            if type(p) is not Shard or line in known or own is None or labels is None:
                continue
            there = labels.index(own[p.axis]) if own[p.axis] in labels else None
            is_shard = there is not None and other.x.shape[there] == one.x.shape[p.axis]
            if is_shard or (other.lost is not None and line not in _replicated(other.lost.layout)):
                continue
            if other.lost or any(_is_unknown(leaf, line) for leaf in graph_leaves(other.x)):
                raise LayoutError(
                    f"{call.name} beside a tensor placed as {layout} would leave a part of its "
                    f"gradient on each rank, of a tensor of shape {tuple(other.x.shape)} of which "
                    f"nothing is known among ranks {[*line]}. Say that all of them have it, and "
                    "the parts are added up: x = dt.redistribute(x, mesh, [da.Replicate()], "
                    "[da.Replicate()]) before, over a mesh that has these; of a shard say so, by "
                    "da.Shard(axis) in both; or take x.detach()"
                )


def _is_unknown(leaf: torch.Tensor, line: Line) -> bool:
    """Tell whether nothing is known of a leaf along a line, and nobody adds up its gradient."""
    one = Operand.of(leaf)
    is_own = isinstance(leaf, torch.nn.Parameter) and is_known(leaf)
    known = is_own or one.lost is not None or line in _lines_told(one)
    return not (known or leaf in whole_over or leaf in awaited)


def _replicated(layout: Layout) -> set[Line]:
    """Return the lines of ranks along which a layout replicates."""
    lines, replicated = lines_of(layout)
    return {lines[i] for i in replicated}


def _lines_told(one: Operand) -> frozenset[Line]:
    """Return the lines of ranks along which it is known how a tensor is placed, or of what."""
    source = one.placed if one.derived is None else one.derived.source
    every = ((source,) if source is not None else ()) + tuple(x.source for x in one.over_others)
    return frozenset().union(*(lines_known(placed.layout) for placed in every))


def _layout(one: Operand) -> Layout:
    assert one.placed is not None  # it is cut
    return one.placed.layout


def derive(call: Call, result: Any) -> None:
    """Remember what results come of that all ranks have, where more is not known of them.

    Where more is known over one mesh, what ranks of others have is remembered beside it.
    """
    found: dict[frozenset[Line], Derived] = {}
    for one in call.operands:
        if one.is_cut and not one.over_others:
            continue
        for derived in _derived(one, call):
            ranks = lines_known(derived.source.layout)
            if ranks not in found or found[ranks].source.partial_grad:
                found[ranks] = derived
    if not found:
        return
    is_cut = any(one.is_cut or one.lost for one in call.operands)
    whole = sorted(found.values(), key=lambda one: bool(one.source.partial_grad))
    if not torch.is_grad_enabled():
        whole = [Derived(one.source) for one in whole]  # what is computed anew has no gradient
    for x in tensors_in((result,), {}):
        if not _has_gradient(x) or (is_cut and not is_known(x)):
            continue
        is_new = not is_known(x)
        if is_new:
            note(x, whole[0])
        keep_over_others(x, whole[is_new:])


def place_beside(placed: Placed, varying: dict[Line, str]) -> Placed:
    """Return how a result is placed that was computed from what varies along lines of ranks."""
    lines, replicated = lines_of(placed.layout)
    parts = ((i, varying[lines[i]]) for i in replicated if lines[i] in varying)
    return placed._replace(partial_grad=frozenset(parts))


def _derived(one: Operand, call: Call) -> Iterator[Derived]:
    """Return what a result comes of, because of one operand."""
    if one.over_others and _has_gradient(one.x):
        yield from one.over_others
    if one.is_cut or (source := _source(one)) is None or not source.layout.is_replicated:
        return
    before = one.derived
    if before is not None and before.repeat is None:
        yield before
    elif call.name not in RESIZING or one.x is not call.first:
        yield Derived(source)
    else:

        def compute(moved: torch.Tensor) -> torch.Tensor:
            given = moved if before is None or before.repeat is None else before.repeat(moved)
            again = call.with_tensors({id(one.x): given})
            made: torch.Tensor = again.function(*again.args, **again.kwargs)
            return made

        yield Derived(source, compute, one.x if before is None else before.x)


def _source(one: Operand) -> Placed | None:
    """Return how a tensor with a gradient is placed, or what it comes of that all ranks have.

    Of what a function of the user's own returns it is not known what becomes of the gradient.
    """
    source = one.placed if one.derived is None else one.derived.source
    if source is None or not _has_gradient(one.x):
        return None
    if one.placed is not None and is_of_function(one.x):
        parts = frozenset((i, "") for i in lines_of(source.layout)[1])
        return source._replace(partial_grad=parts)
    return source


def _has_gradient(x: torch.Tensor) -> bool:
    """Tell whether a tensor has a gradient, or its copy will have one.

    A checkpoint that goes backward itself computes in the forward of a function of autograd's.
    """
    if torch.is_grad_enabled() or not is_in_function_forward():
        return x.requires_grad
    return x.is_floating_point() or x.is_complex()


def _varying(one: Operand) -> dict[Line, str]:
    """Return along which lines the ranks have other items, or other parts of the gradient."""
    found: dict[Line, str] = {}
    known = one.placed or one.lost
    if known is not None:
        lines, replicated = lines_of(known.layout)
        found = {line: "sum" for i, line in lines.items() if i not in replicated}
    for source in (_source(one), *[derived.source for derived in one.over_others]):
        if source is not None and source.partial_grad:
            lines, _ = lines_of(source.layout)
            found |= {lines[i]: op for i, op in source.partial_grad if i in lines}
    return found


def _to_sum(source: Placed, varying: dict[Line, str]) -> list[int]:
    """Return along which mesh axes each rank will have a part of a gradient that was whole."""
    lines, replicated = lines_of(source.layout)
    return [i for i in replicated.difference(dict(source.partial_grad)) if lines[i] in varying]


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
            f"{call.name} beside a shard would leave a part of a gradient on each rank: that of a "
            f"parameter without a style, or another tensor that all ranks have, "
            f"{derived.source.layout}, or of what was computed from one and from tensors of which "
            "nothing is known, or by lengths of a rank's own. Say that all ranks have it, and the "
            "parts are added up: dt.distribute_parameter(module, name, mesh, [da.Replicate()]) "
            "once, of x dt.redistribute(x, mesh, [da.Replicate()], [da.Replicate()]); or give the "
            "module a style, such as SequenceParallel; or take x.detach()"
        )
    return derived.repeat(_summed(derived.x, derived.source, axes, call.name))
