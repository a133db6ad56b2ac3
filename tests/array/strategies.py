"""Random distributed arrays with their global values, for tests on simulated ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np
from hypothesis import strategies as st

from distarray.array._array import DistArray
from distarray.comm import DeviceMesh, _backend, _memory, simulate
from distarray.core import new_array
from distarray.layout import Layout, Partial, Placement, Replicate, Shard
from tests.on_device import DEVICE, host

RANKS = 4
"""Simulated ranks of every test here; meshes may leave some out."""

KIND = _backend.kind_of(DEVICE)
"""Of the device that blocks are on: the run's."""

MESH_SHAPES = ((1,), (2,), (3,), (4,), (2, 2), (1, 3), (2, 1, 2))
SUMS = ("sum", "avg")
_REDUCE = {
    "sum": np.add,
    "avg": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "any": np.logical_or,
    "all": np.logical_and,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


sample = cache(st.sampled_from)
"""A choice from a tuple: Hypothesis looks longer through a new strategy than it draws from one."""


@dataclass(frozen=True)
class Case:
    """A distributed array that every rank can build alike."""

    mesh_shape: tuple[int, ...]
    placements: tuple[Placement, ...]
    values: np.ndarray
    """Operands of the Partial reduction along the first axis (one without Partial)."""
    order: tuple[int, ...] | None = None
    boundaries: tuple[tuple[int, tuple[int, ...]], ...] = ()
    ranks: tuple[int, ...] | None = None
    """Of the mesh, in its order; the first ones by default."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The global shape."""
        return self.values.shape[1:]

    @property
    def op(self) -> str | None:
        """The Partial op, if any."""
        return next((p.op for p in self.placements if type(p) is Partial), None)

    @property
    def value(self) -> np.ndarray:
        """The global array."""
        if self.op is None:
            return np.asarray(self.values[0], self.values.dtype)  # of one text, not its own length
        with np.errstate(all="ignore"):
            total = _REDUCE[self.op].reduce(self.values, axis=0, dtype=self.values.dtype.type)
        total = total / len(self.values) if self.op == "avg" else np.asarray(total)
        return np.asarray(total, self.values.dtype)

    def layout(self) -> Layout:
        """The layout on this rank's mesh."""
        ranks = range(math.prod(self.mesh_shape)) if self.ranks is None else self.ranks
        mesh = DeviceMesh(np.reshape(ranks, self.mesh_shape))
        return Layout(
            mesh,
            self.placements,
            self.shape,
            shard_order=self.order,
            boundaries=dict(self.boundaries) or None,
        )

    def build(self) -> DistArray:
        """Return the array on this rank."""
        layout = self.layout()
        coordinate = layout.mesh.coordinate
        if coordinate is None:
            empty = _memory.empty(layout.local_shape(), self.values.dtype, layout.mesh.device)
            return new_array(empty, layout)
        index = 0
        for axis in layout.partial_axes:
            index = index * layout.mesh.shape[axis] + coordinate[axis]
        box = layout.local_box()
        assert box is not None
        where = (index, *(slice(start, stop) for start, stop in box))
        block = np.array(self.values[where], self.values.dtype)
        return new_array(_backend.asarray(block, layout.mesh.device), layout)


def on_ranks(function: Any, *args: Any) -> list[Any]:
    """Run a function on the simulated ranks."""
    return simulate(RANKS, function, *args)


def agrees(result: DistArray, expected: Any, **tolerance: float) -> None:
    """Check shape, dtype, block and global value of a result on this rank against NumPy's."""
    expected = np.asarray(expected)
    assert result.shape == expected.shape
    assert result.dtype == expected.dtype
    assert _backend.kind_of(_backend.device_of(result.to_local())) == KIND
    assert _backend.is_buffer(result.to_local())
    assert result.to_local().shape == result.layout.local_shape()
    full = host(result.full_array())
    if result.mesh.coordinate is None:
        assert full.size == 0
        return
    if tolerance:
        np.testing.assert_allclose(full, expected, **tolerance)
    else:
        np.testing.assert_array_equal(full, expected)


def values_of(dtype: Any, shape: Sequence[int], seed: int) -> np.ndarray:
    """Return random values that NumPy computes with exactly: small integers, some repeated."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    low = 0 if dtype.kind == "u" else -4
    drawn = rng.integers(low, 6, size=shape)
    if dtype.kind == "c":
        return (drawn + 1j * rng.integers(-4, 6, size=shape)).astype(dtype)
    return np.asarray(drawn).astype(dtype)


def special_items(dtype: Any) -> np.ndarray:
    """Return the items of a dtype at which functions go wrong, and a few ordinary ones."""
    dtype = np.dtype(dtype)
    match dtype.kind:
        case "b":
            return np.array([False, True])
        case "i" | "u":
            info = np.iinfo(dtype)
            some = {info.min, info.min + 1, info.max - 1, info.max, info.max // 2 + 1, 0, 1, 2, 3}
            return np.array([*some, *({-1, -2} if dtype.kind == "i" else ())], dtype)
        case "f":
            info = np.finfo(dtype)
            # CuPy's kernels take subnormal numbers of float32 for zeros.
            least = info.smallest_subnormal if KIND == "cpu" or info.bits != 32 else info.tiny
            some = [info.max, info.tiny, least, np.inf, 0.0, 1, 0.1, 3, 2**11 + 1]
            return np.array([*some, *(-np.array(some)), np.nan, info.max / 2], dtype)
        case "c":
            parts = special_items(np.empty(0, dtype).real.dtype)
            items = np.empty((parts.size, parts.size), dtype)
            items.real, items.imag = parts[:, None], parts
            return items.reshape(-1)
        case "m" | "M":
            ends = np.iinfo(np.int64)
            return np.array([ends.min, ends.min + 1, ends.max, 0, 1, -1, 86400]).view(dtype)
        case "S":
            return np.array([b"", b"a", b"A", b"ab", b"b\0c", b"\xff", b"  "], dtype)
        case _:
            return np.array(["", "a", "A", "ab", "b\0c", "\u00e4\u20ac", "\U0010ffff", " "], dtype)


@st.composite
def special_cases(draw: Any, dtypes: Sequence[Any], ops: Sequence[str] = (), **kinds: Any) -> Case:
    """Draw a distributed array of NaN, infinities, extremes, and ordinary items among them."""
    case = draw(cases((np.uint8,), ops, **kinds))
    items = special_items(draw(sample(tuple(dtypes))))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    values = items[rng.integers(items.size, size=case.values.shape)]
    if draw(st.booleans()):  # few of them, so that not every sum is NaN
        values = np.where(rng.random(values.shape) < 0.9, items[rng.integers(items.size)], values)
    if case.op is not None:  # of 0.0 and -0.0 either may be the smaller
        values = np.where(values == 0, np.zeros((), values.dtype), values)
    return replace(case, values=values)


@st.composite
def special_pairs(draw: Any, dtypes: Sequence[Any], ops: Sequence[str] = ()) -> tuple[Case, Case]:
    """Draw two such arrays on one mesh whose shapes broadcast."""
    shaped = draw(pairs((np.uint8,)))
    return tuple(  # type: ignore[return-value]
        draw(special_cases(dtypes, ops, mesh_shape=case.mesh_shape, shape=case.shape))
        for case in shaped
    )


@st.composite
def shapes(draw: Any, max_dims: int = 3) -> tuple[int, ...]:
    """Draw a shape, also with axes of length 0 and 1, or none."""
    return tuple(draw(_lists_of_sizes(max_dims)))


@cache
def _lists_of_sizes(max_dims: int) -> st.SearchStrategy[list[int]]:
    return st.lists(sample((0, 1, 2, 3, 5, 8)), max_size=max_dims)


@cache
def _cuts(size: int, blocks: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, size), min_size=blocks - 1, max_size=blocks - 1)


@cache
def _orders(ndim: int) -> st.SearchStrategy[Any]:
    return sample((None, *permutations(range(ndim))))


@st.composite
def cases(
    draw: Any,
    dtypes: Sequence[Any] = (np.float64,),
    ops: Sequence[str] = (),
    mesh_shape: tuple[int, ...] | None = None,
    shape: tuple[int, ...] | None = None,
    max_dims: int = 3,
) -> Case:
    """Draw a distributed array; `ops` are the Partial ops that may occur."""
    mesh_shape = draw(sample(MESH_SHAPES)) if mesh_shape is None else mesh_shape
    shape = draw(shapes(max_dims)) if shape is None else shape
    op = draw(sample((None, *ops)))
    choices: tuple[Placement, ...] = (Replicate(), *map(Shard, range(len(shape))))
    choices += () if op is None else (Partial(op),)
    placements = tuple(draw(sample(choices)) for _ in mesh_shape)
    count = math.prod(
        size for size, p in zip(mesh_shape, placements, strict=True) if type(p) is Partial
    )
    dtype = draw(sample(tuple(dtypes)))
    values = values_of(dtype, (count, *shape), draw(st.integers(0, 2**16)))
    if op == "avg":  # of multiples of the count, so that it is exact
        values = values.astype(np.result_type(dtype, np.float64)) * count
    order = draw(_orders(len(mesh_shape)))
    boundaries = []
    for axis, size in enumerate(shape):
        blocks = math.prod(
            n for n, p in zip(mesh_shape, placements, strict=True) if p is Shard(axis)
        )
        if Shard(axis) in placements and draw(st.booleans()):
            cuts = sorted(draw(_cuts(size, blocks)))
            boundaries.append((axis, (0, *cuts, size)))
    return Case(mesh_shape, placements, values, order, tuple(boundaries))


@st.composite
def pairs(draw: Any, dtypes: Sequence[Any], ops: Sequence[str] = ()) -> tuple[Case, Case]:
    """Draw two arrays on one mesh whose shapes broadcast."""
    mesh_shape = draw(sample(MESH_SHAPES))
    shape = draw(shapes())
    found = []
    for _ in range(2):
        kept = draw(st.integers(0, len(shape)))
        own = tuple(
            1 if draw(st.integers(0, 3)) == 0 else size for size in shape[len(shape) - kept :]
        )
        found.append(draw(cases(dtypes, ops, mesh_shape, own)))
    return found[0], found[1]
