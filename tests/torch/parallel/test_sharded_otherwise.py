"""Sharded modules beside replicas, styles, buffers and policies of torch's."""

from __future__ import annotations

import copy

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.distributed import fsdp as torchs

import distarray as da
import distarray.torch as dt
from distarray.errors import ArgumentError, ArgumentTypeError, LayoutError, MismatchError
from distarray.testing import simulate


def _model() -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    made = nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Linear(9, 4)).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.uniform_(-1, 1, generator=generator)
    return made


ALONE = _model()
INPUTS = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_replicas_of_shards_are_refused() -> None:
    def run() -> None:
        mesh = da.init_device_mesh((2,))
        model = dt.fully_shard(copy.deepcopy(ALONE), mesh)
        before = [p.detach().clone() for p in model.parameters()]
        for one in (model, model[0]):
            with pytest.raises(LayoutError, match="shard of fully_shard, which averages"):
                dt.replicate(one, mesh)
        assert all(map(torch.equal, before, model.parameters()))

    simulate(2, run)


def test_replicas_of_blocks_over_their_own_axis_are_refused() -> None:
    def run() -> None:
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        model = copy.deepcopy(ALONE)
        plan = {"2": dt.RowwiseParallel(input_layouts=da.Replicate())}
        dt.parallelize_module(model, mesh["tp"], plan)
        with pytest.raises(
            LayoutError, match=r"over an axis other than 'tp', such as mesh\['dp'\]"
        ):
            dt.replicate(model, mesh["tp"])
        dt.replicate(model, mesh["dp"])

    simulate(4, run)


def test_shards_of_replicas_are_refused_but_where_ignored() -> None:
    def run() -> None:
        mesh = da.init_device_mesh((2,))
        model = copy.deepcopy(ALONE)
        dt.replicate(model[2], mesh)
        with pytest.raises(ArgumentError, match="leave out replicate, or name the parameter in"):
            dt.fully_shard(model, mesh)
        dt.fully_shard(model, mesh, ignored_params=model[2].parameters())
        model(INPUTS[mesh.rank]).square().mean().backward()
        every = copy.deepcopy(ALONE)
        for part in INPUTS[:2]:  # each rank's statistics are its own
            every(part).square().mean().div(2).backward()
        for (name, one), other in zip(model.named_parameters(), every.parameters(), strict=True):
            whole = one.grad if name.startswith("2") else dt.full_tensor(one.grad)
            torch.testing.assert_close(whole, other.grad)

    simulate(2, run)


def test_ignored_parameters_are_averaged_by_hand() -> None:
    def run() -> None:
        mesh = da.init_device_mesh((3,))
        model = copy.deepcopy(ALONE)
        kept = model[2].weight
        dt.fully_shard(model, mesh, ignored_params=[kept])
        model(INPUTS[mesh.rank]).square().mean().backward()
        kept.grad = dt.redistribute(kept.grad, mesh, [da.Partial("avg")], [da.Replicate()])
        every = copy.deepcopy(ALONE)
        for part in INPUTS[:3]:
            every(part).square().mean().div(3).backward()
        torch.testing.assert_close(kept.grad, every[2].weight.grad)

    simulate(3, run)


def test_styles_after_sharding_are_refused() -> None:
    def run() -> None:
        mesh = da.init_device_mesh((2,))
        model = dt.fully_shard(copy.deepcopy(ALONE), mesh)
        for style in (dt.ColwiseParallel(), dt.SequenceParallel()):
            with pytest.raises(LayoutError, match=r"0 \(Linear\): .*cut first.*then fully_shard"):
                dt.parallelize_module(model, mesh, {"0": style})
        whole = dt.PrepareModuleOutput(
            output_layouts=da.Shard(0), desired_output_layouts=da.Replicate()
        )
        dt.parallelize_module(model, mesh, {"0": whole})

    simulate(2, run)


def test_running_statistics_differ_until_they_are_averaged(tmp_path) -> None:
    def run() -> None:
        mesh = da.init_device_mesh((2,))
        model = dt.fully_shard(copy.deepcopy(ALONE), mesh)
        with torch.no_grad():
            model(INPUTS[mesh.rank])
        own = model[1].running_mean.clone()
        with pytest.raises(MismatchError, match="fully_shard sends no buffers"):
            dt.check_replicas(model, mesh)
        dt.check_replicas(model, mesh, buffers=False)
        with pytest.raises(MismatchError, match="running_mean"):
            da.checkpoint.save(tmp_path / "state", {"model": model})
        da.checkpoint.save(tmp_path / "state", {"model": model}, check=False)
        found = da.checkpoint.load(tmp_path / "state", {"model": copy.deepcopy(ALONE)})["model"]
        assert mesh.rank != 0 or torch.equal(found[1].running_mean, own)

    simulate(2, run)


def test_state_dicts_of_whole_tensors_name_what_takes_them() -> None:
    def run() -> None:
        mesh = da.init_device_mesh((2,))
        model = dt.fully_shard(copy.deepcopy(ALONE), mesh)
        for given in (model, nn.Sequential(model)):
            prefix = "" if given is model else "0."
            state = {prefix + k: v for k, v in ALONE.state_dict().items()}
            with pytest.raises(RuntimeError, match=r"(?s)dt\.load_state_dict.*size mismatch"):
                given.load_state_dict(state)
        dt.load_state_dict(model, ALONE.state_dict())

    simulate(2, run)


def test_policies_of_torch_are_taken_as_ours() -> None:
    def run() -> None:
        mesh = da.init_device_mesh((2,))
        low = torchs.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        model = copy.deepcopy(ALONE)
        dt.fully_shard(model[0], mesh, mp_policy=low, offload_policy=torchs.CPUOffloadPolicy())
        dt.fully_shard(model[2], mesh, offload_policy=torchs.OffloadPolicy())
        with torch.no_grad():
            assert model[0](INPUTS[0]).dtype == torch.bfloat16
        with pytest.raises(ArgumentTypeError, match=r"takes a dt\.MixedPrecisionPolicy"):
            dt.fully_shard(model, mesh, mp_policy="bfloat16")
        with pytest.raises(ArgumentTypeError, match=r"takes a dt\.CPUOffloadPolicy"):
            dt.fully_shard(model, mesh, offload_policy=True)

    simulate(2, run)
