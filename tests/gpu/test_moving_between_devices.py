"""Arrays go from device to device where that is asked for, and nothing goes there by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import distarray as da
from distarray.array import _convert
from distarray.comm import CommLog
from distarray.comm.simulated._ranks import simulate
from distarray.core._arguments import plain_buffer
from distarray.core.engine import _operands
from distarray.errors import ArgumentError, ArgumentTypeError, DeviceError
from distarray.ops.indexing import _masks, _values
from tests.array.strategies import Case, cases, on_ranks
from tests.on_device import BESIDE, host, stand_in

R, S0, S1 = da.Replicate(), da.Shard(0), da.Shard(1)


@pytest.fixture(autouse=True)
def as_users_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse NumPy operands, as the library does outside of these suites."""
    monkeypatch.setattr(_operands, "match_device", BESIDE[0])
    monkeypatch.setattr(_values, "match_device", BESIDE[0])
    monkeypatch.setattr(_masks, "match_device", BESIDE[0])
    monkeypatch.setattr(_convert, "plain_buffer", plain_buffer)


@given(case=cases((np.float64, np.int32, np.complex64, np.bool_), ("max", "min")))
def test_to_device_and_back_keeps_layout_and_bits_and_sends_nothing(case: Case) -> None:
    if case.op is not None and case.values.dtype.kind in "bc":
        return

    def program() -> None:
        x = case.build()
        with CommLog() as log:
            near = x.to_device("cpu")
            back = near.to_device("cuda")
        assert log.count() == 0
        assert (near.device, back.device) == ("cpu", "cuda")
        assert back.layout is x.layout
        assert near.layout is x.layout.replace(mesh=near.mesh)
        assert near.mesh.flat_ranks == x.mesh.flat_ranks
        assert isinstance(near.to_local(), np.ndarray)
        assert near.to_local().tobytes() == host(x.to_local()).tobytes()
        assert host(back.to_local()).tobytes() == near.to_local().tobytes()
        assert x.to_device(x.device) is x
        assert near.to_device(near.device) is near

    on_ranks(program)


@given(data=st.data())
def test_redistribute_to_a_mesh_on_another_device(data: st.DataObject) -> None:
    case: Case = data.draw(cases((np.float64, np.int32), ("sum",)))
    other: Case = data.draw(cases(shape=case.shape))

    def program() -> None:
        x = case.build()
        theirs = other.layout()
        mesh = theirs.mesh.on("cpu")
        y = x.redistribute(theirs.placements, mesh=mesh)
        assert y.device == "cpu"
        assert isinstance(y.to_local(), np.ndarray)
        assert y.placements == theirs.placements
        if mesh.coordinate is not None:
            np.testing.assert_array_equal(y.full_array(), case.value)
        back = y.redistribute(x.layout.placements, mesh=x.mesh)
        if x.mesh.coordinate is not None:
            np.testing.assert_array_equal(host(back.full_array()), case.value)

    on_ranks(program)


def test_parts_of_a_mesh_stay_its_parts_on_another_device() -> None:
    def program() -> None:
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"), device="cpu")
        x = da.ones((4, 6), mesh=mesh, placements=[S0, S1]).to_device("cuda")
        y = da.ones((6,), mesh=mesh["tp"], placements=[S0]).to_device("cuda")
        assert y.mesh is x.mesh["tp"]
        assert host((x + y).full_array()).tolist() == [[2.0] * 6] * 4

    on_ranks(program)


def test_creation_functions_go_where_they_are_told() -> None:
    def program() -> None:
        assert da.zeros(5, device="cpu").device == "cpu"
        assert da.zeros(5, device="cuda").device == "cuda"
        assert da.zeros(5).device == "cuda"  # of the mesh that is the default here
        near = da.asarray(np.arange(5.0), device="cpu")
        assert isinstance(near.to_local(), np.ndarray)
        assert da.asarray(near, device="cuda").device == "cuda"
        assert da.asarray(near) is near
        assert da.zeros_like(near).device == "cpu"
        assert da.full_like(near, 3.0, device="cuda").device == "cuda"
        assert da.astype(near, np.float32, device="cuda").dtype == np.float32
        mesh = da.init_device_mesh((2, 2), device="cuda")
        with da.use_mesh(mesh, [S0, S1]):
            there = da.ones((4, 4), device="cpu")
            assert there.placements == (S0, S1)
            assert there.mesh is mesh.on("cpu")
        with pytest.raises(DeviceError, match=r"device='cpu' is not the mesh's, 'cuda'"):
            da.zeros(5, mesh=mesh, device="cpu")
        with pytest.raises(ArgumentTypeError, match="stream"):
            near.to_device("cuda", stream=1)

    on_ranks(program)


