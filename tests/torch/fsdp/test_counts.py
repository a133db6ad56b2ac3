"""What travels, what is whole at a time, and what stays behind."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.comm import _memory  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from distarray.torch.fsdp._bucket import Bucket  # noqa: E402
from tests.torch.fsdp.training import filled, mean_square, on_ranks, values  # noqa: E402

X = values(12, 5)


def layers(count=4, width=5):
    return filled(
        nn.Sequential(*(nn.Linear(width, width) for _ in range(count)), nn.Linear(width, 2))
    )


def sharded(module, mesh, *, reshard_after_forward=True, **kwargs):
    kwargs["reshard_after_forward"] = reshard_after_forward
    mine = copy.deepcopy(module)
    for child in list(mine)[:-1]:
        dt.fully_shard(child, mesh, **kwargs)
    return dt.fully_shard(mine, mesh, **kwargs)


def shard_length(length, ranks, rank):
    """Return how many of so many rows a rank has: blocks of one size, and what is left."""
    block = -(-length // ranks)
    return max(0, min(block, length - rank * block))


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_bytes_are_those_of_theory(ranks, after, dtype):
    size = dtype.itemsize

    def program(mesh):
        mine = sharded(layers().to(dtype), mesh, reshard_after_forward=after)
        rank, logs = mesh.coordinate[0], []
        for _ in range(2):
            with da.CommLog() as forward:
                loss = mean_square(mine, X.to(dtype))
            with da.CommLog() as backward:
                loss.backward()
            logs.append((forward, backward))
        own = 4 * shard_length(5, ranks, rank) * 6 + shard_length(2, ranks, rank) * 6
        total = 4 * 5 * 6 + 2 * 6
        for (
            forward,
            backward,
        ) in logs:  # the first pass has nothing to expect, the second prefetches
            assert forward.count() == forward.count("all_gather", "dp") == 5
            assert forward.bytes() == (total - own) * size
            again = 5 if after else 0
            assert backward.count("all_gather", "dp") == again
            assert backward.bytes("all_gather") == (total - own) * size * (again > 0)
            assert backward.count("reduce_scatter", "dp") == 5
            assert backward.bytes("reduce_scatter") == (ranks - 1) * own * size
            assert backward.count() == again + 5

    on_ranks(ranks, program)


def test_bytes_of_mixed_precision():
    def program(mesh):
        policy = dt.MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        mine = sharded(layers().float(), mesh, mp_policy=policy)
        with da.CommLog() as log:
            mean_square(mine, X.float()).backward()
        own = (
            4 * shard_length(5, 3, mesh.coordinate[0]) * 6
            + shard_length(2, 3, mesh.coordinate[0]) * 6
        )
        assert log.bytes("all_gather") == 2 * (132 - own) * 2
        assert log.bytes("reduce_scatter") == 2 * own * 4

    on_ranks(3, program)


def test_bytes_of_replicas():
    def program():
        mesh = da.init_device_mesh((2, 2), ("r", "s"))
        mine = sharded(layers(), mesh)
        with da.CommLog() as log:
            mean_square(mine, X).backward()
        own = 4 * shard_length(5, 2, mesh.coordinate[1]) * 6 + 6
        assert log.count("all_gather", "s") == 10
        assert log.count("reduce_scatter", "s") == 5
        assert log.count("all_reduce", "r") == 5
        assert log.count() == 20
        assert log.bytes("all_reduce") == own * 8  # 2 b (n - 1) / n

    simulate(4, program)


def test_evaluation_gathers_once():
    def program(mesh):
        mine = sharded(layers(), mesh, reshard_after_forward=False)
        for _ in range(2):
            with da.CommLog() as log, torch.no_grad():
                mine(X)
            assert log.count() == 5

    on_ranks(2, program)


def test_frozen_parameters_are_not_reduced():
    def program(mesh):
        mine = sharded(layers(), mesh)
        for p in list(mine.parameters())[2:6]:
            p.requires_grad_(False)
        with da.CommLog() as log:
            mean_square(mine, X).backward()
        assert log.count("reduce_scatter") == 3
        assert log.count("all_gather") == 10

    on_ranks(2, program)


class Whole:
    """Counts of the gathered wholes of this thread's rank that are there, by instrumentation."""

    def __init__(self, monkeypatch):
        self.alive = {}
        self.most = {}
        arrive, free = Bucket.arrive, Bucket.drop

        def arriving(bundle, buffer):
            found = arrive(bundle, buffer)
            rank = da.comm.world().rank
            self.alive.setdefault(rank, {})[id(bundle)] = weakref.ref(bundle.full.untyped_storage())
            there = sum(ref() is not None for ref in self.alive[rank].values())
            self.most[rank] = max(self.most.get(rank, 0), there)
            return found

        def freeing(bundle, **kwargs):
            free(bundle, **kwargs)
            self.alive[da.comm.world().rank].pop(id(bundle), None)

        monkeypatch.setattr(Bucket, "arrive", arriving)
        monkeypatch.setattr(Bucket, "drop", freeing)


