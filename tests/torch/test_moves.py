"""A move's values are those of the layouts, and its gradients the exact transpose of that.

The model is the global tensor. Where a layout is ``Partial``, the global value is the sum (or the
mean) of what the ranks hold; so by the chain rule the gradient of a contribution is the gradient of
the global value (divided by the number of contributions to a mean), the same on every rank.
"""

from __future__ import annotations

import threading
from math import prod

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import (  # noqa: E402
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    LayoutError,
    MeshError,
    MismatchError,
)
from distarray.layout import AbstractMesh, Layout  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from distarray.torch import _moves  # noqa: E402
from tests.redistribute.strategies import layouts, shapes  # noqa: E402

R, P, S = da.Replicate(), da.Partial(), da.Shard
AVG = da.Partial("avg")
EXACT = {"rtol": 0, "atol": 1e-12}


# --- the model -----------------------------------------------------------------------------------


def on(layout, mesh):
    """Return an abstract layout over a mesh of processes."""
    return layout.replace(mesh=mesh)


def contributions(layout, seed, dtype=np.float64):
    """Return a global value for every coordinate of the Partial mesh axes."""
    count = prod(layout.mesh.shape[i] for i in layout.partial_axes)
    values = np.random.default_rng(seed).integers(-4, 5, (count, *layout.shape))
    return values.astype(dtype)


def value(layout, values):
    """Return the global value of contributions: summed, or averaged, axis by axis."""
    axes = [(layout.mesh.shape[i], layout.placements[i].op) for i in layout.partial_axes]
    whole = values.reshape((*(size for size, _ in axes), *layout.shape))
    for _, op in axes:
        whole = whole.sum(0) if op == "sum" else whole.mean(0)
    return whole


def averaged(layout):
    return prod(
        layout.mesh.shape[i] for i in layout.partial_axes if layout.placements[i].op == "avg"
    )


def block(layout, values):
    """Return this rank's block of the contribution that is its own."""
    coordinate = layout.mesh.coordinate
    index = 0
    for i in layout.partial_axes:
        index = index * layout.mesh.shape[i] + coordinate[i]
    return values[(index, *(slice(a, b) for a, b in layout.local_box()))]


def part(layout, whole):
    """Return this rank's block of a global value, whether the layout is Partial or not."""
    return torch.as_tensor(whole)[tuple(slice(a, b) for a, b in layout.local_box())].clone()


def summed(mesh, layout, tensor):
    """Return the global value of a block, put together by plain means."""
    pieces = mesh.communicator().all_gather_object((mesh.coordinate, tensor.detach().numpy()))
    count = prod(mesh.shape[i] for i in layout.partial_axes)
    values = np.zeros((count, *layout.shape), tensor.detach().numpy().dtype)
    for coordinate, piece in pieces:
        index = 0
        for i in layout.partial_axes:
            index = index * mesh.shape[i] + coordinate[i]
        box = layout.local_box(coordinate)
        values[(index, *(slice(a, b) for a, b in box))] = piece
    return value(layout, values)


@st.composite
def two_layouts(draw):
    """Two layouts of one shape on a mesh of at most four ranks, with sums and averages."""
    sizes = draw(st.sampled_from([(1,), (2,), (3,), (4,), (2, 2), (1, 3), (2, 1, 2)]))
    mesh = AbstractMesh(sizes)
    shape = draw(shapes)
    return [draw(layouts(mesh, shape, ["sum", "avg"])) for _ in range(2)]


# --- values and gradients ------------------------------------------------------------------------


