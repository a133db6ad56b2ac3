"""The public names: those of NumPy mean what they mean there."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest

import distarray as da
from distarray._missing_names import INSTEAD_OF_OTHERS
from distarray.core import INSTEAD
from distarray.testing import simulate

ALIASES = {
    name: [other for other in dir(np) if getattr(np, other) is function]
    for name in dir(np)
    if callable(function := getattr(np, name)) and not isinstance(function, type)
}


def test_all_names_exist_once() -> None:
    assert len(set(da.__all__)) == len(da.__all__)
    assert [name for name in da.__all__ if not hasattr(da, name)] == []


@pytest.mark.parametrize(
    "module",
    [da, da.checkpoint, da.errors, da.fft, da.io, da.linalg, da.memory, da.random, da.testing],
)
def test_dir_shows_public_names_only(module: ModuleType) -> None:
    public = getattr(module, "__all__", None) or [
        name for name in vars(module) if name.endswith(("Error", "Warning"))
    ]
    shown = {name for name in dir(module) if not name.startswith("_")}
    assert shown == {name for name in public if not name.startswith("_")}


@pytest.mark.parametrize("name", [name for name in da.__all__ if len(ALIASES.get(name, ())) > 1])
def test_other_names_of_a_numpy_function_are_there_as_well(name: str) -> None:
    assert [other for other in ALIASES[name] if other not in da.__all__] == []


def test_methods_are_those_functions_that_are_methods_of_numpys_arrays() -> None:
    in_place = {"resize"}  # changes the shape of the array, which layouts do not
    names = [name for name in da.__all__ if name not in in_place]
    methods = [name for name in names if callable(getattr(np.ndarray, name, None))]
    assert [name for name in methods if not callable(getattr(da.DistArray, name, None))] == []

    def program() -> None:
        value = np.arange(6).reshape(2, 3)
        x = da.asarray(value)
        assert np.array_equal(x.repeat(2, axis=1).full_array(), value.repeat(2, axis=1))
        assert np.array_equal(x.repeat(2).full_array(), value.repeat(2))

    simulate(2, program)


def test_array_is_the_function_and_always_copies() -> None:
    def program() -> None:
        x = da.array([[1, 2], [3, 4]], np.float32)
        assert x.dtype == np.float32
        assert np.array_equal(x.full_array(), [[1, 2], [3, 4]])
        assert da.asarray(x) is x
        y = da.array(x)
        y[0, 0] = 7
        assert x[0, 0] == 1
        assert da.array(x, placements=[da.Replicate()]).placements == (da.Replicate(),)

    simulate(2, program)
    # The package of the same name stays importable.
    assert sys.modules["distarray.array"].__name__ == "distarray.array"
    assert sys.modules["distarray.array._array"].DistArray is da.DistArray


def test_redistribute_is_the_function_of_the_method() -> None:
    def program() -> None:
        rank = da.default_mesh().rank
        local = np.random.default_rng(rank).random((2, 6))
        x = da.DistArray.from_local(local, None, [da.Shard(0)])
        y = da.redistribute(x, [da.Shard(1)])
        assert y.placements == (da.Shard(1),)
        assert np.array_equal(y.full_array(), x.full_array())
        z = da.redistribute(x, boundaries={0: (0, 1, 4)}, async_op=True).wait()
        assert z.layout.boundaries == {0: (0, 1, 4)}
        with pytest.raises(da.errors.ArgumentTypeError, match="takes a DistArray"):
            da.redistribute(local, [da.Shard(1)])

    simulate(2, program)
    # The package of the same name stays importable.
    from distarray.redistribute import plan

    assert plan is da.plan


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("zeros", ((2, 2), float)),
        ("ones", ((2, 3), np.int32)),
        ("full", (3, 7, "f4")),
        ("zeros_like", (np.ones((2, 3)), np.int8)),
        ("full_like", (np.ones((2, 3)), 5, np.int16)),
        ("asarray", ([1, 2, 3], np.float32)),
        ("arange", (1, 7, 2, np.float32)),
        ("linspace", (0, 1, 5, False, False, np.float32)),
        ("eye", (3, 4, 1, np.int8)),
    ],
)
def test_dtype_is_taken_by_position_as_in_numpy(name: str, args: tuple[object, ...]) -> None:
    def program() -> None:
        x = getattr(da, name)(*args)
        expected = getattr(np, name)(*args)
        assert x.dtype == expected.dtype
        assert np.array_equal(x.full_array(), expected)

    simulate(2, program)


PLACES = {
    "": da,
    "testing.": da.testing,
    "fft.": da.fft,
    "linalg.": da.linalg,
    "random.": da.random,
    "random.Generator.": da.random.default_rng(0),
    "ndarray.": da.DistArray,
    "DeviceMesh.": da.DeviceMesh,
    "torch.": None,  # tests/torch/test_reference_page.py
    "lib.stride_tricks.": None,
}


def test_remedies_are_for_names_that_are_not_there() -> None:
    assert not INSTEAD.keys() & INSTEAD_OF_OTHERS.keys()
    for path in (*INSTEAD, *INSTEAD_OF_OTHERS):
        home, dot, name = path.rpartition(".")
        place = PLACES[home + dot]
        assert place is None or not hasattr(place, name)


def test_names_of_mpi_torch_and_dask_name_what_to_do() -> None:
    x = da.arange(4.0)
    for owner, name, remedy in (
        (x, "allreduce", r"x\.sum\(\)"),
        (x, "gather", r"full_array\(dst=0\)"),
        (x, "numpy", r"full_array.*to_local"),
        (x, "compute", "nothing is lazy"),
        (x, "append", r"da\.append"),
        (x, "resplit_", r"x\.redistribute"),
        (x, "rechunk", r"x\.redistribute"),
        (x, "larray", r"to_local"),
        (da, "shard_map", r"da\.map_blocks"),
        (da, "COMM_WORLD", r"default_mesh\(\)"),
        (da, "from_local", r"DistArray\.from_local"),
        (da, "MPI", r"default_mesh\(\)"),
        (da, "load_hdf5", r"da\.asarray\(h5py"),
        (x, "local_shape", r"layout\.local_shape\(\)"),
        (x, "comm", r"mesh\.comm\(\)"),
        (da.linalg, "LinearOperator", r"docs/iterative\.md"),
        (da.linalg, "ldl", r"lu_factor"),
        (da.linalg, "solve_banded", r"map_blocks.*da\.linalg\.cg"),
        (da.linalg, "hessenberg", r"x\.full_array\(\)"),
        (da, "ndimage", r"da\.map_overlap"),
        (da, "fftconvolve", r"da\.convolve"),
        (da.random.default_rng(0), "randn", r"rng\.standard_normal"),
        (da.random.default_rng(0), "randint", r"rng\.integers"),
        (da.linalg, "toeplitz", r"da\.take\(values, i\).*da\.convolve"),
        (da.linalg, "block_diag", r"da\.zeros"),
        (da.fft, "next_fast_len", r"any length"),
        (da.fft, "dct", r"map_blocks"),
        (da, "lu_factor", r"da\.linalg\.lu_factor"),
        (da, "fft2", r"da\.fft\.fft2"),
        (da, "full_array", r"x\.full_array"),
        (x, "permute", r"da\.permute_dims"),
        (x, "exp", r"da\.exp\(x\)"),
        (x, "detach", r"dt\.to_torch"),
        (x, "at", r"np\.add\.at"),
        (da, "softmax", r"keepdims=True"),
        (da, "cat", r"da\.concat"),
        (da, "Bcast", r"da\.distribute_array"),
        (da, "compute", "nothing is lazy"),
        (x.mesh, "get_local_rank", r"mesh\[axis\]\.coordinate"),
        (x.mesh, "mesh_dim_names", r"mesh\.axis_names"),
        (x.mesh, "Barrier", r"mesh\.comm\(\)\.Barrier"),
    ):
        with pytest.raises(AttributeError, match=f"has no '{name}'; use .*{remedy}"):
            getattr(owner, name)
        assert not hasattr(owner, name)
        assert name not in dir(owner)


@pytest.mark.parametrize(
    ("theirs", "home"),
    [(np.ndarray, "ndarray."), (np.random.Generator, "random.Generator."), (np.random, "random.")],
)
def test_names_of_numpy_that_lack_name_what_to_do(theirs: object, home: str) -> None:
    ours = PLACES[home]
    names = getattr(theirs, "__all__", dir(theirs))
    for name in names:
        if not name.startswith("_") and not hasattr(ours, name):
            with pytest.raises(AttributeError, match=f"has no '{name}' as NumPy.*; use"):
                getattr(ours, name)
            assert isinstance(ours, type) or name not in dir(ours)
    for name in ("nothing_of_this_name", "__array_interface__"):
        with pytest.raises(AttributeError, match="has no attribute"):
            getattr(ours, name)


def test_what_errors_say_to_do_does_it() -> None:
    linalg = pytest.importorskip("scipy.linalg")
    c, r = np.array([3.0, 1, 4, 1]), np.array([3.0, 5, 9])
    toeplitz = linalg.toeplitz(c, r)

    def program() -> None:
        m, n = len(c), len(r)
        values = da.asarray(np.concatenate([r[:0:-1], c]))
        i = da.arange(m)[:, None] - da.arange(n) + n - 1
        assert np.array_equal(da.take(values, i), toeplitz)
        x = da.asarray([1.0, -2.0, 0.5])
        assert np.allclose(da.convolve(values, x)[n - 1 : n - 1 + m], toeplitz @ np.asarray(x))
        v = da.arange(7)
        e = da.exp(x - x.max(-1, keepdims=True))
        softmax = e / e.sum(-1, keepdims=True)
        e = np.exp([1.0, -2.0, 0.5])
        assert np.allclose(softmax.full_array(), e / e.sum())
        objects = np.frompyfunc(abs, 1, 1)(x)
        with pytest.raises(da.errors.DTypeError, match=r"x\.astype\(float\)"):
            str(objects)
        assert np.array_equal(objects.astype(float).full_array(), [1.0, 2.0, 0.5])
        mesh = x.mesh
        assert mesh["axis0"].coordinate[0] == mesh.rank
        assert mesh.axis_names == ("axis0",)
        wide = da.map_blocks(lambda block: block.view(np.int64), v.astype(float))
        assert np.array_equal(wide.full_array(), np.arange(7.0).view(np.int64))

    simulate(2, program)
