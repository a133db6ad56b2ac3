"""PETSc's vectors and matrices: what petsc4py is asked for, and what comes back.

Where petsc4py is installed `test_memory_is_shared` tries it. Elsewhere the others have a stand-in,
which checks arguments as petsc4py takes them, shares memory as it does, and computes nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray.comm import DeviceMesh
from distarray.errors import (
    ArgumentTypeError,
    DTypeError,
    MeshError,
    PlacementError,
    ShapeError,
)
from distarray.testing import simulate

pytestmark = pytest.mark.host_only


class Rows:
    """What both have, of one process's rows."""

    def getComm(self) -> Any:
        return SimpleNamespace(tompi4py=lambda: self.comm)

    def getOwnershipRanges(self) -> np.ndarray:
        return np.cumsum([0, *self.comm.lengths], dtype=np.int32)


class Vec(Rows):
    def createWithArray(self, array: Any, size: Any, comm: Any) -> Vec:
        local, self.rows = size
        assert array.flags.c_contiguous
        assert array.dtype == np.float64
        assert array.flags.writeable
        assert array.shape == (local,)
        self.memory, self.comm = array, comm
        return self

    def getArray(self) -> np.ndarray:
        return self.memory

    def getSize(self) -> int:
        return self.rows


class Mat(Rows):
    def createDense(self, size: Any, array: Any, comm: Any) -> Mat:
        (local, self.rows), self.columns = size
        assert array.flags.f_contiguous
        assert array.shape == (local, self.columns)
        self.memory, self.comm, self.kind = array, comm, "mpidense"
        return self

    def assemble(self) -> None:
        self.assembled = True

    def getType(self) -> str:
        return self.kind

    def getSize(self) -> Any:
        return self.rows, self.columns

    def getDenseArray(self) -> np.ndarray:
        return self.memory


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    module, parent = ModuleType("petsc4py.PETSc"), ModuleType("petsc4py")
    module.Vec, module.Mat, module.ScalarType = Vec, Mat, np.float64
    monkeypatch.setitem(sys.modules, "petsc4py", parent)
    monkeypatch.setitem(sys.modules, "petsc4py.PETSc", module)
    mpi = SimpleNamespace(
        Comm=SimpleNamespace(Compare=lambda a, b: 0 if a == b else 3), IDENT=0, CONGRUENT=1
    )
    found = importlib.import_module
    monkeypatch.setattr(
        importlib, "import_module", lambda name: mpi if name == "mpi4py.MPI" else found(name)
    )

    def comm(mesh: Any) -> Any:
        return SimpleNamespace(mesh=mesh, lengths=LENGTHS[mesh.size])

    monkeypatch.setattr(DeviceMesh, "comm", comm)


LENGTHS = {1: [7], 3: [3, 3, 1], 4: [2, 2, 2, 1]}


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("shape", [(3,), (4,), (2, 2), (1, 3)])
@pytest.mark.parametrize("columns", [(), (2,)])
def test_arguments_are_those_of_petsc4py_and_memory_is_shared(shape: Any, columns: Any) -> None:
    def program() -> None:
        mesh = da.init_device_mesh(shape)
        value = np.arange(7.0 * (columns or (1,))[0]).reshape(7, *columns)
        x = da.distribute_array(value, mesh, [da.Shard(0)] * mesh.ndim, src=None)
        if columns:
            x = x.copy(order="F")
        petsc = x.to_petsc()
        if mesh.coordinate is None:
            assert petsc is None
            return
        assert petsc.rows == 7
        assert np.shares_memory(petsc.memory, x.to_local()) or not x.to_local().size
        back = da.from_petsc(petsc, mesh)
        assert back.layout == x.layout
        np.testing.assert_array_equal(np.asarray(back), value)
        back.to_local()[...] = 5
        np.testing.assert_array_equal(x.to_local(), 5)
        if columns:
            assert petsc.assembled
            copied = da.distribute_array(value, mesh, x.placements, src=None).to_petsc()
            np.testing.assert_array_equal(np.asarray(da.from_petsc(copied, mesh)), value)

    simulate(4, program)


@pytest.mark.usefixtures("stand_in")
def test_what_petsc_cannot_hold_is_refused() -> None:
    def program() -> None:
        mesh = da.init_device_mesh((2, 2))
        both = [da.Shard(0), da.Shard(0)]
        for placements in (
            [da.Replicate(), da.Shard(0)],
            [da.Shard(0), da.Partial()],
            [da.Shard(0), da.Replicate()],
        ):
            with pytest.raises(PlacementError, match="redistribute"):
                da.zeros(8, mesh=mesh, placements=placements).to_petsc()
        turned = da.zeros(8, mesh=mesh, placements=both).redistribute(both, shard_order=(1, 0))
        with pytest.raises(PlacementError, match="in the order of the processes"):
            turned.to_petsc()
        with pytest.raises(PlacementError):
            da.zeros((8, 8), mesh=mesh, placements=[da.Shard(0), da.Shard(1)]).to_petsc()
        with pytest.raises(ShapeError, match=r"\(2, 2, 2\)"):
            da.zeros((2, 2, 2)).to_petsc()
        with pytest.raises(DTypeError, match="float32; this PETSc is built for float64"):
            da.zeros(8, np.float32).to_petsc()
        fixed = da.ones(8)
        fixed.to_local().flags.writeable = False
        for part in (da.arange(20.0)[::2], fixed):
            memory = part.to_petsc().memory
            assert not np.shares_memory(memory, part.to_local())
            np.testing.assert_array_equal(memory, part.to_local())
        with pytest.raises(ArgumentTypeError, match="takes a Vec or a dense Mat"):
            da.from_petsc(np.zeros(3))
        sparse = Mat()
        sparse.kind = "mpiaij"
        with pytest.raises(ArgumentTypeError, match="of type 'mpiaij'"):
            da.from_petsc(sparse)
        with pytest.raises(MeshError, match="other processes than x"):
            da.from_petsc(da.zeros(7).to_petsc(), mesh)

    simulate(4, program)


def test_petsc4py_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "petsc4py", None)
    monkeypatch.setattr(DeviceMesh, "comm", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match="pip install petsc petsc4py"):
        da.zeros(3).to_petsc()
    with pytest.raises(ModuleNotFoundError, match="pip install petsc petsc4py"):
        da.from_petsc(None)


@pytest.mark.skipif(not importlib.util.find_spec("petsc4py"), reason="needs petsc4py")
def test_memory_is_shared() -> None:
    from petsc4py import PETSc

    x = da.arange(7.0).astype(PETSc.ScalarType)
    vec = x.to_petsc()
    vec.scale(2)
    np.testing.assert_array_equal(np.asarray(x), 2.0 * np.arange(7))
    back = da.from_petsc(vec)
    assert np.shares_memory(back.to_local(), x.to_local())
    matrix = da.ones((4, 3), PETSc.ScalarType).copy(order="F")
    dense = matrix.to_petsc()
    dense.scale(3)
    np.testing.assert_array_equal(np.asarray(matrix), np.full((4, 3), 3))
    np.testing.assert_array_equal(np.asarray(da.from_petsc(dense)), np.full((4, 3), 3))
