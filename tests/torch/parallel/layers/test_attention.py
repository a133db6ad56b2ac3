"""Attention cut by heads computes what one process computes, and what is left out is the same."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import ArgumentError, ArgumentTypeError, LayoutError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from distarray.torch._random import keys_from  # noqa: E402
from tests.torch.parallel.twins import compare  # noqa: E402

BATCH, QUERIES, KEYS, SIZE = 2, 4, 3, 2


def _values(*shape: int, seed: int = 7) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def _by_heads(twin, mesh, **keywords):
    return dt.parallelize_module(twin, mesh, {"attention": dt.ColwiseParallel(**keywords)})


@st.composite
def calls(draw):
    heads = draw(st.integers(1, 4))
    width = heads * SIZE
    batched = draw(st.booleans())
    batch_first = draw(st.booleans())
    crossed = draw(st.booleans())
    keys = KEYS if crossed else QUERIES
    kdim, vdim = draw(st.sampled_from([(None, None), (5, 3)])) if crossed else (None, None)
    attention = nn.MultiheadAttention(
        width,
        heads,
        bias=draw(st.booleans()),
        add_bias_kv=draw(st.booleans()),
        add_zero_attn=draw(st.booleans()),
        kdim=kdim,
        vdim=vdim,
        batch_first=batch_first,
    ).double()

    def tensor(length, features, seed):
        if not batched:
            return _values(length, features, seed=seed)
        shape = (BATCH, length) if batch_first else (length, BATCH)
        return _values(*shape, features, seed=seed)

    inputs = [tensor(QUERIES, width, 1)]
    if crossed:
        inputs += [tensor(keys, kdim or width, 2), tensor(keys, vdim or width, 3)]
    batch = BATCH if batched else 1
    call = {
        "need_weights": draw(st.booleans()),
        "average_attn_weights": draw(st.booleans()),
    }
    as_bool = draw(st.booleans())
    kind = draw(st.sampled_from(["none", "pairs", "heads", "causal"]))
    if kind != "none":
        shape = (batch * heads, QUERIES, keys) if kind == "heads" else (QUERIES, keys)
        mask = _values(*shape, seed=4)
        if kind == "causal":
            mask = torch.zeros(shape, dtype=torch.float64).masked_fill(
                torch.ones(shape, dtype=torch.bool).triu(1), float("-inf")
            )
            call["is_causal"] = True
        if as_bool:
            mask = mask > 0 if kind != "causal" else mask < 0
            mask[..., 0] = False
        call["attn_mask"] = mask
    if draw(st.booleans()):
        mask = _values(*((batch, keys) if batched else (keys,)), seed=5)
        if as_bool:
            mask = mask > 0
            mask[..., 0] = False
        call["key_padding_mask"] = mask
    return attention, call, tuple(inputs)


class Called(nn.Module):
    """An attention module and the arguments of one call; everything it returns in one tensor."""

    def __init__(self, attention, call):
        super().__init__()
        self.attention, self.call = attention, call
        for name, p in attention.named_parameters():
            p.data = _values(*p.shape, seed=len(name) + p.numel()).to(p.dtype) / 3

    def forward(self, query, key=None, value=None, mask=None):
        key = query if key is None else key
        value = key if value is None else value
        call = self.call if mask is None else {**self.call, "attn_mask": mask}
        y, weights = self.attention(query, key, value, **call)
        return y if weights is None else torch.cat([y.flatten(), weights.flatten()])


@settings(max_examples=40)
@given(call=calls(), ranks=st.integers(2, 3))
def test_every_call(call, ranks):
    attention, keywords, inputs = call
    compare(ranks, Called(attention, keywords), inputs, _by_heads)


@pytest.mark.parametrize("heads", [4, 3, 1])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_self_attention_needs_one_all_reduce_each_way(heads, ranks):
    model = Called(nn.MultiheadAttention(8 * heads, heads).double(), {"need_weights": False})
    x = _values(QUERIES, BATCH, 8 * heads)
    for log in compare(ranks, model, (x,), _by_heads):
        assert log.count() == log.count("all_reduce") == 2


def test_weights_need_one_all_reduce_more_or_one_gather():
    for averaged, kind in ((True, "all_reduce"), (False, "all_gather")):
        attention = nn.MultiheadAttention(8, 4).double()
        model = Called(attention, {"average_attn_weights": averaged})
        logs = compare(2, model, (_values(QUERIES, BATCH, 8),), _by_heads)
        counts = [(log.count("all_reduce"), log.count(kind), log.count()) for log in logs]
        assert counts == [(3, 3, 3) if averaged else (2, 1, 3)] * 2


def test_attention_between_sequence_shards():
    model = Called(nn.MultiheadAttention(6, 3, batch_first=True).double(), {"need_weights": False})

    def parallel(twin, mesh):
        _by_heads(twin, mesh, input_layouts=da.Shard(1), output_layouts=da.Shard(1))

        def run(x):
            x = dt.redistribute(x, mesh, [da.Replicate()], [da.Shard(1)])
            return dt.redistribute(twin(x), mesh, [da.Shard(1)], [da.Replicate()])

        return run

    compare(2, model, (_values(BATCH, 5, 6),), parallel)


@pytest.mark.parametrize("shape", [(QUERIES, QUERIES), (BATCH * 3, QUERIES, QUERIES)])
@pytest.mark.parametrize("need_weights", [True, False])
def test_masks_that_are_learnt_get_the_gradients_of_all_heads(shape, need_weights):
    attention = nn.MultiheadAttention(6, 3).double()

    class Biased(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = attention

        def forward(self, x, mask):
            return self.attention(x, x, x, attn_mask=mask, need_weights=need_weights)[0]

    compare(2, Biased(), (_values(QUERIES, BATCH, 6), _values(*shape)), _by_heads)


def test_dropout_leaves_out_the_same_on_any_number_of_ranks():
    attention = nn.MultiheadAttention(6, 3, dropout=0.5).double()
    x = _values(QUERIES, BATCH, 6)

    def outputs(ranks, need_weights):
        def program():
            mesh = da.init_device_mesh((ranks,), ("tp",))
            twin = dt.parallelize_module(copy.deepcopy(attention), mesh, dt.ColwiseParallel())
            generator = torch.Generator().manual_seed(3)
            with keys_from(generator):
                found = [twin(x, x, x, need_weights=need_weights)[0] for _ in range(2)]
            return found, torch.rand(1, generator=generator)

        return simulate(ranks, program)

    for need_weights in (False, True):
        ((one, other), after), *_ = outputs(1, need_weights)
        assert not torch.equal(one, other)
        for ranks in (2, 3):
            for found, then in outputs(ranks, need_weights):
                torch.testing.assert_close(found, [one, other])
                assert then == after  # so that whatever is drawn next is alike on all ranks


def test_outside_of_training_nothing_is_left_out():
    model = Called(nn.MultiheadAttention(6, 3, dropout=0.5).double().eval(), {})
    compare(2, model, (_values(QUERIES, BATCH, 6),), _by_heads)


class Own(nn.MultiheadAttention):
    """With a forward of its own."""

    def forward(self, x):
        return super().forward(x, x, x)[0]


def test_errors_say_what_to_do():
    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        with da.CommLog() as log:
            with pytest.raises(ArgumentTypeError, match="forward of its own"):
                dt.parallelize_module(Own(4, 2), mesh, dt.ColwiseParallel())
            with pytest.raises(ArgumentError, match="2 of 2"):
                dt.parallelize_module(nn.MultiheadAttention(4, 2), mesh, dt.ColwiseParallel(unit=2))
            with pytest.raises(ArgumentTypeError, match="RowwiseParallel knows no way"):
                dt.parallelize_module(nn.MultiheadAttention(4, 2), mesh, dt.RowwiseParallel())
        assert log.count() == 0
        attention = dt.parallelize_module(
            nn.MultiheadAttention(4, 2, batch_first=True), mesh, dt.ColwiseParallel()
        )
        x = torch.ones(2, 3, 4)
        with da.CommLog() as log:
            with pytest.raises(ArgumentError, match="is_causal"):
                attention(x, x, x, is_causal=True)
            with pytest.raises(LayoutError, match=r"attn_mask has shape \(3, 2\)"):
                attention(x, x, x, attn_mask=torch.zeros(3, 2))
            with pytest.raises(LayoutError, match=r"key_padding_mask has shape \(3,\)"):
                attention(x, x, x, key_padding_mask=torch.zeros(3))
            with pytest.raises(ArgumentTypeError, match="int64"):
                attention(x, x, x, attn_mask=torch.zeros(3, 3, dtype=torch.int64))
            with pytest.raises(LayoutError, match="2 or 3 axes"):
                attention(x[None], x[None], x[None])
        assert log.count() == 0

    simulate(2, program)
