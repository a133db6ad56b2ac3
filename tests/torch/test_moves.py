"""A move's values are those of the layouts, and its gradients the exact transpose of that."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.layout import AbstractMesh, Layout  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from distarray.torch._moves import move  # noqa: E402
from distarray.torch._routes import routes_between  # noqa: E402
from tests.torch.moves_model import (  # noqa: E402
    AVG,
    EXACT,
    MOVES,
    P,
    R,
    S,
    averaged,
    block,
    contributions,
    on,
    part,
    summed,
    two_layouts,
    value,
)


@settings(max_examples=60)
@given(two_layouts(), st.integers(0, 2**31), st.data())
def test_values_gradients_and_second_derivatives_are_those_of_the_model(pair, seed, data):
    shape = pair[0].mesh.shape
    uses = [data.draw(st.booleans()) for _ in shape]  # does each rank use replicas differently?
    given_x = contributions(pair[0], seed)
    weights = contributions(pair[1].without_partial(), seed + 1)[0]
    direction = contributions(pair[0], seed + 2)

    def program():
        mesh = da.init_device_mesh(shape)
        src, dst = (on(layout, mesh) for layout in pair)
        arriving = [
            P if use and type(p) is da.Replicate else R if type(p) is da.Partial else p
            for use, p in zip(uses, dst.placements, strict=True)
        ]
        x = torch.from_numpy(np.array(block(src, given_x))).requires_grad_()
        ways = routes_between(src, dst, arriving)
        y = move(x, *ways)
        whole = value(src, given_x)
        np.testing.assert_array_equal(summed(mesh, dst, y), whole)
        assert dt.layout_of(y) is dst

        # A loss L with dL/dX = weights * X: each rank adds its use of what it holds to it.
        own = own_shard(mesh, dst, arriving)
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

    simulate(prod(shape), program)


def own_shard(mesh, dst, arriving):
    """Return this rank's shard of a gradient: those of all ranks add up to one where it is P."""
    shard = 1.0
    for size, at, p, arrives in zip(
        mesh.shape, mesh.coordinate, dst.placements, arriving, strict=True
    ):
        if type(arrives) is da.Partial and type(p) is da.Replicate:
            shards = [k + 2.0 for k in range(size - 1)]
            shard *= [*shards, 1.0 - sum(shards)][at]
    return shard


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

    simulate(ranks, program)


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

    simulate(ranks, program, ranks_per_node=per_node)


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

    simulate(ranks, program)
