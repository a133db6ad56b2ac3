"""Moves of tensors under real MPI: within a node, between nodes, and mixed."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import DTypeError, LayoutError, MismatchError  # noqa: E402
from distarray.layout import Layout  # noqa: E402
from tests.torch.moves_that_differ import DIFFERENT, here  # noqa: E402

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60)]
R, P, S = da.Replicate(), da.Partial(), da.Shard


@pytest.fixture(scope="module", params=["one node", "a node per rank", "two ranks a node"])
def mesh(request):
    from mpi4py import MPI

    per_node = {"one node": 0, "a node per rank": 1, "two ranks a node": 2}[request.param]
    with pytest.MonkeyPatch.context() as patch:
        if per_node:
            if MPI.COMM_WORLD.size <= per_node:
                pytest.skip("all ranks are on one node")
            patch.setenv("DISTARRAY_RANKS_PER_NODE", str(per_node))
        comm = MPI.COMM_WORLD.Dup()
        yield da.init_device_mesh((comm.size,), comm=comm)
        comm.Barrier()


def values(dtype, *shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


HALF = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("size", [7, 3000, 100_000])  # in a slot, in a few, in the arena
@pytest.mark.parametrize("op", ["sum", "avg", "min", "max"])
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_half_precision_is_reduced_in_float32_and_rounded_once(mesh, dtype, op, size):
    n = mesh.size
    parts = [values(dtype, size, seed=rank) for rank in range(n)]
    wide = torch.stack([part.float() for part in parts])
    if op in ("sum", "avg"):
        whole = torch.zeros(size)
        for part in wide:
            whole = whole + part
        whole = whole / n if op == "avg" else whole
        # Nodes may add up first: another order of float32 sums, rounded once all the same.
        ulp = torch.finfo(dtype).eps
        room = {"rtol": ulp, "atol": 1e-6} if n > 2 else {"rtol": 0, "atol": 0}
    else:
        whole = wide.amin(0) if op == "min" else wide.amax(0)
        room = {"rtol": 0, "atol": 0}
    expected = whole.to(dtype)
    own = parts[mesh.rank]
    found = dt.redistribute(own, mesh, [da.Partial(op)], [R])
    assert found.dtype is dtype
    torch.testing.assert_close(found, expected, **room)
    cut = dt.redistribute(own, mesh, [da.Partial(op)], [S(0)])
    (start, stop), *_ = dt.layout_of(cut).local_box()
    torch.testing.assert_close(cut, expected[start:stop], **room)
    again = dt.redistribute(cut, mesh, [S(0)], [R], shape=(size,))
    assert torch.equal(again, dt.redistribute(cut, mesh, [S(0)], [R]))
    torch.testing.assert_close(again, expected, **room)
    back = dt.redistribute(cut, mesh, [S(0)], [da.Partial(op)], shape=(size,))
    assert torch.equal(dt.redistribute(back, mesh, [da.Partial(op)], [R]), again)


@pytest.mark.parametrize("op", ["sum", "min", "max"])
def test_bfloat16_keeps_what_is_not_a_number(mesh, op):
    own = torch.tensor([1.0, float("nan"), float("inf"), -0.0]).bfloat16()
    if mesh.rank:
        own = own.new_tensor([1.0, 2.0, 3.0, -0.0])
    found = dt.redistribute(own, mesh, [da.Partial(op)], [R]).float()
    assert found[1].isnan()
    wanted = {"sum": mesh.size, "min": 1.0, "max": 1.0}[op]
    assert found[0] == wanted


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.int64, torch.complex64], ids=str)
def test_other_dtypes(mesh, dtype):
    n = mesh.size
    whole = (values(torch.float64, 2 * n + 1, 3) * 5).to(dtype)
    src = Layout(mesh, [S(0)], whole.shape)
    (start, stop), _ = src.local_box()
    own = whole[start:stop].clone()
    across = dt.redistribute(own, mesh, [S(0)], [S(1)])
    (start, stop) = dt.layout_of(across).local_box()[1]
    assert torch.equal(across, whole[:, start:stop])
    assert torch.equal(dt.redistribute(across, mesh, [S(1)], [R]), whole)
    summed = dt.redistribute(whole, mesh, [P], [R])
    assert torch.equal(summed, whole if dtype is torch.bool else whole * n)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [5, 60_000])
def test_gradients_cross_nodes(mesh, dtype, size):
    n = mesh.size
    full = values(dtype, size, 3)
    src = Layout(mesh, [S(0)], full.shape)
    start, stop = src.local_box()[0]
    x = full[start:stop].clone().requires_grad_()
    with da.CommLog() as log:
        y = dt.redistribute(x, mesh, [S(0)], [R], grad_placements=[P])
        (y * (mesh.rank + 1)).sum().backward()
    assert torch.equal(y, full)
    assert torch.equal(x.grad, torch.full_like(x, n * (n + 1) / 2))
    if n > 1:
        assert log.count() == log.count("all_gather") + log.count("reduce_scatter") == 2


def test_the_background_serves_another_thread_of_autograd(mesh):
    x = values(torch.float64, 40, 30, seed=mesh.rank).requires_grad_()
    pending = [dt.redistribute(x, mesh, [P], [dst], async_op=True) for dst in (R, S(0), S(1))]
    dt.redistribute(x, mesh, [P], [R], async_op=True)  # dropped
    results = [one.wait() for one in reversed(pending)]
    for y, dst in zip(reversed(results), (R, S(0), S(1)), strict=True):
        assert torch.equal(y, dt.redistribute(x, mesh, [P], [dst]))
    sum(y.sum() for y in results).backward()
    assert torch.equal(x.grad, torch.full_like(x, 3))


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("what", DIFFERENT)
def test_ranks_that_differ_all_raise_and_go_on(mesh, what, background):
    if mesh.size == 1:
        pytest.skip("one rank agrees with itself")
    odd = mesh.rank == mesh.size - 1
    (x, src, dst), options = DIFFERENT[what](odd)
    if "shape" in options:
        options = {"shape": (4 * mesh.size if src == [S(0)] else 4, 2)}
    with pytest.raises((MismatchError, LayoutError, DTypeError)):
        here(x, mesh, src, dst, background, options)
    # They are in step again.
    y = dt.redistribute(torch.full((3,), float(mesh.rank)), mesh, [P], [R])
    assert torch.equal(y, torch.full((3,), sum(range(mesh.size)) * 1.0))
    y = dt.redistribute(torch.full((2,), float(mesh.rank)), mesh, [S(0)], [R])
    assert torch.equal(y, torch.from_numpy(np.repeat(np.arange(mesh.size), 2)).float())