@settings(max_examples=60)
@given(two_layouts(), st.integers(0, 2**31), st.data())
def test_values_gradients_and_second_derivatives_are_those_of_the_model(pair, seed, data):
    shape = pair[0].mesh.shape
    uses = [data.draw(st.booleans()) for _ in shape]  # does each rank use replicas differently?
    given_x = contributions(pair[0], seed)
    weights = contributions(_moves.dual(pair[1]), seed + 1)[0]
    direction = contributions(pair[0], seed + 2)

    def program():
        mesh = da.init_device_mesh(shape)
        src, dst = (on(layout, mesh) for layout in pair)
        arriving = [
            P if use and type(p) is da.Replicate else R if type(p) is da.Partial else p
            for use, p in zip(uses, dst.placements, strict=True)
        ]
        x = torch.from_numpy(np.array(block(src, given_x))).requires_grad_()
        ways = _moves.legs_between(src, dst, arriving)
        y = _moves.moved(x, *ways)
        whole = value(src, given_x)
        np.testing.assert_array_equal(summed(mesh, dst, y), whole)
        assert dt.layout_of(y) is dst

        # A loss L with dL/dX = weights * X: each rank adds its use of what it holds to it.
        own = own_share(mesh, dst, arriving)
        gradient = own * part(dst, weights) * part(dst, whole) / averaged(dst)
        (first,) = torch.autograd.grad(y, x, gradient, retain_graph=True)
        expected = part(src, weights * whole) / averaged(src)
        torch.testing.assert_close(first, expected, **EXACT)

        # The transpose is linear in the gradient, and its own transpose is the move.
        gradient.requires_grad_()
        (first,) = torch.autograd.grad(y, x, gradient, create_graph=True)
        d = torch.from_numpy(np.array(block(src, direction)))
        (second,) = torch.autograd.grad(first, gradient, d)
        # M = <d, dL/dx> = <value(d), dL/dX>: of dL/dy each rank's own part is this.
        total = summed(mesh, dst, second) if dst.has_partial else None
        if total is None:
            torch.testing.assert_close(second, part(dst, value(src, direction)), **EXACT)
        else:
            np.testing.assert_allclose(total, value(src, direction), **EXACT)

    simulate(prod(shape), program, timeout=60)


def own_share(mesh, dst, arriving):
    """Return this rank's share of a gradient: those of all ranks add up to one where it is P."""
    share = 1.0
    for size, at, p, arrives in zip(
        mesh.shape, mesh.coordinate, dst.placements, arriving, strict=True
    ):
        if type(arrives) is da.Partial and type(p) is da.Replicate:
            shares = [k + 2.0 for k in range(size - 1)]
            share *= [*shares, 1.0 - sum(shares)][at]
    return share


MOVES = [([P], [R]), ([S(0)], [R]), ([R], [S(0)]), ([S(0)], [S(1)]), ([P], [S(1)]), ([R], [P])]
DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("ranks", [3])
def test_every_dtype_moves(ranks, dtype):
    layout = AbstractMesh((ranks,))
    pairs = [(Layout(layout, a, (5, 4)), Layout(layout, b, (5, 4))) for a, b in MOVES]
    given_x = {src: contributions(src, 3) for src, _ in pairs}

    def program():
        mesh = da.init_device_mesh((ranks,))
        for abstract, goal in pairs:
            src, dst = on(abstract, mesh), on(goal, mesh)
            own = torch.tensor(block(src, given_x[abstract]))
            x = (own != 0 if dtype == torch.bool else own.to(dtype)).contiguous()
            y = dt.redistribute(x, mesh, src.placements, dst.placements)
            assert y.dtype is dtype
            assert dt.layout_of(y) is dst
            whole = value(src, given_x[abstract])
            if dtype == torch.bool:
                whole = (given_x[abstract] != 0).any(0)
                y = dt.redistribute(y, mesh, dst.placements, [R])
                torch.testing.assert_close(y, torch.tensor(whole))
            elif dtype != torch.uint8 or not (src.has_partial or dst.has_partial):
                y = dt.redistribute(y, mesh, dst.placements, [R])
                torch.testing.assert_close(y, torch.tensor(whole).to(dtype))

    simulate(ranks, program, timeout=60)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [7, 5000])
