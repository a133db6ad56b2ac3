""".npy files: NumPy reads what all ranks write, in any layout, and the other way round."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib import format as npy

import distarray as da
from distarray.checkpoint import _whole_arrays
from distarray.checkpoint.storage import _files
from distarray.comm import CommLog
from distarray.core import parsing
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    FileError,
    MismatchError,
    PlacementError,
)
from distarray.layout import Layout, Partial, Replicate, Shard
from tests.array.strategies import KIND, MESH_SHAPES, Case, cases, on_ranks, shapes, special_cases
from tests.on_device import host

TEXT = ("U3", "S2", "M8[ns]", "m8[s]", ">f8", ">i2") if KIND == "cpu" else ()
RECORD = np.dtype([("a", "<i2"), ("b", ">f8", (2,)), ("text", "U2")])


@given(
    st.one_of(cases(("f8", "i4"), ("sum", "max")), special_cases(("f4", "?", "c16", "u1", *TEXT)))
)
@settings(max_examples=15, deadline=None)
def test_any_layout_gives_the_file_that_numpy_writes(case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.npy"

        def save() -> None:
            x = case.build()
            assert (np.save if x.size % 2 else da.save)(path, x) is None

        on_ranks(save)
        assert os.listdir(folder) == ["x.npy"]
        there = Path(folder) / "there.npy"
        np.save(there, np.ascontiguousarray(case.value).reshape(case.shape))
        assert path.read_bytes() == there.read_bytes()


@given(shapes(), st.data())
@settings(max_examples=15, deadline=None)
def test_any_layout_loads_what_numpy_wrote(shape: tuple[int, ...], data: st.DataObject) -> None:
    case = data.draw(cases(("f8", "i2", "?", "c16", *TEXT[:3:2]), shape=shape))
    version = data.draw(st.sampled_from([None, (1, 0), (2, 0), (3, 0)]))
    order = data.draw(st.sampled_from("CF"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.npy"
        with path.open("wb") as file:
            npy.write_array(file, np.array(case.value, order=order), version)

        def program() -> None:
            layout = case.layout()
            y = da.load(path, mesh=layout.mesh, placements=case.placements)
            assert y.placements == layout.placements
            assert y.dtype == case.value.dtype
            assert y.to_local().shape == y.layout.local_shape()
            if y.mesh.coordinate is not None:
                np.testing.assert_array_equal(host(y.full_array()), case.value)

        on_ranks(program)


@pytest.mark.skipif(KIND != "cpu", reason="structures stay on the host")
@pytest.mark.parametrize("names", [("a", "b"), ("\u00e4", "\u20ac")])
def test_structures_and_names_of_any_script(tmp_path: Path, names: tuple[str, str]) -> None:
    dtype = np.dtype([(names[0], "<i2"), (names[1], ">f8", (2,)), ("text", "U2")], align=True)
    values = np.zeros(7, dtype)
    values[names[0]] = np.arange(7)
    values["text"] = "\u20ac"
    np.save(tmp_path / "there.npy", values) if "\u20ac" not in names else None

    def program() -> None:
        x = da.distribute_array(values, da.init_device_mesh((4,)), [Shard(0)])
        da.save(tmp_path / "x.npy", x)
        y = da.load(tmp_path / "x.npy")
        assert y.dtype == dtype
        assert (y.full_array() == values).all()

    on_ranks(program)
    found = np.load(tmp_path / "x.npy")
    assert found.dtype == dtype
    assert (found == values).all()


def test_suffix_lists_and_links(tmp_path: Path) -> None:
    (tmp_path / "real.npy").write_bytes(b"old")
    (tmp_path / "link.npy").symlink_to("real.npy")

    def program() -> None:
        da.save(tmp_path / "x", [1, 2, 3])
        da.save(str(tmp_path / "link.npy"), da.ones((2, 2)))

    on_ranks(program)
    assert np.load(tmp_path / "x.npy").tolist() == [1, 2, 3]
    assert (tmp_path / "link.npy").is_symlink()
    assert np.load(tmp_path / "real.npy").tolist() == [[1, 1], [1, 1]]


def test_rows_are_written_and_read_where_they_are(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((4000, 80))  # 320 KB a rank

    def program() -> list[int]:
        mesh = da.init_device_mesh((2, 2))
        logs = []
        for placements in ([Shard(0), Shard(0)], [Shard(0), Replicate()], [Replicate()] * 2):
            x = da.distribute_array(values, mesh, placements, src=None)
            with CommLog() as log:
                da.save(tmp_path / "x.npy", x)
            with CommLog() as more:
                y = da.load(tmp_path / "x.npy", mesh=mesh, placements=placements)
            assert (y.to_local() == x.to_local()).all()
            logs.append(log.bytes())
            if placements[1] is Shard(0):  # copies are read once, and sent
                logs.append(more.bytes())
        return logs

    assert all(n < 10_000 for one in on_ranks(program) for n in one)  # what ranks tell each other


def test_columns_are_brought_to_rows_first_and_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.default_rng(0).random((3000, 400))  # 9.6 MB: 100 columns have 800 B a row
    writes: list[str] = []
    monkeypatch.setattr(_files, "hook", lambda operation, _: writes.append(operation))

    def program() -> list[int]:
        x = da.distribute_array(values, None, [Shard(1)], src=None)
        with CommLog() as log:
            da.save(tmp_path / "x.npy", x)
        with CommLog() as more:
            y = da.load(tmp_path / "x.npy", placements=[Shard(1)])
        assert (y.to_local() == x.to_local()).all()
        return [log.bytes(), more.bytes()]

    block = values.nbytes // 4
    for logged in on_ranks(program):
        assert all(0.7 * block < n < 0.8 * block for n in logged)
    assert writes.count("write") < 20
    assert (np.load(tmp_path / "x.npy") == values).all()


@given(st.sampled_from(MESH_SHAPES), shapes(), st.data())
@settings(max_examples=50, deadline=None)
def test_layouts_to_write_in_hold_every_item(mesh_shape: Any, shape: Any, data: Any) -> None:
    places = [Replicate(), *(Shard(axis) for axis in range(len(shape)))]
    layout = Layout(
        da.AbstractMesh(mesh_shape), [data.draw(st.sampled_from(places)) for _ in mesh_shape], shape
    )
    itemsize = data.draw(st.sampled_from([1, 8, 1 << 14]))
    found = _whole_arrays.writing_layout(layout, itemsize)
    assert found.shape == shape
    if found is not layout:
        axis = found.placements[0].axis
        assert shape[axis] >= found.mesh.size
        assert axis < max(p.axis for p in layout.placements if type(p) is Shard)


def test_a_failure_on_one_rank_is_all_ranks_and_leaves_what_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    failing: set[str] = set()

    def hook(operation: str, path: str) -> None:
        if operation in failing and operation == "rename":
            raise OSError(28, "No space left on device", path)
        if operation in failing and operation == "write" and da.default_mesh().rank == 2:
            raise OSError(28, "No space left on device", path)

    monkeypatch.setattr(_files, "hook", hook)

    def program() -> None:
        x = da.ones((400, 400))
        with pytest.raises(FileError, match="No space left"):
            da.save(tmp_path / "x.npy", x)
        assert float(x.sum()) == 160_000  # all ranks are in step

    for operation in ("write", "rename"):
        failing.clear()
        failing.add(operation)
        on_ranks(program)
        assert os.listdir(tmp_path) == ["x.npy"]
        assert np.load(tmp_path / "x.npy").tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("content", "error", "says"),
    [
        (None, FileError, "cannot be opened: No such file"),
        (b"", FileError, "is no .npy file"),
        (b"PK\x03\x04", FileError, "extract"),
        (b"\x89HDF\r\n\x1a\n", FileError, r"da\.asarray\(dataset\)"),
        (b"\x93NUMPY\x01\x00\x0c\x00{'shape': (3\n", FileError, "damaged"),
        (
            b"\x93NUMPY\x01\x00\x3b\x00"
            b"{'descr': '<f8', 'fortran_order': False, 'shape': (True,)}\n" + bytes(8),
            FileError,
            "damaged: an integer is required",
        ),
        ("truncated", FileError, "damaged"),
        ("objects", DTypeError, "Python objects"),
        ("header", FileError, "max_header_size"),
    ],
)
def test_what_is_no_file_of_numbers_is_refused_alike(
    tmp_path: Path, content: Any, error: type[Exception], says: str
) -> None:
    path = tmp_path / "x.npy"
    if content == "truncated":
        np.save(path, np.zeros(100))
        path.write_bytes(path.read_bytes()[:-8])
    elif content == "objects":
        np.save(path, np.array([None, 1]), allow_pickle=True)
    elif content == "header":
        np.save(path, np.zeros(3, [(f"field {i}", "f8") for i in range(1000)]))
    elif content is not None:
        path.write_bytes(content)

    def program() -> None:
        with pytest.raises(error, match=says):
            da.load(path)

    on_ranks(program)


def test_wrong_arguments_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    def program() -> None:
        x = da.ones(3)
        rank = da.default_mesh().rank
        with pytest.raises(MismatchError, match="paths or options differ"):
            da.save(tmp_path / f"x{rank}.npy", x)
        with pytest.raises(MismatchError, match="paths or options differ"):
            da.load(tmp_path / "x.npy", placements=[Shard(0) if rank else Replicate()])
        with pytest.raises(ArgumentTypeError, match="must be a sequence"):
            da.load(tmp_path / "x.npy", placements=Shard(0))
        with pytest.raises(ArgumentTypeError, match="path="):
            da.save(7, x)
        with pytest.raises(ArgumentTypeError, match="max_header_size"):
            da.load(tmp_path / "x.npy", max_header_size="long")
        with pytest.raises(ArgumentError, match="mmap_mode"):
            da.load(tmp_path / "x.npy", mmap_mode="r")
        with pytest.raises(DTypeError, match="objects"):
            da.save(tmp_path / "x.npy", np.array([None]))
        with pytest.raises(FileError, match=r"there is no directory .*missing"):
            da.save(tmp_path / "missing" / "x.npy", x)

    on_ranks(program)
    assert os.listdir(tmp_path) == []


def test_a_partial_load_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3))

    def program() -> None:
        with pytest.raises(PlacementError, match="Partial"):
            da.load(tmp_path / "x.npy", placements=[Partial()])

    on_ranks(program)


def test_headers_are_parsed_by_one_thread_at_a_time(tmp_path, monkeypatch) -> None:
    value, parsed = np.arange(12.0).reshape(4, 3), []
    np.save(tmp_path / "x.npy", value)

    def open_memmap(*args: Any, **kwargs: Any) -> Any:
        parsed.append(parsing.locked())
        return plainly(*args, **kwargs)

    plainly = npy.open_memmap
    monkeypatch.setattr(npy, "open_memmap", open_memmap)

    def program() -> None:
        assert np.array_equal(host(da.load(tmp_path / "x.npy").full_array()), value)

    on_ranks(program)
    assert parsed
    assert all(parsed)
