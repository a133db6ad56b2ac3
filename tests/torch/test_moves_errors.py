"""Moves that cannot be are refused, on all ranks where only one is wrong."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import ArgumentTypeError, DTypeError, LayoutError, MeshError, MismatchError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from tests.torch.moves_model import R, S, each  # noqa: E402
from tests.torch.moves_that_differ import DIFFERENT, here  # noqa: E402


def test_wrong_arguments_are_refused():
    def program(mesh):
        x = torch.ones(4, 2)
        with pytest.raises(LayoutError, match="leave shape= out"):
            dt.redistribute(x, mesh, [S(0)], [R], shape=(4, 2))
        with pytest.raises(LayoutError, match="cut where the tensor is"):
            dt.redistribute(x, mesh, [R], [S(0)], grad_placements=[R])
        with pytest.raises(LayoutError, match="cut where the tensor is"):
            dt.redistribute(x, mesh, [S(0)], [R], grad_placements=[S(1)])
        with pytest.raises(ArgumentTypeError, match="make one by"):
            dt.redistribute(x, da.AbstractMesh((2,)), [R], [R])
        with pytest.raises(ArgumentTypeError, match="no memory that MPI could send"):
            dt.redistribute(x.to("meta"), mesh, [S(0)], [R])
        with pytest.raises(ArgumentTypeError, match=r"dense torch tensor, not torch\.sparse_coo"):
            dt.redistribute(x.to_sparse(), mesh, [S(0)], [R])
        with pytest.raises(ArgumentTypeError, match="dense torch tensor, not list"):
            dt.redistribute([1.0], mesh, [S(0)], [R])
        with pytest.raises(DTypeError, match=r"float8.* cannot be sent"):
            dt.redistribute(x.to(torch.float8_e5m2), mesh, [S(0)], [R])
        with pytest.raises(DTypeError, match="band"):
            dt.redistribute(x, mesh, [da.Partial("band")], [R])
        single = da.DeviceMesh([1 - mesh.rank])
        with pytest.raises(MeshError, match="not in"):
            dt.redistribute(x, single, [R], [R])

    each(program)


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("what", DIFFERENT)
def test_ranks_that_differ_all_raise(what, background):
    def program(mesh):
        (x, src, dst), options = DIFFERENT[what](mesh.rank == 1)
        with pytest.raises((MismatchError, LayoutError, DTypeError)):
            here(x, mesh, src, dst, background, options)

    simulate(2, lambda: program(da.init_device_mesh((2,))))
