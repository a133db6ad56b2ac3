"""Replicas on several ranks train as one process does on all of the data."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
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
            loss = mine(shard(x, mesh)).square().mean()
            loss.backward()
            if step == 0:
                same(loss, twin_loss(model, shard(x, mesh)))
            stepper.step()
        for p, q in zip(mine.parameters(), twin.parameters(), strict=True):
            assert type(p) is nn.Parameter
            same(p.detach(), q.detach())

    on_ranks(ranks, program)


def twin_loss(model, x):
    return copy.deepcopy(model)(x).square().mean()


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
            y = mine(shard(batch, mesh)).square()
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
            y = mine(shard(x, mesh))
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
        mine(shard(x, mesh)).square().mean().backward()
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
        mine(shard(x, mesh)).square().mean().backward()
        check_gradients(mine, {**wanted, "0.weight": None, "0.bias": None})
        mine.zero_grad()
        mine[0].requires_grad_(True)
        mine(shard(x, mesh)).square().mean().backward()
        check_gradients(mine, wanted)

    on_ranks(2, program)


def convert_weights(module):
    """Give weights data of another dtype, and those that they had."""
    for parameter in module.parameters():
        data = parameter.data
        parameter.data = data.float()
        parameter.data = data


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize(
    ("convert", "tolerance"),
    [
        (lambda m: m.float().double(), 1e-6),
        (lambda m: m.bfloat16().double(), 0.05),
        (convert_weights, None),
    ],
    ids=["float", "bfloat16", "data"],
)
def test_gradients_are_averaged_after_another_dtype_in_between(convert, tolerance, called):
    """Torch then accumulates gradients in other nodes of the graph, without hooks."""
    model, x = mlp(), values(6, 5)
    model(x).square().mean().backward()
    wanted = gradients(model)
    model.zero_grad()

    def program(mesh):
        mine = dt.replicate(copy.deepcopy(model), mesh)
        if called:
            mine(shard(x, mesh)).square().mean().backward()
            mine.zero_grad()
        convert(mine)
        mine(shard(x, mesh)).square().mean().backward()
        check_gradients(mine, wanted, tolerance)

    on_ranks(2, program)


@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20])
@pytest.mark.parametrize("ranks", [1, 2])
def test_steps_inside_of_backward_are_those_of_one_process(ranks, bucket_bytes):
    """An optimizer for each parameter steps by its average, where and as often as by its own."""
    model, batches = mlp(), [values(6, 5, seed=seed) for seed in (1, 2, 3)]

    def train(module, parts):
        optimizers = {p: torch.optim.SGD([p], 0.1) for p in module[0].parameters()}

        def step(p):
            optimizers[p].step()
            optimizers[p].zero_grad()

        def step_by_hand(p):
            p.sub_(p.grad, alpha=0.1)
            p.grad = None

        for p in module.parameters():
            p.register_post_accumulate_grad_hook(step if p in optimizers else step_by_hand)
        for part in parts:
            module(part).square().mean().backward()
        assert all(p.grad is None for p in module.parameters())

    whole = copy.deepcopy(model)
    train(whole, [batches[0], torch.cat(batches[1:])])

    def program(mesh):
        mine = dt.replicate(copy.deepcopy(model), mesh, bucket_bytes=bucket_bytes)
        first, *rest = (shard(x, mesh) for x in batches)
        train(mine, [first, torch.cat(rest)])
        for p, q in zip(mine.parameters(), whole.parameters(), strict=True):
            same(p.detach(), q.detach())

    on_ranks(ranks, program)


def test_hooks_after_accumulation_wait_for_the_average():
    """Those of steps without synchronisation, and of parameters that other ranks have used."""
    model, x = mlp(), values(6, 5)
    extra = nn.Linear(5, 3).double()

    def program(mesh):
        mine = dt.replicate(nn.ModuleList([copy.deepcopy(model), copy.deepcopy(extra)]), mesh)
        mine.forward = lambda x, both: mine[0](x) + (mine[1](x) if both else 0)
        calls = []
        weight = mine[1].weight
        weight.register_post_accumulate_grad_hook(lambda p: calls.append(p.grad.clone()))
        part, first = shard(x, mesh), mesh.coordinate[0] == 0
        with dt.no_sync(mine):
            mine(part, both=first).square().mean().backward()
        assert not calls
        mine(part, both=False).square().mean().backward()
        (found,) = calls
        same(found, weight.grad)
        return found

    first, second = on_ranks(2, program)
    same(first, second)
    assert first.any()


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
        part = shard(x, mesh["dp"])
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


@pytest.mark.parametrize("whole", [True, False])
def test_copies_are_replicas_too(whole):
    model, x = mlp(), values(6, 5)
    model(x).square().mean().backward()
    wanted = gradients(model)
    model.zero_grad()

    def program(mesh):
        mine = copy.deepcopy(dt.replicate(copy.deepcopy(model), mesh))
        called = mine if whole else nn.Sequential(*mine)
        called(shard(x, mesh)).square().mean().backward()
        check_gradients(mine, wanted)

    on_ranks(2, program)


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # of torch itself
def test_transforms_of_torch_func_are_of_the_rank_alone():
    """Derivatives along a direction, and gradients of single items, on one rank and not another."""
    model, x = mlp(), values(4, 5)

    def derivatives(module):
        def loss(given, item):
            return torch.func.functional_call(module, given, (item,)).square().sum()

        given = {name: p.detach() for name, p in module.named_parameters()}
        each = torch.func.vmap(torch.func.grad(loss), (None, 0))(given, x)
        return [*each.values(), torch.func.jvp(module, (x,), (x.cos(),))[1].detach()]

    wanted = derivatives(model)
    model(x).square().mean().backward()
    averages = gradients(model)

    def program(mesh):
        mine = dt.replicate(copy.deepcopy(model), mesh)
        mine.zero_grad()
        for _ in range(2):
            if mesh.coordinate[0]:
                for found, expected in zip(derivatives(mine), wanted, strict=True):
                    same(found, expected)
            mine(x).square().mean().backward()  # and once more, with hooks in place
            check_gradients(mine, averages)
            mine.zero_grad()

    on_ranks(2, program)


def test_gradients_of_what_parameters_are_computed_from_are_averaged():
    """An inner step of training, differentiated by the outer one."""
    model, x = mlp(), values(6, 5)

    def adapt(module, batch, call):
        named = dict(module.named_parameters())
        inner = torch.autograd.grad(module(batch).sum(), named.values(), create_graph=True)
        changed = {k: p - 0.1 * g for (k, p), g in zip(named.items(), inner, strict=True)}
        call(module, changed, (batch,)).square().mean().backward()

    call = torch.func.functional_call
    parts = x.chunk(2)
    for part in parts:  # each task adapts to its own items
        adapt(model, part, call)
    wanted = {name: g / 2 for name, g in gradients(model).items()}
    model.zero_grad()

    def program(mesh):
        mine = dt.replicate(copy.deepcopy(model), mesh)
        adapt(mine, shard(x, mesh), call)
        check_gradients(mine, wanted)
        mine.zero_grad()
        adapt(mine, shard(x, mesh), call)  # once more, with hooks in place
        check_gradients(mine, wanted)

    on_ranks(2, program)


@pytest.mark.parametrize("whole", [False, True], ids=["rows of a rank", "all rows"])
@pytest.mark.parametrize("how", [dt.replicate, dt.fully_shard])
def test_a_contrastive_loss_of_the_gathered_batch_is_averaged_as_declared(how, whole):
    model, x = mlp(), values(12, 5)

    def loss(first, second, rows):
        scores = nn.functional.normalize(first, dim=-1) @ nn.functional.normalize(second, dim=-1).T
        return nn.functional.cross_entropy(scores / 0.3, rows)

    loss(model(x), model(x.flip(1)), torch.arange(12)).backward()
    wanted = gradients(model)
    model.zero_grad()

    def program(mesh):
        mine = how(copy.deepcopy(model), mesh)
        apart = [da.Shard(0)], [da.Replicate()]
        first, second = mine(shard(x, mesh)), mine(shard(x.flip(1), mesh))
        second = dt.redistribute(second, mesh, *apart, grad_placements=[da.Partial()])
        if whole:
            first = dt.redistribute(first, mesh, *apart, grad_placements=[da.Partial()])
        rows = torch.arange(12)
        loss(first, second, rows if whole else shard(rows, mesh)).backward()
        for name, p in mine.named_parameters():
            gradient = p.grad if how is dt.replicate else dt.full_tensor(p.grad)
            same(gradient, wanted[name], wanted.values())

    on_ranks(3, program)
