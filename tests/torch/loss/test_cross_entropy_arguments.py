"""What the cross entropy of shards is told of axes, classes and rows, and what it refuses."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import distarray as da  # noqa: E402
from distarray.errors import (  # noqa: E402
    ArgumentError,
    AxisError,
    DTypeError,
    IndexingError,
    LayoutError,
    MeshError,
    MismatchError,
    ShapeError,
)
from distarray.testing import simulate  # noqa: E402
from distarray.torch._layouts import place  # noqa: E402
from distarray.torch.loss._cross_entropy import vocab_parallel_cross_entropy  # noqa: E402
from tests.torch.loss.class_shards import cross_entropy, shard_of, values  # noqa: E402


def test_classes_on_the_last_axis():
    full, target = values(2, 3, 5), torch.tensor([[0, 4, 1], [3, -100, 2]])
    expected = cross_entropy(full.mT, target, reduction="none")
    soft = full.softmax(-1)
    softly = cross_entropy(full.mT, soft.mT)

    def program():
        mesh = da.init_device_mesh((2,))
        mine = shard_of(full, -1, (0, 3, 5), mesh.rank)
        loss = vocab_parallel_cross_entropy(mine, target, mesh, axis=-1, reduction="none")
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(vocab_parallel_cross_entropy(mine, soft, mesh, axis=2), softly)
        with pytest.raises(AxisError, match="axis=3"):
            vocab_parallel_cross_entropy(mine, target, mesh, axis=3)

    simulate(2, program)


def test_number_of_classes_may_be_told():
    full, target = values(4, 7), torch.arange(4)

    def program():
        mesh = da.init_device_mesh((3,))
        mine = shard_of(full, 1, (0, 3, 6, 7), mesh.rank)
        expected = vocab_parallel_cross_entropy(mine, target, mesh)
        told = vocab_parallel_cross_entropy(mine, target, mesh, vocab_size=7)
        assert torch.equal(told, expected)
        with pytest.raises(LayoutError, match="leave shape= out"):
            vocab_parallel_cross_entropy(mine, target, mesh, vocab_size=12)
        place(mine, da.Layout(mesh, [da.Shard(1)], (4, 7)))
        assert torch.equal(vocab_parallel_cross_entropy(mine, target, mesh), expected)
        with pytest.raises(LayoutError, match="leave it out"):
            vocab_parallel_cross_entropy(mine, target, mesh, vocab_size=8)

    simulate(3, program)


def test_rows_of_another_mesh_axis_are_this_ranks():
    full, target = values(4, 6), torch.arange(4)

    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        layout = da.Layout(mesh, [da.Shard(0), da.Shard(1)], full.shape)
        rows, classes = (slice(*bounds) for bounds in layout.local_box())
        mine = full[rows, classes].clone()
        place(mine, layout)
        loss = vocab_parallel_cross_entropy(mine, target[rows], mesh["tp"])
        torch.testing.assert_close(loss, cross_entropy(full[rows], target[rows]))

    simulate(4, program)


def test_arguments_are_checked_before_anything_is_sent():
    full, target = values(4, 7), torch.arange(4)

    def program():
        mesh = da.init_device_mesh((2,))
        mine = shard_of(full, 1, (0, 4, 7), mesh.rank)

        def refused(kind, match, *given, **options):
            with da.CommLog() as log, pytest.raises(kind, match=match):
                vocab_parallel_cross_entropy(*given, **options)
            assert log.count() == 0

        refused(IndexingError, "class 7 of the target", mine, target + 4, mesh)
        refused(IndexingError, "class -1 of the target", mine, target - 1, mesh)
        refused(ShapeError, r"\(4,\) for class numbers", mine, target[:3], mesh)
        refused(ShapeError, "of 5 classes", mine, full[:, :5], mesh)
        refused(DTypeError, "class numbers must", mine, target.double(), mesh)
        refused(DTypeError, "probabilities must", mine, mine.long(), mesh)
        refused(DTypeError, "floating point", mine.long(), target, mesh)
        refused(ShapeError, "no axis", mine[0, 0], target[0], mesh)
        refused(ArgumentError, "reduction='max'", mine, target, mesh, reduction="max")
        refused(ArgumentError, "label_smoothing=2", mine, target, mesh, label_smoothing=2)
        refused(ArgumentError, "ignore_index=1", mine, full.softmax(1), mesh, ignore_index=1)
        refused(ShapeError, "each of the 7", mine, target, mesh, weight=torch.ones(4))
        weight = torch.ones(7, requires_grad=True)
        refused(ArgumentError, "detach", mine, target, mesh, weight=weight)
        rows = mine.clone()
        place(rows, da.Layout(mesh, [da.Shard(0)], (8, rows.shape[1])))
        refused(LayoutError, "cut along axis 1", rows, target, mesh)
        spread = target.clone()
        place(spread, da.Layout(mesh, [da.Shard(0)], (8,)))
        refused(LayoutError, "full_tensor", mine, spread, mesh)
        grid = da.init_device_mesh((1, 2))
        refused(ArgumentError, "one mesh axis", mine, target, grid)
        outside = da.DeviceMesh([1 - mesh.rank])
        refused(MeshError, "not in", mine, target, outside)

    simulate(2, program)


def test_what_ranks_pass_differently_is_an_error_on_all():
    full, target = values(4, 7), torch.arange(4)

    def program():
        mesh = da.init_device_mesh((2,))
        mine = shard_of(full, 1, (0, 4, 7), mesh.rank)
        with pytest.raises(MismatchError, match="target and weights"):
            vocab_parallel_cross_entropy(mine, target + mesh.rank, mesh)
        reduction = "sum" if mesh.rank else "mean"
        with pytest.raises(MismatchError, match="reduction='sum'"):
            vocab_parallel_cross_entropy(mine, target, mesh, reduction=reduction)
        rows = slice(mesh.rank, None)
        with pytest.raises(LayoutError):
            vocab_parallel_cross_entropy(mine[rows], target[rows], mesh)
        return float(vocab_parallel_cross_entropy(mine, target, mesh))

    assert len(set(simulate(2, program))) == 1