@pytest.mark.parametrize("per_node", [None, 1, 2])
def test_half_precision_is_rounded_once(dtype, size, per_node):
    ranks = 4
    parts = torch.randn(ranks, size, generator=torch.Generator().manual_seed(1)).to(dtype)
    wide = parts.float()
    total = torch.zeros(size)
    for one in wide:
        total += one
    expected = {
        "sum": total.to(dtype),
        "avg": (total / ranks).to(dtype),
        "max": wide.amax(0).to(dtype),
        "min": wide.amin(0).to(dtype),
    }

    def program():
        mesh = da.init_device_mesh((ranks,))
        own = parts[mesh.rank].clone()
        for op, whole in expected.items():
            y = dt.redistribute(own, mesh, [da.Partial(op)], [R])
            torch.testing.assert_close(y, whole, rtol=0, atol=0)
            y = dt.redistribute(own, mesh, [da.Partial(op)], [S(0)])
            torch.testing.assert_close(y, part(dt.layout_of(y), whole.float()).to(dtype))
            back = dt.redistribute(whole, mesh, [R], [da.Partial(op)])
            again = dt.redistribute(back, mesh, [da.Partial(op)], [R])
            torch.testing.assert_close(again, whole, rtol=0, atol=0)
        changed = dt.redistribute(own, mesh, [P], [da.Partial("max")])
        y = dt.redistribute(changed, mesh, [da.Partial("max")], [R])
        torch.testing.assert_close(y, expected["sum"], rtol=0, atol=0)
        x = own.clone().requires_grad_()
        y = dt.redistribute(x, mesh, [AVG], [R])
        y.sum().backward()
        assert x.grad.dtype is dtype
        torch.testing.assert_close(x.grad, torch.full_like(own, 1 / ranks))

    simulate(ranks, program, timeout=60, ranks_per_node=per_node)


STRIDED = {
    "transposed": lambda x: x.t().contiguous().t(),
    "expanded": lambda x: x[:1].expand(x.shape),
    "strided": lambda x: torch.stack([x, x], -1).flatten(1)[:, ::2],
    "narrow": lambda x: torch.cat([x, x]).narrow(0, x.shape[0], x.shape[0]),
    "negative bit": lambda x: torch.complex(x * 0, -x).conj().imag,
}


@pytest.mark.parametrize("kind", STRIDED)
@pytest.mark.parametrize("move", MOVES, ids=str)
def test_inputs_and_gradients_may_lie_anyhow(kind, move):
    ranks, make = 2, STRIDED[kind]
    values = torch.arange(24.0, dtype=torch.float64).reshape(4, 6)

    def program():
        mesh = da.init_device_mesh((ranks,))
        x = values + mesh.rank if P in move[0] else values
        src = Layout(mesh, move[0], x.shape)
        x = part(src, x.numpy())
        plain = make(x).contiguous().requires_grad_()
        odd = make(x).detach().requires_grad_()
        wanted = dt.redistribute(plain, mesh, *move)
        found = dt.redistribute(odd, mesh, *move)
        torch.testing.assert_close(found, wanted)
        gradient = torch.arange(float(wanted.numel())).double().reshape(wanted.shape)
        wanted.backward(make(gradient).contiguous())
        found.backward(make(gradient))
        torch.testing.assert_close(odd.grad, plain.grad)

    simulate(ranks, program, timeout=60)


# --- modes of autograd ---------------------------------------------------------------------------


def each(program, ranks=2):
    """Run a program of a mesh on simulated ranks."""
    return simulate(ranks, lambda: program(da.init_device_mesh((ranks,))), timeout=60)


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
        x = torch.ones(3, 2, requires_grad=True)
        for placements in ([R], [P], [S(0)]):
            assert dt.redistribute(x, mesh, placements, placements) is x
            pending = dt.redistribute(x, mesh, placements, placements, async_op=True)
            assert pending.test()
            assert pending.wait() is x
        plain = x.detach()
        assert dt.redistribute(plain, mesh, [R], [R], grad_placements=[P]) is plain
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


# --- what is wrong, and where --------------------------------------------------------------------


