"""Inside loss_parallel a tensor's layout is known where it is sure, the same on every rank."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import LayoutError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from distarray.torch._layouts import lost_of, place  # noqa: E402
from distarray.torch.following import known_layout  # noqa: E402
from distarray.torch.following._axes import label_index  # noqa: E402
from tests.torch.loss.word_blocks import FULL, ROWS, WORDS, block_of, is_block  # noqa: E402

F = torch.nn.functional


def test_what_is_cut_in_an_unknown_way_is_no_loss():
    def program():
        x = block_of(da.init_device_mesh((2,)), 1)
        with dt.loss_parallel():
            unknown = torch.cat([x, torch.ones(x.shape)])
            with pytest.raises(LayoutError, match="nothing is known"):
                F.cross_entropy(unknown, torch.zeros(2 * ROWS, dtype=torch.long))
            with pytest.raises(LayoutError, match="computed from a tensor placed as"):
                (unknown + 1).sum()
            assert unknown.softmax(0).shape == unknown.shape

    simulate(2, program)


def test_an_assignment_picks_no_classes():
    def program():
        x = block_of(da.init_device_mesh((2,)), 1)
        with dt.loss_parallel():
            x[x > 1] = 0.0
            x[2] = 1.0
            with pytest.raises(LayoutError, match="__setitem__"):
                x[:, -1] = 0.0
        full = FULL.clone()
        full[full > 1] = 0.0
        full[2] = 1.0
        assert is_block(x, full)

    simulate(2, program)


def test_functions_of_the_library_work_inside():
    torch.manual_seed(0)
    head = torch.nn.Linear(4, WORDS).double()
    x = torch.ones(ROWS, 4).double()
    target = torch.arange(ROWS)
    sequence = FULL.reshape(1, ROWS, WORDS)[:, :4].reshape(1, 2, -1)
    expected = F.cross_entropy(head(x), target)
    normalized = torch.nn.GroupNorm(1, 2).double()(sequence)
    expected.backward()
    total = torch.nn.utils.get_total_norm([p.grad for p in head.parameters()])
    weights = {name: value.clone() for name, value in head.state_dict().items()}

    def program():
        mesh = da.init_device_mesh((2,))
        mine = torch.nn.Linear(4, WORDS).double()
        mine.load_state_dict(weights)
        scaled = torch.nn.GroupNorm(1, 2).double()
        with dt.loss_parallel():
            dt.parallelize_module(mine, mesh, dt.ColwiseParallel())
            logits = mine(x)
            loss = dt.vocab_parallel_cross_entropy(logits, target, mesh)
            loss.backward()
            torch.testing.assert_close(loss, expected)
            found = dt.clip_grad_norm_(mine.parameters(), 1e9)
            torch.testing.assert_close(found, total)
            torch.testing.assert_close(dt.full_tensor(logits).sum(), head(x).sum())
            dt.parallelize_module(scaled, mesh, dt.SequenceParallel(sequence_dim=2))
            block = scaled(sequence.chunk(2, -1)[mesh.rank])
        torch.testing.assert_close(block, normalized.chunk(2, -1)[mesh.rank])

    simulate(2, program)


def test_heads_are_no_classes_even_where_a_rank_has_one():
    def program():
        mesh = da.init_device_mesh((2,))
        x = torch.randn(2, 3, 4)  # of this rank's head
        place(x, da.Layout(mesh, [da.Shard(2)], (2, 3, 8)))
        with dt.loss_parallel():
            for shape in ((2, 3, 1, 4), (2, 3, 4, 1)):
                q = x.view(shape).transpose(1, 2)
                scores = F.scaled_dot_product_attention(q, q, q)
                assert lost_of(scores) is not None
                (q @ q.mT).softmax(-1)
            assert known_layout(x.unsqueeze(2)).shape == (2, 3, 1, 8)
            assert known_layout(x.view(6, 4)).shape == (6, 8)

    simulate(2, program)


class _Converting(torch.nn.Linear):
    """Converts its weight at every call."""

    def forward(self, x):
        part = F.linear(x, self.weight.to(x.dtype).clone())  # which the style adds up
        assert known_layout(part) is lost_of(part) is None
        return part


def test_weights_that_are_converted_at_every_call_are_weights():
    def program():
        mesh = da.init_device_mesh((2,))
        x = block_of(mesh, 1)
        layer = _Converting(FULL.shape[1], 3, bias=False)
        whole = torch.arange(layer.weight.numel()).reshape(layer.weight.shape).float()
        layer.weight.data = whole.clone()
        dt.parallelize_module(layer, mesh, dt.RowwiseParallel(own_forward=True))
        with dt.loss_parallel():
            torch.testing.assert_close(layer(x.to(whole.dtype)), FULL.to(whole.dtype) @ whole.T)
            with pytest.raises(LayoutError, match="linear inside"):
                F.linear(x, layer.weight.to(x.dtype))  # outside of the call that adds up

    simulate(2, program)


def test_beside_replicated_tensors_others_may_be_anything():
    def program():
        mesh = da.init_device_mesh((2,))
        x = FULL.clone()
        place(x, da.Layout(mesh, [da.Replicate()], x.shape))
        other = torch.ones_like(FULL)
        target = torch.zeros(ROWS, dtype=torch.long)
        with dt.loss_parallel():
            F.cross_entropy((2 * x).log_softmax(-1), target)
            with pytest.raises(LayoutError, match="nothing is known"):
                F.cross_entropy(x * other, target)

    simulate(2, program)


def test_every_slice_is_normalised_by_itself():
    expected = FULL.renorm(2, 1, 1.0)

    def program():
        mesh = da.init_device_mesh((2,))
        with dt.loss_parallel():
            found = torch.renorm(block_of(mesh, 1), 2.0, 1, maxnorm=1.0)
            with pytest.raises(LayoutError, match="renorm inside"):
                block_of(mesh, 0).renorm(2, dim=1, maxnorm=1.0)
        assert is_block(found, expected)

    simulate(2, program)


def test_the_first_axis_of_length_3_is_no_axis_of_a_shard():
    def program():
        layout = da.Layout(da.init_device_mesh((2,)), [da.Shard(0)], (5, 3))
        x = torch.ones(layout.local_shape())  # of one rank's shard it would be the first
        place(x, layout)
        with dt.loss_parallel():
            with pytest.raises(LayoutError, match="cross inside"):
                torch.cross(x, x)
            assert (
                known_layout(torch.linalg.cross(x, x))
                is known_layout(torch.cross(x, x, dim=1))
                is layout
            )

    simulate(2, program)


PLACED = {
    # shape, cut axis, function: on one rank of two the shard is of length 1, or of none
    "squeeze": ((2, 3), 1, lambda x: x.squeeze()),
    "squeeze, that axis": ((3, 2), 0, lambda x: x.squeeze(0)),
    "squeeze, another": ((1, 3, 2), 1, lambda x: x.squeeze(0)),
    "squeeze, two": ((1, 5, 1), 1, lambda x: torch.squeeze(x, dim=(0, 2))),
    "squeeze, of many": ((1, 5), 1, lambda x: x.squeeze()),
    "row of column": ((3, 1, 1), 0, lambda x: x.reshape(1, -1)),
    "merged": ((2, 1, 1), 1, lambda x: x.flatten(0, 1)),
    "flat": ((2, 3, 3), 2, lambda x: x.flatten(0, 1)),
    "of none": ((1,), 0, lambda x: x.unflatten(0, (1, -1))),
    "outer": ((3, 3), 0, lambda x: x[:, None] * x[None, :]),
    "gathered": ((1, 3), 1, lambda x: x.gather(0, torch.zeros(1, 1, dtype=torch.long))),
    "gathered by one": ((3, 4), 1, lambda x: x.gather(0, torch.zeros(1, 1, dtype=torch.long))),
}
SAME_EVERYWHERE = {
    "squeeze": LayoutError,
    "squeeze, that axis": LayoutError,
    "squeeze, another": 0,
    "squeeze, two": 0,
    "squeeze, of many": 0,
    "flat": 1,
}


@pytest.mark.parametrize("how", PLACED)
def test_ranks_with_one_item_know_no_more_than_others(how):
    shape, axis, function = PLACED[how]
    wanted = SAME_EVERYWHERE.get(how)

    def program():
        layout = da.Layout(da.init_device_mesh((2,)), [da.Shard(axis)], shape)
        x = torch.ones(layout.local_shape(), dtype=torch.float64)
        place(x, layout)
        with dt.loss_parallel():
            try:
                found = known_layout(function(x))
            except LayoutError:
                return LayoutError
        return None if found is None else found.placements[0].axis

    assert simulate(2, program) == [wanted, wanted]


@pytest.mark.parametrize("shape", [(7, 11, 13), (7, 11, 13, 17)])
def test_axes_that_an_index_keeps_are_where_torch_has_them(shape):
    x = torch.empty(shape)
    rows = torch.zeros(shape[:2], dtype=torch.bool)
    rows[2:4, :2] = True
    pieces = [
        *(slice(None), slice(1, 3), 0, None, Ellipsis, [0, 1, 2], torch.tensor(1)),
        *(torch.tensor([0, 1, 2]), torch.tensor([[0], [1]])),
    ]
    picked = 0
    for count in range(1, 5):
        for index in itertools.product(pieces, repeat=count):
            if sum(item is Ellipsis for item in index) > 1:
                continue
            picked += _agrees(x, index)
    assert picked > 3000
    for index in ((rows,), (rows, 0), (None, rows), (..., torch.tensor(True)), (0, ..., [1, 2])):
        assert _agrees(x, index)


def _agrees(x, index):
    try:
        result = x[index]
    except IndexError:
        return False
    lengths = list(x.shape)
    expected = {lengths.index(n): k for k, n in enumerate(result.shape) if n in lengths}
    [(_, labels), *_] = label_index(x, index)
    kept = {i: at + result.ndim for i, at in enumerate(labels) if type(at) is int}
    assert kept == expected, index
    return True
