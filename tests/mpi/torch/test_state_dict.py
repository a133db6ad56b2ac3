"""States are saved and loaded under real MPI: within a node and between nodes."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import StateDictError  # noqa: E402
from tests.mpi.torch.test_moves import mesh  # noqa: E402, F401
from tests.torch.state.test_state_dict import MODEL, NEXT, PLAN, WHOLE, same, without  # noqa: E402

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60)]


@pytest.fixture
def model(mesh):  # noqa: F811
    return dt.parallelize_module(copy.deepcopy(MODEL), mesh, PLAN)


def test_all_ranks_or_one_get_whole_tensors(mesh, model):  # noqa: F811
    same(dt.state_dict(model), WHOLE)
    last = mesh.size - 1
    with da.CommLog() as log:
        found = dt.state_dict(model, ranks=last)
    if mesh.rank == last:
        same(found, WHOLE)
    else:
        assert not found
        assert log.bytes() == 0


@pytest.mark.parametrize("assign", [False, True])
def test_whole_tensors_come_from_all_ranks_or_one(mesh, model, assign):  # noqa: F811
    dt.load_state_dict(model, NEXT, assign=assign)
    same(dt.state_dict(model), NEXT)
    last = mesh.size - 1
    given = WHOLE if mesh.rank == last else None
    dt.load_state_dict(model, given, src_data_rank=last, assign=assign)
    same(dt.state_dict(model), WHOLE)
    dt.load_state_dict(model, dt.state_dict(model, full=False))
    same(dt.state_dict(model), WHOLE)


def test_an_error_on_one_rank_reaches_all_and_they_go_on(mesh, model):  # noqa: F811
    last = mesh.rank == mesh.size - 1
    with pytest.raises(StateDictError, match=r"missing keys: 'up\.bias'"):
        dt.load_state_dict(model, without(NEXT, "up.bias") if last else NEXT)
    same(dt.state_dict(model), WHOLE)


def test_optimizers_go_on(mesh, model):  # noqa: F811
    optimizer = torch.optim.AdamW(model.parameters())
    for value in model.parameters():
        value.grad = torch.ones_like(value)
    optimizer.step()
    state = dt.optimizer_state_dict(model, optimizer, ranks=0)
    other = torch.optim.AdamW(model.parameters())
    dt.load_optimizer_state_dict(model, other, state or None, src_data_rank=0)
    for value in model.parameters():
        for key, kept in optimizer.state[value].items():
            assert torch.equal(other.state[value][key], kept)
