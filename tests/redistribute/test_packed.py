"""Blocks of many tensors that travel together are those of NumPy."""

from __future__ import annotations

from itertools import permutations
from math import prod
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distarray.comm import BFLOAT16, CommLog, Purpose, init_device_mesh
from distarray.errors import MismatchError
from distarray.layout import Layout, Replicate, Shard
from distarray.redistribute import _packed
from distarray.redistribute._background import run_in_background, run_now
from distarray.redistribute._packed import Packed
from distarray.testing import simulate

TRAVELS = Purpose.of("a test")


class Tensors(NamedTuple):
    """Whole tensors, and how they are cut."""

    mesh: tuple[int, ...]
    shapes: list[tuple[int, ...]]
    axes: list[int | None]
    orders: list[tuple[int, ...]]
    dtype: Any


@st.composite
def tensors(draw) -> Tensors:
    mesh = draw(st.sampled_from([(1,), (2,), (3,), (4,), (2, 2), (1, 3), (2, 1), (1, 2, 2)]))
    sizes = st.sampled_from([0, 1, 2, 3, 5, 8])
    shapes = draw(st.lists(st.lists(sizes, max_size=3).map(tuple), min_size=1, max_size=4))
    axes = [draw(st.sampled_from([None, *range(len(shape))])) for shape in shapes]
    orders = [draw(st.sampled_from(list(permutations(range(len(s)))))) for s in shapes]
    dtype = draw(st.sampled_from(["<f8", "<f4", "<c16", "<i4", "bfloat16"]))
    return Tensors(mesh, shapes, axes, orders, BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype))


