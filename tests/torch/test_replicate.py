"""Replicas on several ranks train as one process does on all of the data."""

from __future__ import annotations

import contextlib
import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from distarray.torch._buckets import arrange  # noqa: E402


def values(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=dtype, generator=generator)


def filled(module, seed=1):
    """Give a module values that do not depend on torch's own generator."""
    for i, parameter in enumerate(module.parameters()):
        parameter.data.copy_(values(*parameter.shape, seed=seed + i, dtype=parameter.dtype) / 3)
    return module


def mlp():
    layers = nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 3)
    return filled(nn.Sequential(*layers).double())


def on_ranks(ranks, program, shape=None, names=("dp",)):
    return simulate(
        ranks, lambda: program(da.init_device_mesh(shape or (ranks,), names)), timeout=60
    )


def same(given, wanted, tolerance=1e-12):
    torch.testing.assert_close(given, wanted, rtol=tolerance, atol=tolerance)


def gradients(module):
    return {name: None if p.grad is None else p.grad for name, p in module.named_parameters()}


def check_gradients(module, wanted, tolerance=1e-12):
    for name, gradient in gradients(module).items():
        if wanted[name] is None:
            assert gradient is None, name
        else:
            same(gradient, wanted[name], tolerance)


def share(batch, mesh):
    return batch.chunk(mesh.size)[mesh.coordinate[0]]


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(
    "optimizer",
    [lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), lambda p: torch.optim.AdamW(p, 0.05)],
)
@pytest.mark.parametrize("to_none", [True, False])
def test_steps_are_those_of_one_process(ranks, optimizer, to_none):
    model, x = mlp(), values(12, 5, seed=2)
    twin = copy.deepcopy(model)
    stepper = optimizer(twin.parameters())
    losses = []
    for _ in range(5):
        stepper.zero_grad(set_to_none=to_none)
        losses.append(twin(x).square().mean())
        losses[-1].backward()
        stepper.step()

    def program(mesh):
        mine = copy.deepcopy(model)
        if mesh.coordinate[0]:
            filled(mine, seed=50)  # what replicate replaces
        assert dt.replicate(mine, mesh, bucket_bytes=400) is mine
        stepper = optimizer(mine.parameters())
        for step in range(5):
            stepper.zero_grad(set_to_none=to_none)
            loss = mine(share(x, mesh)).square().mean()
            loss.backward()
            if step == 0:
                same(loss, twin_loss(model, share(x, mesh)))
            stepper.step()
        for p, q in zip(mine.parameters(), twin.parameters(), strict=True):
            assert type(p) is nn.Parameter
            same(p.detach(), q.detach())

    on_ranks(ranks, program)


def twin_loss(model, x):
    return copy.deepcopy(model)(x).square().mean()


@pytest.mark.parametrize(
    ("bucket_bytes", "buckets"), [(1 << 20, 1), (9 * 9 * 8, 3), (1, 6), (3 * 9 * 8 + 3 * 8, 5)]
)
def test_one_all_reduce_for_each_bucket(bucket_bytes, buckets):
    model, x = mlp(), values(4, 5, seed=2)

    def program(mesh):
        mine = dt.replicate(copy.deepcopy(model), mesh, bucket_bytes=bucket_bytes)
        with da.CommLog() as log:
            y = mine(share(x, mesh))
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
    found = [bucket.members for bucket in arrange(parameters, 12_000_000)]
    assert found == [(7, 6), (5,), (4, 3), (2,), (1, 0)]


