"""Hypothesis strategies for redistributions: two layouts of one shape, and a dtype for both."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from distarray.layout import AbstractMesh, Layout, Partial, Replicate, Shard

FAMILIES = [
    (["sum", "avg"], ["<f8", "<i4", "<c16"]),
    (["sum"], ["<i8", "<f4", "?"]),
    (["avg"], ["?"]),
    (["prod"], ["<i8"]),
    (["min"], ["<i2", "<f8", "<u1"]),
    (["max"], ["<i2", "<f8"]),
    (["any"], ["?"]),
    (["all"], ["?"]),
    (["band", "bor", "bxor"], ["<i4", "<u2"]),
]

shapes = st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, 8, 11]), max_size=3).map(tuple)


class Move(NamedTuple):
    src: Layout
    dst: Layout
    dtype: np.dtype


@st.composite
def meshes(draw, largest: int = 12) -> AbstractMesh:
    sizes = draw(st.lists(st.sampled_from([1, 2, 2, 3, 4]), min_size=1, max_size=3))
    while prod(sizes) > largest:
        sizes = sizes[:-1]
    size = prod(sizes)
    kind = draw(st.sampled_from(["range", "range", "shifted", "scattered"]))
    ranks = {
        "range": list(range(size)),
        "shifted": list(range(5, 5 + size)),
        "scattered": draw(st.permutations(range(16)))[:size],
    }[kind]
    return AbstractMesh(sizes, ranks=ranks)


@st.composite
def layouts(draw, mesh: AbstractMesh, shape: tuple[int, ...], ops: list[str]) -> Layout:
    """Layouts with every placement, shard order and, now and then, boundaries."""
    if not {"sum", "avg"} >= set(ops):
        ops = [draw(st.sampled_from(ops))]
    placements = []
    for _ in mesh.shape:
        choices = ["R", "P", *(["S"] * 3 if shape else [])] if ops else ["R", *["S"] * len(shape)]
        match draw(st.sampled_from(choices)):
            case "R":
                placements.append(Replicate())
            case "P":
                placements.append(Partial(draw(st.sampled_from(ops))))
            case _:
                placements.append(Shard(draw(st.integers(0, len(shape) - 1))))
    order = draw(st.permutations(range(mesh.ndim)))
    layout = Layout(mesh, placements, shape, shard_order=order)
    boundaries = {}
    for axis, size in enumerate(shape):
        blocks = layout.partition(axis).count
        if blocks > 1 and draw(st.integers(0, 3)) == 0:
            inner = st.lists(st.integers(0, size), min_size=blocks - 1, max_size=blocks - 1)
            boundaries[axis] = (0, *sorted(draw(inner)), size)
    return layout.replace(boundaries=boundaries or None)


@st.composite
def moves(draw, partial: bool = True) -> Move:
    """Any layout to any layout: on one mesh, a renamed one, or another with any ranks."""
    ops, dtypes = draw(st.sampled_from(FAMILIES))
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    shape = draw(shapes)
    mesh = draw(meshes())
    match draw(st.sampled_from(["same", "same", "same", "renamed", "other", "other"])):
        case "same":
            other = mesh
        case "renamed":
            names = [f"n{i}" for i in range(mesh.ndim)]
            other = AbstractMesh(mesh.shape, names, ranks=mesh.flat_ranks)
        case _:
            other = draw(meshes())
    src = draw(layouts(mesh, shape, ops if partial else []))
    if draw(st.integers(0, 3)) == 0:  # reduce with one operation, create another's Partial
        averaged = any(p.is_partial("avg") for p in src.placements)
        others = {"?": ["any", "all"], "<i4": ["sum", "bor"]}
        ops = ["max", "sum"] if averaged else others.get(dtype.str, ["max", "sum"])
    dst = draw(layouts(other, shape, ops if partial else []))
    return Move(src, dst, dtype)
