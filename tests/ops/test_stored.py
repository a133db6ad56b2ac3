"""Arrays that are stored somewhere are read by slices: each rank reads its own box and no more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distarray.array._array import distribute_array
from distarray.comm import DeviceMesh, default_mesh
from distarray.errors import ArgumentError, ArgumentTypeError, DTypeError
from distarray.layout import Replicate, Shard
from distarray.layout import box as boxes
from distarray.ops.creation._asarray import asarray
from distarray.testing import simulate
from tests.array.strategies import Case, agrees, cases, on_ranks
from tests.io.memory_maps import open_map

R, S0, S1 = Replicate(), Shard(0), Shard(1)


class Stored:
    """An array in a file, which notes what is read of it."""

    def __init__(self, values: np.ndarray) -> None:
        self.shape, self.dtype = values.shape, values.dtype
        self.values = values
        self.read: list[Any] = []

    def __getitem__(self, key: Any) -> Any:
        self.read.append(key)
        return self.values[key]

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise AssertionError("all of it is read")


@settings(max_examples=50)
@given(data=st.data())
def test_each_rank_reads_its_own_box_once(data: st.DataObject) -> None:
    case: Case = data.draw(cases((np.float64, np.int32, np.bool_), ("sum", "avg")))
    if case.op is not None and case.values.dtype == bool:
        return
    whole = case.values[0]

    def program() -> None:
        layout = case.layout()
        for make in (asarray, lambda *a, **k: distribute_array(*a, **k, src=None)):
            stored = Stored(whole)
            x = make(stored, mesh=layout.mesh, placements=layout.placements)
            unsplit = x.layout.replace(
                placements=[R if p.is_partial() else p for p in x.placements]
            )
            box = unsplit.local_box()
            assert stored.read == ([] if box is None else [boxes.slices(box)])
            if case.op == "avg" and make is not asarray:
                agrees(x, whole.astype(np.result_type(whole, np.float64)))
            elif case.op != "avg":
                agrees(x, whole)
            if x.to_local().size:
                assert not np.may_share_memory(x.to_local(), whole)

    on_ranks(program)


def test_the_source_alone_reads_what_it_sends_and_that_once() -> None:
    def program() -> None:
        rank = default_mesh().rank
        stored = Stored(np.arange(30.0).reshape(10, 3))
        for placements in ([S0], [S1], [R]):
            stored.read.clear()
            x = distribute_array(stored if rank == 1 else None, None, placements, src=1)
            agrees(x, stored.values)
            blocks = [x.layout.local_box((r,)) or () for r in range(3)]
            whole = [((0, 10), (0, 3))]  # which is sent as it lies, where the blocks follow it
            expected = [boxes.slices(one) for one in (blocks if placements == [S1] else whole)]
            assert stored.read == (expected if rank == 1 else [])

    simulate(3, program)


def test_stored_values_are_converted_and_checked_on_every_rank() -> None:
    class Sparse(Stored):
        def __getitem__(self, key: Any) -> Any:
            return self.values[(0, *key[1:])]

    class Masked(Stored):
        def __getitem__(self, key: Any) -> Any:
            return np.ma.MaskedArray(self.values[key])

    def program() -> None:
        whole = np.arange(6.0).reshape(2, 3)  # of which the third rank has nothing
        agrees(asarray(Stored(whole), dtype=np.float32), whole.astype(np.float32))
        with pytest.raises(ArgumentError, match="copy=False"):
            asarray(Stored(whole), copy=False)
        with pytest.raises(ArgumentError, match=r"Sparse.*np\.asarray"):
            asarray(Sparse(whole))
        with pytest.raises(ArgumentTypeError, match="MaskedArray"):
            asarray(Masked(whole))
        with pytest.raises(DTypeError, match="objects"):
            asarray(Stored(whole.astype(object)))

    simulate(3, program)


def test_files_are_read_by_every_rank_for_itself(tmp_path: Any) -> None:
    h5py, zarr = pytest.importorskip("h5py"), pytest.importorskip("zarr")
    whole = np.random.default_rng(3).random((9, 4))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["values"], file["one"] = whole, 7.0
    zarr.save_array(str(tmp_path / "a.zarr"), whole)
    np.save(tmp_path / "a.npy", whole)

    def program() -> None:
        mesh = DeviceMesh([[0, 1], [2, 3]])
        mapped = open_map(tmp_path / "a.npy", "r")
        with h5py.File(tmp_path / "a.h5", "r") as file:
            for stored in (file["values"], zarr.open_array(str(tmp_path / "a.zarr")), mapped):
                for placements in ([S0, S1], [S1, R], [S0, S0]):
                    x = asarray(stored, mesh=mesh, placements=placements)
                    agrees(x, whole)
                    x += 1  # its own memory
                    agrees(distribute_array(stored, mesh, placements), whole)
            agrees(asarray(file["one"]), np.asarray(7.0))

    simulate(4, program)