@pytest.mark.parametrize("op", ["avg", "sum"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_gradients_accumulate_with_and_without_synchronisation(op, ranks):
    model, batches = mlp(), [values(6, 5, seed=i) for i in range(5)]
    for batch in batches:
        y = model(batch).square()
        (y.mean() if op == "avg" else y.sum()).backward()
    wanted = gradients(model)
    model.zero_grad()

    def program(mesh):
        mine = dt.replicate(copy.deepcopy(model), mesh, op=op, bucket_bytes=300)
        model.zero_grad()

        def run(batch):
            y = mine(share(batch, mesh)).square()
            (y.mean() if op == "avg" else y.sum()).backward()

        with da.CommLog() as log:
            run(batches[0])
            synced = log.count()
            with dt.no_sync(mine):
                run(batches[1])
                with dt.no_sync(mine):
                    run(batches[2])
                run(batches[3])
            assert log.count() == synced
            run(batches[4])
        assert log.count() == 2 * synced
        check_gradients(mine, wanted)

    on_ranks(ranks, program)


def test_what_counts_is_where_backward_is_called():
    model, x = mlp(), values(6, 5)
    model(x).square().mean().backward()
    wanted = gradients(model)

    def program(mesh):
        mine = dt.replicate(copy.deepcopy(model), mesh)
        mine.zero_grad()
        with dt.no_sync(mine):
            y = mine(share(x, mesh))
        y.square().mean().backward()
        check_gradients(mine, wanted)

    on_ranks(3, program)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(4, 4)
        self.left = nn.Linear(4, 4)
        self.right = nn.Linear(4, 4)
        self.never = nn.Linear(4, 4)

    def forward(self, x, branch):
        x = self.trunk(x)
        return self.left(x) if branch == 0 else self.right(x) if branch == 1 else x


@pytest.mark.parametrize("bucket_bytes", [1 << 20, 200, 1])
def test_parameters_that_some_ranks_or_none_use(bucket_bytes):
    model, x = filled(Branches().double()), values(3, 2, 4)
    for rank in range(3):
        (model(x[rank], rank).square().mean() / 3).backward()
    wanted = gradients(model)
    assert wanted["never.weight"] is None
    model.zero_grad()

    def program(mesh):
        (rank,) = mesh.coordinate
        mine = dt.replicate(copy.deepcopy(model), mesh, bucket_bytes=bucket_bytes)
        for _ in range(2):
            mine.zero_grad()
            mine(x[rank], rank).square().mean().backward()
            check_gradients(mine, wanted)
        kept = mine.left.weight.grad
        mine(x[rank], 2).square().mean().backward()  # left and right are used by nobody
        assert mine.left.weight.grad is kept
        same(kept, wanted["left.weight"])

    on_ranks(3, program)


def test_several_backward_passes_for_one_forward():
    model, x = mlp(), values(6, 5)
    y = model(x)
    y.square().mean().backward(retain_graph=True)
    y.mean().backward()
    wanted = gradients(model)
    model.zero_grad()

    def program(mesh):
        mine = dt.replicate(copy.deepcopy(model), mesh, bucket_bytes=300)
        y = mine(share(x, mesh))
        y.square().mean().backward(retain_graph=True)
        y.mean().backward()
        check_gradients(mine, wanted)

    on_ranks(2, program)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.last = nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.frozen = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x):
        return self.last(self.frozen(self.second(self.first(x)).tanh()).tanh())


def test_shared_and_frozen_parameters():
    model, x = filled(Tied().double()), values(6, 4)
    model(x).square().mean().backward()
    wanted = gradients(model)
    model.zero_grad()

    def program(mesh):
        mine = copy.deepcopy(model)
        if mesh.coordinate[0]:
            filled(mine, seed=77)
        dt.replicate(mine, mesh, bucket_bytes=100)
        assert mine.last.weight is mine.first.weight
        same(mine.frozen.weight, model.frozen.weight)
        mine(share(x, mesh)).square().mean().backward()
        check_gradients(mine, wanted)

    on_ranks(2, program)


def test_parameters_thawed_later_are_averaged_from_the_next_call_on():
    model, x = mlp(), values(6, 5)
    model(x).square().mean().backward()
    wanted = gradients(model)
    model.zero_grad()
    model[0].requires_grad_(False)

    def program(mesh):
        mine = dt.replicate(copy.deepcopy(model), mesh)
        mine(share(x, mesh)).square().mean().backward()
        check_gradients(mine, {**wanted, "0.weight": None, "0.bias": None})
        mine.zero_grad()
        mine[0].requires_grad_(True)
        mine(share(x, mesh)).square().mean().backward()
        check_gradients(mine, wanted)

    on_ranks(2, program)


class Segments(nn.Module):
    """Checkpointed segments that share a layer with each other, and with what is outside them."""

    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.shared = nn.Linear(4, 4)
        self.one = nn.Linear(4, 4)
        self.two = nn.Linear(4, 4)

    def forward(self, x):
        x = self.shared(x)
        for part in (self.one, self.two):
            x = self.run(lambda x, part=part: self.shared(part(x)).tanh(), x)
        return x

    def run(self, part, x):
        if self.reentrant is None:
            return part(x)
        return checkpoint(part, x, use_reentrant=self.reentrant)


@pytest.mark.filterwarnings("ignore:None of the inputs:UserWarning")  # the outer one's first run
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("op", ["avg", "sum"])
@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20])
def test_checkpoints(reentrant, op, outside, bucket_bytes):
    model, x = filled(Segments(None).double()), values(6, 4)
    for _ in range(2):
        model(x).square().sum().backward()
    wanted = gradients(model)
    model.zero_grad()
    if op == "avg":
        wanted = {name: gradient / 2 for name, gradient in wanted.items()}

    def program(mesh):
        mine = copy.deepcopy(model)
        mine.reentrant = reentrant
        dt.replicate(mine, mesh, op=op, bucket_bytes=bucket_bytes)
        for _ in range(2):
            part = share(x, mesh).clone().requires_grad_()
            y = checkpoint(mine, part, use_reentrant=reentrant) if outside else mine(part)
            y.square().sum().backward()
        check_gradients(mine, wanted)

    on_ranks(2, program)


