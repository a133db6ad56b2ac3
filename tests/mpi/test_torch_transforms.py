"""Forward-mode derivatives by torch.func, whose level all threads of a process share."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.func import functional_call, grad, hessian, jvp  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from tests.torch.fsdp.training import filled, rows_of, same, values  # noqa: E402

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.timeout(100),
    pytest.mark.filterwarnings("ignore:.*torch.jit"),  # of torch itself
]

X = values(24, 5)


@pytest.fixture(params=["sharded", "parallel"])
def module(request):
    """Return a module as it is, and as the ranks share it out."""
    from mpi4py import MPI

    whole = filled(nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)))
    mine = copy.deepcopy(whole)
    mesh = da.init_device_mesh((MPI.COMM_WORLD.size,), ("dp",))
    if request.param == "sharded":
        dt.fully_shard(mine[0], mesh)
        dt.fully_shard(mine, mesh)
    else:
        plan = {"0": dt.ColwiseParallel(), "2": dt.RowwiseParallel()}
        dt.parallelize_module(mine, mesh, plan)
    return whole, mine


def shares_of(module, wholes):
    found = {}
    for name, parameter in module.named_parameters():
        whole, layout = wholes[name], dt.layout_of(parameter)
        for axis, (start, stop) in enumerate(layout.local_box() if layout else ()):
            whole = whole.narrow(axis, start, stop - start)
        found[name] = whole.clone()
    return found


def named(module):
    return {n: p.detach() for n, p in module.named_parameters()}


def loss_of(module):
    x = rows_of(module, X)
    return lambda parameters: functional_call(module, parameters, (x,)).square().mean()


def test_tangents_of_parameters(module):
    from mpi4py import MPI

    whole, mine = module
    along = {n: values(*p.shape, seed=i) for i, (n, p) in enumerate(whole.named_parameters())}
    own = shares_of(mine, along)
    found = jvp(loss_of(mine), (named(mine),), (own,))
    wanted = jvp(loss_of(whole), (named(whole),), (along,))
    for given, expected, what in zip(found, wanted, ("value", "tangent"), strict=True):
        mean = sum(MPI.COMM_WORLD.allgather(given.item())) / MPI.COMM_WORLD.size
        same(torch.tensor(mean, dtype=given.dtype), expected, what)


def test_a_second_derivative_along_a_direction(module):
    """Forward over reverse: a Hessian times a vector."""
    whole, mine = module
    along = {n: values(*p.shape, seed=i) for i, (n, p) in enumerate(whole.named_parameters())}
    own = shares_of(mine, along)
    _, found = jvp(grad(loss_of(mine)), (named(mine),), (own,))
    _, wanted = jvp(grad(loss_of(whole)), (named(whole),), (along,))
    for name, expected in shares_of(mine, wanted).items():
        same(found[name], expected, name)


def test_derivatives_by_inputs(module):
    whole, mine = module
    for given, expected in zip(jvp(mine, (X,), (2 * X,)), jvp(whole, (X,), (2 * X,)), strict=True):
        same(given, expected, "jvp")
    bends = [hessian(lambda x, m=m: m(x).square().mean())(X[0]) for m in (mine, whole)]
    same(*bends, "hessian")
