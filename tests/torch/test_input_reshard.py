"""Slices of replicated activations are kept, and gradients stay what they are."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from distarray.torch import _saved  # noqa: E402


def values(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=dtype, generator=generator)


def filled(module):
    for i, parameter in enumerate(module.parameters()):
        parameter.data.copy_(values(*parameter.shape, seed=100 + i, dtype=parameter.dtype) / 3)
    return module


def on_ranks(ranks, program, names=("tp",)):
    return simulate(ranks, lambda: program(da.init_device_mesh((ranks,), names)), timeout=60)


def same(given, wanted):
    torch.testing.assert_close(given, wanted, rtol=1e-12, atol=1e-12)


class Mlp(nn.Module):
    def __init__(self, width=6, hidden=8):
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.gate = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(self.up(x) * self.gate(x).sigmoid())


class Block(nn.Module):
    """A transformer's block with attention over few heads."""

    def __init__(self, width, heads, hidden):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.mlp_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = Mlp(width, hidden)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.size = width // heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        q, k, v = (
            layer(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


MLP_PLAN = {
    "up": dt.ColwiseParallel(),
    "gate": dt.ColwiseParallel(),
    "down": dt.RowwiseParallel(),
}
BLOCK_PLAN = {
    "attention.[qkv]": dt.ColwiseParallel(),
    "attention.out": dt.RowwiseParallel(),
    **{f"mlp.{name}": style for name, style in MLP_PLAN.items()},
}


def run(model, x, loss=lambda y: y.square().sum()):
    """Return the gradients of a loss."""
    x = x.detach().clone().requires_grad_(x.is_floating_point())
    loss(model(x)).backward()
    return {"x": x.grad, **{name: p.grad for name, p in model.named_parameters()}}


def check(model, x, wanted, loss=lambda y: y.square().sum()):
    model.zero_grad()
    x = x.detach().clone().requires_grad_(x.is_floating_point())
    loss(model(x)).backward()
    same(x.grad, wanted["x"])
    for name, parameter in model.named_parameters():
        gradient = wanted[name]
        layout = dt.layout_of(parameter)
        if layout is not None:
            gradient = gradient[tuple(slice(a, b) for a, b in layout.local_box())]
        same(parameter.grad, gradient)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("dim", [0, 1, -1, -2])
@pytest.mark.parametrize("shape", [(4, 12, 6), (3, 5, 6), (1, 2, 6)])
def test_gradients_stay_what_they_are(ranks, dim, shape):
    model, x = filled(Mlp().double()), values(*shape)
    wanted = run(copy.deepcopy(model), x)

    def program(mesh):
        mine = dt.parallelize_module(copy.deepcopy(model), mesh, MLP_PLAN)
        assert dt.input_reshard(mine, mesh, dim) is mine
        for _ in range(2):
            with da.CommLog() as log:
                check(mine, x, wanted)
            assert log.count("all_gather") == 1  # of x, once for both layers

    on_ranks(ranks, program)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtypes(dtype):
    model, x = filled(Mlp().to(dtype)), values(2, 5, 6, dtype=dtype)

    def program(mesh):
        plain = dt.parallelize_module(copy.deepcopy(model), mesh, MLP_PLAN)
        mine = dt.parallelize_module(copy.deepcopy(model), mesh, MLP_PLAN)
        dt.input_reshard(mine, mesh, 1)
        for a, b in zip(run(mine, x).values(), run(plain, x).values(), strict=True):
            assert torch.equal(a, b)

    on_ranks(2, program)


def held_bytes(model, x):
    """Return how many bytes of memory the graph of a call holds, but for parameters."""
    own = {p.untyped_storage()._cdata for p in model.parameters()}
    found, seen, stack = {}, set(), [model(x).grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        stack.extend(edge for edge, _ in node.next_functions)
        for name in dir(node):
            if name.startswith("_raw_saved_"):
                raw = getattr(node, name)
                for one in raw if isinstance(raw, tuple) else (raw,):
                    held = one.data
                    if isinstance(held, _saved.Kept):
                        held = held.tensor
                    elif isinstance(held, _saved._Cut):
                        held = held.slice.part
                    if held is not None:
                        found[held.untyped_storage()._cdata] = held
    return sum(t.untyped_storage().nbytes() for key, t in found.items() if key not in own)


@pytest.mark.parametrize("ranks", [2, 4])
def test_memory_of_a_block(ranks):
    model, x = filled(Block(64, 4, 256)), values(2, 32, 64, dtype=torch.float32)
    wanted = run(copy.deepcopy(model).double(), x.double())
    one = 2 * 32 * 64 * 4  # an activation

    def program(mesh):
        mine = dt.parallelize_module(copy.deepcopy(model), mesh, BLOCK_PLAN)
        whole = held_bytes(mine, x)
        dt.input_reshard(mine, mesh, 1)
        outer = held_bytes(mine, x)
        for part in (mine.attention_norm, mine.mlp_norm):
            dt.input_reshard(part, mesh, 1)
        inner = held_bytes(mine, x)
        # The inputs of the norms, and what they return, which columns are computed from.
        assert whole - outer == 3 * (one - one // ranks)
        assert whole - inner == 4 * (one - one // ranks)
        mine.double()
        check(mine, x.double(), wanted)
        return whole, inner

    on_ranks(ranks, program)


def test_what_may_differ_between_ranks_is_kept():
    class Differs(nn.Module):
        def __init__(self, rank):
            super().__init__()
            self.weight = nn.Parameter(values(6))
            self.rank = rank

        def forward(self, x, *, mask):
            own = x * (1 + self.rank)  # other values on each rank
            y = own * own.tanh() * self.weight
            part = x[:, self.rank : self.rank + 1]  # another view on each
            return (y * mask).sum() + (part * part.exp()).sum() + x.T.exp().sum()

    x, mask = values(4, 6), values(4, 6, seed=1)

    def program(mesh):
        (rank,) = mesh.coordinate
        given = x.clone().requires_grad_()
        plain, mine = Differs(rank), dt.input_reshard(Differs(rank), mesh, 0)
        plain(given, mask=mask).backward()
        wanted, given.grad = given.grad, None
        with da.CommLog() as log:
            loss = mine(given, mask=mask)
            assert log.count() == 0
            loss.backward()
        assert log.count() == log.count("all_gather") == 2  # x and the mask
        same(given.grad, wanted)
        same(mine.weight.grad, plain.weight.grad)

    on_ranks(3, program)


def test_arguments_known_to_be_cut_are_kept():
    weight = torch.ones(1, dtype=torch.float64)

    class Scale(nn.Module):
        def forward(self, x, weight):
            return (x * weight).sum()

    def program(mesh):
        part = dt.redistribute(values(4, 6), mesh, [da.Replicate()], [da.Shard(0)])
        own = weight.clone().requires_grad_()
        with da.CommLog() as log:
            dt.input_reshard(Scale(), mesh, 1)(part, own).backward()
        assert log.count() == 0
        same(own.grad, part.sum().reshape(1))

    on_ranks(2, program)


class Recursive(nn.Module):
    def __init__(self, depth, mesh):
        super().__init__()
        self.weight = nn.Parameter(values(6))
        self.depth = depth

    def forward(self, x, depth=None):
        depth = self.depth if depth is None else depth
        y = (x * self.weight).sin()
        return self(y, depth - 1) + x if depth else y


@pytest.mark.parametrize("ranks", [2, 3])
def test_recursion(ranks):
    x = values(5, 6)
    wanted = run(Recursive(3, None), x)

    def program(mesh):
        mine = dt.input_reshard(Recursive(3, mesh), mesh, 0)
        check(mine, x, wanted)
        assert not mine.__dict__["_distarray_resharding"].under_way

    on_ranks(ranks, program)


def test_calls_before_the_backward_pass_of_the_first():
    model, x = filled(Mlp().double()), values(3, 4, 6)
    twin = copy.deepcopy(model)
    wanted = run(twin, x, lambda y: (y + twin(2 * x)).square().sum())

    def program(mesh):
        mine = dt.parallelize_module(copy.deepcopy(model), mesh, MLP_PLAN)
        dt.input_reshard(mine, mesh, 1)
        check(mine, x, wanted, lambda y: (y + mine(2 * x)).square().sum())

    on_ranks(2, program)


def test_an_exception_in_forward_leaves_the_hooks_balanced():
    class Fails(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, x, fail):
            y = self.layer(x)
            if fail:
                raise ZeroDivisionError
            return y

    model, x = filled(Mlp().double()), values(3, 4, 6)
    wanted = run(copy.deepcopy(model), x)

    def program(mesh):
        inner = dt.parallelize_module(copy.deepcopy(model), mesh, MLP_PLAN)
        mine = Fails(dt.input_reshard(inner, mesh, 1))
        dt.input_reshard(mine, mesh, 1)
        for failing in (True, True):
            with pytest.raises(ZeroDivisionError):
                mine(x, failing)
            with pytest.raises(RuntimeError):
                inner(x[..., :2])
            assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
            assert _saved._calls.get() == ()
        check(mine.layer, x, wanted)
        mine(x, False)
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None

    on_ranks(2, program)


class Changes(nn.Module):
    """Changes its input, or a result that backward needs, after it has been saved."""

    def __init__(self, what):
        super().__init__()
        self.weight = nn.Parameter(values(6))
        self.what = what

    def forward(self, x):
        x = x * 1
        y = self.inner(x) if self.what == "input of a part" else x * self.weight
        if self.what in ("input", "input of a part"):
            x.add_(1)
        z = y.exp()
        if self.what == "result":
            z.add_(1)
        return (x * z).sum()


def test_changes_in_place_of_what_was_kept_are_noticed():
    def program(mesh):
        x = values(4, 6).requires_grad_()
        for what in ("input", "result"):
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                Changes(what)(x).backward()
            with pytest.raises(da.errors.ModifiedError, match="modified by an inplace operation"):
                dt.input_reshard(Changes(what), mesh, 0)(x).backward()
        dt.input_reshard(Changes("nothing"), mesh, 0)(x).backward()

    on_ranks(2, program)


def test_an_argument_changed_in_place_is_no_longer_taken_to_be_replicated():
    class Adds(nn.Module):
        def __init__(self, rank):
            super().__init__()
            self.rank = rank

        def forward(self, x, weight):
            x.add_(self.rank)
            return (x * weight).sum()

    def program(mesh):
        (rank,) = mesh.coordinate
        weight = torch.ones(6, dtype=torch.float64, requires_grad=True)
        dt.input_reshard(Adds(rank), mesh, 0)(values(4, 6), weight).backward()
        same(weight.grad, (values(4, 6) + rank).sum(0))

    on_ranks(3, program)


def test_what_was_cut_is_what_it_was():
    def program(mesh):
        x = values(4, 6)
        weight = torch.ones(6, dtype=torch.float64, requires_grad=True)

        class Product(nn.Module):
            def forward(self, x):
                return (x * weight).sum()

        loss = dt.input_reshard(Product(), mesh, 0)(x)
        x.zero_()
        loss.backward()
        same(weight.grad, values(4, 6).sum(0))

    on_ranks(2, program)


def test_nothing_is_sent_without_gradients():
    model, x = filled(Mlp().double()), values(3, 4, 6)

    def program(mesh):
        mine = dt.parallelize_module(copy.deepcopy(model), mesh, MLP_PLAN)
        dt.input_reshard(mine, mesh, 1)
        with torch.no_grad():
            same(mine(x), model(x))
        with torch.inference_mode():
            same(mine(x.clone()), model(x))

    on_ranks(2, program)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("where", ["outside", "inside"])
def test_checkpoints(reentrant, where):
    class Part(nn.Module):
        def __init__(self, part):
            super().__init__()
            self.part = part

        def forward(self, x):
            y = x * x.sin()
            return checkpoint(self.part, x, use_reentrant=reentrant) + y

    model, x = filled(Mlp().double()), values(3, 5, 6)
    wanted = run(Part(copy.deepcopy(model)), x)

    def program(mesh):
        inner = dt.parallelize_module(copy.deepcopy(model), mesh, MLP_PLAN)
        mine = Part(inner)
        dt.input_reshard(inner if where == "outside" else mine, mesh, 1)
        with da.CommLog() as log:
            check(mine, x, wanted)
        assert log.count("all_gather") == (where == "inside")

    on_ranks(2, program)


def test_inside_other_hooks_those_decide():
    model, x = filled(Mlp().double()), values(3, 5, 6)
    wanted = run(copy.deepcopy(model), x)

    def program(mesh):
        mine = dt.parallelize_module(copy.deepcopy(model), mesh, MLP_PLAN)
        dt.input_reshard(mine, mesh, 1)
        packed = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(1) or t, lambda t: t):
            check(mine, x, wanted)
        assert packed

    on_ranks(2, program)


def test_second_derivatives():
    model, x = filled(Mlp().double()), values(3, 5, 6)

    def penalty(model, x):
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        loss = slope.square().sum()
        return torch.autograd.grad(loss, [x, *model.parameters()])

    def program(mesh):
        plain = dt.parallelize_module(copy.deepcopy(model), mesh, MLP_PLAN)
        mine = dt.parallelize_module(copy.deepcopy(model), mesh, MLP_PLAN)
        dt.input_reshard(mine, mesh, 1)
        for a, b in zip(penalty(mine, x), penalty(plain, x), strict=True):
            same(a, b)

    on_ranks(2, program)


def test_several_backward_passes_over_one_graph():
    model, x = filled(Mlp().double()), values(3, 5, 6)
    twin = copy.deepcopy(model)
    wanted = run(twin, x, lambda y: 3 * y.square().sum())

    def program(mesh):
        mine = dt.parallelize_module(copy.deepcopy(model), mesh, MLP_PLAN)
        dt.input_reshard(mine, mesh, 1)
        given = x.clone().requires_grad_()
        loss = mine(given).square().sum()
        for again in (True, True, False):
            loss.backward(retain_graph=again)
        same(given.grad, wanted["x"])
        same(mine.down.bias.grad, wanted["down.bias"])

    on_ranks(2, program)


def test_together_with_replicas():
    model, x = filled(Block(8, 4, 16).double()), values(4, 6, 8)
    wanted = run(copy.deepcopy(model), x)

    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        mine = dt.parallelize_module(copy.deepcopy(model), mesh["tp"], BLOCK_PLAN)
        dt.replicate(mine, mesh["dp"], op="sum", bucket_bytes=500)
        for part in (mine, mine.attention, mine.mlp, mine.mlp_norm):
            dt.input_reshard(part, mesh["tp"], 1)
        row = mesh.coordinate[0]
        mine(x.chunk(2)[row]).square().sum().backward()
        same(mine.attention_norm.weight.grad, wanted["attention_norm.weight"])
        layout = dt.layout_of(mine.mlp.up.weight)
        (rows, _) = layout.local_box()
        same(mine.mlp.up.weight.grad, wanted["mlp.up.weight"][slice(*rows)])

    simulate(4, program)


def test_strides_and_views_come_back():
    class Views(nn.Module):
        def forward(self, x, y):
            z = x.mT.reshape(-1) * x.flatten().exp()
            return (z * z).sum() + (y[:, ::2] * y[:, ::2].exp()).sum() + (y * y.sin()).sum()

    x, y = values(6, 4), values(5, 8)

    def loss(model, transposed):
        a, b = x.clone().requires_grad_(), y.clone().requires_grad_()
        given = (a.mT if transposed else a, b[1:, :6])  # the second leaves gaps
        model(*given).backward()
        return a.grad, b.grad

    def program(mesh):
        for transposed in (False, True):
            wanted = loss(Views(), transposed)
            found = loss(dt.input_reshard(Views(), mesh, 1), transposed)
            for a, b in zip(found, wanted, strict=True):
                same(a, b)

    on_ranks(3, program)


def test_ranks_that_gather_other_tensors_hear_of_it():
    class Two(nn.Module):
        def forward(self, x, y):
            return x.sin().sum(), y.sin().sum()

    def program(mesh):
        mine = dt.input_reshard(Two(), mesh, 0)
        x, y = (values(4, 6).requires_grad_() for _ in range(2))
        first, second = mine(x, y)
        loss = first if mesh.coordinate[0] else second
        with pytest.raises(da.errors.MismatchError, match="saved in call 1 of Two"):
            loss.backward()

    on_ranks(2, program)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (lambda m: (nn.ReLU(), m["tp"], "1"), da.errors.ArgumentTypeError, "number of an axis"),
        (lambda m: (torch.relu, m["tp"], 1), da.errors.ArgumentTypeError, "torch.nn.Module"),
        (lambda m: (nn.ReLU(), m, 1), da.errors.ArgumentError, r"mesh\['tp'\]"),
        (
            lambda m: (dt.input_reshard(nn.ReLU(), m["tp"], 1), m["tp"], 1),
            da.errors.ArgumentError,
            "already",
        ),
    ],
)
def test_arguments_that_cannot_be(arguments, error, message):
    def program():
        mesh = da.init_device_mesh((1, 2), ("dp", "tp"))
        with pytest.raises(error, match=message):
            dt.input_reshard(*arguments(mesh))

    simulate(2, program)