def test_gradients_asked_for_by_themselves_are_not_averaged():
    model, x = mlp(), values(6, 5)

    def program(mesh):
        mine = dt.replicate(copy.deepcopy(model), mesh)
        twin = copy.deepcopy(model)
        part = share(x, mesh)
        with da.CommLog() as log:
            found = torch.autograd.grad(mine(part).sum(), list(mine.parameters()))
        assert log.count() == 0
        own = torch.autograd.grad(twin(part).sum(), list(twin.parameters()))
        for a, b in zip(found, own, strict=True):
            same(a, b)

    on_ranks(2, program)


def test_gradient_penalties():
    model, x = mlp(), values(6, 5)

    def loss(module, x):
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
        return slope.square().mean()

    loss(model, x).backward()
    wanted = gradients(model)
    model.zero_grad()

    def program(mesh):
        mine = dt.replicate(copy.deepcopy(model), mesh, bucket_bytes=100)
        loss(mine, share(x, mesh)).backward()
        check_gradients(mine, wanted)

    on_ranks(2, program)


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
            run(mine, share(x, mesh)).backward()
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
        mine(share(x, mesh)).square().mean().backward()
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
            losses = [mine(part).square().mean() for part in share(x, mesh).chunk(2)]
        assert log.count("broadcast") == log.count() == 2
        sum(losses).backward()  # after the statistics of the second call were broadcast
        mine.eval()
        mine(share(x, mesh))
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
            mine(share(x, mesh))
        assert log.count() == 0
        return mine[1].running_mean

    first, second = on_ranks(2, program)
    assert not torch.equal(first, second)


def test_blocks_over_another_mesh_axis_are_averaged_over_this_one():
    model, x = mlp(), values(8, 5)
    twin = copy.deepcopy(model)
    stepper = torch.optim.AdamW(twin.parameters(), 0.05)
    for _ in range(3):
        stepper.zero_grad()
        twin(x).square().mean().backward()
        stepper.step()

    def program(mesh):
        mine = copy.deepcopy(model)
        plan = {"0": dt.ColwiseParallel(), "2": dt.RowwiseParallel()}
        dt.parallelize_module(mine, mesh["tp"], plan)
        dt.replicate(mine, mesh["dp"], bucket_bytes=200)
        stepper = torch.optim.AdamW(mine.parameters(), 0.05)
        part = share(x, mesh["dp"])
        for _ in range(3):
            stepper.zero_grad()
            mine(part).square().mean().backward()
            stepper.step()
        same(mine[4].weight.detach(), twin[4].weight.detach())
        rows = twin[0].weight.detach().chunk(2)[mesh.coordinate[1]]
        same(mine[0].weight.detach(), rows)
        same(mine(part), twin(part))

    on_ranks(4, program, (2, 2), ("dp", "tp"))


def test_both_axes_of_a_mesh():
    model, x = mlp(), values(8, 5)
    model(x).square().mean().backward()
    wanted = gradients(model)
    model.zero_grad()

    def program(mesh):
        mine = dt.replicate(copy.deepcopy(model), mesh)
        a, b = mesh.coordinate
        with da.CommLog() as log:
            mine(x.chunk(4)[2 * a + b]).square().mean().backward()
        assert log.count() == 1
        check_gradients(mine, wanted)

    on_ranks(4, program, (2, 2), ("a", "b"))


