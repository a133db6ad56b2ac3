"""Sharded modules under torch.func: other tensors in the place of parameters, and transforms."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.func import (  # noqa: E402
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    vjp,
    vmap,
)

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import ArgumentError  # noqa: E402
from tests.torch.fsdp.training import (  # noqa: E402
    check_gradients,
    filled,
    gradients,
    mean_square,
    on_ranks,
    rows_of,
    same,
    square_mean,
    values,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit")  # of torch itself, in jvp

X = values(12, 5)


class Layer(nn.Module):
    def __init__(self, width=5):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.inside = None

    def forward(self, x):
        x = torch.tanh(self.linear(x))
        return x if self.inside is None else self.inside(x)


def layers():
    return filled(nn.Sequential(Layer(), Layer(), nn.Linear(5, 2)))


def sharded(module, mesh, **kwargs):
    mine = copy.deepcopy(module)
    for child in mine:
        dt.fully_shard(child, mesh, **kwargs)
    return dt.fully_shard(mine, mesh, **kwargs)


def given(module, seed=7):
    """Return values of a whole module's parameters, by name."""
    named = module.named_parameters()
    return {n: values(*p.shape, seed=seed + i) / 3 for i, (n, p) in enumerate(named)}


def shares_of(module, wholes):
    """Return this rank's shares of whole values."""
    found = {}
    for name, parameter in module.named_parameters():
        whole = wholes[name]
        for axis, (start, stop) in enumerate(dt.layout_of(parameter).local_box()):
            whole = whole.narrow(axis, start, stop - start)
        found[name] = whole.clone()
    return found


def check(module, shares, wholes, what):
    """Compare shares with whole tensors (collective)."""
    for name, parameter in module.named_parameters():
        share = dt.place_like(shares[name].detach().clone(), parameter)
        same(dt.full_tensor(share), wholes[name].detach(), f"{what} of {name}")


def loss_of(module):
    """Return the loss of a module's rows, a function of its parameters and all rows."""
    return lambda named, x: functional_call(module, named, (rows_of(module, x),)).square().mean()


def by_ranks(program, ranks=(2, 3), **kwargs):
    start = layers()
    for count in ranks:
        on_ranks(count, lambda mesh: program(sharded(start, mesh, **kwargs), copy.deepcopy(start)))


@pytest.mark.parametrize("after", [True, False, 2])
def test_functional_call(after):
    def program(mine, whole):
        wholes = given(whole)
        for one in wholes.values():
            one.requires_grad_()
        shares = {n: s.detach().requires_grad_() for n, s in shares_of(mine, wholes).items()}
        expected = functional_call(whole, wholes, (X,))
        found = functional_call(mine, shares, (rows_of(mine, X),))
        same(found, rows_of(mine, expected), "output")
        expected.square().mean().backward()
        found.square().mean().backward()
        check(
            mine, {n: s.grad for n, s in shares.items()}, {n: w.grad for n, w in wholes.items()}, ""
        )
        assert all(p.grad is None for p in mine.parameters())
        for one in (mine, whole):  # nothing is left behind
            mean_square(one, X).backward()
        check_gradients(mine, gradients(whole))

    by_ranks(program, reshard_after_forward=after)


def test_some_parameters_are_given():
    def program(mine, whole):
        names = ["0.linear.weight", "2.bias"]
        wholes = {n: given(whole)[n].requires_grad_() for n in names}
        shares = {n: shares_of(mine, given(whole))[n].requires_grad_() for n in names}
        for one, named in ((whole, wholes), (mine, shares)):
            loss_of(one)(named, X).backward()
        check_gradients(mine, gradients(whole))
        for name in names:
            like = mine.get_parameter(name)
            same(dt.full_tensor(dt.place_like(shares[name].grad, like)), wholes[name].grad, name)

    by_ranks(program)


@pytest.mark.parametrize("kind", [nn.Parameter, lambda tensor: tensor.clone().requires_grad_()])
@pytest.mark.parametrize("names", [["0.linear.weight"], ["2.weight", "2.bias"], None])
def test_parameters_are_given_and_the_own_ones_used(kind, names):
    """Also with nn.Parameters, which are not to stay; and next to ordinary calls."""

    def program(mine, whole):
        for module in (mine, whole):
            for _ in range(2):  # the second time groups come early
                mean_square(module, X).backward()
        wholes = given(whole)
        shares = shares_of(mine, wholes)
        names_given = names or list(wholes)
        before = dict(mine.named_parameters())
        wholes = {n: kind(wholes[n]) for n in names_given}
        shares = {n: kind(shares[n]) for n in names_given}
        for module, named in ((whole, wholes), (mine, shares)):
            loss = loss_of(module)(named, X) + mean_square(module, X) + loss_of(module)(named, X)
            loss.backward()
        check_gradients(mine, gradients(whole))
        for name in names_given:
            like = mine.get_parameter(name)
            same(dt.full_tensor(dt.place_like(shares[name].grad, like)), wholes[name].grad, name)
        after = dict(mine.named_parameters())
        assert all(after[name] is before[name] for name in before)
        with torch.no_grad():
            x = rows_of(mine, X)
            same(loss_of(mine)(shares, X), loss_of(whole)(wholes, x), "loss")
            same(square_mean(mine, x), square_mean(whole, x), "own loss")

    by_ranks(program, (1, 2, 3))


