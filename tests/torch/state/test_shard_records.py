"""State dicts say which of their tensors are shards, and are not loaded where others belong."""

from __future__ import annotations

import copy
import io

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import StateDictError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from tests.torch.fsdp.training import filled, on_ranks, values  # noqa: E402

REFUSED = r"is a rank's shard, \[.*\] of .*"


def model() -> nn.Module:
    """Return a model of which every block has the shape of every other one, on 2 or 4 ranks."""
    return filled(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)))


def saved(state) -> dict:
    """Return what torch has written and read."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def sharded(mesh) -> nn.Module:
    mine = model()
    dt.fully_shard(mine[0], mesh)
    return dt.fully_shard(mine, mesh)


def columns(mesh) -> nn.Module:
    return dt.parallelize_module(model(), mesh, {"0": dt.ColwiseParallel()})


def rows(mesh) -> nn.Module:
    plan = {"0": dt.ColwiseParallel(), "2": dt.RowwiseParallel()}
    return dt.parallelize_module(model(), mesh, plan)


def written(ranks: int, make) -> list[dict]:
    """Return the files of the ranks."""
    return on_ranks(ranks, lambda mesh: saved(make(mesh).state_dict()))


@pytest.mark.parametrize("make", [sharded, columns, rows])
def test_shards_come_back_to_the_rank_that_wrote_them(make):
    files = written(2, make)

    def program(mesh):
        for load in ("torch", "dt", "assign"):
            mine = make(mesh)
            with torch.no_grad():
                for p in mine.parameters():
                    p.zero_()
            file = copy.deepcopy(files[mesh.rank])
            if load == "dt":
                dt.load_state_dict(mine, file)
            else:
                mine.load_state_dict(file, assign=load == "assign")
            for name, value in dt.state_dict(mine).items():
                torch.testing.assert_close(value, model().state_dict()[name])

    on_ranks(2, program)


@pytest.mark.parametrize("make", [sharded, columns, rows])
@pytest.mark.parametrize("load", ["torch", "a part", "dt"])
def test_shards_of_another_rank_are_refused(make, load):
    """All shapes fit."""
    files = written(2, make)

    def program(mesh):
        mine = make(mesh)
        file = files[1 - mesh.rank]
        before = [p.detach().clone() for p in mine[0].parameters()]
        part = type(file)({n[2:]: value for n, value in file.items() if n.startswith("0.")})
        part._metadata = {"": file._metadata["0"]}
        loads = {
            "torch": lambda: mine.load_state_dict(file),
            "a part": lambda: mine[0].load_state_dict(part),
            "dt": lambda: dt.load_state_dict(mine, file),
        }
        with pytest.raises(StateDictError, match=REFUSED):
            loads[load]()
        assert all(map(torch.equal, before, mine[0].parameters()))
        return True

    assert all(on_ranks(2, program))


def test_shards_of_another_plan_or_number_of_ranks_are_refused():
    by_columns, by_rows, by_four = written(2, columns), written(2, rows), written(4, sharded)

    def program(mesh):
        for make, file in (
            (rows, by_four[mesh.rank]),
            (sharded, by_four[mesh.rank]),
            (sharded, by_rows[mesh.rank]),
            (model_of, by_columns[mesh.rank]),
        ):
            mine = make(mesh)
            with pytest.raises((StateDictError, RuntimeError), match=r"shard|size mismatch"):
                mine.load_state_dict(file)
            with pytest.raises(StateDictError, match=REFUSED):
                dt.load_state_dict(make(mesh), file)
        return True

    def model_of(_):
        return model()

    assert all(on_ranks(2, program))


def test_shards_of_another_mesh_are_taken_where_they_are_the_same():
    """The second half along dp is that of the second half within."""
    files = written(2, sharded)

    def program():
        nodes = da.init_device_mesh((2, 2), ("between", "within"))
        mine = sharded(nodes)
        mine.load_state_dict(files[nodes.coordinate[1]])
        with pytest.raises(StateDictError, match=REFUSED):
            mine.load_state_dict(files[1 - nodes.coordinate[1]])
        return True

    assert all(simulate(4, program))


def test_whole_tensors_say_nothing_of_shards():
    def program(mesh):
        mine = sharded(mesh)
        state = dt.state_dict(mine)
        plain = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)).double()
        plain.load_state_dict(saved(state))
        assert "distarray_shares" not in str(state._metadata)
        dt.load_state_dict(mine, state)
        assert "distarray_shares" in str(dt.state_dict(mine, full=False)._metadata)
        blocks = mine.state_dict()
        for name in blocks:  # what has been made whole since is whole
            blocks[name] = state[name]
        dt.load_state_dict(mine, blocks)
        plain.load_state_dict(blocks)

    on_ranks(2, program)


def test_one_rank_gives_whole_tensors_and_no_shards():
    files = written(2, sharded)

    def program(mesh):
        mine = sharded(mesh)
        with pytest.raises(StateDictError, match=REFUSED):
            dt.load_state_dict(mine, files[0] if mesh.rank == 0 else None, src_data_rank=0)
        return True

    assert all(on_ranks(2, program))


def test_copies_and_parts_know_their_shards():
    def program(mesh):
        mine = copy.deepcopy(columns(mesh))
        with torch.no_grad():
            mine[0].weight.copy_(values(4, 8, seed=mesh.rank))
        state = mine[0].state_dict()
        assert "distarray_shares" in str(state._metadata)
        mine[0].load_state_dict(state)

    on_ranks(2, program)


@pytest.mark.parametrize("make", [sharded, columns, rows])
def test_whole_tensors_for_shards_name_what_loads_them(make):
    def program(mesh):
        mine, whole = make(mesh), model().state_dict()
        with pytest.raises(RuntimeError, match="size mismatch") as caught:
            mine.load_state_dict(whole)
        assert str(caught.value).count("use dt.load_state_dict(model, state)") == 1
        dt.load_state_dict(mine, whole)
        mine.load_state_dict(mine.state_dict())

    on_ranks(2, program)
