"""Derivatives of the cross entropy of shards: of targets, second ones, recomputed; their memory."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import distarray as da  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from distarray.torch.loss._cross_entropy import vocab_parallel_cross_entropy  # noqa: E402
from tests.tolerance import assert_close  # noqa: E402
from tests.torch.loss.class_shards import cross_entropy, shard_of, target_of, values  # noqa: E402


def test_gradient_of_probabilities():
    full = values(4, 7)
    soft = values(4, 7, seed=3).softmax(1)
    weight = torch.linspace(0.5, 2, 7).double()
    twin = soft.clone().requires_grad_()
    cross_entropy(full, twin, weight, label_smoothing=0.2).backward()

    def program():
        mesh = da.init_device_mesh((3,))
        offsets = (0, 3, 6, 7)
        mine = shard_of(full, 1, offsets, mesh.rank)
        whole = soft.clone().requires_grad_()
        part = shard_of(soft, 1, offsets, mesh.rank).clone().requires_grad_()
        for given in (whole, part):
            loss = vocab_parallel_cross_entropy(
                mine, given, mesh, weight=weight, label_smoothing=0.2
            )
            loss.backward()
        torch.testing.assert_close(whole.grad, twin.grad)
        torch.testing.assert_close(part.grad, shard_of(twin.grad, 1, offsets, mesh.rank))

    simulate(3, program)


@pytest.mark.parametrize("kind", ["classes", "probabilities"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_second_derivatives(kind, smoothing):
    full, v = values(5, 7), values(5, 7, seed=4)
    target = target_of((5,), 7, kind, 1)
    options = {"label_smoothing": smoothing, "weight": torch.linspace(0.5, 2, 7).double()}

    def penalised(x, v, loss):
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        return (slope * v).sum() + slope.square().sum()

    twin = full.clone().requires_grad_()
    loss = cross_entropy(twin, target, **options)
    (3 * loss + penalised(twin, v, loss.square())).backward()

    def program():
        mesh = da.init_device_mesh((3,))
        offsets = (0, 3, 6, 7)
        mine = shard_of(full, 1, offsets, mesh.rank).clone().requires_grad_()
        loss = vocab_parallel_cross_entropy(mine, target, mesh, **options)
        own = penalised(mine, shard_of(v, 1, offsets, mesh.rank), loss.square())
        with da.CommLog() as log:
            (3 * loss + own).backward()
        assert log.count() == log.count("all_reduce") == 1
        shard = shard_of(twin.grad, 1, offsets, mesh.rank)
        assert_close(mine.grad, shard, [twin.grad])

    simulate(3, program)


def test_backward_twice_and_no_backward():
    full, target = values(5, 7), torch.arange(5)

    def program():
        mesh = da.init_device_mesh((2,))
        mine = shard_of(full, 1, (0, 4, 7), mesh.rank).clone().requires_grad_()
        loss = vocab_parallel_cross_entropy(mine, target, mesh)
        loss.backward(retain_graph=True)
        once = mine.grad.clone()
        loss.backward()
        torch.testing.assert_close(mine.grad, 2 * once)
        with torch.no_grad():
            assert not vocab_parallel_cross_entropy(mine, target, mesh).requires_grad
        with torch.no_grad():
            again = vocab_parallel_cross_entropy(mine, target, mesh)
            mine += 1
        torch.testing.assert_close(again, loss.detach())

    simulate(2, program)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant):
    full, target = values(5, 7), torch.arange(5)

    def program():
        mesh = da.init_device_mesh((2,))
        mine = shard_of(full, 1, (0, 4, 7), mesh.rank).clone().requires_grad_()
        vocab_parallel_cross_entropy(2 * mine, target, mesh).backward()
        expected, mine.grad = mine.grad, None
        checkpoint(
            lambda x: vocab_parallel_cross_entropy(2 * x, target, mesh),
            mine,
            use_reentrant=reentrant,
        ).backward()
        torch.testing.assert_close(mine.grad, expected)

    simulate(2, program)


class _Allocations(TorchDispatchMode):
    """Notes the bytes of every new storage."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {
            x.untyped_storage().data_ptr()
            for x in (*args, *(kwargs or {}).values())
            if isinstance(x, torch.Tensor)
        }
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            storage = result.untyped_storage()
            if storage.data_ptr() not in given:
                self.sizes.append(storage.nbytes())
        return result


@pytest.mark.host_only  # backward in this very thread
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nothing_of_the_size_of_the_logits_is_made_but_their_gradient(dtype):
    full = values(1024, 2048).to(dtype)
    target = torch.arange(1024)
    saved = []

    def keep(tensor):
        saved.append(tensor.untyped_storage().data_ptr())
        return tensor

    mesh = da.init_device_mesh((1,))
    mine = full.clone().requires_grad_()
    with _Allocations() as forward, torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        loss = vocab_parallel_cross_entropy(mine, target, mesh, label_smoothing=0.1)
    with _Allocations() as backward:
        (slope,) = torch.autograd.grad(loss, mine)
    assert slope.shape == mine.shape
    assert max(forward.sizes) * 4 <= full.nbytes
    assert sum(size * 4 > full.nbytes for size in backward.sizes) == 1
    assert max(backward.sizes) == full.nbytes
    assert mine.untyped_storage().data_ptr() in saved
