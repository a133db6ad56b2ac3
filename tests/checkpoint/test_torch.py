"""Modules and optimizers, parallelized in any way, go on where they were, on other ranks."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from tests.on_device import host  # noqa: E402


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
        assert torch.equal(whole[name], value), name
    found = dt.optimizer_state_dict(model, optimizer)
    expected = dt.optimizer_state_dict(MODEL, OPTIMIZER)
    for group, other in zip(found["param_groups"], expected["param_groups"], strict=True):
        assert {**group, "initial_lr": 0} == {**other, "initial_lr": 0}
    assert found["state"].keys() == expected["state"].keys()
    for name, state in expected["state"].items():
        for key, value in state.items():
            assert torch.equal(found["state"][name][key], value), (name, key)
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


def test_fused_parts_are_saved_in_the_order_of_one_process(tmp_path):
    weight = torch.arange(24 * 2.0).reshape(24, 2)

    def build(ranks: int) -> nn.Module:
        module = nn.Linear(2, 24, bias=False)
        with torch.no_grad():
            module.weight.copy_(weight)
        dt.distribute_parameter(
            module,
            "weight",
            da.init_device_mesh((ranks,)),
            [da.Shard(0)],
            parts=(12, 6, 6),
            unit=(4, 2, 2),
        )
        return module

    def save() -> None:
        da.checkpoint.save(tmp_path / "x", build(3))

    def load() -> None:
        module = build(2)
        with torch.no_grad():
            module.weight.zero_()
        da.checkpoint.load(tmp_path / "x", module)
        assert torch.equal(dt.full_tensor(module.weight), weight)
        columns = da.Layout(da.default_mesh(), [da.Shard(1)], (24, 2))
        array = da.checkpoint.load(tmp_path / "x", {"weight": columns})["weight"]
        assert (host(array.full_array()) == weight.numpy()).all()

    simulate(3, save)
    simulate(2, load)
    assert (da.checkpoint.open(tmp_path / "x")["weight"][:] == weight.numpy()).all()


def test_parts_that_two_mesh_axes_cut(tmp_path):
    """As fully sharded parameters on top of fused weights of tensor parallelism have it."""
    from distarray.torch import _fused
    from distarray.torch._checkpoint_tensors import held
    from distarray.torch._layouts import Placed

    full = np.arange(20)
    parts, units = (12, 8), (2, 2)
    offsets = _fused.boundaries(parts, units, 2)
    ordered = np.concatenate([full[s] for r in range(2) for s in _fused.share(parts, units, 2, r)])
    nested = [0]
    for a, b in pairwise(offsets):
        nested += [(2 * a + b) // 3, b]

    def program() -> None:
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        layout = da.Layout(
            mesh,
            [da.Shard(0), da.Shard(0)],
            (20,),
            shard_order=("tp", "dp"),
            boundaries={0: nested},
        )
        block = ordered[slice(*layout.local_box()[0])]
        boxes = held(Placed(layout, parts, 0, units))
        for ((a, b),), ((c, d),) in boxes:
            assert full[a:b].tolist() == block[c:d].tolist()
        assert sum(d - c for _, ((c, d),) in boxes) == len(block)

    simulate(4, program)


DTYPES = [
    "float32",
    "bfloat16",
    "float16",
    "float8_e4m3fn",
    "float8_e5m2",
    "bool",
    "complex128",
    "uint16",
]


@pytest.mark.parametrize("name", DTYPES)
def test_tensors_of_every_dtype(tmp_path, name):
    dtype = getattr(torch, name)
    bits = torch.randint(0, 100, (6, 4 * dtype.itemsize), dtype=torch.uint8, generator=generator())
    tensor = bits.bool()[:, :4] if dtype is torch.bool else bits.view(dtype)

    def save() -> None:
        mesh = da.init_device_mesh((2,))
        block = tensor[3 * mesh.rank : 3 * mesh.rank + 3].clone()
        from distarray.torch._layouts import place

        place(block, da.Layout(mesh, [da.Shard(0)], (6, 4)))
        state = {"block": block, "whole": tensor, "turned": tensor.t(), "one": tensor[0, 0]}
        da.checkpoint.save(tmp_path / "x", state)

    simulate(2, save)

    def same(found: torch.Tensor, expected: torch.Tensor) -> None:
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        a, b = (t.contiguous().reshape(-1).view(torch.uint8) for t in (found, expected))
        assert torch.equal(a, b)

    found = da.checkpoint.load(tmp_path / "x")
    same(found["block"], tensor)
    same(found["whole"], tensor)
    same(found["turned"], tensor.t())
    same(found["one"], tensor[0, 0])
    target = torch.zeros_like(tensor)
    before = target._version
    assert da.checkpoint.load(tmp_path / "x", {"whole": target})["whole"] is target
    assert target._version > before
    same(target, tensor)
    if name == "bfloat16":
        wide, narrow = torch.zeros(6, 4), torch.zeros(6, 4, dtype=dtype)
        da.checkpoint.load(tmp_path / "x", {"whole": wide}, cast=True)
        assert torch.equal(wide.nan_to_num(), tensor.float().nan_to_num())
        values = torch.randn(6, 4, generator=generator())
        da.checkpoint.save(tmp_path / "y", {"whole": values})
        da.checkpoint.load(tmp_path / "y", {"whole": narrow}, cast=True)
        assert torch.equal(narrow, values.bfloat16())


def test_arrays_and_tensors_load_each_other(tmp_path):
    value = np.random.default_rng(0).standard_normal((5, 4)).astype("f4")

    def program() -> None:
        array = da.distribute_array(value)
        da.checkpoint.save(tmp_path / "a", {"m": {"weight": array, "bias": np.ones(5, "f4")}})
        module = nn.Linear(4, 5)
        dt.parallelize_module(module, da.init_device_mesh((2,)), dt.RowwiseParallel())
        da.checkpoint.load(tmp_path / "a", {"m": module})
        assert torch.equal(dt.full_tensor(module.weight), torch.from_numpy(value))
        da.checkpoint.save(tmp_path / "b", {"m": module})
        target = da.zeros((5, 4), dtype=da.float32)
        da.checkpoint.load(tmp_path / "b", {"m": {"weight": target, "bias": None}})
        assert (host(target.full_array()) == value).all()

    simulate(2, program)


def test_what_does_not_fit_is_named_and_nothing_changes(tmp_path):
    da.checkpoint.save(tmp_path / "x", {"model": nn.Linear(3, 4), "other": 1})
    module = nn.Linear(3, 5)
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(da.errors.StateDictError, match=r"model.weight has shape \(4, 3\)"):
        da.checkpoint.load(tmp_path / "x", {"model": module})
    with pytest.raises(da.errors.StateDictError, match=r"lacks model\.bias"):
        da.checkpoint.load(tmp_path / "x", {"model": nn.Linear(3, 4, bias=False)})
    with pytest.raises(da.errors.ArgumentTypeError, match="to_empty"):
        da.checkpoint.load(tmp_path / "x", {"model": nn.Linear(3, 4, device="meta")})
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
    optimizer = torch.optim.SGD(module.parameters())
    with pytest.raises(da.errors.ArgumentError, match="beside it"):
        da.checkpoint.save(tmp_path / "y", {"optimizer": optimizer})


def test_buffers_that_differ_between_ranks_raise_unless_one_counts(tmp_path):
    def program() -> None:
        module = nn.BatchNorm1d(3)
        module.running_mean += da.default_mesh().rank
        with pytest.raises(da.errors.MismatchError, match="_mean"):
            da.checkpoint.save(tmp_path / "x", module)
        da.checkpoint.save(tmp_path / "x", module, check=False)

    simulate(2, program)
    assert da.checkpoint.open(tmp_path / "x")["running_mean"][:].tolist() == [0, 0, 0]


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


class Block(nn.Module):
    """Fused and plain weights, for tensor parallelism under full sharding."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(6, 18)
        self.out = nn.Linear(6, 6)


