"""Products of shards: along other axes than they sum over they are followed, or refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import LayoutError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from distarray.torch._layouts import lost_of  # noqa: E402
from distarray.torch.following import Following  # noqa: E402

R, P, S = da.Replicate(), da.Partial(), da.Shard
attention = functional.scaled_dot_product_attention


def _values(*shape: int, seed: int = 7) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _placed(mesh, placement, *shape: int, seed: int = 7) -> torch.Tensor:
    """Return this rank's block of the same values; a plain tensor for None."""
    x = _values(*shape, seed=seed)
    if placement is None:
        return x
    return dt.redistribute(x, mesh, [R], [placement])


BY_BATCH = {
    # of a shard along the first axis and of another tensor
    "matmul": (torch.matmul, (4, 5)),
    "@": (lambda a, b: a @ b, (4, 5)),
    "of the right": (lambda a, b: b.mT @ a.mT, (4, 5)),
    "rmatmul": (lambda a, b: b.__rmatmul__(a), (4, 5)),
    "bmm": (torch.bmm, (4, 5)),
    "baddbmm": (lambda a, b: torch.baddbmm(a, a, b), (4, 4)),
    "einsum": (lambda a, b: torch.einsum("bij,bjk->bki", a, b), (4, 5)),
    "einsum, dots": (lambda a, b: torch.einsum("...ij,...jk->k...i", a, b), (4, 5)),
    "cdist": (lambda a, b: torch.cdist(a, b.mT), (4, 5)),
    "attention": (lambda a, b: attention(a, b.mT, b.mT), (4, 5)),
    "causal": (lambda a, b: attention(a, b.mT, b.mT, is_causal=True), (4, 3)),
    "masked": (lambda a, b: attention(a, a, a, attn_mask=b), (3, 3)),
}


@pytest.mark.parametrize("other", ["shard", "one", "unknown"])
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("batch", [2, 3, 5])
@pytest.mark.parametrize("how", BY_BATCH)
def test_products_along_other_axes_are_followed(how, batch, ranks, other):
    if other == "one" and "bmm" in how:
        pytest.skip("takes no batch of one for one of many")
    function, shape = BY_BATCH[how]
    many = 1 if other == "one" else batch
    expected = function(_values(batch, 3, 4), _values(many, *shape, seed=8))

    def program():
        mesh = da.init_device_mesh((ranks,), ("tp",))
        a = _placed(mesh, S(0), batch, 3, 4)
        b = _placed(mesh, R if other == "one" else S(0), many, *shape, seed=8)
        if other == "unknown":
            b = b.clone()  # nothing has been said of it
        with dt.check_layouts():
            found = function(a, b)
        assert dt.layout_of(found).placements == (S(1) if "dots" in how else S(0),)
        assert torch.allclose(dt.full_tensor(found), expected)

    simulate(ranks, program)


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("batch", [2, 3, 5])
@pytest.mark.parametrize("how", BY_BATCH)
def test_a_shard_times_the_whole_is_an_error_on_all_ranks(how, batch, ranks, known):
    function, shape = BY_BATCH[how]

    def program():
        mesh = da.init_device_mesh((ranks,), ("tp",))
        a = _placed(mesh, S(0), batch, 3, 4)
        b = _placed(mesh, R if known else None, batch, *shape, seed=8)
        for strict in (True, False):
            with pytest.raises(LayoutError) as raised, Following(strict=strict):
                function(a, b)
        return str(raised.value)

    errors = simulate(ranks, program)
    assert len(set(errors)) == 1
    assert "[tp:S(0)] and " in errors[0]
    assert "along axis 0 every rank has its shard of the one, and all of the other" in errors[0]
    assert "dt.redistribute(x, mesh, [da.Replicate()], [da.Shard(axis)])" in errors[0]


ROWS_AND_COLUMNS = {
    "matmul": lambda a, b: a @ b.T,
    "linear": lambda a, b: functional.linear(a, b),
    "outer": lambda a, b: torch.outer(a[:, 0], b[:, 0]),
    "inner": lambda a, b: torch.inner(a, b),
    "tensordot": lambda a, b: torch.tensordot(a, b, dims=([1], [1])),
    "addmm": lambda a, b: torch.addmm(torch.zeros(1, dtype=a.dtype), a, b.T),
    "attention": lambda a, b: attention(a, b, b),
    "itself": lambda a, b: a @ a.T,
}


