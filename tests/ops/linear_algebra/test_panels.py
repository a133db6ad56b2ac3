"""Products by panels agree with NumPy, and no rank has more of an operand than its share of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray import testing
from distarray.comm import CommLog, init_device_mesh
from distarray.errors import FloatingError, ImplicitCommunicationError
from distarray.layout import Replicate, Shard
from distarray.ops.linear_algebra import _panels
from tests import peak_memory
from tests.array.strategies import KIND, RANKS, agrees
from tests.ops.linear_algebra.test_contraction import exact, matrix_shapes, operands

S0, S1 = Shard(0), Shard(1)
SIZES = st.sampled_from((1, 3, 4, 7, 10))


WAYS = {"in place": (1, None), "copied": (1 << 62, None), "between nodes": (1, 1)}
"""How panels come: what `NARROW` is, and how many ranks a node has."""

OnRanks = Callable[[Callable[[], Any]], list[Any]]


@pytest.fixture(autouse=True, scope="module")
def panels_of_any_size() -> Iterator[None]:
    """Let small operands come by panels, too, of the size of a block."""
    with mock.patch.object(_panels, "PANEL_BYTES", 1):
        testing.reset()
        yield
    testing.reset()


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    with mock.patch.object(_panels, "NARROW", WAYS[request.param][0]):
        testing.reset()
        yield request.param


@pytest.fixture(scope="module")
def on_ranks(way: str) -> OnRanks:
    """Run a function on simulated ranks, between which panels come in one of all ways."""
    return lambda program: testing.simulate(RANKS, program, ranks_per_node=WAYS[way][1])


@settings(max_examples=24)
@given(data=st.data())
def test_products_by_panels_agree_with_numpy(on_ranks: OnRanks, data: st.DataObject) -> None:
    m, k, n, b = (data.draw(SIZES) for _ in range(4))
    left, right = data.draw(operands((b, m, k), data.draw(st.sampled_from(((b, k, n), (k, n))))))
    x, y = data.draw(operands((m, k), (k, n)))

    def program() -> None:
        exact(left.build() @ right.build(), left.value @ right.value)
        one, other = x.build(), y.build()
        exact(one @ other, x.value @ y.value)
        exact(da.inner(one, other.T), x.value @ y.value)
        exact(da.einsum("ij,jk->ki", one, other), (x.value @ y.value).T)
        exact(da.tensordot(one, other, axes=((1,), (0,))), x.value @ y.value)
        exact(da.vecdot(one[:, None], other.T), np.vecdot(x.value[:, None], y.value.T))

    on_ranks(program)


@settings(max_examples=10)
@given(shapes=matrix_shapes(), data=st.data())
def test_vectors_batches_and_nothing_agree_with_numpy(
    on_ranks: OnRanks, shapes: Any, data: st.DataObject
) -> None:
    left, right = data.draw(operands(*shapes))

    def program() -> None:
        exact(left.build() @ right.build(), left.value @ right.value)

    on_ranks(program)


@settings(max_examples=10)
@given(data=st.data())
def test_einsum_of_many_large_operands_agrees_with_numpy(
    on_ranks: OnRanks, data: st.DataObject
) -> None:
    i, j, k, m = (data.draw(SIZES) for _ in range(4))
    parts = data.draw(operands((i, j), (j, k), (k, m), (1, m)))
    text = "ij,jk,kl,al->" + data.draw(st.sampled_from(("il", "ail", "l", "")))

    def program() -> None:
        exact(
            da.einsum(text, *[x.build() for x in parts]), np.einsum(text, *[x.value for x in parts])
        )

    on_ranks(program)


@pytest.mark.parametrize(
    ("mesh_shape", "left", "right", "placed"),
    [
        ((4,), [S0], [S0], (S0,)),
        ((4,), [S1], [S1], (S1,)),
        ((4,), [S0], [S1], (S0,)),
        ((2, 2), [S0, S1], [S0, S1], (S0, S1)),
        ((2, 2), [S0, S0], [S0, S0], (S0, S0)),
    ],
)
def test_panels_send_as_much_as_the_whole_and_need_no_more_than_two(
    way: str, on_ranks: OnRanks, mesh_shape: Any, left: Any, right: Any, placed: Any
) -> None:
    whole = np.arange(64.0 * 64).reshape(64, 64) % 7

    def program() -> tuple[int, int]:
        mesh = init_device_mesh(mesh_shape)
        a, b = (da.distribute_array(whole, mesh, one, src=None) for one in (left, right))
        with CommLog() as log:
            y = a @ b
        assert y.placements == placed
        agrees(y, whole @ whole)
        with da.communication("raise"), pytest.raises(ImplicitCommunicationError):
            a @ b
        with da.communication("raise", min_bytes=log.bytes() + 1):
            a @ b
        return log.bytes(), len(log.records)

    by_panels = on_ranks(program)
    with mock.patch.object(_panels, "PANEL_BYTES", 1 << 24):
        testing.reset()
        at_once = on_ranks(program)
    testing.reset()
    assert [nbytes for nbytes, _ in by_panels] == [nbytes for nbytes, _ in at_once]
    in_place = way == "in place" and KIND == "cpu"
    for (_, panels), (_, moves) in zip(by_panels, at_once, strict=True):
        assert panels == moves if in_place else panels > moves


@pytest.mark.host_only
@pytest.mark.parametrize(("narrow", "most"), [(1, 0.1), (1 << 62, 1.3)])
@pytest.mark.parametrize(
    ("mesh_shape", "placements", "call", "copied"),
    [
        ((4,), [S0], lambda x: x @ x, 0),
        ((4,), [S1], lambda x: x @ x, 0),
        ((4,), [S0], lambda x: x @ x.T, 0),
        ((4,), [S0], lambda x: da.inner(x, x), 0.25),  # NumPy's tensordot copies what it turns
        ((2, 2), [S0, S1], lambda x: x @ x, 0),
        ((4, 1), [S0, S1], lambda x: x @ x, 0),
    ],
)
def test_scratch_memory_is_few_blocks_or_none(
    mesh_shape: Any, placements: Any, call: Any, copied: float, narrow: int, most: float
) -> None:
    value = np.ones((256, 256))
    with mock.patch.object(_panels, "NARROW", narrow):
        testing.reset()
        assert peak_memory.scratch(call, value, 4, mesh_shape, placements) <= most + copied
    testing.reset()


def test_replicas_of_a_product_have_the_same_bits(on_ranks: OnRanks) -> None:
    left, right = np.random.default_rng(1).normal(size=(2, 64, 64))

    def program() -> bytes:
        mesh = init_device_mesh((2, 2))
        a = da.distribute_array(left, mesh, [S0, Replicate()], src=None)
        b = da.distribute_array(right, mesh, [S0, S0], src=None)
        y = a @ b
        assert y.placements == (S0, Replicate())
        agrees(y, left @ right, rtol=1e-12, atol=1e-12)
        return y.to_local().tobytes()

    blocks = on_ranks(program)
    assert blocks[0] == blocks[1] != blocks[2] == blocks[3]


def test_half_precision_is_rounded_once(on_ranks: OnRanks) -> None:
    whole = np.full((2, 4096), 1.0, np.float16)

    def program() -> None:
        mesh = init_device_mesh((2, 2))
        a = da.distribute_array(whole, mesh, [S0, S1], src=None)
        b = da.distribute_array(whole.T, mesh, [S0, S1], src=None)
        agrees(a @ b, np.full((2, 2), 4096, np.float16))

    on_ranks(program)


@pytest.mark.host_only
def test_an_error_of_one_rank_reaches_all(on_ranks: OnRanks) -> None:
    whole = np.ones((16, 16), np.float32)
    whole[0] = 3e38

    def program() -> None:
        x = da.distribute_array(whole, init_device_mesh((4,)), [S0], src=None)
        with np.errstate(all="raise"), pytest.raises(FloatingError):
            x @ x
        y = da.distribute_array(np.ones((16, 16)), init_device_mesh((4,)), [S0], src=None)
        agrees(y @ y, np.full((16, 16), 16.0))

    on_ranks(program)
