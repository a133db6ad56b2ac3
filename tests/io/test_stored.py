"""Stored arrays: HDF5, zarr and memory maps take blocks of any layout, and are read by slices."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.comm import CommLog
from distarray.errors import ArgumentError, ArgumentTypeError, DTypeError, FileError, ShapeError
from distarray.io import _stored
from distarray.layout import Layout, Partial, Replicate, Shard
from tests.array.strategies import Case, cases, on_ranks
from tests.io.memory_maps import open_map
from tests.on_device import host


def stored(kind: str, folder: Path, case: Case, chunks: tuple[int, ...]) -> Any:
    """Return what opens an array for a rank (of its mesh, by position), and its final value."""
    value = case.value
    if kind == "zarr":
        zarr.create_array(folder / "x", shape=value.shape, dtype=value.dtype, chunks=chunks)
        return lambda position: zarr.open_array(folder / "x", mode="r+"), lambda: zarr.open_array(
            folder / "x", mode="r"
        )[...]
    if kind == "memory map":
        np.lib.format.open_memmap(folder / "x", "w+", value.dtype, value.shape)
        return lambda position: open_map(folder / "x", "r+"), lambda: np.load(folder / "x")
    file = h5py.File(folder / "x", "w")
    dataset = file.create_dataset("x", value.shape, value.dtype)
    last = {"h5py on the first": 0, "h5py on the last": -1}[kind]

    def read() -> np.ndarray:
        file.close()
        with h5py.File(folder / "x") as again:
            return again["x"][...]

    def target(x: da.DistArray) -> Any:
        return dataset if x.mesh.rank == x.mesh.flat_ranks[last] else None

    return target, read


@pytest.mark.parametrize("kind", ["zarr", "memory map", "h5py on the first", "h5py on the last"])
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_any_layout_is_written(kind: str, data: st.DataObject) -> None:
    case = data.draw(cases(("f8", "i4", "c16", "?"), ("sum",)))
    chunks = tuple(data.draw(st.integers(1, 4)) for _ in case.shape)
    if kind == "memory map" and 0 in case.shape:
        return  # NumPy maps no file of no items
    with tempfile.TemporaryDirectory() as folder:
        target, read = stored(kind, Path(folder), case, chunks)

        def program() -> None:
            x = case.build()
            da.store(x, target(x))

        on_ranks(program)
        np.testing.assert_array_equal(read(), case.value)


@given(cases(("f8",)), st.data())
@settings(max_examples=20, deadline=None)
def test_no_two_ranks_write_to_one_chunk(case: Case, data: st.DataObject) -> None:
    chunks = tuple(data.draw(st.integers(1, 4)) for _ in case.shape)

    def program() -> Any:
        layout = case.layout()
        found = _stored._aligned_layout(layout, chunks)
        assert not found.has_partial
        box = found.local_box()
        if box is None or not case.shape:
            return set()
        touched = [
            range(start // n, -(-stop // n)) if stop > start else ()
            for (start, stop), n in zip(box, chunks, strict=True)
        ]
        return {
            tuple(map(int, one))
            for one in np.ndindex(*map(len, touched))
            for one in [tuple(t[i] for t, i in zip(touched, one, strict=True))]
        }

    of_ranks = on_ranks(program)
    assert sum(map(len, of_ranks)) == len(set().union(*of_ranks))


def test_shards_of_zarr_are_written_whole(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((37, 10))
    zarr.create_array(tmp_path / "x", shape=values.shape, dtype="f8", chunks=(2, 5), shards=(8, 10))

    def program() -> int:
        x = da.distribute_array(values, None, [Shard(0)], src=None)
        with CommLog() as log:
            da.store(x, zarr.open_array(tmp_path / "x", mode="r+"))
        y = da.asarray(zarr.open_array(tmp_path / "x", mode="r"), placements=[Shard(1)])
        assert (host(y.full_array()) == values).all()
        return log.bytes()

    assert sum(on_ranks(program)) < 3 * 4 * 80 + 10_000  # edges of blocks, and what ranks tell


def test_one_rank_that_writes_gathers_a_bounded_part_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_stored, "_PIECE_BYTES", 4000)
    values = np.random.default_rng(0).random((100, 40))
    taken: list[tuple[int, ...]] = []

    class Target:
        shape, dtype = values.shape, np.dtype("f4")
        found = np.zeros(values.shape, "f4")

        def __setitem__(self, key: Any, part: np.ndarray) -> None:
            taken.append(part.shape)
            self.found[key] = part

    target = Target()

    def program() -> None:
        x = da.distribute_array(values, None, [Shard(0)], src=None)
        da.store(x, target if x.mesh.rank == 3 else None)

    on_ranks(program)
    assert (target.found == values.astype("f4")).all()
    assert max(np.prod(shape) for shape in taken) * 8 <= 4500
    assert len(taken) == 8


def test_datasets_opened_with_mpio_are_written_by_all_ranks_together() -> None:
    found = np.zeros((9, 4))

    class File:
        driver = "mpio"

    class Dataset:
        """What h5py built with MPI has of a dataset."""

        shape, dtype, chunks, file = found.shape, found.dtype, (2, 4), File()

        def __init__(self) -> None:
            self.entered = self.written = 0

        @property
        def collective(self) -> Any:
            return self

        def __enter__(self) -> None:
            self.entered += 1

        def __exit__(self, *_: object) -> None:
            pass

        def __setitem__(self, key: Any, part: np.ndarray) -> None:
            self.written += 1
            found[key] = part

    Dataset.__module__ = "h5py._hl.dataset"
    values = np.random.default_rng(0).random(found.shape)

    def program() -> None:
        x = da.distribute_array(values[:2], None, [Shard(0)], src=None)
        x = da.concat([x, da.asarray(values[2:])])
        target = Dataset()
        da.store(x, target)
        assert (target.entered, target.written) == (1, 1)

    on_ranks(program)
    assert (found == values).all()


@pytest.mark.parametrize("placements", [[Shard(0)], [Shard(1)], [Replicate()]])
def test_hdf5_and_zarr_are_read_by_slices(tmp_path: Path, placements: Any) -> None:
    values = np.random.default_rng(0).integers(0, 9, (7, 5))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = values
        file["scalar"] = 3.5
        file["names"] = ["Ada", "Blaise", "Emmy"]
        file["text"] = np.array([b"a", b"bc", b""], "S2")
    zarr.save_array(tmp_path / "x.zarr", values)

    def program() -> None:
        mesh = da.init_device_mesh((4,))
        with h5py.File(tmp_path / "x.h5") as file:
            for source in (file["x"], zarr.open_array(tmp_path / "x.zarr", mode="r")):
                x = da.asarray(source, mesh=mesh, placements=placements)
                assert x.placements == tuple(placements)
                assert (host(x.full_array()) == values).all()
            assert float(da.asarray(file["scalar"])) == 3.5
            y = da.asarray(file["text"], mesh=mesh.on("cpu"))
            assert y.full_array().tolist() == [b"a", b"bc", b""]
            for source in (file["names"], file["names"].asstr()):
                with pytest.raises(DTypeError, match=r"pass dataset\.astype\('S8'\)"):
                    da.asarray(source, mesh=mesh)
            z = da.asarray(file["names"].astype("S8"), mesh=mesh.on("cpu"))
            assert z.full_array().tolist() == [b"Ada", b"Blaise", b"Emmy"]

    on_ranks(program)


def test_what_cannot_take_the_array_is_refused_on_all_ranks(tmp_path: Path) -> None:
    paths = [tmp_path / "x.npy", tmp_path / "y.npy"]
    for path in paths:
        np.save(path, np.zeros((4, 2)))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        dataset = file.create_dataset("x", (4, 2), "f8")

        def program() -> None:
            x = da.ones((4, 2))
            rank = x.mesh.rank
            with pytest.raises(ArgumentTypeError, match="0 of 4 processes"):
                da.store(x, None)
            with pytest.raises(ArgumentTypeError, match="2 of 4 processes"):
                da.store(x, dataset if rank < 2 else None)
            with pytest.raises(ArgumentError, match="driver='mpio'"):
                da.store(x, dataset)
            with pytest.raises(ArgumentError, match="not known to take it"):
                da.store(x, np.zeros((4, 2)))
            with pytest.raises(ShapeError, match="resize"):
                da.store(x[1:], dataset if rank == 1 else None)
            with pytest.raises(DTypeError, match="astype"):
                da.store(x * 1j, dataset if rank == 1 else None)
            with pytest.raises(ArgumentTypeError, match="takes what has a shape"):
                da.store(x, [1, 2] if rank == 1 else None)
            with pytest.raises(ArgumentTypeError, match="DistArray"):
                da.store(np.ones((4, 2)), dataset)
            mapped = open_map(paths[0], "r+")
            for target in (zarr.zeros((4, 2)), mapped.copy(), open_map(paths[0], "c")):
                with pytest.raises(ArgumentError, match="memory of one process"):
                    da.store(x, target)
            with pytest.raises(ArgumentError, match="different targets"):
                da.store(x, open_map(paths[rank > 0], "r+"))
            assert float(x.sum()) == 8

        on_ranks(program)
        assert not dataset[...].any()
        assert not any(np.load(path).any() for path in paths)


class Stored:
    """An array elsewhere: not to be read on one rank, or with slices of another dtype."""

    shape, dtype = (9, 2), np.dtype("f8")

    def __init__(self, fails: bool, scale: Any = 1.0) -> None:
        self._fails, self._scale = fails, scale

    def __getitem__(self, key: Any) -> np.ndarray:
        if self._fails:
            raise OSError(5, "Input/output error")
        return np.arange(18.0).reshape(9, 2)[key] * self._scale


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()])
def test_a_failing_read_is_raised_on_all_ranks(placement: Any) -> None:
    def program() -> None:
        mesh = da.init_device_mesh((4,))
        for error, fails, scale in ((FileError, 2, 1.0), (ArgumentError, 4, 1j)):
            source = Stored(mesh.rank == fails, scale)
            for src in (None, 2):
                with pytest.raises(error, match=r"Input/output|complex128"):
                    da.distribute_array(source, mesh, [placement], src=src)
        x = da.distribute_array(Stored(mesh.rank != 2), mesh, [placement], src=2)
        assert float(x.sum()) == 153

    on_ranks(program)


def test_a_failing_write_is_raised_on_all_ranks(tmp_path: Path) -> None:
    class Full:
        shape, dtype = (4, 2), np.dtype("f8")

        def __setitem__(self, key: Any, part: Any) -> None:
            raise OSError(28, "No space left on device")

    def program() -> None:
        x = da.ones((4, 2))
        with pytest.raises(FileError, match="No space left"):
            da.store(x, Full() if x.mesh.rank == 1 else None)
        path = tmp_path / "x.npy"
        if x.mesh.rank == 0:
            np.save(path, np.zeros((4, 2)))
        assert float(x.sum()) == 8
        target = open_map(path, "r" if x.mesh.rank == 2 else "r+")
        with pytest.raises(FileError, match="read-only"):
            da.store(x, target)

    on_ranks(program)


def test_aligned_layouts_move_edges_alone() -> None:
    mesh = da.AbstractMesh((4,))
    layout = Layout(mesh, [Shard(0)], (1000, 3))
    found = _stored._aligned_layout(layout, (32, 3))
    assert found.boundaries == {0: (0, 256, 512, 736, 1000)}
    partial = Layout(mesh, [Partial()], (10, 3000))
    assert _stored._aligned_layout(partial, (10, 100)).placements == (Shard(1),)
