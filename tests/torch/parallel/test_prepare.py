"""Inputs and outputs are brought where modules need them, with the fewest reductions."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import MismatchError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from tests.torch.parallel.twins import compare  # noqa: E402
from tests.torch.programs import values  # noqa: E402

R = da.Replicate()


class Attention(nn.Module):
    """Three projections of one input; ``extra`` uses the input for something else as well."""

    def __init__(self, extra=None) -> None:
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Linear(6, 8) for _ in range(3))
        self.wo = nn.Linear(8, 6)
        self.extra = extra

    def forward(self, x, scale=None):
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        y = torch.sigmoid(q * k) * v
        y = self.wo(y if scale is None else y * scale)
        return y if self.extra is None else self.extra(x, y)


def plan(arrives=da.Shard(1)):  # noqa: B008 - placements are values
    return {
        "": dt.PrepareModuleInput(input_layouts=arrives, desired_input_layouts=R),
        **{name: dt.ColwiseParallel() for name in ("wq", "wk", "wv")},
        "wo": dt.RowwiseParallel(output_layouts=arrives),
    }


def attend(arrives=da.Shard(1), around=lambda run: run):  # noqa: B008
    def parallel(twin, mesh):
        dt.parallelize_module(twin, mesh, plan(arrives))

        def run(x):
            shard = dt.redistribute(x, mesh, [R], [arrives])
            return dt.redistribute(around(twin)(shard), mesh, [arrives], [R])

        return run

    return parallel


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("length", [4, 5, 2])
def test_three_uses_need_one_all_gather_and_one_reduce_scatter(ranks, length):
    x = values(3, length, 6)
    for log in compare(ranks, Attention().double(), (x,), attend()):
        # Besides: the output's reduce-scatter and its gradient's all-gather; the test's own two.
        assert log.count("reduce_scatter") == 2
        assert log.count("all_gather") == 2 + 2
        assert log.count("all_reduce") == 1  # of the gradient of wo's bias
        assert log.count() == 7


@pytest.mark.parametrize("ranks", [2, 3])
def test_three_uses_of_a_replicated_input_need_one_all_reduce(ranks):
    for log in compare(ranks, Attention().double(), (values(3, 4, 6),), attend(R)):
        assert log.count() == log.count("all_reduce") == 2


@pytest.mark.parametrize("arrives", [da.Shard(1), R], ids=str)
def test_other_uses_of_the_input_have_their_gradient_beside(arrives):
    model = Attention(lambda x, y: y + torch.tanh(x)).double()

    def parallel(twin, mesh):
        p = plan(arrives)
        p["wo"] = dt.RowwiseParallel()
        dt.parallelize_module(twin, mesh, p)
        return lambda x: twin(dt.redistribute(x, mesh, [R], [arrives]))

    for log in compare(3, model, (values(2, 4, 6),), parallel):
        assert log.count("reduce_scatter") == (arrives != R)
        assert log.count("all_reduce") == 1 + (arrives == R)


class Tangled(Attention):
    """What else a forward might do with its input."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        if self.how == "changed before":
            x.mul_(2)
        if self.how == "hook before":
            x.register_hook(lambda g: g * 3)
        if self.how == "reshaped":
            x = x.reshape(-1, 6)
        q = self.wq(x)
        if self.how == "detached":
            x = x.detach()
        with torch.set_grad_enabled(self.how != "without gradient"):
            k = self.wk(x)
        y = self.wo(torch.sigmoid(q) * k + self.wv(x))
        if self.how == "hook after":
            x.register_hook(lambda g: g * 3)
        if self.how == "retained":
            x.retain_grad()
            self.seen = x
        if self.how == "unused":
            return self.wo(q)
        return y.reshape(2, -1, 6)


@pytest.mark.parametrize(
    "how",
    ["changed before", "hook before", "hook after", "reshaped", "detached", "without gradient",
     "retained", "unused"],
)  # fmt: skip
@pytest.mark.parametrize("arrives", [da.Shard(1), R], ids=str)
def test_no_use_makes_a_wrong_gradient(how, arrives):
    """Compared with the same module in one process, given a tensor that is not a leaf."""
    model = Tangled(how).double()
    x = values(2, 4, 6)
    mine = x.clone().requires_grad_()
    model(mine * 1).square().sum().backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    seen = getattr(model, "seen", None)
    model.seen = None
    model.zero_grad()

    def program():
        mesh = da.init_device_mesh((2,))
        twin = copy.deepcopy(model)
        p = plan(arrives)
        p["wo"] = dt.RowwiseParallel()
        dt.parallelize_module(twin, mesh, p)
        own = x.clone().requires_grad_()
        twin(dt.redistribute(own * 1, mesh, [R], [arrives])).square().sum().backward()
        torch.testing.assert_close(own.grad, mine.grad)
        for name, parameter in twin.named_parameters():
            if expected[name] is None:
                assert parameter.grad is None
                continue
            full = expected[name]
            box = dt.layout_of(parameter).local_box()
            full = full[tuple(slice(*b) for b in box)]
            torch.testing.assert_close(parameter.grad, full)
        if how == "retained":
            torch.testing.assert_close(twin.seen.grad, seen.grad)

    simulate(2, program)


