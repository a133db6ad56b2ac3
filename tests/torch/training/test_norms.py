"""Gradients are clipped by the norm that the single-process model has, in one all-reduce."""

from __future__ import annotations

import copy
import math

import pytest

torch = pytest.importorskip("torch")

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import (  # noqa: E402
    ArgumentError,
    ArgumentTypeError,
    LayoutError,
    MismatchError,
    NonFiniteError,
)
from distarray.testing import simulate  # noqa: E402
from distarray.torch._layouts import place  # noqa: E402
from distarray.torch.training import clip_grad_norm_, get_total_norm  # noqa: E402

R, S = da.Replicate(), da.Shard
NORMS = [2.0, 1.0, 3.5, -1.0, math.inf, -math.inf]


def _values(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def _parameter(full, gradient, mesh, placements):
    """Return this rank's block of a parameter with a gradient; without a layout for None."""
    if placements is None:
        block = torch.nn.Parameter(full.clone())
        block.grad = gradient.clone()
        return block
    layout = da.Layout(mesh, placements, full.shape)
    box = tuple(slice(*bounds) for bounds in layout.local_box())
    block = torch.nn.Parameter(full[box].clone())
    block.grad = gradient[box].clone()
    place(block, layout)
    return block


PLACED = [((5, 3), [S(0)]), ((4, 7), [S(1)]), ((6,), [R]), ((2, 2), None), ((1, 3), [S(0)])]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("p", NORMS)
def test_norm_and_gradients_equal_those_of_one_process(ranks, p):
    full = [(_values(*shape), _values(*shape) + i) for i, (shape, _) in enumerate(PLACED)]
    twins = [torch.nn.Parameter(value.clone()) for value, _ in full]
    for twin, (_, gradient) in zip(twins, full, strict=True):
        twin.grad = gradient.clone()
    expected = torch.nn.utils.clip_grad_norm_(twins, 0.7, p)

    def program():
        mesh = da.init_device_mesh((ranks,))
        mine = [
            _parameter(*one, mesh, placed) for one, (_, placed) in zip(full, PLACED, strict=True)
        ]
        with da.CommLog() as log:
            total = clip_grad_norm_(iter(mine), 0.7, p)
        assert log.count() == log.count("all_reduce") == (ranks > 1)
        torch.testing.assert_close(total, expected, rtol=1e-13, atol=0)
        for one, twin, (_, placed) in zip(mine, twins, PLACED, strict=True):
            layout = da.Layout(mesh, placed or [R], twin.shape)
            box = tuple(slice(*bounds) for bounds in layout.local_box())
            torch.testing.assert_close(one.grad, twin.grad[box], rtol=1e-12, atol=1e-15)
        return float(total)

    assert len(set(simulate(ranks, program))) == 1


@pytest.mark.parametrize("foreach", [None, True, False])
def test_layouts_over_one_and_two_mesh_axes_take_one_all_reduce(foreach):
    full = [_values(5, 6) for _ in range(6)]
    expected = torch.nn.utils.get_total_norm(full)

    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        layouts = [
            (mesh, [S(0), S(1)]),
            (mesh, [R, S(0)]),
            (mesh, [S(0), S(0)]),
            (mesh["tp"], [S(1)]),
            (mesh["dp"], [S(0)]),
            (mesh["tp"], [R]),
        ]
        blocks = [_parameter(f, f, *placed) for f, placed in zip(full, layouts, strict=True)]
        with da.CommLog() as log:
            total = clip_grad_norm_(blocks, 100.0, foreach=foreach)
        assert log.count() == 1
        torch.testing.assert_close(total, expected)
        with da.CommLog() as log:
            total = clip_grad_norm_(blocks[3:4] + blocks[5:], 100.0)
        assert log.count() == log.count(mesh_axis="tp") == 1
        torch.testing.assert_close(total, torch.nn.utils.get_total_norm([full[0], full[0]]))

    simulate(4, program)


def test_only_what_is_cut_needs_communication():
    def program():
        mesh = da.init_device_mesh((2,))
        whole = _parameter(_values(3), _values(3), mesh, [R])
        with da.CommLog() as log:
            total = clip_grad_norm_(whole, 1.0)
            none = clip_grad_norm_([], 1.0)
        assert log.count() == 0
        torch.testing.assert_close(total, _values(3).norm())
        assert float(none) == 0.0

    simulate(2, program)


def test_meshes_without_a_common_parent_are_summed_over_one_by_one():
    full = _values(4, 3)

    def program():
        one = da.DeviceMesh([0, 1], ("a",))
        other = da.DeviceMesh([1, 0], ("b",))
        blocks = [_parameter(full, full, mesh, [S(0)]) for mesh in (one, other)]
        blocks.append(_parameter(full, full, one, None))
        total = clip_grad_norm_(blocks, 1e9)
        torch.testing.assert_close(total, full.norm() * math.sqrt(3))

    simulate(2, program)


@pytest.mark.parametrize("lacking", [[1], [0], [0, 2]])
@pytest.mark.parametrize("kind", ["cut", "replicated"])
def test_a_gradient_that_some_ranks_lack_is_named_on_all(lacking, kind):
    """It would count as zero, and be clipped by a norm that no process has."""
    full = [_values(6, 2), _values(3), _values(2, 2)]

    def program():
        mesh = da.init_device_mesh((3,))
        blocks = [
            _parameter(one, one + mesh.rank, mesh, [S(0)] if one.shape[0] == 6 else [R])
            for one in full
        ]
        position = 0 if kind == "cut" else 1
        if mesh.rank in lacking:
            blocks[position].grad = None
        blocks[2].grad = None  # on all ranks: it is frozen
        shape = r"\(6, 2\)" if kind == "cut" else r"\(3,\)"
        before = [None if b.grad is None else b.grad.clone() for b in blocks]
        with pytest.raises(
            MismatchError, match=rf"no gradient of parameter {position} of shape {shape}"
        ):
            clip_grad_norm_(blocks, 1e-3)
        for block, gradient in zip(blocks, before, strict=True):
            assert (block.grad is None) == (gradient is None)
            assert gradient is None or torch.equal(block.grad, gradient)
        return True

    assert all(simulate(3, program))


def test_a_gradient_that_no_rank_has_is_left_out():
    def program():
        mesh = da.init_device_mesh((2,))
        blocks = [_parameter(_values(4), _values(4), mesh, [S(0)]) for _ in range(2)]
        blocks[0].grad = None
        torch.testing.assert_close(clip_grad_norm_(blocks, 1e9), _values(4).norm())

    simulate(2, program)


def test_a_gradient_that_is_missing_in_a_model_is_called_by_its_name():
    class Branches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = torch.nn.Linear(3, 4), torch.nn.Linear(3, 4)

        def forward(self, x, both):
            return self.one(x).sum() + (self.other(x).sum() if both else 0)

    def program():
        mesh = da.init_device_mesh((2,))
        mine = torch.nn.Sequential(Branches())
        plan = {"0.one": dt.ColwiseParallel(), "0.other": dt.ColwiseParallel()}
        dt.parallelize_module(mine, mesh, plan)
        x = torch.randn(2, 3, generator=torch.Generator().manual_seed(mesh.rank))
        for p in mine[0].one.parameters():
            p.grad = torch.full_like(p, x.sum())
        if mesh.rank == 0:
            for p in mine[0].other.parameters():
                p.grad = torch.ones_like(p)
        with pytest.raises(MismatchError, match=r"no gradient of parameter 2 '0.other.weight' of"):
            clip_grad_norm_(mine.parameters(), 1.0)
        return True

    assert all(simulate(2, program))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norms_of_low_precision_are_computed_in_float32(dtype):
    full = (_values(300, 7) * 30).to(dtype)
    expected = full.float().norm()

    def program():
        mesh = da.init_device_mesh((3,))
        block = _parameter(full, full, mesh, [S(0)])
        total = clip_grad_norm_([block], 1.0)
        assert total.dtype is torch.float32
        assert block.grad.dtype is dtype
        torch.testing.assert_close(total, expected, rtol=1e-6, atol=0)

    simulate(3, program)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize("p", [2.0, math.inf])
def test_what_is_not_finite_on_one_rank_is_so_on_all(bad, p):
    gradient = _values(4, 2)
    gradient[3, 1] = bad
    twin = torch.nn.Parameter(_values(4, 2))
    twin.grad = gradient.clone()
    torch.nn.utils.clip_grad_norm_([twin], 1.0, p)

    def program():
        mesh = da.init_device_mesh((2,))
        block = _parameter(_values(4, 2), gradient, mesh, [S(0)])
        with pytest.raises(NonFiniteError, match="error_if_nonfinite"):
            clip_grad_norm_([block], 1.0, p, error_if_nonfinite=True)
        before = block.grad.clone()
        torch.testing.assert_close(
            before, gradient[mesh.rank * 2 : mesh.rank * 2 + 2], equal_nan=True
        )
        total = clip_grad_norm_([block], 1.0, p)
        assert not math.isfinite(total)
        torch.testing.assert_close(
            block.grad, twin.grad[mesh.rank * 2 : mesh.rank * 2 + 2], equal_nan=True
        )

    simulate(2, program)


def test_norm_of_a_parallel_model_is_that_of_its_twin():
    model = torch.nn.Sequential(
        torch.nn.Linear(5, 7), torch.nn.GELU(), torch.nn.Linear(7, 3), torch.nn.LayerNorm(3)
    ).double()
    x = _values(4, 5)
    twin = copy.deepcopy(model)
    twin(x).square().sum().backward()
    expected = torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.1)

    def program():
        mesh = da.init_device_mesh((3,))
        mine = copy.deepcopy(model)
        plan = {"0": dt.ColwiseParallel(), "2": dt.RowwiseParallel()}
        dt.parallelize_module(mine, mesh, plan)
        mine(x).square().sum().backward()
        gradients = [p.grad for p in mine.parameters()]
        torch.testing.assert_close(get_total_norm(gradients), expected)
        torch.testing.assert_close(clip_grad_norm_(mine.parameters(), 0.1), expected)
        torch.testing.assert_close(get_total_norm(gradients), torch.tensor(0.1).double())

    simulate(3, program)