@pytest.mark.parametrize("how", ROWS_AND_COLUMNS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_rows_times_columns_of_the_same_ranks_are_not_all_of_them(how, ranks):
    function = ROWS_AND_COLUMNS[how]

    def program():
        mesh = da.init_device_mesh((ranks,), ("tp",))
        a, b = (_placed(mesh, S(0), 5, 4, seed=i) for i in (7, 8))
        with pytest.raises(LayoutError, match="this rank's shard only"), dt.check_layouts():
            function(a, b)
        with Following(strict=False):
            assert lost_of(function(a, b)).axes
            whole = _placed(mesh, R, 7, 4, seed=8)
            if how != "itself":
                rows = function(a, whole)
                assert torch.allclose(
                    dt.full_tensor(rows), function(_values(5, 4), _values(7, 4, seed=8))
                )

    simulate(ranks, program)


SUMMED = {
    "tensordot": lambda a, b: torch.tensordot(a, b, 1),
    "addbmm": lambda a, b: torch.addbmm(torch.zeros(1).to(b), b.mT[:, None], b[:, None]),
    "named": lambda a, b: torch.matmul(input=a, other=b),
    "named otherwise": lambda a, b: functional.linear(weight=a, input=b.T),
    "second": lambda a, b: b.T @ b,
}


@pytest.mark.parametrize("how", SUMMED)
def test_what_is_summed_over_is_found_however_it_is_passed(how):
    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        a, b = _placed(mesh, S(1), 3, 4), _placed(mesh, S(0), 4, 3, seed=8)
        with pytest.raises(LayoutError, match="this rank's shard only"), dt.check_layouts():
            SUMMED[how](a, b)

    simulate(2, program)


def test_causal_attention_of_some_queries_is_not_that_of_their_places():
    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        q, k = _placed(mesh, S(1), 2, 4, 3), _placed(mesh, R, 2, 4, 3, seed=8)
        with dt.check_layouts():
            found = attention(q, k, k)
            with pytest.raises(LayoutError, match="this rank's shard only"):
                attention(q, k, k, is_causal=True)
        whole = _values(2, 4, 3, seed=8)
        assert torch.allclose(dt.full_tensor(found), attention(_values(2, 4, 3), whole, whole))

    simulate(2, program)


@pytest.mark.parametrize("keys", [1, 2])
def test_heads_that_share_keys_are_not_given_all_keys(keys):
    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        q, k = _placed(mesh, S(1), 2, 4, 3, 2), _placed(mesh, R, 2, keys, 3, 2, seed=8)
        with dt.check_layouts():
            if keys > 1:
                with pytest.raises(LayoutError, match="and all of the other"):
                    attention(q, k, k, enable_gqa=True)
                return
            found = attention(q, k, k, enable_gqa=True)
        whole = _values(2, 1, 3, 2, seed=8)
        wanted = attention(_values(2, 4, 3, 2), whole, whole, enable_gqa=True)
        assert torch.allclose(dt.full_tensor(found), wanted)

    simulate(2, program)


# --- weights that are read outside of their module's call -----------------------------------------


class Reading(nn.Module):
    """A model that computes with the weights of its layers itself."""

    def __init__(self, compute):
        super().__init__()
        self.words, self.up = nn.Embedding(11, 6), nn.Linear(6, 7)
        self.compute = compute

    def forward(self, x):
        return self.compute(self, x)


READ = {
    "linear": lambda m, x: functional.linear(x, m.words.weight),
    "@": lambda m, x: x @ m.words.weight.T,
    "einsum": lambda m, x: torch.einsum("...i,oi->...o", x, m.words.weight),
}


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("how", READ)
def test_products_with_a_weight_that_a_model_reads_are_shards(how, ranks):
    torch.manual_seed(0)
    model = Reading(READ[how]).double()
    x = _values(4, 6).requires_grad_()
    expected = model(x)
    expected.square().sum().backward()
    state, words = model.state_dict(), torch.arange(4)
    loss = functional.cross_entropy(expected.detach(), words)

    def run():
        mesh = da.default_mesh()
        twin = Reading(READ[how]).double()
        twin.load_state_dict(state)
        dt.parallelize_module(twin, mesh, {"words": dt.RowwiseParallel()})
        mine = x.detach().clone().requires_grad_()
        y = twin(dt.redistribute(mine, mesh, [R], [R]))
        assert dt.layout_of(y).placements == (S(1),)
        torch.testing.assert_close(dt.full_tensor(y), expected)
        y.square().sum().backward()
        torch.testing.assert_close(mine.grad, x.grad)
        torch.testing.assert_close(dt.full_tensor(twin.words.weight.grad), model.words.weight.grad)
        with dt.loss_parallel():
            torch.testing.assert_close(functional.cross_entropy(twin(mine), words), loss)

    simulate(ranks, run)


SUMMED_OVER = {
    "linear": lambda m, x: functional.linear(functional.gelu(m.up(x)), m.up.weight.T),
    "@": lambda m, x: functional.gelu(m.up(x)) @ m.up.weight,
    "gram": lambda m, x: m.up.weight.T @ m.up.weight,
    "loss": lambda m, x: functional.cross_entropy(
        functional.linear(x, m.up.weight), torch.zeros(4, dtype=torch.long)
    ),
}


@pytest.mark.parametrize("how", SUMMED_OVER)
def test_sums_over_what_is_cut_of_a_weight_that_a_model_reads_do_not_leave(how):
    def run():
        model = Reading(SUMMED_OVER[how]).double()
        dt.parallelize_module(model, da.default_mesh(), {"up": dt.ColwiseParallel()})
        with pytest.raises(LayoutError, match=r"what leaves was computed .* along an axis that is"):
            model(_values(4, 6))

    simulate(2, run)


class Cosine(nn.Linear):
    """A layer that computes with its own weight in its own way."""

    reentrant = None

    def forward(self, x):
        if self.reentrant is None:
            return self.compute(x)
        return checkpoint(self.compute, x, use_reentrant=self.reentrant)

    def compute(self, x):
        weight = self.weight * 2 if self.in_features == 7 else functional.normalize(self.weight)
        return functional.linear(x, weight, self.bias)


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_a_layer_that_computes_with_its_own_weight_is_what_its_style_says(reentrant):
    Cosine.reentrant = reentrant
    torch.manual_seed(0)
    model = nn.Sequential(Cosine(6, 7), nn.GELU(), Cosine(7, 6)).double()
    x, state = _values(4, 6).requires_grad_(), model.state_dict()
    expected = model(x)
    expected.square().sum().backward()

    def run():
        twin = nn.Sequential(Cosine(6, 7), nn.GELU(), Cosine(7, 6)).double()
        twin.load_state_dict(state)
        plan = {
            "0": dt.ColwiseParallel(own_forward=True),
            "2": dt.RowwiseParallel(own_forward=True),
        }
        dt.parallelize_module(twin, da.default_mesh(), plan)
        mine = x.detach().clone().requires_grad_()
        y = twin(mine)
        torch.testing.assert_close(y, expected)
        y.square().sum().backward()
        for name, parameter in twin.named_parameters():
            wanted = model.get_parameter(name).grad
            torch.testing.assert_close(dt.full_tensor(parameter.grad), wanted)
        with dt.check_layouts():
            torch.testing.assert_close(twin(x), expected)

    simulate(3, run)


class Asked(nn.Sequential):
    """A model that counts how often it is asked for all parameters."""

    asked = 0

    def parameters(self, recurse=True):
        self.asked += 1
        return super().parameters(recurse)

    def forward(self, x):
        before = self.asked
        for _ in range(5):
            functional.linear(x, self[0].weight)
        assert self.asked - before <= 1
        return x


def test_a_weight_is_looked_for_among_all_parameters_once_in_a_call():
    def run():
        mesh = da.default_mesh()
        model = Asked(nn.Linear(6, 7)).double()
        plan = {
            "0": dt.RowwiseParallel(),
            "": dt.PrepareModuleOutput(output_layouts=R, desired_output_layouts=R),
        }
        dt.parallelize_module(model, mesh, plan)
        for _ in range(2):
            assert model(_values(4, 3)).shape == (4, 3)

    simulate(2, run)