def test_gradient_of_the_prepared_tensor_itself_is_whole():
    """Derivatives inside of the module, by it and by other tensors, and second ones."""

    class Penalised(Attention):
        def forward(self, x):
            y = self.wo(torch.sigmoid(self.wq(x)) * self.wk(x) + self.wv(x)) + x
            (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
            return y + slope

    model = Penalised().double()

    def parallel(twin, mesh):
        p = plan()
        p["wo"] = dt.RowwiseParallel()
        dt.parallelize_module(twin, mesh, p)
        return lambda x: twin(dt.redistribute(x, mesh, [R], [da.Shard(1)]))

    compare(2, model, (values(2, 4, 6),), parallel)


@pytest.mark.parametrize("by", ["grad", "inputs"])
def test_gradients_of_chosen_tensors(by):
    model = Attention(torch.add).double()
    x = values(2, 4, 6)

    def wanted(run, parameter, x):
        loss = run(x).square().sum()
        if by == "grad":
            return torch.autograd.grad(loss, [parameter, x])
        loss.backward(inputs=[parameter, x])
        return parameter.grad, x.grad

    expected = wanted(model, model.wk.weight, x.clone().requires_grad_())
    model.zero_grad()

    def program():
        mesh = da.init_device_mesh((2,))
        twin = copy.deepcopy(model)
        p = plan()
        p["wo"] = dt.RowwiseParallel()
        dt.parallelize_module(twin, mesh, p)

        def run(x):
            return twin(dt.redistribute(x, mesh, [R], [da.Shard(1)]))

        weight, whole = wanted(run, twin.wk.weight, x.clone().requires_grad_())
        torch.testing.assert_close(whole, expected[1])
        torch.testing.assert_close(weight, expected[0].chunk(2)[mesh.rank])

    simulate(2, program)


def test_hook_on_some_ranks_is_an_error():
    def program():
        mesh = da.init_device_mesh((2,))
        twin = dt.parallelize_module(Attention(), mesh, plan())
        twin.wq.register_forward_pre_hook(
            lambda _, args: None if mesh.rank else args[0].register_hook(torch.neg) and None,
            prepend=True,
        )
        shard = torch.ones(2, 3, 6, requires_grad=True)
        loss = twin(shard).sum()
        with pytest.raises(MismatchError):
            loss.backward()

    simulate(2, program)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("arrives", [da.Shard(1), R], ids=str)
def test_second_derivatives_of_backward(arrives):
    model = Attention().double()
    x = values(2, 4, 6)

    def slopes(run, parameters, x):
        loss = run(x).square().sum()
        loss.backward(create_graph=True)
        firsts = [p.grad.clone() for p in (*parameters, x)]
        penalty = x.grad.pow(3).sum()
        x.grad = None
        for p in parameters:
            p.grad = None
        penalty.backward()
        return firsts + [p.grad for p in (*parameters, x)]

    expected = slopes(model, [model.wq.bias, model.wk.weight], x.clone().requires_grad_())
    model.zero_grad()

    def program():
        mesh = da.init_device_mesh((2,))
        twin = copy.deepcopy(model)
        run = attend(arrives)(twin, mesh)
        own = x.clone().requires_grad_()
        for i, grad in enumerate(slopes(run, [twin.wq.bias, twin.wk.weight], own)):
            full = expected[i]
            if i % 3 < 2:
                full = full.chunk(2)[mesh.rank]
            torch.testing.assert_close(grad, full)

    simulate(2, program)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    from torch.utils.checkpoint import checkpoint

    def around(run):
        return lambda x: checkpoint(run, x, use_reentrant=reentrant)

    for log in compare(2, Attention().double(), (values(3, 4, 6),), attend(around=around)):
        assert log.count("reduce_scatter") <= 3  # of outputs, those computed again, gradients


def test_nothing_is_kept_alive():
    def program():
        mesh = da.init_device_mesh((2,))
        twin = dt.parallelize_module(Attention(), mesh, plan(R))
        leaf = torch.ones(2, 4, 6, requires_grad=True)
        seen = []
        twin.wq.register_forward_pre_hook(lambda _, args: seen.append(weakref.ref(args[0])))
        loss = twin(leaf).sum()
        loss.backward()
        seen.append(weakref.ref(leaf))
        del leaf, loss
        gc.collect()
        assert [reference() for reference in seen] == [None, None]

    simulate(2, program)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(backend):
    def program():
        mesh = da.init_device_mesh((1,))
        model = Attention().double()
        twin = copy.deepcopy(model)
        dt.parallelize_module(twin, mesh, plan())
        x = values(3, 4, 6).requires_grad_()
        y = torch.compile(twin, backend=backend)(x)
        torch.testing.assert_close(y, model(x))
        y.sum().backward()
        model(x).sum().backward()
        torch.testing.assert_close(twin.wq.weight.grad, model.wq.weight.grad)

    simulate(1, program)
