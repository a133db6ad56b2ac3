"""Modules and their parameters on GPUs compute what one process computes in host memory.

On as many ranks as there are, which may share a GPU: ``mpiexec -n 4 python -m pytest --with-mpi
tests/gpu/test_torch_on_gpu.py``. All but those marked ``gpu`` run on the stand-in, too, where
tensors in host memory pass for such on a GPU.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.comm import world  # noqa: E402
from distarray.torch import _buffers  # noqa: E402
from distarray.torch._random import keys_from  # noqa: E402
from tests.on_device import host  # noqa: E402
from tests.torch.fsdp.training import rows_of  # noqa: E402
from tests.torch.programs import shard  # noqa: E402

STEPS = 4


def line():
    return da.init_device_mesh((world().size,), ("tp",), device="cuda")


def gpu(mesh):
    return _buffers.torch_device(mesh.device)


def values(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    # whatever torch's default device is
    return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")


def perceptron():
    torch.manual_seed(0)
    layers = [nn.LayerNorm(7), nn.Linear(7, 13), nn.GELU(), nn.Linear(13, 7)]
    return nn.Sequential(*layers).double()


def trained(module, x, scaled=lambda loss: loss, clip=dt.clip_grad_norm_, **options):
    """Return losses, on average over the ranks, and norms of some steps.

    Where modules are sharded each rank has rows of its own.
    """
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.05, **options)
    found, x = [], rows_of(module, x)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = module(x).square().mean()
        scaled(loss).backward()
        found += [
            float(np.mean(world().all_gather_object(loss.item()))),
            float(clip(module.parameters(), 0.5)),
        ]
        optimizer.step()
    return found


def expected_of(module, x):
    return trained(module, x, clip=nn.utils.clip_grad_norm_)


def same(found, expected, tolerance=1e-12):
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


PLANS = {
    "tensor": {"1": dt.ColwiseParallel(), "3": dt.RowwiseParallel()},
    "sequence": {
        "0": dt.SequenceParallel(),
        "1": dt.ColwiseParallel(input_layouts=da.Shard(1)),
        "3": dt.RowwiseParallel(output_layouts=da.Shard(1)),
    },
}


@pytest.mark.parametrize("kind", PLANS)
def test_parallelized_layers(kind):
    mesh = line()
    twin, x = perceptron(), values(2, 9, 7)
    expected = expected_of(copy.deepcopy(twin), x)
    mine = dt.parallelize_module(twin.to(gpu(mesh)), mesh, PLANS[kind])
    x = x.to(gpu(mesh))
    if kind == "tensor":
        same(trained(mine, x), expected)
        return
    placed = [da.Replicate()], [da.Shard(1)]

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mine

        def forward(self, x):
            return dt.full_tensor(self.inner(dt.redistribute(x, mesh, *placed)))

    same(trained(Whole(), x), expected)


@pytest.mark.parametrize("offload", [None, dt.CPUOffloadPolicy()], ids=["gpu", "offloaded"])
@pytest.mark.parametrize("after", [True, False])
def test_sharded_modules(offload, after):
    mesh = line()
    twin, x = perceptron(), values(12, 7)
    expected = expected_of(copy.deepcopy(twin), x)
    if offload is None:
        twin = twin.to(gpu(mesh))
    for layer in (twin[1], twin[3], twin):
        dt.fully_shard(layer, mesh, reshard_after_forward=after, offload_policy=offload)
    same(trained(twin, x.to(gpu(mesh))), expected)
    where = torch.device("cpu") if offload else gpu(mesh)
    assert {p.device for p in twin.parameters()} == {where}


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16], ids=str)
def test_sharded_modules_in_mixed_precision(low):
    mesh = line()
    twin, x = perceptron().float(), values(12, 7).float()
    expected = expected_of(copy.deepcopy(twin), x)
    policy = dt.MixedPrecisionPolicy(
        param_dtype=low, reduce_dtype=torch.float32, output_dtype=torch.float32
    )
    mine = dt.fully_shard(twin.to(gpu(mesh)), mesh, mp_policy=policy)
    same(trained(mine, x.to(gpu(mesh))), expected, 0.1)
    assert {p.dtype for p in mine.parameters()} == {torch.float32}


def test_a_mesh_that_says_cpu():
    mesh = da.init_device_mesh((world().size,), device="cpu")
    where = gpu(line())
    twin, x = perceptron(), values(12, 7)
    expected = expected_of(copy.deepcopy(twin), x)
    mine = dt.fully_shard(twin, mesh).to(where)
    same(trained(mine, x.to(where)), expected)
    assert {p.device for p in mine.parameters()} == {where}


def test_replicated_modules_in_low_precision():
    mesh = line()
    twin, x = perceptron(), values(12, 7)
    expected = expected_of(copy.deepcopy(twin), x)
    part = shard(x, mesh).to(gpu(mesh))
    same(trained(dt.replicate(twin.to(gpu(mesh)), mesh), part), expected)
    low = dt.replicate(perceptron().bfloat16().to(gpu(mesh)), mesh)
    low(part.bfloat16()).sum().backward()
    assert low[1].weight.grad.dtype is torch.bfloat16
    dt.check_replicas(low, mesh)


def test_losses_of_words_that_are_cut():
    mesh = line()
    scores, words = values(5, 11), torch.arange(5)
    expected = nn.functional.cross_entropy(scores, words)
    mine = dt.distribute_tensor(scores.to(gpu(mesh)), mesh, [da.Shard(1)])
    with dt.loss_parallel():
        found = nn.functional.cross_entropy(mine, words.to(gpu(mesh)))
    same(found.item(), expected.item())


def test_a_step_that_overflows_is_skipped_by_all():
    mesh = line()
    mine = dt.fully_shard(perceptron().to(gpu(mesh)), mesh)
    scaler = dt.GradScaler(mesh, gpu(mesh).type, init_scale=1024.0)
    optimizer = torch.optim.SGD(mine.parameters(), lr=1.0)
    before = [p.detach().clone() for p in mine.parameters()]
    x = rows_of(mine, values(12, 7)).to(gpu(mesh))
    scaler.scale(mine(x).mean()).backward()
    if mesh.rank == 0:
        mine[1].weight.grad.fill_(float("inf"))
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 512.0
    assert all(map(torch.equal, mine.parameters(), before))


def test_dropout_is_that_of_the_host():
    mesh = line()
    x = torch.ones(40, 30)
    with keys_from(torch.Generator().manual_seed(3)):
        expected = dt.dropout(x, 0.3)
    with keys_from(torch.Generator().manual_seed(3)):
        mine = dt.distribute_tensor(x.to(gpu(mesh)), mesh, [da.Shard(0)])
        found = dt.full_tensor(dt.dropout(mine, 0.3))
    assert torch.equal(found.cpu(), expected)


def test_checkpoints(tmp_path):
    folder = world().broadcast_object(str(tmp_path))
    mesh, x = line(), values(12, 7)

    def made():
        module = dt.fully_shard(perceptron().to(gpu(mesh)), mesh)
        return module, torch.optim.AdamW(module.parameters(), lr=0.05, fused=False)

    def steps(module, optimizer):
        for _ in range(STEPS):
            optimizer.zero_grad()
            module(rows_of(module, x).to(gpu(mesh))).square().mean().backward()
            optimizer.step()

    one = made()
    steps(*one)
    state = {"module": one[0], "optimizer": (one[0], one[1])}
    handle = da.checkpoint.save(f"{folder}/x", state, async_op=True)
    with torch.no_grad():
        for p in one[0].parameters():
            p.mul_(2)  # the values were copied
    handle.wait()
    other = made()
    da.checkpoint.load(f"{folder}/x", {"module": other[0], "optimizer": other})
    with torch.no_grad():
        for p, q in zip(one[0].parameters(), other[0].parameters(), strict=True):
            assert torch.equal(p, 2 * q)
            assert p.device == q.device
            p.copy_(q)
    steps(*one)
    steps(*other)
    assert all(map(torch.equal, one[0].parameters(), other[0].parameters()))


def test_what_goes_backward_is_recorded():
    mesh = line()
    x = torch.ones(3, 4, device=gpu(mesh), requires_grad=True)
    with da.CommLog() as log:
        y = dt.redistribute(x, mesh, [da.Replicate()], [da.Replicate()])
        y = dt.redistribute(x, mesh, [da.Partial()], [da.Replicate()])
        y = dt.redistribute(y, mesh, [da.Replicate()], [da.Shard(0)])
        y.sum().backward()
    moved = mesh.size > 1
    assert (log.count("all_reduce"), log.count("all_gather")) == (moved, moved)


def test_arrays_and_tensors():
    mesh = line()
    tensor = dt.distribute_tensor(values(5, 3).to(gpu(mesh)), mesh, [da.Shard(0)])
    array = dt.from_torch(tensor)
    tensor.mul_(2)
    np.testing.assert_array_equal(host((array + 1).full_array()), 2 * values(5, 3).numpy() + 1)
    back = dt.to_torch(array)
    assert back.data_ptr() == tensor.data_ptr()
    assert back.device == tensor.device


# --- what only a GPU can show ---------------------------------------------------------------------


@pytest.mark.gpu
def test_results_are_right_on_streams_of_the_program():
    mesh = line()
    n = 1 << 22
    for seed in range(6):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            first = float(seed + mesh.rank)
            x = torch.full((n,), first, device=gpu(mesh), dtype=torch.float64)
            for _ in range(20):
                x = x * 1.0 + 0.0  # the stream is behind
            pending = dt.redistribute(x, mesh, [da.Partial()], [da.Replicate()], async_op=True)
            y = dt.redistribute(x + 1, mesh, [da.Partial()], [da.Replicate()])
            found = pending.wait().sum().item(), y.sum().item()
        total = n * sum(seed + rank for rank in range(mesh.size))
        assert found == (total, total + n * mesh.size)
        torch.cuda.current_stream().wait_stream(stream)


@pytest.mark.gpu
def test_memory_that_is_still_read_is_not_handed_out_again():
    mesh = line()
    layer = nn.Linear(2048, 2048, bias=False).to(gpu(mesh))
    with torch.no_grad():
        layer.weight.zero_()
    mine = dt.fully_shard(nn.Sequential(layer), mesh)
    x = torch.full((1, 2048), 2.0 * mesh.rank, device=gpu(mesh))
    for step in range(20):
        mine(x * step).sum().backward()
        for _ in range(8):  # where the whole gradient was
            torch.full((2048, 2048), float("nan"), device=gpu(mesh))
        wanted = step * (mesh.size - 1)  # the mean of 0, 2, 4, ...
        assert bool((mine[0].weight.grad == wanted).all())
        mine.zero_grad()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_autocast_and_compiled_modules():
    mesh = line()
    twin, x = perceptron().float(), values(12, 7).float()
    expected = twin(x)
    mine = dt.parallelize_module(twin.to(gpu(mesh)), mesh, PLANS["tensor"])
    x = x.to(gpu(mesh))
    with torch.autocast("cuda", torch.bfloat16):
        torch.testing.assert_close(mine(x).float().cpu(), expected, atol=0.1, rtol=0.1)
    compiled = torch.compile(mine, backend="aot_eager")
    torch.testing.assert_close(compiled(x).cpu(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.gpu
def test_random_states_of_the_gpu():
    mesh = line()
    dt.manual_seed(5, mesh)
    torch.zeros(1, device=gpu(mesh))
    state = dt.get_random_state(mesh)
    with dt.random_state(mesh, differ="tp"):
        inside = torch.rand(4, device=gpu(mesh))
    first = torch.rand(4, device=gpu(mesh))
    dt.set_random_state(state, mesh)
    with dt.random_state(mesh, differ="tp"):
        assert torch.equal(torch.rand(4, device=gpu(mesh)), inside)
    assert torch.equal(torch.rand(4, device=gpu(mesh)), first)
    told = world().all_gather_object((first.tolist(), inside.tolist()))
    assert len({tuple(one) for one, _ in told}) == 1
    assert len({tuple(other) for _, other in told}) == mesh.size


@pytest.mark.gpu
def test_a_default_device():
    mesh = line()
    with torch.device("cuda"):
        mine = dt.fully_shard(perceptron(), mesh, offload_policy=dt.CPUOffloadPolicy())
        dt.dropout(mine(values(12, 7).to(gpu(mesh))), 0.5).sum().backward()
    assert all(p.grad.is_cpu for p in mine.parameters())