def test_wrong_arguments_are_refused():
    def program(mesh):
        x = torch.ones(4, 2)
        with pytest.raises(LayoutError, match="leave shape= out"):
            dt.redistribute(x, mesh, [S(0)], [R], shape=(4, 2))
        with pytest.raises(LayoutError, match="cut where the tensor is"):
            dt.redistribute(x, mesh, [R], [S(0)], grad_placements=[R])
        with pytest.raises(LayoutError, match="cut where the tensor is"):
            dt.redistribute(x, mesh, [S(0)], [R], grad_placements=[S(1)])
        with pytest.raises(ArgumentTypeError, match="make one by"):
            dt.redistribute(x, da.AbstractMesh((2,)), [R], [R])
        with pytest.raises(ArgumentTypeError, match="no memory that MPI could send"):
            dt.redistribute(x.to("meta"), mesh, [S(0)], [R])
        with pytest.raises(ArgumentTypeError, match=r"dense torch tensor, not torch\.sparse_coo"):
            dt.redistribute(x.to_sparse(), mesh, [S(0)], [R])
        with pytest.raises(ArgumentTypeError, match="dense torch tensor, not list"):
            dt.redistribute([1.0], mesh, [S(0)], [R])
        with pytest.raises(DTypeError, match=r"float8.* cannot be sent"):
            dt.redistribute(x.to(torch.float8_e5m2), mesh, [S(0)], [R])
        with pytest.raises(DTypeError, match="band"):
            dt.redistribute(x, mesh, [da.Partial("band")], [R])
        single = da.DeviceMesh([1 - mesh.rank])
        with pytest.raises(MeshError, match="not in"):
            dt.redistribute(x, single, [R], [R])

    each(program)


DIFFERENT = {
    "shape": lambda odd: ((torch.ones(4 + odd, 2), [P], [R]), {}),
    "axes": lambda odd: ((torch.ones(*(4, 2, 3)[: 2 + odd]), [S(0)], [R]), {}),
    "uncut axis": lambda odd: ((torch.ones(4, 2 + odd), [S(0)], [R]), {}),
    "dtype": lambda odd: (
        (torch.ones(4, 2, dtype=(torch.float32, torch.float64)[odd]), [P], [R]),
        {},
    ),
    "dtype of shards": lambda odd: (
        (torch.ones(4, 2, dtype=(torch.float32, torch.int32)[odd]), [S(0)], [R]),
        {},
    ),
    "source": lambda odd: ((torch.ones(4, 2), [(P, S(0))[odd]], [R]), {"shape": (4 + 4 * odd, 2)}),
    "target": lambda odd: ((torch.ones(4, 2), [P], [(R, S(0))[odd]]), {}),
    "target of shards": lambda odd: ((torch.ones(4, 2), [S(0)], [(R, S(1))[odd]]), {}),
    "shape told": lambda odd: ((torch.ones(4 + odd, 2), [S(0)], [R]), {"shape": (8, 2)}),
    "need of a gradient": lambda odd: (
        (torch.ones(4, 2, requires_grad=bool(odd)), [S(0)], [R]),
        {"grad_placements": [P]},
    ),
    "need of an impossible gradient": lambda odd: (
        (torch.ones(4, 2, requires_grad=bool(odd)), [da.Partial("max")], [R]),
        {},
    ),
}


def here(x, mesh, src, dst, background, options):
    """Redistribute, and wait for it where it runs in the background."""
    found = dt.redistribute(x, mesh, src, dst, **options, async_op=background)
    return found.wait() if background else found


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("what", DIFFERENT)
def test_ranks_that_differ_all_raise(what, background):
    def program(mesh):
        (x, src, dst), options = DIFFERENT[what](mesh.rank == 1)
        with pytest.raises((MismatchError, LayoutError, DTypeError)):
            here(x, mesh, src, dst, background, options)

    simulate(2, lambda: program(da.init_device_mesh((2,))), timeout=60)
