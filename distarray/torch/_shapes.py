"""The layout of a tensor of which every rank knows its own block alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from distarray.array._convert import tiled_layout
from distarray.comm import DeviceMesh, token, unrecorded
from distarray.errors import ArgumentTypeError, LayoutError, MeshError
from distarray.layout import Layout, Placement, suggest_for_torch
from distarray.typing import Shape


def check_mesh(mesh: Any) -> None:
    """Raise if this is no mesh of processes, or holds not this one."""
    if not isinstance(mesh, DeviceMesh):
        raise ArgumentTypeError(
            f"expected a DeviceMesh, not {type(mesh).__name__}; make one by da.init_device_mesh"
            f"{suggest_for_torch(mesh)}"
        )
    if mesh.coordinate is None:
        whole = mesh
        while whole.parent is not None:
            whole = whole.parent
        raise MeshError(
            f"this process (rank {mesh.rank}) is not in {mesh}; call this on the ranks of the mesh "
            f"alone, or start with mpiexec -n {whole.size}"
        )


def layout_from(
    tensor: torch.Tensor,
    mesh: DeviceMesh,
    placements: Sequence[Placement],
    shape: Sequence[int] | None = None,
) -> Layout:
    """Return the layout of a block; collective where an axis is sharded and no shape is given.

    Raises
    ------
    LayoutError
        The block does not fit the shape that is given, or the blocks of the ranks do not fit
        each other.
    MismatchError
        The ranks have blocks of other dtypes or numbers of axes, or place them otherwise.
    """
    local = tuple(tensor.shape)
    if shape is not None:
        layout = Layout(mesh, placements, shape)
        check_block(local, layout)
        return layout
    draft = Layout(mesh, placements, local)
    if not _is_cut(draft):
        return draft
    return _tiled(mesh, draft.placements, _told_shapes(draft, tensor.dtype))


def check_block(local: Shape, layout: Layout) -> None:
    """Raise if a block of this shape is not this rank's one of a layout."""
    if layout.local_shape() != local:
        raise LayoutError(
            f"a block of shape {local} was passed where {layout} gives this rank "
            f"{layout.local_shape()}; leave shape= out for blocks of other sizes"
        )


def _is_cut(layout: Layout) -> bool:
    """Tell whether a block's shape says less than the global one."""
    return any(layout.partition(axis).count > 1 for axis in range(layout.ndim))


def _told_shapes(draft: Layout, dtype: torch.dtype) -> tuple[Shape, ...]:
    """Return the shape of every rank's block, in the order of the mesh."""
    number, what = _question(draft.mesh, draft.placements, draft.ndim, dtype)
    mesh: Any = draft.mesh
    comm = mesh.communicator()
    told = np.array(draft.shape, np.int64)
    with unrecorded():
        if comm.reaches_all():
            with comm.views(told, number, what) as views:
                return tuple([tuple(view.tolist()) for view in views])
        comm.agree(number, what)
        everyone = np.empty(comm.size * told.size, np.int64)
        comm.all_gather(told, everyone)
    return tuple(tuple(row) for row in everyone.reshape(comm.size, -1).tolist())


@lru_cache(maxsize=1024)
def _question(
    mesh: Any, placements: tuple[Placement, ...], ndim: int, dtype: torch.dtype
) -> tuple[int, str]:
    """Return the token of an exchange of shapes, and what it says."""
    what = f"a {dtype} block with {ndim} axes, placed as {placements} on {mesh}"
    return token("shapes", what, mesh.flat_ranks), what


@lru_cache(maxsize=4096)
def _tiled(mesh: Any, placements: tuple[Placement, ...], shapes: tuple[Shape, ...]) -> Layout:
    return tiled_layout(mesh, placements, list(shapes), None)
