"""An overflow in one rank's block makes all ranks skip the step, as it would one process."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import ArgumentTypeError, CommunicationError, MismatchError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from tests.torch.programs import shard  # noqa: E402

WIDTH, HIDDEN = 4, 7
OPTIONS = {"init_scale": 8.0, "growth_interval": 2}
PLAN = {"0": dt.ColwiseParallel(), "2": dt.RowwiseParallel()}


def _setting():
    generator = torch.Generator().manual_seed(2)
    model = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, WIDTH))
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return model, torch.randn(4, WIDTH, generator=generator)


def _train(model, x, scaler, optimizer, overflow, *, explicit=False, clip=None):
    """Return scales and losses of some steps; ``overflow(step)`` spoils gradients."""
    seen = []
    for step in range(5):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        overflow(step)
        if explicit:
            scaler.unscale_(optimizer)
            clip(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        seen += [(scaler.get_scale(), loss.item())]
    return seen


def _spoil(weight, layout, where):
    """Make one item of the full gradient infinite, on the rank that has it."""
    start, stop = (0, weight.shape[0]) if layout is None else layout.local_box()[0]
    if start <= where < stop:
        weight.grad[where - start, 0] = float("inf")


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("shape", "where"), [((2,), 0), ((3,), 6), ((2, 2), 5)])
def test_all_skip_where_one_overflows(shape, where, explicit, fused):
    model, x = _setting()

    def optimizer_of(module):
        return torch.optim.AdamW(module.parameters(), 0.05, fused=fused)

    def overflow_in(module):
        def overflow(step):
            if step in (1, 3):
                _spoil(module[0].weight, dt.layout_of(module[0].weight), where)

        return overflow

    twin = copy.deepcopy(model)
    expected = _train(
        twin,
        x,
        torch.amp.GradScaler("cpu", **OPTIONS),
        optimizer_of(twin),
        overflow_in(twin),
        explicit=explicit,
        clip=nn.utils.clip_grad_norm_,
    )
    assert [scale for scale, _ in expected] == [8, 4, 4, 2, 2]

    def program():
        mesh = da.init_device_mesh(shape, ("dp", "tp")[-len(shape) :])
        mine = dt.parallelize_module(copy.deepcopy(model), mesh["tp"], PLAN)
        part = x
        if len(shape) > 1:
            dt.replicate(mine, mesh["dp"])
            part = shard(x, mesh["dp"])
        seen = _train(
            mine,
            part,
            dt.GradScaler(mesh, "cpu", **OPTIONS),
            optimizer_of(mine),
            overflow_in(mine),
            explicit=explicit,
            clip=dt.clip_grad_norm_,
        )
        assert [scale for scale, _ in seen] == [scale for scale, _ in expected]
        whole = dt.state_dict(mine)
        for name, value in twin.state_dict().items():
            torch.testing.assert_close(whole[name], value, rtol=1e-4, atol=1e-5)
        return [loss for _, loss in seen]

    losses = torch.tensor(simulate(torch.Size(shape).numel(), program)).mean(0)
    wanted = torch.tensor([loss for _, loss in expected])
    torch.testing.assert_close(losses, wanted, rtol=1e-5, atol=1e-6)


def test_one_small_all_reduce_for_each_step():
    model, x = _setting()

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        mine = dt.parallelize_module(copy.deepcopy(model), mesh, PLAN)
        optimizer = torch.optim.SGD(mine.parameters(), 0.1)
        scaler = dt.GradScaler(mesh, device="cpu")
        scaler.scale(mine(x).square().mean()).backward()
        with da.CommLog() as log:
            scaler.unscale_(optimizer)
            assert log.count() == log.count("all_reduce") == 1
            scaler.step(optimizer)
            scaler.update()
        assert log.count() == 1
        assert log.bytes() <= 3 * 8
        off = dt.GradScaler(mesh, device="cpu", enabled=False)
        with da.CommLog() as log:
            off.step(optimizer)
        assert log.count() == 0

    simulate(2, program)


def test_a_rank_without_gradients_takes_part():
    def program():
        mesh = da.init_device_mesh((2,))
        parameter = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([parameter], 1.0)
        scaler = dt.GradScaler(mesh, "cpu", init_scale=4.0)
        for value, left in ((float("nan"), 2.0), (1.0, 2.0)):
            loss = scaler.scale((parameter * value).sum())
            optimizer.zero_grad()
            if mesh.rank:
                loss.backward()
            scaler.step(optimizer)
            scaler.update()
            assert scaler.get_scale() == left
        assert parameter.detach().tolist() == [1 - mesh.rank] * 2
        scaler.scale(parameter.sum())
        optimizer.zero_grad()
        with pytest.raises(AssertionError, match="No inf checks"):  # torch's own, on all ranks
            scaler.step(optimizer)

    simulate(2, program)


def test_states_travel_to_and_from_torch():
    def program():
        mesh = da.init_device_mesh((2,))
        scaler = dt.GradScaler(mesh, "cpu", init_scale=32.0)
        scaler.scale(torch.ones(1))
        other = torch.amp.GradScaler("cpu")
        other.load_state_dict(scaler.state_dict())
        assert other.get_scale() == 32
        other.scale(torch.ones(1))
        other.update(16.0)
        scaler.load_state_dict(other.state_dict())
        assert scaler.get_scale() == 16

    simulate(2, program)


def test_ranks_that_differ_say_so():
    def program():
        mesh = da.init_device_mesh((2,))
        parameter = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([parameter], 1.0)
        scaler = dt.GradScaler(mesh, "cpu", init_scale=4.0 + mesh.rank)
        scaler.scale(parameter.sum()).backward()
        with pytest.raises(MismatchError, match="GradScaler, SGD of 1 parameters, scale 4"):
            scaler.step(optimizer)
        half = nn.Parameter(torch.ones(2, dtype=torch.float16 if mesh.rank else torch.float32))
        optimizer = torch.optim.SGD([half], 1.0)
        scaler = dt.GradScaler(mesh, "cpu")
        scaler.scale(half.sum()).backward()
        wanted = (ValueError, "FP16") if mesh.rank else (CommunicationError, "another rank")
        with pytest.raises(wanted[0], match=wanted[1]):
            scaler.step(optimizer)
        with pytest.raises(ArgumentTypeError, match="mesh"):
            dt.GradScaler("cpu")

    simulate(2, program)
