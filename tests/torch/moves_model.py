"""Moves between layouts on simulated ranks, and the model of what they compute.

The model is the global tensor. Where a layout is ``Partial``, the global value is the sum (or the
mean) of what the ranks hold; so by the chain rule the gradient of a contribution is the gradient of
the global value (divided by the number of contributions to a mean), the same on every rank.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

import distarray as da
from distarray.layout import AbstractMesh, Layout
from distarray.testing import simulate
from tests.redistribute.strategies import layouts, shapes

R, P, S = da.Replicate(), da.Partial(), da.Shard
AVG = da.Partial("avg")
EXACT = {"rtol": 0, "atol": 1e-12}
MOVES = [([P], [R]), ([S(0)], [R]), ([R], [S(0)]), ([S(0)], [S(1)]), ([P], [S(1)]), ([R], [P])]


def each(program: Callable[[da.DeviceMesh], Any], ranks: int = 2) -> list[Any]:
    """Run a program of a mesh on simulated ranks."""
    return simulate(ranks, lambda: program(da.init_device_mesh((ranks,))))


def on(layout: Layout, mesh: da.DeviceMesh) -> Layout:
    """Return an abstract layout over a mesh of processes."""
    return layout.replace(mesh=mesh)


def contributions(layout: Layout, seed: int, dtype: Any = np.float64) -> np.ndarray:
    """Return a global value for every coordinate of the Partial mesh axes."""
    count = prod(layout.mesh.shape[i] for i in layout.partial_axes)
    values = np.random.default_rng(seed).integers(-4, 5, (count, *layout.shape))
    return values.astype(dtype)


def value(layout: Layout, values: np.ndarray) -> np.ndarray:
    """Return the global value of contributions: summed, or averaged, axis by axis."""
    axes = [(layout.mesh.shape[i], layout.placements[i].op) for i in layout.partial_axes]
    whole = values.reshape((*(size for size, _ in axes), *layout.shape))
    for _, op in axes:
        whole = whole.sum(0) if op == "sum" else whole.mean(0)
    return whole


def averaged(layout: Layout) -> int:
    """Return the number of contributions to a mean."""
    return prod(
        layout.mesh.shape[i] for i in layout.partial_axes if layout.placements[i].op == "avg"
    )


def block(layout: Layout, values: np.ndarray) -> np.ndarray:
    """Return this rank's block of the contribution that is its own."""
    coordinate = layout.mesh.coordinate
    index = 0
    for i in layout.partial_axes:
        index = index * layout.mesh.shape[i] + coordinate[i]
    return values[(index, *(slice(a, b) for a, b in layout.local_box()))]


def part(layout: Layout, whole: Any) -> torch.Tensor:
    """Return this rank's block of a global value, whether the layout is Partial or not."""
    return torch.as_tensor(whole)[tuple(slice(a, b) for a, b in layout.local_box())].clone()


def summed(mesh: da.DeviceMesh, layout: Layout, tensor: torch.Tensor) -> np.ndarray:
    """Return the global value of a block, put together by plain means."""
    pieces = mesh.communicator().all_gather_object((mesh.coordinate, tensor.detach().numpy()))
    count = prod(mesh.shape[i] for i in layout.partial_axes)
    values = np.zeros((count, *layout.shape), tensor.detach().numpy().dtype)
    for coordinate, piece in pieces:
        index = 0
        for i in layout.partial_axes:
            index = index * mesh.shape[i] + coordinate[i]
        box = layout.local_box(coordinate)
        values[(index, *(slice(a, b) for a, b in box))] = piece
    return value(layout, values)


@st.composite
def two_layouts(draw: st.DrawFn) -> list[Layout]:
    """Two layouts of one shape on a mesh of at most four ranks, with sums and averages."""
    sizes = draw(st.sampled_from([(1,), (2,), (3,), (4,), (2, 2), (1, 3), (2, 1, 2)]))
    mesh = AbstractMesh(sizes)
    shape = draw(shapes)
    return [draw(layouts(mesh, shape, ["sum", "avg"])) for _ in range(2)]
