"""Products by panels agree with NumPy, and no rank has more of an operand than its share of it."""

from __future__ import annotations

from collections.abc import Iterator
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
from distarray.layout import Shard
from distarray.ops.linear_algebra import _panels
from tests import peak_memory
from tests.array.strategies import agrees, on_ranks
from tests.ops.linear_algebra.test_contraction import exact, matrix_shapes, operands

S0, S1 = Shard(0), Shard(1)
SIZES = st.sampled_from((1, 3, 4, 7, 10))


@pytest.fixture(autouse=True, scope="module")
def panels_of_any_size() -> Iterator[None]:
    """Let small operands come by panels, too, of the size of a block."""
    with mock.patch.object(_panels, "PANEL_BYTES", 1):
        testing.reset()
        yield
    testing.reset()


@settings(max_examples=60)
@given(data=st.data())
def test_products_by_panels_agree_with_numpy(data: st.DataObject) -> None:
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


@settings(max_examples=25)
@given(shapes=matrix_shapes(), data=st.data())
def test_vectors_batches_and_nothing_agree_with_numpy(shapes: Any, data: st.DataObject) -> None:
    left, right = data.draw(operands(*shapes))

    def program() -> None:
        exact(left.build() @ right.build(), left.value @ right.value)

    on_ranks(program)


@settings(max_examples=25)
@given(data=st.data())
def test_einsum_of_many_large_operands_agrees_with_numpy(data: st.DataObject) -> None:
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
    mesh_shape: Any, left: Any, right: Any, placed: Any
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
    assert all(more > less for (_, more), (_, less) in zip(by_panels, at_once, strict=True))


@pytest.mark.host_only
@pytest.mark.parametrize(
    ("mesh_shape", "placements", "call", "blocks"),
    [
        ((4,), [S0], lambda x: x @ x, 1.3),
        ((4,), [S1], lambda x: x @ x, 1.3),
        ((4,), [S0], lambda x: da.inner(x, x), 2),
        ((2, 2), [S0, S1], lambda x: x @ x, 1.3),
        ((4, 1), [S0, S1], lambda x: x @ x, 1.3),
    ],
)
def test_scratch_memory_is_few_blocks(
    mesh_shape: Any, placements: Any, call: Any, blocks: float
) -> None:
    value = np.ones((128, 128))
    assert peak_memory.scratch(call, value, 4, mesh_shape, placements) <= blocks


def test_half_precision_is_rounded_once() -> None:
    whole = np.full((2, 4096), 1.0, np.float16)

    def program() -> None:
        mesh = init_device_mesh((2, 2))
        a = da.distribute_array(whole, mesh, [S0, S1], src=None)
        b = da.distribute_array(whole.T, mesh, [S0, S1], src=None)
        agrees(a @ b, np.full((2, 2), 4096, np.float16))

    on_ranks(program)


@pytest.mark.host_only
def test_an_error_of_one_rank_reaches_all() -> None:
    whole = np.ones((16, 16), np.float32)
    whole[0] = 3e38

    def program() -> None:
        x = da.distribute_array(whole, init_device_mesh((4,)), [S0], src=None)
        with np.errstate(all="raise"), pytest.raises(FloatingError):
            x @ x
        y = da.distribute_array(np.ones((16, 16)), init_device_mesh((4,)), [S0], src=None)
        agrees(y @ y, np.full((16, 16), 16.0))

    on_ranks(program)
