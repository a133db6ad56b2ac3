"""State dicts with the names, shapes and order of one process, however the module is placed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from distarray.comm import DeviceMesh
from distarray.errors import ArgumentError, ArgumentTypeError
from distarray.torch import _modules, _wholes
from distarray.torch._layouts import Placed, place, placed_of
from distarray.torch.state._share_records import without_records


def state_dict(
    module: nn.Module,
    *,
    full: bool = True,
    ranks: str | int = "all",
    mesh: DeviceMesh | None = None,
    cpu: bool = False,
) -> OrderedDict[str, Any]:
    """Return a module's parameters and buffers under their names in one process (collective).

    Parameters
    ----------
    module
        Distributed or not. Parameters are gathered one after another.
    full
        False gives this rank's blocks, and nothing is sent; `layout_of` knows how they are placed.
    ranks
        Who gets the whole tensors: ``"all"``, or the position in ``mesh`` of the only rank that
        does; on the others the result is empty, and they hold no whole tensor at any time.
    mesh
        For ``ranks``: default is the mesh that all distributed parameters are placed on. Each
        sub-mesh of a larger mesh has a rank 0 of its own; pass the larger one to mean its rank 0.
    cpu
        Whether tensors of other devices come to the CPU, each as soon as it is whole.

    Returns
    -------
    OrderedDict
        As ``module.state_dict()`` of one process: parts of fused weights in their order, tied
        parameters under every name, one tensor for all of them. What is not distributed shares its
        memory with the module.
    """
    found = kept(module)
    result: OrderedDict[str, Any] = OrderedDict()
    if hasattr(found, "_metadata"):
        known = found._metadata if not full else without_records(found._metadata)
        result._metadata = known  # type: ignore[attr-defined]
    if not full:
        for name, value in found.items():
            result[name] = _block(value, cpu)
        return result
    if ranks != "all" and not isinstance(ranks, int):
        raise ArgumentTypeError(f"ranks={ranks!r}: 'all', or the position of one rank in the mesh")
    rank, here = None, True
    if isinstance(ranks, int):
        mesh = only_mesh(found, mesh, f"ranks={ranks}")
        rank = _wholes.number_of(mesh, ranks)
        here = mesh.rank == rank
    seen: dict[int, Any] = {}
    for name, value in found.items():
        if id(value) not in seen:
            seen[id(value)] = _whole(value, rank, cpu)
        if here:
            result[name] = seen[id(value)]
        else:
            seen[id(value)] = None
    return result


def kept(module: nn.Module) -> OrderedDict[str, Any]:
    """Return the state dict of parameters themselves, whose layouts are known."""
    if not isinstance(module, nn.Module):
        raise ArgumentTypeError(f"expected a torch.nn.Module, not {type(module).__name__}")
    for child in module.modules():
        _modules.place_parameters(child)
    found: Any = module.state_dict(keep_vars=True)
    return found  # type: ignore[no-any-return]


def placements(found: Mapping[str, Any]) -> Iterator[tuple[str, Placed]]:
    """Yield the names of a state dict that are distributed, and how."""
    for name, value in found.items():
        placed = placed_of(value) if isinstance(value, torch.Tensor) else None
        if placed is not None:
            yield name, placed


def meshes(found: Mapping[str, Any]) -> list[Any]:
    """Return the meshes that the parameters of a state dict are on, in its order."""
    return list(dict.fromkeys(placed.layout.mesh for _, placed in placements(found)))


def only_mesh(found: Mapping[str, Any], mesh: DeviceMesh | None, asked: str) -> Any:
    """Return the mesh in which positions are meant, or raise."""
    if mesh is not None:
        return mesh
    candidates = meshes(found)
    if len(candidates) == 1:
        return candidates[0]
    on = ", ".join(map(str, candidates)) or "no mesh"
    raise ArgumentError(
        f"{asked} is a position in a mesh, but the module's parameters are on {on}; pass mesh="
    )


def _block(value: Any, cpu: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    placed = placed_of(value)
    block = value.detach().cpu() if cpu else value.detach()
    if placed is not None:
        place(block, *placed)
    return block


def _whole(value: Any, rank: int | None, cpu: bool) -> Any:
    """Return a value as one process has it; anything on ranks that do not get it."""
    if not isinstance(value, torch.Tensor):
        return value
    placed = placed_of(value)
    whole: torch.Tensor | None = value.detach()
    if placed is not None:
        block = value.detach()
        if rank is None:
            whole = _wholes.gathered_on_all(block, placed)
        else:
            whole = _wholes.gathered_on_one(block, placed, rank)
    return whole.cpu() if cpu and whole is not None else whole
