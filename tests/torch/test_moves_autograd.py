"""Moves in every mode of autograd, in the background, recomputed and compiled."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import ArgumentError, DTypeError  # noqa: E402
from tests.torch.moves_model import AVG, EXACT, MOVES, P, R, S, each  # noqa: E402


def test_modes_decide_what_is_differentiable():
    def program(mesh):
        x = torch.ones(3, 2, requires_grad=True)
        with torch.no_grad():
            assert not dt.redistribute(x, mesh, [P], [R]).requires_grad
            dt.redistribute(x, mesh, [da.Partial("max")], [R])  # no gradient is asked for
        with torch.inference_mode():
            y = dt.redistribute(x, mesh, [P], [R])
            assert y.is_inference()
            z = dt.redistribute(y, mesh, [R], [S(0)])
            assert torch.equal(z, torch.full_like(z, 2.0))
            pending = dt.redistribute(y, mesh, [R], [S(0)], async_op=True)
            assert torch.equal(pending.wait(), z)
        assert not dt.redistribute(x.detach(), mesh, [P], [R]).requires_grad
        with pytest.raises(DTypeError, match="has no gradient"):
            dt.redistribute(x, mesh, [da.Partial("max")], [R])

    each(program)


def test_what_does_not_move_is_the_same_tensor():
    def program(mesh):
        for placements in ([R], [P], [S(0)]):
            x = torch.ones(3, 2, requires_grad=True)
            assert dt.redistribute(x, mesh, placements, placements) is x
            pending = dt.redistribute(x, mesh, placements, placements, async_op=True)
            assert pending.test()
            assert pending.wait() is x
        said = dt.redistribute(x, mesh, [R], [R])
        assert said.data_ptr() == x.data_ptr()
        assert [dt.layout_of(y).placements for y in (said, x)] == [(R,), (S(0),)]
        plain = x.detach()
        assert dt.redistribute(plain, mesh, [R], [R], grad_placements=[P]) is plain
        x = torch.ones(3, 2, requires_grad=True)
        shared = dt.redistribute(x, mesh, [R], [R], grad_placements=[P])
        assert shared.data_ptr() == x.data_ptr()
        shared.sum().backward()
        assert torch.equal(x.grad, torch.full_like(x, 2.0))
        with pytest.raises(RuntimeError, match="inplace"):  # torch says to clone it
            shared.add_(1)

    each(program)


def test_results_never_share_memory_that_is_used_again():
    def program(mesh):
        x = torch.full((64, 1024), float(mesh.rank + 1))
        results = [dt.redistribute(x, mesh, *move) for move in MOVES]
        copies = [y.clone() for y in results]
        for y in results:
            assert y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
        x.zero_()
        for _ in range(5):
            dt.redistribute(torch.full_like(x, -1), mesh, [P], [R])
        for y, copy in zip(results, copies, strict=True):
            assert torch.equal(y, copy)
        results[0].zero_()
        assert all(torch.equal(y, c) for y, c in zip(results[1:], copies[1:], strict=True))

    each(program)


def test_changing_a_saved_result_is_found_out_by_torch():
    def program(mesh):
        x = torch.ones(3, 2, requires_grad=True)
        y = dt.redistribute(x, mesh, [P], [R])
        z = (y * y).sum()
        with torch.no_grad():
            y.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.backward()

    each(program)


def test_a_result_may_be_changed_in_place():
    def program(mesh):
        x = torch.ones(3, 2, requires_grad=True)
        torch.relu_(dt.redistribute(x, mesh, [P], [R])).sum().backward()
        assert torch.equal(x.grad, torch.ones_like(x))

    each(program)


def test_a_background_move_is_like_one_in_the_foreground():
    def program(mesh):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(mesh.rank)).double()
        for move in MOVES:
            one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
            y = dt.redistribute(one, mesh, *move)
            pending = dt.redistribute(other, mesh, *move, async_op=True)
            dt.redistribute(x, mesh, [P], [S(0)], async_op=True)  # dropped
            result = pending.wait()
            assert pending.wait() is result
            assert pending.test()
            assert dt.layout_of(result) is dt.layout_of(y)
            torch.testing.assert_close(result, y, rtol=0, atol=0)
            weights = torch.linspace(0, 1, y.numel()).double().reshape(y.shape)
            (y * weights).sum().backward()
            (result * weights).sum().backward()
            torch.testing.assert_close(other.grad, one.grad, rtol=0, atol=0)

    each(program)


def test_a_background_move_is_differentiable_as_where_it_began():
    def program(mesh):
        x = torch.ones(3, 2, requires_grad=True)
        pending = dt.redistribute(x, mesh, [P], [R], async_op=True)
        with torch.no_grad():
            assert pending.wait().requires_grad
        with torch.no_grad():
            pending = dt.redistribute(x, mesh, [P], [R], async_op=True)
        assert not pending.wait().requires_grad

    each(program)


def test_a_source_that_changes_on_its_way_is_an_error():
    def program(mesh):
        x = torch.ones(3, 2)
        pending = dt.redistribute(x, mesh, [P], [R], async_op=True)
        x.add_(1)
        for _ in range(2):
            with pytest.raises(ArgumentError, match="changed in place before wait"):
                pending.wait()

    each(program)


def test_backward_runs_in_another_thread():
    def program(mesh):
        x = torch.ones(3, 2, requires_grad=True)
        y = dt.redistribute(x, mesh, [R], [R], grad_placements=[P]).sum()
        thread = threading.Thread(target=y.backward)
        thread.start()
        thread.join(30)
        assert torch.equal(x.grad, torch.full_like(x, 2.0))

    each(program)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_compute_it_again(reentrant):
    from torch.utils.checkpoint import checkpoint

    def program(mesh):
        def compute(x):
            y = dt.redistribute(torch.sin(x), mesh, [P], [R])
            return torch.cos(dt.redistribute(y, mesh, [R], [S(0)]))

        one, other = (torch.linspace(0, 1, 10).requires_grad_() for _ in range(2))
        compute(one).sum().backward()
        with da.CommLog() as log:
            checkpoint(compute, other, use_reentrant=reentrant).sum().backward()
        torch.testing.assert_close(other.grad, one.grad)
        assert log.count("all_reduce") == 2
        assert log.count("all_gather") == 1

    each(program)


def test_deep_reentrant_checkpoints_leave_the_thread():
    from torch.utils.checkpoint import checkpoint

    def program(mesh):
        def nested(x, depth):
            x = dt.redistribute(x, mesh, [R], [R], grad_placements=[AVG])
            return checkpoint(nested, x, depth - 1, use_reentrant=True) if depth else x * 2

        x = torch.ones(2, requires_grad=True)
        nested(x, 70).sum().backward()
        assert torch.equal(x.grad, torch.full((2,), 2.0))

    each(program)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own use
def test_forward_mode_moves_tangents():
    def program(mesh):
        x = torch.linspace(-1, 1, 6).double()
        tangent = torch.linspace(1, 2, 6).double()
        one = torch.autograd.forward_ad.make_dual(x, tangent)
        y = dt.redistribute(one.sin(), mesh, [P], [R])
        y = dt.redistribute(y, mesh, [R], [R], grad_placements=[P]).cos()
        found = torch.autograd.forward_ad.unpack_dual(y).tangent
        expected = -(mesh.size * x.sin()).sin() * mesh.size * x.cos() * tangent
        torch.testing.assert_close(found, expected, **EXACT)

    with torch.autograd.forward_ad.dual_level():  # of all threads
        each(program)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_computes_the_same(backend):
    def compute(x, mesh):
        y = torch.relu(x) * 2
        y = dt.redistribute(y, mesh, [P], [R])
        y = dt.redistribute(y + 1, mesh, [R], [R], grad_placements=[P])
        return (y * y).sum()

    def program(mesh):
        torch._dynamo.reset()
        compiled = torch.compile(compute, backend=backend)
        for size in (4, 6):
            one, other = (torch.linspace(-1, 1, size).requires_grad_() for _ in range(2))
            expected = compute(one, mesh)
            expected.backward()
            found = compiled(other, mesh)
            found.backward()
            torch.testing.assert_close(found, expected)
            torch.testing.assert_close(other.grad, one.grad)

    each(program, 1)  # torch's compiler keeps state for all threads