def strides(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Return strides, in elements, of a dense tensor whose axes are in some order in memory."""
    found = [0] * len(shape)
    step = 1
    for axis in reversed(order):
        found[axis] = step
        step *= max(shape[axis], 1)
    return tuple(found)


def numbers(shape: tuple[int, ...], dtype: Any, seed: int) -> np.ndarray:
    """Return small whole numbers, whose sums are exact in every dtype."""
    found = np.random.default_rng(seed).integers(-4, 5, shape)
    if dtype == BFLOAT16:
        bits = found.astype("<f4").view("<u4") >> 16
        return bits.astype("<u2").view(BFLOAT16)
    return found.astype(dtype)


def plain(values: np.ndarray) -> np.ndarray:
    """Return values in a dtype that NumPy computes with."""
    if values.dtype == BFLOAT16:
        return (np.ascontiguousarray(values).view("<u2").astype("<u4") << 16).view("<f4")
    return values


def packed(case: Tensors, mesh: Any) -> Packed:
    layouts = [
        Layout(mesh, [Replicate()] * (mesh.ndim - 1) + [Replicate() if a is None else Shard(a)], s)
        for s, a in zip(case.shapes, case.axes, strict=True)
    ]
    return Packed(
        mesh, layouts, [strides(*one) for one in zip(case.shapes, case.orders, strict=True)]
    )


def boxes(case: Tensors, mesh: Any) -> list[tuple[slice, ...]]:
    found = []
    for shape, axis in zip(case.shapes, case.axes, strict=True):
        box = [slice(None)] * len(shape)
        if axis is not None:
            block = -(-shape[axis] // mesh.shape[-1])
            start = mesh.coordinate[-1] * block
            box[axis] = slice(min(start, shape[axis]), min(start + block, shape[axis]))
        found.append(tuple(box))
    return found


def check(case: Tensors, mesh: Any, op: str, *, background: bool) -> None:
    """Gather and reduce; compare with NumPy, and bytes with theory."""
    both = packed(case, mesh)
    rank, count = mesh.coordinate[-1], mesh.shape[-1]
    outer = sum(mesh.coordinate[:-1])
    wholes = [numbers(s, case.dtype, outer * 31 + i) for i, s in enumerate(case.shapes)]
    own = np.empty(both.count, case.dtype)
    for block, whole, box in zip(both.blocks(own), wholes, boxes(case, mesh), strict=True):
        block[...] = whole[box]
    start = run_in_background if background else run_now
    with CommLog() as log:
        full = start(lambda behind: both.gather(own, TRAVELS, background=behind)).wait()
    assert both.total == sum(map(prod, case.shapes)) == full.size
    for found, whole in zip(both.wholes(full), wholes, strict=True):
        np.testing.assert_array_equal(plain(found), plain(whole))
    assert log.count("all_gather") == log.count() == (count > 1)
    replicated = sum(prod(s) for s, a in zip(case.shapes, case.axes, strict=True) if a is None)
    assert both.count >= replicated
    assert log.bytes() == (both.total - both.count) * case.dtype.itemsize * (count > 1)

    given_ = [
        [numbers(s, case.dtype, 1000 * r + outer * 31 + i) for i, s in enumerate(case.shapes)]
        for r in range(count)
    ]
    for target, values in zip(both.wholes(full), given_[rank], strict=True):
        target[...] = values
    before = full.copy()
    with CommLog() as log:
        reduced = start(lambda behind: both.reduce(full, op, TRAVELS, background=behind)).wait()
    np.testing.assert_array_equal(plain(full), plain(before))
    for i, (block, box) in enumerate(zip(both.blocks(reduced), boxes(case, mesh), strict=True)):
        wanted = sum(plain(one[i]) for one in given_)[box]
        if op == "avg":
            wanted = wanted / count
        rough = 1e-2 if case.dtype == BFLOAT16 else 1e-6
        np.testing.assert_allclose(plain(block), wanted, rtol=rough, atol=rough)
    assert log.count("reduce_scatter") == log.count() == (count > 1)
    assert log.bytes() == (count - 1) * both.count * case.dtype.itemsize


@settings(max_examples=60)
@given(case=tensors(), average=st.booleans(), background=st.booleans())
def test_against_numpy(case, average, background):
    op = "avg" if average and case.dtype != np.dtype("<i4") else "sum"

    def program():
        names = tuple("abc"[: len(case.mesh)])
        check(case, init_device_mesh(case.mesh, names), op, background=background)

    simulate(prod(case.mesh), program)


@settings(max_examples=40)
@given(case=tensors(), average=st.booleans())
def test_flat_buffers_that_travel(case, average):
    """What runs between nodes: values in line, by collectives of variable counts."""
    op = "avg" if average and case.dtype != np.dtype("<i4") else "sum"

    def program():
        mesh = init_device_mesh(case.mesh, tuple("abc"[: len(case.mesh)]))
        both = packed(case, mesh)
        whole = [numbers(s, case.dtype, i) for i, s in enumerate(case.shapes)]
        full = np.zeros(both.total, case.dtype)
        for target, values in zip(both.wholes(full), whole, strict=True):
            target[...] = values
        lined = both._in_line(full)
        assert lined.size == sum(both.counts)
        again = np.zeros_like(full)
        both._place(np.split(lined, np.cumsum(both.counts)[:-1]), again)
        np.testing.assert_array_equal(plain(again), plain(full))
        np.testing.assert_array_equal(
            plain(both._own_blocks([full], op)),
            plain(np.split(lined, np.cumsum(both.counts)[:-1])[both.rank]),
        )

    simulate(prod(case.mesh), program)


@pytest.mark.parametrize("which", ["gather", "reduce"])
@pytest.mark.parametrize("background", [True, False])
def test_ranks_that_mean_different_things(which, background):
    case = Tensors((2,), [(4, 3)], [0], [(0, 1)], np.dtype("<f8"))

    def program():
        mesh = init_device_mesh((2,))
        both = packed(case, mesh)
        purpose = Purpose.of(f"for {mesh.rank}")
        start = run_in_background if background else run_now
        buffer = np.zeros(both.count if which == "gather" else both.total)

        def work(behind):
            if which == "gather":
                return both.gather(buffer, purpose, background=behind)
            return both.reduce(buffer, "sum", purpose, background=behind)

        with pytest.raises(MismatchError):
            start(work).wait()

    simulate(2, program)


def test_pieces_know_their_places():
    case = Tensors((3,), [(5, 2), (), (2, 4)], [0, None, 1], [(1, 0), (), (0, 1)], np.dtype("<f8"))

    def program():
        both = packed(case, init_device_mesh((3,)))
        assert both.starts == (0, 10, 11)
        assert both.total == 19
        assert both.counts == (4 + 1 + 4, 4 + 1 + 4, 2 + 1 + 0)
        assert isinstance(both._pieces[0][0], _packed._Piece)

    simulate(3, program)
