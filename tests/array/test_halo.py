"""Halos against `numpy.pad` of the whole array, over layouts, widths and boundaries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray import Partial, Replicate, Shard
from distarray.comm import CommLog, _backend, init_device_mesh, simulate
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    MismatchError,
    ShapeError,
)
from tests.array.strategies import RANKS, agrees, cases, on_ranks, sample
from tests.on_device import host

MODES = (None, "periodic", "reflect", "symmetric", "edge", 7)
R = Replicate()


def padded(value: np.ndarray, widths: Any, modes: Any) -> np.ndarray:
    """Return the whole array with what lies past its ends, one axis after another."""
    for axis, (pair, mode) in enumerate(zip(widths, modes, strict=True)):
        if mode is None or not any(pair):
            continue
        around = [(0, 0)] * value.ndim
        around[axis] = pair
        if isinstance(mode, str):
            value = np.pad(value, around, {"periodic": "wrap"}.get(mode, mode))  # type: ignore[call-overload]
        else:
            value = np.pad(value, around, constant_values=mode)
    return value


def expected(value: np.ndarray, layout: Any, widths: Any, modes: Any) -> tuple[Any, Any]:
    """Return the block with edges that this process is to have, and where its own items lie."""
    keys, interior = [], []
    for (start, stop), size, (before, after), mode in zip(
        layout.local_box(), layout.shape, widths, modes, strict=True
    ):
        low, high = start - before, stop + after
        if mode is None:
            low, high = max(low, 0), min(high, size)
        shift = before if mode is not None else 0
        keys.append(slice(low + shift, high + shift))
        interior.append(slice(start - low, stop - low))
    return padded(value, widths, modes)[tuple(keys)], tuple(interior)


def others(layout: Any, widths: Any, modes: Any) -> int:
    """Return how many items of the block with edges are of other blocks."""
    index = np.arange(layout.size).reshape(layout.shape)
    own = index[tuple(slice(*one) for one in layout.local_box())]
    block, _ = expected(index, layout, widths, [-1 if mode == 7 else mode for mode in modes])
    return int(np.sum((block >= 0) & ~np.isin(block, own)))


@settings(max_examples=150)
@given(data=st.data())
def test_halo_is_the_block_of_the_padded_array(data: st.DataObject) -> None:
    case = data.draw(cases((np.float64, np.int32, np.complex64), ("sum", "max")))
    ndim = len(case.shape)
    widths = [(data.draw(sample(range(5))), data.draw(sample(range(5)))) for _ in range(ndim)]
    modes = [data.draw(sample(MODES if n else (None, 7))) for n in case.shape]
    other = np.flip(case.value) * 2 + 1

    def program() -> None:
        x = case.build()
        with CommLog() as log:
            found = da.halo(x, widths if ndim else 0, dict(enumerate(modes)))
        assert found.array.layout is x.layout.without_partial()
        if x.mesh.coordinate is None:
            assert found.block.size == 0
            found.update()
            return
        block, interior = expected(case.value, x.layout, widths, modes)
        np.testing.assert_array_equal(host(found.block), block)
        assert found.interior == interior
        if not x.layout.has_partial and "edge" not in modes and 1 not in case.shape:
            assert log.bytes() == others(x.layout, widths, modes) * case.value.itemsize
        found.block[...] = 99
        found.update(da.distribute_array(other, x.mesh, x.layout.without_partial().placements))
        block, _ = expected(other, x.layout, widths, modes)
        np.testing.assert_array_equal(host(found.block), block)
        agrees(found.array, other)

    simulate(RANKS, program, ranks_per_node=data.draw(sample((None, 1, 2))))


def test_corners_come_from_diagonal_neighbours_in_one_exchange_of_faces() -> None:
    value = np.arange(64.0).reshape(8, 8)

    def program() -> None:
        mesh = init_device_mesh((2, 2))
        x = da.distribute_array(value, mesh, [Shard(0), Shard(1)])
        with CommLog() as log:
            found = da.halo(x, 1, "periodic")
        block, _ = expected(value, x.layout, [(1, 1)] * 2, ["periodic"] * 2)
        np.testing.assert_array_equal(host(found.block), block)
        # Faces of 4 items on four sides, and four corners.
        assert log.count() == log.count("exchange") == 1
        assert log.bytes() == (4 * 4 + 4) * 8
        with CommLog() as log:
            found.update()
        assert log.count() == log.count("exchange") == 1
        assert log.bytes() == (4 * 4 + 4) * 8
        with CommLog() as log:
            da.halo(x, {0: (1, 2)})  # what is in the array: one face above, or two rows below
        assert log.bytes() == (2 if mesh.coordinate[0] == 0 else 1) * 4 * 8
        with CommLog() as log:
            da.halo(x, 0)
            da.halo(x.redistribute([R, Shard(1)]), {0: 3}, "reflect")
        assert log.bytes() == 8 * 2 * 8  # of the redistribution: the other half of the rows

    on_ranks(program)


def test_halo_reaches_over_several_blocks_some_of_them_empty() -> None:
    value = np.arange(7.0)

    def program() -> None:
        mesh = init_device_mesh((4,))
        x = da.distribute_array(value, mesh, [Shard(0)])
        x = x.redistribute(boundaries={0: (0, 1, 1, 3, 7)})
        for mode in MODES:
            found = da.halo(x, (4, 9), mode)
            block, interior = expected(value, x.layout, [(4, 9)], [mode])
            np.testing.assert_array_equal(host(found.block), block)
            assert found.interior == interior

    on_ranks(program)


@pytest.mark.parametrize("ranks_per_node", [None, 2])
def test_halo_in_the_background_leaves_the_interior_to_the_program(
    ranks_per_node: int | None,
) -> None:
    value = np.arange(24.0).reshape(6, 4)

    def program() -> None:
        mesh = init_device_mesh((4,))
        x = da.distribute_array(value, mesh, [Shard(0)])
        found = da.halo(x, 1, "edge", async_op=True).wait()
        for factor in (2, 4, 8):
            found.block[found.interior] *= 2
            handle = found.update(async_op=True)
            assert handle.wait() is found
            block, _ = expected(value * factor, x.layout, [(1, 1)] * 2, ["edge"] * 2)
            np.testing.assert_array_equal(host(found.block), block)

    simulate(4, program, ranks_per_node=ranks_per_node)


def test_halo_refuses_what_it_cannot_have_on_every_rank() -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        x = da.distribute_array(np.arange(8), mesh, [Shard(0)])
        with CommLog() as log:
            for error, arguments in (
                (ArgumentError, (x, -1)),
                (ArgumentTypeError, (x, 1.0)),
                (ArgumentTypeError, (x, None)),
                (ArgumentTypeError, (np.arange(8), 1)),
                (ArgumentError, (x, ((1, 1), (1, 1), (1, 1)))),
                (ArgumentError, (x, 1, "nearest")),
                (ArgumentError, (x, 1, ["edge", "edge"])),
                (ArgumentError, (x, 1, 0.5)),
                (ArgumentError, (x, 1, 1j)),
                (ArgumentError, (x[:0], 1, "edge")),
                (IndexError, (x, {1: 1})),
                (IndexError, (x, 1, {1: "edge"})),
            ):
                with pytest.raises(error):
                    da.halo(*arguments)
        assert not log.bytes()
        found = da.halo(x, 1, 7.0)
        with pytest.raises(ShapeError, match="interior"):
            found.update(found.block)
        with pytest.raises(ShapeError, match="equal"):
            found.update(x[1:])
        with pytest.raises(DTypeError, match="astype"):
            found.update(x * 0.5)
        with pytest.raises(MismatchError, match="halo"):
            da.halo(x, 1 + mesh.rank % 2, "edge")
        with pytest.raises(MismatchError, match="halo"):
            da.halo(x if mesh.rank else x.astype(float), 1, "edge")

    on_ranks(program)


@pytest.mark.parametrize("ranks_per_node", [None, 1])
@pytest.mark.parametrize("async_op", [False, True])
def test_a_block_that_is_wrong_on_one_rank_makes_no_other_wait(
    ranks_per_node: int | None, async_op: bool
) -> None:
    value = np.arange(16.0).reshape(8, 2)

    def program() -> None:
        mesh = init_device_mesh((4,))
        u = da.halo(da.distribute_array(value, mesh, [Shard(0)]), 1, "periodic")
        own = slice(2 * mesh.rank, 2 * mesh.rank + 2)

        def renew(block: np.ndarray) -> Any:
            found = u.update(_backend.asarray(block.copy(), mesh.device), async_op=async_op)
            return found.wait() if async_op else found

        with pytest.raises(ShapeError if mesh.rank == 2 else MismatchError, match="interior"):
            renew(value[own][: 1 if mesh.rank == 2 else 2])
        wanted, _ = expected(-value, u.array.layout, [(1, 1)] * 2, ["periodic"] * 2)
        np.testing.assert_array_equal(host(renew(-value[own]).block), wanted)

    simulate(4, program, ranks_per_node=ranks_per_node)


def test_a_stencil_in_a_loop_agrees_with_numpy() -> None:
    value = np.random.default_rng(0).random((9, 7))

    def program() -> None:
        mesh = init_device_mesh((2, 2))
        x = da.distribute_array(value, mesh, [Shard(0), Shard(1)])
        u = da.halo(x, 1, {0: "periodic", 1: "edge"})
        wanted = value
        for _ in range(5):
            b = u.block
            b[1:-1, 1:-1] += 0.1 * (b[:-2, 1:-1] + b[2:, 1:-1] - b[1:-1, :-2] * b[1:-1, 2:])
            u.update()
            p = padded(wanted, [(1, 1)] * 2, ["periodic", "edge"])
            wanted = wanted + 0.1 * (p[:-2, 1:-1] + p[2:, 1:-1] - p[1:-1, :-2] * p[1:-1, 2:])
        agrees(u.array, wanted, rtol=1e-12)

    on_ranks(program)


def test_replicas_and_partial_arrays_have_halos() -> None:
    parts = np.arange(12.0).reshape(2, 6)

    def program() -> None:
        mesh = init_device_mesh((2, 2))
        block = parts[mesh.coordinate[0]][3 * mesh.coordinate[1] : 3 * mesh.coordinate[1] + 3]
        block = _backend.asarray(block.copy(), mesh.device)
        x = da.DistArray.from_local(block, mesh, [Partial(), Shard(0)])
        found = da.halo(x, 2, "symmetric")
        wanted, _ = expected(parts.sum(0), x.layout, [(2, 2)], ["symmetric"])
        np.testing.assert_array_equal(host(found.block), wanted)
        agrees(found.array, parts.sum(0))

    on_ranks(program)
