"""Losses, clipping and whole tensors of a parallel model under real MPI."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.comm import world  # noqa: E402
from distarray.errors import MismatchError  # noqa: E402

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60)]
F = torch.nn.functional
WORDS, WIDTH = 37, 6


def _setting():
    generator = torch.Generator().manual_seed(11)
    model = torch.nn.Sequential(torch.nn.Embedding(WORDS, WIDTH), torch.nn.Linear(WIDTH, WORDS))
    model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator).double())
    words = torch.arange(24).reshape(4, 6) * 7 % WORDS
    target = torch.arange(24).reshape(4, 6) * 5 % WORDS
    target[1, 2] = -100
    return model, words, target


@pytest.fixture(scope="module", params=["one node", "a node per rank"])
def mesh(request):
    from mpi4py import MPI

    with pytest.MonkeyPatch.context() as patch:
        if request.param == "a node per rank":
            if MPI.COMM_WORLD.size == 1:
                pytest.skip("one rank is one node")
            patch.setenv("DISTARRAY_RANKS_PER_NODE", "1")
        made = MPI.COMM_WORLD.Dup()
        yield da.init_device_mesh((made.size,), ("tp",), comm=made)
        made.Barrier()


def _parallel(model, mesh):
    plan = {"0": dt.RowwiseParallel(), "1": dt.ColwiseParallel()}
    return dt.parallelize_module(copy.deepcopy(model), mesh, plan)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_clipping_and_whole_tensors_are_those_of_one_process(mesh, smoothing):
    model, words, target = _setting()
    mine = _parallel(model, mesh)
    expected = F.cross_entropy(model(words).mT, target, label_smoothing=smoothing)
    expected.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    logits = mine(words)
    with dt.loss_parallel(), da.CommLog() as log:
        logits = logits.flatten(0, 1)
        loss = F.cross_entropy(logits, target.flatten(), label_smoothing=smoothing)
    assert log.count() == log.count("all_reduce") == (2 if mesh.size > 1 else 0)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    loss.backward()
    with da.CommLog() as log:
        total = dt.clip_grad_norm_(mine.parameters(), 0.1)
    assert log.count() == log.count("all_reduce") == (mesh.size > 1)
    torch.testing.assert_close(total, norm, rtol=1e-12, atol=0)
    for own, twin in zip(mine.parameters(), model.parameters(), strict=True):
        assert torch.equal(dt.full_tensor(own), twin)
        torch.testing.assert_close(dt.full_tensor(own.grad), twin.grad)


def test_errors_are_alike_on_every_rank(mesh):
    model, words, target = _setting()
    parallel = _parallel(model, mesh)
    with dt.loss_parallel():
        logits = parallel(words).flatten(0, 1)
        with pytest.raises(IndexError):  # on one rank it is torch that raises
            F.cross_entropy(logits, target.flatten() + WORDS)
        if mesh.size > 1:
            with pytest.raises(MismatchError, match="target and weights"):
                F.cross_entropy(logits, target.flatten().roll(mesh.coordinate[0]))
        F.cross_entropy(logits, target.flatten())  # in step again


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tensors_are_handed_out_and_shared_with_arrays(mesh, dtype):
    whole = torch.arange(33).reshape(11, 3).to(dtype)
    last = mesh.size - 1
    given = whole if world().rank == last else torch.zeros_like(whole)
    for placed in (da.Shard(0), da.Shard(1), da.Replicate()):
        block = dt.distribute_tensor(given, mesh, [placed], src_data_rank=last)
        assert torch.equal(dt.full_tensor(block), whole)
        if dtype is torch.float32:
            array = dt.from_torch(block)
            assert float(da.sum(array)) == float(whole.sum())
            assert dt.to_torch(array).data_ptr() == block.data_ptr()
