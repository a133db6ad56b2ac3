"""Modules that are initialised as shares have the values of one process with the same seed."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(100)]

COL, ROW = dt.ColwiseParallel, dt.RowwiseParallel


class Net(nn.Module):
    """Of every kind of module that is cut, with a fused weight and a tied one."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 6, padding_idx=3)
        self.vectors = nn.Embedding(5, 7, padding_idx=3)
        self.bags = nn.EmbeddingBag(9, 4)
        self.up, self.down = nn.Linear(6, 10), nn.Linear(10, 6)
        self.qkv = nn.Linear(6, 24)
        self.pair, self.row_pair = nn.Bilinear(3, 4, 5), nn.Bilinear(7, 4, 5)
        self.conv, self.row_conv = nn.Conv2d(3, 8, 3), nn.Conv1d(5, 3, 2)
        self.grouped = nn.Conv1d(8, 12, 3, groups=4)
        self.transposed, self.row_transposed = (
            nn.ConvTranspose2d(4, 5, 2),
            nn.ConvTranspose1d(4, 5, 2),
        )
        self.attention = nn.MultiheadAttention(8, 4, add_bias_kv=True)
        self.apart = nn.MultiheadAttention(8, 4, kdim=5, vdim=3)
        self.batch, self.group = nn.BatchNorm1d(8), nn.GroupNorm(4, 8)
        self.layer = nn.LayerNorm(6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.words.weight
        self.gru = nn.GRU(4, 5)


PLAN = {
    **{name: COL() for name in ("vectors", "up", "pair", "conv", "grouped", "transposed")},
    **{name: COL() for name in ("attention", "apart", "batch", "group", "head")},
    **{name: ROW() for name in ("words", "bags", "down", "row_pair", "row_conv", "row_transposed")},
    "qkv": COL(parts=(12, 6, 6), unit=(6, 3, 3)),
    "layer": dt.SequenceParallel(),
}


def cut_by_styles(make):
    mesh = da.default_mesh()
    return dt.parallelize_module(make(), mesh, PLAN)


def cut_by_shares(make):
    mesh = da.default_mesh()
    model = make()
    dt.fully_shard(model.attention, mesh)
    return dt.fully_shard(model, mesh, shard_placement_fn=lambda p: da.Shard(p.ndim - 1))


def cut_by_both(make):
    size = da.default_mesh().size
    mesh = da.init_device_mesh((2, size // 2) if size % 2 == 0 else (size, 1), ("dp", "tp"))
    model = dt.parallelize_module(make(), mesh["tp"], PLAN)
    return dt.fully_shard(model, mesh["dp"])


def reset(model):
    for module in model.modules():
        for name in ("reset_parameters", "_reset_parameters"):
            if hasattr(module, name):
                getattr(module, name)()


def in_the_manner_of_hugging_face(model):
    def fill(module):
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Bilinear):
            module.weight.data.normal_(mean=0.0, std=0.02)
            if module.bias is not None:
                module.bias.data.zero_()
        elif isinstance(module, nn.Embedding | nn.EmbeddingBag):
            nn.init.normal_(module.weight, std=0.02)
            if module.padding_idx is not None:
                module.weight.data[module.padding_idx].zero_()
        elif isinstance(module, nn.LayerNorm | nn.GroupNorm | nn.BatchNorm1d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.MultiheadAttention | nn.GRU | nn.ConvTranspose1d):
            reset(module)
        for name, p in module.named_parameters():
            if name.endswith("down.weight"):  # of a module further in, once more
                p.data.normal_(std=0.02 / math.sqrt(6))

    model.apply(fill)
    reset(model.transposed)
    reset(model.batch)


def by_every_function(model):
    generator = torch.Generator().manual_seed(5)
    init = nn.init
    model.batch.reset_running_stats()
    for weight in (p for p in model.parameters() if p.ndim == 1):
        init.uniform_(weight, generator=generator)
    matrices = [p for p in model.parameters() if p.ndim == 2]
    functions = [
        init.eye_,
        init.orthogonal_,
        lambda w: init.sparse_(w, 0.3),
        lambda w: init.trunc_normal_(w.data, 0.1, 2.0, -1.0, 1.5),
        lambda w: init.xavier_uniform_(tensor=w, gain=1.5),
        init.xavier_normal_,
        lambda w: init.kaiming_normal_(w, mode="fan_out", nonlinearity="relu"),
        lambda w: init.kaiming_uniform_(w.detach()),
        lambda w: init.constant_(w, 0.5),
        lambda w: w.data.exponential_(2.0),
        lambda w: w.data.random_(0, 7),
        lambda w: w.data.bernoulli_(0.4).mul_(3),
        lambda w: w.data.log_normal_().clamp_(max=4),
        lambda w: w.data.geometric_(0.5).add_(w.data.cauchy_().sign_()),
    ]
    for i, weight in enumerate(matrices * 2):
        functions[i % len(functions)](weight)
    for weight in (p for p in model.parameters() if p.ndim > 2):
        init.dirac_(weight) if weight.ndim == 3 else init.normal_(weight)


@pytest.mark.parametrize("fill", [reset, in_the_manner_of_hugging_face, by_every_function])
@pytest.mark.parametrize("cut", [cut_by_styles, cut_by_shares, cut_by_both])
@pytest.mark.parametrize("on", ["meta", "cpu"])
def test_initialised_shares_are_those_of_one_process(cut, fill, on):
    alone = Net()
    torch.manual_seed(3)
    fill(alone)
    after = torch.rand(1)

    def make():
        with torch.device(on):
            return Net()

    mine = cut(make)
    if on == "meta":
        mine.to_empty(device="cpu")
    assert mine.head.weight is mine.words.weight
    with torch.no_grad():  # nothing of what was there shows
        for tensor in (*mine.parameters(), *mine.buffers()):
            tensor.fill_(1 + da.default_mesh().rank)
    torch.manual_seed(3)
    fill(mine)
    assert torch.equal(torch.rand(1), after)  # and generators go on as in one process
    found, wanted = dt.state_dict(mine), alone.state_dict()
    assert found.keys() == wanted.keys()
    wrong = [name for name in wanted if not torch.equal(found[name], wanted[name])]
    assert not wrong


def test_other_seeds_on_some_ranks_are_refused():
    mesh = da.default_mesh()
    mine = dt.parallelize_module(nn.Linear(4, 6), mesh, COL())
    if mesh.size == 1:
        pytest.skip("one rank agrees with itself")
    before = mine.weight.detach().clone()
    torch.manual_seed(mesh.rank)
    for fill in (mine.reset_parameters, mine.weight.data.normal_):
        with pytest.raises(da.errors.MismatchError, match=r"torch\.manual_seed with one"):
            fill()
    assert torch.equal(mine.weight, before)
    own = torch.full((3,), float(mesh.rank)).uniform_()  # what is no share is each rank's own
    nn.init.normal_(own)
    generator = torch.Generator().manual_seed(4)
    nn.init.normal_(mine.weight, generator=generator)
    alone = nn.init.normal_(torch.empty(6, 4), generator=torch.Generator().manual_seed(4))
    assert torch.equal(dt.full_tensor(mine.weight), alone)


def test_parts_of_a_share_are_refused():
    mesh = da.default_mesh()
    mine = dt.parallelize_module(nn.Linear(4, 12), mesh, COL(parts=(4, 4, 4)))
    if mesh.size == 1:
        nn.init.xavier_uniform_(mine.weight[:4])  # of everything
        return
    torch.manual_seed(3)
    for part in (*mine.weight.chunk(3), mine.weight.data[:1], mine.weight.data.T):
        with torch.no_grad(), pytest.raises(da.errors.ArgumentError, match="distribute_tensor"):
            nn.init.xavier_uniform_(part)
        with torch.no_grad(), pytest.raises(da.errors.ArgumentError, match="12x4"):
            part.normal_()
    with pytest.raises(da.errors.ArgumentError, match="takes numbers"):
        mine.weight.data.bernoulli_(torch.full_like(mine.weight, 0.5))
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        mine.weight.normal_()
