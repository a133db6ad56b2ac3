"""What CuPy lacks or does otherwise is not felt, and values do not visit the host on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray.errors import ArgumentError, DeviceError
from tests.array.strategies import agrees, on_ranks
from tests.on_device import has_gpu, host, stand_in

R, S0, S1 = da.Replicate(), da.Shard(0), da.Shard(1)


@pytest.mark.skipif(has_gpu(), reason="the stand-in counts copies")
def test_values_stay_on_the_gpu() -> None:
    cupy = stand_in()
    value = np.arange(60.0).reshape(12, 5)
    counts: list[tuple[int, int]] = []

    def program() -> None:
        mesh = da.init_device_mesh((4,), device="cuda")
        x = da.distribute_array(value, mesh, [S0])
        y = da.distribute_array(value, mesh, [S1])
        comm = mesh.communicator()
        comm.barrier()
        before = cupy.operations["get"], cupy.operations["set"]
        z = da.sqrt(x) * 2 + x
        z += y
        results = [
            z.redistribute([S1]),
            da.sum(z, axis=0).redistribute([R]),
            z.T @ z,
            da.where(z > 3, z, 0),
            z[2:7],
            z.reshape(60),
            da.flip(z, axis=0),
            da.concat([z, z]),
        ]
        comm.barrier()
        counts.append((cupy.operations["get"] - before[0], cupy.operations["set"] - before[1]))
        comm.barrier()
        whole = np.sqrt(value) * 2 + 2 * value
        agrees(results[0], whole, rtol=1e-12)
        agrees(results[1], whole.sum(0), rtol=1e-12)
        agrees(results[2], whole.T @ whole, rtol=1e-12)

    on_ranks(program)
    assert counts == [(0, 0)] * 4


def test_negative_zero_and_nan_keep_their_bits() -> None:
    value = np.array([-0.0, 0.0, np.nan, -np.inf])

    def program() -> None:
        mesh = da.init_device_mesh((4,), device="cuda")
        x = da.distribute_array(value, mesh, [S0])
        for placements in ([R], [da.Partial("sum")], [S0]):
            back = host(x.redistribute(placements).redistribute([R]).full_array())
            assert np.signbit(back).tolist() == [True, False, False, True]
        filled = host(da.full(3, -0.0, mesh=mesh).full_array())
        assert np.signbit(filled).all()
        x[1] = -0.0
        assert np.signbit(host(x.full_array())).tolist() == [True, True, False, True]

    on_ranks(program)


def test_a_broadcast_array_is_not_written_into() -> None:
    def program() -> None:
        x = da.ones((3,), device="cuda")
        y = da.broadcast_to(x, (4, 3))
        with pytest.raises(da.errors.ReadOnlyError):
            y[0] = 2.0
        with pytest.raises(da.errors.ReadOnlyError):
            y += 1
        agrees(y, np.ones((4, 3)))
        agrees(x, np.ones(3))

    on_ranks(program)


def test_a_block_of_one_item_many_times_is_not_written_to() -> None:
    cupy = stand_in()

    def program() -> None:
        mesh = da.init_device_mesh((4,), device="cuda")
        block = cupy.broadcast_to(cupy.ones(3), (4, 3))
        x = da.DistArray.from_local(block, mesh, [R])
        with pytest.raises(ArgumentError, match="read-only"):
            x[0] = 2.0
        with pytest.raises(ArgumentError, match="read-only"):
            x += 1

    on_ranks(program)


def test_integers_to_negative_powers_are_refused_as_in_numpy() -> None:
    def program() -> None:
        x = da.asarray(np.array([2, 3]), device="cuda", placements=[R])
        with pytest.raises(ArgumentError, match="negative integer powers"):
            x ** da.asarray(np.array([1, -1]), device="cuda", placements=[R])
        agrees(x ** da.asarray(np.array([1, 2]), device="cuda", placements=[R]), [2, 9])

    on_ranks(program)


def test_a_function_that_cupy_lacks_says_so() -> None:
    unknown = np.frompyfunc(lambda item: item, 1, 1)

    def program() -> None:
        x = da.ones(4, device="cuda")
        with pytest.raises(DeviceError, match=r"CuPy.*to_device\('cpu'\)"):
            unknown(x)

    on_ranks(program)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (2,), (5, 3)])
def test_no_axes_empty_and_uneven_blocks(shape: tuple[int, ...]) -> None:
    value = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(np.float32)

    def program() -> None:
        mesh = da.init_device_mesh((4,), device="cuda")
        x = da.distribute_array(value, mesh, [S0] if shape else [R])
        agrees(x + x, value + value)
        agrees(da.sum(x), value.sum())
        agrees(da.mean(x + 1, axis=()), value + 1)
        agrees(x.reshape(-1), value.reshape(-1))
        if value.size:
            agrees(da.var(x), value.var(), rtol=1e-6)
            agrees(da.argmax(x), value.argmax())
            agrees(da.max(x), value.max())

    on_ranks(program)


def test_masks_and_outputs_that_cupys_ufuncs_lack() -> None:
    value = np.arange(12.0).reshape(3, 4) - 5

    def program() -> None:
        x = da.asarray(value, device="cuda")
        mask = x > 0
        out = da.full_like(x, 7.0)
        np.add(x, x, out=out, where=mask)
        agrees(out, np.where(value > 0, 2 * value, 7.0))
        agrees(np.add(x, 1, where=mask), np.where(value > 0, value + 1, 0))
        agrees(da.sum(x, axis=0, where=mask), value.sum(axis=0, where=value > 0))
        agrees(da.max(x, initial=-9.0, where=mask), value.max(initial=-9.0, where=value > 0))
        ints = da.zeros((3, 4), dtype=np.int32, device="cuda")
        np.add(x, 0.6, out=ints, casting="unsafe")
        agrees(ints, (value + 0.6).astype(np.int32))
        pair: Any = (da.zeros_like(x), da.zeros_like(x))
        np.divmod(x, 4, out=pair)
        agrees(pair[1], value % 4)

    on_ranks(program)
