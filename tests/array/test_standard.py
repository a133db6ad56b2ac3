"""What the array API standard and NumPy's `like=` ask of arrays and of the namespace."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    DTypeError,
    ExportError,
    ShapeError,
)
from distarray.layout import Partial, Replicate, Shard
from distarray.testing import simulate
from tests.array.strategies import agrees, on_ranks
from tests.on_device import DEVICE


def test_namespace_of_an_array_is_the_library() -> None:
    def program() -> None:
        x = da.ones(3)
        assert x.__array_namespace__() is da
        for version in ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12"):
            assert x.__array_namespace__(api_version=version) is da
        with pytest.raises(ArgumentError, match="2025"):
            x.__array_namespace__(api_version="2020.01")
        assert not hasattr(x, "__array_interface__")

    assert da.__array_api_version__ == "2025.12"
    on_ranks(program)


def test_information_on_the_namespace() -> None:
    info = da.__array_namespace_info__()
    assert info.capabilities() == {
        "boolean indexing": True,
        "data-dependent shapes": True,
        "max dimensions": 64,
    }
    assert info.devices()[0] == "cpu"
    assert info.default_dtypes(device="cpu")["integral"] == np.int64
    assert info.dtypes(kind="real floating") == {"float32": np.float32, "float64": np.float64}
    assert set(info.dtypes(kind=("bool", "complex floating"))) == {
        "bool",
        "complex64",
        "complex128",
    }

    def program() -> None:
        mesh = da.init_device_mesh((2,), device=DEVICE)
        with da.use_mesh(mesh):
            assert info.default_device() == mesh.device

    assert info.default_device() == DEVICE
    simulate(2, program)


def test_every_name_of_the_standard_is_there() -> None:
    for function in da.linalg, da.fft:
        assert [name for name in function.__all__ if not hasattr(function, name)] == []
    numpys = {name for name in np.linalg.__all__ if not name.startswith("_")}
    assert numpys - set(da.linalg.__all__) == set()
    assert set(np.fft.__all__) - set(da.fft.__all__) == set()


def test_numpys_like_makes_distributed_arrays_on_the_mesh_of_an_array() -> None:
    def program() -> None:
        mesh = da.init_device_mesh((2, 2))
        x = da.ones((4, 4), mesh=mesh)
        made: tuple[tuple[Any, Any], ...] = (
            (np.zeros((3, 2), like=x), np.zeros((3, 2))),
            (np.ones(5, np.int8, "F", like=x), np.ones(5, np.int8)),
            (np.full((2, 2), 7, like=x), np.full((2, 2), 7)),
            (np.arange(1, 9, 2, like=x), np.arange(1, 9, 2)),
            (np.eye(3, k=1, dtype=np.int32, like=x), np.eye(3, k=1, dtype=np.int32)),
            (
                np.array([[1, 2], [3, 4]], np.float32, like=x),
                np.array([[1, 2], [3, 4]], np.float32),
            ),
            (np.asarray([1.5, 2], like=x), np.asarray([1.5, 2])),
            (np.identity(3, like=x), np.identity(3)),
            (np.tri(2, 3, dtype=int, like=x), np.tri(2, 3, dtype=int)),
            (np.fromfunction(np.add, (2, 3), like=x), np.fromfunction(np.add, (2, 3))),
            (np.asanyarray(x, like=x), np.ones((4, 4))),
        )
        for array, expected in made:
            assert isinstance(array, da.DistArray)
            assert array.mesh is mesh
            agrees(array, expected)
        assert np.empty((2, 3), like=x).shape == (2, 3)
        with pytest.raises(ArgumentTypeError, match="no distributed form"):
            np.frombuffer(b"ab", np.uint8, like=x)

    on_ranks(program)


def test_from_dlpack_takes_plain_and_distributed_arrays() -> None:
    values = np.arange(10.0)

    def program() -> None:
        mesh = da.init_device_mesh((4,))
        x = da.from_dlpack(values, mesh=mesh)
        agrees(x, values)
        assert x.placements == (Shard(0),)
        assert not np.shares_memory(x.to_local(), values)
        view = da.from_dlpack(values, copy=False, mesh=mesh)
        assert not view.to_local().size or np.shares_memory(view.to_local(), values)
        assert da.from_dlpack(x) is x
        assert da.from_dlpack(x, copy=False, device=x.device) is x
        assert da.from_dlpack(x, copy=True) is not x
        agrees(da.from_dlpack(x, placements=[Replicate()]), values)
        with pytest.raises(ArgumentTypeError, match="__dlpack__"):
            da.from_dlpack([1, 2])
        with pytest.raises(AxisError):
            da.from_dlpack(values, mesh=mesh, placements=[Shard(3)])

    if DEVICE == "cpu":
        on_ranks(program)


def test_dlpack_without_a_copy_where_each_rank_holds_all() -> None:
    parameters = inspect.signature(da.DistArray.__dlpack__).parameters
    assert list(parameters) == ["self", "stream", "max_version", "dl_device", "copy"]

    def alone() -> None:
        for placement in (Shard(0), Partial("sum"), Replicate()):
            x = da.asarray(np.arange(3.0), placements=[placement])
            assert np.shares_memory(np.from_dlpack(x, copy=False), x.to_local())
            assert not np.shares_memory(np.from_dlpack(x, copy=True), x.to_local())

    def together() -> None:
        x = da.arange(3.0)
        with pytest.raises(ExportError, match="to_local"):
            x.__dlpack__(copy=False)
        assert np.array_equal(np.from_dlpack(x), np.arange(3.0))

    if DEVICE == "cpu":
        simulate(1, alone)
        simulate(2, together)


def test_finfo_is_made_of_python_floats() -> None:
    for dtype in (da.float32, da.complex64, np.dtype(np.float64)):
        ours, theirs = da.finfo(dtype), np.finfo(dtype)
        for name in ("eps", "max", "min", "smallest_normal"):
            assert type(getattr(ours, name)) is float
            assert getattr(ours, name) == getattr(theirs, name)
        assert (ours.bits, ours.dtype) == (theirs.bits, theirs.dtype)
        assert ours.tiny == theirs.tiny
    with pytest.raises(DTypeError, match="floating"):
        da.finfo(da.int32)

    def program() -> None:
        assert da.finfo(da.ones(3, dtype=da.float32)).bits == 32

    on_ranks(program)


def test_names_of_numpy_that_are_not_there_tell_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(np, "of_a_later_numpy", len, raising=False)
    monkeypatch.setattr(np, "__all__", [*np.__all__, "of_a_later_numpy"])
    with pytest.raises(AttributeError, match=r"NumPy has.*np\.of_a_later_numpy") as told:
        da.of_a_later_numpy  # noqa: B018
    assert "full_array" in str(told.value)
    assert "map_blocks" in str(told.value)
    with pytest.raises(AttributeError, match=r"da\.DistArray"):
        da.ndarray  # noqa: B018
    with pytest.raises(AttributeError, match=r"NumPy's own, np\.poly1d"):
        da.poly1d  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'nothing_of_this_name'"):
        da.nothing_of_this_name  # noqa: B018
    assert not hasattr(da, "__wrapped__")


def test_dtypes_and_constants_are_numpys() -> None:
    for name in ("float32", "int_", "bool_", "euler_gamma", "pi", "newaxis", "datetime64", "s_"):
        assert getattr(da, name) is getattr(np, name)
    assert da.promote_types("i4", "f4") == np.float64
    assert da.issubdtype(np.int8, da.integer)


def test_broadcast_shapes_refuses_with_our_error() -> None:
    assert da.broadcast_shapes((4, 1), 6, (1,)) == (4, 6)
    assert da.broadcast_shapes() == ()
    with pytest.raises(ShapeError, match="do not broadcast"):
        da.broadcast_shapes((2,), (3,))
    with pytest.raises(ArgumentTypeError):
        da.broadcast_shapes("a")


def test_memory_that_is_shared() -> None:
    def program() -> None:
        x = da.arange(8.0)
        view, copy = x[::2], x.copy()
        has_items = bool(x.to_local().size)
        assert np.may_share_memory(x, view) == has_items
        assert da.shares_memory(x, x) == has_items
        assert not np.shares_memory(x, copy)

    on_ranks(program)