def test_a_tensor_passed_twice_counts_once():
    block = torch.nn.Parameter(torch.ones(4))
    block.grad = torch.ones(4)
    assert float(clip_grad_norm_([block, block], 1.0)) == 2.0
    torch.testing.assert_close(block.grad, torch.full((4,), 0.5))


def test_what_is_refused():
    block = torch.nn.Parameter(torch.ones(4))
    with pytest.raises(ArgumentError, match="norm_type=0"):
        clip_grad_norm_([block], 1.0, 0)
    with pytest.raises(ArgumentTypeError, match=r"model\.parameters"):
        clip_grad_norm_(["weight"], 1.0)
    block.grad = torch.ones(4).to_sparse()
    with pytest.raises(ArgumentTypeError, match="dense"):
        clip_grad_norm_([block], 1.0)

    def program():
        mesh = da.init_device_mesh((2,))
        partial = torch.ones(4)
        place(partial, da.Layout(mesh, [da.Partial()], (4,)))
        with pytest.raises(LayoutError, match="redistribute it"):
            get_total_norm([partial])
        blocks = [_parameter(_values(4), _values(4), mesh, [S(0)]) for _ in range(2)]
        with pytest.raises(MismatchError, match="tensors"):
            clip_grad_norm_(blocks[mesh.rank :], 1.0)

    simulate(2, program)
