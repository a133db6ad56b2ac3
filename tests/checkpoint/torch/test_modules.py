"""Modules and optimizers, parallelized in any way, go on where they were, on other ranks."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.testing import simulate  # noqa: E402


class Model(nn.Module):
    """Fused rows, columns, a shared weight, buffers, and a bfloat16 parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.qkv = nn.Linear(5, 15)
        self.out = nn.Linear(5, 5)
        self.norm = nn.BatchNorm1d(5)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embed.weight
        self.low = nn.Parameter(torch.randn(3, generator=generator()).bfloat16())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (
            self.head(self.norm(self.out(self.qkv(self.embed(x))[:, :5]))) * self.low.sum().float()
        )


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def trained() -> tuple[Model, torch.optim.Optimizer]:
    """Return a model in one process after some steps."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(groups_of(model))
    gradients = generator()
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=gradients).to(parameter.dtype)
        optimizer.step()
    model.norm.running_mean += 3
    return model, optimizer


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    return [
        {"params": [p for n, p in model.named_parameters() if "bias" not in n], "lr": 0.1},
        {"params": [p for n, p in model.named_parameters() if "bias" in n], "weight_decay": 0.5},
    ]


def parallelized(model: nn.Module, shape: tuple[int, ...], names: tuple[str, ...]) -> nn.Module:
    mesh = da.init_device_mesh(shape, names)
    if mesh.coordinate is None:
        return model
    plan = {
        "qkv": dt.ColwiseParallel(),
        "out": dt.RowwiseParallel(),
    }
    return dt.parallelize_module(model, mesh[names[-1]], plan)


MODEL, OPTIMIZER = trained()
BLANK = Model()


with torch.no_grad():
    for parameter in BLANK.parameters():
        parameter.zero_()


def check(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Compare with the model that was trained in one process, bit by bit."""
    whole = dt.state_dict(model)
    for name, value in MODEL.state_dict().items():
        assert torch.equal(whole[name].cpu(), value), name
    found = dt.optimizer_state_dict(model, optimizer)
    expected = dt.optimizer_state_dict(MODEL, OPTIMIZER)
    for group, other in zip(found["param_groups"], expected["param_groups"], strict=True):
        assert {**group, "initial_lr": 0} == {**other, "initial_lr": 0}
    assert found["state"].keys() == expected["state"].keys()
    for name, state in expected["state"].items():
        for key, value in state.items():
            assert torch.equal(found["state"][name][key].cpu(), value), (name, key)
            assert found["state"][name][key].dtype == value.dtype


SHAPES = [((1,), ("tp",)), ((2,), ("tp",)), ((3,), ("tp",)), ((2, 2), ("dp", "tp"))]


@pytest.mark.parametrize("saved", SHAPES, ids=str)
@pytest.mark.parametrize("wanted", SHAPES, ids=str)
def test_training_goes_on_with_other_ranks(tmp_path, saved, wanted):
    path = tmp_path / "run"

    def save() -> None:
        model = parallelized(copy.deepcopy(MODEL), *saved)
        optimizer = torch.optim.AdamW(groups_of(model))
        dt.load_optimizer_state_dict(model, optimizer, dt.optimizer_state_dict(MODEL, OPTIMIZER))
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        scheduler.last_epoch = 4
        state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "step": 2}
        da.checkpoint.save(path, state, step=2)

    def load() -> None:
        model = parallelized(copy.deepcopy(BLANK), *wanted)
        optimizer = torch.optim.AdamW(groups_of(model))
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "step": 0}
        found = da.checkpoint.load(path, state)
        assert found["step"] == 2
        assert found["model"] is model
        assert scheduler.last_epoch == 4
        check(model, optimizer)
        assert model.head.weight is model.embed.weight

    ranks = {(1,): 1, (2,): 2, (3,): 3, (2, 2): 4}
    simulate(ranks[saved[0]], save)
    simulate(ranks[wanted[0]], load)


def test_fully_sharded_modules_go_on_with_other_ranks(tmp_path):
    def build(ranks: int, model: Model) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = copy.deepcopy(model)
        mesh = da.init_device_mesh((ranks,), ("dp",))
        dt.fully_shard(model.qkv, mesh)
        dt.fully_shard(model, mesh)
        return model, torch.optim.AdamW(groups_of(model))

    def save() -> None:
        model, optimizer = build(3, MODEL)
        dt.load_optimizer_state_dict(model, optimizer, dt.optimizer_state_dict(MODEL, OPTIMIZER))
        da.checkpoint.save(tmp_path / "x", {"model": model, "optimizer": optimizer})

    def load(ranks: int) -> None:
        model, optimizer = build(ranks, BLANK)
        da.checkpoint.load(tmp_path / "x", {"model": model, "optimizer": optimizer})
        check(model, optimizer)

    simulate(3, save)
    for ranks in (1, 2, 4):
        simulate(ranks, load, ranks)
    model, optimizer = copy.deepcopy(BLANK), None
    optimizer = torch.optim.AdamW(groups_of(model))
    da.checkpoint.load(tmp_path / "x", {"model": model, "optimizer": optimizer})
    check(model, optimizer)


class WithExtra(nn.Linear):
    """A module with an extra state."""

    extra: Any = None

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


@pytest.mark.parametrize(
    "make",
    [
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, 20),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
        lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o),
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o,
            [
                torch.optim.lr_scheduler.ConstantLR(o),
                torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
            ],
            [3],
        ),
    ],
)
def test_schedulers_generators_and_extra_states(tmp_path, make):
    module = nn.Sequential(WithExtra(2, 2))
    module[0].extra = {"scale": 3, "history": torch.arange(3)}
    optimizer = torch.optim.Adam(module.parameters(), lr=torch.tensor(0.5))
    scheduler = make(optimizer)
    random = generator()
    torch.rand(3, generator=random)
    state = {"model": module, "optimizer": optimizer, "scheduler": scheduler, "random": random}
    da.checkpoint.save(tmp_path / "x", state)
    expected = torch.rand(3, generator=random)
    other = nn.Sequential(WithExtra(2, 2))
    other_optimizer = torch.optim.Adam(other.parameters(), lr=torch.tensor(0.1))
    other_random = generator()
    fresh = {
        "model": other,
        "optimizer": other_optimizer,
        "scheduler": make(other_optimizer),
        "random": other_random,
    }
    da.checkpoint.load(tmp_path / "x", fresh)
    assert other[0].extra["scale"] == 3
    assert other[0].extra["history"].tolist() == [0, 1, 2]
    assert torch.equal(torch.rand(3, generator=other_random), expected)
    assert repr(fresh["scheduler"].state_dict()) == repr(scheduler.state_dict())
    assert repr(other_optimizer.state_dict()) == repr(optimizer.state_dict())