BLOCK = Block()
SHARDED = [((2, 2), 4), ((1, 3), 3), ((2, 1), 2), ((3, 1), 3), (None, 1)]


@pytest.mark.parametrize(("wanted", "ranks"), SHARDED)
def test_full_sharding_over_tensor_parallelism_with_fused_weights(tmp_path, wanted, ranks):
    def build(shape: tuple[int, ...] | None) -> nn.Module:
        model = copy.deepcopy(BLOCK)
        if shape is None:
            return model
        mesh = da.init_device_mesh(shape, ("dp", "tp"))
        for name in ("weight", "bias"):
            dt.distribute_parameter(
                model.qkv, name, mesh["tp"], [da.Shard(0)], parts=(6, 6, 6), unit=2
            )
        dt.parallelize_module(model, mesh["tp"], {"out": dt.RowwiseParallel()})
        return dt.fully_shard(model, mesh["dp"])

    def trained_on(model: nn.Module) -> torch.optim.Optimizer:
        """Give the optimizer states that are those of the parameters."""
        optimizer = torch.optim.Adam(model.parameters())
        for parameter in model.parameters():
            parameter.grad = parameter.detach().clone()
        optimizer.step()
        return optimizer

    reference = copy.deepcopy(BLOCK)
    expected = dt.optimizer_state_dict(reference, trained_on(reference))["state"]

    def save() -> None:
        model = build((2, 2))
        optimizer = trained_on(model)
        da.checkpoint.save(tmp_path / "x", {"model": model, "optimizer": optimizer})

    def load() -> None:
        model = build(wanted)
        optimizer = torch.optim.Adam(model.parameters())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        da.checkpoint.load(tmp_path / "x", {"model": model, "optimizer": optimizer})
        again = tmp_path / "again" / str(ranks)
        da.checkpoint.save(again, {"model": model, "optimizer": optimizer})
        stored = da.checkpoint.open(again)
        for name, value in reference.state_dict().items():
            assert (stored[f"model.{name}"][...] == value.numpy()).all(), name
        for name, state in expected.items():
            for key, value in state.items():
                assert (stored[f"optimizer.state.{name}.{key}"][...] == value.numpy()).all()

    simulate(4, save)
    simulate(ranks, load)