def test_gradients_of_parameters():
    def program(mine, whole):
        named = {n: p.detach() for n, p in mine.named_parameters()}
        theirs = {n: p.detach() for n, p in whole.named_parameters()}
        expected = grad(loss_of(whole))(theirs, X)
        with da.CommLog() as log:
            found, mean = grad_and_value(loss_of(mine))(named, X)
        if next(mine.parameters()).shape[0] < 5:
            assert log.count("all_gather") == log.count("reduce_scatter") == 3
        x = rows_of(mine, X)
        same(mean, loss_of(whole)(theirs, x), "loss")
        check(mine, found, expected, "gradient")
        out, pull = vjp(lambda named: functional_call(mine, named, (x,)), named)
        theirs_out, theirs_pull = vjp(lambda named: functional_call(whole, named, (X,)), theirs)
        same(out, rows_of(mine, theirs_out), "output")
        ranks = len(X) // len(x)
        check(mine, pull(out * ranks)[0], theirs_pull(theirs_out)[0], "vjp")
        assert all(p.grad is None for p in mine.parameters())

    by_ranks(program, (1, 2, 3))


def test_second_derivatives():
    """Reverse over reverse: the gradient of what the ranks' own losses are on average."""

    def program(mine, whole):
        named = {n: p.detach() for n, p in mine.named_parameters()}
        theirs = {n: p.detach() for n, p in whole.named_parameters()}
        along = given(whole, 20)
        own = shares_of(mine, along)
        ranks = dt.layout_of(next(mine.parameters())).mesh.size

        def product(module, named, along):
            found = grad(loss_of(module))(named, X)
            return sum((found[n] * along[n]).sum() for n in found)

        found = grad(lambda n: product(mine, n, own))(named)
        expected = grad(lambda n: product(whole, n, along))(theirs)
        # Each rank's product is of its shares alone: their sum is the whole's, the mean an n-th.
        check(mine, {n: g * ranks for n, g in found.items()}, expected, "second derivative")

    by_ranks(program)


def test_gradients_of_inputs():
    """The parameters stay where they are, and may be differentiated from outside."""

    def program(mine, whole):
        found = []
        ranks = len(X) // len(rows_of(mine, X))
        for module, scale in ((mine, 1), (whole, ranks)):
            x = rows_of(module, X).clone().requires_grad_()
            slope = scale * grad(lambda x, m=module: m(x).square().mean())(x)
            (module(x).square().mean() + slope.square().mean()).backward()
            found.append((slope.detach(), scale * x.grad))
        for first, second, what in zip(*found, ("gradient", "and its own"), strict=True):
            same(first, rows_of(mine, second), what)
        check_gradients(mine, gradients(whole))

    by_ranks(program)


def test_inputs_one_by_one():
    def program(mine, whole):
        x = rows_of(mine, X)
        same(vmap(mine)(x), whole(x), "vmap")
        slopes = [vmap(grad(lambda x, m=m: m(x).square().mean()))(x) for m in (mine, whole)]
        same(*slopes, "gradients of samples")
        with torch.no_grad():
            same(vmap(mine)(x), whole(x), "vmap without gradients")
        for module in (mine, whole):
            vmap(module)(rows_of(module, X)).square().mean().backward()
        check_gradients(mine, gradients(whole))

    by_ranks(program)


def test_wholes_that_are_there_already():
    def program(mine, whole):
        mine.unshard()
        wholes, x = given(whole), rows_of(mine, X)
        same(
            functional_call(mine, shares_of(mine, wholes), (x,)),
            functional_call(whole, wholes, (x,)),
            "given",
        )
        slopes = [grad(lambda x, m=m: m(x).square().mean())(x) for m in (mine, whole)]
        same(*slopes, "gradient")
        mine.reshard()
        same(mine(x), whole(x), "output")

    by_ranks(program, (2,))


