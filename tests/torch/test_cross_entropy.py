"""The cross entropy of shares of classes is torch's of full logits, by two small all-reduces."""

from __future__ import annotations

import itertools
import math

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

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
from distarray.torch._cross_entropy import vocab_parallel_cross_entropy  # noqa: E402
from distarray.torch._layouts import place  # noqa: E402

cross_entropy = torch.nn.functional.cross_entropy
SHAPES = [(), (5,), (3, 4), (2, 2, 3)]
"""Of the rows."""
SPLITS = {2: [(0, 4, 7), (0, 7, 7)], 3: [(0, 3, 6, 7), (0, 0, 6, 7)], 4: [(0, 2, 4, 6, 7)]}
"""Offsets of shares of seven classes."""


def _random(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _full(rows, classes, axis):
    shape = list(rows)
    shape.insert(axis, classes)
    return shape


def _share(full, axis, offsets, rank):
    return full.narrow(axis, offsets[rank], offsets[rank + 1] - offsets[rank])


def _target(rows, classes, kind, axis):
    if kind == "classes":
        target = torch.arange(math.prod(rows)).reshape(rows) * 5 % classes
        if target.numel() > 2:
            target.view(-1)[1] = -100
        return target
    return _random(*_full(rows, classes, axis), seed=2).softmax(axis) * 1.5


def _check(
    ranks, offsets, rows, kind, *, tolerance=1e-12, dtype=torch.float64, part=False, **options
):
    """Compare loss and gradient with torch's, in float64; return the logs of the ranks."""
    classes, axis = offsets[-1], min(len(rows), 1)
    full = (3 * _random(*_full(rows, classes, axis))).to(dtype)
    target = _target(rows, classes, kind, axis)
    if kind != "classes":
        target = target.to(dtype)
    if "weight" in options:
        options["weight"] = (options["weight"] + 0.1).to(dtype)
    twin = full.double().clone().requires_grad_()
    exact = {key: x.double() if key == "weight" else x for key, x in options.items()}
    expected = cross_entropy(twin, target.double() if kind != "classes" else target, **exact)
    slopes = torch.linspace(0.5, 2, expected.numel(), dtype=torch.float64).reshape(expected.shape)
    (expected * slopes).sum().backward()

    def program():
        mesh = da.init_device_mesh((ranks,))
        mine = _share(full, axis, offsets, mesh.rank).clone().requires_grad_()
        given = _share(target, axis, offsets, mesh.rank) if part else target
        with da.CommLog() as log:
            loss = vocab_parallel_cross_entropy(mine, given, mesh, **options)
            forward = log.count()
            (loss * slopes.to(dtype)).sum().backward()
        assert log.count() == log.count("all_reduce") == forward == (2 if ranks > 1 else 0)
        assert loss.dtype is mine.grad.dtype is dtype
        close = {"rtol": tolerance, "atol": tolerance, "equal_nan": True}
        torch.testing.assert_close(loss.detach().double(), expected.detach(), **close)
        share = _share(twin.grad, axis, offsets, mesh.rank)
        torch.testing.assert_close(mine.grad.double(), share, **close)
        return log, loss.detach()

    answers = simulate(ranks, program, timeout=60)
    for _, loss in answers:
        torch.testing.assert_close(loss, answers[0][1], rtol=0, atol=0, equal_nan=True)
    return [log for log, _ in answers]


@pytest.mark.parametrize("rows", SHAPES)
@pytest.mark.parametrize("kind", ["classes", "probabilities"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_loss_and_gradient_are_torchs(rows, kind, reduction):
    for ranks, splits in SPLITS.items():
        for offsets, weighted, smoothing in itertools.product(splits, (False, True), (0.0, 0.3)):
            options = {"reduction": reduction, "label_smoothing": smoothing}
            if weighted:
                options["weight"] = torch.linspace(0, 2, 7)
            _check(ranks, offsets, rows, kind, **options)


def test_probabilities_may_come_in_shares():
    for offsets in SPLITS[3]:
        _check(3, offsets, (3, 4), "shares", part=True, label_smoothing=0.1)


def test_fewer_classes_than_ranks_and_a_single_rank():
    _check(4, (0, 1, 2, 2, 2), (5,), "classes", label_smoothing=0.2)
    _check(3, (0, 0, 1, 1), (5,), "probabilities")
    _check(1, (0, 7), (5,), "classes", label_smoothing=0.2)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 4e-3)],
    ids=str,
)
@pytest.mark.parametrize("kind", ["classes", "probabilities"])
def test_lower_precision(dtype, tolerance, kind):
    for smoothing in (0.0, 0.3):
        _check(
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
        for log in _check(ranks, (0, 2, 4, 6, 7), (rows,), "classes", **options):
            assert log.bytes() == 2 * 3 * rows * 8 * (ranks - 1) // ranks


def test_low_precision_is_computed_in_float32():
    full = (20 * _random(50, 40)).bfloat16()
    target = torch.arange(50) % 40
    expected = cross_entropy(full.double(), target, reduction="none")

    def program():
        mesh = da.init_device_mesh((2,))
        mine = _share(full, 1, (0, 20, 40), mesh.rank)
        loss = vocab_parallel_cross_entropy(mine, target, mesh, reduction="none")
        torch.testing.assert_close(loss, expected.bfloat16(), rtol=2**-8, atol=1e-6)
        assert vocab_parallel_cross_entropy(mine, target, mesh).dtype is torch.bfloat16
        with torch.autocast("cpu", torch.bfloat16):
            mean = vocab_parallel_cross_entropy(mine, target, mesh)
        torch.testing.assert_close(mean, expected.mean().float(), rtol=1e-6, atol=0)

    simulate(2, program, timeout=60)


EXTREMES = {
    "large": [[1e4, 1e4 - 1, -1e4], [-1e4, -1e4 - 2, -1e4 - 1]],
    "huge": [[3e38, 3e38, 0.0], [-3e38, -3e38, -3e38]],
    "masked": [[0.5, -math.inf, 1.0], [-math.inf, 2.0, -math.inf]],
    "masked share": [[-math.inf, -math.inf, 1.0], [-math.inf, -math.inf, 2.0]],
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
            mine = _share(full, 1, offsets, mesh.rank).clone().requires_grad_()
            loss = vocab_parallel_cross_entropy(mine, target, mesh, **options)
            loss.sum().backward()
            close = {"rtol": 1e-6, "atol": 1e-6, "equal_nan": True}
            torch.testing.assert_close(loss, expected, **close)
            share = _share(twin.grad, 1, offsets, mesh.rank)
            torch.testing.assert_close(mine.grad, share, **close)

    simulate(3, program, timeout=60)


def test_close_large_logits_keep_their_differences():
    full = torch.full((1, 6), 1e4) + torch.arange(6) / 64
    exact = cross_entropy(full.double(), torch.tensor([2]))

    def program():
        mesh = da.init_device_mesh((2,))
        mine = _share(full, 1, (0, 3, 6), mesh.rank)
        for smoothing in (0.0, 0.5):
            wanted = cross_entropy(full.double(), torch.tensor([2]), label_smoothing=smoothing)
            loss = vocab_parallel_cross_entropy(
                mine, torch.tensor([2]), mesh, label_smoothing=smoothing
            )
            torch.testing.assert_close(loss.double(), wanted, rtol=1e-6, atol=0)

    assert float(exact) > 1
    simulate(2, program, timeout=60)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_rows_that_are_all_ignored_and_no_rows(reduction):
    ignored = torch.full((4,), -100)
    for rows, target in ((4, ignored), (0, ignored[:0]), (4, torch.tensor([-100, 2, 3, -100]))):
        full = _random(rows, 5)
        if rows:
            full[0] = math.inf  # an ignored row may be anything
        expected = cross_entropy(full, target, reduction=reduction)

        def program(full=full, target=target, expected=expected):
            mesh = da.init_device_mesh((2,))
            mine = _share(full, 1, (0, 3, 5), mesh.rank).clone().requires_grad_()
            loss = vocab_parallel_cross_entropy(mine, target, mesh, reduction=reduction)
            torch.testing.assert_close(loss.detach(), expected, equal_nan=True)
            loss.sum().backward()

        simulate(2, program, timeout=60)


def test_ignore_index_may_be_a_class():
    full, target = _random(6, 5), torch.tensor([0, 3, 1, 3, 4, 2])
    expected = cross_entropy(full, target, ignore_index=3)

    def program():
        mesh = da.init_device_mesh((2,))
        mine = _share(full, 1, (0, 3, 5), mesh.rank)
        loss = vocab_parallel_cross_entropy(mine, target, mesh, ignore_index=3)
        torch.testing.assert_close(loss, expected)

    simulate(2, program, timeout=60)


def test_classes_on_the_last_axis():
    full, target = _random(2, 3, 5), torch.tensor([[0, 4, 1], [3, -100, 2]])
    expected = cross_entropy(full.mT, target, reduction="none")
    soft = full.softmax(-1)
    softly = cross_entropy(full.mT, soft.mT)

    def program():
        mesh = da.init_device_mesh((2,))
        mine = _share(full, -1, (0, 3, 5), mesh.rank)
        loss = vocab_parallel_cross_entropy(mine, target, mesh, axis=-1, reduction="none")
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(vocab_parallel_cross_entropy(mine, soft, mesh, axis=2), softly)
        with pytest.raises(AxisError, match="axis=3"):
            vocab_parallel_cross_entropy(mine, target, mesh, axis=3)

    simulate(2, program, timeout=60)


def test_gradient_of_probabilities():
    full = _random(4, 7)
    soft = _random(4, 7, seed=3).softmax(1)
    weight = torch.linspace(0.5, 2, 7).double()
    twin = soft.clone().requires_grad_()
    cross_entropy(full, twin, weight, label_smoothing=0.2).backward()

    def program():
        mesh = da.init_device_mesh((3,))
        offsets = (0, 3, 6, 7)
        mine = _share(full, 1, offsets, mesh.rank)
        whole = soft.clone().requires_grad_()
        part = _share(soft, 1, offsets, mesh.rank).clone().requires_grad_()
        for given in (whole, part):
            loss = vocab_parallel_cross_entropy(
                mine, given, mesh, weight=weight, label_smoothing=0.2
            )
            loss.backward()
        torch.testing.assert_close(whole.grad, twin.grad)
        torch.testing.assert_close(part.grad, _share(twin.grad, 1, offsets, mesh.rank))

    simulate(3, program, timeout=60)


@pytest.mark.parametrize("kind", ["classes", "probabilities"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_second_derivatives(kind, smoothing):
    full, v = _random(5, 7), _random(5, 7, seed=4)
    target = _target((5,), 7, kind, 1)
    options = {"label_smoothing": smoothing, "weight": torch.linspace(0.5, 2, 7).double()}

    def penalised(x, v, loss):
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        return (slope * v).sum() + slope.square().sum()

    twin = full.clone().requires_grad_()
    loss = cross_entropy(twin, target, **options)
    (3 * loss + penalised(twin, v, loss.square())).backward()

    def program():
        mesh = da.init_device_mesh((3,))
        offsets = (0, 3, 6, 7)
        mine = _share(full, 1, offsets, mesh.rank).clone().requires_grad_()
        loss = vocab_parallel_cross_entropy(mine, target, mesh, **options)
        own = penalised(mine, _share(v, 1, offsets, mesh.rank), loss.square())
        with da.CommLog() as log:
            (3 * loss + own).backward()
        assert log.count() == log.count("all_reduce") == 1
        share = _share(twin.grad, 1, offsets, mesh.rank)
        torch.testing.assert_close(mine.grad, share, rtol=1e-10, atol=1e-12)

    simulate(3, program, timeout=60)


def test_backward_twice_and_no_backward():
    full, target = _random(5, 7), torch.arange(5)

    def program():
        mesh = da.init_device_mesh((2,))
        mine = _share(full, 1, (0, 4, 7), mesh.rank).clone().requires_grad_()
        loss = vocab_parallel_cross_entropy(mine, target, mesh)
        loss.backward(retain_graph=True)
        once = mine.grad.clone()
        loss.backward()
        torch.testing.assert_close(mine.grad, 2 * once)
        with torch.no_grad():
            assert not vocab_parallel_cross_entropy(mine, target, mesh).requires_grad
        with torch.no_grad():
            again = vocab_parallel_cross_entropy(mine, target, mesh)
            mine += 1
        torch.testing.assert_close(again, loss.detach())

    simulate(2, program, timeout=60)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant):
    full, target = _random(5, 7), torch.arange(5)

    def program():
        mesh = da.init_device_mesh((2,))
        mine = _share(full, 1, (0, 4, 7), mesh.rank).clone().requires_grad_()
        vocab_parallel_cross_entropy(2 * mine, target, mesh).backward()
        expected, mine.grad = mine.grad, None
        checkpoint(
            lambda x: vocab_parallel_cross_entropy(2 * x, target, mesh),
            mine,
            use_reentrant=reentrant,
        ).backward()
        torch.testing.assert_close(mine.grad, expected)

    simulate(2, program, timeout=60)


class _Allocations(TorchDispatchMode):
    """Notes the bytes of every new storage."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {
            x.untyped_storage().data_ptr()
            for x in (*args, *(kwargs or {}).values())
            if isinstance(x, torch.Tensor)
        }
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            storage = result.untyped_storage()
            if storage.data_ptr() not in given:
                self.sizes.append(storage.nbytes())
        return result


@pytest.mark.host_only  # backward in this very thread
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nothing_of_the_size_of_the_logits_is_made_but_their_gradient(dtype):
    full = _random(1024, 2048).to(dtype)
    target = torch.arange(1024)
    saved = []

    def keep(tensor):
        saved.append(tensor.untyped_storage().data_ptr())
        return tensor

    mesh = da.init_device_mesh((1,))
    mine = full.clone().requires_grad_()
    with _Allocations() as forward, torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        loss = vocab_parallel_cross_entropy(mine, target, mesh, label_smoothing=0.1)
    with _Allocations() as backward:
        (slope,) = torch.autograd.grad(loss, mine)
    assert slope.shape == mine.shape
    assert max(forward.sizes) * 4 <= full.nbytes
    assert sum(size * 4 > full.nbytes for size in backward.sizes) == 1
    assert max(backward.sizes) == full.nbytes
    assert mine.untyped_storage().data_ptr() in saved


def test_number_of_classes_may_be_told():
    full, target = _random(4, 7), torch.arange(4)

    def program():
        mesh = da.init_device_mesh((3,))
        mine = _share(full, 1, (0, 3, 6, 7), mesh.rank)
        expected = vocab_parallel_cross_entropy(mine, target, mesh)
        told = vocab_parallel_cross_entropy(mine, target, mesh, vocab_size=7)
        assert torch.equal(told, expected)
        with pytest.raises(LayoutError, match="leave shape= out"):
            vocab_parallel_cross_entropy(mine, target, mesh, vocab_size=12)
        place(mine, da.Layout(mesh, [da.Shard(1)], (4, 7)))
        assert torch.equal(vocab_parallel_cross_entropy(mine, target, mesh), expected)
        with pytest.raises(LayoutError, match="leave it out"):
            vocab_parallel_cross_entropy(mine, target, mesh, vocab_size=8)

    simulate(3, program, timeout=60)


def test_rows_of_another_mesh_axis_are_this_ranks():
    full, target = _random(4, 6), torch.arange(4)

    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        layout = da.Layout(mesh, [da.Shard(0), da.Shard(1)], full.shape)
        rows, classes = (slice(*bounds) for bounds in layout.local_box())
        mine = full[rows, classes].clone()
        place(mine, layout)
        loss = vocab_parallel_cross_entropy(mine, target[rows], mesh["tp"])
        torch.testing.assert_close(loss, cross_entropy(full[rows], target[rows]))

    simulate(4, program, timeout=60)


def test_arguments_are_checked_before_anything_is_sent():
    full, target = _random(4, 7), torch.arange(4)

    def program():
        mesh = da.init_device_mesh((2,))
        mine = _share(full, 1, (0, 4, 7), mesh.rank)

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

    simulate(2, program, timeout=60)


def test_what_ranks_pass_differently_is_an_error_on_all():
    full, target = _random(4, 7), torch.arange(4)

    def program():
        mesh = da.init_device_mesh((2,))
        mine = _share(full, 1, (0, 4, 7), mesh.rank)
        with pytest.raises(MismatchError, match="target and weights"):
            vocab_parallel_cross_entropy(mine, target + mesh.rank, mesh)
        reduction = "sum" if mesh.rank else "mean"
        with pytest.raises(MismatchError, match="reduction='sum'"):
            vocab_parallel_cross_entropy(mine, target, mesh, reduction=reduction)
        rows = slice(mesh.rank, None)
        with pytest.raises(LayoutError):
            vocab_parallel_cross_entropy(mine[rows], target[rows], mesh)
        return float(vocab_parallel_cross_entropy(mine, target, mesh))

    assert len(set(simulate(2, program, timeout=60))) == 1
