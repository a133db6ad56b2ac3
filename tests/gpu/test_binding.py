"""Which GPU a rank gets, and what is said where there is none."""

from __future__ import annotations

import gc
import pickle
import re
import sys
from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray.comm import _launcher
from distarray.comm.cuda import _device
from distarray.comm.simulated._ranks import simulate
from distarray.errors import DeviceError
from tests.on_device import stand_in


def count() -> int:
    """Return how many GPUs there are."""
    return int(stand_in().cuda.runtime.getDeviceCount())


@pytest.mark.parametrize("ranks_per_node", [None, 1, 2])
def test_ranks_are_bound_by_their_number_on_the_node(ranks_per_node: int | None) -> None:
    def program() -> tuple[int, str]:
        mesh = da.init_device_mesh((4,), device="cuda")
        x = da.ones((8, 3), mesh=mesh)
        return x.to_local().device.id, x.device

    found = simulate(4, program, ranks_per_node=ranks_per_node)
    local = [rank % (ranks_per_node or 4) for rank in range(4)]
    assert [number for number, _ in found] == [rank % count() for rank in local]
    assert {device for _, device in found} == {"cuda"}


def test_a_number_fixes_the_gpu_of_all_ranks() -> None:
    last = count() - 1

    def program() -> None:
        mesh = da.init_device_mesh((2,), device=f"cuda:0{last}")
        assert mesh.device == f"cuda:{last}"
        assert mesh is not da.init_device_mesh((2,), device="cuda")
        x = da.arange(7, mesh=mesh)
        assert (x + x).to_local().device.id == last
        assert da.sum(x).full_array().device.id == last

    simulate(2, program)


def test_a_number_beyond_the_gpus_is_refused_before_a_mesh_exists() -> None:
    def program() -> None:
        with pytest.raises(DeviceError, match=rf"cuda:{count()}.* is not there: .*GPU"):
            da.init_device_mesh((2,), device=f"cuda:{count()}")

    simulate(2, program)


def test_without_cupy_the_extras_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)

    def program() -> None:
        with pytest.raises(DeviceError, match=r"needs CuPy.*distarray-mpi\[cuda12\]"):
            da.init_device_mesh((1,), ("only",), device="cuda")

    simulate(1, program)


@pytest.mark.parametrize("status", [35, 100, None])
def test_without_driver_or_gpu_the_remedy_is_named(
    monkeypatch: pytest.MonkeyPatch, status: int | None
) -> None:
    runtime = stand_in().cuda.runtime

    def asked() -> int:
        if status is None:
            return 0
        raise runtime.CUDARuntimeError(status)

    monkeypatch.setattr(runtime, "getDeviceCount", asked)

    def program() -> None:
        with pytest.raises(DeviceError, match=r"cannot be used here.*CUDA_VISIBLE_DEVICES"):
            da.init_device_mesh((1,), device="cuda")

    simulate(1, program)


def test_the_launcher_says_which_rank_of_the_node_this_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _launcher._LOCAL_RANKS:
        monkeypatch.delenv(name, raising=False)
    assert _launcher.launched_local_rank() is None
    monkeypatch.setattr(stand_in().cuda.runtime, "getDeviceCount", lambda: 4)
    with pytest.raises(DeviceError, match="DISTARRAY_LOCAL_RANK"):
        _device.bind("cuda", None)
    monkeypatch.setenv("SLURM_LOCALID", "3")
    assert _launcher.launched_local_rank() == 3
    monkeypatch.setenv("DISTARRAY_LOCAL_RANK", "1")
    assert _launcher.launched_local_rank() == 1
    monkeypatch.setenv("DISTARRAY_LOCAL_RANK", "first")
    with pytest.raises(DeviceError, match="first"):
        _launcher.launched_local_rank()


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", 0])
def test_other_devices_are_not_known(device: Any) -> None:
    def program() -> None:
        with pytest.raises(DeviceError, match="is not known"):
            da.init_device_mesh((1,), device=device)

    simulate(1, program)


