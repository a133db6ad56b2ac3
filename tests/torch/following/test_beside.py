"""What is computed of tensors that are placed otherwise, of contributions, and by windows."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import LayoutError  # noqa: E402
from distarray.testing import simulate  # noqa: E402

R, P, S = da.Replicate(), da.Partial(), da.Shard


def _values(*shape: int, seed: int = 7) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class Joined(nn.Module):
    """Two layers of one input, and one of what a function makes of both."""

    def __init__(self, function, rank: int):
        super().__init__()
        self.function = function
        for i, name in enumerate(("a", "b", "c")):
            linear = nn.Linear(4, 4).double()
            linear.weight.data.copy_(_values(4, 4, seed=i + 10 * rank))
            linear.bias.data.copy_(_values(4, seed=i + 5 + 10 * rank))
            setattr(self, name, linear)

    def forward(self, x):
        return self.c(self.function(self.a(x), self.b(x)))


def _errors(ranks, function, shape, a, b, c=R, style=dt.ColwiseParallel):
    """Return what each rank raises, or the whole result."""

    def program():
        mesh = da.init_device_mesh((ranks,), ("tp",))
        model = Joined(function, mesh.rank)
        plan = {
            "a": style(input_layouts=R, output_layouts=a),
            "b": style(input_layouts=R, output_layouts=b),
            "c": dt.ColwiseParallel(input_layouts=c, output_layouts=R),
        }
        dt.parallelize_module(model, mesh, plan)
        try:
            return model(_values(*shape))
        except LayoutError as error:
            return str(error)

    return simulate(ranks, program)


MIXING = {
    "added": lambda a, b: a + b,
    "added in place": lambda a, b: b.mul_(1).add_(a) if b.numel() > a.numel() else a.add_(b),
    "chosen": lambda a, b: torch.where(a > 0, a, b),
    "joined": lambda a, b: torch.cat([a, b], -1)[..., :4],
}


@pytest.mark.parametrize("how", MIXING)
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("length", [2, 3, 5])
@pytest.mark.parametrize("turned", [False, True], ids=["shard first", "whole first"])
def test_a_shard_beside_the_whole_is_an_error_on_all_ranks(how, ranks, length, turned):
    placed = (R, S(1)) if turned else (S(1), R)
    errors = _errors(ranks, MIXING[how], (2, length, 4), *placed)
    assert len(set(errors)) == 1
    assert f"2x{length}x4 [tp:S(1)]" in errors[0]
    assert f"2x{length}x4 [tp:R]: along axis 1 every rank has its shard" in errors[0]


def test_shards_along_different_axes_are_an_error():
    errors = _errors(2, torch.add, (2, 2, 4), S(0), S(1))
    assert len(set(errors)) == 1
    assert "bring one to the other" in errors[0]


def test_shards_alike_pass_and_so_does_what_is_broadcast():
    found = _errors(2, torch.add, (2, 2, 4), S(1), S(1), S(1))
    again = _errors(2, torch.add, (2, 2, 4), R, R)
    assert all(torch.allclose(x, again[0]) for x in (*found, *again))
    one = _errors(2, lambda a, b: a + b.mean(1, keepdim=True), (2, 2, 4), S(1), R, S(1))
    two = _errors(2, lambda a, b: a + b.mean(1, keepdim=True), (2, 2, 4), R, R)
    assert all(torch.allclose(x, two[0]) for x in (*one, *two))


OF_CONTRIBUTIONS = {
    "relu": lambda a, b: torch.relu(a),
    "scaled": lambda a, b: a * 2,
    "transposed": lambda a, b: a.transpose(0, 1),
    "added": lambda a, b: a + b,
    "read": lambda a, b: a[:, :1],
}


@pytest.mark.parametrize("how", OF_CONTRIBUTIONS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_what_is_computed_of_contributions_is_not_taken_for_their_sum(how, ranks):
    function = OF_CONTRIBUTIONS[how]
    for c in (R, S(1)):
        errors = _errors(ranks, function, (2, 3, 4), P, P, c)
        assert len(set(errors)) == 1
        assert "computed from a tensor placed as 2x3x4 [tp:P(sum)]" in errors[0]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_sums_of_contributions_pass_where_they_are_declared(ranks):
    def added_up(a, b):
        return dt.redistribute(a + 2 * b, mesh_of(a), [P], [R])

    def mesh_of(x):
        return dt.layout_of(x).mesh

    wanted = _errors(ranks, lambda a, b: a + 2 * b, (2, 3, 4), R, R)
    found = _errors(ranks, added_up, (2, 3, 4), P, P)
    assert all(torch.allclose(x, wanted[0]) for x in (*found, *wanted))


def test_a_style_adds_up_sums_of_contributions():
    class Sums(Joined):
        def forward(self, x):
            return self.c((self.a(x) + self.b(x)).transpose(0, 1))

    def program():
        mesh = da.init_device_mesh((3,), ("tp",))
        model = Sums(None, mesh.rank)
        alone = Sums(None, 0)
        plan = {
            "a": dt.RowwiseParallel(input_layouts=R, output_layouts=P),
            "b": dt.RowwiseParallel(input_layouts=R, output_layouts=P),
            "c": dt.PrepareModuleInput(input_layouts=P, desired_input_layouts=R),
        }
        dt.parallelize_module(model, mesh, plan)
        model.c.load_state_dict(alone.c.state_dict())
        x = _values(2, 3, 4)
        assert torch.allclose(model(x), alone(x))
        with dt.check_layouts():
            model(x).sum()

    simulate(3, program)


WINDOWS = {
    "averages": lambda a, b: functional.avg_pool1d(a.mT, 3, 1, 1).mT,
    "maxima": lambda a, b: functional.max_pool1d(a.mT, 3, 1, 1).mT,
    "adaptive": lambda a, b: functional.adaptive_avg_pool1d(a.mT, 2).mT,
    "interpolated": lambda a, b: functional.interpolate(a.mT, scale_factor=2).mT,
    "convolved": lambda a, b: functional.conv1d(a.mT, _values(4, 4, 3), padding=1).mT,
}


@pytest.mark.parametrize("how", WINDOWS)
def test_windows_along_a_cut_axis_are_an_error(how):
    errors = _errors(2, WINDOWS[how], (2, 4, 4), S(1), S(1), S(1))
    assert len(set(errors)) == 1
    assert "along an axis that is cut, of which each rank saw its shard only" in errors[0]


@pytest.mark.parametrize("how", WINDOWS)
def test_windows_along_other_axes_pass(how):
    found = _errors(2, WINDOWS[how], (3, 4, 4), S(0), S(0), S(0))
    wanted = _errors(2, WINDOWS[how], (3, 4, 4), R, R)
    assert all(torch.allclose(x, wanted[0]) for x in (*found, *wanted))


def test_a_convolution_of_one_item_works_position_by_position():
    def function(a, b):
        return functional.conv1d(a.mT, _values(4, 4, 1)).mT

    found = _errors(2, function, (2, 5, 4), S(1), S(1), S(1))
    wanted = _errors(2, function, (2, 5, 4), R, R)
    assert all(torch.allclose(x, wanted[0]) for x in (*found, *wanted))


REFUSED_BY_TORCH = {
    "norm": (lambda a, b: functional.layer_norm(a, (4,)), S(2), (2, 3, 4)),
    "pool": (lambda a, b: functional.avg_pool1d(a.mT, 1).mT, S(1), (2, 1, 4)),
    "split": (lambda a, b: a.split([2, 1], 1)[0], S(1), (2, 3, 4)),
}


@pytest.mark.parametrize("how", REFUSED_BY_TORCH)
def test_what_torch_refuses_of_a_shard_is_said_to_be_one(how):
    function, placed, shape = REFUSED_BY_TORCH[how]
    errors = _errors(2, function, shape, placed, placed)
    assert all("this rank's shard only" in e or "each rank saw its shard" in e for e in errors)


def test_properties_that_move_axes_keep_what_is_lost():
    errors = _errors(2, lambda a, b: a.mT.softmax(-1).mT, (2, 4, 4), S(1), S(1), S(1))
    assert len(set(errors)) == 1
    assert "by softmax, along an axis that is cut" in errors[0]


def test_what_is_expanded_keeps_its_layout():
    def function(a, b):
        return a.expand(3, -1, -1, -1)[0]

    errors = _errors(2, function, (2, 4, 4), S(1), S(1), R)
    assert len(set(errors)) == 1
    assert "placed as 2x4x4 [tp:S(1)], but declared as Replicate()" in errors[0]


NUMBERS = {
    "one more": lambda a, b: a / (1 + torch.linalg.vector_norm(a)),
    "one less": lambda a, b: a * (a.sum() - 1),
}


@pytest.mark.parametrize("how", NUMBERS)
def test_numbers_of_a_shard_are_not_those_of_the_whole(how):
    errors = _errors(2, NUMBERS[how], (2, 4, 4), S(1), S(1), S(1))
    assert len(set(errors)) == 1
    assert "along an axis that is cut, of which each rank saw its shard only" in errors[0]


@pytest.mark.parametrize("turned", [False, True])
def test_a_shard_and_contributions_make_no_shard(turned):
    placed = (P, S(1)) if turned else (S(1), P)
    errors = _errors(2, lambda a, b: a * b, (1, 1, 4), *placed, S(1))
    assert len(set(errors)) == 1
    assert "[tp:P(sum)]: of what each rank has to add" in errors[0]


@pytest.mark.parametrize("context", [nullcontext, dt.check_layouts, dt.loss_parallel])
def test_sums_that_are_not_added_up_do_not_leave_unless_it_is_said(context):
    class Leaving(Joined):
        def forward(self, x):
            return self.function(self.a(x))

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        wanted = Leaving(lambda y: y * 2, 0)(_values(2, 3, 4))
        models = [
            Leaving(lambda y: y * 2, mesh.rank),
            Leaving(lambda y: dt.redistribute(y * 2, mesh, [P], [P]), mesh.rank),
        ]
        for model in models:
            plan = {"a": dt.RowwiseParallel(input_layouts=R, output_layouts=P)}
            dt.parallelize_module(model, mesh, plan)
        with context():
            for _ in range(2):
                with pytest.raises(LayoutError, match="what leaves was computed from"):
                    models[0](_values(2, 3, 4))
            found = models[1](_values(2, 3, 4))
        assert torch.allclose(dt.redistribute(found, mesh, [P], [R]), wanted)

    simulate(2, program)


@pytest.mark.parametrize("width", [2, 6])
def test_a_bias_that_its_group_has_let_go_is_an_error(width):
    class Adapted(nn.Module):
        def __init__(self, rank):
            super().__init__()
            torch.manual_seed(rank)
            self.base = nn.Linear(4, width)
            self.down = nn.Linear(4, 2, bias=False)
            self.up = nn.Linear(2, width, bias=False)

        def forward(self, x):
            return self.base(x) + self.up(self.down(x))

    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        model = Adapted(mesh.rank)
        style = dt.LowRankParallel(dt.RowwiseParallel(input_layouts=R))
        dt.parallelize_module(model, mesh["tp"], style)
        dt.fully_shard(model.base, mesh["dp"])
        dt.fully_shard(model, mesh["dp"])
        with pytest.raises(LayoutError, match="let fully_shard make one group of the"):
            model(torch.ones(2, 4) + mesh["dp"].coordinate[0])

    simulate(4, program)


def test_a_residual_beside_what_was_computed_along_a_cut_axis_fails_with_a_remedy():
    class Residual(Joined):
        def forward(self, x):
            x = self.a(x)
            return x + self.function(self.b(x))

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        model = Residual(lambda y: y.cumsum(1), mesh.rank)
        plan = {"a": dt.ColwiseParallel(output_layouts=S(2)), "b": dt.SequenceParallel()}
        dt.parallelize_module(model, mesh, plan)
        with pytest.raises(LayoutError, match=r"add would see .* computed from .*S\(1\)\]; take"):
            model(_values(2, 6, 4))

    simulate(2, program)


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: torch.stack(torch._foreach_mul(list(a.unbind(-1)), 2.0), -1),
        lambda a, b: a * torch._foreach_norm([a, b])[0],
        lambda a, b: a * torch.stack(torch._foreach_max([a, b])).amax(),
    ],
    ids=["pieces", "norm", "max"],
)
def test_functions_of_many_tensors_know_what_each_comes_of(function):
    for told in _errors(2, function, (3, 4), S(-1), S(-1), S(-1)):
        assert "of which each rank saw its shard only" in told


def _cut(x, mesh, axis):
    return dt.redistribute(x, mesh, [R], [S(axis)])


WORDS = torch.arange(5) % 3
ALONE = {  # functions of a rank's own words, classes or losses
    "words of all": lambda m: functional.embedding(WORDS, _cut(_values(6, 5), m, 0)),
    "gradients by counts": lambda m: functional.embedding(
        _cut(WORDS, m, 0), _values(6, 5), scale_grad_by_freq=True
    ),
    "gradients of bags by counts": lambda m: functional.embedding_bag(
        _cut(WORDS.view(5, 1), m, 0), _values(6, 5), mode="mean", scale_grad_by_freq=True
    ),
    "classes": lambda m: functional.cross_entropy(
        _cut(_values(5, 6), m, 1), WORDS, reduction="none"
    ),
    "losses beside the whole": lambda m: functional.kl_div(
        _cut(_values(2, 3), m, 0), _values(2, 3), reduction="none"
    ),
}


@pytest.mark.parametrize("function", ALONE)
def test_functions_of_words_and_losses_refuse_a_shard_for_the_whole(function):
    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        with dt.check_layouts(), pytest.raises(LayoutError):
            ALONE[function](mesh)

    simulate(2, program)


def test_words_and_a_table_that_one_mesh_axis_cuts_make_no_shard():
    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        with dt.check_layouts():
            found = functional.embedding(_cut(WORDS, mesh, 0), _cut(_values(6, 5), mesh, 1))
            losses = functional.mse_loss(
                *(_cut(_values(5, 2, seed=i), mesh, 0) for i in (1, 2)), reduction="none"
            )
        return dt.layout_of(found), str(dt.layout_of(losses))

    assert simulate(2, program) == [(None, "5x2 [tp:S(0)]")] * 2
