"""State dicts, modules on the meta device, other dtypes, and norms of gradients."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from tests.torch.fsdp.models import model, next_token_loss, tokens  # noqa: E402
from tests.torch.fsdp.training import (  # noqa: E402
    check_gradients,
    check_parameters,
    filled,
    gradients,
    mean_square,
    on_ranks,
    rows_of,
    same,
    values,
)

TP = {
    "layers.*.up": dt.ColwiseParallel(),
    "layers.*.down": dt.RowwiseParallel(),
    "head": dt.ColwiseParallel(output_layouts=da.Replicate()),
}
BATCH = tokens(1, 12)[0]


def loss_of(module):
    return next_token_loss(module, rows_of(module, BATCH))


def sharded(module, mesh, **kwargs):
    for layer in module.layers:
        dt.fully_shard(layer, mesh, **kwargs)
    return dt.fully_shard(module, mesh, **kwargs)


LAYOUTS = {
    "1d": ((3,), ("dp",), sharded),
    "hybrid": ((2, 2), ("r", "s"), sharded),
    "tensor parallel": (
        (2, 2),
        ("dp", "tp"),
        lambda m, mesh: sharded(dt.parallelize_module(m, mesh["tp"], TP), mesh["dp"]),
    ),
}


@pytest.fixture(params=LAYOUTS)
def laid(request):
    shape, names, shard = LAYOUTS[request.param]
    count = 1
    for n in shape:
        count *= n

    def run(program):
        def on_rank():
            mesh = da.init_device_mesh(shape, names)
            return program(lambda module: shard(module, mesh), mesh)

        return simulate(count, on_rank)

    return run


def stepped(module, optimizer, steps=2):
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(module).backward()
        optimizer.step()


def test_state_dicts(laid):
    start, other = model(), filled(model(), seed=50)
    whole = copy.deepcopy(other)
    optimizer = torch.optim.AdamW(whole.parameters(), 0.02)
    stepped(whole, optimizer)
    kept = copy.deepcopy(whole.state_dict())
    inner = copy.deepcopy(optimizer.state_dict())
    stepped(whole, optimizer)

    def program(shard, mesh):
        mine = shard(copy.deepcopy(start))
        found = dt.state_dict(mine)
        for name, value in start.state_dict().items():
            same(found[name], value, name)
        loss_of(mine).backward()
        dt.load_state_dict(mine, dict(other.state_dict()))
        mine.zero_grad()
        theirs = torch.optim.AdamW(mine.parameters(), 0.02)
        stepped(mine, theirs)
        found = dt.state_dict(mine)
        for name, value in kept.items():
            same(found[name], value, name)
        state = dt.optimizer_state_dict(mine, theirs)
        names = [n for n, _ in mine.named_parameters()]
        for i, name in enumerate(names):
            for key, value in inner["state"][i].items():
                same(state["state"][name][key].double(), value.double(), f"{name} {key}")
        again = shard(copy.deepcopy(start))
        dt.load_state_dict(again, found)
        fresh = torch.optim.AdamW(again.parameters(), 0.02)
        dt.load_optimizer_state_dict(again, fresh, state)
        stepped(again, fresh)
        check_parameters(again, whole)

    laid(program)


def test_local_state_dicts(laid):
    start = model()
    whole = copy.deepcopy(start)
    loss_of(whole).backward()

    def program(shard, mesh):
        mine = shard(copy.deepcopy(start))
        own = copy.deepcopy(mine.state_dict())
        with torch.no_grad():
            for p in mine.parameters():
                p.zero_()
        mine.load_state_dict(own)
        loss_of(mine).backward()
        check_gradients(mine, gradients(whole))
        mine.load_state_dict({n: v * 0.5 for n, v in own.items()}, assign=True)
        half = copy.deepcopy(start)
        with torch.no_grad():
            for p in half.parameters():
                p.mul_(0.5)
        same(mine(BATCH).detach(), half(BATCH).detach(), "assigned")
        mine.zero_grad()
        loss_of(mine).backward()
        loss_of(half).backward()
        check_gradients(mine, gradients(half))

    laid(program)


@pytest.mark.parametrize("after", [True, False, 2])
@pytest.mark.parametrize("ranks", [1, 3])
def test_assigned_between_two_forwards(ranks, after):
    start = filled(nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)))
    x = values(12, 5)

    def program(mesh):
        mine = copy.deepcopy(start)
        dt.fully_shard(mine[0], mesh, reshard_after_forward=after)
        dt.fully_shard(mine, mesh, reshard_after_forward=after)
        loss = mean_square(mine, x)
        with torch.no_grad():
            own = {n: v * 0.5 for n, v in mine.state_dict().items()}
        if mine[0].weight.shape == (7, 5):  # wholes are what modules hold
            mine.reshard()
        mine.load_state_dict(own, assign=True)
        half = copy.deepcopy(start)
        with torch.no_grad():
            for p in half.parameters():
                p.mul_(0.5)
        same(mine(x).detach(), half(x).detach(), "assigned")
        with pytest.raises(da.errors.ModifiedError):
            loss.backward()
        mean_square(mine, x).backward()
        mean_square(half, x).backward()
        check_gradients(mine, gradients(half))

    on_ranks(ranks, program)


def test_modules_on_the_meta_device(laid):
    start = model()
    whole = copy.deepcopy(start)
    optimizer = torch.optim.AdamW(whole.parameters(), 0.02)
    stepped(whole, optimizer)

    def program(shard, mesh):
        with torch.device("meta"):
            mine = model()
        mine = shard(mine)
        assert all(p.device.type == "meta" for p in mine.parameters())
        mine.to_empty(device="cpu")
        dt.load_state_dict(mine, dict(start.state_dict()))
        stepped(mine, torch.optim.AdamW(mine.parameters(), 0.02))
        check_parameters(mine, whole)

    laid(program)


@pytest.mark.parametrize("after", [True, False])
def test_another_dtype(after):
    start = model().float()
    whole = copy.deepcopy(start).double()
    loss_of(whole).backward()

    def program(mesh):
        mine = sharded(copy.deepcopy(start), mesh, reshard_after_forward=after)
        loss_of(mine)
        with torch.no_grad():
            loss_of(mine)
        mine.double()
        assert all(p.dtype is torch.float64 for p in mine.parameters())
        loss_of(mine).backward()
        check_gradients(mine, gradients(whole))

    on_ranks(2, program)


@pytest.mark.parametrize("norm", [2.0, float("inf"), 1.0])
def test_norms_of_gradients(laid, norm):
    start = model()
    whole = copy.deepcopy(start)
    loss_of(whole).backward()
    wanted = torch.nn.utils.clip_grad_norm_(whole.parameters(), 0.01, norm)

    def program(shard, mesh):
        mine = shard(copy.deepcopy(start))
        loss_of(mine).backward()
        found = dt.clip_grad_norm_(mine.parameters(), 0.01, norm)
        same(found, wanted, "norm")
        check_gradients(mine, gradients(whole))

    laid(program)


def test_another_dtype_before_backward():
    def program(mesh):
        mine = sharded(model(), mesh)
        loss = loss_of(mine)
        mine.float()
        loss_of(mine)
        with pytest.raises(da.errors.ModifiedError):
            loss.backward()
        mine.zero_grad()
        loss_of(mine).backward()

    on_ranks(2, program)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(torch.tanh(self.embedding(x)))


def test_shared_parameters_are_shared_when_they_are_made():
    whole = filled(Tied())
    x = torch.arange(6).reshape(2, 3)

    def program(mesh):
        with torch.device("meta"):
            mine = Tied().double()
        dt.fully_shard(mine, mesh)
        mine.to_empty(device="cpu")
        assert len(list(mine.parameters())) == 1
        dt.load_state_dict(mine, whole.state_dict())
        same(mine(x), whole(x), "output")
        mine.float()
        assert mine.head.weight is mine.embedding.weight

    on_ranks(2, program)


def test_modules_inside_are_sharded_first():
    def program(mesh):
        mine = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        dt.fully_shard(mine, mesh)
        with pytest.raises(ValueError, match=r"weight: .*modules inside first"):
            dt.fully_shard(mine[0], mesh)

    on_ranks(2, program)


@pytest.mark.parametrize("unsharded", [False, True])
@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("ranks", [1, 3])
def test_loaded_into_a_part(ranks, assign, unsharded):
    """A module inside of a sharded one loads its own shards, which are known at once."""
    start = model()
    half = copy.deepcopy(start)
    with torch.no_grad():
        half.layers[0].up.weight.mul_(0.5)
        half.layers[0].up.bias.mul_(0.5)

    def program(mesh):
        mine = sharded(copy.deepcopy(start), mesh)
        part = mine.layers[0].up
        own = {n: v * 0.5 for n, v in part.state_dict().items()}
        if unsharded:
            mine.layers[0].unshard()
        part.load_state_dict(own, assign=assign)
        same(dt.full_tensor(part.weight), half.layers[0].up.weight, "weight")
        copied = copy.deepcopy(part)
        assert type(copied) is nn.Linear
        copied.load_state_dict(own)
        same(mine(BATCH), half(BATCH), "output")
        loss_of(mine).backward()
        reference = copy.deepcopy(half)
        loss_of(reference).backward()
        check_gradients(mine, gradients(reference))

    on_ranks(ranks, program)


def test_assigned_from_outside():
    """A module around sharded ones loads them."""
    start = filled(nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)))

    def program(mesh):
        mine = copy.deepcopy(start)
        for child in mine:
            dt.fully_shard(child, mesh)
        own = {n: v * 0.5 for n, v in mine.state_dict().items()}
        mine[0].unshard()
        mine.load_state_dict(own, assign=True)
        same(dt.full_tensor(mine[0].weight), start[0].weight * 0.5, "weight")
        twice = torch.optim.SGD(mine.parameters(), 1.0)
        mean_square(mine, values(12, 5)).backward()
        twice.step()
        assert all(p.grad is not None for p in mine.parameters())

    on_ranks(3, program)


@pytest.mark.filterwarnings("ignore:.* was loaded in part")
@pytest.mark.parametrize("apart", [False, True])
def test_a_checkpoint_for_a_model_that_has_grown(tmp_path, apart):
    """As `load_optimizer_state_dict` does it with ``strict=False``."""

    def grown(count, mesh):
        module = filled(nn.Sequential(*(nn.Linear(5, 5) for _ in range(count))))
        return dt.fully_shard(module, mesh)

    def program(mesh):
        small, large = grown(2, mesh), grown(3, mesh)
        old = torch.optim.AdamW(small.parameters(), 0.25)
        mean_square(small, values(12, 5)).backward()
        old.step()
        name = str(tmp_path / "saved")
        da.checkpoint.save(name, {"model": small, "optimizer": old})
        groups = [{"params": list(large.parameters())}]
        if apart:
            groups = [{"params": list(part.parameters())} for part in (large[:2], large[2:])]
        new = torch.optim.AdamW(groups, 0.5)
        da.checkpoint.load(name, {"model": large, "optimizer": new}, strict=False)
        assert [group["lr"] for group in new.param_groups] == [0.25, 0.5][: 1 + apart]
        assert len(new.state) == 4
        found = dt.optimizer_state_dict(large, new)["state"]
        for key, one in dt.optimizer_state_dict(small, old)["state"].items():
            for what, value in one.items():
                same(found[key][what], value, f"{key} {what}")

    on_ranks(2, program)
