"""Embeddings cut by vocabulary and by width look up what one process looks up."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import ArgumentError, IndexingError, LayoutError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from tests.torch.parallel.twins import compare  # noqa: E402

WORDS = torch.tensor([[1, 6, 1, 4], [0, 3, 6, 6]])


@pytest.mark.parametrize("size", [8, 7])
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"padding_idx": 6},
        {"padding_idx": -1},
        {"scale_grad_by_freq": True},
        {"max_norm": 1.0},
        {"max_norm": 1.5, "norm_type": 1.0, "padding_idx": 0},
        {"max_norm": 0.5, "norm_type": float("inf")},
    ],
)
def test_a_vocabulary_cut_by_rows_and_by_columns(size, ranks, keywords):
    torch.manual_seed(0)
    whole = nn.Embedding(size, 3, **keywords).double()
    for style in (dt.RowwiseParallel, dt.ColwiseParallel):

        def parallel(twin, mesh, style=style):
            return dt.parallelize_module(twin, mesh, style(output_layouts=da.Replicate()))

        logs = compare(ranks, copy.deepcopy(whole), (WORDS,), parallel)
        renormalised = style is dt.ColwiseParallel and "max_norm" in keywords
        for log in logs:
            assert log.count() == 1 + renormalised


@pytest.mark.parametrize("output", [da.Replicate(), da.Shard(0), da.Shard(1), da.Shard(-1)])
@pytest.mark.parametrize("arrives", [da.Replicate(), da.Shard(0), da.Shard(1)])
def test_every_way_in_and_out(arrives, output):
    whole = nn.Embedding(7, 5).double()
    for style in (dt.RowwiseParallel, dt.ColwiseParallel):

        def parallel(twin, mesh, style=style):
            dt.parallelize_module(twin, mesh, style(input_layouts=arrives, output_layouts=output))

            def run(words):
                words = dt.redistribute(words, mesh, [da.Replicate()], [arrives])
                return dt.redistribute(twin(words), mesh, [output], [da.Replicate()])

            return run

        compare(3, copy.deepcopy(whole), (WORDS,), parallel)


def test_no_words_and_fewer_words_than_ranks():
    whole = nn.Embedding(2, 3).double()
    for words in (torch.zeros(2, 0, dtype=torch.int64), torch.tensor(1)):

        def parallel(twin, mesh):
            return dt.parallelize_module(twin, mesh, dt.RowwiseParallel())

        compare(4, copy.deepcopy(whole), (words,), parallel)


def test_a_word_that_is_not_in_the_vocabulary_is_an_error_on_every_rank_and_leaves_nothing():
    def program():
        mesh = da.init_device_mesh((3,), ("tp",))
        model = nn.Sequential(nn.Embedding(7, 2))
        dt.parallelize_module(model, mesh, {"0": dt.RowwiseParallel()})
        before = dict(model[0].__dict__)
        for bad in (7, -1):
            with da.CommLog() as log, pytest.raises(IndexingError, match=r"^0 \(Embedding\): .*7"):
                model(torch.tensor([3, bad]))
            assert log.count() == 0
        assert model[0].__dict__ == before
        assert model(torch.tensor([6, 0])).shape == (2, 2)

    simulate(3, program)


class Scaled(nn.Embedding):
    """With a forward of its own that calls itself once more."""

    def forward(self, input, deeper=True):
        y = super().forward(input)
        if deeper:
            y = y + self(input.flip(0), deeper=False)
        return y * 3


def test_a_forward_of_its_own_that_calls_itself():
    whole = nn.Embedding(7, 3).double()

    class Reference(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = whole

        def forward(self, words):
            return 3 * self.table(words)

    def parallel(twin, mesh):
        scaled = Scaled(7, 3, _weight=twin.table.weight.detach())
        scaled.weight = twin.table.weight
        dt.parallelize_module(scaled, mesh, dt.RowwiseParallel(own_forward=True))
        return lambda words: scaled(words, deeper=False)

    compare(2, Reference(), (WORDS,), parallel)


class Bags(nn.Module):
    """Bags in every way that they may be told."""

    def __init__(self, mode, flat, **keywords):
        super().__init__()
        self.table = nn.EmbeddingBag(7, 5, mode=mode, padding_idx=1, **keywords)
        self.flat = flat

    def forward(self, words, weights=None):
        if self.flat:
            offsets = torch.tensor([0, 3, 3, 8][: 4 if self.table.include_last_offset else 3])
            weights = None if weights is None else weights.reshape(-1)
            return self.table(words.reshape(-1), offsets, per_sample_weights=weights)
        return self.table(words, None, weights)


@pytest.mark.parametrize(
    ("mode", "style"),
    [
        (mode, style)
        for style in (dt.ColwiseParallel, dt.RowwiseParallel)
        for mode in ("sum", "mean", "max")
        if (mode, style) != ("max", dt.RowwiseParallel)  # an error, see below
    ],
)
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("ranks", [2, 4])
def test_bags(mode, flat, last, ranks, style):
    weights = torch.linspace(-1, 1, 8, dtype=torch.float64).reshape(2, 4)
    inputs = (WORDS, weights) if mode == "sum" else (WORDS,)

    def parallel(twin, mesh):
        styled = style(output_layouts=da.Replicate())
        return dt.parallelize_module(twin, mesh, {"table": styled})

    model = Bags(mode, flat, include_last_offset=last and flat).double()
    for log in compare(ranks, model, inputs, parallel):
        assert log.count() == 1 + (mode == "sum")  # the gradient of the weights


@pytest.mark.parametrize(
    ("keywords", "style"),
    [
        ({"max_norm": 1.0}, dt.ColwiseParallel),
        ({"max_norm": 1.0}, dt.RowwiseParallel),
        ({"scale_grad_by_freq": True}, dt.ColwiseParallel),
    ],
)
def test_bags_with_options(keywords, style):
    def parallel(twin, mesh):
        styled = style(output_layouts=da.Shard(0), input_layouts=da.Shard(1))
        dt.parallelize_module(twin, mesh, {"table": styled})

        def run(words):
            words = dt.redistribute(words, mesh, [da.Replicate()], [da.Shard(1)])
            return dt.redistribute(twin(words), mesh, [da.Shard(0)], [da.Replicate()])

        return run

    compare(3, Bags("mean", False, **keywords).double(), (WORDS,), parallel)


def test_bags_that_would_be_torn_apart_and_norms_that_cannot_be_had_are_errors():
    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        for style in (dt.ColwiseParallel, dt.RowwiseParallel):
            bags = nn.EmbeddingBag(7, 4)
            dt.parallelize_module(bags, mesh, style(input_layouts=da.Shard(0)))
            with pytest.raises(LayoutError, match="torn apart"):
                bags(torch.tensor([1, 2, 3]), torch.tensor([0, 1]))
        with pytest.raises(ArgumentError, match="use ColwiseParallel"):
            dt.parallelize_module(nn.EmbeddingBag(7, 4, mode="max"), mesh, dt.RowwiseParallel())
        with pytest.raises(ArgumentError, match="scale_grad_by_freq"):
            dt.parallelize_module(
                nn.EmbeddingBag(7, 4, scale_grad_by_freq=True), mesh, dt.RowwiseParallel()
            )
        bags = dt.parallelize_module(nn.EmbeddingBag(7, 4), mesh, dt.RowwiseParallel())
        with pytest.raises(ArgumentError, match="begin at 1"):
            bags(torch.tensor([1, 2, 3]), torch.tensor([1, 2]))
        with pytest.raises(ArgumentError, match="rows are bags"):
            bags(torch.tensor([[1, 2, 3]]), torch.tensor([0, 2]))
        with pytest.raises(IndexingError, match="vocabulary of 7"):
            bags(torch.tensor([[1, 2, 7]]))
        with pytest.raises(ArgumentError, match="alone"):
            bags(torch.tensor([[1, 2, 3]]), per_sample_weights=torch.ones(1, 3))
        with pytest.raises(ArgumentError, match="norm_type=0"):
            dt.parallelize_module(
                nn.Embedding(7, 4, max_norm=1, norm_type=0), mesh, dt.ColwiseParallel()
            )
        with pytest.raises(ArgumentError, match="a vocabulary has none"):
            dt.parallelize_module(nn.Embedding(8, 4), mesh, dt.RowwiseParallel(unit=2))

    simulate(2, program)
