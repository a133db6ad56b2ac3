"""The cross entropy of shards of classes is torch's of full logits, by two small all-reduces."""

from __future__ import annotations

import itertools
import math

import pytest

torch = pytest.importorskip("torch")

import distarray as da  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from distarray.torch.loss._cross_entropy import vocab_parallel_cross_entropy  # noqa: E402
from tests.torch.loss.class_shards import compare_losses, cross_entropy, shard_of, values  # noqa: E402

SHAPES = [(), (5,), (3, 4), (2, 2, 3)]
"""Of the rows."""
SPLITS = {2: [(0, 4, 7), (0, 7, 7)], 3: [(0, 3, 6, 7), (0, 0, 6, 7)], 4: [(0, 2, 4, 6, 7)]}
"""Offsets of shards of seven classes."""


@pytest.mark.parametrize("rows", SHAPES)
@pytest.mark.parametrize("kind", ["classes", "probabilities"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_loss_and_gradient_are_torchs(rows, kind, reduction):
    for ranks, splits in SPLITS.items():
        for offsets, weighted, smoothing in itertools.product(splits, (False, True), (0.0, 0.3)):
            options = {"reduction": reduction, "label_smoothing": smoothing}
            if weighted:
                options["weight"] = torch.linspace(0, 2, 7)
            compare_losses(ranks, offsets, rows, kind, **options)


def test_probabilities_may_come_in_shards():
    for offsets in SPLITS[3]:
        compare_losses(3, offsets, (3, 4), "shards", part=True, label_smoothing=0.1)


def test_fewer_classes_than_ranks_and_a_single_rank():
    compare_losses(4, (0, 1, 2, 2, 2), (5,), "classes", label_smoothing=0.2)
    compare_losses(3, (0, 0, 1, 1), (5,), "probabilities")
    compare_losses(1, (0, 7), (5,), "classes", label_smoothing=0.2)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 4e-3)],
    ids=str,
)
@pytest.mark.parametrize("kind", ["classes", "probabilities"])
def test_lower_precision(dtype, tolerance, kind):
    for smoothing in (0.0, 0.3):
        compare_losses(
            3,
            (0, 3, 6, 7),
            (4, 5),
            kind,
            dtype=dtype,
            tolerance=tolerance,
            label_smoothing=smoothing,
            weight=torch.linspace(0, 2, 7),
        )


def test_bytes_are_those_of_three_numbers_a_row():
    rows, ranks = 1 << 15, 4  # of few rows each rank takes all that the others have
    for options in ({}, {"label_smoothing": 0.1}, {"weight": torch.ones(7)}):
        for log in compare_losses(ranks, (0, 2, 4, 6, 7), (rows,), "classes", **options):
            assert log.bytes() == 2 * 3 * rows * 8 * (ranks - 1) // ranks


def test_low_precision_is_computed_in_float32():
    full = (20 * values(50, 40)).bfloat16()
    target = torch.arange(50) % 40
    expected = cross_entropy(full.double(), target, reduction="none")

    def program():
        mesh = da.init_device_mesh((2,))
        mine = shard_of(full, 1, (0, 20, 40), mesh.rank)
        loss = vocab_parallel_cross_entropy(mine, target, mesh, reduction="none")
        torch.testing.assert_close(loss, expected.bfloat16(), rtol=2**-8, atol=1e-6)
        assert vocab_parallel_cross_entropy(mine, target, mesh).dtype is torch.bfloat16
        with torch.autocast("cpu", torch.bfloat16):
            mean = vocab_parallel_cross_entropy(mine, target, mesh)
        torch.testing.assert_close(mean, expected.mean().float(), rtol=1e-6, atol=0)

    simulate(2, program)


