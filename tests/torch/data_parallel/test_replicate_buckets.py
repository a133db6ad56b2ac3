"""What replicas send: gradients by buckets, in which dtype and order; and buffers."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.torch.data_parallel._reducer import choose_buckets  # noqa: E402
from tests.torch.programs import (  # noqa: E402
    check_gradients,
    filled,
    gradients,
    mlp,
    on_ranks,
    same,
    shard,
    values,
)


@pytest.mark.parametrize(
    ("bucket_bytes", "buckets"), [(1 << 20, 1), (9 * 9 * 8, 3), (1, 6), (3 * 9 * 8 + 3 * 8, 5)]
)
def test_one_all_reduce_for_each_bucket(bucket_bytes, buckets):
    model, x = mlp(), values(4, 5, seed=2)

    def program(mesh):
        mine = dt.replicate(copy.deepcopy(model), mesh, bucket_bytes=bucket_bytes)
        with da.CommLog() as log:
            y = mine(shard(x, mesh))
            assert log.count() == 0
            y.sum().backward()
        assert log.count() == log.count("all_reduce", "dp") == buckets
        flags = 6 + buckets
        items = sum(p.numel() for p in model.parameters())
        assert log.bytes() == 2 * (items + flags) * 8 // 2

    on_ranks(2, program)


def test_the_first_bucket_starts_early_and_the_last_is_short():
    sizes = [100_000, 100_000, 1_000_000, 2_000_000, 1_000_000, 3_000_000, 200_000, 50_000]
    parameters = [nn.Parameter(torch.empty(size)) for size in sizes]
    assert choose_buckets(parameters, 12_000_000) == [[7, 6], [5], [4, 3], [2], [1, 0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_mixed_dtypes_have_buckets_of_their_own(dtype):
    model = filled(nn.Sequential(nn.Linear(4, 4).to(dtype), nn.Linear(4, 4).double()))
    x = values(8, 4)

    def run(module, x):
        return module[1](module[0](x.to(dtype)).double()).square().mean()

    run(model, x).backward()
    wanted = gradients(model)
    model.zero_grad()

    def program(mesh):
        mine = dt.replicate(copy.deepcopy(model), mesh)
        with da.CommLog() as log:
            run(mine, shard(x, mesh)).backward()
        assert log.count("all_reduce") == 2
        for name, gradient in gradients(mine).items():
            assert gradient.dtype is wanted[name].dtype
        check_gradients(mine[1], {k[2:]: v for k, v in wanted.items() if k[0] == "1"}, 1e-2)
        check_gradients(mine[0], {k[2:]: v for k, v in wanted.items() if k[0] == "0"}, 2e-2)

    on_ranks(2, program)


def test_bfloat16_is_averaged_in_float32():
    model = nn.Linear(1, 300, bias=False).bfloat16()

    def program(mesh):
        mine = dt.replicate(copy.deepcopy(model), mesh)
        (rank,) = mesh.coordinate
        x = torch.full((1, 1), [256, 1, 1][rank], dtype=torch.bfloat16)
        mine(x).sum().backward()
        assert mine.weight.grad.unique().tolist() == [86]  # bfloat16 has no 257: 256 / 3 is 85.5

    on_ranks(3, program)


def test_gradients_lie_as_their_parameters():
    model = filled(nn.Conv2d(3, 4, 3).double().to(memory_format=torch.channels_last))
    x = values(4, 3, 5, 5)
    model(x).square().mean().backward()
    wanted = gradients(model)
    model.zero_grad()

    def program(mesh):
        mine = dt.replicate(copy.deepcopy(model), mesh)
        mine(shard(x, mesh)).square().mean().backward()
        assert mine.weight.grad.stride() == mine.weight.stride()
        check_gradients(mine, wanted)

    on_ranks(2, program)


def test_buffers_are_those_of_the_first_rank():
    model = filled(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double())
    model.register_buffer("flag", torch.tensor(True))
    x = values(12, 4)

    def program(mesh):
        mine = copy.deepcopy(model)
        if mesh.coordinate[0]:
            mine[1].running_mean += 5
            mine.flag.fill_(False)
        dt.replicate(mine, mesh)
        assert mine.flag
        same(mine[1].running_mean, model[1].running_mean)
        with da.CommLog() as log:
            losses = [mine(part).square().mean() for part in shard(x, mesh).chunk(2)]
        assert log.count("broadcast") == log.count() == 2
        sum(losses).backward()  # after the statistics of the second call were broadcast
        mine.eval()
        mine(shard(x, mesh))
        return mine[1].running_mean.clone(), mine[1].num_batches_tracked.clone()

    first, *others = on_ranks(3, program)
    twin = copy.deepcopy(model)
    for part in x.chunk(3)[0].chunk(2):
        twin(part)
    for mean, count in (first, *others):
        same(mean, twin[1].running_mean)
        assert count == 2


def test_buffers_stay_each_rank_s_own_where_asked_to():
    model = filled(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).double())
    x = values(8, 4)

    def program(mesh):
        mine = dt.replicate(copy.deepcopy(model), mesh, broadcast_buffers=False)
        with da.CommLog() as log:
            mine(shard(x, mesh))
        assert log.count() == 0
        return mine[1].running_mean

    first, second = on_ranks(2, program)
    assert not torch.equal(first, second)


def test_one_rank_sends_nothing():
    def program(mesh):
        mine = dt.replicate(mlp(), mesh)
        with da.CommLog() as log:
            mine(values(2, 5)).sum().backward()
        assert log.count() == 0

    on_ranks(1, program)
