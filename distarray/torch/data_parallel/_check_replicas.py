"""Comparison of what several ranks hold in common: for debugging."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from distarray.comm import DeviceMesh, all_gather_checked, list_first
from distarray.core import group_by_answer
from distarray.errors import ArgumentError, ArgumentTypeError, MismatchError
from distarray.layout import Layout, Shard
from distarray.torch import _modules
from distarray.torch._buffers import digest_of
from distarray.torch._layouts import placed_of
from distarray.torch._moves import check_mesh
from distarray.torch._shards import shards


class _Digest(NamedTuple):
    """What a rank holds of a tensor: which block, and what it looks like."""

    block: tuple[tuple[str, int], ...]
    text: str


def check_replicas(module: nn.Module, mesh: DeviceMesh, *, buffers: bool = True) -> None:
    """Raise where ranks have parameters that should be alike and are not (collective).

    To find out, after some steps, whether a plan or a training loop lets weights drift apart: a
    norm that sees a shard of the sequence and has no `SequenceParallel`, random numbers that differ
    where they should not, gradients that were clipped by the norm of one rank's block. The bits of
    all values are compared, by digests, so that little is sent; every rank reads all its values.
    Call it between two steps.

    Parameters
    ----------
    module
        The same on every rank.
    mesh
        Of the ranks that are compared: usually the whole mesh. A parameter that is cut along some
        of its axes is compared between the ranks that hold the same block.
    buffers
        Whether buffers are compared, too. Those of batch normalization under `replicate` are
        different, between two calls, by what each rank has seen, and those under `fully_shard`
        always.

    Raises
    ------
    MismatchError
        Some differ, on every rank: by name, with the ranks that have the one and the other.
    ArgumentError
        A parameter is cut over another mesh, some ranks of which are in this one: it is not known
        which of these should have the same block.

    Examples
    --------
    >>> def differ():
    ...     mesh, model = da.default_mesh(), nn.Linear(4, 6)
    ...     nn.init.constant_(model.weight, mesh.rank)
    ...     try:
    ...         dt.check_replicas(model, mesh)
    ...     except da.errors.MismatchError as error:
    ...         return "'weight'" in str(error)
    >>> da.testing.simulate(2, differ)
    [True, True]
    """
    check_mesh(mesh)

    def say() -> dict[str, _Digest]:
        if not isinstance(module, nn.Module):
            raise ArgumentTypeError(f"expected a torch.nn.Module, not {type(module).__name__}")
        for child in module.modules():
            _modules.place_parameters(child)
        named = [*module.named_parameters(), *(module.named_buffers() if buffers else ())]
        return {name: _describe(name, tensor, mesh) for name, tensor in named}

    ranks = mesh.communicator().world_ranks
    told = dict(zip(ranks, all_gather_checked(mesh, "check_replicas", say), strict=True))
    wrong = []
    for name in dict.fromkeys(name for one in told.values() for name in one):
        wrong += _list_differences(name, told)
    if wrong:
        raise MismatchError(
            f"on the ranks of {mesh} these are not alike, as digests tell: "
            f"{list_first(wrong, '; ')}. {_advice(module)}"
        )


def _advice(module: nn.Module) -> str:
    """Return what mostly lets values drift apart in such a module, and what to do about it."""
    rest = "clip by dt.clip_grad_norm_, and draw alike what is to be alike (dt.manual_seed)"
    if any(parameter in shards for parameter in module.parameters()):
        return (
            "fully_shard sends no buffers, and leaves ignored_params alone: average running "
            "statistics by dt.redistribute from Partial('avg') before they are compared or saved, "
            "or pass buffers=False; dt.replicate the modules of ignored parameters. Give modules "
            f"that see a shard of the sequence SequenceParallel before fully_shard, {rest}"
        )
    return (
        "Give modules that see a shard of the sequence SequenceParallel, dt.replicate a model that "
        f"sees other data on other ranks, {rest}"
    )


def _describe(name: str, tensor: torch.Tensor, mesh: DeviceMesh) -> _Digest:
    placed = placed_of(tensor)
    block = () if placed is None else _block(name, placed.layout, mesh)
    if is_lazy(tensor):
        return _Digest(block, "no shape yet")
    shape = f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
    return _Digest(block, f"{shape} {'on meta' if tensor.is_meta else digest_of(tensor)[:8]}")


def _block(name: str, layout: Layout, mesh: DeviceMesh) -> tuple[tuple[str, int], ...]:
    """Return where this rank is on the axes of a mesh that cut a tensor."""
    over: Any = layout.mesh
    here: Any = mesh.coordinate
    found = []
    for axis, placement in zip(over.axis_names, layout.placements, strict=True):
        if type(placement) is not Shard:
            continue
        line = over[axis]
        if axis in mesh.axis_names and mesh[axis] is line:
            found.append((axis, here[mesh.axis_names.index(axis)]))
        elif len(set(line.flat_ranks) & set(mesh.flat_ranks)) > 1:
            raise ArgumentError(
                f"check_replicas over {mesh}: {name!r} is {layout}, cut along {axis!r} of another "
                f"mesh, {over}, which has some of the same ranks; pass the mesh that the axes were "
                "taken from"
            )
    return tuple(found)


def _list_differences(name: str, told: dict[int, dict[str, _Digest]]) -> list[str]:
    """Return what is wrong with a tensor, for each of its blocks."""
    missing = _Digest((), "nothing of that name")
    everywhere = all(name in one for one in told.values())
    held = {rank: one.get(name, missing) for rank, one in told.items()}
    wrong = group_by_answer(
        {rank: (one.block if everywhere else (), one.text) for rank, one in held.items()}
    )
    found = []
    for block, said in wrong.items():
        where = f" (block {', '.join(f'{axis} {i}' for axis, i in block)})" if block else ""
        found.append(f"{name!r}{where}: {said.replace('; ', ' and ')}")
    return found