EXTREMES = {
    "large": [[1e4, 1e4 - 1, -1e4], [-1e4, -1e4 - 2, -1e4 - 1]],
    "huge": [[3e38, 3e38, 0.0], [-3e38, -3e38, -3e38]],
    "masked": [[0.5, -math.inf, 1.0], [-math.inf, 2.0, -math.inf]],
    "masked shard": [[-math.inf, -math.inf, 1.0], [-math.inf, -math.inf, 2.0]],
    "masked target": [[-math.inf, 0.0, 1.0], [0.0, -math.inf, 2.0]],
    "nothing": [[-math.inf, -math.inf, -math.inf], [0.0, 1.0, 2.0]],
    "infinite": [[math.inf, 0.0, 1.0], [0.0, 1.0, math.inf]],
    "nan": [[math.nan, 0.0, 1.0], [0.0, 1.0, 2.0]],
    "below exp": [[-800.0, -900.0, -1000.0], [-1000.0, -800.0, -2000.0]],
}


@pytest.mark.parametrize("kind", EXTREMES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_extreme_logits_give_what_torch_gives(kind, smoothing):
    full = torch.tensor(EXTREMES[kind])
    target = torch.tensor([0, 1])
    twin = full.clone().requires_grad_()
    options = {"reduction": "none", "label_smoothing": smoothing}
    expected = cross_entropy(twin, target, **options)
    expected.sum().backward()

    def program():
        mesh = da.init_device_mesh((3,))
        for offsets in ((0, 2, 3, 3), (0, 1, 2, 3)):
            mine = shard_of(full, 1, offsets, mesh.rank).clone().requires_grad_()
            loss = vocab_parallel_cross_entropy(mine, target, mesh, **options)
            loss.sum().backward()
            close = {"rtol": 1e-6, "atol": 1e-6, "equal_nan": True}
            torch.testing.assert_close(loss, expected, **close)
            shard = shard_of(twin.grad, 1, offsets, mesh.rank)
            torch.testing.assert_close(mine.grad, shard, **close)

    simulate(3, program)


def test_close_large_logits_keep_their_differences():
    full = torch.full((1, 6), 1e4) + torch.arange(6) / 64
    exact = cross_entropy(full.double(), torch.tensor([2]))

    def program():
        mesh = da.init_device_mesh((2,))
        mine = shard_of(full, 1, (0, 3, 6), mesh.rank)
        for smoothing in (0.0, 0.5):
            wanted = cross_entropy(full.double(), torch.tensor([2]), label_smoothing=smoothing)
            loss = vocab_parallel_cross_entropy(
                mine, torch.tensor([2]), mesh, label_smoothing=smoothing
            )
            torch.testing.assert_close(loss.double(), wanted, rtol=1e-6, atol=0)

    assert float(exact) > 1
    simulate(2, program)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_rows_that_are_all_ignored_and_no_rows(reduction):
    ignored = torch.full((4,), -100)
    for rows, target in ((4, ignored), (0, ignored[:0]), (4, torch.tensor([-100, 2, 3, -100]))):
        full = values(rows, 5)
        if rows:
            full[0] = math.inf  # an ignored row may be anything
        expected = cross_entropy(full, target, reduction=reduction)

        def program(full=full, target=target, expected=expected):
            mesh = da.init_device_mesh((2,))
            mine = shard_of(full, 1, (0, 3, 5), mesh.rank).clone().requires_grad_()
            loss = vocab_parallel_cross_entropy(mine, target, mesh, reduction=reduction)
            torch.testing.assert_close(loss.detach(), expected, equal_nan=True)
            loss.sum().backward()

        simulate(2, program)


def test_ignore_index_may_be_a_class():
    full, target = values(6, 5), torch.tensor([0, 3, 1, 3, 4, 2])
    expected = cross_entropy(full, target, ignore_index=3)

    def program():
        mesh = da.init_device_mesh((2,))
        mine = shard_of(full, 1, (0, 3, 5), mesh.rank)
        loss = vocab_parallel_cross_entropy(mine, target, mesh, ignore_index=3)
        torch.testing.assert_close(loss, expected)

    simulate(2, program)
