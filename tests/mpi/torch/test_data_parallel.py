"""torch's own DistributedDataParallel around modules that are cut over the other mesh axis."""

from __future__ import annotations

import contextlib
import os
import sys
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")

from torch import distributed, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402

pytestmark = [
    pytest.mark.mpi(min_size=2),
    pytest.mark.timeout(100),
    pytest.mark.filterwarnings("ignore"),  # of torch's own
    pytest.mark.skipif(not distributed.is_available(), reason="torch was built without it"),
]

COL, ROW, ALONG = dt.ColwiseParallel, dt.RowwiseParallel, da.Shard(1)


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    """Let the ranks of a column be a process group of torch's; 2 rows, or as many as ranks."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD.Dup()
    columns = world.size // 2 if world.size % 2 == 0 else 1
    mesh = da.init_device_mesh((world.size // columns, columns), ("dp", "tp"))
    folder = world.bcast(str(tmp_path_factory.mktemp("gloo")) if world.rank == 0 else None)
    # gloo looks the host's name up, which not every machine knows; all of this is on one.
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    with pytest.MonkeyPatch.context() as patch:
        if "GLOO_SOCKET_IFNAME" not in os.environ:
            patch.setenv("GLOO_SOCKET_IFNAME", loopback)
        distributed.init_process_group(
            "gloo",
            init_method=f"file://{folder}/column{mesh.coordinate[1]}",
            rank=mesh.coordinate[0],
            world_size=mesh.shape[0],
            timeout=timedelta(seconds=60),
        )
    yield mesh
    world.Barrier()
    distributed.destroy_process_group()
    world.Free()


class Model(nn.Module):
    """A transformer block between tied embeddings, with a frozen layer and one that is not used."""

    def __init__(self, width=8, words=11):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.first, self.second, self.last = (nn.LayerNorm(width) for _ in range(3))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 13), nn.Linear(13, width)
        self.frozen, self.unused = nn.Linear(width, width), nn.Linear(width, 5)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight
        self.frozen.requires_grad_(False)

    def forward(self, text):
        x = self.words(text)
        y = self.qkv(self.first(x))
        q, k, v = (one.unflatten(-1, (-1, 4)).transpose(1, 2) for one in y.chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        x = x + self.down(torch.tanh(self.up(self.second(x))))
        return self.head(self.last(self.frozen(x)))


PLAN = {
    "words": ROW(output_layouts=ALONG),
    "first": dt.SequenceParallel(),
    "qkv": COL(input_layouts=ALONG, parts=(8, 8, 8), unit=4),
    "out": ROW(output_layouts=ALONG, unit=4),
    "second": dt.SequenceParallel(),
    "up": COL(input_layouts=ALONG),
    "down": ROW(output_layouts=ALONG),
    "frozen": dt.SequenceParallel(),
    "unused": COL(),
    "last": dt.SequenceParallel(),
    "head": COL(input_layouts=ALONG, output_layouts=da.Replicate()),
}


def made(seed):
    torch.manual_seed(seed)
    return Model().double()


def next_word_loss(model, text):
    return functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


def batches(rows):
    """Return 3 steps of 2 passes, each of 2 sentences for each row of the mesh."""
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, 11, (3, 2, 2 * rows, 7), generator=generator)


def trained_alone(rows):
    model = made(0)
    optimizer = torch.optim.AdamW(model.parameters(), 0.05)
    for step in batches(rows):
        optimizer.zero_grad()
        for whole in step:
            (next_word_loss(model, whole) / 2).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("static", [False, True])
def test_training_is_that_of_one_process(mesh, static, views):
    alone = trained_alone(mesh.shape[0])
    mine = dt.parallelize_module(made(mesh.rank), mesh["tp"], PLAN)  # every row has other values,
    wrapped = nn.parallel.DistributedDataParallel(  # until it is given those of the first
        mine,
        find_unused_parameters=not static,
        static_graph=static,
        gradient_as_bucket_view=views,
        bucket_cap_mb=0.0005,
    )
    optimizer = torch.optim.AdamW(wrapped.parameters(), 0.05)
    for step in batches(mesh.shape[0]):
        optimizer.zero_grad()
        for k, whole in enumerate(step):
            part = whole.chunk(mesh.shape[0])[mesh.coordinate[0]]
            with contextlib.nullcontext() if k or static else wrapped.no_sync():
                (next_word_loss(wrapped, part) / 2).backward()
        optimizer.step()
    assert mine.head.weight is mine.words.weight
    assert mine.unused.weight.grad is None
    dt.check_replicas(mine, mesh)
    found, wanted = dt.state_dict(mine), alone.state_dict()
    for name, value in wanted.items():
        torch.testing.assert_close(
            found[name], value, rtol=1e-9, atol=1e-9, msg=lambda m, name=name: f"{name}: {m}"
        )
    for (name, p), q in zip(mine.named_parameters(), alone.parameters(), strict=True):
        if q.grad is not None:
            torch.testing.assert_close(
                dt.full_tensor(p.grad) if dt.layout_of(p.grad) is not None else p.grad,
                q.grad,
                rtol=1e-9,
                atol=1e-12,
                msg=lambda m, name=name: f"{name}: {m}",
            )
