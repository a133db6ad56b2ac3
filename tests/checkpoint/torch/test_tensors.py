"""Tensors of every dtype and kind are saved bit by bit; what does not fit or agree is refused."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from tests.checkpoint.torch.test_modules import generator  # noqa: E402
from tests.on_device import host  # noqa: E402

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
        values = values.double() * 1e300  # overflows quietly, as by astype
        da.checkpoint.save(tmp_path / "z", {"whole": values})
        da.checkpoint.load(tmp_path / "z", {"whole": narrow}, cast=True)
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


def test_blocks_are_placed_where_they_are_loaded_without_a_template(tmp_path):
    whole = torch.arange(10.0).reshape(5, 2)

    def program() -> None:
        block = dt.distribute_tensor(whole, da.default_mesh(), [da.Shard(0)])
        da.checkpoint.save(tmp_path / "x", {"block": block})
        found = da.checkpoint.load(tmp_path / "x")["block"]
        assert torch.equal(dt.full_tensor(found), whole)

    simulate(2, program)


def test_optimizers_of_other_groups_are_refused(tmp_path):
    module = nn.Linear(3, 4)
    apart = torch.optim.SGD([{"params": [module.weight]}, {"params": [module.bias]}], lr=0.5)
    da.checkpoint.save(tmp_path / "x", {"model": module, "optimizer": apart})
    state = {"model": module, "optimizer": torch.optim.SGD(module.parameters(), lr=0.1)}
    with pytest.raises(da.errors.StateDictError, match="the same groups"):
        da.checkpoint.load(tmp_path / "x", state)
    assert state["optimizer"].param_groups[0]["lr"] == 0.1


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
        assert torch.equal(dt.full_tensor(found["weight"]).cpu(), whole * 2)

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


def test_a_tensor_in_per_rank_is_an_error_that_says_what_to_pass(tmp_path):
    with pytest.raises(da.errors.ArgumentTypeError, match=r"NumPy arrays; pass tensor\.numpy\(\)"):
        da.checkpoint.save(tmp_path / "x", {"own": da.checkpoint.PerRank(torch.ones(2))})
    da.checkpoint.save(tmp_path / "x", {"own": da.checkpoint.PerRank(torch.ones(2).numpy())})
