"""Matrices in blocks on a grid of all processes, whose products come by panels of both (SUMMA)."""

from __future__ import annotations

from typing import Any

from distarray.layout import Shard
from distarray.linalg._tiles import grid_shape
from distarray.ops import asarray, conj, matmul, matrix_transpose


def on_grid(x: Any) -> Any:
    """Return a matrix cut along both axes, on a mesh of two axes of the same processes."""
    mesh = x.layout.mesh
    grid = mesh.regrid(grid_shape(mesh.size), ("rows", "columns"))
    return asarray(x, mesh=grid, placements=[Shard(0), Shard(1)])


def multiply(x: Any, y: Any) -> Any:
    """Return the product of two matrices, of which no process gets more than a block and panels."""
    return matmul(on_grid(x), on_grid(y))


def adjoint(x: Any) -> Any:
    """Return the conjugate transpose."""
    turned = matrix_transpose(x)
    return conj(turned) if x.dtype.kind == "c" else turned


def cut_as(x: Any, like: Any) -> Any:
    """Return a matrix on the mesh of another, cut as that is."""
    return asarray(x, mesh=like.mesh, placements=like.layout.without_partial().placements)