@pytest.mark.parametrize("width", [6, 7])
def test_averages_of_shares_are_saved_once_they_are_placed(tmp_path, width):
    whole = torch.arange(2.0 * width).reshape(width, 2)

    def averages() -> dict[str, torch.Tensor]:
        with torch.no_grad():
            module = torch.nn.Linear(2, width, bias=False)
            module.weight.copy_(whole)
        model = dt.fully_shard(module, da.default_mesh())
        plain = {name: p.detach() * 2 for name, p in model.named_parameters()}
        with pytest.raises(da.errors.MismatchError, match=r"dt\.place_like\(copy, parameter\)"):
            da.checkpoint.save(tmp_path / "x", {"average": plain})
        return {name: dt.place_like(plain[name], p) for name, p in model.named_parameters()}

    simulate(2, lambda: da.checkpoint.save(tmp_path / "x", {"average": averages()}))

    def load() -> None:
        found = averages()
        found["weight"].zero_()
        da.checkpoint.load(tmp_path / "x", {"average": found})
        assert torch.equal(dt.full_tensor(found["weight"]), whole * 2)

    simulate(3, load)
    alone = torch.nn.Linear(2, width, bias=False)
    da.checkpoint.load(tmp_path / "x", {"average": alone})
    assert torch.equal(alone.weight, whole * 2)


def test_tied_parameters_take_arrays_that_are_the_same(tmp_path):
    class Pair(nn.Module):
        """Two layers, whose weights may be one."""

        def __init__(self, tied: bool) -> None:
            super().__init__()
            self.first = nn.Linear(5, 5, bias=False)
            self.second = nn.Linear(5, 5, bias=False)
            if tied:
                self.second.weight = self.first.weight

    apart, tied = Pair(False), Pair(True)
    before = tied.first.weight.detach().clone()
    da.checkpoint.save(tmp_path / "x", {"m": apart})
    with pytest.raises(da.errors.StateDictError, match=r"m\.first\.weight and m\.second\.weight"):
        da.checkpoint.load(tmp_path / "x", {"m": tied})
    assert torch.equal(tied.first.weight, before)
    da.checkpoint.load(tmp_path / "x", {"m": tied}, strict=False)
    assert torch.equal(tied.first.weight, apart.first.weight)
    apart.second.load_state_dict(apart.first.state_dict())
    da.checkpoint.save(tmp_path / "y", {"m": apart})
    da.checkpoint.save_safetensors(tmp_path / "y.safetensors", {"m": apart})
    da.checkpoint.load(tmp_path / "y", {"m": tied})
    da.checkpoint.load_safetensors(tmp_path / "y.safetensors", {"m": tied})
    with pytest.raises(da.errors.StateDictError, match="items that share memory"):
        da.checkpoint.load(tmp_path / "y", {"m": {"first.weight": torch.zeros(1, 5).expand(5, 5)}})
