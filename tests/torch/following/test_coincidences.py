"""Lengths of shards that are those of other axes, or of other tensors: they decide nothing."""

from __future__ import annotations

import operator

import pytest

torch = pytest.importorskip("torch")

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import LayoutError  # noqa: E402
from distarray.testing import simulate  # noqa: E402

R, S = da.Replicate(), da.Shard
REFUSED = "refused"


def _items(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def _places(below: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(5))


def _outcome(function, mesh_shape=(2,), names=("tp",)):
    """Return as what each rank knows the result, which is right where it is placed."""
    wanted = function(lambda x, *_: x.clone())

    def program():
        mesh = da.init_device_mesh(mesh_shape, names)
        whole = [R] * len(names)

        def cut(x, *placements):
            return dt.redistribute(x.clone(), mesh, whole, [*placements, *whole][: len(names)])

        try:
            with dt.check_layouts():
                found = function(cut)
        except LayoutError:
            return REFUSED
        layout = dt.layout_of(found)
        if layout is not None:
            assert torch.allclose(dt.full_tensor(found), wanted)
        return layout and str(layout)

    outcomes = simulate(4 if len(names) > 1 else 2, program)
    assert len(set(outcomes)) == 1
    return outcomes[0]


def _written(x, write):
    write(x)
    return x


IN_PLACE = {
    "items of the whole": lambda c: _written(
        c(_items(6, 4), R), lambda y: y.__setitem__(c(torch.tensor([0, 1, 3, 5]), S(0)), 0)
    ),
    "sums of the whole": lambda c: c(_items(4, 3), R).index_put_(
        (c(_places(4, 4), S(0)),), c(_items(4, 3), S(0)), accumulate=True
    ),
    "shares of one item": lambda c: c(_items(4, 2), R).copy_(c(_items(4, 2), S(1))),
    "a sum by an operator": lambda c: operator.iadd(c(_items(4, 2), R), c(_items(4, 2), S(1))),
    "shares of one item by a slice": lambda c: _written(
        c(_items(4, 2), R), lambda y: y.__setitem__(slice(None), c(_items(4, 2), S(1)))
    ),
    "rows of all": lambda c: c(_items(4, 3), S(0)).scatter_add_(
        1, c(_places(3, 4, 3), S(0)), c(_items(4, 3), R)
    ),
}


@pytest.mark.parametrize("how", IN_PLACE)
def test_what_a_layout_does_not_hold_is_not_written_in_place(how):
    assert _outcome(IN_PLACE[how]) == REFUSED


def test_shares_along_another_mesh_axis_are_not_added_in_place():
    def function(c):
        return c(_items(4, 2), S(0)).add_(c(_items(4, 2), S(0), S(0)))

    assert _outcome(function, (2, 2), ("a", "b")) == REFUSED


KEPT_IN_PLACE = {
    "an item": lambda c: _written(c(_items(4, 3), S(0)), lambda y: y.__setitem__((..., 1), 0)),
    "a column": lambda c: _written(
        c(_items(4, 3), S(0)), lambda y: y.__setitem__((slice(None), 1), c(_items(4), S(0)))
    ),
    "a mask": lambda c: _written(c(_items(4, 3), S(0)), lambda y: y.__setitem__(y > 0, 0.5)),
    "a sum by an operator": lambda c: operator.iadd(c(_items(4, 3), S(0)), c(_items(4, 1), S(0))),
    "values": lambda c: c(_items(4, 3), S(0)).copy_(c(_items(4, 1), S(0))),
    "a sum": lambda c: c(_items(4, 3), S(0)).add_(c(_items(4, 1), S(0))),
    "paired": lambda c: c(_items(4, 3), S(0)).scatter_add_(
        1, c(_places(3, 4, 3), S(0)), c(_items(4, 3), S(0))
    ),
}


@pytest.mark.parametrize("how", KEPT_IN_PLACE)
def test_what_is_written_where_it_belongs_keeps_its_layout(how):
    assert _outcome(KEPT_IN_PLACE[how]) == "4x3 [tp:S(0)]"


def test_results_are_written_into_tensors_of_any_layout():
    def function(c):
        out = c(_items(4, 4), S(1)).t().contiguous()
        return torch.add(c(_items(4, 4), S(0)), 1, out=out)

    assert _outcome(function) == "4x4 [tp:S(0)]"


def test_a_parallelized_module_refuses_what_a_share_has_written():
    class Masked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = (torch.nn.Linear(4, 4).double() for _ in range(2))

        def forward(self, x, places):
            y = self.a(x) * 1
            y[places] = 0
            return self.b(y)

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        plan = {
            "a": dt.ColwiseParallel(output_layouts=R),
            "b": dt.ColwiseParallel(output_layouts=R),
        }
        model = dt.parallelize_module(Masked(), mesh, plan)
        places = dt.redistribute(torch.tensor([0, 1, 3, 5]), mesh, [R], [S(0)])
        with pytest.raises(LayoutError, match="by __setitem__, along an axis that is cut"):
            model(_items(6, 4), places)

    simulate(2, program)


def _recurrent(kind, x, **how):
    layer = kind(3, 2, **how).double()
    for parameter in layer.parameters():
        parameter.data = _items(*parameter.shape)
    return layer(x)


def _attended(query, key):
    return torch.nn.functional.multi_head_attention_forward(
        *(query, key, key, 4, 2, _items(12, 4), None, None, None, False, 0.0),
        *(_items(4, 4), None, True, None, False),
    )[0]


def _bags(places):
    return torch.nn.functional.embedding_bag(places, _items(8, 3), mode="sum")


FOLLOWED = {
    "reversed": (lambda c: reversed(c(_items(4, 3), S(0))), REFUSED),
    "counted along several axes": (lambda c: c(_items(4, 3), S(0)).count_nonzero(1, 0), REFUSED),
    "divided by a number": (lambda c: c(_items(3, 8), S(1)).unflatten(-1, (2, -1)), REFUSED),
    "divided by a length": (lambda c: c(_items(3, 8), S(1)).view(3, -1, 2), None),
    "divided elsewhere": (lambda c: c(_items(4, 8), S(1)).unflatten(0, (2, -1)), "2x2x8 [tp:S(2)]"),
    "joined to a rest": (lambda c: c(_items(2, 3, 8), S(2)).reshape(2, 2, -1), REFUSED),
    "joined to the next": (lambda c: c(_items(2, 8, 3), S(1)).reshape(2, -1), None),
    "joined to others before": (lambda c: c(_items(2, 3, 8), S(2)).flatten(1), REFUSED),
    "one item joined to others": (lambda c: c(_items(2, 3, 2), S(2)).reshape(2, -1), REFUSED),
    "joined to all": (lambda c: c(_items(2, 3, 8), S(2)).flatten(), None),
    "joined to a batch": (lambda c: c(_items(2, 4, 3), S(1)).view(-1, 3), None),
    "attended, beside a cut query": (
        lambda c: _attended(c(_items(4, 2, 4), S(0)), _items(4, 2, 4)),
        None,
    ),
    "attended, of a sequence": (lambda c: _attended(*[c(_items(4, 2, 4), S(0))] * 2), REFUSED),
    "attended, of a batch": (lambda c: _attended(*[c(_items(4, 2, 4), S(1))] * 2), None),
    "bags": (lambda c: _bags(c(_places(8, 2, 4), S(1))), REFUSED),
    "bags of a batch": (lambda c: _bags(c(_places(8, 2, 4), S(0))), "2x3 [tp:S(0)]"),
    "side by side": (lambda c: torch.column_stack([c(_items(4, 4), S(1))] * 2), REFUSED),
    "one below another": (
        lambda c: torch.row_stack([c(_items(4, 4), S(1))] * 2),
        "8x4 [tp:S(1)]",
    ),
    "steps and channels": (
        lambda c: torch.conv_tbc(c(_items(4, 2, 3), S(0)), _items(3, 3, 3), _items(3), 1),
        REFUSED,
    ),
    "sequences": (lambda c: torch.nn.utils.rnn.pad_sequence([c(_items(4, 3), S(0))]), REFUSED),
    "leaky": (
        lambda c: torch.nn.functional.prelu(c(_items(4, 3), S(1)), _items(1)).softmax(1),
        REFUSED,
    ),
    "packed": (
        lambda c: torch.nn.utils.rnn.pack_padded_sequence(c(_items(4, 1, 3), S(0)), [2])[0],
        REFUSED,
    ),
    "products of many": (
        lambda c: torch.linalg.multi_dot([_items(2, 4), c(_items(4, 6), S(1)), _items(6, 3)]),
        REFUSED,
    ),
    "rows of many": (lambda c: torch.linalg.multi_dot([c(_items(4, 6), S(0)), _items(6, 3)]), None),
    "recurrent": (lambda c: _recurrent(torch.nn.LSTM, c(_items(4, 2, 3), S(0)))[0], REFUSED),
    "recurrent, batch first": (
        lambda c: _recurrent(torch.nn.GRU, c(_items(2, 4, 3), S(1)), batch_first=True)[0],
        REFUSED,
    ),
    "recurrent, of a batch": (
        lambda c: _recurrent(torch.nn.RNN, c(_items(4, 2, 3), S(0)), batch_first=True)[0],
        None,
    ),
    "states of a batch": (lambda c: _recurrent(torch.nn.GRU, c(_items(4, 2, 3), S(1)))[1], None),
    "stacked": (lambda c: torch.stack([c(_items(4, 4), S(0))] * 2, axis=1), "4x2x4 [tp:S(0)]"),
    "stacked last": (
        lambda c: torch.stack([c(_items(4, 4), S(0))] * 2, axis=-1),
        "4x4x2 [tp:S(0)]",
    ),
    "stacked, then normalised": (
        lambda c: torch.stack([c(_items(4, 4), S(0))] * 2, axis=-1).softmax(axis=0),
        REFUSED,
    ),
    "unbound": (lambda c: c(_items(2, 4, 2), S(1)).unbind(axis=2)[0], "2x4 [tp:S(1)]"),
    "unbound along the cut": (lambda c: torch.unbind_copy(c(_items(4, 2), S(0)))[0], REFUSED),
    "summed": (
        lambda c: torch.sum(x=c(_items(4, 2), S(0)), axis=1, keepdims=True),
        "4x1 [tp:S(0)]",
    ),
    "looked up": (lambda c: _items(8, 4)[c(_places(8, 2, 8), S(1))], "2x8x4 [tp:S(1)]"),
    "looked up, then summed": (
        lambda c: _items(8, 4)[c(_places(8, 2, 8), S(1))].sum(1),
        REFUSED,
    ),
    "looked up by both": (lambda c: c(_items(4, 4), S(0))[:, c(_places(4, 4), S(0))], None),
    "picked from the last axis": (
        lambda c: c(_items(3, 4, 4), S(-1))[:, c(_places(4, 4), S(0))],
        None,
    ),
    "selected by both": (
        lambda c: c(_items(4, 4), S(1)).index_select(0, c(_places(4, 4), S(0))),
        REFUSED,
    ),
    "gathered by all": (lambda c: c(_items(4, 3), S(0)).gather(1, c(_places(3, 2, 3), R)), None),
    "gathered by what is not known": (
        lambda c: c(_items(4, 3), S(0)).gather(1, _places(3, 2, 3)),
        None,
    ),
    "gathered": (
        lambda c: c(_items(4, 3), S(0)).gather(1, c(_places(3, 4, 3), S(0))),
        "4x3 [tp:S(0)]",
    ),
    "scattered by all": (
        lambda c: c(_items(4, 3), S(0)).scatter_add(1, _places(3, 2, 3), _items(2, 3)),
        None,
    ),
    "rows told apart": (lambda c: torch.unique(c(_items(3, 2), S(1)), dim=0), REFUSED),
    "rows told apart in turn": (
        lambda c: torch.unique_consecutive(c(_items(3, 2), S(1)), dim=0),
        REFUSED,
    ),
    "sampled": (
        lambda c: torch.nn.functional.grid_sample(
            _items(1, 2, 4, 4), c(_items(1, 4, 3, 2), S(1)), align_corners=False
        ),
        None,
    ),
    "sampled in three": (
        lambda c: torch.nn.functional.grid_sample(
            c(_items(1, 4, 4, 4, 4), S(1)), c(_items(1, 4, 3, 3, 3), S(1)), align_corners=False
        ),
        None,
    ),
    "one of many": (
        lambda c: torch.nn.functional.one_hot(c(_places(4, 3), S(0)), 4),
        "3x4 [tp:S(0)]",
    ),
    "one of as many as there are": (
        lambda c: torch.nn.functional.one_hot(c(_places(4, 3), S(0))),
        REFUSED,
    ),
    "embedded": (
        lambda c: torch.nn.functional.embedding(c(_places(4, 4), S(0)), _items(4, 4)),
        "4x4 [tp:S(0)]",
    ),
    "embedded by a shard of the table": (
        lambda c: torch.nn.functional.embedding(_places(2, 4), c(_items(4, 4), S(0))),
        "refused",
    ),
    "complex": (lambda c: torch.view_as_complex(c(_items(4, 2), S(0))), "4 [tp:S(0)]"),
    "levels": (
        lambda c: c(_items(4, 3), S(0)).quantile(torch.tensor([0.2, 0.7]).double(), 1),
        None,
    ),
    "like a share": (lambda c: c(_items(2, 3), R).type_as(c(_items(4, 3), S(0))), "2x3 [tp:R]"),
}


@pytest.mark.parametrize("how", FOLLOWED)
def test_lengths_that_coincide_decide_nothing(how):
    function, wanted = FOLLOWED[how]
    assert _outcome(function) == wanted