def test_operands_on_different_devices_are_refused_on_every_rank() -> None:
    cupy = stand_in()

    def program() -> None:
        near = da.ones((4, 4), device="cpu")
        far = da.ones((4, 4), device="cuda")
        for function in (
            lambda: near + far,
            lambda: far @ near,
            lambda: da.concat([near, far]),
            lambda: da.where(far > 0, near, far),
            lambda: np.add(far, near),
            lambda: near.__iadd__(far),
            lambda: da.einsum("ij,jk->ik", near, far),
        ):
            with pytest.raises(DeviceError, match=r"'(cpu|cuda)' and '(cpu|cuda)'.*to_device"):
                function()
        plain = np.ones((4, 4))
        for function in (
            lambda: far + plain,
            lambda: plain * far,
            lambda: far @ plain,
            lambda: far.__iadd__(plain),
            lambda: far.__setitem__(..., plain),
            lambda: da.concat([far, plain]),
            lambda: da.sum(far, where=plain > 0),
        ):
            with pytest.raises(DeviceError, match=r"'cpu'.*'cuda:\d'.*da.asarray\(value, mesh="):
                function()
        with pytest.raises(DeviceError, match=r"'cuda:\d'.*'cpu'"):
            near + cupy.ones((4, 4))
        assert host((far + np.float32(1)).full_array()).tolist() == [[2.0] * 4] * 4
        assert host((far + np.array(1)).full_array()).tolist() == [[2.0] * 4] * 4
        assert host((far + cupy.ones((4, 4))).full_array()).tolist() == [[2.0] * 4] * 4

    on_ranks(program)


def test_from_local_takes_blocks_of_this_ranks_gpu_as_they_are() -> None:
    cupy = stand_in()

    def program() -> None:
        mesh = da.init_device_mesh((4,), device="cuda")
        block = cupy.asarray(np.arange(6.0))
        x = da.DistArray.from_local(block, mesh, [S0])
        assert x.to_local() is block
        assert x.shape == (24,)
        with pytest.raises(DeviceError, match=r"'cpu'.*'cuda:\d'"):
            da.DistArray.from_local(np.arange(6.0), mesh, [S0])
        with pytest.raises(DeviceError, match=r"'cuda:\d'.*'cpu'"):
            da.DistArray.from_local(block, mesh.on("cpu"), [S0])
        listed = da.DistArray.from_local([1.0, 2.0], mesh, [S0])
        assert host(listed.full_array()).tolist() == [1.0, 2.0] * 4

    on_ranks(program)


def test_a_block_of_another_gpu_is_refused() -> None:
    cupy = stand_in()
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")

    def program() -> None:
        mesh = da.init_device_mesh((1,), device="cuda:0")
        with cupy.cuda.Device(1):
            block = cupy.zeros(3)
        with pytest.raises(DeviceError, match=r"'cuda:1'.*'cuda:0'"):
            da.DistArray.from_local(block, mesh, [S0])
        moved = da.distribute_array(block, mesh, [S0])
        assert moved.to_local().device.id == 0
        assert da.ones(3, mesh=mesh).to_device("cuda:1").to_local().device.id == 1

    simulate(1, program)


def test_values_come_to_the_host_where_they_are_asked_for() -> None:
    cupy = stand_in()

    def program() -> None:
        x = da.asarray(np.arange(6.0).reshape(2, 3), device="cuda")
        np.testing.assert_array_equal(np.asarray(x), np.arange(6.0).reshape(2, 3))
        assert type(np.asarray(x)) is np.ndarray
        assert type(x.full_array()) is cupy.ndarray
        assert float(da.sum(x)) == 15.0
        assert x.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
        assert str(x) == "[[0. 1. 2.]\n [3. 4. 5.]]"
        assert "DistArray([[0., 1., 2.]" in repr(x)
        assert x[1, 2].item() == 5.0

    on_ranks(program)


def test_dlpack_exports_the_global_array_from_the_gpu() -> None:
    cupy = stand_in()

    def program() -> None:
        x = da.asarray(np.arange(6.0).reshape(2, 3), device="cuda")
        kind, number = x.__dlpack_device__()
        assert (kind, number) == (2, x.to_local().device.id)
        y = cupy.from_dlpack(x)
        assert y.device.id == number
        assert y.get().tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
        near = x.to_device("cpu")
        assert near.__dlpack_device__()[0] == 1
        assert np.from_dlpack(near).tolist() == y.get().tolist()

    on_ranks(program)


def test_asarray_looks_at_memory_of_the_gpu_and_never_at_the_hosts() -> None:
    cupy = stand_in()

    def program() -> None:
        mesh = da.init_device_mesh((1,), device="cuda")
        value = cupy.ones(4)
        x = da.asarray(value, mesh=mesh, copy=False)
        assert x.to_local().data.ptr == value.data.ptr
        assert da.asarray(value, mesh=mesh).to_local().data.ptr != value.data.ptr
        with pytest.raises(ArgumentError, match="copy=False"):
            da.asarray(np.ones(4), mesh=mesh, copy=False)
        with pytest.raises(ArgumentError, match="copy=False"):
            da.asarray(x, device="cpu", copy=False)

    simulate(1, program)


def test_map_blocks_gets_and_gives_blocks_of_the_gpu() -> None:
    cupy = stand_in()

    def program() -> None:
        x = da.asarray(np.arange(8.0), device="cuda")
        seen: list[Any] = []

        def double(block: Any) -> Any:
            seen.append(type(block))
            return block * 2

        assert host(da.map_blocks(double, x).full_array()).tolist() == [2.0 * i for i in range(8)]
        assert seen == [cupy.ndarray]
        with pytest.raises(DeviceError, match="map_blocks"):
            da.map_blocks(lambda block: block.get(), x)

    on_ranks(program)
