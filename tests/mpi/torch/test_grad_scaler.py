"""Loss scaling under real MPI: an overflow in one rank's block makes all ranks skip the step."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60)]

WIDTH, HIDDEN = 4, 7


@pytest.fixture(scope="module")
def mesh():
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    yield da.init_device_mesh((comm.size,), ("tp",), comm=comm)
    comm.Barrier()


def _trained(model, x, scaler, clip):
    """Return the scales of four steps; the last row of the first weight overflows in the second."""
    optimizer = torch.optim.AdamW(model.parameters(), 0.05)
    weight = model[0].weight
    layout = dt.layout_of(weight)
    last = len(weight) - 1 if layout is None else HIDDEN - 1 - layout.local_box()[0][0]
    scales = []
    for step in range(4):
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        if step == 1 and 0 <= last < len(weight):
            weight.grad[last] = float("nan")
        scaler.unscale_(optimizer)
        clip(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


def test_all_ranks_skip_as_one_process_does(mesh):
    generator = torch.Generator().manual_seed(4)
    model = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, WIDTH))
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    x = torch.randn(3, WIDTH, generator=generator)
    plan = {"0": dt.ColwiseParallel(), "2": dt.RowwiseParallel()}
    mine = dt.parallelize_module(copy.deepcopy(model), mesh, plan)
    options = {"init_scale": 16.0, "growth_interval": 2}
    wanted = _trained(model, x, torch.amp.GradScaler("cpu", **options), nn.utils.clip_grad_norm_)
    assert wanted == [16, 8, 8, 16]
    given = _trained(mine, x, dt.GradScaler(mesh, "cpu", **options), dt.clip_grad_norm_)
    assert given == wanted
    for name, value in dt.state_dict(mine).items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-4, atol=1e-5)
