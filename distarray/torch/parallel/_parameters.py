"""Parameters that become this rank's block of themselves, in place: whoever holds one, sees it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

import torch
from torch import nn

from distarray.comm import DeviceMesh, token
from distarray.errors import ArgumentError, LayoutError
from distarray.layout import Layout, Placement
from distarray.torch._buffers import digest_of
from distarray.torch._compat import buffers_of, parameters_of
from distarray.torch._full import scatter_from
from distarray.torch._layouts import Placed, check_mesh, place, placed_of
from distarray.torch._modules import check_alike, check_ungraded, check_usable, state_of
from distarray.torch._shard_records import note_placed
from distarray.torch._shards import block_of, placed_as

_source: ContextVar[int | None] = ContextVar("source of parameters", default=0)


@contextlib.contextmanager
def values_from(rank: int | None) -> Iterator[None]:
    """Set which rank's values parameters take: a position in their mesh, or each its own (None)."""
    token = _source.set(rank)
    try:
        yield
    finally:
        _source.reset(token)


def distribute_parameter(
    module: nn.Module,
    name: str,
    mesh: DeviceMesh,
    placements: Sequence[Placement],
    *,
    parts: Sequence[int] = (),
    unit: int | Sequence[int] = 1,
    axis: int = 0,
) -> Layout:
    """Turn a module's parameter into this rank's block of it (collective over the mesh).

    The parameter stays the same object, so that modules which share it and optimizers which hold
    it see the block. A parameter on the meta device becomes a block there, and nothing is sent.

    Parameters
    ----------
    module, name
        The module that holds it, and under which name.
    mesh, placements
        How it is placed: ``Shard`` and ``Replicate``.
    parts
        Sizes of the parts that the full parameter consists of along ``axis``, each of which is
        cut by itself: every rank holds its shard of each, one after another. For fused query,
        key and value weights, for instance.
    unit
        How many items along ``axis`` must stay together, such as the features of a head; one
        number, or one for each part.
    axis
        See ``parts`` and ``unit``; one mesh axis at most may shard it.

    Returns
    -------
    Layout
        Of the full parameter. With ``parts`` its items along ``axis`` are in the order of the
        ranks.

    Raises
    ------
    LayoutError
        The parameter is placed otherwise already, by another module that shares it.
    MismatchError
        Each rank shall keep its own values (``src_data_rank=None``), and these differ.

    Examples
    --------
    >>> def shapes():
    ...     fused = nn.Linear(4, 12, bias=False)  # query, key and value
    ...     layout = dt.distribute_parameter(
    ...         fused, "weight", da.default_mesh(), [da.Shard(0)], parts=(4, 4, 4), unit=2)
    ...     return layout.shape, [*fused.weight.shape]
    >>> da.testing.simulate(2, shapes)
    [((12, 4), [6, 4]), ((12, 4), [6, 4])]
    """
    check_mesh(mesh)
    parameter = _parameter(module, name)
    if name in state_of(module).placed:
        raise LayoutError(
            f"parameter {name!r} is distributed already, as {state_of(module).placed[name].layout}"
            ": apply one style that distributes it, once"
        )
    known = placed_of(parameter)
    shape = tuple(parameter.shape) if known is None else known.layout.shape
    placed = placed_as(mesh, placements, shape, parts, axis, unit)
    if known is not None and known != placed:
        raise LayoutError(
            f"parameter {name!r} is placed as {known.layout} already, by a module that shares it, "
            f"and cannot be {placed.layout} as well; give both modules styles that place it alike"
        )
    if known is None:
        check_ungraded(name, parameter)
        block = _agreed_block(parameter, name, mesh, placed)
        forget_graphs(parameter)
        parameter.data = block
        place(parameter, *placed)
    note_placed(module, name, placed)
    return placed.layout


def distribute_buffer(
    module: nn.Module,
    name: str,
    mesh: DeviceMesh,
    placements: Sequence[Placement],
    *,
    parts: Sequence[int] = (),
    unit: int | Sequence[int] = 1,
) -> Layout:
    """Turn a module's buffer into this rank's block of it; see `distribute_parameter`.

    The module gets another tensor.
    """
    check_mesh(mesh)
    buffer = buffers_of(module).get(name)
    if buffer is None or name in state_of(module).placed:
        raise LayoutError(
            f"{type(module).__name__} has no buffer {name!r} that is not distributed yet"
        )
    placed = placed_as(mesh, placements, buffer.shape, parts, 0, unit)
    block = _agreed_block(buffer, name, mesh, placed)
    buffers_of(module)[name] = block
    place(block, *placed)
    note_placed(module, name, placed)
    return placed.layout


def forget_graphs(parameter: nn.Parameter) -> None:
    """Let new graphs take gradients of a shape that those which are still alive did not know.

    While the result of an earlier call lives, torch goes on using that graph's entry for the
    parameter, shape and all. A change of dtype makes it begin a new one.
    """
    other = torch.float16 if parameter.dtype is not torch.float16 else torch.float32
    parameter.data = torch.empty(0, dtype=other, device=parameter.device)


def _parameter(module: nn.Module, name: str) -> nn.Parameter:
    """Return a parameter that can be cut, or raise and say why there is none."""
    parameter = getattr(module, name, None)
    kind = type(module).__name__
    if isinstance(parameter, nn.Parameter) and name in parameters_of(module):
        check_usable(name, parameter)
        return parameter
    if isinstance(parameter, torch.Tensor):
        raise ArgumentError(
            f"{name!r} of {kind} is no parameter but computed from others (a parametrization, "
            "weight_norm, spectral_norm): its parts cannot be cut. Remove that beforehand, by "
            "torch.nn.utils.parametrize.remove_parametrizations or remove_weight_norm"
        )
    raise ArgumentError(f"{kind} has no parameter {name!r} to distribute")


def _agreed_block(
    parameter: torch.Tensor, name: str, mesh: DeviceMesh, placed: Placed
) -> torch.Tensor:
    """Return this rank's block of what one rank has, or of what all have, which is checked."""
    source = _source.get()
    comm = mesh.communicator()
    whole = parameter.detach()
    if whole.is_meta:
        return torch.empty_like(block_of(whole, placed).contiguous())
    parts = f" in parts {placed.parts}" if placed.parts else ""
    taken = "its own values" if source is None else f"those of position {source}"
    doing = f"parameter {name!r} of {whole.dtype} becomes {placed.layout}{parts} of {taken}"
    comm.agree(token(doing), doing)
    if source is None:
        told = comm.all_gather_object(digest_of(whole))
        what = f"parameter {name!r} differs between the ranks of {mesh}: digests of it are"
        check_alike(what, told, mesh, "start from the same values, or pass src_data_rank=0")
        return block_of(whole, placed).clone(memory_format=torch.contiguous_format)
    rank = mesh.flat_ranks[source]
    return scatter_from(whole if mesh.rank == rank else None, placed, rank, whole)