def test_one_rank_sends_nothing():
    def program(mesh):
        mine = dt.replicate(mlp(), mesh)
        with da.CommLog() as log:
            mine(values(2, 5)).sum().backward()
        assert log.count() == 0

    on_ranks(1, program)


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ZeroDivisionError("in backward")


@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20])
def test_an_exception_in_backward_leaves_it_usable(bucket_bytes):
    model, x = mlp(), values(6, 5)
    model(x).square().mean().backward()
    wanted = gradients(model)
    model.zero_grad()

    def program(mesh):
        mine = dt.replicate(copy.deepcopy(model), mesh, bucket_bytes=bucket_bytes)
        part = share(x, mesh)
        handle = mine[1].register_forward_hook(lambda m, a, y: Raises.apply(y))
        with pytest.raises(ZeroDivisionError):
            mine(part).square().mean().backward()
        handle.remove()
        for _ in range(2):
            mine.zero_grad()
            mine(part).square().mean().backward()
            check_gradients(mine, wanted)

    on_ranks(2, program)


def test_copies_are_replicas_too():
    model, x = mlp(), values(6, 5)
    model(x).square().mean().backward()
    wanted = gradients(model)
    model.zero_grad()

    def program(mesh):
        mine = copy.deepcopy(dt.replicate(copy.deepcopy(model), mesh))
        mine(share(x, mesh)).square().mean().backward()
        check_gradients(mine, wanted)

    on_ranks(2, program)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.register_parameter("extra", nn.Parameter(torch.ones(1))), "parameter extra"),
        (lambda m: m.double(), "0.weight: float32.*rank 1: .*0.weight: float64"),
        (lambda m: m[0].requires_grad_(False), "0.weight.*without gradient"),
        (lambda m: m.__setitem__(0, nn.Linear(5, 8)), r"0.weight: float32 \(8, 5\)"),
        (lambda m: m.to("meta"), "meta"),
        (lambda m: dt.replicate(m, da.init_device_mesh((1,))), "already"),
        (lambda m: m.register_buffer("b", torch.ones(2)), "buffer b"),
    ],
)
def test_ranks_with_different_modules_hear_of_it_all(change, message):
    def program():
        mesh = da.init_device_mesh((3,), ("dp",))
        module = filled(nn.Sequential(nn.Linear(5, 9), nn.Linear(9, 9)))
        if mesh.coordinate == (1,):
            # On one rank alone: another mesh of one rank, where the mesh of three is not at hand.
            with contextlib.suppress(da.errors.MeshError):
                if message == "already":
                    module.__dict__["_distarray_replica"] = None
                else:
                    change(module)
        with pytest.raises(da.errors.DistArrayError, match=message):
            dt.replicate(module, mesh)
        return True

    assert simulate(3, program) == [True] * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"op": "max"}, "'avg' or 'sum'"), ({"bucket_bytes": 0}, "positive")],
)
def test_arguments_that_cannot_be(arguments, message):
    def program(mesh):
        with pytest.raises(da.errors.ArgumentError, match=message):
            dt.replicate(mlp(), mesh, **arguments)

    on_ranks(2, program)


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
def test_gradients_that_cannot_be_averaged():
    def program(mesh):
        sparse = dt.replicate(nn.Embedding(4, 2, sparse=True), mesh)
        with pytest.raises(da.errors.ArgumentTypeError, match="'weight' is sparse"):
            sparse(torch.tensor([1, 2])).sum().backward()
        again = dt.replicate(mlp(), mesh)
        y = again(values(2, 5)).square().sum()
        with pytest.raises(da.errors.ArgumentError, match="create_graph"):
            y.backward(create_graph=True)

    on_ranks(2, program)


def test_no_sync_of_what_is_not_replicated():
    error = pytest.raises(da.errors.ArgumentError, match="without anything replicated")
    with error, dt.no_sync(nn.Linear(2, 2)):
        pass


def test_ranks_out_of_step_hear_of_it():
    def program(mesh):
        mine = dt.replicate(mlp(), mesh)
        x = values(2, 5)
        if mesh.coordinate[0] == 0:
            mine(x)  # one call more than the other
        with pytest.raises(da.errors.MismatchError, match="forward call"):
            mine(x).sum().backward()

    on_ranks(2, program)