@pytest.mark.parametrize("frozen", ["none", "all layers", "biases", "half of the layers"])
@pytest.mark.parametrize("given", [True, False])
def test_groups_that_are_whole_at_a_time(monkeypatch, frozen, given):
    """The root's, the one that computes, and the one that arrives."""
    whole = Whole(monkeypatch)

    def program(mesh):
        mine = sharded(layers(8), mesh)
        for i, layer in enumerate(list(mine)[:-1]):
            for name, p in layer.named_parameters():
                p.requires_grad_(
                    not {
                        "none": False,
                        "all layers": i > 0,
                        "biases": name == "weight",
                        "half of the layers": i % 2 == 1,
                    }[frozen]
                )
        counts = []
        for _ in range(3):
            with da.CommLog() as log:
                mean_square(mine, X.clone().requires_grad_(given)).backward()
            counts.append(log.count("all_gather"))
        assert counts == [18] * 3

    on_ranks(2, program)
    assert max(whole.most.values()) <= 3
    assert not any(whole.alive.values())


@pytest.mark.parametrize("after", [True, False, 2])
def test_memory_does_not_grow(after):
    wide = layers(3, 130)  # blocks that come from the pool

    def program(mesh):
        mine = sharded(wide, mesh, reshard_after_forward=after)
        x = values(3, 130)
        optimizer = torch.optim.AdamW(mine.parameters(), 0.01)

        def step():
            optimizer.zero_grad()
            mean_square(mine, x).backward()
            optimizer.step()
            with torch.no_grad():
                mine(x)

        for _ in range(5):
            step()
        held = [count(mesh)]
        for _ in range(15):
            step()
        return [*held, count(mesh)]

    def count(mesh):
        """Return bytes and objects of all ranks, which are threads, counted by one of them."""
        mesh.communicator().barrier()
        found = None
        if mesh.rank == 0:
            gc.collect()
            found = _memory.stats().in_use, len(gc.get_objects())
        mesh.communicator().barrier()
        return found

    (nbytes, objects), (nbytes_later, objects_later) = on_ranks(3, program)[0]
    assert nbytes_later <= nbytes
    assert objects_later - objects < 200


def test_shares_alone_stay():
    """Between steps a rank's tensors are its shards and their gradients."""

    def program(mesh):
        mine = sharded(layers(3, 130), mesh)
        mean_square(mine, values(4, 130)).backward()
        kept = {p.untyped_storage()._cdata: p.untyped_storage().nbytes() for p in mine.parameters()}
        return sum(kept.values())

    total = 8 * (3 * 130 * 131 + 2 * 131)
    gc.collect()
    for ranks in (1, 2, 4):
        for found in on_ranks(ranks, program):
            assert found <= total / ranks + 8 * 4 * 131