def test_with_tensor_parallelism_and_replicas():
    start = filled(nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)))
    plan = {"0": dt.ColwiseParallel(), "2": dt.RowwiseParallel()}

    def program():
        mesh = da.init_device_mesh((2, 2, 2), ("r", "s", "tp"))
        mine = dt.parallelize_module(copy.deepcopy(start), mesh["tp"], plan)
        dt.fully_shard(mine, mesh["r", "s"])
        whole = copy.deepcopy(start)
        found = grad(loss_of(mine))({n: p.detach() for n, p in mine.named_parameters()}, X)
        expected = grad(loss_of(whole))({n: p.detach() for n, p in whole.named_parameters()}, X)
        check(mine, found, expected, "gradient")

    from distarray.testing import simulate

    simulate(8, program, timeout=60)


def test_mixed_precision():
    start = layers().float()
    expected = {}
    for x in X.bfloat16().chunk(2):
        low = copy.deepcopy(start).bfloat16()
        low(x).float().square().mean().backward()
        for n, p in low.named_parameters():
            expected[n] = expected.get(n, 0) + p.grad.float() / 2

    def program(mesh):
        policy = dt.MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float32)
        mine = dt.fully_shard(copy.deepcopy(start), mesh, mp_policy=policy)
        found = grad(loss_of(mine))({n: p.detach() for n, p in mine.named_parameters()}, X.float())
        mean_square(mine, X.float()).backward()
        for name, p in mine.named_parameters():
            same(found[name], p.grad, name, 1e-6)
            share = dt.place_like(found[name].detach().clone(), p)
            same(dt.full_tensor(share), expected[name], name, 1e-6)

    on_ranks(2, program)


def test_jacobians_by_inputs():
    def program(mine, whole):
        ways = [jacrev]
        if next(mine.parameters()).shape[0] == 5:  # torch's level of tangents is of all threads
            ways += [jacfwd, hessian]
        for way in ways:
            x = rows_of(mine, X)[:2]
            same(*(way(lambda x, m=m: m(x).square())(x) for m in (mine, whole)), way.__name__)

    by_ranks(program, (1, 2))


@pytest.mark.parametrize("way", [jacrev, jacfwd, hessian])
def test_jacobians_by_parameters_are_refused(way):
    refused(
        "vmap .or .*(none of single samples|call the module once)",
        lambda mine: way(lambda named: loss_of(mine)(named, X))(
            {n: p.detach() for n, p in mine.named_parameters()}
        ),
        ranks=2 if way is jacrev else 1,
    )


def test_jacobians_by_parameters_row_by_row():
    """Without vmap each row is a vjp: an average over the ranks, as gradients are."""

    def program(mine, whole):
        found = []
        for module in (mine, whole):
            named = {n: p.detach() for n, p in module.named_parameters()}

            def outputs(named, module=module):
                return functional_call(module, named, (rows_of(module, X),)).square().mean(0)

            found.append(jacrev(outputs, chunk_size=1)(named))
        for row in range(2):
            check(mine, *({n: g[row] for n, g in one.items()} for one in found), "row")

    by_ranks(program)


def refused(match, program, ranks=2, **kwargs):
    def on_rank(mesh):
        mine = sharded(layers(), mesh, **kwargs)
        with pytest.raises(ArgumentError, match=match):
            program(mine)
        whole = layers()
        for module in (mine, whole):
            mean_square(module, X).backward()
        check_gradients(mine, gradients(whole))

    on_ranks(ranks, on_rank)


def test_whole_tensors_are_refused():
    refused(
        r"0\.linear|linear\.weight.*pass shares",
        lambda mine: functional_call(mine, given(layers()), (X,)),
    )


def test_samples_of_sharded_parameters_are_refused():
    def program(mine):
        named = {n: p.detach() for n, p in mine.named_parameters()}
        one = grad(lambda named, x: functional_call(mine, named, (x,)).square().mean())
        vmap(one, in_dims=(None, 0))(named, X)

    refused("none of single samples", program)


def test_ensembles_are_refused():
    def program(mine):
        named = {n: torch.stack([p.detach()] * 2) for n, p in mine.named_parameters()}
        vmap(lambda n: functional_call(mine, n, (X,)))(named)

    refused("several values of a sharded parameter", program)


def test_transforms_inside_of_forward_are_refused():
    def program(mine):
        mine[1].inside = lambda x: grad(lambda y: y.square().sum())(x)
        try:
            mine(X)
        finally:
            mine[1].inside = None

    refused("inside of the forward pass of a sharded module", program)


def test_extensions_are_refused():
    def program(mine):
        mine[0].set_all_gather_extension(
            "linear.weight",
            lambda b: b.clone(),
            lambda parts, layout, out: torch.cat([p[0] for p in parts]),
        )
        grad(lambda x: mine(x).sum())(X)

    refused("another form", program)
