"""Replicas and resharded activations under real MPI."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(100)]

PLAN = {"0": dt.ColwiseParallel(), "2": dt.RowwiseParallel()}


def values(*shape, seed=7):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def mlp(width=6, hidden=9):
    layers = nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, width), nn.Linear(width, 3)
    model = nn.Sequential(*layers).double()
    for i, parameter in enumerate(model.parameters()):
        parameter.data.copy_(values(*parameter.shape, seed=i) / 3)
    return model


@pytest.fixture(scope="module")
def world():
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    yield comm
    comm.Barrier()


@pytest.fixture(scope="module", params=["all", "rows and columns"])
def mesh(request, world):
    if request.param != "all" and world.size % 2:
        pytest.skip("an odd number of ranks makes no two columns")
    columns = 1 if request.param == "all" else 2
    return da.init_device_mesh((world.size // columns, columns), ("dp", "tp"))


def single_process(model, x, steps):
    twin = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(twin.parameters(), 0.03)
    for _ in range(steps):
        optimizer.zero_grad()
        twin(x).square().mean().backward()
        optimizer.step()
    return twin


def check(mine, twin):
    for (name, p), q in zip(mine.named_parameters(), twin.parameters(), strict=True):
        wanted, layout = q.detach(), dt.layout_of(p)
        if layout is not None:
            wanted = wanted[tuple(slice(a, b) for a, b in layout.local_box())]
        torch.testing.assert_close(
            p.detach(), wanted, rtol=1e-11, atol=1e-11, msg=lambda m, name=name: f"{name}: {m}"
        )


@pytest.mark.parametrize("width", [6, 300])  # the larger one's buckets are read in place
@pytest.mark.parametrize("bucket_bytes", [400, 25 << 20])
def test_training_is_that_of_one_process(mesh, width, bucket_bytes):
    model, x = mlp(width, width + 1), values(mesh["dp"].size * 4, 3, width)
    twin = single_process(model, x, 4)
    mine = dt.parallelize_module(copy.deepcopy(model), mesh["tp"], PLAN)
    dt.replicate(mine, mesh["dp"], bucket_bytes=bucket_bytes)
    dt.input_reshard(mine, mesh["tp"], 1)
    optimizer = torch.optim.AdamW(mine.parameters(), 0.03)
    part = x.chunk(mesh["dp"].size)[mesh.coordinate[0]]
    for step in range(4):
        optimizer.zero_grad(set_to_none=bool(step % 2))
        if step == 2:  # in two halves
            with dt.no_sync(mine):
                (mine(part[:2]).square().mean() / 2).backward()
            (mine(part[2:]).square().mean() / 2).backward()
        else:
            mine(part).square().mean().backward()
        optimizer.step()
    check(mine, twin)


def test_replicas_out_of_step_hear_of_it(mesh):
    axis = mesh["dp"]
    if axis.size == 1:
        pytest.skip("one replica agrees with itself")
    mine = dt.replicate(mlp(), axis)
    x = values(2, 6)
    if axis.coordinate[0] == 0:
        mine(x)
    with pytest.raises(da.errors.MismatchError, match="forward call"):
        mine(x).sum().backward()
    mine = dt.replicate(mlp(), axis)
    mine(x).sum().backward()


@pytest.mark.filterwarnings("ignore")  # of the compiler itself
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(mesh, backend):
    if backend == "eager" and mesh.size > 2:
        pytest.skip("a part of what the other backend compiles")
    if mesh.size > 3 and 1 in mesh.shape:
        pytest.skip("every rank compiles the same: two and three show it, four along both axes")
    model, x = mlp(), values(mesh["dp"].size * 4, 3, 6)
    twin = single_process(model, x, 2)
    mine = dt.parallelize_module(copy.deepcopy(model), mesh["tp"], PLAN)
    dt.replicate(mine, mesh["dp"], bucket_bytes=300)
    dt.input_reshard(mine, mesh["tp"], 1)
    run = torch.compile(mine, backend=backend)
    optimizer = torch.optim.AdamW(mine.parameters(), 0.03)
    part = x.chunk(mesh["dp"].size)[mesh.coordinate[0]]
    for _ in range(2):
        optimizer.zero_grad()
        run(part).square().mean().backward()
        optimizer.step()
    check(mine, twin)
    torch.compiler.reset()