@pytest.mark.parametrize("dtype", [">f8", "U3", "S2", "M8[s]", np.longdouble, np.clongdouble])
def test_items_that_gpus_lack_are_refused_on_every_rank(dtype: Any) -> None:
    def program() -> None:
        with pytest.raises(da.errors.DTypeError, match="cannot lie on a GPU"):
            da.zeros((5,), dtype=dtype, mesh=da.init_device_mesh((2,), device="cuda"))

    simulate(2, program)


def test_a_numbered_gpu_does_not_become_the_ranks_own() -> None:
    def program() -> int:
        mesh = da.init_device_mesh((2,), device="cuda")
        x = da.zeros((4,), mesh=mesh)
        own: int = x.to_local().device.id
        other = da.init_device_mesh((2,), device="cuda:0")
        assert da.ones((4,), mesh=other).to_local().device.id == 0
        assert x.to_device("cuda:0").to_local().device.id == 0
        assert da.zeros((4,), mesh=mesh).to_local().device.id == own
        return own

    if stand_in().cuda.runtime.getDeviceCount() > 1:
        assert simulate(2, program) == [0, 1]


def test_items_are_not_set_to_those_of_an_array_on_another_device() -> None:
    def program() -> None:
        x = da.zeros((8,), mesh=da.init_device_mesh((2,), device="cuda"))
        y = da.ones((8,), mesh=da.init_device_mesh((2,), device="cpu"))
        for target, value in ((x, y), (y, x)):
            with pytest.raises(DeviceError, match="nothing moves between devices"):
                target[:2] = value[:2]
        x[:2] = y[:2].to_device("cuda")
        assert float(x.sum()) == 2

    simulate(2, program)


def test_memory_that_is_not_there_is_an_error_that_says_how_much() -> None:
    cupy = stand_in()

    def program() -> None:
        mesh = da.init_device_mesh((1,), device="cuda:0")
        total = cupy.cuda.runtime.memGetInfo()[1]
        kept = da.ones((1 << 20,), mesh=mesh)
        with pytest.raises(
            da.errors.OutOfMemoryError,
            match=rf"GPU 0: .*{2 * total:,} bytes.* Of its {total} bytes .*hold (\d+),",
        ) as caught:
            da.empty((2 * total,), dtype=np.uint8, mesh=mesh)
        told = re.search(r"hold (\d+),", str(caught.value))
        assert told is not None
        assert int(told[1]) >= kept.nbytes

    simulate(1, program)


def test_what_another_library_keeps_is_asked_for_before_memory_is_said_to_lack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cupy = stand_in()

    def program() -> None:
        pool = cupy.get_default_memory_pool()
        gc.collect()  # so that nobody gives memory back while it is counted
        pool.free_all_blocks()
        items = (1 << 19) + pool.free_bytes() // 8  # what is left of others' blocks holds them not
        x = da.ones((items,), mesh=da.init_device_mesh((1,), device="cuda:0"))
        hoard = [cupy.empty(x.nbytes, np.uint8)]
        pool.free_all_blocks()

        def give_back() -> None:
            hoard.clear()
            pool.free_all_blocks()

        keeper = _device.Keeper("another", lambda number: sum(b.nbytes for b in hoard), give_back)
        monkeypatch.setattr(_device, "keepers", [keeper])
        pool.set_limit(size=pool.used_bytes() + (1 << 20))
        try:
            y = x + x
            assert not hoard
            with pytest.raises(da.errors.OutOfMemoryError, match=r"at most .*another has 0;"):
                x * x
        finally:
            pool.set_limit(size=0)
        assert float(y.sum()) == 2 * items

    simulate(1, program)


def test_a_mesh_that_is_pickled_keeps_its_device() -> None:
    def program() -> None:
        mesh = da.init_device_mesh((2,), device="cuda")
        assert pickle.loads(pickle.dumps(mesh)) is mesh

    simulate(2, program)
